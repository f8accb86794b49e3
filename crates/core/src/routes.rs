//! Paths of the services (R-EP-01), for servers and clients.

use crate::cache::Protocol;
use crate::resource::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Stream of one type, or of all.
    Stream(Protocol, Option<Kind>),
    /// Unary state-of-the-world request of one type.
    Fetch(Kind),
}

/// Last parts of REST-JSON paths, as in the annotations of Envoy's protos (R-REST-01). Delta-only types have
/// none (R-REST-14).
const POLLS: [(&str, Kind); 8] = [
    ("listeners", Kind::Listener),
    ("routes", Kind::Route),
    ("scoped-routes", Kind::ScopedRoute),
    ("clusters", Kind::Cluster),
    ("endpoints", Kind::Endpoint),
    ("secrets", Kind::Secret),
    ("runtime", Kind::Runtime),
    ("extension_configs", Kind::ExtensionConfig),
];

/// Package, service, stem of its methods, and type.
const SERVICES: [(&str, &str, &str, Option<Kind>); 11] = [
    ("discovery", "AggregatedDiscoveryService", "AggregatedResources", None),
    ("cluster", "ClusterDiscoveryService", "Clusters", Some(Kind::Cluster)),
    ("endpoint", "EndpointDiscoveryService", "Endpoints", Some(Kind::Endpoint)),
    ("endpoint", "LocalityEndpointDiscoveryService", "LocalityEndpoints", Some(Kind::LocalityEndpoint)),
    ("listener", "ListenerDiscoveryService", "Listeners", Some(Kind::Listener)),
    ("route", "ScopedRoutesDiscoveryService", "ScopedRoutes", Some(Kind::ScopedRoute)),
    ("route", "RouteDiscoveryService", "Routes", Some(Kind::Route)),
    ("route", "VirtualHostDiscoveryService", "VirtualHosts", Some(Kind::VirtualHost)),
    ("secret", "SecretDiscoveryService", "Secrets", Some(Kind::Secret)),
    ("extension", "ExtensionConfigDiscoveryService", "ExtensionConfigs", Some(Kind::ExtensionConfig)),
    ("runtime", "RuntimeDiscoveryService", "Runtime", Some(Kind::Runtime)),
];

impl Route {
    pub fn of(path: &str) -> Option<Self> {
        let (service, method) = path.strip_prefix("/envoy.service.")?.split_once('/')?;
        let (package, service) = service.split_once(".v3.")?;
        let (_, _, name, kind) = SERVICES.into_iter().find(|row| row.0 == package && row.1 == service)?;
        // VHDS and LEDS speak delta only (R-EP-02).
        let delta_only = matches!(kind, Some(Kind::VirtualHost | Kind::LocalityEndpoint));
        match (method.strip_suffix(name)?, kind) {
            ("Delta", kind) => Some(Self::Stream(Protocol::Delta, kind)),
            ("Stream", kind) if !delta_only => Some(Self::Stream(Protocol::Sotw, kind)),
            ("Fetch", Some(kind)) if !delta_only => Some(Self::Fetch(kind)),
            _ => None,
        }
    }
}

pub const POLLED: &str = "/v3/discovery:";

pub fn polled_type(path: &str) -> Option<Kind> {
    let what = path.strip_prefix(POLLED)?;
    POLLS.into_iter().find(|row| row.0 == what).map(|(_, kind)| kind)
}

/// Path at which a type is polled; `None` for types without REST-JSON.
pub fn poll_path(kind: Kind) -> Option<String> {
    POLLS.into_iter().find(|row| row.1 == kind).map(|(what, _)| format!("{POLLED}{what}"))
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
            assert!(matches!(Route::of(path), Some(Route::Stream(Protocol::Sotw, _))), "{path}");
            let delta = path.replace("/Stream", "/Delta");
            assert!(matches!(Route::of(&delta), Some(Route::Stream(Protocol::Delta, _))), "{delta}");
            let fetch = path.replace("/Stream", "/Fetch");
            assert_eq!(Route::of(&fetch).is_some(), !path.contains("Aggregated"), "{fetch}");
        }
    }

    #[test]
    fn r_ep_02_vhds_and_leds_are_delta_only() {
        for service in [
            "route.v3.VirtualHostDiscoveryService/{}VirtualHosts",
            "endpoint.v3.LocalityEndpointDiscoveryService/{}LocalityEndpoints",
        ] {
            let path = |method| format!("/envoy.service.{}", service.replace("{}", method));
            assert!(matches!(Route::of(&path("Delta")), Some(Route::Stream(Protocol::Delta, Some(_)))));
            assert_eq!(Route::of(&path("Stream")), None);
            assert_eq!(Route::of(&path("Fetch")), None);
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
        assert_eq!(annotated.len(), POLLS.len(), "{annotated:?}");
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
        let kinds = POLLS.map(|(_, kind)| kind);
        assert!(!kinds.contains(&Kind::VirtualHost) && !kinds.contains(&Kind::LocalityEndpoint));
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
            "/a/b",
        ] {
            assert_eq!((Route::of(path), polled_type(path)), (None, None), "{path}");
        }
    }
}
