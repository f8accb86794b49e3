//! One stream of one client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

pub(super) mod flush_order;
pub(super) mod plain_ack;
mod requests;
pub(super) mod route_guard;

use super::client::{Client, USER_AGENT, observes, ttl_support};
use super::permissions::{HiddenCounts, SessionError};
use super::session_config::{SessionConfig, only_type};
use super::stream_type::StreamType;
use super::stream_type::ack_gate::Answered;
use crate::cache::{
    Cache, CanarySeat, ClientScope, Frame, Generation, Membership, Position, Protocol, Role, Rollout,
    StreamProfile, Subscription, TtlSupport, TypeCache, WakeHandle,
};
use crate::identity::Certificate;
use crate::limit::Limit;
use crate::pool::Tenant;
use crate::proto;
use crate::resource::{Kind, Name, Parameters, TypeUrl};

#[derive(Clone, Debug, PartialEq)]
pub enum RequestKind {
    /// A subscription, and no answer to a response.
    Subscribed {
        type_url: TypeUrl,
    },
    Ack {
        type_url: TypeUrl,
    },
    Nack {
        type_url: TypeUrl,
        error: proto::Status,
    },
    /// The response before the newest was answered (R-SotW-04).
    Late {
        type_url: TypeUrl,
        error: Option<proto::Status>,
    },
    /// An earlier response was answered (R-SotW-04), or the newest was rejected again.
    Stale {
        type_url: TypeUrl,
    },
}

#[derive(Clone, Debug)]
pub struct Outgoing {
    pub frame: Frame,
    pub type_url: TypeUrl,
    /// Version of the control plane, perhaps empty; `None` once taken.
    pub system_version: Option<Arc<str>>,
    /// When its newest live change reached the cache.
    pub changed_at: Option<Instant>,
    /// Number of changes that the client gets only merged with a later one.
    pub coalesced: u32,
    /// Missing ACK that this response should have waited for.
    pub overdue: Option<Overdue>,
}

crate::labelled! {
    /// ACK that a response waits for, so that no request fails at the client (make before break).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Overdue {
        /// ACK of clusters, for which routes wait.
        Clusters = "clusters",
        /// ACK of routes, for which removals wait.
        Routes = "routes",
    }
}

/// One stream of one client.
#[derive(Debug)]
pub struct Session {
    cache: Arc<Cache>,
    pub(super) rules: Arc<SessionConfig>,
    pub(super) profile: StreamProfile,
    pub(super) role: Role,
    only: Option<TypeUrl>,
    wake_handle: Arc<WakeHandle>,
    pub(super) client: Option<Arc<Client>>,
    /// Whether the peer is a relay, which may show the node of a client.
    of_relay: bool,
    /// Parameters and names that apply whatever the client asks for.
    allotted: ClientScope,
    /// Names and wildcards, newly asked for, that the client may not see.
    hidden: HiddenCounts,
    /// See [`take_delays`](Self::take_delays).
    pub(super) delays: SmallVec<[Kind; 1]>,
    certificate: Option<Arc<Certificate>>,
    /// Whether the rollout guard's configuration names it as a canary.
    is_named: bool,
    /// Decided when the client first asks for a type with guarded changes.
    canary: Option<Option<CanarySeat>>,
    /// In flush order (R-ADS-02).
    pub(super) types: Vec<StreamType>,
    /// A large first request may take longer than a stream may be without an answer.
    pub(super) first_request_at: Instant,
    pub(super) responded: bool,
    pub(super) own_nonces: u32,
    /// Type whose response the transport has not taken.
    pub(super) unflushed: Option<usize>,
    /// Generation of clusters that the client had accepted before its unanswered responses. `None`
    /// if its routes may lead to other clusters. See [`route_guard`].
    accepted_clusters: Option<Generation>,
    /// Clusters that were missing when routes to them were sent. They may have come since, and be
    /// in use before their ACK.
    dangling: BTreeSet<Name>,
    /// Last vain check for removals of unaccepted clusters.
    checked_removals_at: Option<Instant>,
}

impl Session {
    /// New stream: aggregated if `only` is `None`.
    pub fn new(
        cache: Arc<Cache>,
        rules: Arc<SessionConfig>,
        protocol: Protocol,
        only: Option<TypeUrl>,
        now: Instant,
    ) -> Self {
        Self {
            cache,
            rules,
            profile: StreamProfile { protocol, aggregated: only.is_none(), ttl: TtlSupport::Unsupported },
            role: Role::default(),
            only,
            wake_handle: Arc::default(),
            client: None,
            of_relay: false,
            allotted: ClientScope::default(),
            hidden: HiddenCounts::default(),
            delays: SmallVec::new(),
            certificate: None,
            is_named: false,
            canary: None,
            types: Vec::new(),
            first_request_at: now,
            responded: false,
            own_nonces: 0,
            unflushed: None,
            accepted_clusters: None,
            dangling: BTreeSet::new(),
            checked_removals_at: None,
        }
    }

    /// No effect after the first request (R-EP-05).
    pub fn enter(&mut self, cache: Arc<Cache>) {
        if self.client.is_none() {
            self.cache = cache;
        }
    }

    /// Sets whether the peer is a relay, which may show the node of a client.
    #[must_use]
    pub const fn of_relay(mut self, is_relay: bool) -> Self {
        self.of_relay = is_relay;
        self
    }

    #[must_use]
    pub fn proven(mut self, certificate: Option<Arc<Certificate>>) -> Self {
        self.certificate = certificate;
        self
    }

    /// Charges this tenant. Call before the first request.
    #[must_use]
    pub fn charged_to(mut self, tenant: Option<Tenant>) -> Self {
        self.wake_handle = Arc::new(WakeHandle::of(tenant));
        self
    }

    pub fn take_hidden(&mut self) -> HiddenCounts {
        std::mem::take(&mut self.hidden)
    }

    pub const fn wake_handle(&self) -> &Arc<WakeHandle> {
        &self.wake_handle
    }

    pub const fn protocol(&self) -> Protocol {
        self.profile.protocol
    }

    /// `None` before the first request.
    pub const fn client(&self) -> Option<&Arc<Client>> {
        self.client.as_ref()
    }

    /// Time of the first request, or of the opening.
    pub const fn first_request_at(&self) -> Instant {
        self.first_request_at
    }

    pub const fn is_relay(&self) -> bool {
        self.of_relay
    }

    /// Whether the client holds resources of an earlier stream, and has no answer yet.
    pub fn resumes(&self) -> bool {
        self.types.iter().any(StreamType::resumes)
    }

    pub const fn given_parameters(&self) -> &Parameters {
        &self.allotted.given
    }

    /// Types in flush order. None is ever removed.
    pub fn types(&self) -> &[StreamType] {
        &self.types
    }

    pub fn names(&self) -> usize {
        self.types.iter().map(|state| state.subscription().names().len()).sum()
    }

    pub fn name_bytes(&self) -> usize {
        self.types.iter().map(|state| state.subscription().name_bytes()).sum()
    }

    /// Ends all subscriptions when the returned value is dropped, which may take long.
    pub fn leave(&mut self) -> impl Send + 'static + use<> {
        std::mem::take(&mut self.types)
    }

    /// Number that changes whenever [`types`](Self::types) change.
    pub fn progress(&self) -> u64 {
        let of = |state: &StreamType| {
            let Position { added, removed, .. } = state.position;
            let owed = state.own().owed.names.len() as u64;
            // Generations only grow in one store.
            added.get().wrapping_mul(3).wrapping_add(removed.get().wrapping_mul(5)).wrapping_add(owed)
        };
        self.types.iter().map(of).fold(0, |sum, next| sum.wrapping_mul(31).wrapping_add(next))
    }

    pub const fn rules(&self) -> &Arc<SessionConfig> {
        &self.rules
    }

    /// Notes that the transport took the newest response.
    pub fn on_flushed(&mut self, now: Instant) {
        if let Some(at) = self.unflushed.take() {
            self.types[at].on_flushed(now);
        }
    }

    pub(super) fn find(&self, type_url: &TypeUrl) -> Option<usize> {
        self.types.iter().position(|state| state.type_url() == type_url)
    }

    pub(super) fn of_kind(&self, kind: Kind) -> Option<usize> {
        self.types.iter().position(|state| state.kind == kind)
    }

    pub(super) fn clusters(&self) -> Option<&StreamType> {
        self.of_kind(Kind::Cluster).map(|at| &self.types[at])
    }

    pub(super) fn insert(&mut self, state: StreamType) {
        let at = self.types.partition_point(|other| other.kind <= state.kind);
        // Most streams have one type, or a few.
        self.types.reserve_exact(1);
        self.types.insert(at, state);
        self.unflushed =
            self.unflushed.map(|unflushed| if unflushed >= at { unflushed + 1 } else { unflushed });
    }

    pub(super) fn join(
        &mut self,
        type_url: &TypeUrl,
        subscription: Subscription,
    ) -> Result<Membership, SessionError> {
        self.rules.check_type(type_url)?;
        if self.types.len() >= self.rules.max_types {
            let message = format!("more than {} types on one stream", self.rules.max_types);
            return Err(SessionError::over(Limit::Types, message));
        }
        if self.canary.is_none()
            && let Some(rollout) = self.cache.rollout_of(type_url)
        {
            self.canary = Some(self.seat(rollout));
        }
        let of = self.store(type_url, &subscription)?;
        self.hidden += self.rules.permissions.hides_of(&subscription);
        Ok(of.join_as(self.role, subscription, self.profile, &self.wake_handle))
    }

    /// Another subscription to clusters: which of them the client accepted does not count.
    pub(super) fn forget_accepted(&mut self, at: usize) {
        if self.types[at].kind == Kind::Cluster {
            self.accepted_clusters = None;
        }
    }

    pub(super) fn store(
        &self,
        type_url: &TypeUrl,
        subscription: &Subscription,
    ) -> Result<Arc<TypeCache>, SessionError> {
        let tenant = self.wake_handle.peer();
        let step = self.canary.as_ref().and_then(|seat| Some(seat.as_ref()?.step()));
        self.rules.store(&self.cache, type_url, subscription, &self.allotted, tenant, step)
    }

    pub(super) fn count_hidden<'a>(&mut self, wildcard: bool, names: impl Iterator<Item = &'a Name>) {
        self.hidden += self.rules.permissions.hides(wildcard, names);
    }

    /// Records the first node; later ones are ignored (R-EP-05).
    pub(super) fn set_node(&mut self, node: Option<proto::Node>, now: Instant) -> Result<(), SessionError> {
        if self.client.is_none() {
            self.first_request_at = now;
            let Some(node) = node else {
                return Err(SessionError::invalid("the first request of a stream must carry `node`"));
            };
            let certificate = self.certificate.as_deref();
            let spiffe_id = certificate.and_then(|of| of.spiffe_id.as_deref());
            self.is_named = self.cache.rollout().is_some_and(|of| of.names(&node, certificate));
            self.allotted = self.rules.permissions.allot(&self.rules.given, &node, spiffe_id);
            self.profile.ttl = ttl_support(&node, self.profile.protocol);
            if self.rules.observers && observes(&node) {
                self.role = Role::Observer;
            }
            let client = self.rules.client(node)?;
            self.of_relay |= client.user_agent == USER_AGENT;
            self.client = Some(Arc::new(client));
        }
        Ok(())
    }

    /// Canary seat, if any. A relay has none: it answers before its own clients.
    fn seat(&self, rollout: &Arc<Rollout>) -> Option<CanarySeat> {
        let client = self.client.as_ref()?;
        let is_judge = self.role == Role::Client && !self.is_relay();
        if is_judge { rollout.seat(&client.node_id, self.wake_handle.peer(), self.is_named) } else { None }
    }

    /// Counts a canary's answer; `rejection` is the text of a NACK.
    fn vote(&mut self, at: usize, nonce: &[u8], rejection: Option<&str>) {
        if let (Some(rollout), Some(Some(seat))) = (self.cache.rollout(), &self.canary) {
            self.types[at].vote(nonce, rollout, seat, rejection);
        }
    }

    /// Records the answer in a request. Only `error_detail` makes a NACK, never versions
    /// (R-SotW-01).
    pub(super) fn record_answer(
        &mut self,
        at: usize,
        type_url: TypeUrl,
        nonce: &str,
        answered: Answered,
        error: Option<proto::Status>,
    ) -> RequestKind {
        self.vote(at, nonce.as_bytes(), error.as_ref().map(|error| error.message.as_str()));
        match error {
            error if answered == Answered::Overtaken => RequestKind::Late { type_url, error },
            _ if answered == Answered::Other => RequestKind::Stale { type_url },
            Some(_) if !self.types[at].reject() => RequestKind::Stale { type_url },
            Some(error) => RequestKind::Nack { type_url, error },
            // Envoy and gRPC repeat the nonce when they ask for something else.
            None if self.types[at].is_rejected() => RequestKind::Subscribed { type_url },
            None => RequestKind::Ack { type_url },
        }
    }

    /// Implied on a per-type stream, required elsewhere (R-EP-03).
    pub(super) fn type_of(&self, sent: &str) -> Result<TypeUrl, SessionError> {
        match &self.only {
            Some(only) => only_type(only, sent),
            None if sent.is_empty() => {
                Err(SessionError::invalid("`type_url` is required on an aggregated stream"))
            }
            None if sent.len() > self.rules.max_name_bytes => Err(SessionError::invalid(format!(
                "`type_url` is longer than {} bytes",
                self.rules.max_name_bytes
            ))),
            None => Ok(TypeUrl::from(sent)),
        }
    }

    /// An empty list from a relay always means everything: its SotW control planes may not know `*`
    /// (R-Up-05).
    pub(super) fn allows_legacy_wildcard(&self, type_url: &TypeUrl) -> bool {
        let user_agent = self.client.as_ref().map_or("", |client| client.user_agent.as_str());
        self.is_relay() || self.rules.allows_legacy_wildcard(type_url, user_agent)
    }
}
