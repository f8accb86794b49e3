//! Subscription of one stream to one type: what the origin was asked for there, and what is to be asked next.
//!
//! Owns the difference between what was sent and what is wanted, and how far the origin's answer has come. Knows
//! neither why something is wanted nor what the other stream carries.

mod answer;
mod proof;
mod request;
mod silence;
mod target;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use foldhash::{HashMap, HashSet};

use proof::Proof;
pub(super) use request::room;
pub(super) use silence::Silence;
pub(super) use target::Target;

use super::Settings;
use super::arrival::Arrival;
use crate::resource::{Collection, Name, NameMap};

/// Names let go on a stream that are remembered; past that, every name counts as one of them.
const SPENT: usize = 100_000;

/// Whether an unchanged resource of the origin is an answer to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    /// Since [`Asked::at`].
    Answer,
    /// Until [`Asked::at`]: we said which version we hold, so that the origin need not answer, and after a while it will
    /// not (R-Up-02).
    Until,
}

/// A name that the origin was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    awaited: Awaited,
    /// Let go since, without the origin having been told. It is forgotten, so that wanting it again takes a new
    /// subscribe (R-Up-19).
    dropped: bool,
    /// The origin has said something of it on this stream.
    heard: bool,
    /// It is to be subscribed to once more, and no answer is expected.
    repeated: bool,
}

/// A name of which the origin may believe that it need not send it.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// Since when it is unanswered: since the question, or the first heartbeat after it.
    since: Instant,
    /// Whether it was answered on this stream, and unsubscribed from after that. Of other suspects the origin may have heard one
    /// question only: over state of the world no list says that a name of a full-state type is asked for again, and a list that
    /// crosses the first answer may be dropped for its old nonce.
    was_let_go: bool,
}

/// A collection whose members have not all been heard yet.
#[derive(Debug)]
struct Incomplete {
    arrival: Arrival,
    /// Members that are held and have not been sent again.
    unseen: HashSet<Name>,
}

/// Subscription of one stream to one type, as it was sent and as it is wanted.
///
/// On one stream it carries the wildcard or names, never first the one and then the other.
#[derive(Debug, Default)]
pub(super) struct StreamSubscription {
    /// As in [`Target::is_only`], when the stream last asked for something.
    only: bool,
    /// Whether a request for the type was sent on this stream.
    started: bool,
    /// Whether the wildcard was asked for, and if so whether it was let go since as in [`Asked::dropped`].
    wildcard: Option<bool>,
    names: NameMap<Asked>,
    /// Names of which what was sent may differ from what is wanted.
    pending: BTreeSet<Name>,
    /// Those of them that clients have come to want, or let go, since the stream was opened, in that order: they go before those that
    /// a stream which was opened anew repeats.
    fresh: VecDeque<Name>,
    /// The last of the others that was in a request which was cut.
    cut_at: Option<Name>,
    dirty: bool,
    /// Stage of the answer for the wildcard; for names, while some that are held were neither claimed nor heard of.
    arrival: Arrival,
    /// Members, or names, that are held, could not be claimed, and have not been sent again on this stream.
    unseen: HashSet<Name>,
    /// Part of `unseen` that is in doubt because of this answer. The next answer judges them.
    late: HashSet<Name>,
    /// When silence means that there is nothing for these clients, given that others are answered.
    nothing_at: Option<Instant>,
    /// Members that were claimed and of which nothing has come since, until the answer is over.
    claimed: HashSet<Name>,
    /// Everything that is held was claimed, and nothing was kept back.
    all_claimed: bool,
    /// A member that came by the wildcard has come to its end, and the origin may take it for delivered.
    lapsed: bool,
    /// Whether these were noted as missing while nothing came.
    missing_noted: bool,
    /// The resource of which the version was not told though all others were.
    kept_back: Option<Name>,
    /// Where everything that is held was claimed but for that one: what the answer proves.
    proof: Option<Proof>,
    /// Names of which nothing is known and that the origin leaves unanswered, where full states wait for them.
    open: HashSet<Name>,
    /// None of these was asked for before then; unset once they were asked for on another stream in vain.
    open_since: Option<Instant>,
    /// Names that were claimed though nothing is held of them.
    claimed_open: HashSet<Name>,
    /// Collections that were asked for, until they are complete.
    incomplete: BTreeMap<Name, Incomplete>,
    /// Names that were asked for on this stream and let go since. Asked for again they may stay unanswered: some origins
    /// keep the versions that they sent (O1). With each, whether it was answered before it was let go.
    spent: HashMap<Name, bool>,
    /// There were too many of these to remember.
    all_spent: bool,
    /// Names of which the origin may believe that it need not send them, and that it has not answered.
    suspects: HashMap<Name, Suspect>,
    /// None of these has been unanswered since before then.
    suspect_since: Option<Instant>,
}

impl StreamSubscription {
    /// Whether nothing was ever asked for on it: else names may still come that were let go, which the origin does not send
    /// again (O1).
    pub(super) fn is_idle(&self) -> bool {
        !self.started && self.asks_nothing()
    }

    /// Whether nothing was asked for on it that was not let go.
    pub(super) fn asks_nothing(&self) -> bool {
        self.wildcard.is_none() && self.names.is_empty() && self.pending.is_empty()
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Notes that something else is wanted: on a new stream, all that was wanted before.
    pub(super) fn touch(&mut self, names: impl IntoIterator<Item = Name>) {
        self.pending.extend(names);
        self.dirty = true;
    }

    /// Notes that a name has come to be wanted, or is wanted no more.
    pub(super) fn touch_name(&mut self, name: &Name) {
        if self.pending.insert(name.clone()) {
            self.fresh.push_back(name.clone());
        }
        // Names that were let go before they were sent, of a type that is not asked for, would pile up.
        if self.fresh.len() > 2 * self.pending.len() + 1000 {
            self.fresh.retain(|name| self.pending.contains(name));
        }
        self.dirty = true;
    }

    /// A name is let go. Returns whether it was the one that the origin had to send and has not sent: all others are claimed,
    /// and of these its silence tells nothing.
    pub(super) fn drop_name(&mut self, name: &Name) -> bool {
        let was_awaited = self.wildcard.is_none() && (self.unseen.remove(name) | self.late.remove(name));
        self.incomplete.remove(name);
        self.forget_suspect(name.as_str());
        self.open.remove(name);
        if let Some(asked) = self.names.get_mut(name) {
            asked.dropped = true;
            self.touch_name(name);
        } else {
            self.pending.remove(name);
        }
        was_awaited && self.kept_back.as_ref() == Some(name)
    }

    /// A name is to be subscribed to once more, so that the origin sends it in full (R-Delta-04).
    pub(super) fn ask_again(&mut self, name: &Name) {
        if let Some(asked) = self.names.get_mut(name) {
            // An origin that does not answer may have nothing to say: that is no reason for another stream.
            asked.heard = false;
            asked.dropped = true;
            self.touch_name(name);
        }
    }

    /// Like [`ask_again`](Self::ask_again), of a name that exists: if it stays unanswered, the origin takes it for delivered.
    pub(super) fn ask_anew(&mut self, name: &Name) {
        if self.names.contains_key(name) {
            self.remember_spent(name.clone(), true);
            self.ask_again(name);
        }
    }

    /// The origin said that what it sent is gone: a name that is subscribed to again in case it comes back, because some
    /// origins (java-control-plane) forget the subscription. Nothing is expected of it.
    pub(super) fn repeat(&mut self, name: &Name) {
        if let Some(asked) = self.names.get_mut(name).filter(|asked| !asked.dropped) {
            asked.repeated = true;
            self.touch_name(name);
        }
    }

    /// The origin has answered others that asked for the wildcard beside these clients: if it says nothing for long, it has
    /// nothing for these.
    pub(super) fn others_answered(&mut self) {
        if let Some(nothing_at) = self.nothing_at.take_if(|_| self.arrival.waits_since().is_some()) {
            self.arrival = self.arrival.or_quiet_at(nothing_at);
        }
    }

    /// Whether any of the answer to the wildcard has come.
    pub(super) const fn has_begun(&self) -> bool {
        self.wildcard.is_some() && self.arrival.has_begun()
    }

    /// When the wildcard was asked for, while nothing came of it.
    pub(super) fn wildcard_asked(&self) -> Option<Instant> {
        self.wildcard.and_then(|_| self.arrival.waits_since())
    }

    /// Since when the origin has left something unanswered, of which it said nothing else either.
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        let names =
            self.names.values().filter(|asked| asked.awaited == Awaited::Answer).map(|asked| asked.at);
        names.chain(self.wildcard_asked()).min()
    }

    /// When a name was asked for of which the origin has said nothing since.
    pub(super) fn awaits_since(&self, name: &str) -> Option<Instant> {
        let asked = self.names.get(name).filter(|asked| !asked.dropped && asked.awaited == Awaited::Answer);
        asked.map(|asked| asked.at)
    }

    /// When a name was asked for.
    pub(super) fn asked_at(&self, name: &Name) -> Option<Instant> {
        self.names.get(name).filter(|asked| !asked.dropped).map(|asked| asked.at)
    }

    /// Asks for a name once more, unless the origin is about to answer for it anyway.
    pub(super) fn ask_once_more(&mut self, name: &Name) {
        if self.names.get(name).is_some_and(|asked| asked.awaited == Awaited::No) {
            self.ask_again(name);
        }
    }

    /// The wildcard is let go. The origin is told if it is that of a set of parameters: what it makes of a plain one that is
    /// let go on a stream that lives is not to be relied on (O1).
    pub(super) fn drop_wildcard(&mut self, tells: bool) {
        self.unseen.clear();
        self.late.clear();
        self.dirty = true;
        self.wildcard = self.wildcard.filter(|_| tells).map(|_| true);
        // No more is known of it, also before the origin is told.
        self.arrival = Arrival::Idle;
    }

    /// Whether any name was asked for.
    pub(super) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether the origin was asked for this name before now, and not told that it was let go.
    pub(super) fn asked_before(&self, name: &str, now: Instant) -> bool {
        self.names.get(name).is_some_and(|asked| asked.at < now)
    }

    pub(super) fn covers_wildcard(&self) -> bool {
        self.wildcard == Some(false)
    }

    /// A name that was asked for and not let go.
    pub(super) fn covered(&self, name: &str) -> Option<&Name> {
        self.names.get_key_value(name).filter(|(_, asked)| !asked.dropped).map(|(name, _)| name)
    }

    /// Whether a resource of this name was asked for, be it with the wildcard.
    pub(super) fn covers(&self, name: &str) -> bool {
        self.covers_wildcard() || self.covered(name).is_some() || self.covers_member(name)
    }

    /// Whether a collection was asked for that has this member.
    pub(super) fn covers_member(&self, name: &str) -> bool {
        Collection::covering(name).is_some_and(|covering| self.covered(&covering).is_some())
    }

    /// A name came that was not asked for, or was let go: the origin will not send it once more when it is asked for (O1).
    pub(super) fn note_unasked(&mut self, name: &str) {
        if self.started && self.wildcard.is_none() && !self.all_spent && !self.spent.contains_key(name) {
            self.remember_spent(name.into(), false);
        }
    }

    fn remember_spent(&mut self, name: Name, was_answered: bool) {
        self.spent.insert(name, was_answered);
        if self.spent.len() > SPENT {
            self.all_spent = true;
            self.spent = HashMap::default();
        }
    }

    /// Whether all that the stream brings of the type is for one set of parameters.
    pub(super) const fn is_only(&self) -> bool {
        self.only
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let collections = self.incomplete.values();
        let collections = collections.filter_map(|incomplete| incomplete.arrival.deadline(settings)).min();
        // All that is asked for has to be sent before silence says anything of it.
        let arrival = self.arrival.deadline(settings).filter(|_| self.pending.is_empty());
        arrival.into_iter().chain(collections).min()
    }

    /// Whether everything that is wanted has been asked for.
    pub(super) fn has_asked(&self) -> bool {
        self.pending.is_empty()
    }
}
