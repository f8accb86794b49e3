//! A client as it describes itself.

/// Node at the other end, as its first request described it (R-EP-05).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// `node.id`
    pub node_id: String,
    /// `node.cluster`
    pub cluster: String,
    /// `node.user_agent_name`
    pub user_agent: String,
}

/// `node.user_agent_name` of a relay.
pub const USER_AGENT: &str = "deltafan";

/// Whether a client is gRPC itself.
pub(super) fn is_grpc(user_agent: &str) -> bool {
    user_agent.starts_with("gRPC")
}
