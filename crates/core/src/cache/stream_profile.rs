//! Profile of a stream: protocol, aggregation and TTLs.
//!
//! Owns everything besides the subscription that decides the bytes for a client. Knows nothing of resources to
//! send.

use std::time::Duration;

use bytes::Bytes;

use crate::resource::{Kind, NameForm, Resource};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Sotw,
    Delta,
}

impl Protocol {
    /// Label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Sotw => "sotw",
            Self::Delta => "delta",
        }
    }

    pub const fn node_field(self) -> u8 {
        match self {
            Self::Sotw => 2,
            Self::Delta => 1,
        }
    }
}

/// Whether a client is sent TTLs (R-TTL-07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TtlSupport {
    /// No: the relay removes expired resources.
    #[default]
    Unsupported,
    /// With resources only: a heartbeat would look like an error (R-TTL-06).
    WithResources,
    /// Yes, with heartbeats if its protocol has them.
    Heartbeats,
}

/// Properties of a client that decide its bytes, besides the subscription.
///
/// A poll counts as a state-of-the-world stream of one type. Its bytes are made from its
/// [`SetState`](super::SetState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamProfile {
    pub protocol: Protocol,
    /// Whether its types share one stream (ADS). Then endpoints are repeated behind changed clusters
    /// (R-ADS-05).
    pub aggregated: bool,
    pub ttl: TtlSupport,
}

impl StreamProfile {
    /// Whether each response of the type holds everything visible, so that nothing else can be owed
    /// (R-SotW-18).
    pub const fn is_full_state(self, kind: Kind) -> bool {
        matches!(self.protocol, Protocol::Sotw) && kind.full_state()
    }

    /// Encoded fields before the body, for a resource with a form of its own.
    pub(super) fn head(self, resource: &Resource, called: NameForm<'_>, ttl: Option<Duration>) -> Bytes {
        match self.protocol {
            Protocol::Delta => resource.delta_head(called, ttl),
            Protocol::Sotw => resource.wrapped_head(called, ttl),
        }
    }
}

/// Whether a client's subscriptions create demand upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Client,
    /// No: it sees what others hold, without any effect on them or upstream.
    Observer,
}
