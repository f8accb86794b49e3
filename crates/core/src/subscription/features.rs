//! `client_features` of a node, and their effects.

use super::client::is_grpc;
use crate::cache::{Protocol, Role, TtlSupport};
use crate::proto;

/// Features after this many are ignored.
const LISTED: usize = 1024;

/// The client observes what the relay holds, without requests to the control plane. Other servers
/// ignore this.
pub const OBSERVER: &str = "deltafan.observer";
const RESOURCE_TTL: [&str; 2] = ["xds.config.supports-resource-ttl", "envoy.config.supports-resource-ttl"];
/// Documents and implementations spell this differently.
const RESOURCE_IN_SOTW: [&str; 3] =
    ["xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw"];

pub fn observes(node: &proto::Node) -> bool {
    Features::read(node).observes
}

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

    /// Whether the client's subscriptions create demand upstream.
    pub(super) const fn role(self) -> Role {
        if self.observes { Role::Observer } else { Role::Client }
    }

    /// TTLs on a stream of this protocol (R-TTL-06, R-TTL-07, R-SotW-23).
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
