//! What is measured: who subscribes to what, over how many connections.

use std::fmt;
use std::str::FromStr;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Delta,
    Sotw,
}

/// A fleet of equal clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) transport: Transport,
    pub(crate) clients: usize,
    pub(crate) resources: usize,
    /// Names that each client asks for; none: the wildcard.
    pub(crate) names: usize,
    pub(crate) streams_per_connection: usize,
    /// Clients of a hundred that stop reading after their first state.
    pub(crate) silent_percent: usize,
}

impl Load {
    pub(crate) const fn wildcard(transport: Transport, clients: usize, resources: usize) -> Self {
        Self { transport, clients, resources, names: 0, streams_per_connection: 1, silent_percent: 0 }
    }

    pub(crate) const fn named(clients: usize, names: usize, resources: usize) -> Self {
        Self {
            transport: Transport::Delta,
            clients,
            resources,
            names,
            streams_per_connection: 1,
            silent_percent: 0,
        }
    }

    pub(crate) const fn type_url(&self) -> &'static str {
        match self.transport {
            Transport::Delta => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Transport::Sotw => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        }
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

    /// The names that a client asks for: neighbours, from a place that few others share.
    pub(crate) fn names_of(&self, client: usize) -> Vec<String> {
        match (self.names, self.transport) {
            (0, Transport::Delta) => vec!["*".to_owned()],
            (0, Transport::Sotw) => Vec::new(),
            (names, _) => (0..names).map(|at| resource_name((client * 37 + at) % self.resources)).collect(),
        }
    }

    /// The resources that one change changes, so that every client has exactly one thing to learn.
    pub(crate) fn changed(&self, round: usize) -> Vec<usize> {
        match self.names {
            0 => vec![round % self.resources],
            names => (0..self.resources).filter(|at| at % names == round % names).collect(),
        }
    }

    /// How many clients take what is sent to them.
    pub(crate) fn readers(&self) -> usize {
        let connections = self.clients / self.streams_per_connection;
        let silent = (0..connections).filter(|at| at * 100 / connections < self.silent_percent).count();
        self.clients - silent * self.streams_per_connection
    }
}

pub(crate) fn resource_name(at: usize) -> String {
    format!("resource-{at:06}")
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Delta => "delta",
            Transport::Sotw => "sotw",
        };
        let Self { clients, resources, names, streams_per_connection, silent_percent, .. } = self;
        write!(f, "{transport},{clients},{resources},{names},{streams_per_connection},{silent_percent}")
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let transport = match parts.next() {
            Some("delta") => Transport::Delta,
            Some("sotw") => Transport::Sotw,
            _ => return Err(format!("`{text}` begins with neither delta nor sotw")),
        };
        let mut number = || {
            let part = parts.next().ok_or_else(|| format!("`{text}` is too short"))?;
            part.parse::<usize>().map_err(|error| format!("`{part}` in `{text}`: {error}"))
        };
        Ok(Self {
            transport,
            clients: number()?,
            resources: number()?,
            names: number()?,
            streams_per_connection: number()?,
            silent_percent: number()?,
        })
    }
}
