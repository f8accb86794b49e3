//! Node of a client, and the features that it supports.
//!
//! Owns the names of features and their effects.

use crate::cache::{Protocol, Role, TtlSupport};
use crate::proto;

/// Node of the client, from its first request (R-EP-05).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// `node.id`
    pub node_id: String,
    /// `node.cluster`
    pub cluster: String,
    /// `node.user_agent_name`
    pub user_agent: String,
}

/// `user_agent_name` of a relay.
pub const USER_AGENT: &str = "deltafan";

pub(super) fn is_grpc(user_agent: &str) -> bool {
    user_agent.starts_with("gRPC")
}

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
            _ if !self.resource_ttl => TtlSupport::Unsupported,
            Protocol::Sotw if self.resource_in_sotw => TtlSupport::WithResources,
            Protocol::Sotw => TtlSupport::Unsupported,
            Protocol::Delta if self.is_grpc => TtlSupport::WithResources,
            Protocol::Delta => TtlSupport::Heartbeats,
        }
    }
}
