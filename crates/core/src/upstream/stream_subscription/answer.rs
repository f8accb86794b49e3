//! Answer of the origin, as far as it has come.

use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};

use super::super::Settings;
use super::super::arrival::{Arrival, News};
use super::proof::{Evidence, Proof};
use super::{Asked, Awaited, StreamSubscription, Suspect};
use crate::cache::Completeness;
use crate::resource::{Collection, Name};

impl StreamSubscription {
    /// The origin said something of a name; `is_new` tells whether that is a resource which was not held. Returns whether it answers
    /// us.
    pub(in crate::upstream) fn heard(&mut self, name: &str, is_new: bool, now: Instant) -> bool {
        if self.wildcard.is_some() {
            return self.expects_members();
        }
        let of_collection = self.heard_member(name, is_new, now);
        of_collection | self.answered(name, now)
    }

    /// Whether it asks for the wildcard, and resources are its answer.
    pub(in crate::upstream) fn expects_members(&self) -> bool {
        self.wildcard.is_some() && self.arrival.is_expected()
    }

    /// Whether a word about this name is the first on this stream, and the answer to a question that was never asked before. Of what was
    /// claimed any origin says that it is gone.
    pub(in crate::upstream) fn awaits_first_word(&self, name: &str) -> bool {
        let is_open = |asked: &Asked| asked.awaited == Awaited::Answer && !asked.heard;
        self.names.get(name).is_some_and(is_open)
            && !self.suspects.contains_key(name)
            && !self.claimed_open.contains(name)
    }

    /// Notes what a response brought of what is held and was not claimed; returns whether there was any.
    pub(in crate::upstream) fn saw(&mut self, name: &str) -> bool {
        self.unseen.remove(name) || self.late.remove(name)
    }

    /// Whether a response brought what was claimed, for the first time: the origin has it in another version, and that is a part
    /// of its answer. What changes once more is none.
    pub(in crate::upstream) fn saw_claimed(&mut self, name: &str) -> bool {
        self.claimed.remove(name)
    }

    /// Like [`heard`](Self::heard), of a member of a collection: until that is complete, it is an answer.
    fn heard_member(&mut self, name: &str, is_new: bool, now: Instant) -> bool {
        if self.incomplete.is_empty() {
            return false;
        }
        let Some(covering) = Collection::covering(name) else { return false };
        let Some(incomplete) = self.incomplete.get_mut(covering.as_str()) else { return false };
        let is_news = incomplete.unseen.remove(name) || is_new;
        incomplete.arrival = incomplete.arrival.arrived(now, News::of(is_news), false);
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
    /// that it did, and then no answer comes. A heartbeat that a link held up was made before the question came there, so the
    /// answer may be right behind it.
    pub(in crate::upstream) fn suspect(&mut self, name: &str, now: Instant) -> bool {
        let asked = self.names.get_key_value(name).filter(|(_, asked)| asked.awaited == Awaited::Answer);
        let Some((name, _)) = asked else { return false };
        if !self.suspects.contains_key(name) {
            self.suspects.insert(name.clone(), Suspect { since: now, was_let_go: false });
            self.suspect_since.get_or_insert(now);
        }
        true
    }

    /// No other stream is to be opened for a name.
    pub(in crate::upstream) fn forget_suspect(&mut self, name: &str) {
        if !self.suspects.is_empty() && self.suspects.remove(name).is_some() && self.suspects.is_empty() {
            self.suspect_since = None;
        }
    }

    /// Names that stay unanswered and that the origin may believe to have answered for, once one of them has been unanswered since
    /// then: all of these are to be asked for on another stream, and on this one nothing is expected of them any more. Names that
    /// were asked for once are none of these: many origins say nothing of what does not exist (O2). With each comes whether it was
    /// let go before, and has been unanswered for as long.
    pub(in crate::upstream) fn give_up_on_suspects(&mut self, asked: Instant) -> Vec<(Name, bool)> {
        if self.suspect_since.is_none_or(|since| since > asked) {
            return Vec::new();
        }
        let since = self.suspects.values().map(|suspect| suspect.since).min();
        let is_over = since.is_some_and(|since| since <= asked);
        self.suspect_since = since.filter(|_| !is_over);
        let given_up = if is_over { std::mem::take(&mut self.suspects) } else { HashMap::default() };
        given_up.into_iter().map(|(name, of)| (name, of.was_let_go && of.since <= asked)).collect()
    }

    /// No earlier than since when such a name is unanswered.
    pub(in crate::upstream) const fn suspect_since(&self) -> Option<Instant> {
        self.suspect_since
    }

    /// The origin said that a collection is empty: nothing more is to come.
    pub(in crate::upstream) fn heard_empty(&mut self, collection: &Name) {
        self.incomplete.remove(collection);
    }

    /// Collections of which all members have been heard by now, with those that are held and were not sent again.
    pub(in crate::upstream) fn complete(
        &mut self,
        settings: &Settings,
        now: Instant,
    ) -> Vec<(Name, HashSet<Name>)> {
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
    pub(in crate::upstream) fn arrived(&mut self, now: Instant, news: News, more_follows: bool) {
        self.arrival = self.arrival.arrived(now, news, more_follows);
    }

    /// The degree that the answer has reached by now, if it is a new one.
    pub(in crate::upstream) fn step(&mut self, settings: &Settings, now: Instant) -> Option<Completeness> {
        let degree = self.arrival.step(settings, now);
        if self.arrival.is_over() {
            self.claimed = HashSet::default();
        }
        degree
    }

    /// Since when nothing at all came of an answer that has to bring what is held and was not claimed, or may have nothing to
    /// bring.
    pub(in crate::upstream) fn missing_since(&self) -> Option<Instant> {
        let awaits = !self.unseen.is_empty() || self.all_claimed;
        self.arrival.waits_since().filter(|_| awaits && !self.missing_noted)
    }

    /// Since when nothing at all came, where that was too long.
    pub(in crate::upstream) fn given_up_since(&self) -> Option<Instant> {
        self.arrival.waits_since().filter(|_| self.missing_noted)
    }

    /// Whether this resource is held, was not claimed, and has not come again.
    pub(in crate::upstream) fn lacks(&self, name: &Name) -> bool {
        self.unseen.contains(name)
    }

    /// Resources that are held and were not claimed, while nothing came at all. They are still awaited.
    pub(in crate::upstream) fn note_missing(&mut self) -> impl Iterator<Item = &Name> {
        self.missing_noted = true;
        self.unseen.iter()
    }

    /// Whether the answer to the wildcard was followed by a short silence at least.
    pub(in crate::upstream) fn has_settled(&self) -> bool {
        self.wildcard.is_some() && self.arrival.degree() >= Completeness::Settled
    }

    /// A member that came by the wildcard has come to its end, and the origin may take it for delivered: its answer says nothing any
    /// more.
    pub(in crate::upstream) fn lapse(&mut self) {
        self.lapsed = true;
        self.proof = None;
    }

    pub(in crate::upstream) const fn has_lapsed(&self) -> bool {
        self.lapsed
    }

    /// Whether parts of an answer come, one after the other.
    pub(in crate::upstream) fn is_receiving(&self) -> bool {
        self.arrival.is_under_way() && self.has_asked()
    }

    /// Whether nothing has come of it yet.
    pub(in crate::upstream) fn awaits_first_part(&self) -> bool {
        self.arrival.waits_since().is_some() && self.has_asked()
    }

    /// The degree that the answer has reached.
    pub(in crate::upstream) const fn degree(&self) -> Completeness {
        self.arrival.degree()
    }

    /// Whether all that was held and not claimed has come again.
    pub(in crate::upstream) fn misses_nothing(&self) -> bool {
        self.unseen.is_empty()
    }

    /// Whether a response of one resource, this one, would prove that the answer is complete.
    pub(in crate::upstream) fn is_kept_back(&self, name: &str) -> bool {
        self.proof.as_ref().and_then(Proof::kept_back).is_some_and(|kept_back| kept_back.as_str() == name)
    }

    /// The resource that was kept back, where the answer has settled without it.
    pub(in crate::upstream) fn lacks_kept_back(&self) -> Option<&Name> {
        let is_settled = self.arrival.degree() >= Completeness::Settled;
        self.kept_back.as_ref().filter(|name| is_settled && self.unseen.contains(*name))
    }

    /// The response was the last of the answer to the wildcard, by the word of the origin.
    pub(in crate::upstream) fn note_whole(&mut self) {
        if !self.lapsed && self.covers_wildcard() && self.awaits_more() {
            let lacked = self.unseen.drain().chain(self.late.drain()).collect();
            let absent = HashSet::default();
            self.proof = Some(Proof::Proven(Evidence { absent, lacked, reads_versions: false }));
        }
    }

    /// A response brought what was kept back alone, or any other resource.
    pub(in crate::upstream) fn judge_proof(&mut self, is_alone: bool) {
        if let Some(proof) = &mut self.proof {
            proof.judge(is_alone);
        }
    }

    /// Whether versions were told, and nothing has come that tells whether that was all.
    pub(in crate::upstream) const fn awaits_proof(&self) -> bool {
        matches!(self.proof, Some(Proof::Asked { .. }))
    }

    /// Takes the evidence that the answer is complete. Names that were let go or answered since are in no need of it.
    pub(in crate::upstream) fn take_proof(&mut self, now: Instant) -> Option<Evidence<Vec<Name>>> {
        let Evidence { absent, lacked, reads_versions } = match self.proof.take()? {
            Proof::Proven(evidence) => evidence,
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
    pub(in crate::upstream) const fn has_claimed_all(&self) -> bool {
        self.proof.is_some()
    }

    /// Whether a name of which nothing is known stays unanswered since then. Each is told once.
    pub(in crate::upstream) fn take_open(&mut self, asked: Instant) -> Vec<Name> {
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
    pub(in crate::upstream) const fn open_since(&self) -> Option<Instant> {
        self.open_since
    }

    /// Whether nothing more can be a part of the answer.
    pub(in crate::upstream) const fn is_over(&self) -> bool {
        self.arrival.is_over()
    }

    /// Notes which of what is held and was not sent again is in doubt from here on. It may still come.
    pub(in crate::upstream) fn note_late(&mut self, is_late: impl Fn(&Name) -> bool) -> HashSet<Name> {
        let late: HashSet<Name> = self.unseen.iter().filter(|name| is_late(name)).cloned().collect();
        self.unseen.retain(|name| !late.contains(name));
        self.late.extend(late.iter().cloned());
        late
    }

    /// Takes what is held and was not sent again.
    pub(in crate::upstream) fn take_unseen(&mut self) -> HashSet<Name> {
        std::mem::take(&mut self.unseen)
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(in crate::upstream) fn shift(&mut self, pause: Duration, now: Instant) {
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
        self.suspects.values_mut().for_each(|suspect| suspect.since = later(suspect.since));
        self.suspect_since = self.suspect_since.map(later);
        self.open_since = self.open_since.map(later);
    }

    /// Whether parts of an answer are awaited.
    pub(in crate::upstream) const fn awaits_more(&self) -> bool {
        !matches!(self.arrival, Arrival::Idle | Arrival::Complete)
    }
}
