//! One stream of one client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::bounds::Bound;
use super::features::Features;
use super::given::Given;
use super::grant::{Denied, Grant, Hidden};
use super::stream_type::StreamType;
use crate::cache::{
    Allotment, Cache, Claim, Dialect, FellBehind, Frame, Full, Mailbox, Membership, Protocol, Role,
    Subscription, Ttl, TypeCache,
};
use crate::pool::Tenant;
use crate::proto;
use crate::resource::{Kind, Name, TypeUrl};

/// What a stream may do and how long it waits.
#[derive(Clone, Debug)]
pub struct Rules {
    /// An un-ACKed response holds its type back this long after the transport took it (R-SotW-06, R-Delta-17).
    pub ack_timeout: Duration,
    /// A stream to which nothing can be said closes after this while the origin is away or silent (R-Relay-07).
    pub cold_deadline: Duration,
    /// How long a connection to the origin may be dead before the relay notices: keepalive's interval and timeout.
    pub dead_unnoticed: Duration,
    /// A full state for a client that holds nothing waits this long for names that are not known yet (R-Relay-05).
    pub settle: Duration,
    /// Types for which a first empty list is no wildcard (R-SotW-14).
    pub no_legacy_wildcard: BTreeSet<String>,
    /// Whether names in `initial_resource_versions` are not sent again though they are asked for (R-Delta-06).
    pub trust_initial_versions: bool,
    /// Whether endpoints are sent again behind a changed cluster (R-ADS-05).
    pub eds_repush: bool,
    /// Whether this peer may have Secrets: it has authenticated itself, is on this machine, or the operator said so.
    pub serve_secrets: bool,
    /// The longest name, in bytes.
    pub max_name_bytes: usize,
    /// The most names of one type.
    pub max_names: usize,
    /// The most names over all streams of a connection.
    pub max_connection_names: usize,
    /// What these names, their spellings and their locators may take together, in bytes.
    pub max_subscription_bytes: usize,
    /// A stream whose client has answered nothing of a type for this long, though the transport took something and it
    /// still asks for something, is closed.
    pub unacked_timeout: Duration,
    /// The most dynamic parameters of one locator.
    pub max_parameters: usize,
    /// The most sets of dynamic parameters of one type and stream: what changes is weighed for each.
    pub max_parameter_sets: usize,
    /// The most types of one stream.
    pub max_types: usize,
    /// Whether clients may look on: where looking costs nothing, as with a directory, they are served as all others.
    pub observers: bool,
    /// The parameters of clients that send none (R-DP-17).
    pub given: Given,
    /// What this peer may.
    pub grant: Grant,
}

impl Default for Rules {
    fn default() -> Self {
        let denied = [
            Kind::Endpoint,
            Kind::Route,
            Kind::Secret,
            Kind::ExtensionConfig,
            Kind::Runtime,
            Kind::LocalityEndpoint,
        ];
        Self {
            ack_timeout: Duration::from_secs(5),
            cold_deadline: Duration::from_secs(10),
            dead_unnoticed: Duration::from_secs(40),
            settle: Duration::from_millis(200),
            no_legacy_wildcard: denied.into_iter().filter_map(Kind::url).map(str::to_owned).collect(),
            trust_initial_versions: false,
            eds_repush: true,
            serve_secrets: false,
            max_name_bytes: 16 << 10,
            max_names: 100_000,
            max_connection_names: 1_000_000,
            max_subscription_bytes: 16 << 20,
            unacked_timeout: Duration::from_secs(10 * 60),
            max_parameters: 64,
            max_parameter_sets: 16,
            max_types: 64,
            observers: true,
            given: Given::default(),
            grant: Grant::default(),
        }
    }
}

impl Rules {
    /// How long the origin must leave a name unanswered before it is taken for absent. Origins exist that never say so (O2),
    /// but neither does a dead connection: the silence has to outlast what keepalive needs to find one.
    pub fn longest_silence(&self) -> Duration {
        (3 * self.cold_deadline).max(self.dead_unnoticed + self.cold_deadline)
    }

    /// gRPC clients ask for what they want by name and mean nothing by an empty list (R-SotW-14).
    pub(super) fn allows_legacy_wildcard(&self, type_url: &TypeUrl, user_agent: &str) -> bool {
        !is_grpc(user_agent) && !self.no_legacy_wildcard.contains(type_url.as_str())
    }

    pub(super) fn check_names<'a>(
        &self,
        mut names: impl Iterator<Item = &'a String>,
        count: usize,
    ) -> Result<(), Refusal> {
        let limit = self.max_name_bytes;
        if let Some(long) = names.find(|name| name.len() > limit) {
            let start = clip(long);
            let refusal = Refusal::invalid(format!("resource name `{start}` is longer than {limit} bytes"));
            return Err(refusal.over(Bound::NameBytes));
        }
        if count > self.max_names {
            let refusal = Refusal::exhausted(format!("more than {} names of one type", self.max_names));
            return Err(refusal.over(Bound::Names));
        }
        Ok(())
    }

    /// Whether this peer may ask for a type at all. Secrets are for peers that have authenticated themselves only.
    pub(super) fn check_type(&self, type_url: &TypeUrl) -> Result<(), Refusal> {
        if type_url.is_secret() && !self.serve_secrets {
            return Err(Refusal::denied(
                Denied::Secret,
                "secrets are served to peers that show a certificate, over a Unix socket, or over loopback unless downstream.secrets_over_loopback is false; set downstream.secrets_without_authentication to serve them here",
            ));
        }
        self.grant.check_type(type_url)
    }

    /// The store through which a client sees what it asks for of a type.
    pub(super) fn store(
        &self,
        cache: &Cache,
        type_url: &TypeUrl,
        subscription: &Subscription,
        allotted: &Allotment,
        tenant: Option<&Tenant>,
    ) -> Result<Arc<TypeCache>, Refusal> {
        self.check_weight(subscription)?;
        let lens = subscription.lens(allotted);
        let max = self.max_parameter_sets;
        if lens.parameters().len() > max {
            let message = format!("more than {max} sets of dynamic parameters for one type in one stream");
            return Err(Refusal::exhausted(message).over(Bound::Parameters));
        }
        self.grant.check_lens(&lens, allotted)?;
        // A client chooses none of what the operator's rules impose.
        let is_reserved = lens.parameters().iter().all(|parameters| *parameters == allotted.imposed);
        Ok(cache.seen_by(Claim::Client { tenant, is_reserved }, type_url, &lens)?)
    }

    /// Who a node says it is, which is for this peer to say.
    pub(super) fn client(&self, node: proto::Node) -> Result<Client, Refusal> {
        let limit = self.max_name_bytes;
        let texts =
            [("id", &node.id), ("cluster", &node.cluster), ("user_agent_name", &node.user_agent_name)];
        if let Some((field, _)) = texts.into_iter().find(|(_, text)| text.len() > limit) {
            return Err(Refusal::invalid(format!("`node.{field}` is longer than {limit} bytes")));
        }
        let client = Client { node_id: node.id, cluster: node.cluster, user_agent: node.user_agent_name };
        self.grant.check_node(&client)?;
        Ok(client)
    }
}

/// `node.user_agent_name` of a relay.
pub const USER_AGENT: &str = "deltafan";

/// Whether a client is gRPC itself.
pub(super) fn is_grpc(user_agent: &str) -> bool {
    user_agent.starts_with("gRPC")
}

/// The type of a request to a service of one type: implied, and not to be contradicted (R-EP-03).
pub(super) fn only_type(only: &TypeUrl, sent: &str) -> Result<TypeUrl, Refusal> {
    if sent.is_empty() || sent == only.as_str() {
        return Ok(only.clone());
    }
    let sent = clip(sent);
    Err(Refusal::invalid(format!(
        "`type_url` is `{sent}`, but this service serves `{only}`; leave it empty, or ask the service of that type"
    )))
}

/// State of the origin, as a session has to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    /// It cannot be reached.
    #[default]
    Away,
    /// It is connected, and has answered nothing on this connection yet.
    Silent,
    /// It has answered on the connection that stands.
    Answering,
}

impl Upstream {
    /// Why a client to which nothing could be said is to try another server; `None` where it is to wait.
    pub(super) const fn excuse(self) -> Option<&'static str> {
        match self {
            Self::Away => Some("the control plane cannot be reached"),
            Self::Silent => Some("the control plane is connected and answers nothing"),
            Self::Answering => None,
        }
    }
}

/// Who is at the other end, as it said in its first request (R-EP-05).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// `node.id`
    pub node_id: String,
    /// `node.cluster`
    pub cluster: String,
    /// `node.user_agent_name`
    pub user_agent: String,
}

/// Why a stream is closed, and whose fault it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// A gRPC status code.
    pub code: Code,
    /// For the peer's log: what was expected.
    pub message: String,
    /// What the operator's rules do not allow, where that is why.
    pub denied: Option<Denied>,
    /// The bound that was reached, where it was one.
    pub bound: Option<Bound>,
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

impl Refusal {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { code: Code::InvalidArgument, message: message.into(), denied: None, bound: None }
    }

    pub(super) fn exhausted(message: impl Into<String>) -> Self {
        Self { code: Code::ResourceExhausted, message: message.into(), denied: None, bound: None }
    }

    /// Nothing is known and the origin does not answer (R-Relay-07).
    pub(super) fn cold(excuse: &str) -> Self {
        let message = format!("nothing is cached yet and {excuse}; try another server or again");
        Self { code: Code::Unavailable, message, denied: None, bound: None }
    }
}

impl From<FellBehind> for Refusal {
    fn from(behind: FellBehind) -> Self {
        Self { code: Code::Unavailable, message: behind.to_string(), denied: None, bound: None }
    }
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        let bound = match full {
            Full::Types(_) => Bound::Types,
            Full::ParameterSets(_) => Bound::ParameterSets,
        };
        Self::exhausted(full.to_string()).over(bound)
    }
}

/// What a request turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// A subscription, and no answer to a response.
    Subscribed {
        /// Of this type.
        type_url: TypeUrl,
    },
    /// The newest response was accepted.
    Ack {
        /// Of this type.
        type_url: TypeUrl,
    },
    /// The newest response was rejected.
    Nack {
        /// Of this type.
        type_url: TypeUrl,
        /// For this reason.
        error: proto::Status,
    },
    /// It answers a response that is not the newest (R-SotW-04), or rejects it once more.
    Stale {
        /// Of this type.
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
    /// When the newest change in it reached the cache; `None` where it tells no change.
    pub changed_at: Option<Instant>,
}

/// One stream of one client.
#[derive(Debug)]
pub struct Session {
    cache: Arc<Cache>,
    pub(super) rules: Arc<Rules>,
    pub(super) dialect: Dialect,
    pub(super) role: Role,
    /// The type of a per-type stream.
    only: Option<TypeUrl>,
    one_shot: bool,
    mailbox: Arc<Mailbox>,
    pub(super) client: Option<Client>,
    /// What it has whatever it asks for.
    allotted: Allotment,
    /// What it asked for since last said and is not shown.
    hidden: Hidden,
    /// See [`take_delays`](Self::take_delays).
    pub(super) delays: SmallVec<[Kind; 1]>,
    /// The SPIFFE ID that it has proven to have.
    spiffe_id: Option<Arc<str>>,
    /// Tenant of the pools of all peers.
    tenant: Option<Tenant>,
    /// In flush order (R-ADS-02).
    pub(super) types: Vec<StreamType>,
    pub(super) started: Instant,
    pub(super) responded: bool,
    pub(super) own_nonces: u32,
    /// The type of the response that the transport has not taken yet.
    pub(super) unsaid: Option<usize>,
}

impl Session {
    /// A stream that has just been opened: aggregated where `only` is `None`.
    pub fn new(
        cache: Arc<Cache>,
        rules: Arc<Rules>,
        protocol: Protocol,
        only: Option<TypeUrl>,
        now: Instant,
    ) -> Self {
        Self {
            cache,
            rules,
            dialect: Dialect { protocol, aggregated: only.is_none(), ttl: Ttl::Untold },
            role: Role::default(),
            only,
            one_shot: false,
            mailbox: Arc::default(),
            client: None,
            allotted: Allotment::default(),
            hidden: Hidden::default(),
            delays: SmallVec::new(),
            spiffe_id: None,
            tenant: None,
            types: Vec::new(),
            started: now,
            responded: false,
            own_nonces: 0,
            unsaid: None,
        }
    }

    /// The stream ends with its first response (unary Fetch), which is sent when it is complete, even if empty.
    #[must_use]
    pub const fn one_shot(mut self) -> Self {
        self.one_shot = true;
        self
    }

    /// The same for a peer that has proven to have this SPIFFE ID.
    #[must_use]
    pub fn proven(mut self, spiffe_id: Option<Arc<str>>) -> Self {
        self.spiffe_id = spiffe_id;
        self
    }

    /// Has this tenant charged for what the session takes of the pools of all peers.
    #[must_use]
    pub fn charged_to(mut self, tenant: Option<Tenant>) -> Self {
        self.tenant = tenant;
        self
    }

    /// What it asked for since this was last said and is not shown, by the operator's rules.
    pub const fn take_hidden(&mut self) -> Hidden {
        std::mem::replace(&mut self.hidden, Hidden { names: 0, wildcards: 0 })
    }

    /// Where the cache wakes it.
    pub const fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Whether a request has no more parts than it may, before it is decoded.
    pub fn check_parts(&self, message: &[u8]) -> Result<(), Refusal> {
        self.rules.check_parts(self.dialect.protocol, message)
    }

    /// What it speaks.
    pub const fn protocol(&self) -> Protocol {
        self.dialect.protocol
    }

    /// Who is at the other end, once it has said so.
    pub const fn client(&self) -> Option<&Client> {
        self.client.as_ref()
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

    /// The rules and limits in force for its client.
    pub const fn rules(&self) -> &Arc<Rules> {
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
    ) -> Result<Membership, Refusal> {
        self.rules.check_type(type_url)?;
        if self.types.len() >= self.rules.max_types {
            let message = format!("more than {} types on one stream", self.rules.max_types);
            return Err(Refusal::exhausted(message).over(Bound::Types));
        }
        let of = self.store(type_url, &subscription)?;
        self.hidden += self.rules.grant.hides_of(&subscription);
        Ok(of.join_as(self.role, subscription, self.dialect_of(type_url), &self.mailbox))
    }

    /// How it sees a type. Endpoints are repeated behind changed clusters to all who are sent all clusters at once. Where a
    /// stream asks for single ones, or for none, its session alone knows which endpoints it owes (R-ADS-05, V1).
    fn dialect_of(&self, type_url: &TypeUrl) -> Dialect {
        let asks_for_all = |state: &StreamType| state.kind == Kind::Cluster && state.subscription().wildcard;
        let is_repeated = type_url.kind() != Kind::Endpoint || self.types.iter().any(asks_for_all);
        Dialect { aggregated: self.dialect.aggregated && is_repeated, ..self.dialect }
    }

    /// What is asked for of a type has changed: where that is clusters, it may change how endpoints are seen.
    pub(super) fn turn_endpoints_of(&mut self, clusters: &TypeUrl) {
        if clusters.kind() != Kind::Cluster {
            return;
        }
        let Some(at) = self.types.iter().position(|state| state.kind == Kind::Endpoint) else { return };
        let dialect = self.dialect_of(self.types[at].membership.of().type_url());
        self.types[at].turn(dialect);
    }

    /// The store through which a subscription sees its type.
    pub(super) fn store(
        &self,
        type_url: &TypeUrl,
        subscription: &Subscription,
    ) -> Result<Arc<TypeCache>, Refusal> {
        self.rules.store(&self.cache, type_url, subscription, &self.allotted, self.tenant.as_ref())
    }

    /// Counts what is newly asked for and not shown.
    pub(super) fn count_hidden<'a>(&mut self, wildcard: bool, names: impl Iterator<Item = &'a Name>) {
        self.hidden += self.rules.grant.hides(wildcard, names);
    }

    /// Remembers the node of the first request; what later ones say of it is ignored (R-EP-05).
    pub(super) fn meet(&mut self, node: Option<proto::Node>) -> Result<(), Refusal> {
        if self.client.is_none() {
            let Some(node) = node else {
                return Err(Refusal::invalid("the first request of a stream must carry `node`"));
            };
            let given = self.rules.given.parameters(&node, self.spiffe_id.as_deref());
            let proven = self.rules.given.proven(self.spiffe_id.as_deref());
            self.allotted = self.rules.grant.allot(&given, &proven);
            // An answer that stands alone is never renewed.
            let features = Features::read(&node);
            if !self.one_shot {
                self.dialect.ttl = features.ttl(self.dialect.protocol);
            }
            if self.rules.observers {
                self.role = features.role();
            }
            self.client = Some(self.rules.client(node)?);
        }
        Ok(())
    }

    /// The type of a request: on a per-type stream implied, elsewhere required (R-EP-03).
    pub(super) fn type_of(&self, sent: &str) -> Result<TypeUrl, Refusal> {
        match &self.only {
            Some(only) => only_type(only, sent),
            None if sent.is_empty() => {
                Err(Refusal::invalid("`type_url` is required on an aggregated stream"))
            }
            None if sent.len() > self.rules.max_name_bytes => Err(Refusal::invalid(format!(
                "`type_url` is longer than {} bytes",
                self.rules.max_name_bytes
            ))),
            None => Ok(TypeUrl::from(sent)),
        }
    }

    /// See [`Rules::allows_legacy_wildcard`].
    pub(super) fn allows_legacy_wildcard(&self, type_url: &TypeUrl) -> bool {
        let user_agent = self.client.as_ref().map_or("", |client| client.user_agent.as_str());
        self.rules.allows_legacy_wildcard(type_url, user_agent)
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
