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

use super::grant::Hidden;
use super::memory::{Delivered, Memory, Offered, Past, Who};
use super::refusal::Refusal;
use super::rules::{Rules, only_type};
use super::upstream_state::Upstream;
use super::wants::Wants;
use crate::cache::{
    Cache, Completeness, Dialect, Found, Lens, Mailbox, Membership, Protocol, SetVersion, Sight,
    Subscription, Ttl,
};
use crate::pool::Tenant;
use crate::proto;
use crate::resource::{Kind, TypeUrl};

/// A client that holds nothing is kept from what it may have rejected no longer than this: it may as well have been restarted,
/// and wait for its first configuration.
const EMPTY_HANDED: Duration = Duration::from_secs(1);

/// Outcome of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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
pub struct Asker<'a> {
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
    membership: Membership,
    mailbox: Arc<Mailbox>,
    rules: Arc<Rules>,
    offered: Offered,
    who: Who,
    /// Given to the client before, and yet it offers what it offered then: rejected, or lost on the way (R-REST-08).
    unwelcome: Option<Delivered>,
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
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another's: the relay's, the request's, the caller's"
    )]
    pub fn new(
        cache: &Cache,
        rules: &Arc<Rules>,
        memory: &Memory,
        kind: Kind,
        request: proto::DiscoveryRequest,
        from: Asker<'_>,
        hold: Duration,
        now: Instant,
    ) -> Result<Self, Refusal> {
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
        let subscription = Wants::default().read(names, locators, legacy);
        let allotted = rules.grant.allot(&given, &rules.given.proven(from.spiffe_id));
        let of = rules.store(cache, &type_url, &subscription, &allotted, from.tenant)?;
        let who = Who::new(from.key, &client.node_id, &type_url, &subscription);
        let past = memory.recall(who, now);
        let offered = Offered::read(&request.version_info);
        // Clients without a name cannot be told from one another.
        let is_unwelcome = |given: &Delivered| given.over == offered && !client.node_id.is_empty();
        let mailbox = Arc::default();
        let dialect = Dialect { protocol: Protocol::Sotw, aggregated: false, ttl: Ttl::Untold };
        Ok(Self {
            membership: of.join(subscription, dialect, &mailbox),
            mailbox,
            rules: Arc::clone(rules),
            offered,
            who,
            unwelcome: past.delivered.filter(is_unwelcome),
            has_past: past != Past::default(),
            asked: now,
            waits_since: past.waits_since.unwrap_or(now),
            again: now + if offered == Offered::Nothing { hold.min(EMPTY_HANDED) } else { hold },
            until: now + hold,
        })
    }

    /// Where the cache wakes it.
    pub const fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// When it is told something, whatever happens.
    pub const fn until(&self) -> Instant {
        self.until
    }

    /// The type that it asks for.
    pub fn type_url(&self) -> &TypeUrl {
        self.membership.of().type_url()
    }

    /// Type, view and subscription that it asks for. With these equal, two polls see the same at the same moment.
    pub fn asked(&self) -> (&str, &Lens, &Subscription) {
        let of = self.membership.of();
        (of.type_url().as_str(), of.lens(), self.membership.subscription())
    }

    /// Counts what it asks for and is not shown, by the operator's rules.
    pub fn hidden(&self) -> Hidden {
        self.rules.grant.hides_of(self.membership.subscription())
    }

    /// Decides what becomes of it at this moment.
    pub fn next(&self, now: Instant, upstream: Upstream) -> Verdict {
        if now >= self.until {
            return self.expire(now, upstream);
        }
        let sight = self.sight();
        if sight.dropped && !self.holds(&sight) {
            // It cannot be written before the origin has sent it once more (R-XT-09).
            self.membership.of().ask_again(self.membership.subscription().names());
        }
        if !self.is_known(&sight, now, upstream) {
            let subscription = self.membership.subscription();
            let mixes = subscription.wildcard && !subscription.names().is_empty();
            let excludes = subscription.wildcard && self.type_url().kind().full_state();
            if self.offered != Offered::Nothing || mixes || excludes {
                // Shown too early, the set would take something from this client, or say that it does not exist.
                self.membership.of().ask_for_proof();
            }
            let patience = self.patience(upstream).unwrap_or(now + self.rules.cold_deadline);
            let moments = [self.waits_since + self.rules.settle, patience];
            let next = moments.into_iter().filter(|at| *at > now).min();
            return Verdict::Wait(next.map_or(self.until, |next| next.min(self.until)));
        }
        if self.holds(&sight) {
            return Verdict::Wait(self.until);
        }
        let is_unwelcome = self.unwelcome.is_some_and(|given| given.version == sight.version);
        if is_unwelcome && now < self.again {
            return Verdict::Wait(self.again);
        }
        Verdict::Answer(sight.version)
    }

    /// Decides what becomes of it when it can wait no longer.
    pub fn expire(&self, now: Instant, upstream: Upstream) -> Verdict {
        let sight = self.sight();
        if self.is_known(&sight, now, upstream) && !self.holds(&sight) {
            // Also what was given before: it may have been lost on the way (R-REST-08).
            return Verdict::Answer(sight.version);
        }
        if self.offered == Offered::Nothing { Verdict::Unknown } else { Verdict::NotModified }
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
    pub fn found(&self) -> Found {
        self.membership.of().found(self.membership.cohort())
    }

    /// When the newest change was made that it was waiting for.
    pub fn changed_at(&self) -> Option<Instant> {
        self.sight().changed_at.filter(|changed| *changed > self.asked)
    }

    /// It ends: with this answer, or without one.
    pub fn end(&self, answer: Option<SetVersion>, memory: &Memory, now: Instant) {
        let sight = self.sight();
        let waits = answer.is_none() && (sight.unknown_name || sight.wildcard < self.needed());
        let delivered = answer.map(|version| Delivered { version, over: self.offered });
        let past =
            Past { delivered: delivered.or(self.unwelcome), waits_since: waits.then_some(self.waits_since) };
        if self.has_past || past != Past::default() {
            memory.remember(self.who, past, now);
        }
    }

    fn sight(&self) -> Sight {
        self.membership.of().sight(self.membership.cohort())
    }

    fn holds(&self, sight: &Sight) -> bool {
        self.offered == Offered::Version(sight.version)
    }

    /// Whether an answer is one: the relay knows what was asked for, or has waited long enough for an origin that does
    /// not answer for every name. The rules are those of a state-of-the-world stream: a full state for a client that may
    /// hold what it lacks waits long, and for as long as the origin does not answer; what takes nothing away waits a
    /// moment for names that are about to be answered.
    fn is_known(&self, sight: &Sight, now: Instant, upstream: Upstream) -> bool {
        if sight.dropped {
            return self.holds(sight);
        }
        if sight.wildcard < self.needed() || (sight.unknown_name && !sight.knows_something) {
            return false;
        }
        if !sight.unknown_name {
            return true;
        }
        let deletes = self.type_url().kind().full_state();
        let may_hold = self.offered != Offered::Nothing || self.membership.subscription().wildcard;
        if deletes && may_hold {
            self.patience(upstream).is_some_and(|end| now >= end)
        } else {
            now >= self.waits_since + self.rules.settle
        }
    }
    /// How much of the wildcard set has to be known for an answer.
    fn needed(&self) -> Completeness {
        match self.offered {
            Offered::Nothing if self.type_url().kind().full_state() => Completeness::Presumed,
            Offered::Nothing => Completeness::Settled,
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
