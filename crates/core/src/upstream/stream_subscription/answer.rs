//! Answer of the origin, as far as it has come.

use std::time::Duration;

use foldhash::HashSet;

use super::super::Settings;
use super::super::arrival::{Arrival, Evidence};
use super::super::quiet_clock::QuietInstant;
use super::{Awaited, EndMark, StreamSubscription};
use crate::cache::Completeness;
use crate::resource::{Collection, Name};

/// Conclusions from an answer that is known to be whole: whatever was asked for and is missing does not exist (R-Up-22).
#[derive(Debug)]
pub(in crate::upstream) struct Whole {
    /// Members, names and members of collections that are gone, or never were.
    pub(in crate::upstream) absent: Vec<Name>,
    /// Collections that have no more members than came.
    pub(in crate::upstream) collections: Vec<Name>,
}

impl StreamSubscription {
    /// The origin said something of a name; `is_new` tells whether that is a resource which was not held. Returns whether it answers
    /// us.
    pub(in crate::upstream) fn heard(&mut self, name: &str, is_new: bool, now: QuietInstant) -> bool {
        if self.wildcard.is_some() {
            return self.expects_members();
        }
        let of_collection = self.heard_member(name, is_new, now);
        of_collection | self.answered(name)
    }

    /// Whether it asks for the wildcard, and resources are its answer.
    pub(in crate::upstream) fn expects_members(&self) -> bool {
        self.wildcard.is_some() && self.arrival.is_expected()
    }

    /// Notes that a response speaks of a name. If that is held, and it is the first word of it, that is a part of the answer: returns
    /// whether it was claimed. What changes once more is none.
    pub(in crate::upstream) fn saw(&mut self, name: &str) -> Option<bool> {
        self.unheard.remove(name)
    }

    /// Like [`heard`](Self::heard), of a member of a collection: until that is complete, it is an answer.
    fn heard_member(&mut self, name: &str, is_new: bool, now: QuietInstant) -> bool {
        if self.incomplete.is_empty() {
            return false;
        }
        let Some(covering) = Collection::covering(name) else { return false };
        let Some(incomplete) = self.incomplete.get_mut(covering.as_str()) else { return false };
        let is_news = incomplete.unseen.remove(name) || is_new;
        incomplete.arrival = incomplete.arrival.arrived(now, is_news, false);
        let is_expected = incomplete.arrival.is_expected();
        self.answered(&covering);
        is_expected
    }

    fn answered(&mut self, name: &str) -> bool {
        let Some(asked) = self.names.get_mut(name) else { return false };
        match std::mem::replace(&mut asked.awaited, Awaited::No) {
            Awaited::No => false,
            Awaited::Answer => true,
            Awaited::Claimed => self.awaits_end() || self.arrival.is_expected(),
        }
    }

    /// The origin said that a collection is empty: nothing more is to come.
    pub(in crate::upstream) fn heard_empty(&mut self, collection: &Name) {
        self.incomplete.remove(collection);
    }

    /// Collections of which all members have been heard by now, as far as silence tells.
    pub(in crate::upstream) fn complete(&mut self, settings: &Settings, now: QuietInstant) -> Vec<Name> {
        let mut complete = Vec::new();
        for (name, incomplete) in &mut self.incomplete {
            if incomplete.arrival.step(settings, Evidence::None, now) == Some(Completeness::Complete) {
                complete.push(name.clone());
            }
        }
        complete.iter().for_each(|name| _ = self.incomplete.remove(name));
        complete
    }

    /// A response for the type was accepted that may be a part of what is awaited.
    pub(in crate::upstream) fn arrived(&mut self, now: QuietInstant, brings_news: bool, more_follows: bool) {
        self.arrival = self.arrival.arrived(now, brings_news, more_follows);
    }

    /// The degree that the answer has reached by now, if it is a new one.
    pub(in crate::upstream) fn step(
        &mut self,
        settings: &Settings,
        asked: Evidence,
        now: QuietInstant,
    ) -> Option<Completeness> {
        let evidence = self.evidence(asked);
        let degree = self.arrival.step(settings, evidence, now);
        if self.arrival.is_over() {
            self.unheard.retain(|_, is_claimed| !*is_claimed);
        }
        degree
    }

    /// Whether the origin says that the answer is whole, given what it says where it was asked for the end mark.
    pub(super) fn evidence(&self, asked: Evidence) -> Evidence {
        match asked {
            _ if !self.awaits_end() => Evidence::None,
            Evidence::Uncounted if self.lacks_any() => Evidence::Awaited,
            _ => asked,
        }
    }

    /// A member that came by the wildcard has come to its end, and the origin may take it for delivered: its answer says nothing any
    /// more.
    pub(in crate::upstream) fn lapse(&mut self) {
        (self.arrival, self.end_mark) = (Arrival::Idle, EndMark::Unasked);
    }

    /// Whether parts of an answer come, one after the other.
    pub(in crate::upstream) fn is_receiving(&self) -> bool {
        self.arrival.is_under_way() && self.has_asked()
    }

    /// A response for the type was accepted, which may answer the end mark, or be a whole state of the world. An origin that does not
    /// read locators answers the mark that was asked for beside them, and may not answer them: then it is not `understood`.
    pub(in crate::upstream) fn hear_end(&mut self, answers_end_mark: bool, is_state: bool, understood: bool) {
        if answers_end_mark && self.wildcard.is_none() && !self.names.is_empty() {
            (self.leaves_end_mark, self.dirty) = (true, true);
        }
        let is_state = is_state && self.covers_wildcard() && self.awaits_more();
        if (answers_end_mark && understood && self.awaits_end()) || is_state {
            self.end_mark = EndMark::Answered;
        }
    }

    /// Whether something that is held has not come again.
    pub(in crate::upstream) fn lacks_any(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// Since when a census of the set is due: its answer is quiet, or stays away, and the origin does not say whether that was all. A
    /// client waits for that, or something that was held has not come again.
    pub(in crate::upstream) fn census_since(
        &self,
        is_awaited: bool,
        settings: &Settings,
    ) -> Option<QuietInstant> {
        let is_open = self.awaits_end() && self.covers_wildcard() && self.has_asked();
        if !is_open || !(self.lacks_any() || (is_awaited && !self.arrival.is_over())) {
            return None;
        }
        let unanswered = self.arrival.waits_since().map(|since| since + settings.answer_timeout);
        unanswered.or_else(|| self.arrival.quiet_at(settings))
    }

    /// A census has come: the set has these names, and if `is_all_held`, all of them are held. Returns the members that are gone: they
    /// are missing from that, and from the first answer on this stream. Before that has come, what is missing leaves the question open.
    pub(in crate::upstream) fn take_census(
        &mut self,
        names: &HashSet<String>,
        is_all_held: bool,
    ) -> Vec<Name> {
        if self.end_mark != EndMark::Asked || !self.covers_wildcard() {
            return Vec::new();
        }
        self.unheard.retain(|name, _| !names.contains(name.as_str()));
        let mut gone = Vec::new();
        if self.has_begun() {
            gone.extend(self.unheard.drain().map(|(name, _)| name));
            gone.sort_unstable();
        }
        if is_all_held && self.unheard.is_empty() {
            self.end_mark = EndMark::Over;
            self.arrival = Arrival::Whole;
        }
        gone
    }

    /// Whether the origin may still say that what came was all.
    pub(in crate::upstream) fn awaits_end(&self) -> bool {
        self.end_mark == EndMark::Asked
    }

    /// Whether the answer to the first request is known to be whole.
    pub(in crate::upstream) fn is_whole(&self) -> bool {
        self.end_mark == EndMark::Over
    }

    /// Whether this member was claimed, and the answer is not over.
    pub(in crate::upstream) fn is_claimed(&self, name: &Name) -> bool {
        self.unheard.get(name) == Some(&true)
    }

    /// Takes what follows from the response that ended the answer to the first request. Names that were let go or asked for once
    /// more since are not concerned.
    pub(in crate::upstream) fn take_whole(&mut self) -> Option<Whole> {
        if self.end_mark != EndMark::Answered {
            return None;
        }
        self.end_mark = EndMark::Over;
        if self.covers_wildcard() {
            self.arrival = Arrival::Whole;
            let unheard = std::mem::take(&mut self.unheard).into_iter();
            let absent = unheard.filter(|(_, is_claimed)| !is_claimed).map(|(name, _)| name).collect();
            return Some(Whole { absent, collections: Vec::new() });
        }
        let is_absent =
            |asked: &super::Asked| asked.in_first && !asked.dropped && asked.awaited == Awaited::Answer;
        let is_named = |name: &&Name| Collection::named(name.as_str()).is_none();
        let names = self.names.iter().filter(|(_, asked)| is_absent(asked)).map(|(name, _)| name);
        let mut absent: Vec<Name> = names.filter(is_named).cloned().collect();
        for name in &absent {
            self.unheard.remove(name);
            self.answered(name.as_str());
        }
        let names = &self.names;
        let is_first = |name: &Name| names.get(name).is_some_and(|asked| asked.in_first && !asked.dropped);
        let ended: Vec<Name> = self.incomplete.keys().filter(|name| is_first(name)).cloned().collect();
        for name in &ended {
            absent.extend(self.incomplete.remove(name).into_iter().flat_map(|incomplete| incomplete.unseen));
            self.answered(name.as_str());
        }
        absent.sort_unstable();
        Some(Whole { absent, collections: ended })
    }

    /// Takes the names that have been unanswered for so long, while there is room: they are asked for on a stream of their own. The origin
    /// may believe that it has sent them here (O1), or says nothing of what does not exist (O2).
    pub(in crate::upstream) fn take_unanswered(
        &mut self,
        patience: Duration,
        room: &mut usize,
        now: QuietInstant,
    ) -> Vec<Name> {
        if self.unanswered.is_none_or(|first| first + patience > now) {
            return Vec::new();
        }
        let (mut taken, mut first) = (Vec::new(), None::<QuietInstant>);
        for (name, asked) in &mut self.names {
            if *room > 0 && asked.unanswered_since().is_some_and(|since| since + patience <= now) {
                asked.inquiries += 1;
                *room = room.saturating_sub(name.as_str().len());
                taken.push(name.clone());
            }
            first = first.into_iter().chain(asked.unanswered_since()).min();
        }
        self.unanswered = first;
        taken
    }

    /// No earlier than since when such a name is unanswered.
    pub(in crate::upstream) const fn unanswered_from(&self) -> Option<QuietInstant> {
        self.unanswered
    }

    /// Whether parts of an answer are awaited.
    pub(in crate::upstream) const fn awaits_more(&self) -> bool {
        !matches!(self.arrival, Arrival::Idle) && !self.arrival.is_over()
    }
}
