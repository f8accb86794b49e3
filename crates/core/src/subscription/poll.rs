//! One long poll of one client (R-REST-05).
//!
//! Owns what a poll asks for, which version it offers, how long it may be held, and what becomes of it: it is answered,
//! sent away, or waits. Like a [`Session`](super::Session) it works that out when asked, from what its cohort sees then;
//! unlike one it has no position, because it ends with its answer.
//!
//! Invariants:
//! - It is answered with the whole of what it asked for, and only if that differs from what it says it holds.
//! - What is not known is never answered for: an empty answer would delete what the client runs (R-REST-09).
//! - It ends at its deadline, whatever happens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::Client;
use super::permissions::HiddenCounts;
use super::poll_history::{DeliveredVersion, OfferedVersion, PollHistory, PollKey, PollRecord};
use super::session_config::{SessionConfig, only_type};
use super::session_error::SessionError;
use super::sotw_names::SotwNames;
use super::upstream_state::Upstream;
use crate::cache::{
    Cache, Completeness, Membership, ParameterView, Protocol, SetContents, SetState, SetVersion,
    StreamProfile, Subscription, TtlSupport, WakeHandle,
};
use crate::pool::Tenant;
use crate::proto;
use crate::resource::{Kind, TypeUrl};

/// A client that holds nothing is kept from what it may have rejected no longer than this: it may as well have been restarted,
/// and wait for its first configuration.
const EMPTY_HANDED: Duration = Duration::from_secs(1);

/// Outcome of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollVerdict {
    /// It is given everything that it asked for, of this version or a newer one.
    Answer(SetVersion),
    /// It holds what there is, as far as can be said (R-REST-04).
    NotModified,
    /// The answer is not known yet, and it holds nothing (R-REST-09).
    Unknown,
    /// It waits to be woken by the cache, and looks again then at the latest.
    Wait(Instant),
}

/// Peer that polls, as the transport tells it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PollPeer<'a> {
    /// Bytes that tell apart peers which call themselves the same.
    pub key: &'a [u8],
    /// The SPIFFE ID that it has proven to have.
    pub spiffe_id: Option<&'a str>,
    /// Tenant of the pools of all peers.
    pub tenant: Option<&'a Tenant>,
}

/// A poll that has been read.
#[derive(Debug)]
pub struct Poll {
    client: Arc<Client>,
    membership: Membership,
    wake_handle: Arc<WakeHandle>,
    rules: Arc<SessionConfig>,
    offered: OfferedVersion,
    who: PollKey,
    /// Given to the client before, and yet it offers what it offered then: rejected, or lost on the way (R-REST-08).
    unwelcome: Option<DeliveredVersion>,
    /// When it is given that again.
    again: Instant,
    /// Whether anything is remembered of the polls before it.
    has_past: bool,
    asked: Instant,
    /// Since when it, or the polls before it, wait for what is not known.
    waits_since: Instant,
    until: Instant,
}

impl Poll {
    /// A request to the service of one type. It may be held for so long.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the request breaks the protocol, exceeds a limit, or asks for resources that are denied.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another's: the relay's, the request's, the caller's"
    )]
    pub fn new(
        cache: &Cache,
        rules: &Arc<SessionConfig>,
        poll_history: &PollHistory,
        kind: Kind,
        request: proto::DiscoveryRequest,
        from: PollPeer<'_>,
        hold: Duration,
        now: Instant,
    ) -> Result<Self, SessionError> {
        let type_url = only_type(&kind.into(), &request.type_url)?;
        rules.check_type(&type_url)?;
        rules.check_list(&request.resource_names, &request.resource_locators)?;
        // Each poll carries its node (R-REST-02). People with curl may leave it out: they are given what the rules give to
        // a node that says nothing.
        let node = request.node.unwrap_or_default();
        let given = rules.given.parameters(&node, from.spiffe_id);
        let client = rules.client(node)?;
        let legacy = rules.allows_legacy_wildcard(&type_url, &client.user_agent);
        // Each request is its own first one (R-REST-10).
        let (names, locators) = (&request.resource_names, request.resource_locators);
        let subscription = SotwNames::default().read(names, locators, legacy);
        let allotted = rules.permissions.allot(&given, &rules.given.proven(from.spiffe_id));
        let of = rules.store(cache, &type_url, &subscription, &allotted, from.tenant, false)?;
        let who = PollKey::new(from.key, &client.node_id, &of, &subscription);
        let past = poll_history.recall(who, now);
        let offered = OfferedVersion::read(&request.version_info);
        // Clients without a name cannot be told from one another.
        let is_unwelcome = |given: &DeliveredVersion| given.over == offered && !client.node_id.is_empty();
        let unwelcome = past.delivered.filter(is_unwelcome);
        let wake_handle = Arc::new(WakeHandle::of(from.tenant.cloned()));
        let profile = StreamProfile { protocol: Protocol::Sotw, aggregated: false, ttl: TtlSupport::Untold };
        Ok(Self {
            client: Arc::new(client),
            membership: of.join(subscription, profile, &wake_handle),
            wake_handle,
            rules: Arc::clone(rules),
            offered,
            who,
            unwelcome,
            has_past: past != PollRecord::default(),
            asked: now,
            waits_since: past.waits_since.unwrap_or(now),
            again: now + if offered == OfferedVersion::Nothing { hold.min(EMPTY_HANDED) } else { hold },
            until: now + hold,
        })
    }

    /// Node that asks, as it describes itself.
    pub const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Whether it asks for the wildcard.
    pub fn asks_for_wildcard(&self) -> bool {
        self.membership.subscription().wildcard
    }

    /// Where the cache wakes it.
    pub const fn wake_handle(&self) -> &Arc<WakeHandle> {
        &self.wake_handle
    }

    /// When it is told something, whatever happens.
    pub const fn until(&self) -> Instant {
        self.until
    }

    /// The type that it asks for.
    pub fn type_url(&self) -> &TypeUrl {
        self.membership.of().type_url()
    }

    /// Cache, type, view and subscription that it asks for. With these equal, two polls see the same at the same moment.
    pub fn asked(&self) -> (u64, &str, &ParameterView, &Subscription) {
        let of = self.membership.of();
        (of.cache(), of.type_url().as_str(), of.parameter_view(), self.membership.subscription())
    }

    /// Counts what it asks for and is not shown, by the operator's rules.
    pub fn hidden(&self) -> HiddenCounts {
        self.rules.permissions.hides_of(self.membership.subscription())
    }

    /// Decides what becomes of it at this moment.
    pub fn next(&self, now: Instant, upstream: Upstream) -> PollVerdict {
        if now >= self.until {
            return self.expire(now, upstream);
        }
        let set_state = self.set_state();
        if set_state.dropped && !self.holds(&set_state) {
            // It cannot be written before the origin has sent it once more (R-XT-09).
            self.membership.ask_again(self.membership.subscription().names());
        }
        if !self.is_known(&set_state, now, upstream) {
            let subscription = self.membership.subscription();
            let mixes = subscription.wildcard && !subscription.names().is_empty();
            let excludes = subscription.wildcard && self.type_url().kind().full_state();
            if self.offered != OfferedVersion::Nothing || mixes || excludes {
                // Shown too early, the set would take something from this client, or say that it does not exist.
                self.membership.of().ask_for_proof();
            }
            let patience = self.patience(upstream).unwrap_or(now + self.rules.cold_deadline);
            let moments = [self.waits_since + self.rules.settle, patience];
            let next = moments.into_iter().filter(|at| *at > now).min();
            return PollVerdict::Wait(next.map_or(self.until, |next| next.min(self.until)));
        }
        if self.holds(&set_state) {
            return PollVerdict::Wait(self.until);
        }
        let is_unwelcome = self.unwelcome.is_some_and(|given| given.version == set_state.version);
        if is_unwelcome && now < self.again {
            return PollVerdict::Wait(self.again);
        }
        PollVerdict::Answer(set_state.version)
    }

    /// Decides what becomes of it when it can wait no longer.
    pub fn expire(&self, now: Instant, upstream: Upstream) -> PollVerdict {
        let set_state = self.set_state();
        if self.is_known(&set_state, now, upstream) && !self.holds(&set_state) {
            // Also what was given before: it may have been lost on the way (R-REST-08).
            return PollVerdict::Answer(set_state.version);
        }
        // Its names may be gone by now, for all that the relay knows.
        let knows_nothing = set_state.unknown_name && !set_state.knows_something;
        if self.offered == OfferedVersion::Nothing || (knows_nothing && !self.asks_for_wildcard()) {
            PollVerdict::Unknown
        } else {
            PollVerdict::NotModified
        }
    }

    /// Number of names that it asks for.
    pub fn names(&self) -> usize {
        self.membership.subscription().names().len()
    }

    /// Length of the text of these names, in bytes.
    pub fn name_bytes(&self) -> usize {
        self.membership.subscription().name_bytes()
    }

    /// Everything that it is to be answered with.
    pub fn found(&self) -> SetContents {
        self.membership.of().found(self.membership.cohort())
    }

    /// When the newest change was made that it was waiting for.
    pub fn changed_at(&self) -> Option<Instant> {
        self.set_state().changed_at.filter(|changed| *changed > self.asked)
    }

    /// It ends: with this answer, or without one.
    pub fn end(&self, answer: Option<SetVersion>, poll_history: &PollHistory, now: Instant) {
        let set_state = self.set_state();
        let waits = answer.is_none() && (set_state.unknown_name || set_state.wildcard < self.needed());
        let delivered = answer.map(|version| DeliveredVersion { version, over: self.offered });
        let past = PollRecord {
            delivered: delivered.or(self.unwelcome),
            waits_since: waits.then_some(self.waits_since),
        };
        if self.has_past || past != PollRecord::default() {
            poll_history.remember(self.who, past, now);
        }
    }

    fn set_state(&self) -> SetState {
        self.membership.of().set_state(self.membership.cohort())
    }

    fn holds(&self, set_state: &SetState) -> bool {
        self.offered == OfferedVersion::Version(set_state.version)
    }

    /// Whether an answer is one: the relay knows what was asked for, or has waited long enough for an origin that does
    /// not answer for every name. The rules are those of a state-of-the-world stream: a full state for a client that may
    /// hold what it lacks waits long, and for as long as the origin does not answer; what takes nothing away waits a
    /// moment for names that are about to be answered.
    fn is_known(&self, set_state: &SetState, now: Instant, upstream: Upstream) -> bool {
        if set_state.dropped {
            return self.holds(set_state);
        }
        if set_state.wildcard < self.needed() || (set_state.unknown_name && !set_state.knows_something) {
            return false;
        }
        if !set_state.unknown_name {
            return true;
        }
        let deletes = self.type_url().kind().full_state();
        let may_hold = self.offered != OfferedVersion::Nothing || self.membership.subscription().wildcard;
        if deletes && may_hold {
            self.patience(upstream).is_some_and(|end| now >= end)
        } else {
            now >= self.waits_since + self.rules.settle
        }
    }
    /// How much of the wildcard set has to be known for an answer.
    fn needed(&self) -> Completeness {
        match self.offered {
            OfferedVersion::Nothing if self.type_url().kind().full_state() => Completeness::Presumed,
            OfferedVersion::Nothing => Completeness::Settled,
            _ => Completeness::Complete,
        }
    }

    /// When names that the origin leaves unanswered are taken for absent; `None` while it does not answer for the type.
    fn patience(&self, upstream: Upstream) -> Option<Instant> {
        let unanswered_from =
            self.membership.of().unanswered_from(self.waits_since, self.rules.longest_silence());
        unanswered_from.filter(|_| upstream == Upstream::Answering)
    }
}
