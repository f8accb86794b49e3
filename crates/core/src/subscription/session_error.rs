//! Refusals: reasons to close a stream or to reject a request.
//!
//! Owns messages and codes, with the limit or permission for metrics and the log.

use crate::cache::{FellBehindError, StoreLimitError};
use crate::group_table::GroupLimitError;
use crate::limit::Limit;
use crate::node_group::NoGroupError;
use crate::resource::wire::MalformedError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SessionError {
    pub code: Code,
    /// For the peer's log.
    pub message: String,
    pub denied: Option<Denied>,
    pub limit: Option<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    /// Nothing to send, or not to this stream; a retry, or another server, may help.
    Unavailable,
}

impl SessionError {
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
    pub(super) fn cold(unavailable_reason: &str) -> Self {
        let message = format!("nothing is cached yet and {unavailable_reason}; try another server or again");
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

/// Start of a peer's text, for a message or the log.
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

/// Part of a request that the operator's rules deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Denied {
    Peer,
    NodeId,
    Cluster,
    Type,
    /// Secrets, for a peer without proven identity.
    Secret,
    /// Dynamic parameters, sent or given.
    Parameters,
    Group,
}

impl Denied {
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
