//! Paths of the services (R-EP-01), for servers and clients.

use crate::cache::Protocol;
use crate::resource::Kind;

/// Package, service without `DiscoveryService`, stem of its methods, type, and last part of the REST-JSON path, as in
/// the annotations of Envoy's protos (R-REST-01). Types that speak delta only have none (R-EP-02, R-REST-14).
type Service = (&'static str, &'static str, &'static str, Option<Kind>, Option<&'static str>);

const SERVICES: [Service; 11] = [
    ("discovery", "Aggregated", "AggregatedResources", None, None),
    ("cluster", "Cluster", "Clusters", Some(Kind::Cluster), Some("clusters")),
    ("endpoint", "Endpoint", "Endpoints", Some(Kind::Endpoint), Some("endpoints")),
    ("endpoint", "LocalityEndpoint", "LocalityEndpoints", Some(Kind::LocalityEndpoint), None),
    ("listener", "Listener", "Listeners", Some(Kind::Listener), Some("listeners")),
    ("route", "ScopedRoutes", "ScopedRoutes", Some(Kind::ScopedRoute), Some("scoped-routes")),
    ("route", "Route", "Routes", Some(Kind::Route), Some("routes")),
    ("route", "VirtualHost", "VirtualHosts", Some(Kind::VirtualHost), None),
    ("secret", "Secret", "Secrets", Some(Kind::Secret), Some("secrets")),
    (
        "extension",
        "ExtensionConfig",
        "ExtensionConfigs",
        Some(Kind::ExtensionConfig),
        Some("extension_configs"),
    ),
    ("runtime", "Runtime", "Runtime", Some(Kind::Runtime), Some("runtime")),
];

/// Protocol and type of the streams at a path; all types if the type is `None`.
pub fn streamed(path: &str) -> Option<(Protocol, Option<Kind>)> {
    let (service, method) = path.strip_prefix("/envoy.service.")?.split_once('/')?;
    let (package, service) = service.strip_suffix("DiscoveryService")?.split_once(".v3.")?;
    let (_, _, name, kind, polled) = SERVICES.into_iter().find(|row| row.0 == package && row.1 == service)?;
    let delta_only = kind.is_some() && polled.is_none();
    match method.strip_suffix(name)? {
        "Delta" => Some((Protocol::Delta, kind)),
        "Stream" if !delta_only => Some((Protocol::Sotw, kind)),
        _ => None,
    }
}

pub const POLLED: &str = "/v3/discovery:";

pub fn polled_type(path: &str) -> Option<Kind> {
    let what = path.strip_prefix(POLLED)?;
    SERVICES.into_iter().find(|row| row.4 == Some(what))?.3
}

/// Path at which a type is polled; `None` for types without REST-JSON.
pub fn poll_path(kind: Kind) -> Option<String> {
    let what = SERVICES.into_iter().find(|row| row.3 == Some(kind))?.4?;
    Some(format!("{POLLED}{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_ep_01_every_method_is_at_its_path() {
        let sotw = [
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
            "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners",
            "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes",
            "/envoy.service.route.v3.ScopedRoutesDiscoveryService/StreamScopedRoutes",
            "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters",
            "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints",
            "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets",
            "/envoy.service.runtime.v3.RuntimeDiscoveryService/StreamRuntime",
            "/envoy.service.extension.v3.ExtensionConfigDiscoveryService/StreamExtensionConfigs",
        ];
        for path in sotw {
            assert!(matches!(streamed(path), Some((Protocol::Sotw, _))), "{path}");
            let delta = path.replace("/Stream", "/Delta");
            assert!(matches!(streamed(&delta), Some((Protocol::Delta, _))), "{delta}");
        }
    }

    #[test]
    fn r_ep_02_vhds_and_leds_are_delta_only() {
        for service in [
            "route.v3.VirtualHostDiscoveryService/{}VirtualHosts",
            "endpoint.v3.LocalityEndpointDiscoveryService/{}LocalityEndpoints",
        ] {
            let path = |method| format!("/envoy.service.{}", service.replace("{}", method));
            assert!(matches!(streamed(&path("Delta")), Some((Protocol::Delta, Some(_)))));
            assert_eq!(streamed(&path("Stream")), None);
        }
    }

    /// Paths that Envoy's protos give to their methods (`google.api.http`).
    fn annotated() -> Vec<(String, String)> {
        let http = crate::descriptors::pool().get_extension_by_name("google.api.http").unwrap();
        let mut all = Vec::new();
        for service in crate::descriptors::pool().services() {
            for method in service.methods() {
                let options = method.options();
                let is_discovery =
                    method.input().full_name() == "envoy.service.discovery.v3.DiscoveryRequest";
                if !is_discovery || !options.has_extension(&http) {
                    continue;
                }
                let rule = options.get_extension(&http);
                let rule = rule.as_message().unwrap();
                if let Some(path) = rule.get_field_by_name("post").and_then(|p| p.as_str().map(str::to_owned))
                {
                    all.push((path, method.name().to_owned()));
                }
            }
        }
        all
    }

    #[test]
    fn r_rest_01_the_paths_are_those_of_envoys_protos() {
        let annotated = annotated();
        let polled = SERVICES.into_iter().filter(|row| row.4.is_some());
        assert_eq!(annotated.len(), polled.count(), "{annotated:?}");
        for (path, method) in annotated {
            let kind = polled_type(&path).unwrap_or_else(|| panic!("{path} is not served"));
            let fetched = SERVICES.into_iter().find(|row| method == format!("Fetch{}", row.2)).unwrap();
            assert_eq!(Some(kind), fetched.3, "{path}");
            assert_eq!(poll_path(kind), Some(path));
        }
    }

    #[test]
    fn r_rest_14_delta_aggregated_virtual_hosts_and_leds_are_not_served_in_json() {
        for what in [
            "virtual_hosts",
            "virtual-hosts",
            "localities",
            "locality_endpoints",
            "delta",
            "ads",
            "aggregated",
            "",
        ] {
            assert_eq!(polled_type(&format!("/v3/discovery:{what}")), None, "{what}");
        }
        for kind in [Kind::VirtualHost, Kind::LocalityEndpoint] {
            assert_eq!(poll_path(kind), None);
        }
    }

    #[test]
    fn other_paths_are_nothing() {
        for path in [
            "/v2/discovery:clusters",
            "/v3/discovery:clusters/",
            "/v3/discovery",
            "",
            "/",
            "/envoy.service.",
            "/envoy.service.cluster.v3.ClusterDiscoveryService/",
            "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters",
            "/a/b",
        ] {
            assert_eq!((streamed(path), polled_type(path)), (None, None), "{path}");
        }
    }
}
