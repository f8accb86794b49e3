//! Shape of a load: subscriptions of the clients, and their number of connections.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::process::Core;

/// Protocol of a client, aggregated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Delta,
    Sotw,
}

/// Frames that a client sends beside the ACK of an update, as recorded from real ones (`benches/README.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Client {
    /// None.
    Envoy,
    /// A PING to estimate the bandwidth, unless one is under way, and with it a WINDOW_UPDATE of the connection.
    GrpcGo,
    /// As before, and a WINDOW_UPDATE of the stream.
    CCore,
}

/// A type of resources. All have their name in field 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Cds,
    Eds,
    Lds,
    Rds,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Cds, Self::Eds, Self::Lds, Self::Rds];

    pub(crate) const fn type_url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Rds => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }
}

/// A fleet of equal clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) transport: Transport,
    pub(crate) client: Client,
    /// Clients poll over REST-JSON instead, one type each.
    pub(crate) polls: bool,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) clients: usize,
    /// Resources of each type.
    pub(crate) resources: usize,
    /// Names that each client asks for, over all types; none: the wildcard.
    pub(crate) names: usize,
    /// How far the names of two clients lie apart; 0: all ask for the same.
    pub(crate) stride: usize,
    pub(crate) streams_per_connection: usize,
    /// Sets of dynamic parameters among the clients, one after the other; 0: they have none.
    pub(crate) sets: usize,
    /// Node groups among the clients, one after the other; 0: all are in the relay's own.
    pub(crate) groups: usize,
    /// Some of the clients try each change first.
    pub(crate) guarded: bool,
    /// Time without a change before each.
    pub(crate) pause: Duration,
    /// Every set has a variant of its own of each resource.
    pub(crate) variants: bool,
    /// Connections of a hundred that stop reading after their first state.
    pub(crate) silent_percent: usize,
    /// Resources that make up a client's first state; 0: its first response does, whatever is in it.
    pub(crate) first: usize,
    /// Clients hold everything already, at the origin's first version.
    pub(crate) held: bool,
    /// Clients go once they have their first state.
    pub(crate) leaves: bool,
    /// Connections that wait for their first state at a time.
    pub(crate) at_once: usize,
    /// Clients speak TLS, with the certificates in this folder.
    pub(crate) certificates: Option<PathBuf>,
    /// Whatever else runs on the core of the load comes first.
    pub(crate) yields: bool,
    /// Where the relay runs, with a worker on each core.
    pub(crate) relay_on: Core,
    /// The relay runs under callgrind, which writes this file.
    pub(crate) counted: Option<PathBuf>,
    /// Seconds without any progress after which the load client gives up.
    pub(crate) patience: u64,
}

impl Load {
    pub(crate) fn wildcard(transport: Transport, clients: usize, resources: usize) -> Self {
        let kind = match transport {
            Transport::Delta => Kind::Eds,
            Transport::Sotw => Kind::Cds,
        };
        Self {
            transport,
            client: Client::Envoy,
            polls: false,
            kinds: vec![kind],
            clients,
            resources,
            names: 0,
            stride: 37,
            streams_per_connection: 1,
            sets: 0,
            groups: 0,
            guarded: false,
            pause: Duration::ZERO,
            variants: false,
            silent_percent: 0,
            first: resources,
            held: false,
            leaves: false,
            at_once: 1000,
            certificates: None,
            yields: false,
            relay_on: Core::Server,
            counted: None,
            patience: 120,
        }
    }

    pub(crate) fn delta(clients: usize, resources: usize) -> Self {
        Self::wildcard(Transport::Delta, clients, resources)
    }

    pub(crate) fn named(clients: usize, names: usize, resources: usize) -> Self {
        Self { names, first: names, ..Self::delta(clients, resources) }
    }

    pub(crate) const fn method(&self) -> &'static str {
        match self.transport {
            Transport::Delta => {
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
            }
            Transport::Sotw => {
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
            }
        }
    }

    /// The names that exist.
    pub(crate) fn pool(&self) -> Vec<String> {
        (0..self.resources).map(resource_name).collect()
    }

    /// The names of a type that a client asks for: neighbours, from a place that few others share.
    pub(crate) fn names_of(&self, client: usize, kind: usize, pool: &[String]) -> Vec<String> {
        // 50 names of four types are 13, 13, 12 and 12.
        let kinds = self.kinds.len();
        let count = self.names / kinds + usize::from(kind < self.names % kinds);
        match (self.names, self.transport) {
            (0, Transport::Delta) => vec!["*".to_owned()],
            (0, Transport::Sotw) => Vec::new(),
            _ => (0..count).map(|at| pool[(client * self.stride + at) % pool.len()].clone()).collect(),
        }
    }

    /// The cluster that a client says it is in, which tells its set of parameters or its group.
    pub(crate) fn cluster_of(&self, client: usize) -> String {
        let parts = self.sets.max(self.groups).max(1);
        set_name(client % parts)
    }

    /// The resources that one change changes, so that every client has exactly one thing to learn.
    pub(crate) fn changed(&self, round: usize) -> Vec<usize> {
        match self.names {
            0 => vec![round % self.resources],
            names => (0..self.resources).filter(|at| at % names == round % names).collect(),
        }
    }

    pub(crate) const fn connections(&self) -> usize {
        self.clients / self.streams_per_connection
    }

    /// Whether a connection stops reading.
    pub(crate) fn is_silent(&self, connection: usize) -> bool {
        connection * 100 / self.connections().max(1) < self.silent_percent
    }

    /// Clients that take what is sent to them.
    pub(crate) fn readers(&self) -> usize {
        (0..self.connections()).filter(|at| !self.is_silent(*at)).count() * self.streams_per_connection
    }
}

/// A set of dynamic parameters by its only value, which is a node's cluster.
pub(crate) fn set_name(at: usize) -> String {
    format!("cluster-{at:04}")
}

pub(crate) fn resource_name(at: usize) -> String {
    format!("resource-{at:06}")
}
