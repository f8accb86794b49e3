//! Requests that a peer may make, and refusals of others.
//!
//! Owns the operator's rules for one kind of peer, the checks, and the messages and codes of all refusals. Knows nothing of
//! identities.
//!
//! Invariants: a hidden name is answered as one that does not exist, never otherwise · a client's
//! claims decide nothing before they are checked · without rules nothing is checked.

use std::collections::{BTreeMap, BTreeSet};

use super::client::{Client, NodeParameterRules};
use crate::cache::{ClientScope, FellBehindError, ParameterView, StoreLimitError, Subscription};
use crate::group_table::GroupLimitError;
use crate::limit::Limit;
use crate::node_group::NoGroupError;
use crate::proto::Node;
use crate::resource::wire::MalformedError;
use crate::resource::{Name, Parameters, Patterns, Scope, TypeUrl};

/// Permissions of a peer. `None` or empty restricts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    pub nothing: bool,
    /// Allowed values of `node.id`.
    pub node_ids: Option<Patterns>,
    /// Allowed values of `node.cluster`.
    pub clusters: Option<Patterns>,
    pub types: Option<BTreeSet<TypeUrl>>,
    pub names: Scope,
    /// Allowed values, by key. Each key is required; a key with one value is imposed.
    pub parameters: BTreeMap<String, BTreeSet<String>>,
}

/// Counts of names and wildcards that may not be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenCounts {
    /// Names answered as ones that do not exist.
    pub names: u64,
    /// Wildcards that show a part of the set.
    pub wildcards: u64,
}

impl Permissions {
    pub fn nothing() -> Self {
        Self { nothing: true, ..Self::default() }
    }

    pub(super) fn check_node(&self, client: &Client) -> Result<(), SessionError> {
        if self.nothing {
            return Err(SessionError::denied(Denied::Peer, "this peer may ask for nothing (authorization)"));
        }
        let claims = [
            (&self.node_ids, "id", &client.node_id, Denied::NodeId),
            (&self.clusters, "cluster", &client.cluster, Denied::Cluster),
        ];
        for (allowed, field, claim, denied) in claims {
            if allowed.as_ref().is_some_and(|allowed| !allowed.matches(claim)) {
                let message = format!("this peer may not claim this `node.{field}` (authorization)");
                return Err(SessionError::denied(denied, message));
            }
        }
        Ok(())
    }

    pub(super) fn check_type(&self, type_url: &TypeUrl) -> Result<(), SessionError> {
        match &self.types {
            Some(types) if !types.contains(type_url) => Err(SessionError::denied(
                Denied::Type,
                format!("this peer may not ask for {} (authorization)", clip(type_url.as_str())),
            )),
            _ => Ok(()),
        }
    }

    /// Checks each set of parameters through which a client sees something. A missing key is
    /// refused too: it would show resources for clients without it.
    pub(super) fn check_parameters(
        &self,
        parameter_view: &ParameterView,
        allotted: &ClientScope,
    ) -> Result<(), SessionError> {
        let refused = |parameters: &Parameters| {
            for (key, values) in &self.parameters {
                if !parameters.get(key).is_some_and(|value| values.contains(value)) {
                    return Some(key.to_string());
                }
            }
            let mut imposed = allotted.imposed.iter();
            imposed.find(|(key, value)| parameters.get(key) != Some(*value)).map(|(key, _)| key.to_owned())
        };
        match parameter_view.parameters().iter().find_map(refused) {
            None => Ok(()),
            Some(key) => Err(SessionError::denied(
                Denied::Parameters,
                format!(
                    "this peer may not ask without, or with this value of, the dynamic parameter `{key}` (authorization)"
                ),
            )),
        }
    }

    /// Combines the parameters that a node gives with those that are proven or imposed.
    pub(super) fn allot(
        &self,
        rules: &NodeParameterRules,
        node: &Node,
        spiffe_id: Option<&str>,
    ) -> ClientScope {
        let only = self.parameters.iter().filter(|(_, values)| values.len() == 1);
        let pairs = only.flat_map(|(key, values)| values.iter().map(|value| (key.clone(), value.clone())));
        let imposed = rules.proven(spiffe_id).completed_with(&pairs.collect());
        let given = rules.parameters(node, spiffe_id).completed_with(&imposed);
        ClientScope { given, imposed, scope: self.names.clone() }
    }

    pub(super) fn hides<'a>(&self, wildcard: bool, names: impl Iterator<Item = &'a Name>) -> HiddenCounts {
        if self.names.is_all() {
            return HiddenCounts::default();
        }
        let hidden = names.filter(|name| !self.names.allows(name.as_str()));
        HiddenCounts { names: hidden.count() as u64, wildcards: wildcard.into() }
    }

    pub(super) fn hides_of(&self, subscription: &Subscription) -> HiddenCounts {
        self.hides(subscription.wildcard, subscription.names().iter())
    }
}

impl std::ops::AddAssign for HiddenCounts {
    fn add_assign(&mut self, other: Self) {
        self.names += other.names;
        self.wildcards += other.wildcards;
    }
}

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
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), denied: None, limit: None }
    }

    pub(super) fn denied(denied: Denied, message: impl Into<String>) -> Self {
        Self { denied: Some(denied), ..Self::new(Code::PermissionDenied, message) }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn over(limit: Limit, message: impl Into<String>) -> Self {
        Self { limit: Some(limit), ..Self::new(Code::ResourceExhausted, message) }
    }

    /// Nothing is known and the origin does not answer (R-Relay-07).
    pub(super) fn cold(unavailable_reason: &str) -> Self {
        let message = format!("nothing is cached yet and {unavailable_reason}; try another server or again");
        Self::new(Code::Unavailable, message)
    }
}

impl From<FellBehindError> for SessionError {
    fn from(behind: FellBehindError) -> Self {
        Self::new(Code::Unavailable, behind.to_string())
    }
}

impl From<StoreLimitError> for SessionError {
    fn from(full: StoreLimitError) -> Self {
        let limit = match full {
            StoreLimitError::Types(_) => Limit::Types,
            StoreLimitError::ParameterSets(_) => Limit::ParameterSets,
        };
        Self::over(limit, full.to_string())
    }
}

impl From<NoGroupError> for SessionError {
    fn from(refusal: NoGroupError) -> Self {
        Self::denied(Denied::Group, refusal.to_string())
    }
}

impl From<GroupLimitError> for SessionError {
    fn from(full: GroupLimitError) -> Self {
        Self::over(Limit::Groups, full.to_string())
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

crate::labelled! {
    /// Part of a request that the operator's rules deny.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Denied {
        Peer = "peer",
        NodeId = "node_id",
        Cluster = "cluster",
        Type = "type",
        /// Secrets, for a peer without proven identity.
        Secret = "secret",
        /// Dynamic parameters, sent or given.
        Parameters = "parameters",
        Group = "group",
    }
}
