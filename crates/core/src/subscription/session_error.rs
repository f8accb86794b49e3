//! Refusals: why a request is not served or a stream is closed.
//!
//! Owns their words and codes, with the limit that was reached or the right that is missing, for metrics and the log.

use crate::cache::{FellBehindError, StoreLimitError};
use crate::group_table::GroupLimitError;
use crate::limit::Limit;
use crate::node_group::NoGroupError;
use crate::resource::wire::MalformedError;

/// Reason for closing a stream or refusing a request, and whose fault it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SessionError {
    /// A gRPC status code.
    pub code: Code,
    /// For the peer's log: what was expected.
    pub message: String,
    /// Kind of denial, where the operator's rules are why.
    pub denied: Option<Denied>,
    /// Limit that was reached, if that is why.
    pub limit: Option<Limit>,
}

/// The gRPC status codes that a session closes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request breaks the protocol.
    InvalidArgument,
    /// The request asks for what this peer may not see.
    PermissionDenied,
    /// The request is beyond a limit of the relay.
    ResourceExhausted,
    /// The relay has nothing to say, or not to this stream; another try, or another server, may do better.
    Unavailable,
}

impl SessionError {
    /// Attributes the refusal to a limit.
    pub(super) const fn over(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn denied(denied: Denied, message: impl Into<String>) -> Self {
        Self { code: Code::PermissionDenied, message: message.into(), denied: Some(denied), limit: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into(), denied: None, limit: None }
    }

    pub(super) fn exhausted(message: impl Into<String>) -> Self {
        Self { code: Code::ResourceExhausted, message: message.into(), denied: None, limit: None }
    }

    /// Nothing is known and the origin does not answer (R-Relay-07).
    pub(super) fn cold(excuse: &str) -> Self {
        let message = format!("nothing is cached yet and {excuse}; try another server or again");
        Self { code: Code::Unavailable, message, denied: None, limit: None }
    }
}

impl From<FellBehindError> for SessionError {
    fn from(behind: FellBehindError) -> Self {
        Self { code: Code::Unavailable, message: behind.to_string(), denied: None, limit: None }
    }
}

impl From<StoreLimitError> for SessionError {
    fn from(full: StoreLimitError) -> Self {
        let limit = match full {
            StoreLimitError::Types(_) => Limit::Types,
            StoreLimitError::ParameterSets(_) => Limit::ParameterSets,
        };
        Self::exhausted(full.to_string()).over(limit)
    }
}

impl From<NoGroupError> for SessionError {
    fn from(refusal: NoGroupError) -> Self {
        Self::denied(Denied::Group, refusal.to_string())
    }
}

impl From<GroupLimitError> for SessionError {
    fn from(full: GroupLimitError) -> Self {
        Self::exhausted(full.to_string()).over(Limit::Groups)
    }
}

/// The start of a text that a peer sent, for a message to that peer or the log.
pub(super) fn clip(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.split_at(end).0),
        None => text.to_owned(),
    }
}

impl From<MalformedError> for SessionError {
    fn from(_: MalformedError) -> Self {
        Self::invalid("the request is not a proto3 message")
    }
}

/// Part of a request that the operator's rules do not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Denied {
    /// The peer may ask for nothing.
    Peer,
    /// It may not claim this `node.id`.
    NodeId,
    /// It may not claim this `node.cluster`.
    Cluster,
    /// It may not ask for this type.
    Type,
    /// It may not have Secrets, for it has not proven its identity.
    Secret,
    /// It may not send these dynamic parameters, or be given them.
    Parameters,
    /// No node group takes it.
    Group,
}

impl Denied {
    /// A word for it, as a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::NodeId => "node_id",
            Self::Cluster => "cluster",
            Self::Type => "type",
            Self::Secret => "secret",
            Self::Parameters => "parameters",
            Self::Group => "group",
        }
    }
}
