//! Subscription of one stream to one type: what the origin was asked for there, and what is to be asked next.
//!
//! Owns the difference between what was sent and what is wanted, and how far the origin's answer has come. Knows
//! neither why something is wanted nor what the other stream carries.

mod answer;
mod request;
mod silence;
mod target;

use foldhash::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(super) use answer::Whole;
pub(super) use request::{REQUEST_BYTES, room};
pub(super) use silence::Silence;
pub(super) use target::Target;

use super::Settings;
use super::arrival::{Arrival, Evidence};
use super::inquiry::PATIENCE;
use super::quiet_clock::QuietInstant;
use crate::resource::{Collection, Name, NameMap};

/// A name that stays unanswered is asked for by so many inquiries on one stream: one may be lost, and many origins never answer (O2).
const INQUIRIES: u8 = 3;

/// Whether an unchanged resource of the origin is an answer to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    /// The origin was told which version is held: it need not answer (R-Up-02).
    Claimed,
    Answer,
}

/// A name that the origin was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: QuietInstant,
    awaited: Awaited,
    /// Let go since, without the origin having been told. It is forgotten, so that wanting it again takes a new
    /// subscribe (R-Up-19).
    dropped: bool,
    /// How often it was asked for on a stream of its own, as this one left it unanswered.
    inquiries: u8,
    /// It is to be subscribed to once more, and no answer is expected.
    repeated: bool,
    /// It was in the first request: once the end mark is answered, nothing more is said of it.
    in_first: bool,
}

impl Asked {
    /// Since when it has been unanswered: it is to be asked for on a stream of its own, and again 10 and 20 s
    /// later. Names of the first request are not, since that is answered in full.
    fn unanswered_since(&self) -> Option<QuietInstant> {
        let is_open = self.awaited == Awaited::Answer && !self.dropped && !self.in_first;
        (is_open && self.inquiries < INQUIRIES).then(|| self.at + PATIENCE * self.inquiries.into())
    }
}

/// End mark of the answer to the first request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EndMark {
    /// Not asked for.
    #[default]
    Unasked,
    Asked,
    /// The response is being read that answers it.
    Answered,
    /// The answer is known to be whole.
    Over,
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
    /// Members, or names, that are held and of which nothing has come on this stream, and whether they were claimed. Claimed ones are no
    /// longer among them once the answer is over.
    unheard: HashMap<Name, bool>,
    end_mark: EndMark,
    /// The end mark was subscribed to, and is still to be unsubscribed from.
    leaves_end_mark: bool,
    /// No name has been unanswered for longer, as [`Asked::unanswered_since`] says. One that was answered may have been.
    unanswered: Option<QuietInstant>,
    /// Collections that were asked for, until they are complete.
    incomplete: BTreeMap<Name, Incomplete>,
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

    /// A name is let go.
    pub(super) fn drop_name(&mut self, name: &Name) {
        if self.wildcard.is_none() {
            self.unheard.remove(name);
        }
        self.incomplete.remove(name);
        if let Some(asked) = self.names.get_mut(name) {
            asked.dropped = true;
            self.touch_name(name);
        } else {
            self.pending.remove(name);
        }
    }

    /// A name is to be subscribed to once more, so that the origin sends it in full (R-Delta-04).
    pub(super) fn ask_again(&mut self, name: &Name) {
        if let Some(asked) = self.names.get_mut(name) {
            asked.dropped = true;
            self.touch_name(name);
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

    /// Whether any of the answer to the wildcard has come.
    pub(super) const fn has_begun(&self) -> bool {
        self.wildcard.is_some() && self.arrival.has_begun()
    }

    /// When the wildcard was asked for, while nothing came of it.
    pub(super) fn wildcard_asked(&self) -> Option<QuietInstant> {
        self.wildcard.and_then(|_| self.arrival.waits_since())
    }

    /// Since when the origin has left something unanswered, of which it said nothing else either.
    pub(super) fn unanswered_since(&self) -> Option<QuietInstant> {
        let names =
            self.names.values().filter(|asked| asked.awaited == Awaited::Answer).map(|asked| asked.at);
        names.chain(self.wildcard_asked()).min()
    }

    /// When a name was asked for of which the origin has said nothing since.
    pub(super) fn awaits_since(&self, name: &str) -> Option<QuietInstant> {
        let asked = self.names.get(name).filter(|asked| !asked.dropped && asked.awaited == Awaited::Answer);
        asked.map(|asked| asked.at)
    }

    /// When a name was asked for.
    pub(super) fn asked_at(&self, name: &Name) -> Option<QuietInstant> {
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
        if self.wildcard.is_none() {
            return;
        }
        self.unheard.clear();
        self.dirty = true;
        self.wildcard = self.wildcard.filter(|_| tells).map(|_| true);
        // No more is known of it, also before the origin is told. What may still come of its answer is the end of nothing.
        self.lapse();
    }

    pub(super) fn covers_wildcard(&self) -> bool {
        self.wildcard == Some(false)
    }

    /// A name that was asked for and not let go.
    pub(super) fn covered(&self, name: &str) -> Option<&Name> {
        self.names.get_key_value(name).filter(|(_, asked)| !asked.dropped).map(|(name, _)| name)
    }

    /// Whether a collection was asked for that has this member.
    pub(super) fn covers_member(&self, name: &str) -> bool {
        Collection::covering(name).is_some_and(|covering| self.covered(&covering).is_some())
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, settings: &Settings, asked: Evidence) -> Option<QuietInstant> {
        let collections = self.incomplete.values();
        let collections =
            collections.filter_map(|incomplete| incomplete.arrival.deadline(settings, Evidence::None)).min();
        // All that is asked for has to be sent before silence says anything of it.
        let evidence = self.evidence(asked);
        let arrival = self.arrival.deadline(settings, evidence).filter(|_| self.pending.is_empty());
        arrival.into_iter().chain(collections).min()
    }

    /// Whether everything that is wanted has been asked for.
    pub(super) fn has_asked(&self) -> bool {
        self.pending.is_empty()
    }
}
