//! Names of a topic, with one record for each.
//!
//! Owns which names are wanted, how they were requested on the live stream, the progress of their
//! answers, and the next request. Knows neither why a name is wanted nor the wildcard.
//!
//! Invariant: a record exists while its name is wanted, or was requested on this stream without an
//! unsubscribe since.

mod answer;
mod request;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use foldhash::HashSet;

pub(super) use request::{REQUEST_BYTES, room};

use super::Settings;
use super::answer::{AnswerProgress, EndMark, Evidence};
use super::linger::Want;
use super::quiet_clock::QuietInstant;
use crate::resource::{Collection, Name, NameMap, take_out};

/// Inquiries for an unanswered name on one stream: one may be lost, and many control planes never
/// answer (O2).
const INQUIRIES: u8 = 3;
/// Time between two of these, without the wait for the first.
const AGAIN: Duration = Duration::from_secs(10);

/// Whether an unchanged resource is an answer to the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    /// A version was claimed: no answer is needed (R-Up-02).
    Claimed,
    Answer,
}

/// Request for a name.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: QuietInstant,
    awaited: Awaited,
    /// Let go since, without an unsubscribe. A new wish takes a new subscribe (R-Up-19).
    dropped: bool,
    /// Number of inquiries for it.
    inquiries: u8,
    /// To be subscribed to once more, without an expected answer.
    repeated: bool,
    /// It was in the first request: an answered end mark answers it too.
    in_first: bool,
}

impl Asked {
    const fn new(at: QuietInstant, awaited: Awaited, in_first: bool) -> Self {
        Self { at, awaited, dropped: false, inquiries: 0, repeated: false, in_first }
    }

    fn is_open(&self) -> bool {
        !self.dropped && self.awaited == Awaited::Answer
    }

    /// Start of the wait for an inquiry; later ones follow 10 and 20 s later. Names of the first
    /// request need none, as that is answered in full.
    fn unanswered_since(&self) -> Option<QuietInstant> {
        let is_due = self.is_open() && !self.in_first && self.inquiries < INQUIRIES;
        is_due.then(|| self.at + AGAIN * self.inquiries.into())
    }
}

#[derive(Debug, Default)]
pub(super) struct Record {
    want: Want,
    /// Request on the live stream.
    asked: Option<Asked>,
    /// The held resource, from another topic or an earlier stream, may be gone. It is kept until
    /// the answer, which replaces it whatever its constraints (R-DP-14, R-DP-16).
    unconfirmed: bool,
}

impl Record {
    fn is_wanted(&self) -> bool {
        self.want != Want::No
    }

    fn is_covered(&self) -> bool {
        self.asked.is_some_and(|asked| !asked.dropped)
    }
}

/// Collection whose members have not all come yet.
#[derive(Debug)]
struct Incomplete {
    progress: AnswerProgress,
    /// Held members that have not come again.
    unseen: HashSet<Name>,
}

/// State of the stream that carries the names.
#[derive(Debug, Default)]
struct Stream {
    is_open: bool,
    /// Names whose request may be outdated.
    pending: BTreeSet<Name>,
    /// Those of them that clients added or left since the stream was opened, in that order. They go
    /// before names that a new stream repeats.
    fresh: VecDeque<Name>,
    /// Last repeated name in a request that was cut.
    cut_at: Option<Name>,
    end_mark: EndMark,
    /// The end mark is still to be unsubscribed from.
    leaves_end_mark: bool,
    /// Lower bound of [`Asked::unanswered_since`] over all names.
    unanswered: Option<QuietInstant>,
    /// Requested collections that are not complete.
    incomplete: BTreeMap<Name, Incomplete>,
}

impl Stream {
    /// Notes that a name was added or let go.
    fn touch(&mut self, name: &Name) {
        if !self.is_open {
            return;
        }
        if self.pending.insert(name.clone()) {
            self.fresh.push_back(name.clone());
        }
        // Names of a type that is not requested would pile up.
        if self.fresh.len() > 2 * self.pending.len() + 1000 {
            self.fresh.retain(|name| self.pending.contains(name));
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Names {
    records: NameMap<Record>,
    /// Number of wanted names.
    wanted: usize,
    stream: Stream,
}

impl Names {
    /// Starts a stream, on which all wanted names are to be requested.
    pub(super) fn opened(&mut self) {
        let pending = self.wanted().map(|(name, _)| name.clone()).collect();
        self.stream = Stream { is_open: true, pending, ..Stream::default() };
    }

    pub(super) fn closed(&mut self) {
        self.stream = Stream::default();
        self.records.values_mut().for_each(|record| record.asked = None);
        let unwanted = self.records.iter().filter(|(_, record)| !record.is_wanted());
        let unwanted: Vec<Name> = unwanted.map(|(name, _)| name.clone()).collect();
        unwanted.iter().for_each(|name| _ = take_out(&mut self.records, name));
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.wanted == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = (&Name, Want)> {
        self.records.iter().filter(|(_, record)| record.is_wanted()).map(|(name, record)| (name, record.want))
    }

    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.records.get(name).is_some_and(Record::is_wanted)
    }

    pub(super) fn want_of(&self, name: &str) -> Want {
        self.records.get(name).map_or(Want::No, |record| record.want)
    }

    /// Sets the wish for a name.
    pub(super) fn want(&mut self, name: &Name, want: Want) -> &mut Record {
        let record = self.records.entry(name.clone()).or_default();
        self.wanted += usize::from(!record.is_wanted());
        record.want = want;
        record
    }

    /// Adds a new name.
    pub(super) fn add(&mut self, name: &Name) {
        self.want(name, Want::Yes);
        self.stream.touch(name);
    }

    /// Adds a new name that another topic requested on this stream in the same words, at this
    /// moment, and that was answered.
    pub(super) fn share(&mut self, name: &Name, at: QuietInstant) {
        self.want(name, Want::Yes).asked = Some(Asked::new(at, Awaited::No, false));
    }

    /// Lets a name go.
    pub(super) fn remove(&mut self, name: &Name) {
        let Some(record) = self.records.get_mut(name) else { return };
        self.wanted -= usize::from(record.is_wanted());
        (record.want, record.unconfirmed) = (Want::No, false);
        self.stream.incomplete.remove(name);
        if let Some(asked) = &mut record.asked {
            asked.dropped = true;
            self.stream.touch(name);
        } else {
            take_out(&mut self.records, name);
            self.stream.pending.remove(name);
        }
    }

    /// Whether the held resource has had no answer since it was requested on this stream.
    pub(super) fn is_unconfirmed(&self, name: &Name) -> bool {
        self.records.get(name).is_some_and(|record| record.unconfirmed)
    }

    pub(super) fn set_unconfirmed(&mut self, name: &str, unconfirmed: bool) {
        if let Some(record) = self.records.get_mut(name) {
            record.unconfirmed = unconfirmed;
        }
    }

    /// Notes an answer. Returns whether the held resource might have been gone.
    pub(super) fn take_unconfirmed(&mut self, name: &Name) -> bool {
        self.records.get_mut(name).is_some_and(|record| std::mem::take(&mut record.unconfirmed))
    }

    /// Subscribes to a name once more, so that it comes in full (R-Delta-04).
    pub(super) fn ask_again(&mut self, name: &Name) {
        if let Some(asked) = self.asked_mut(name.as_str()) {
            asked.dropped = true;
            self.stream.touch(name);
        }
    }

    /// Asks for a name once more, unless an answer is expected anyway.
    pub(super) fn ask_once_more(&mut self, name: &Name) {
        if self.asked_mut(name.as_str()).is_some_and(|asked| asked.awaited == Awaited::No) {
            self.ask_again(name);
        }
    }

    /// Subscribes once more to a name whose resource was removed: some control planes
    /// (java-control-plane) forget the subscription. No answer is expected.
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

    /// Time of the request for a name that is unanswered.
    pub(super) fn awaits_since(&self, name: &str) -> Option<QuietInstant> {
        self.asked(name).filter(|asked| asked.is_open()).map(|asked| asked.at)
    }

    /// Whether a name was requested, and has not come since.
    pub(super) fn expects(&self, name: &str) -> bool {
        self.asked(name).is_some_and(|asked| asked.awaited != Awaited::No)
    }

    /// Time of the request for a name, if it was answered or needs no answer.
    pub(super) fn answered_since(&self, name: &Name) -> Option<QuietInstant> {
        self.asked_at(name).filter(|_| self.awaits_since(name.as_str()).is_none())
    }

    pub(super) fn asked_at(&self, name: &Name) -> Option<QuietInstant> {
        self.asked(name.as_str()).filter(|asked| !asked.dropped).map(|asked| asked.at)
    }

    /// Returns a name that is subscribed to.
    pub(super) fn covered(&self, name: &str) -> Option<&Name> {
        self.records.get_key_value(name).filter(|(_, record)| record.is_covered()).map(|(name, _)| name)
    }

    /// Whether a name is subscribed to, by itself or with its collection (R-Up-15).
    pub(super) fn covers(&self, name: &str) -> bool {
        self.covered(name).is_some()
            || Collection::covering(name).is_some_and(|covering| self.covered(&covering).is_some())
    }

    pub(super) fn deadline(&self, settings: &Settings) -> Option<QuietInstant> {
        let collections = self.stream.incomplete.values();
        collections.filter_map(|incomplete| incomplete.progress.deadline(settings, Evidence::None)).min()
    }
}
