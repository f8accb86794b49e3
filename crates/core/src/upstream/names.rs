//! Names of a topic: all that is known of each, in one record.
//!
//! Owns which names are wanted, how the origin was asked for them on the stream that lives, how far it has answered, and what it is to be
//! asked next. Knows neither why a name is wanted nor the wildcard.
//!
//! Invariant: there is a record for as long as its name is wanted, or the origin was asked for it on this stream and was not told that it
//! was let go.

mod answer;
mod request;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::HashSet;

pub(super) use request::{REQUEST_BYTES, room};

use super::Settings;
use super::answer::EndMark;
use super::arrival::{Arrival, Evidence};
use super::inquiry::PATIENCE;
use super::linger::Want;
use super::quiet_clock::QuietInstant;
use crate::resource::{Collection, Name, NameMap, take_out};

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

/// How the origin was asked for a name.
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
    fn is_open(&self) -> bool {
        !self.dropped && self.awaited == Awaited::Answer
    }

    /// Since when it has been unanswered: it is to be asked for on a stream of its own, and again 10 and 20 s
    /// later. Names of the first request are not, since that is answered in full.
    fn unanswered_since(&self) -> Option<QuietInstant> {
        let is_due = self.is_open() && !self.in_first && self.inquiries < INQUIRIES;
        is_due.then(|| self.at + PATIENCE * self.inquiries.into())
    }
}

/// All that is known of a name.
#[derive(Debug, Default)]
pub(super) struct Record {
    want: Want,
    /// On the stream that lives.
    asked: Option<Asked>,
    /// It is not asked for here: another topic's subscription brings it too (R-DP-16).
    borrowed: bool,
    /// The resource that is held of it, from a lender or an earlier stream, may be gone: it is kept until the answer to the question that
    /// is asked anew, which takes its place whatever its constraints (R-DP-14, R-DP-16).
    orphan: bool,
}

impl Record {
    fn is_wanted(&self) -> bool {
        self.want != Want::No
    }

    /// Whether the origin is to be asked for it here.
    fn is_own(&self) -> bool {
        self.is_wanted() && !self.borrowed
    }

    fn is_covered(&self) -> bool {
        self.asked.is_some_and(|asked| !asked.dropped)
    }
}

/// A collection whose members have not all been heard yet.
#[derive(Debug)]
struct Incomplete {
    arrival: Arrival,
    /// Members that are held and have not been sent again.
    unseen: HashSet<Name>,
}

/// State of the stream that carries the names.
#[derive(Debug, Default)]
struct Stream {
    is_open: bool,
    /// Names of which what was sent may differ from what is wanted.
    pending: BTreeSet<Name>,
    /// Those of them that clients have come to want, or let go, since the stream was opened, in that order: they go before those that
    /// a stream which was opened anew repeats.
    fresh: VecDeque<Name>,
    /// The last of the others that was in a request which was cut.
    cut_at: Option<Name>,
    end_mark: EndMark,
    /// The end mark was subscribed to, and is still to be unsubscribed from.
    leaves_end_mark: bool,
    /// No name has been unanswered for longer, as [`Asked::unanswered_since`] says. One that was answered may have been.
    unanswered: Option<QuietInstant>,
    /// Collections that were asked for, until they are complete.
    incomplete: BTreeMap<Name, Incomplete>,
}

impl Stream {
    /// Notes that a name has come to be wanted, or is wanted no more.
    fn touch(&mut self, name: &Name) {
        if !self.is_open {
            return;
        }
        if self.pending.insert(name.clone()) {
            self.fresh.push_back(name.clone());
        }
        // Names that were let go before they were sent, of a type that is not asked for, would pile up.
        if self.fresh.len() > 2 * self.pending.len() + 1000 {
            self.fresh.retain(|name| self.pending.contains(name));
        }
    }
}

/// Names of a topic.
#[derive(Debug, Default)]
pub(super) struct Names {
    records: NameMap<Record>,
    /// How many of them are wanted, and how many of these borrowed.
    wanted: usize,
    borrowed: usize,
    stream: Stream,
}

impl Names {
    /// A stream is open for them: what is wanted is to be asked for.
    pub(super) fn opened(&mut self) {
        let own = self.records.iter().filter(|(_, record)| record.is_own());
        let pending = own.map(|(name, _)| name.clone()).collect();
        self.stream = Stream { is_open: true, pending, ..Stream::default() };
    }

    pub(super) fn closed(&mut self) {
        self.stream = Stream::default();
        self.records.values_mut().for_each(|record| record.asked = None);
        let unwanted = self.records.iter().filter(|(_, record)| !record.is_wanted());
        let unwanted: Vec<Name> = unwanted.map(|(name, _)| name.clone()).collect();
        unwanted.iter().for_each(|name| _ = take_out(&mut self.records, name));
    }

    /// Whether none is wanted.
    pub(super) const fn is_empty(&self) -> bool {
        self.wanted == 0
    }

    /// Whether none is wanted, and none was asked for that was not let go.
    pub(super) fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) const fn has_borrowed_any(&self) -> bool {
        self.borrowed > 0
    }

    /// Those that are wanted, and for how long.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (&Name, Want)> {
        self.records.iter().filter(|(_, record)| record.is_wanted()).map(|(name, record)| (name, record.want))
    }

    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.records.get(name).is_some_and(Record::is_wanted)
    }

    /// For how long a name is wanted that is.
    pub(super) fn want_mut(&mut self, name: &str) -> Option<&mut Want> {
        self.records.get_mut(name).filter(|record| record.is_wanted()).map(|record| &mut record.want)
    }

    /// A name is wanted for so long.
    pub(super) fn want(&mut self, name: &Name, want: Want) -> &mut Record {
        let record = self.records.entry(name.clone()).or_default();
        self.wanted += usize::from(!record.is_wanted());
        record.want = want;
        record
    }

    /// A name is wanted that was not.
    pub(super) fn add(&mut self, name: &Name) {
        self.want(name, Want::Yes);
        self.stream.touch(name);
    }

    /// A name is wanted that was not, and what another topic holds serves.
    pub(super) fn borrow(&mut self, name: &Name) {
        self.want(name, Want::Yes).borrowed = true;
        self.borrowed += 1;
    }

    /// A borrowed name is to be asked for.
    pub(super) fn end_loan(&mut self, name: &Name) {
        if let Some(record) = self.records.get_mut(name).filter(|record| record.borrowed) {
            (record.borrowed, record.orphan) = (false, true);
            self.borrowed -= 1;
        }
        self.stream.touch(name);
    }

    /// A name is let go.
    pub(super) fn remove(&mut self, name: &Name) {
        let Some(record) = self.records.get_mut(name) else { return };
        self.wanted -= usize::from(record.is_wanted());
        self.borrowed -= usize::from(record.borrowed);
        (record.want, record.borrowed, record.orphan) = (Want::No, false, false);
        self.stream.incomplete.remove(name);
        if let Some(asked) = &mut record.asked {
            asked.dropped = true;
            self.stream.touch(name);
        } else {
            take_out(&mut self.records, name);
            self.stream.pending.remove(name);
        }
    }

    /// Whether the origin is asked for this name here.
    pub(super) fn asks_for(&self, name: &str) -> bool {
        self.records.get(name).is_some_and(Record::is_own)
    }

    pub(super) fn has_borrowed(&self, name: &Name) -> bool {
        self.records.get(name).is_some_and(|record| record.borrowed)
    }

    /// Whether the resource held has had no answer since it was asked for on this stream, or since a loan ended.
    pub(super) fn is_orphan(&self, name: &Name) -> bool {
        self.records.get(name).is_some_and(|record| record.orphan)
    }

    /// Notes whether the resource that is held of a name may be gone.
    pub(super) fn set_orphan(&mut self, name: &str, orphan: bool) {
        if let Some(record) = self.records.get_mut(name) {
            record.orphan = orphan;
        }
    }

    /// A name was answered; whether what is held of it might have been gone.
    pub(super) fn take_orphan(&mut self, name: &Name) -> bool {
        self.records.get_mut(name).is_some_and(|record| std::mem::take(&mut record.orphan))
    }

    /// A name is to be subscribed to once more, so that the origin sends it in full (R-Delta-04).
    pub(super) fn ask_again(&mut self, name: &Name) {
        if let Some(asked) = self.asked_mut(name.as_str()) {
            asked.dropped = true;
            self.stream.touch(name);
        }
    }

    /// Asks for a name once more, unless the origin is about to answer for it anyway.
    pub(super) fn ask_once_more(&mut self, name: &Name) {
        if self.asked_mut(name.as_str()).is_some_and(|asked| asked.awaited == Awaited::No) {
            self.ask_again(name);
        }
    }

    /// The origin said that what it sent is gone: a name that is subscribed to again in case it comes back, because some
    /// origins (java-control-plane) forget the subscription. Nothing is expected of it.
    pub(super) fn repeat(&mut self, name: &Name) {
        if let Some(asked) = self.asked_mut(name.as_str()).filter(|asked| !asked.dropped) {
            asked.repeated = true;
            self.stream.touch(name);
        }
    }

    fn asked(&self, name: &str) -> Option<&Asked> {
        self.records.get(name)?.asked.as_ref()
    }

    fn asked_mut(&mut self, name: &str) -> Option<&mut Asked> {
        self.records.get_mut(name)?.asked.as_mut()
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.stream.pending.is_empty() || self.stream.leaves_end_mark
    }

    /// When a name was asked for of which the origin has said nothing since.
    pub(super) fn awaits_since(&self, name: &str) -> Option<QuietInstant> {
        self.asked(name).filter(|asked| asked.is_open()).map(|asked| asked.at)
    }

    /// When a name was asked for.
    pub(super) fn asked_at(&self, name: &Name) -> Option<QuietInstant> {
        self.asked(name.as_str()).filter(|asked| !asked.dropped).map(|asked| asked.at)
    }

    /// A name that was asked for and not let go.
    pub(super) fn covered(&self, name: &str) -> Option<&Name> {
        self.records.get_key_value(name).filter(|(_, record)| record.is_covered()).map(|(name, _)| name)
    }

    /// Whether what the origin says by this name is subscribed to, by itself or with its collection (R-Up-15).
    pub(super) fn covers(&self, name: &str) -> bool {
        self.covered_or_borrowed(name).is_some()
            || Collection::covering(name).is_some_and(|covering| self.covered(&covering).is_some())
    }

    /// A name that is subscribed to here, or by the topic that lends it.
    pub(super) fn covered_or_borrowed(&self, name: &str) -> Option<&Name> {
        let known = self.records.get_key_value(name);
        known.filter(|(_, record)| record.borrowed || record.is_covered()).map(|(name, _)| name)
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<QuietInstant> {
        let collections = self.stream.incomplete.values();
        collections.filter_map(|incomplete| incomplete.arrival.deadline(settings, Evidence::None)).min()
    }
}
