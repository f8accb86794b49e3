//! How a client is told: protocol, aggregation and TTLs.
//!
//! Owns what, beside its subscription, decides which bytes a client is sent. Knows nothing of what there is to tell.

use std::time::Duration;

use bytes::Bytes;

use crate::resource::{Kind, NameForm, Resource};

/// Which protocol a stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

impl Protocol {
    /// The word for it in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Sotw => "sotw",
            Self::Delta => "delta",
        }
    }

    /// Number of the field `node` in its requests.
    pub const fn node_field(self) -> u8 {
        match self {
            Self::Sotw => 2,
            Self::Delta => 1,
        }
    }
}

/// Whether a client is told for how long to keep what it is sent (R-TTL-07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TtlSupport {
    /// No: the relay removes what ends.
    #[default]
    Untold,
    /// With the resources alone: it takes a heartbeat for a fault (R-TTL-06).
    Told,
    /// And it understands heartbeats, where its protocol has them.
    Heartbeats,
}

/// Properties of a client, beside its subscription, that decide which bytes it is sent.
///
/// A poll is of the profile of a state-of-the-world stream of one type: it sees the same and is woken by the same. Its
/// bytes are made elsewhere, from its [`SetState`](super::SetState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamProfile {
    /// The protocol of its stream.
    pub protocol: Protocol,
    /// Whether its types share one stream (ADS); of endpoints also that they are repeated behind changed members of the
    /// clusters (R-ADS-05).
    pub aggregated: bool,
    /// See [`TtlSupport`].
    pub ttl: TtlSupport,
}

impl StreamProfile {
    /// Whether each response of such a type holds all that the client may see, so that nothing else can be owed
    /// (R-SotW-18).
    pub const fn is_full_state(self, kind: Kind) -> bool {
        matches!(self.protocol, Protocol::Sotw) && kind.full_state()
    }

    /// Encoded fields before the body of a resource that is told in a form of its own.
    pub(super) fn head(self, resource: &Resource, called: NameForm<'_>, ttl: Option<Duration>) -> Bytes {
        match self.protocol {
            Protocol::Delta => resource.delta_head(called, ttl),
            Protocol::Sotw => resource.wrapped_head(called, ttl),
        }
    }
}

/// Whether the subscriptions of a client create demand upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Yes.
    #[default]
    Client,
    /// No: it sees what is held for others, and nobody else is told or asked anything because of it.
    Observer,
}
