//! Subscription of one stream to one type: what the origin was asked for there, and what is to be asked next.
//!
//! Owns the difference between what was sent and what is wanted, and how far the origin's answer has come. Knows
//! neither why something is wanted nor what the other stream carries.

mod proof;
mod silence;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashSet;

use proof::{Evidence, Proof};
pub(super) use silence::Silence;

use super::arrival::Arrival;
use super::doubts::{Doubt, Doubts};
use super::{Reconcile, Settings};
use crate::cache::{Completeness, Named, Snapshot, View};
use crate::proto::{DeltaDiscoveryRequest, ResourceLocator};
use crate::resource::{Collection, Form, Name, NameMap, Parameters, Resource, take_out};

/// A request is cut when its names reach this many bytes: servers that kept gRPC's default take 4 MiB.
const REQUEST_BYTES: usize = 1 << 20;

/// All others at so many: what is answered all at once holds up everything else that the origin says. With
/// [`Settings::request_interval`] it is the pace at which new names are asked for, some fifty thousand in a second.
const NAMES_BYTES: usize = 16 << 10;

/// How many bytes of names go into a request, which may be the first one for a type of which something is held: that one
/// says the versions, and what is behind it is not said with versions any more (R-Delta-05).
pub(super) const fn room(is_first_of_held: bool) -> usize {
    if is_first_of_held { REQUEST_BYTES } else { NAMES_BYTES }
}

/// The versions of a wildcard's members go into one request, and no more than this of them: servers that kept gRPC's
/// default take 4 MiB. The other members are sent again in full.
const VERSIONS_BYTES: usize = 3 << 20;

/// Names let go on a stream that are remembered; past that, every name counts as one of them.
const SPENT: usize = 100_000;

/// Whether what the origin sends unchanged is an answer to us.
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

/// A collection whose members have not all been heard yet.
#[derive(Debug)]
struct Incomplete {
    arrival: Arrival,
    /// Members that are held and have not been sent again.
    unseen: HashSet<Name>,
}

/// Part of a type that a stream is to carry.
pub(super) struct Target<'a> {
    pub(super) view: Option<View>,
    /// The parameters that it is asked for with.
    pub(super) parameters: &'a Parameters,
    /// Whether nothing of the type was asked for on this stream, so that versions can be told (R-Delta-05).
    pub(super) fresh: bool,
    /// Whether a request without names has no locators either.
    pub(super) alone: bool,
    /// Whether the wildcard has to wait for another stream: on this one the origin was asked for it already, for others.
    pub(super) wildcard_waits: bool,
    /// Whether others ask for the type with other parameters, and the origin is told so.
    pub(super) beside: bool,
    /// Whether all that the stream brings of the type is for these clients.
    pub(super) is_only: bool,
    /// Whether the stream was opened anew for a proof that the wildcard set is complete.
    pub(super) proves: bool,
    /// Whether no other stream is opened if the origin stays silent on this one too.
    pub(super) is_last: bool,
    /// Whether a state-of-the-world client of the type waits for all of its names (R-SotW-18).
    pub(super) full_state: bool,
    /// The versions that others have claimed in the same request, and that hold for everybody.
    pub(super) claimed: &'a std::collections::HashMap<String, String>,
    /// Whether all topics that ask for a name hold this of it: else its version would say nothing (R-DP-14).
    pub(super) is_shared: &'a dyn Fn(View, &Resource) -> bool,
    /// Whether the origin was asked for this name on this stream, for others.
    pub(super) is_asked_for: &'a dyn Fn(&str) -> bool,
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a Settings,
    pub(super) now: Instant,
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
    /// The last of these that was in a request which was cut.
    cut_at: Option<Name>,
    dirty: bool,
    /// Of the wildcard; of names, while some that are held have not been claimed and not been heard of.
    arrival: Arrival,
    /// Members, or names, that are held, could not be claimed, and have not been sent again on this stream.
    unseen: HashSet<Name>,
    /// Of these, those that are in doubt because of this answer. They are judged by the next one.
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
    /// Collections that were asked for, until they are complete.
    incomplete: BTreeMap<Name, Incomplete>,
    /// Names that were asked for on this stream and let go since. Asked for again they may stay unanswered: some origins
    /// keep the versions that they sent (O1).
    spent: HashSet<Name>,
    /// There were too many of these to remember.
    all_spent: bool,
    /// Names of which the origin may believe that it need not send them, and that it has not answered.
    suspects: HashSet<Name>,
    /// No suspect has been asked for before then.
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

    pub(super) fn touch(&mut self, names: impl IntoIterator<Item = Name>) {
        self.pending.extend(names);
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
            self.touch([name.clone()]);
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
            self.touch([name.clone()]);
        }
    }

    /// The origin said that what it sent is gone: a name that is subscribed to again in case it comes back, because some
    /// origins (java-control-plane) forget the subscription. Nothing is expected of it.
    pub(super) fn repeat(&mut self, name: &Name) {
        if let Some(asked) = self.names.get_mut(name).filter(|asked| !asked.dropped) {
            asked.repeated = true;
            self.touch([name.clone()]);
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

    /// Whether what comes by this name was asked for, be it with the wildcard.
    pub(super) fn covers(&self, name: &str) -> bool {
        self.covers_wildcard() || self.covered(name).is_some() || self.covers_member(name)
    }

    /// Whether a collection was asked for that has this member.
    pub(super) fn covers_member(&self, name: &str) -> bool {
        Collection::covering(name).is_some_and(|covering| self.covered(&covering).is_some())
    }

    /// The origin said something of a name. Returns whether it answers us.
    pub(super) fn heard(&mut self, name: &str, now: Instant) -> bool {
        if self.wildcard.is_some() {
            return self.arrival.is_expected();
        }
        let of_collection = self.heard_member(name, now);
        of_collection | self.answered(name, now)
    }

    /// Whether a word about this name is the first on this stream, and the answer to a question that was never asked before.
    pub(super) fn awaits_first_word(&self, name: &str) -> bool {
        let is_open = |asked: &Asked| asked.awaited == Awaited::Answer && !asked.heard;
        self.names.get(name).is_some_and(is_open) && !self.suspects.contains(name)
    }

    /// Notes what a response brought of what is held and was not claimed; returns whether there was any.
    pub(super) fn saw(&mut self, name: &str) -> bool {
        self.unseen.remove(name) || self.late.remove(name)
    }

    /// Whether a response brought what was claimed, for the first time: the origin has it in another version, and that is a part
    /// of its answer. What changes once more is none.
    pub(super) fn saw_claimed(&mut self, name: &str) -> bool {
        self.claimed.remove(name)
    }

    /// Like [`heard`](Self::heard), of a member of a collection: until that is complete, it is an answer.
    fn heard_member(&mut self, name: &str, now: Instant) -> bool {
        if self.incomplete.is_empty() {
            return false;
        }
        let Some(covering) = Collection::covering(name) else { return false };
        let Some(incomplete) = self.incomplete.get_mut(covering.as_str()) else { return false };
        incomplete.unseen.remove(name);
        incomplete.arrival = incomplete.arrival.arrived(now, true, false);
        let is_expected = incomplete.arrival.is_expected();
        self.answered(&covering, now);
        is_expected
    }

    fn answered(&mut self, name: &str, now: Instant) -> bool {
        let Some(asked) = self.names.get_mut(name) else { return false };
        asked.heard = true;
        let awaited = std::mem::replace(&mut asked.awaited, Awaited::No);
        let at = asked.at;
        self.forget_suspect(name);
        self.open.remove(name);
        match awaited {
            Awaited::No => false,
            Awaited::Answer => true,
            Awaited::Until => now < at || self.arrival.is_expected(),
        }
    }

    /// The origin renews the time of what is not held. Returns whether it was asked for it and has yet to answer: it may believe
    /// that it did, and then no answer comes.
    pub(super) fn suspect(&mut self, name: &str) -> bool {
        let asked = self.names.get_key_value(name).filter(|(_, asked)| asked.awaited == Awaited::Answer);
        let Some((name, asked)) = asked else { return false };
        self.suspect_since = Some(self.suspect_since.map_or(asked.at, |since| since.min(asked.at)));
        self.suspects.insert(name.clone());
        true
    }

    fn forget_suspect(&mut self, name: &str) {
        if !self.suspects.is_empty() && self.suspects.remove(name) && self.suspects.is_empty() {
            self.suspect_since = None;
        }
    }

    /// Whether a name stays unanswered since then that the origin may believe to have answered for: all such names are to
    /// be asked for on another stream, and on this one nothing is expected of them any more. Names that were asked for once
    /// are none of these: many origins say nothing of what does not exist (O2).
    pub(super) fn give_up_on_suspects(&mut self, asked: Instant) -> bool {
        if self.suspect_since.is_none_or(|since| since > asked) {
            return false;
        }
        let since = self.suspects.iter().filter_map(|name| self.names.get(name)).map(|asked| asked.at).min();
        let is_over = since.is_some_and(|since| since <= asked);
        if is_over {
            self.suspects.clear();
        }
        self.suspect_since = since.filter(|_| !is_over);
        is_over
    }

    /// No earlier than since when such a name is unanswered.
    pub(super) const fn suspect_since(&self) -> Option<Instant> {
        self.suspect_since
    }

    /// The origin said that a collection is empty: nothing more is to come.
    pub(super) fn heard_empty(&mut self, collection: &Name) {
        self.incomplete.remove(collection);
    }

    /// Collections of which all members have been heard by now, with those that are held and were not sent again.
    pub(super) fn complete(&mut self, settings: &Settings, now: Instant) -> Vec<(Name, HashSet<Name>)> {
        let mut complete = Vec::new();
        for (name, incomplete) in &mut self.incomplete {
            if incomplete.arrival.step(settings, now).is_some() && incomplete.arrival.is_over() {
                complete.push(name.clone());
            }
        }
        let take = |name: Name| self.incomplete.remove(&name).map(|incomplete| (name, incomplete.unseen));
        complete.into_iter().filter_map(take).collect()
    }

    /// A response for the type was accepted that may be a part of what is awaited.
    pub(super) fn arrived(&mut self, now: Instant, brings_news: bool, more_follows: bool) {
        self.arrival = self.arrival.arrived(now, brings_news, more_follows);
    }

    /// The degree that the answer has reached by now, if it is a new one.
    pub(super) fn step(&mut self, settings: &Settings, now: Instant) -> Option<Completeness> {
        let degree = self.arrival.step(settings, now);
        if self.arrival.is_over() {
            self.claimed = HashSet::default();
        }
        degree
    }

    /// Since when nothing at all came of an answer that has to bring what is held and was not claimed, or may have nothing to
    /// bring.
    pub(super) fn missing_since(&self) -> Option<Instant> {
        let awaits = !self.unseen.is_empty() || self.all_claimed;
        self.arrival.waits_since().filter(|_| awaits && !self.missing_noted)
    }

    /// Whether this resource is held, was not claimed, and has not come again.
    pub(super) fn lacks(&self, name: &Name) -> bool {
        self.unseen.contains(name)
    }

    /// Resources that are held and were not claimed, while nothing came at all. They are still awaited.
    pub(super) fn note_missing(&mut self) -> impl Iterator<Item = &Name> {
        self.missing_noted = true;
        self.unseen.iter()
    }

    /// Whether the answer to the wildcard was followed by a short silence at least.
    pub(super) fn has_settled(&self) -> bool {
        self.wildcard.is_some() && self.arrival.degree() >= Completeness::Settled
    }

    /// A member that came by the wildcard has come to its end, and the origin may take it for delivered: its answer says nothing any
    /// more.
    pub(super) fn lapse(&mut self) {
        self.lapsed = true;
        self.proof = None;
    }

    pub(super) const fn has_lapsed(&self) -> bool {
        self.lapsed
    }

    /// Whether parts of an answer come, one after the other.
    pub(super) fn is_receiving(&self) -> bool {
        self.arrival.is_under_way() && self.has_asked()
    }

    /// The degree that the answer has reached.
    pub(super) const fn degree(&self) -> Completeness {
        self.arrival.degree()
    }

    /// Whether all that was held and not claimed has come again.
    pub(super) fn misses_nothing(&self) -> bool {
        self.unseen.is_empty()
    }

    /// A name came that was not asked for, or was let go: the origin will not send it once more when it is asked for (O1).
    pub(super) fn note_unasked(&mut self, name: &str) {
        if self.started && self.wildcard.is_none() && !self.all_spent && !self.spent.contains(name) {
            self.remember_spent(name.into());
        }
    }

    fn remember_spent(&mut self, name: Name) {
        self.spent.insert(name);
        if self.spent.len() > SPENT {
            self.all_spent = true;
            self.spent = HashSet::default();
        }
    }

    /// Whether all that the stream brings of the type is for one set of parameters.
    pub(super) const fn is_only(&self) -> bool {
        self.only
    }

    /// Whether the versions of all of these are told in one request.
    pub(super) fn fits_in_one_request<'r>(held: impl Iterator<Item = &'r Arc<Resource>>) -> bool {
        let bytes = |held: &Arc<Resource>| held.name().as_str().len() + held.version().len() + 10;
        held.map(bytes).sum::<usize>() <= VERSIONS_BYTES
    }

    /// Whether a response of one resource, this one, would prove that the answer is complete.
    pub(super) fn is_kept_back(&self, name: &str) -> bool {
        self.proof.as_ref().and_then(Proof::kept_back).is_some_and(|kept_back| kept_back.as_str() == name)
    }

    /// The resource that was kept back, where the answer has settled without it.
    pub(super) fn lacks_kept_back(&self) -> Option<&Name> {
        let is_settled = self.arrival.degree() >= Completeness::Settled;
        self.kept_back.as_ref().filter(|name| is_settled && self.unseen.contains(*name))
    }

    /// The response was the last of the answer to the wildcard, by the word of the origin.
    pub(super) fn note_whole(&mut self) {
        if self.only && !self.lapsed && self.covers_wildcard() && self.awaits_more() {
            let lacked = self.unseen.drain().chain(self.late.drain()).collect();
            let absent = HashSet::default();
            self.proof = Some(Proof::NodeParameterRules(Evidence { absent, lacked, reads_versions: false }));
        }
    }

    /// A response brought what was kept back alone, or any other resource.
    pub(super) fn judge_proof(&mut self, is_alone: bool) {
        if let Some(proof) = &mut self.proof {
            proof.judge(is_alone);
        }
    }

    /// Whether versions were told, and nothing has come that tells whether that was all.
    pub(super) const fn awaits_proof(&self) -> bool {
        matches!(self.proof, Some(Proof::Asked { .. }))
    }

    /// Takes the evidence that the answer is complete. Names that were let go or answered since are in no need of it.
    pub(super) fn take_proof(&mut self, now: Instant) -> Option<Evidence<Vec<Name>>> {
        let Evidence { absent, lacked, reads_versions } = match self.proof.take()? {
            Proof::NodeParameterRules(evidence) => evidence,
            asked @ Proof::Asked { .. } => {
                self.proof = Some(asked);
                return None;
            }
            Proof::Failed(_) => return None,
        };
        self.arrival = Arrival::asked(now, Some(now), Duration::ZERO);
        let absent = absent.into_iter().filter(|name| {
            self.names.get(name).is_some_and(|asked| !asked.dropped && asked.awaited == Awaited::Answer)
        });
        let mut absent: Vec<Name> = absent.collect();
        absent.sort_unstable();
        for name in &absent {
            self.answered(name.as_str(), now);
        }
        Some(Evidence { absent, lacked, reads_versions })
    }

    /// Whether every resource that is held was claimed, or all but one: an origin that sends one of the others at the
    /// version that it was told does not read versions.
    pub(super) const fn has_claimed_all(&self) -> bool {
        self.proof.is_some()
    }

    /// Whether a name of which nothing is known stays unanswered since then. Each is told once.
    pub(super) fn take_open(&mut self, asked: Instant) -> Vec<Name> {
        if self.open_since.is_none_or(|since| since > asked) {
            return Vec::new();
        }
        let at = |name: &Name| self.names.get(name).map(|asked| asked.at);
        let since = self.open.iter().filter_map(at).min();
        if since.is_none_or(|since| since > asked) {
            self.open_since = since;
            return Vec::new();
        }
        self.open_since = None;
        self.open.drain().collect()
    }

    /// No earlier than since when such a name is unanswered.
    pub(super) const fn open_since(&self) -> Option<Instant> {
        self.open_since
    }

    /// Whether nothing more can be a part of the answer.
    pub(super) const fn is_over(&self) -> bool {
        self.arrival.is_over()
    }

    /// Notes which of what is held and was not sent again is in doubt from here on. It may still come.
    pub(super) fn note_late(&mut self, is_late: impl Fn(&Name) -> bool) -> HashSet<Name> {
        let late: HashSet<Name> = self.unseen.iter().filter(|name| is_late(name)).cloned().collect();
        self.unseen.retain(|name| !late.contains(name));
        self.late.extend(late.iter().cloned());
        late
    }

    /// Takes what is held and was not sent again.
    pub(super) fn take_unseen(&mut self) -> HashSet<Name> {
        std::mem::take(&mut self.unseen)
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(super) fn shift(&mut self, pause: Duration, now: Instant) {
        let later = |at: Instant| (at + pause).min(now);
        self.arrival = self.arrival.shifted(pause, now);
        for incomplete in self.incomplete.values_mut() {
            incomplete.arrival = incomplete.arrival.shifted(pause, now);
        }
        for asked in self.names.values_mut() {
            asked.at = match asked.awaited {
                Awaited::Until => asked.at + pause,
                Awaited::Answer | Awaited::No => later(asked.at),
            };
        }
        self.suspect_since = self.suspect_since.map(later);
        self.open_since = self.open_since.map(later);
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let collections = self.incomplete.values();
        let collections = collections.filter_map(|incomplete| incomplete.arrival.deadline(settings)).min();
        // All that is asked for has to be sent before silence says anything of it.
        let arrival = self.arrival.deadline(settings).filter(|_| self.pending.is_empty());
        arrival.into_iter().chain(collections).min()
    }

    /// Whether parts of an answer are awaited.
    pub(super) const fn awaits_more(&self) -> bool {
        !matches!(self.arrival, Arrival::Idle | Arrival::Complete)
    }

    /// Whether everything that is wanted has been asked for.
    pub(super) fn has_asked(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next request that brings the origin closer to the target, and whether another has to follow.
    pub(super) fn changes(
        &mut self,
        target: &Target<'_>,
        doubts: &Doubts,
        wanted: &dyn Fn(&Name) -> bool,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        self.dirty = false;
        self.only = target.is_only;
        let mut request = DeltaDiscoveryRequest::default();
        let left_wildcard = self.leave_wildcard(target, &mut request);
        let cut = self.exchange_names(target, doubts, wanted, &mut request);
        let is_new = target.view == Some(View::Wildcard) && self.wildcard.is_none();
        let join = is_new && !left_wildcard && !target.wildcard_waits;
        if join {
            self.join_wildcard(target, doubts, &mut request);
        }
        let empty = !join
            && request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty()
            && request.resource_locators_subscribe.is_empty()
            && request.resource_locators_unsubscribe.is_empty();
        ((!empty).then_some(request), cut || (left_wildcard && is_new))
    }

    /// Whether the wildcard was let go, and the origin is still to be told.
    pub(super) fn leaves_wildcard(&self) -> bool {
        self.wildcard == Some(true)
    }

    /// The origin was asked for the wildcard on this stream in the words of these clients, for others: its answer is for both.
    pub(super) fn share_wildcard(&mut self, of: &Self, held: impl Iterator<Item = Name>) {
        if of.covers_wildcard() {
            self.wildcard = Some(false);
            self.arrival = of.arrival;
            self.unseen = held.filter(|name| of.unseen.contains(name)).collect();
        }
    }

    fn leave_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) -> bool {
        let leave = self.leaves_wildcard();
        if leave {
            // A wildcard that was forgotten is left and joined again in requests of their own: no document says how a
            // server is to treat a second subscribe to it.
            target.unsubscribe(Name::WILDCARD, request);
            self.wildcard = None;
        }
        leave
    }

    fn join_wildcard(&mut self, target: &Target<'_>, doubts: &Doubts, request: &mut DeltaDiscoveryRequest) {
        self.wildcard = Some(false);
        if self.started || !target.fresh || !target.alone {
            target.subscribe(Name::WILDCARD, request);
        }
        // Otherwise the request stays empty: the form that every server understands (R-Up-05).
        let mut quiet_at = None;
        if !self.started {
            self.claim_members(target, doubts, request);
            // Members that others have claimed in this request need not come again.
            let is_confirmed = self.unseen.is_empty()
                && !target.claimed.is_empty()
                && target.snapshot.completeness() == Completeness::Complete;
            quiet_at = is_confirmed.then(|| target.now + target.settings.settle_max);
        }
        let mut hold = Duration::ZERO;
        if target.beside {
            // A response may be for the others alone.
            self.nothing_at = Some(target.now + 2 * target.settings.locator_timeout);
            hold = target.settings.settle_max;
        }
        self.started = true;
        self.arrival = Arrival::asked(target.now, quiet_at, hold);
    }

    /// Tells the versions of the members that are held, as far as they fit; those in doubt first. The others have to come
    /// again if they are still there.
    fn claim_members(&mut self, target: &Target<'_>, doubts: &Doubts, request: &mut DeltaDiscoveryRequest) {
        let mut room = VERSIONS_BYTES;
        let doubt = |held: &Arc<Resource>| doubts.get(View::Wildcard, held.name());
        let is_doubted = |held: &&Arc<Resource>| doubt(held).is_some();
        let members = || target.snapshot.members();
        for held in members().filter(is_doubted).chain(members().filter(|held| !is_doubted(held))) {
            let name = held.name().as_str();
            let claim = target.claim(View::Wildcard, held).filter(|_| target.tells_version(doubt(held)));
            let bytes = claim.map_or(usize::MAX, |version| name.len() + version.len() + 10);
            match claim {
                Some(version) if bytes <= room => {
                    room -= bytes;
                    request.initial_resource_versions.insert(name.to_owned(), version.to_owned());
                }
                _ if target.is_claimed(held) => {}
                _ => drop(self.unseen.insert(held.name().clone())),
            }
        }
        if self.unseen.is_empty() {
            self.keep_back(target, members().map(|held| (held, doubt(held))), request);
            self.all_claimed = self.unseen.is_empty() && target.snapshot.member_count() > 0;
        }
        let is_claimed =
            |held: &&Arc<Resource>| request.initial_resource_versions.contains_key(held.name().as_str());
        self.claimed = members().filter(is_claimed).map(|held| held.name().clone()).collect();
    }

    /// Keeps back the version of one resource, the smallest, where all were claimed: an origin that has to say nothing at
    /// all, because every version is current, could not be told from one that hangs. What is in doubt is claimed, unless
    /// there is nothing else.
    fn keep_back<'r>(
        &mut self,
        target: &Target<'_>,
        held: impl Iterator<Item = (&'r Arc<Resource>, Option<Doubt>)>,
        request: &mut DeltaDiscoveryRequest,
    ) {
        if target.is_last {
            // With all versions told, an origin that wakes up can say on this stream what is gone.
            return;
        }
        let claimed = held.filter(|(held, doubt)| {
            let is_settled = doubt.is_none_or(Doubt::was_told);
            is_settled && request.initial_resource_versions.contains_key(held.name().as_str())
        });
        let smallest =
            claimed.min_by_key(|(held, doubt)| (doubt.is_some(), held.delta_entry().len(), held.name()));
        if let Some(name) = smallest.map(|(held, _)| held.name().clone()) {
            request.initial_resource_versions.remove(name.as_str());
            if let Some(asked) = self.names.get_mut(&name) {
                asked.awaited = Awaited::Answer;
            }
            self.unseen.insert(name.clone());
            self.kept_back = Some(name.clone());
            if target.is_only {
                let is_open = |name: &&Name| {
                    self.names.get(*name).is_some_and(|asked| asked.awaited == Awaited::Answer)
                };
                let open = self.open.iter().filter(is_open).cloned().collect();
                let claims = !request.initial_resource_versions.is_empty();
                self.proof = Some(Proof::Asked { kept_back: name, open, claims });
            }
        }
    }

    /// Puts names to leave and to join into the request; returns whether some did not fit.
    fn exchange_names(
        &mut self,
        target: &Target<'_>,
        doubts: &Doubts,
        wanted: &dyn Fn(&Name) -> bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> bool {
        let named = target.view == Some(View::Named);
        let mut joined = false;
        let first = !self.started;
        let mut room = room(first && target.fresh && target.snapshot.holds_anything());
        if first && named && !doubts.is_empty() {
            // The first request has room for some versions only. Those of what is in doubt go into it before all others, so
            // that the origin can say that it is gone.
            let is_doubted = |name: &&Name| wanted(name) && doubts.get(View::Named, name).is_some();
            let names: Vec<Name> = self.pending.iter().filter(is_doubted).cloned().collect();
            for name in names {
                if room > 0 {
                    self.pending.remove(&name);
                    joined = true;
                    room = room.saturating_sub(self.ask_for(target, doubts, wanted, name, first, request));
                }
            }
        }
        let mut last = self.cut_at.take();
        while room > 0
            && let Some(name) = self.next_pending(last.as_ref())
        {
            last = Some(name.clone());
            let asked = self.names.get(&name);
            if !(named && wanted(&name)) {
                self.incomplete.remove(&name);
                if let Some(asked) = take_out(&mut self.names, &name) {
                    self.spend(&name, asked, target);
                    room = room.saturating_sub(target.unsubscribe(name.as_str(), request));
                }
            } else if asked.is_some_and(|asked| asked.repeated && !asked.dropped) {
                if let Some(asked) = self.names.get_mut(&name) {
                    asked.repeated = false;
                }
                room = room.saturating_sub(target.subscribe(name.as_str(), request));
            } else if asked.is_none_or(|asked| asked.dropped) {
                joined = true;
                room = room.saturating_sub(self.ask_for(target, doubts, wanted, name, first, request));
            }
        }
        let cut = !self.pending.is_empty();
        self.cut_at = last.filter(|_| cut);
        if joined {
            self.started = true;
            self.arrival = self.arrival.asked_more(target.now);
            if first {
                self.start_names(target, doubts, wanted, request);
            }
        }
        if self.names.is_empty() && self.wildcard.is_none() {
            self.arrival = Arrival::Idle;
            self.unseen.clear();
            self.late.clear();
        }
        cut
    }

    /// Subscribes to a name; returns the bytes that this takes.
    fn ask_for(
        &mut self,
        target: &Target<'_>,
        doubts: &Doubts,
        wanted: &dyn Fn(&Name) -> bool,
        name: Name,
        first: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        let bytes = target.subscribe(name.as_str(), request);
        let trusts = first && target.tells_version(doubts.get(View::Named, &name));
        bytes + self.join_name(target, wanted, name, trusts, request)
    }

    /// Remembers a name that is let go, if the origin sent it, or the answer may still be on its way. Names that do not exist
    /// would cost a stream each time that somebody asks for them.
    fn spend(&mut self, name: &Name, asked: Asked, target: &Target<'_>) {
        const ON_ITS_WAY: Duration = Duration::from_secs(30);
        if !asked.heard && asked.at + ON_ITS_WAY <= target.now {
            return;
        }
        // An origin that reads locators answers each of them.
        if self.all_spent || !target.parameters.is_empty() {
            return;
        }
        self.remember_spent(name.clone());
    }

    /// Takes the pending name that comes after this one: names have their turn, even if earlier ones are asked for again.
    fn next_pending(&mut self, last: Option<&Name>) -> Option<Name> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.pending.range::<Name, _>((after, Bound::Unbounded)).next();
        let next = next.or_else(|| self.pending.first())?.clone();
        self.pending.take(&next)
    }

    /// Notes a name as asked for; returns the bytes that its version took.
    fn join_name(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: Name,
        trusts: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        let bytes = if Collection::named(name.as_str()).is_some() {
            self.join_collection(target, wanted, &name, trusts, request)
        } else {
            let held = trusts.then(|| target.version_held(name.as_str())).flatten();
            held.map_or(0, |(own, version)| {
                let bytes = own.len() + version.len() + 8;
                request.initial_resource_versions.insert(own, version);
                bytes
            })
        };
        let (awaited, at) = match bytes {
            0 if !target.claimed.contains_key(name.as_str()) => (Awaited::Answer, target.now),
            _ => (Awaited::Until, target.now + target.settings.settle_max),
        };
        let before = self.names.get(&name);
        let heard = before.is_some_and(|asked| asked.heard);
        if awaited == Awaited::Answer && target.full_state && target.is_only {
            let entry = target.snapshot.get(name.as_str());
            if entry.is_none_or(|entry| matches!(entry.named(), Named::Unknown)) {
                self.open.insert(name.clone());
                self.open_since.get_or_insert(target.now);
            }
        }
        let is_spent = heard
            || self.all_spent
            || (!self.spent.is_empty() && self.spent.remove(&name))
            || (target.is_asked_for)(name.as_str());
        if is_spent && awaited == Awaited::Answer {
            self.suspects.insert(name.clone());
            self.suspect_since.get_or_insert(target.now);
        }
        // The origin knows that a claimed resource is held, just as one that it has sent.
        let heard = heard || bytes > 0;
        self.names.insert(name, Asked { at, awaited, dropped: false, heard, repeated: false });
        bytes
    }

    /// Notes a collection as not complete yet; returns the bytes that the versions of its members took.
    fn join_collection(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: &Name,
        trusts: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        // A member that is asked for by its own name too is claimed and doubted by that.
        let members = || target.snapshot.members_of(name).filter(|member| !wanted(member.name()));
        let versions =
            || members().filter_map(|held| Some((held.name().as_str(), target.claim(View::Named, held)?)));
        let all: usize = versions().map(|(name, version)| name.len() + version.len() + 8).sum();
        let (mut bytes, mut quiet_at, mut unseen) = (0, None, HashSet::default());
        if trusts && (1..=VERSIONS_BYTES).contains(&all) {
            let versions = versions().map(|(name, version)| (name.to_owned(), version.to_owned()));
            request.initial_resource_versions.extend(versions);
            quiet_at = Some(target.now + target.settings.settle_max);
            bytes = all;
        } else {
            unseen =
                members().filter(|held| !target.is_claimed(held)).map(|held| held.name().clone()).collect();
        }
        let arrival = Arrival::asked(target.now, quiet_at, Duration::ZERO);
        self.incomplete.insert(name.clone(), Incomplete { arrival, unseen });
        bytes
    }

    /// Notes which of the names that are held were not claimed: they have to come again if they are still there.
    fn start_names(
        &mut self,
        target: &Target<'_>,
        doubts: &Doubts,
        wanted: &dyn Fn(&Name) -> bool,
        request: &mut DeltaDiscoveryRequest,
    ) {
        let is_unclaimed = |name: &&Name| {
            let awaited = self.names.get(*name).map(|asked| asked.awaited);
            awaited != Some(Awaited::Until)
                && wanted(name)
                && target.snapshot.held(View::Named, name.as_str()).is_some()
        };
        self.unseen = self.names.keys().chain(&self.pending).filter(is_unclaimed).cloned().collect();
        if self.unseen.is_empty() && self.incomplete.is_empty() {
            // A name that is an alias is answered under another one.
            let held: Vec<Arc<Resource>> = self
                .names
                .keys()
                .filter_map(|name| {
                    target.snapshot.held(View::Named, name.as_str()).filter(|held| held.name() == name)
                })
                .cloned()
                .collect();
            let held = held.iter().map(|held| (held, doubts.get(View::Named, held.name())));
            self.keep_back(target, held, request);
            self.all_claimed = self.unseen.is_empty() && !request.initial_resource_versions.is_empty();
        }
        if !self.unseen.is_empty() || self.all_claimed {
            self.arrival = Arrival::asked(target.now, None, Duration::ZERO);
        }
    }
}

impl Target<'_> {
    /// Whether the version of what is held is told. A sweep tells none, but where only the origin itself can settle what
    /// silence has left open: once after a silence, since many origins say of no version that it is gone (O3), or whether
    /// there is more.
    fn tells_version(&self, doubt: Option<Doubt>) -> bool {
        let sweeps = self.settings.reconcile == Reconcile::Sweep;
        let tells = match doubt {
            _ if !sweeps => true,
            Some(Doubt::Silence) => true,
            Some(Doubt::Missing) => false,
            Some(Doubt::Told | Doubt::Unanswered) | None => self.proves,
        };
        self.fresh && tells
    }

    /// Puts a name into a request; returns the bytes that it takes.
    fn subscribe(&self, name: &str, request: &mut DeltaDiscoveryRequest) -> usize {
        let lists = (&mut request.resource_names_subscribe, &mut request.resource_locators_subscribe);
        self.put(name, lists)
    }

    fn unsubscribe(&self, name: &str, request: &mut DeltaDiscoveryRequest) -> usize {
        let lists = (&mut request.resource_names_unsubscribe, &mut request.resource_locators_unsubscribe);
        self.put(name, lists)
    }

    fn put(&self, name: &str, (names, locators): (&mut Vec<String>, &mut Vec<ResourceLocator>)) -> usize {
        if self.parameters.is_empty() {
            names.push(name.to_owned());
            return name.len() + 4;
        }
        let pairs = || self.parameters.iter();
        let dynamic_parameters = pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        locators.push(ResourceLocator { name: name.to_owned(), dynamic_parameters });
        name.len() + 8 + pairs().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>()
    }

    /// The version of what is held that can be told to the origin: versions go by names alone (R-DP-14).
    fn claim<'r>(&self, view: View, held: &'r Resource) -> Option<&'r str> {
        held.origin_version().filter(|_| held.constraints().is_none() && (self.is_shared)(view, held))
    }

    /// Whether others have claimed it, so that it need not come again.
    pub(super) fn is_claimed(&self, held: &Resource) -> bool {
        self.claimed.contains_key(held.name().as_str())
    }

    /// The version under which the origin knows what it sent by this name, with the name under which it knows it: an
    /// alias has no version. What was not kept is not held (R-Up-03).
    fn version_held(&self, name: &str) -> Option<(String, String)> {
        let held = self.snapshot.held(View::Named, name).filter(|held| held.form() == Form::Whole)?;
        Some((held.name().to_string(), self.claim(View::Named, held)?.to_owned()))
    }
}
