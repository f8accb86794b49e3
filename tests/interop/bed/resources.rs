//! The xDS resources of the tests, as the proto3 JSON of an Any.

use serde_json::{Value, json};

pub(crate) const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub(crate) const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
pub(crate) const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub(crate) const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

const HTTP_CONNECTION_MANAGER: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";

/// A cluster whose endpoints come by EDS from `source`.
pub(crate) fn cluster(name: &str, source: &Value, connect_timeout: &str) -> Value {
    json!({
        "@type": CLUSTER,
        "name": name,
        "type": "EDS",
        "connect_timeout": connect_timeout,
        "eds_cluster_config": {"eds_config": source},
    })
}

pub(crate) fn endpoints(cluster: &str, port: u16) -> Value {
    json!({
        "@type": ENDPOINTS,
        "cluster_name": cluster,
        "endpoints": [{
            // gRPC ignores a locality without a weight.
            "locality": {"region": "loopback"},
            "load_balancing_weight": 1,
            "lb_endpoints": [{"endpoint": {"address": {"socket_address": {
                "address": "127.0.0.1", "port_value": port,
            }}}}],
        }],
    })
}

pub(crate) fn routes(name: &str, cluster: &str) -> Value {
    json!({
        "@type": ROUTES,
        "name": name,
        "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{"match": {"prefix": ""}, "route": {"cluster": cluster}}],
        }],
    })
}

/// A listener of Envoy on a port of its choice, with its routes by RDS from `source`.
pub(crate) fn listener(name: &str, source: &Value, routes: &str) -> Value {
    json!({
        "@type": LISTENER,
        "name": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{
            "name": "http",
            "typed_config": connection_manager(source, routes),
        }]}],
    })
}

/// A listener as gRPC clients ask for: what their target resolves to.
pub(crate) fn api_listener(name: &str, source: &Value, routes: &str) -> Value {
    json!({
        "@type": LISTENER,
        "name": name,
        "api_listener": {"api_listener": connection_manager(source, routes)},
    })
}

/// A resource of any of the types above with a number in it, and nothing that a data plane could use.
pub(crate) fn numbered(type_url: &str, name: &str, number: u16) -> Value {
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": number}});
    match type_url {
        CLUSTER => json!({"@type": type_url, "name": name, "connect_timeout": format!("{number}s")}),
        ENDPOINTS => json!({
            "@type": type_url,
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        }),
        LISTENER => json!({"@type": type_url, "name": name, "address": address}),
        _ => json!({
            "@type": type_url,
            "name": name,
            "virtual_hosts": [{"name": format!("host-{number}"), "domains": ["*"]}],
        }),
    }
}

fn connection_manager(source: &Value, routes: &str) -> Value {
    json!({
        "@type": HTTP_CONNECTION_MANAGER,
        "stat_prefix": routes,
        "rds": {"config_source": source, "route_config_name": routes},
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
    })
}
