//! Node of a client.

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
