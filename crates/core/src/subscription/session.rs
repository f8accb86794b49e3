//! One stream of one client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

pub(super) mod ack;
mod delta;
pub(super) mod flush_order;
mod observer;
mod route_guard;
mod sotw;
mod withdrawn;

use super::client::{Client, USER_AGENT};
use super::features::Features;
use super::permissions::HiddenCounts;
use super::progress::TypeView;
use super::session_config::{SessionConfig, only_type};
use super::session_error::SessionError;
use super::stream_type::StreamType;
use super::stream_type::gate::Answered;
use crate::cache::{
    Cache, CanarySeat, ClientScope, Frame, Generation, Membership, Position, Protocol, Role, Rollout,
    StreamProfile, Subscription, TtlSupport, TypeCache, WakeHandle,
};
use crate::limit::Limit;
use crate::pool::Tenant;
use crate::proto;
use crate::resource::{Kind, Name, Parameters, TypeUrl};

/// Meaning of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestKind {
    /// A subscription, and no answer to a response.
    Subscribed {
        /// Type of the request.
        type_url: TypeUrl,
    },
    /// The newest response was accepted.
    Ack {
        /// Type of the request.
        type_url: TypeUrl,
    },
    /// The newest response was rejected.
    Nack {
        /// Type of the request.
        type_url: TypeUrl,
        /// Reason that the client gave.
        error: proto::Status,
    },
    /// The response before the newest one was answered, late (R-SotW-04).
    Late {
        /// Type of the request.
        type_url: TypeUrl,
        /// Reason that the client gave if it rejected it.
        error: Option<proto::Status>,
    },
    /// It answers an earlier response (R-SotW-04), or rejects the newest once more.
    Stale {
        /// Type of the request.
        type_url: TypeUrl,
    },
}

/// A response on its way.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its bytes.
    pub frame: Frame,
    /// Its type.
    pub type_url: TypeUrl,
    /// Version of the control plane as of it, empty if it gives none; `None` once it was taken.
    pub system_version: Option<Arc<str>>,
    /// When the newest change in it reached the cache; `None` where it tells no change.
    pub changed_at: Option<Instant>,
    /// Number of changes that its client is told only together with a later one, in this response.
    pub coalesced: u32,
    /// ACK of the client that it was to wait for, and that has not come in time, or came as a NACK.
    pub overdue: Option<Overdue>,
}

/// ACK that a response on an aggregated stream waits for, so that no request fails at the client (make before break).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// That to clusters, for which routes wait.
    Clusters,
    /// That to routes, for which removals wait.
    Routes,
}

impl Overdue {
    /// Its name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Routes => "routes",
        }
    }
}

/// One stream of one client.
#[derive(Debug)]
pub struct Session {
    cache: Arc<Cache>,
    pub(super) rules: Arc<SessionConfig>,
    pub(super) profile: StreamProfile,
    pub(super) role: Role,
    /// The type of a per-type stream.
    only: Option<TypeUrl>,
    one_shot: bool,
    wake_handle: Arc<WakeHandle>,
    pub(super) client: Option<Arc<Client>>,
    /// Whether the stream is that of a relay, whatever node that shows.
    of_relay: bool,
    /// Parameters and names that it has whatever it asks for.
    allotted: ClientScope,
    /// Names and wildcards that it asked for since last told and is not shown.
    hidden: HiddenCounts,
    /// See [`take_delays`](Self::take_delays).
    pub(super) delays: SmallVec<[Kind; 1]>,
    /// The SPIFFE ID that it has proven to have.
    spiffe_id: Option<Arc<str>>,
    /// Seat among the clients that are sent guarded changes first; decided when it asks for a type whose changes are guarded.
    canary: Option<Option<CanarySeat>>,
    /// In flush order (R-ADS-02).
    pub(super) types: Vec<StreamType>,
    /// When its first request was heard. A large one may take longer than a stream may be without an answer.
    pub(super) first_heard: Instant,
    pub(super) responded: bool,
    pub(super) own_nonces: u32,
    /// The type of the response that the transport has not taken yet.
    pub(super) unsaid: Option<usize>,
    /// Up to where its client had accepted clusters before it was sent what it has not answered; `None` where its routes may lead to
    /// others. See [`withdrawn`].
    accepted_clusters: Option<Generation>,
    /// Clusters that were not there when it was sent routes to them. They may have come since, and be in use before they are accepted.
    dangling: BTreeSet<Name>,
    /// When it was last looked, in vain, for clusters that were withdrawn since.
    looked_for_withdrawn: Option<Instant>,
}

impl Session {
    /// A stream that has just been opened: aggregated where `only` is `None`.
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
            profile: StreamProfile { protocol, aggregated: only.is_none(), ttl: TtlSupport::Untold },
            role: Role::default(),
            only,
            one_shot: false,
            wake_handle: Arc::default(),
            client: None,
            of_relay: false,
            allotted: ClientScope::default(),
            hidden: HiddenCounts::default(),
            delays: SmallVec::new(),
            spiffe_id: None,
            canary: None,
            types: Vec::new(),
            first_heard: now,
            responded: false,
            own_nonces: 0,
            unsaid: None,
            accepted_clusters: None,
            dangling: BTreeSet::new(),
            looked_for_withdrawn: None,
        }
    }

    /// Moves to the cache of its node group. A stream that has heard a request keeps the cache that it has (R-EP-05).
    pub fn enter(&mut self, cache: Arc<Cache>) {
        if self.client.is_none() {
            self.cache = cache;
        }
    }

    /// The stream ends with its first response (unary Fetch), which is sent when it is complete, even if empty.
    #[must_use]
    pub const fn one_shot(mut self) -> Self {
        self.one_shot = true;
        self
    }

    /// Tells whether the stream is that of a relay, which may show the node of one of its clients.
    #[must_use]
    pub const fn of_relay(mut self, is_relay: bool) -> Self {
        self.of_relay = is_relay;
        self
    }

    /// Sets the SPIFFE ID that the peer has proven to have.
    #[must_use]
    pub fn proven(mut self, spiffe_id: Option<Arc<str>>) -> Self {
        self.spiffe_id = spiffe_id;
        self
    }

    /// Has this tenant charged for what the session takes of the pools of all peers, and for the names that it asks for. Before its
    /// first request.
    #[must_use]
    pub fn charged_to(mut self, tenant: Option<Tenant>) -> Self {
        self.wake_handle = Arc::new(WakeHandle::of(tenant));
        self
    }

    /// Takes the counts of what it asked for since they were last taken and is not shown, by the operator's rules.
    pub const fn take_hidden(&mut self) -> HiddenCounts {
        std::mem::replace(&mut self.hidden, HiddenCounts { names: 0, wildcards: 0 })
    }

    /// Where the cache wakes it.
    pub const fn wake_handle(&self) -> &Arc<WakeHandle> {
        &self.wake_handle
    }

    /// Whether a request has no more parts than it may, before it is decoded.
    ///
    /// # Errors
    ///
    /// [`SessionError`] (RESOURCE_EXHAUSTED) for a request with more.
    pub fn check_parts(&self, message: &[u8]) -> Result<(), SessionError> {
        self.rules.check_parts(self.profile.protocol, message)
    }

    /// Variant of xDS that the client speaks.
    pub const fn protocol(&self) -> Protocol {
        self.profile.protocol
    }

    /// Node at the other end, once it has introduced itself.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_deref()
    }

    /// As [`client`](Self::client), for a caller that keeps it.
    pub const fn shared_client(&self) -> Option<&Arc<Client>> {
        self.client.as_ref()
    }

    /// Time of its first request; of its opening, before there is one.
    pub const fn first_heard(&self) -> Instant {
        self.first_heard
    }

    /// Whether the client is a relay that fills its cache from this one.
    pub const fn is_relay(&self) -> bool {
        self.of_relay
    }

    /// Whether the client says that it holds resources of an earlier stream, and has not been answered yet.
    pub fn resumes(&self) -> bool {
        self.types.iter().any(|state| state.own().brought.is_some() || state.may_hold)
    }

    /// Dynamic parameters that it has by the operator's rules.
    pub const fn given_parameters(&self) -> &Parameters {
        &self.allotted.given
    }

    /// Each type that it asks for, in flush order. None is ever taken out.
    pub fn views(&self) -> impl Iterator<Item = TypeView<'_>> {
        self.types.iter().map(TypeView::of)
    }

    /// How many names it asks for, over all types.
    pub fn names(&self) -> usize {
        self.types.iter().map(|state| state.subscription().names().len()).sum()
    }

    /// The bytes of these names.
    pub fn name_bytes(&self) -> usize {
        self.types.iter().map(|state| state.subscription().name_bytes()).sum()
    }

    /// Lets go of all that it asks for, when what is returned is dropped, which may take long. Nothing more is said or heard
    /// on it.
    pub fn leave(&mut self) -> impl Send + 'static + use<> {
        std::mem::take(&mut self.types)
    }

    /// Number that changes when a response, or a look that brings none, moves what [`views`](Self::views) show.
    pub fn progress(&self) -> u64 {
        let of = |state: &StreamType| {
            let Position { added, removed, .. } = state.position;
            let owed = state.own().owed.names.len() as u64;
            // Generations only grow while a stream sees a type through one store.
            added.get().wrapping_mul(3).wrapping_add(removed.get().wrapping_mul(5)).wrapping_add(owed)
        };
        self.types.iter().map(of).fold(0, |sum, next| sum.wrapping_mul(31).wrapping_add(next))
    }

    /// The rules and limits in force for its client.
    pub const fn rules(&self) -> &Arc<SessionConfig> {
        &self.rules
    }

    /// The transport has taken the newest response.
    pub fn taken(&mut self, now: Instant) {
        if let Some(at) = self.unsaid.take() {
            self.types[at].taken(now);
        }
    }

    pub(super) const fn is_one_shot(&self) -> bool {
        self.one_shot
    }

    pub(super) fn find(&self, type_url: &TypeUrl) -> Option<usize> {
        self.types.iter().position(|state| state.membership.of().type_url() == type_url)
    }

    /// Its clusters, if it asks for any.
    pub(super) fn clusters(&self) -> Option<&StreamType> {
        self.types.iter().find(|state| state.kind == Kind::Cluster)
    }

    pub(super) fn state(&mut self, at: usize) -> &mut StreamType {
        &mut self.types[at]
    }

    pub(super) fn insert(&mut self, state: StreamType) {
        let at = self.types.partition_point(|other| other.kind <= state.kind);
        self.types.insert(at, state);
        self.unsaid = self.unsaid.map(|unsaid| if unsaid >= at { unsaid + 1 } else { unsaid });
    }

    pub(super) fn join(
        &mut self,
        type_url: &TypeUrl,
        subscription: Subscription,
    ) -> Result<Membership, SessionError> {
        self.rules.check_type(type_url)?;
        if self.types.len() >= self.rules.max_types {
            let message = format!("more than {} types on one stream", self.rules.max_types);
            return Err(SessionError::exhausted(message).over(Limit::Types));
        }
        if self.canary.is_none()
            && let Some(rollout) = self.cache.rollout_of(type_url)
        {
            self.canary = Some(self.seat(rollout));
        }
        let of = self.store(type_url, &subscription)?;
        self.hidden += self.rules.permissions.hides_of(&subscription);
        Ok(of.join_as(self.role, subscription, self.dialect_of(type_url), &self.wake_handle))
    }

    /// How it sees a type. Endpoints are repeated behind changed clusters to clients that are sent all clusters at once. Where a
    /// stream asks for single ones, or for none, its session alone knows which endpoints it owes (R-ADS-05, V1).
    fn dialect_of(&self, type_url: &TypeUrl) -> StreamProfile {
        let asks_for_all = |state: &StreamType| state.kind == Kind::Cluster && state.subscription().wildcard;
        let is_repeated = type_url.kind() != Kind::Endpoint || self.types.iter().any(asks_for_all);
        StreamProfile { aggregated: self.profile.aggregated && is_repeated, ..self.profile }
    }

    /// Follows a changed subscription to a type: where that is clusters, it may change how endpoints are seen.
    pub(super) fn turn_endpoints_of(&mut self, clusters: &TypeUrl) {
        if clusters.kind() != Kind::Cluster {
            return;
        }
        self.accepted_clusters = None;
        let Some(at) = self.types.iter().position(|state| state.kind == Kind::Endpoint) else { return };
        let profile = self.dialect_of(self.types[at].membership.of().type_url());
        self.types[at].turn(profile);
    }

    /// The store through which a subscription sees its type.
    pub(super) fn store(
        &self,
        type_url: &TypeUrl,
        subscription: &Subscription,
    ) -> Result<Arc<TypeCache>, SessionError> {
        let tenant = self.wake_handle.peer();
        let is_canary = matches!(self.canary, Some(Some(_)));
        self.rules.store(&self.cache, type_url, subscription, &self.allotted, tenant, is_canary)
    }

    /// Counts what is newly asked for and not shown.
    pub(super) fn count_hidden<'a>(&mut self, wildcard: bool, names: impl Iterator<Item = &'a Name>) {
        self.hidden += self.rules.permissions.hides(wildcard, names);
    }

    /// Remembers the node of the first request; what later ones say of it is ignored (R-EP-05).
    pub(super) fn meet(&mut self, node: Option<proto::Node>, now: Instant) -> Result<(), SessionError> {
        if self.client.is_none() {
            self.first_heard = now;
            let Some(node) = node else {
                return Err(SessionError::invalid("the first request of a stream must carry `node`"));
            };
            let given = self.rules.given.parameters(&node, self.spiffe_id.as_deref());
            let proven = self.rules.given.proven(self.spiffe_id.as_deref());
            self.allotted = self.rules.permissions.allot(&given, &proven);
            // An answer that stands alone is never renewed.
            let features = Features::read(&node);
            if !self.one_shot {
                self.profile.ttl = features.ttl(self.profile.protocol);
            }
            if self.rules.observers {
                self.role = features.role();
            }
            let client = self.rules.client(node)?;
            self.of_relay |= client.user_agent == USER_AGENT;
            self.client = Some(Arc::new(client));
        }
        Ok(())
    }

    /// Seat of a client among the canaries, if it is one. One that answers no response cannot be, and a relay answers before its own
    /// clients do.
    fn seat(&self, rollout: &Arc<Rollout>) -> Option<CanarySeat> {
        let client = self.client.as_ref()?;
        let is_judge = !self.one_shot && self.role == Role::Client && !self.is_relay();
        if is_judge { rollout.seat(&client.node_id) } else { None }
    }

    /// Notes the answer of a canary to the response with this nonce; `rejection` is the text of a NACK.
    fn vote(&mut self, at: usize, nonce: &[u8], rejection: Option<&str>) {
        if let (Some(rollout), Some(Some(seat))) = (self.cache.rollout(), &self.canary) {
            self.types[at].vote(nonce, rollout, seat, rejection);
        }
    }

    /// Takes in what a request says of the response with its nonce, and returns its kind. A rejection is told by `error_detail` alone,
    /// never by versions (R-SotW-01).
    pub(super) fn take_answer(
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

    /// The type of a request: on a per-type stream implied, elsewhere required (R-EP-03).
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

    /// See [`SessionConfig::allows_legacy_wildcard`]. Relays mean everything by an empty list, of each type: the control planes that
    /// they ask by state of the world may not know `*` (R-Up-05).
    pub(super) fn allows_legacy_wildcard(&self, type_url: &TypeUrl) -> bool {
        let user_agent = self.client.as_ref().map_or("", |client| client.user_agent.as_str());
        self.is_relay() || self.rules.allows_legacy_wildcard(type_url, user_agent)
    }
}
