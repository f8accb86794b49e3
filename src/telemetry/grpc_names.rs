//! The upstream side under the names that gRPC's xDS clients have for it: gRFC A78, as the Prometheus exporter of OpenTelemetry spells
//! them.
//!
//! A name is there if it means the same here, and is counted at the same place as the relay's own metric. The notes say what differs.

use deltafan_core::cache::Held;
use deltafan_core::resource::Kind;
use deltafan_core::upstream::ReceivedUpdates;
use metrics::{Counter, Gauge, counter, gauge};

use super::metric::Needs::Servers;
use super::metric::{Label, Metric, Values};

const CONNECTED: &str = "grpc_xds_client_connected";
const FAILURES: &str = "grpc_xds_client_server_failure_total";
const VALID: &str = "grpc_xds_client_resource_updates_valid_total";
const INVALID: &str = "grpc_xds_client_resource_updates_invalid_total";
const RESOURCES: &str = "grpc_xds_client_resources";

/// The relay asks for the sake of all its clients, and no channel has a target.
const TARGET: &str = "#relay";
/// Value that gRPC has for names of the old form.
const OLD_NAMES: &str = "#old";
/// All authorities together: each is a string that a client may make up.
const XDSTP_NAMES: &str = "#xdstp";
const ACKED: &str = "acked";

/// Types by the names of their messages, in the order of [`Kind`].
const RESOURCE_TYPES: [(&str, &str); 11] = [
    ("envoy.config.cluster.v3.Cluster", "clusters"),
    ("envoy.config.endpoint.v3.ClusterLoadAssignment", "endpoints"),
    ("envoy.config.endpoint.v3.LbEndpoint", "endpoints of a locality"),
    ("envoy.config.listener.v3.Listener", "listeners"),
    ("envoy.config.route.v3.ScopedRouteConfiguration", "scoped routes"),
    ("envoy.config.route.v3.RouteConfiguration", "routes"),
    ("envoy.config.route.v3.VirtualHost", "virtual hosts"),
    ("envoy.extensions.transport_sockets.tls.v3.Secret", "Secrets"),
    ("envoy.config.core.v3.TypedExtensionConfig", "extensions"),
    ("envoy.service.runtime.v3.Runtime", "runtime layers"),
    ("other", "all types without rules of their own"),
];

const TARGET_LABEL: Label = Label {
    name: "grpc_target",
    values: Values::OneOf(&[(
        TARGET,
        "gRPC has the target of a channel here; the relay asks for all its clients",
    )]),
};

const SERVER: Label =
    Label { name: "grpc_xds_server", values: Values::Free("URI of a server in `upstream.servers`") };

const RESOURCE_TYPE: Label = Label { name: "grpc_xds_resource_type", values: Values::OneOf(&RESOURCE_TYPES) };

const AUTHORITY: Label = Label {
    name: "grpc_xds_authority",
    values: Values::OneOf(&[
        (OLD_NAMES, "names of the old form, as gRPC has it"),
        (
            XDSTP_NAMES,
            "names that begin with `xdstp://`; gRPC has each authority here, which clients may make up",
        ),
    ]),
};

const CACHE_STATE: Label = Label {
    name: "grpc_xds_cache_state",
    values: Values::OneOf(&[(
        ACKED,
        "the resource is held. The relay does not count resources in the other states of gRPC: for `requested` see `deltafan_upstream_unanswered_subscriptions`; `nacked` and `nacked_but_cached` have no counterpart, because the relay refuses responses and not resources",
    )]),
};

/// Labels of several metrics.
pub(super) const SHARED_LABELS: [Label; 3] = [TARGET_LABEL, SERVER, RESOURCE_TYPE];

pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(CONNECTED, "whether there is a working ADS stream to the xDS server (gRFC A78)")
        .by(&[TARGET_LABEL, SERVER])
        .with(Servers)
        .noting("0 from a connection that could not be made, or a stream that ended before any response, until the next response, and while another server is used. Streams of all node groups count together"),
    Metric::counter(FAILURES, "times that the xDS server became unhealthy (gRFC A78)")
        .by(&[TARGET_LABEL, SERVER])
        .with(Servers)
        .noting("Counts when the gauge above falls to 0 for a failure"),
    Metric::counter(VALID, "resources received that were considered valid, also unchanged ones (gRFC A78)")
        .by(&[TARGET_LABEL, SERVER, RESOURCE_TYPE])
        .with(Servers)
        .noting("The relay checks the envelope of a resource and does not look into it: one that clients reject is valid here. Responses of a type that is not subscribed to do not count"),
    Metric::counter(INVALID, "resources received that were considered invalid (gRFC A78)")
        .by(&[TARGET_LABEL, SERVER, RESOURCE_TYPE])
        .with(Servers)
        .noting("A response with a fault in its envelope is refused as a whole, so all its resources count, where gRPC goes on with the valid ones"),
    Metric::gauge(RESOURCES, "xDS resources (gRFC A78)")
        .by(&[TARGET_LABEL, AUTHORITY, CACHE_STATE, RESOURCE_TYPE])
        .with(Servers)
        .noting("Counted as `deltafan_cached_resources`"),
];

/// Metrics of one server.
#[derive(Debug)]
pub struct ServerMetrics {
    connected: Gauge,
    failures: Counter,
    /// By [`Kind`]: valid and invalid resources.
    updates: [[Counter; 2]; RESOURCE_TYPES.len()],
}

impl ServerMetrics {
    /// Metrics of the server with this URI, which are 0 until something happens.
    pub fn of(uri: &str) -> Self {
        let updates = |(resource_type, _): (&'static str, &str)| {
            [VALID, INVALID].map(|name| {
                counter!(name, "grpc_target" => TARGET, "grpc_xds_server" => uri.to_owned(), "grpc_xds_resource_type" => resource_type)
            })
        };
        let metrics = Self {
            connected: gauge!(CONNECTED, "grpc_target" => TARGET, "grpc_xds_server" => uri.to_owned()),
            failures: counter!(FAILURES, "grpc_target" => TARGET, "grpc_xds_server" => uri.to_owned()),
            updates: RESOURCE_TYPES.map(updates),
        };
        metrics.connected.set(0.0);
        let counters = metrics.updates.iter().flatten().chain([&metrics.failures]);
        counters.for_each(|counter| counter.increment(0));
        metrics
    }

    /// Reports whether there is a working stream.
    pub fn report_connected(&self, is_connected: bool) {
        self.connected.set(if is_connected { 1.0 } else { 0.0 });
    }

    /// Counts that the server became unhealthy.
    pub fn failed(&self) {
        self.failures.increment(1);
    }

    /// Counts the resources of a response.
    pub fn received(&self, updates: ReceivedUpdates) {
        let [valid, invalid] = &self.updates[updates.kind as usize];
        valid.increment(updates.valid as u64);
        invalid.increment(updates.invalid as u64);
    }
}

/// Reports the resources of a type that are held.
pub fn report_held_by_grpc_names(kind: Kind, held: Held) {
    let (resource_type, _) = RESOURCE_TYPES[kind as usize];
    for (authority, resources) in [(OLD_NAMES, held.resources - held.xdstp), (XDSTP_NAMES, held.xdstp)] {
        gauge!(
            RESOURCES,
            "grpc_target" => TARGET,
            "grpc_xds_authority" => authority,
            "grpc_xds_cache_state" => ACKED,
            "grpc_xds_resource_type" => resource_type
        )
        .set(resources as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_the_name_of_its_message() {
        for kind in Kind::KNOWN.into_iter().chain([Kind::Other]) {
            let message = kind.url().map_or("other", |url| url.trim_start_matches("type.googleapis.com/"));
            assert_eq!(RESOURCE_TYPES[kind as usize].0, message);
        }
    }
}
