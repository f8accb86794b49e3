//! Features that a client says it understands: `client_features` of its node.
//!
//! Owns the names of features, and which of them are needed for what. Keeps nothing of what a client wrote.

use super::client::is_grpc;
use crate::cache::{Protocol, Role, TtlSupport};
use crate::proto;

/// More features than this are not looked at.
const LISTED: usize = 1024;

/// The client looks at what the relay holds, and nothing is to be asked of the control plane because of it. Other servers
/// do not know it and answer as ever.
pub const OBSERVER: &str = "deltafan.observer";
/// Resources may carry a time, and heartbeats may renew it.
const RESOURCE_TTL: [&str; 2] = ["xds.config.supports-resource-ttl", "envoy.config.supports-resource-ttl"];
/// A state of the world may wrap resources. The documents write one of these, the implementations another.
const RESOURCE_IN_SOTW: [&str; 3] =
    ["xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw"];

/// Whether a client only looks on (see [`OBSERVER`]).
pub fn observes(node: &proto::Node) -> bool {
    Features::read(node).observes
}

/// Abilities of a client, as its node tells them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    resource_ttl: bool,
    resource_in_sotw: bool,
    is_grpc: bool,
    observes: bool,
}

impl Features {
    pub(super) fn read(node: &proto::Node) -> Self {
        let has = |names: &[&str]| {
            node.client_features.iter().take(LISTED).any(|feature| names.contains(&feature.as_str()))
        };
        Self {
            resource_ttl: has(&RESOURCE_TTL),
            resource_in_sotw: has(&RESOURCE_IN_SOTW),
            is_grpc: is_grpc(&node.user_agent_name),
            observes: has(&[OBSERVER]),
        }
    }

    /// Whether the subscriptions of the client create demand upstream.
    pub(super) const fn role(self) -> Role {
        if self.observes { Role::Observer } else { Role::Client }
    }

    /// Whether the client is told times on a stream of this protocol (R-TTL-06, R-TTL-07, R-SotW-23).
    pub(super) const fn ttl(self, protocol: Protocol) -> TtlSupport {
        match protocol {
            _ if !self.resource_ttl => TtlSupport::Untold,
            Protocol::Sotw if self.resource_in_sotw => TtlSupport::Told,
            Protocol::Sotw => TtlSupport::Untold,
            Protocol::Delta if self.is_grpc => TtlSupport::Told,
            Protocol::Delta => TtlSupport::Heartbeats,
        }
    }
}
