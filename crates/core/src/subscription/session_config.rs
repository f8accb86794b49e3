//! Limits, times and permissions of one stream or poll.
//!
//! Owns the checks of a request. Some run before decoding: a name of two bytes on the wire can take
//! dozens in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::client::{Client, NodeParameterRules, is_grpc};
use super::permissions::{Code, Denied, Permissions, SessionError, clip};
use crate::cache::{Cache, Claim, ClientScope, Protocol, Subscription, Track, TypeCache};
use crate::limit::Limit;
use crate::pool::Tenant;
use crate::proto::{self, ResourceLocator};
use crate::resource::wire::{self, MalformedError, Value};
use crate::resource::{Kind, TypeUrl};

#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// How long an un-ACKed response holds its type back, from when the transport took it
    /// (R-SotW-06, R-Delta-17).
    pub ack_timeout: Duration,
    /// Longest wait of routes for the ACK of clusters, and of removals for that of routes.
    pub warm_wait: Duration,
    /// A stream without a response closes after this while the origin is away or silent
    /// (R-Relay-07).
    pub cold_deadline: Duration,
    /// Time to detect a dead origin: silence, plus the timeout of a health check.
    pub detection_time: Duration,
    /// Wait of a full state for unknown names, if the client holds nothing (R-Relay-05).
    pub settle: Duration,
    /// Types for which a first empty list is no wildcard (R-SotW-14).
    pub no_legacy_wildcard: BTreeSet<TypeUrl>,
    /// Subscribed names in `initial_resource_versions` are not sent again (R-Delta-06).
    pub trust_initial_versions: bool,
    /// Endpoints are sent again behind a changed cluster (R-ADS-05).
    pub eds_repush: bool,
    /// Secrets are allowed: for peers that are authenticated, on this machine, or allowed by the
    /// operator.
    pub serve_secrets: bool,
    pub max_name_bytes: usize,
    pub max_names: usize,
    /// Of all streams of a connection.
    pub max_connection_names: usize,
    /// Of names, spellings and locators of one type.
    pub max_subscription_bytes: usize,
    /// A stream closes if its client answers nothing for this long after the transport took a
    /// response.
    pub unacked_timeout: Duration,
    pub max_types: usize,
    /// Whether clients may observe. With a directory, observers are served as others.
    pub observers: bool,
    pub given: NodeParameterRules,
    pub permissions: Permissions,
}

impl Default for SessionConfig {
    fn default() -> Self {
        let denied = Kind::known().filter(|kind| !kind.has_legacy_wildcard());
        Self {
            ack_timeout: Duration::from_secs(5),
            warm_wait: Duration::from_secs(5),
            cold_deadline: Duration::from_secs(10),
            detection_time: Duration::from_secs(40),
            settle: Duration::from_millis(200),
            no_legacy_wildcard: denied.map(TypeUrl::from).collect(),
            trust_initial_versions: false,
            eds_repush: true,
            serve_secrets: false,
            max_name_bytes: 16 << 10,
            max_names: 100_000,
            max_connection_names: 1_000_000,
            max_subscription_bytes: 16 << 20,
            unacked_timeout: Duration::from_secs(10 * 60),
            max_types: 64,
            observers: true,
            given: NodeParameterRules::default(),
            permissions: Permissions::default(),
        }
    }
}

impl SessionConfig {
    /// Silence of the origin after which a name counts as absent, as some origins never say so (O2).
    /// Longer than it takes to detect a dead one, which is silent too.
    pub fn longest_silence(&self) -> Duration {
        (3 * self.cold_deadline).max(self.detection_time + self.cold_deadline)
    }

    /// gRPC clients subscribe by name and mean nothing by an empty list (R-SotW-14).
    pub(super) fn allows_legacy_wildcard(&self, type_url: &TypeUrl, user_agent: &str) -> bool {
        !is_grpc(user_agent) && !self.no_legacy_wildcard.contains(type_url)
    }

    pub(super) fn check_names<'a>(
        &self,
        mut names: impl Iterator<Item = &'a String>,
        count: usize,
    ) -> Result<(), SessionError> {
        let limit = self.max_name_bytes;
        if let Some(long) = names.find(|name| name.len() > limit) {
            let start = clip(long);
            let message = format!("resource name `{start}` is longer than {limit} bytes");
            return Err(SessionError { limit: Some(Limit::NameBytes), ..SessionError::invalid(message) });
        }
        if count > self.max_names {
            let message = format!("more than {} names of one type", self.max_names);
            return Err(SessionError::over(Limit::Names, message));
        }
        Ok(())
    }

    /// Secrets need authentication.
    pub(super) fn check_type(&self, type_url: &TypeUrl) -> Result<(), SessionError> {
        if type_url.is_secret() && !self.serve_secrets {
            return Err(SessionError::denied(
                Denied::Secret,
                "secrets are served to peers that show a certificate, over a Unix socket, or over loopback unless downstream.secrets_over_loopback is false; set downstream.secrets_without_authentication to serve them here",
            ));
        }
        self.permissions.check_type(type_url)
    }

    pub(super) fn store(
        &self,
        cache: &Cache,
        type_url: &TypeUrl,
        subscription: &Subscription,
        allotted: &ClientScope,
        tenant: Option<&Tenant>,
        step: Option<u8>,
    ) -> Result<Arc<TypeCache>, SessionError> {
        self.check_weight(subscription)?;
        let track = match (cache.rollout_of(type_url), step) {
            (None, _) => Track::Origin,
            (Some(_), Some(step)) => Track::Canary(step),
            (Some(_), None) => Track::Stable,
        };
        let parameter_view = subscription.parameter_view(allotted).on(track);
        if parameter_view.parameters().len() > MAX_PARAMETER_SETS {
            let message = format!(
                "more than {MAX_PARAMETER_SETS} sets of dynamic parameters for one type in one stream"
            );
            return Err(SessionError::over(Limit::Parameters, message));
        }
        self.permissions.check_parameters(&parameter_view, allotted)?;
        // A client chooses none of what the operator's rules impose.
        let is_reserved =
            parameter_view.parameters().iter().all(|parameters| *parameters == allotted.imposed);
        Ok(cache.claim_store(Claim::Client { tenant, is_reserved }, type_url, &parameter_view)?)
    }

    /// Checks a node before anything is built for it.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if a part of the node is too long, or denied.
    pub fn check_node(&self, node: &proto::Node) -> Result<(), SessionError> {
        self.client(node.clone()).map(drop)
    }

    pub(super) fn client(&self, node: proto::Node) -> Result<Client, SessionError> {
        let limit = self.max_name_bytes;
        let texts =
            [("id", &node.id), ("cluster", &node.cluster), ("user_agent_name", &node.user_agent_name)];
        if let Some((field, _)) = texts.into_iter().find(|(_, text)| text.len() > limit) {
            return Err(SessionError::invalid(format!("`node.{field}` is longer than {limit} bytes")));
        }
        let client = Client { node_id: node.id, cluster: node.cluster, user_agent: node.user_agent_name };
        self.permissions.check_node(&client)?;
        Ok(client)
    }
}

/// Type for a service of one type: implied, and not to be contradicted (R-EP-03).
pub(super) fn only_type(only: &TypeUrl, sent: &str) -> Result<TypeUrl, SessionError> {
    if sent.is_empty() || sent == only.as_str() {
        return Ok(only.clone());
    }
    let sent = clip(sent);
    Err(SessionError::invalid(format!(
        "`type_url` is `{sent}`, but this service serves `{only}`; leave it empty, or ask the service of that type"
    )))
}

/// About ten exist.
const MAX_FEATURES: usize = 10_000;
/// Of one locator.
const MAX_PARAMETERS: usize = 64;
/// Of one type and stream. Each change is checked against all.
const MAX_PARAMETER_SETS: usize = 16;

fn too_many_parameters() -> SessionError {
    let message = format!("more than {MAX_PARAMETERS} dynamic parameters in one locator");
    SessionError::over(Limit::Parameters, message)
}

impl SessionConfig {
    pub(super) fn check_weight(&self, subscription: &Subscription) -> Result<(), SessionError> {
        let (bytes, max) = (subscription.weight(), self.max_subscription_bytes);
        if bytes <= max {
            return Ok(());
        }
        let message =
            format!("the names and locators of one type take {bytes} bytes, more than the limit of {max}");
        Err(SessionError::over(Limit::SubscriptionBytes, message))
    }

    /// Checks that a decoded request has a size in proportion to its length. Groups are refused:
    /// the decoder would skip parts that are not counted here.
    ///
    /// # Errors
    ///
    /// [`SessionError`] for too many parts (RESOURCE_EXHAUSTED), or bytes that cannot be decoded
    /// (INVALID_ARGUMENT).
    pub fn check_parts(&self, protocol: Protocol, message: &[u8]) -> Result<(), SessionError> {
        // Names may come twice, and there is the wildcard.
        let max = self.max_names.saturating_mul(2).saturating_add(64);
        let (mut names, mut node_parts) = (0_usize, 0);
        for field in wire::fields(message) {
            let field = field?;
            let Value::Bytes(bytes) = field.value else { continue };
            match (protocol, field.number) {
                (Protocol::Sotw, 3) | (Protocol::Delta, 3 | 4) => names += 1,
                (Protocol::Sotw, 7) | (Protocol::Delta, 8 | 9) => {
                    names += 1;
                    if parts(bytes, 2)? > MAX_PARAMETERS {
                        return Err(too_many_parameters());
                    }
                }
                (Protocol::Sotw, 2) | (Protocol::Delta, 1) => node_parts += parts(bytes, 10)?,
                _ => {}
            }
        }
        if names > max {
            let message = format!("more than {max} names in one request");
            return Err(SessionError::over(Limit::Names, message));
        }
        if node_parts > MAX_FEATURES {
            let message = format!("more than {MAX_FEATURES} `node.client_features`");
            return Err(SessionError::new(Code::ResourceExhausted, message));
        }
        Ok(())
    }

    /// Checks the names of a connection.
    ///
    /// # Errors
    ///
    /// [`SessionError`] (RESOURCE_EXHAUSTED) above `downstream.max_names_per_connection`.
    pub fn check_connection(&self, names: usize) -> Result<(), SessionError> {
        let max = self.max_connection_names;
        if names <= max {
            return Ok(());
        }
        let message = format!("more than {max} names over all streams and requests of one connection");
        Err(SessionError::over(Limit::NamesPerConnection, message))
    }

    pub(super) fn unanswered(&self, type_url: &TypeUrl) -> SessionError {
        let after = self.unacked_timeout;
        let message =
            format!("no response of {type_url} was answered for {after:?}; ACK or NACK what is sent");
        SessionError::over(Limit::Unacked, message)
    }
}

fn parts(message: &[u8], number: u32) -> Result<usize, MalformedError> {
    wire::fields(message).try_fold(0, |count, field| Ok(count + usize::from(field?.number == number)))
}

impl SessionConfig {
    pub(super) fn check_list(
        &self,
        names: &[String],
        locators: &[ResourceLocator],
    ) -> Result<(), SessionError> {
        self.check_names(names.iter(), names.len() + locators.len())?;
        self.check_locators(locators.iter())
    }

    pub(super) fn check_locators<'a>(
        &self,
        locators: impl Iterator<Item = &'a ResourceLocator> + Clone,
    ) -> Result<(), SessionError> {
        self.check_names(locators.clone().map(|locator| &locator.name), 0)?;
        for parameters in locators.map(|locator| &locator.dynamic_parameters) {
            if parameters.len() > MAX_PARAMETERS {
                return Err(too_many_parameters());
            }
            self.check_names(parameters.iter().flat_map(|(key, value)| [key, value]), 0)?;
        }
        Ok(())
    }
}

/// State of the origin, as far as sessions and polls depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    #[default]
    Away,
    /// Directory with a file that was never readable.
    Unread,
    /// Connected, but no answer on this connection yet.
    Silent,
    Answering,
}

impl Upstream {
    /// Reason to try another server; `None` if the client should wait.
    pub(super) const fn unavailable_reason(self) -> Option<&'static str> {
        match self {
            Self::Away => Some("the control plane cannot be reached"),
            Self::Unread => Some("a file of the relay's directory cannot be read, see `deltafan status`"),
            Self::Silent => Some("the control plane is connected and answers nothing"),
            Self::Answering => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node, ResourceLocator};
    use crate::resource::Name;
    use crate::subscription::Code;

    #[test]
    fn a_message_small_on_the_wire_and_large_in_memory_is_refused_undecoded() {
        let rules = SessionConfig { max_names: 10, ..SessionConfig::default() };
        let many = |count| vec![String::new(); count];
        let locator = |count: usize| ResourceLocator {
            name: "a".to_owned(),
            dynamic_parameters: (0..count).map(|at| (at.to_string(), String::new())).collect(),
        };
        let node = |features| Some(Node { client_features: many(features), ..Node::default() });
        for (count, locators, parameters, features, expected) in [
            (84, 0, 0, 0, Ok(())),
            (85, 0, 0, 0, Err(Some(Limit::Names))),
            (80, 5, 0, 0, Err(Some(Limit::Names))),
            (0, 84, MAX_PARAMETERS, 0, Ok(())),
            (0, 1, MAX_PARAMETERS + 1, 0, Err(Some(Limit::Parameters))),
            (0, 0, 0, MAX_FEATURES, Ok(())),
            (0, 0, 0, MAX_FEATURES + 1, Err(None)),
        ] {
            let sotw = DiscoveryRequest {
                node: node(features),
                resource_names: many(count),
                resource_locators: vec![locator(parameters); locators],
                ..Default::default()
            };
            let delta = DeltaDiscoveryRequest {
                node: node(features),
                resource_names_unsubscribe: many(count),
                resource_locators_subscribe: vec![locator(parameters); locators],
                ..Default::default()
            };
            for (protocol, message) in
                [(Protocol::Sotw, sotw.encode_to_vec()), (Protocol::Delta, delta.encode_to_vec())]
            {
                let checked = rules.check_parts(protocol, &message);
                let told = checked.as_ref().map_err(|session_error| session_error.limit).copied();
                assert_eq!(told, expected, "{protocol:?} {count} {locators} {parameters} {features}");
                assert!(checked.is_ok_and(|()| true) || expected.is_err());
            }
        }
    }

    #[test]
    fn a_group_is_refused_wherever_it_would_hide_counted_fields() {
        // The start of group 12, and its end.
        let group = [0x63, 0x64];
        let around = |number: u8| [&[number << 3 | 2, group.len() as u8], &group[..]].concat();
        for (protocol, node, locators) in [(Protocol::Sotw, 2, 7), (Protocol::Delta, 1, 8)] {
            for message in [group.to_vec(), around(node), around(locators)] {
                let session_error =
                    SessionConfig::default().check_parts(protocol, &message).expect_err("a group");
                assert_eq!(session_error.code, Code::InvalidArgument, "{protocol:?} {message:?}");
            }
            assert_eq!(
                SessionConfig::default().check_parts(protocol, &around(12)),
                Ok(()),
                "it is not looked into"
            );
        }
    }

    #[test]
    fn a_subscription_weighs_its_names_spellings_and_locators() {
        let rules = SessionConfig { max_subscription_bytes: 10, ..SessionConfig::default() };
        let plain = Subscription::new(false, ["abcde", "fghij"].map(Name::from));
        assert_eq!((plain.weight(), rules.check_weight(&plain)), (10, Ok(())));
        let parameters = [("k", "v")].into_iter().collect();
        let located = plain.located([(Name::from("abcde"), parameters)].into_iter().collect());
        let session_error = rules.check_weight(&located).expect_err("twelve bytes");
        assert_eq!(
            (session_error.code, session_error.limit),
            (Code::ResourceExhausted, Some(Limit::SubscriptionBytes))
        );
    }
}
