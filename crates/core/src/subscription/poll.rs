//! One long poll of one client (R-REST-05), and the memory of polls between two requests.
//!
//! Owns what a poll asks for, the version it offers, how long it may be held, and its outcome. Like
//! a [`Session`](super::Session) it works that out when asked, from its cohort. It has no position,
//! because it ends with its answer. REST-JSON has neither nonces nor rejections, so two facts must
//! outlive a poll: the version sent, so that a rejected one is not sent again at once (R-REST-08),
//! and the start of the wait for names, so that short polls wait no longer than a long one.
//!
//! Invariants:
//! - It is answered with everything it asked for, and only if that differs from the offered
//!   version.
//! - Unknown names are never answered: an empty answer would delete what the client runs
//!   (R-REST-09).
//! - It ends at its deadline in any case.
//! - The memory is bounded by [`LIMIT`] and by time. A forgotten poll costs time, never correctness.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use xxhash_rust::xxh3;

use super::client::Client;
use super::permissions::{HiddenCounts, SessionError};
use super::progress::Audience;
use super::session_config::{SessionConfig, Upstream, only_type};
use super::subscription_edit::SotwNames;
use crate::cache::{
    Cache, Completeness, Membership, ParameterView, Protocol, SetContents, SetState, SetVersion,
    StreamProfile, Subscription, TtlSupport, WakeHandle,
};
use crate::identity::Peer;
use crate::pool::Tenant;
use crate::proto;
use crate::resource::{Kind, TypeUrl};

/// Longest wait of a client that holds nothing for a version that it may have rejected: it may have
/// restarted.
const REJECTED_HOLD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollVerdict {
    /// Everything that it asked for, in this version or a newer one.
    Answer(SetVersion),
    /// The client holds the newest known version (R-REST-04).
    NotModified,
    /// Unknown, and the client holds nothing (R-REST-09).
    Unknown,
    /// Wait for the cache, until this time at most.
    Wait(Instant),
}

#[derive(Debug)]
pub struct Poll {
    client: Arc<Client>,
    membership: Membership,
    wake_handle: Arc<WakeHandle>,
    rules: Arc<SessionConfig>,
    offered: OfferedVersion,
    key: PollKey,
    /// Version that was sent but is not offered: rejected or lost (R-REST-08).
    unwelcome: Option<DeliveredVersion>,
    resend_at: Instant,
    has_past: bool,
    asked: Instant,
    /// Start of the wait for unknown names, by this poll or those before it.
    waits_since: Instant,
    until: Instant,
}

impl Poll {
    /// Starts a poll, held for at most `hold`.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the request breaks the protocol or a limit, or is denied.
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
        (peer, tenant): (&Peer, Option<&Tenant>),
        hold: Duration,
        now: Instant,
    ) -> Result<Self, SessionError> {
        let type_url = only_type(&kind.into(), &request.type_url)?;
        rules.check_type(&type_url)?;
        rules.check_list(&request.resource_names, &request.resource_locators)?;
        // Each poll carries its node (R-REST-02); with curl it may be missing.
        let node = request.node.unwrap_or_default();
        let allotted = rules.permissions.allot(&rules.given, &node, peer.spiffe_id());
        let client = rules.client(node)?;
        let legacy = rules.allows_legacy_wildcard(&type_url, &client.user_agent);
        // Each request counts as the first (R-REST-10).
        let (names, locators) = (&request.resource_names, request.resource_locators);
        let subscription = SotwNames::default().read(names, locators, legacy);
        let of = rules.store(cache, &type_url, &subscription, &allotted, tenant, None)?;
        let wake_handle = Arc::new(WakeHandle::of(tenant.cloned()));
        let profile =
            StreamProfile { protocol: Protocol::Sotw, aggregated: false, ttl: TtlSupport::Unsupported };
        let membership = of.join(subscription, profile, &wake_handle);
        let key = poll_history.keys.hash_one((peer.source, &client.node_id, asked(&membership)));
        let past = poll_history.recall(key, now);
        let offered = OfferedVersion::read(&request.version_info);
        // Clients without an id cannot be told apart.
        let is_unwelcome = |given: &DeliveredVersion| given.over == offered && !client.node_id.is_empty();
        let unwelcome = past.delivered.filter(is_unwelcome);
        Ok(Self {
            client: Arc::new(client),
            membership,
            wake_handle,
            rules: Arc::clone(rules),
            offered,
            key,
            unwelcome,
            has_past: past != PollRecord::default(),
            asked: now,
            waits_since: past.waits_since.unwrap_or(now),
            resend_at: now + if offered == OfferedVersion::Nothing { hold.min(REJECTED_HOLD) } else { hold },
            until: now + hold,
        })
    }

    pub const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Clients that ask for the same.
    pub fn audience(&self) -> Audience {
        Audience::new(&self.membership)
    }

    fn asks_for_wildcard(&self) -> bool {
        self.membership.subscription().wildcard
    }

    pub const fn wake_handle(&self) -> &Arc<WakeHandle> {
        &self.wake_handle
    }

    pub const fn until(&self) -> Instant {
        self.until
    }

    pub fn type_url(&self) -> &TypeUrl {
        self.membership.of().type_url()
    }

    /// Cache, type, view and subscription. Polls with equal values see the same at a moment.
    pub fn asked(&self) -> (u64, &str, &ParameterView, &Subscription) {
        asked(&self.membership)
    }

    pub fn hidden(&self) -> HiddenCounts {
        self.rules.permissions.hides_of(self.membership.subscription())
    }

    pub fn next(&self, now: Instant, upstream: Upstream) -> PollVerdict {
        if now >= self.until {
            return self.expire(now, upstream);
        }
        let set_state = self.set_state();
        if set_state.dropped && !self.holds(&set_state) {
            // It cannot be written until the origin has sent it again (R-XT-09).
            self.membership.ask_again(self.membership.subscription().names());
        }
        if !self.is_known(&set_state, now, upstream) {
            let subscription = self.membership.subscription();
            let mixes = subscription.wildcard && !subscription.names().is_empty();
            let excludes = subscription.wildcard && self.type_url().kind().full_state();
            if self.offered != OfferedVersion::Nothing || mixes || excludes {
                // Too early, the set would take something from this client, or deny that it exists.
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
        if is_unwelcome && now < self.resend_at {
            return PollVerdict::Wait(self.resend_at);
        }
        PollVerdict::Answer(set_state.version)
    }

    pub fn expire(&self, now: Instant, upstream: Upstream) -> PollVerdict {
        let set_state = self.set_state();
        if self.is_known(&set_state, now, upstream) && !self.holds(&set_state) {
            // Versions sent before count too: they may be lost (R-REST-08).
            return PollVerdict::Answer(set_state.version);
        }
        // For all that the relay knows, its names may be gone.
        let knows_nothing = set_state.unknown_name && !set_state.knows_something;
        if self.offered == OfferedVersion::Nothing || (knows_nothing && !self.asks_for_wildcard()) {
            PollVerdict::Unknown
        } else {
            PollVerdict::NotModified
        }
    }

    pub fn names(&self) -> usize {
        self.membership.subscription().names().len()
    }

    pub fn name_bytes(&self) -> usize {
        self.membership.subscription().name_bytes()
    }

    pub fn found(&self) -> SetContents {
        self.membership.of().set_contents(self.membership.cohort())
    }

    /// Time of the newest change that ended the wait.
    pub fn changed_at(&self) -> Option<Instant> {
        self.set_state().changed_at.filter(|changed| *changed > self.asked)
    }

    pub fn end(&self, answer: Option<SetVersion>, poll_history: &PollHistory, now: Instant) {
        let set_state = self.set_state();
        let waits = answer.is_none() && (set_state.unknown_name || set_state.wildcard < self.needed());
        let delivered = answer.map(|version| DeliveredVersion { version, over: self.offered });
        let past = PollRecord {
            delivered: delivered.or(self.unwelcome),
            waits_since: waits.then_some(self.waits_since),
        };
        if self.has_past || past != PollRecord::default() {
            poll_history.remember(self.key, past, now);
        }
    }

    fn set_state(&self) -> SetState {
        self.membership.of().set_state(self.membership.cohort())
    }

    fn holds(&self, set_state: &SetState) -> bool {
        self.offered == OfferedVersion::Version(set_state.version)
    }

    /// Whether the relay knows the answer, or has waited long enough for an origin that leaves
    /// names unanswered.
    ///
    /// As on a SotW stream, a full state for a client that may hold the names waits long, and
    /// without end while the origin is silent. An answer that takes nothing away waits a moment.
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

    /// How complete the wildcard set must be.
    fn needed(&self) -> Completeness {
        match self.offered {
            OfferedVersion::Nothing if self.type_url().kind().full_state() => Completeness::Presumed,
            OfferedVersion::Nothing => Completeness::Settled,
            _ => Completeness::Complete,
        }
    }

    /// When unanswered names count as absent; `None` while the origin does not answer.
    fn patience(&self, upstream: Upstream) -> Option<Instant> {
        let unanswered_from =
            self.membership.of().unanswered_from(self.waits_since, self.rules.longest_silence());
        unanswered_from.filter(|_| upstream == Upstream::Answering)
    }
}

fn asked(membership: &Membership) -> (u64, &str, &ParameterView, &Subscription) {
    let of = membership.of();
    (of.cache(), of.type_url().as_str(), of.parameter_view(), membership.subscription())
}

const LIMIT: usize = 1 << 16;
/// Longest pause between two polls of a client. With a longer `refresh_delay`, rejected versions
/// are rare anyway.
const TTL: Duration = Duration::from_secs(30);

/// Hash of the peer's address, its node id, and what it [asks for](Poll::asked).
type PollKey = u64;

/// Version that a client says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferedVersion {
    Nothing,
    Version(SetVersion),
    /// Hash of another server's version.
    Foreign(u64),
}

impl OfferedVersion {
    pub(super) fn read(version_info: &str) -> Self {
        match version_info {
            "" => Self::Nothing,
            text => SetVersion::parse(text)
                .map_or_else(|| Self::Foreign(xxh3::xxh3_64(text.as_bytes())), Self::Version),
        }
    }
}

/// Version sent, and the version that the request offered. A client that offers it again for the
/// same names rejected the sent version or never got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeliveredVersion {
    pub(super) version: SetVersion,
    pub(super) over: OfferedVersion,
}

/// Facts about a poll from the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PollRecord {
    delivered: Option<DeliveredVersion>,
    /// Start of the wait for unknown names, if it goes on.
    waits_since: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct PollHistory {
    records: Mutex<PollRecords>,
    /// Secret of this process, so that no peer finds the key of another.
    keys: RandomState,
}

#[derive(Debug, Default)]
struct PollRecords {
    past: HashMap<PollKey, (Instant, PollRecord)>,
    /// Times of records, oldest first; entries may be outdated.
    order: VecDeque<(Instant, PollKey)>,
}

impl PollHistory {
    fn recall(&self, key: PollKey, now: Instant) -> PollRecord {
        let records = self.records.lock();
        let fresh = records.past.get(&key).filter(|(at, _)| now < *at + TTL);
        fresh.map(|(_, past)| *past).unwrap_or_default()
    }

    fn remember(&self, key: PollKey, past: PollRecord, now: Instant) {
        let mut records = self.records.lock();
        let PollRecords { past: known, order } = &mut *records;
        while let Some((at, oldest)) = order.front().copied()
            && (order.len() >= LIMIT || now >= at + TTL)
        {
            order.pop_front();
            if known.get(&oldest).is_some_and(|(newest, _)| *newest == at) {
                known.remove(&oldest);
            }
        }
        known.insert(key, (now, past));
        order.push_back((now, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_polls_is_bounded_in_number_and_in_time() {
        let (poll_history, start) = (PollHistory::default(), Instant::now());
        let past = PollRecord { waits_since: Some(start), ..PollRecord::default() };
        let at = |number: usize| start + Duration::from_micros(number as u64);
        for number in 0..2 * LIMIT {
            poll_history.remember(number as PollKey % 100_000, past, at(number));
        }
        let sizes = || {
            let records = poll_history.records.lock();
            (records.past.len(), records.order.len())
        };
        assert!(sizes().0 <= LIMIT && sizes().1 <= LIMIT);
        let newest = (2 * LIMIT as PollKey - 1) % 100_000;
        assert_eq!(poll_history.recall(newest, at(2 * LIMIT)), past);
        let late = at(2 * LIMIT) + TTL;
        assert_eq!(poll_history.recall(newest, late), PollRecord::default());
        poll_history.remember(0, past, late);
        assert_eq!(sizes(), (1, 1));
    }

    #[test]
    fn a_memory_that_is_renewed_stays() {
        let (poll_history, start) = (PollHistory::default(), Instant::now());
        let past = PollRecord { waits_since: Some(start), ..PollRecord::default() };
        poll_history.remember(1, past, start);
        poll_history.remember(1, past, start + TTL / 2);
        poll_history.remember(2, past, start + TTL);
        assert_eq!(poll_history.recall(1, start + TTL), past);
    }
}
