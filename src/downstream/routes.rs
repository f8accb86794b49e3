//! Which path is which service (R-EP-01).

use crate::cache::Protocol;
use crate::resource::Kind;

/// A method of an xDS service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// A stream; of one type, or aggregated.
    Stream(Protocol, Option<Kind>),
    /// A unary state-of-the-world request of one type.
    Fetch(Kind),
}

/// Package, service, the name its methods are built from, and its type.
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
    /// The method at a path, if there is one.
    pub(super) fn of(path: &str) -> Option<Self> {
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

    #[test]
    fn other_paths_are_nothing() {
        for path in ["", "/", "/envoy.service.", "/envoy.service.cluster.v3.ClusterDiscoveryService/", "/a/b"]
        {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }
}
