//! Resource errors (TP3): what the origin says of a name in place of the resource.
//!
//! Owns what an error is, what it means for a body that is held, which errors an update tells, and their encoding. Knows
//! neither where they come from nor how far a client has been told. A name has one error at most, the last one.
//!
//! Invariants:
//! - A transient error takes nothing away (R-Err-02).
//! - A body goes before the error of its name, and never in the same response but for a full state (R-Err-06).
//! - What a response holds of them is bounded; the rest follows.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use foldhash::{HashSet, HashSetExt};

use super::Generation;
use super::entry::{Entry, Seen};
use super::registry::{Look, Subscription};
use super::scan::Scan;
use super::snapshot::Snapshot;
use super::span::{Class, Next};
use super::update::{Owed, Update};
use crate::resource::{Collection, Name, wire};

/// No response tells more errors than this.
const TOLD: usize = 1000;
/// No more of a message is kept.
const MESSAGE_BYTES: usize = 1 << 10;
// google.rpc.Code
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;

/// An error of the origin: a google.rpc.Status without its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: i32,
    message: Box<str>,
}

impl Failure {
    /// The error, with as much of its message as is kept.
    pub fn new(code: i32, message: &str) -> Self {
        let mut end = message.len().min(MESSAGE_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        Self { code, message: message.split_at(end).0.into() }
    }

    /// A google.rpc.Code.
    pub const fn code(&self) -> i32 {
        self.code
    }

    /// What the origin says of it.
    pub const fn message(&self) -> &str {
        &self.message
    }

    /// Whether it means that the resource does not exist (R-Err-03).
    pub const fn is_not_found(&self) -> bool {
        self.code == NOT_FOUND
    }

    const fn is_denial(&self) -> bool {
        self.code == PERMISSION_DENIED
    }

    /// As a `resource_errors` element of this number.
    fn put(&self, out: &mut BytesMut, number: u8, name: &str) {
        let code = i64::from(self.code).cast_unsigned();
        let message = if self.message.is_empty() { 0 } else { wire::field_len(self.message.len()) };
        let status = 1 + wire::varint_len(code) + message;
        let resource_name = wire::field_len(name.len());
        wire::put_header(out, number, wire::field_len(resource_name) + wire::field_len(status));
        wire::put_header(out, 1, resource_name);
        wire::put_field(out, 1, name.as_bytes());
        wire::put_header(out, 2, status);
        out.extend_from_slice(&[1 << 3]);
        wire::put_varint(out, code);
        wire::put_field(out, 2, self.message.as_bytes());
    }
}

/// The error of a name, as an entry keeps it.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) failure: Arc<Failure>,
    /// When those who asked by name had it to learn.
    pub(super) at: Generation,
    /// Since when the body is not for newcomers; zero where it is. Only the resource itself ends that, no other error.
    pub(super) denied: Generation,
    is_denial: bool,
}

impl Failed {
    /// The next error of a name.
    pub(super) fn new(failure: Arc<Failure>, before: Option<&Self>) -> Self {
        let was = before.filter(|_| !failure.is_not_found());
        let is_denial = failure.is_denial() || was.is_some_and(|was| was.is_denial);
        let denied = was.map_or(Generation::ZERO, |was| was.denied);
        Self { failure, at: Generation::ZERO, denied, is_denial }
    }

    /// It became known.
    pub(super) fn stamp(&mut self, at: Generation) {
        self.at = at;
        if self.is_denial && self.denied == Generation::ZERO {
            self.denied = at;
        }
    }

    /// Whether the body is kept from newcomers.
    pub(super) const fn is_denial(&self) -> bool {
        self.is_denial
    }
}

/// When an error is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    Now,
    /// With the first part of the first answer, which says what does not exist.
    AtFirst,
    /// With the removal that it stands for.
    WithRemoval,
    /// In a later response than the body of the same name.
    Later,
}

/// Entries of which an update has an error to tell, and whether the client is owed it.
pub(super) type Failing<'s> = Vec<(&'s Arc<Entry>, Telling, bool)>;

/// The errors of an update.
#[derive(Debug, Default)]
pub(super) struct Errors {
    told: Vec<(Name, Arc<Failure>)>,
    /// Those that stand for removals.
    lost: Vec<(Name, Arc<Failure>)>,
    /// Names whose errors are told in another response.
    pub(super) later: Vec<Name>,
}

impl Errors {
    /// As elements of this number, for clients that spell some names in their own way.
    pub(super) fn encode(
        &self,
        class: Class,
        number: u8,
        spelled: Option<&BTreeMap<Name, Name>>,
    ) -> BytesMut {
        let mut out = BytesMut::new();
        let lost = self.lost.iter().filter(|_| class == Class::Both);
        for (name, failure) in self.told.iter().chain(lost) {
            let name = spelled.and_then(|spelled| spelled.get(name)).unwrap_or(name);
            failure.put(&mut out, number, name.as_str());
        }
        out
    }

    /// Whether the error of this name is among them.
    pub(super) fn tell(&self, name: &Name) -> bool {
        self.told.iter().chain(&self.lost).any(|(told, _)| told == name)
    }

    pub(super) fn weight(&self) -> usize {
        self.told.iter().chain(&self.lost).map(|(name, failure)| size(name, failure)).sum()
    }
}

/// What an error takes on the wire, about.
fn size(name: &Name, failure: &Failure) -> usize {
    name.as_str().len() + failure.message.len() + 16
}

impl Snapshot {
    /// The names of which there is something to tell to who asks for a collection: its members, and those that have an
    /// error.
    pub fn answers_of<'s>(&'s self, name: &'s Name) -> impl Iterator<Item = &'s Name> {
        let collection = Collection::named(name.as_str());
        let entries = collection.into_iter().flat_map(|collection| self.table.covered(collection));
        let is_told = |entry: &&Arc<Entry>| {
            let seen = entry.as_listed();
            seen.present().is_some() || matches!(seen, Seen::Failed)
        };
        entries.filter(is_told).map(|entry| entry.name())
    }

    /// Since when the body of this name is kept from newcomers, where it is.
    pub fn denied(&self, name: &str) -> Option<Generation> {
        if self.denials == 0 {
            return None;
        }
        let entry = self.get(name)?;
        matches!(entry.by_name(), Seen::Denied(_)).then_some(entry.failed.as_deref()?.denied)
    }

    /// The names in a subscription whose bodies are kept from newcomers, and since when.
    pub fn denied_of<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = (&'s Name, Generation)> {
        let listed = self.listed(subscription).map(|entry| entry.name());
        let names = subscription.names().iter().chain(listed).filter(|_| self.denials > 0);
        names.filter_map(|name| Some((name, self.denied(name.as_str())?)))
    }
}

impl Scan<'_> {
    /// When the error of a candidate is told, if it is news; `body` is whether its body is told now.
    pub(super) fn telling(&self, entry: &Entry, look: &Look<'_>, body: bool) -> Option<Telling> {
        let failed = look.failed?;
        if body {
            // It is news again after the body: that makes the client forget it (R-Err-01).
            return Some(Telling::Later);
        }
        let is_absent = matches!(look.seen, Seen::Absent);
        if is_absent && look.since > self.span.seen {
            return None;
        }
        if is_absent && failed.failure.is_not_found() {
            return match self.span.is_start() {
                true => Some(Telling::AtFirst),
                false => (failed.at > self.span.removed).then_some(Telling::WithRemoval),
            };
        }
        let is_news = failed.at > self.span.floor()
            && !self.span.has_told(entry.name().as_str(), failed.at, entry.position());
        is_news.then_some(Telling::Now)
    }

    pub(super) fn look_at<'e>(&self, entry: &'e Entry) -> Option<Look<'e>> {
        self.subscription.look(entry, self.dialect.aggregated)
    }

    /// Puts errors into an update of which all else is settled.
    pub(super) fn tell_errors<'s>(&'s self, update: &mut Update, mut failing: Failing<'s>, owed: &Owed) {
        if failing.is_empty() && owed.errors.is_empty() {
            return;
        }
        let entries = owed.errors.iter().filter_map(|name| self.snapshot.table.get(name.as_str()));
        failing.extend(entries.map(|entry| (entry, Telling::Now, true)));
        // What a later part of the answer brings is told with that.
        let partial = update.is_partial();
        let is_cut = partial || self.span.reach().is_some();
        let left = self.span.after(&update.next, update.to);
        let floor = if let Next::Changes { floor } = update.next { floor } else { left.floor() };
        // Whether a later part tells the error, as news, behind the body, or with the removal that it stands for. That the name
        // has changed otherwise is no reason.
        let is_told_later = |entry: &Entry, telling| {
            let Some(look) = self.look_at(entry) else { return false };
            let is_news =
                |at: Generation| at > floor && !left.has_told(entry.name().as_str(), at, entry.position());
            let goes_along = matches!(look.seen, Seen::Present(_)) || telling == Telling::WithRemoval;
            let follows = goes_along && is_news(look.changed);
            is_cut && (follows || look.failed.is_some_and(|failed| is_news(failed.at)))
        };
        let removed_to = update.removed_to;
        // The first part says what does not exist, as far as that fits.
        let absent: Option<HashSet<Name>> = (update.next == Next::Stay || !update.absent_later.is_empty())
            .then(|| update.absent.iter().cloned().collect());
        let is_ahead = |entry: &Entry, telling| match telling {
            Telling::AtFirst => absent.as_ref().is_some_and(|absent| !absent.contains(entry.name())),
            Telling::WithRemoval => {
                let at = self.look_at(entry).and_then(|look| look.failed).map(|failed| failed.at);
                let goes_later = removed_to.is_some_and(|removed_to| at.is_some_and(|at| at > removed_to));
                partial || goes_later || is_told_later(entry, telling)
            }
            Telling::Now | Telling::Later => is_told_later(entry, telling),
        };
        let waits = |(entry, telling, is_owed): &(&Arc<Entry>, Telling, bool)| {
            let telling = if *is_owed {
                self.look_at(entry).and_then(|look| self.telling(entry, &look, false))
            } else {
                Some(*telling)
            };
            telling.is_some_and(|telling| is_ahead(entry, telling))
        };
        let mut errors = Errors::default();
        let mut seen: HashSet<&Name> = HashSet::new();
        for item in failing.iter().filter(|(_, telling, _)| *telling == Telling::Later) {
            let ((entry, _, is_owed), waits) = (item, waits(item));
            if waits && !is_owed {
                continue;
            }
            // What is owed is in this part, be its error told with another.
            if seen.insert(entry.name()) && !waits {
                errors.later.push(entry.name().clone());
            }
        }
        let mut bytes = 0;
        let news = failing.iter().filter(|item| item.1 != Telling::Later && !waits(item));
        let news = news.map(|(entry, telling, _)| (*entry, *telling));
        for (entry, telling) in news {
            let Some(failed) = self.look_at(entry).and_then(|look| look.failed) else { continue };
            if !seen.insert(entry.name()) {
                continue;
            }
            if !partial {
                update.to = update.to.max(failed.at);
            }
            if bytes >= self.limit || errors.told.len() + errors.lost.len() >= TOLD {
                errors.later.push(entry.name().clone());
                continue;
            }
            bytes += size(entry.name(), &failed.failure);
            let list = if telling == Telling::WithRemoval { &mut errors.lost } else { &mut errors.told };
            list.push((entry.name().clone(), Arc::clone(&failed.failure)));
        }
        update.additions |= !errors.told.is_empty();
        update.removals |= !errors.lost.is_empty();
        update.owed.errors.clone_from(&owed.errors);
        update.errors = Some(Box::new(errors));
    }
}
