//! Progress of the answer for the names.

use std::time::Duration;

use super::super::Settings;
use super::super::answer::{EndMark, Evidence, Silence, Whole};
use super::super::quiet_clock::QuietInstant;
use super::{Asked, Awaited, Names};
use crate::cache::Completeness;
use crate::resource::{Collection, Name};

impl Names {
    /// Notes that a response mentions a name. `is_new`: with a resource that was not held. Returns
    /// whether it answers the relay.
    pub(in crate::upstream) fn receive(&mut self, name: &str, is_new: bool, now: QuietInstant) -> bool {
        let of_collection = self.receive_member(name, is_new, now);
        of_collection | self.answered(name)
    }

    /// Does this for a member of a collection: any is an answer until the collection is complete.
    fn receive_member(&mut self, name: &str, is_new: bool, now: QuietInstant) -> bool {
        if self.stream.incomplete.is_empty() {
            return false;
        }
        let Some(covering) = Collection::covering(name) else { return false };
        let Some(incomplete) = self.stream.incomplete.get_mut(covering.as_str()) else { return false };
        let is_news = incomplete.unseen.remove(name) || is_new;
        incomplete.progress = incomplete.progress.arrived(now, is_news, false);
        let is_expected = incomplete.progress.is_expected();
        self.answered(&covering);
        is_expected
    }

    fn answered(&mut self, name: &str) -> bool {
        let awaits_end = self.stream.end_mark == EndMark::Asked;
        let Some(asked) = self.asked_mut(name) else { return false };
        match std::mem::replace(&mut asked.awaited, Awaited::No) {
            Awaited::No => false,
            Awaited::Answer => true,
            Awaited::Claimed => awaits_end,
        }
    }

    /// Notes that a collection is empty, and so complete.
    pub(in crate::upstream) fn receive_empty(&mut self, collection: &Name) {
        self.stream.incomplete.remove(collection);
    }

    /// Takes the collections that are complete, judged by silence.
    pub(in crate::upstream) fn complete(&mut self, settings: &Settings, now: QuietInstant) -> Vec<Name> {
        let mut complete = Vec::new();
        for (name, incomplete) in &mut self.stream.incomplete {
            if incomplete.progress.step(settings, Evidence::None, now) == Some(Completeness::Complete) {
                complete.push(name.clone());
            }
        }
        complete.iter().for_each(|name| self.receive_empty(name));
        complete
    }

    /// Notes an accepted response, which may answer the end mark. `understood` is false if the
    /// control plane may have ignored the locators: then the mark ends nothing.
    pub(in crate::upstream) fn receive_end_mark(&mut self, answers_end_mark: bool, understood: bool) {
        if answers_end_mark && self.stream.end_mark == EndMark::Asked {
            self.stream.leaves_end_mark = true;
            if understood {
                self.stream.end_mark = EndMark::Answered;
            }
        }
    }

    /// Takes the conclusions from the response that ended the first answer. Names that were let go
    /// or requested again since are excluded.
    pub(in crate::upstream) fn take_whole(&mut self) -> Option<Whole> {
        if self.stream.end_mark != EndMark::Answered {
            return None;
        }
        self.stream.end_mark = EndMark::Over;
        let mut absent = Vec::new();
        for (name, record) in &mut self.records {
            let asked = record.asked.as_mut().filter(|asked| asked.in_first && asked.is_open());
            if let Some(asked) = asked.filter(|_| Collection::named(name.as_str()).is_none()) {
                asked.awaited = Awaited::No;
                absent.push(name.clone());
            }
        }
        let is_first =
            |name: &Name| self.asked(name.as_str()).is_some_and(|asked| asked.in_first && !asked.dropped);
        let collections = self.stream.incomplete.keys().filter(|name| is_first(name));
        let collections: Vec<Name> = collections.cloned().collect();
        for name in &collections {
            let incomplete = self.stream.incomplete.remove(name);
            absent.extend(incomplete.into_iter().flat_map(|incomplete| incomplete.unseen));
            self.answered(name.as_str());
        }
        absent.sort_unstable();
        Some(Whole { absent, collections })
    }

    /// Takes names that were unanswered for `patience`, while there is room, for an inquiry. The
    /// control plane may believe that it has sent them (O1), or ignore names that do not exist
    /// (O2).
    pub(in crate::upstream) fn take_unanswered(
        &mut self,
        patience: Duration,
        room: &mut usize,
        now: QuietInstant,
    ) -> Vec<Name> {
        if self.stream.unanswered.is_none_or(|first| first + patience > now) {
            return Vec::new();
        }
        let (mut taken, mut first) = (Vec::new(), None::<QuietInstant>);
        for (name, record) in &mut self.records {
            let Some(asked) = &mut record.asked else { continue };
            if *room > 0 && asked.unanswered_since().is_some_and(|since| since + patience <= now) {
                asked.inquiries += 1;
                *room = room.saturating_sub(name.as_str().len());
                taken.push(name.clone());
            }
            first = first.into_iter().chain(asked.unanswered_since()).min();
        }
        self.stream.unanswered = first;
        taken
    }

    /// Lower bound of the time since when a name is unanswered.
    pub(in crate::upstream) const fn unanswered_from(&self) -> Option<QuietInstant> {
        self.stream.unanswered
    }

    /// Names without an answer. For claimed versions silence is an answer (R-Up-02).
    pub(in crate::upstream) fn silence(&self) -> Silence {
        let mut silence = Silence::default();
        for asked in self.records.values().filter_map(|record| record.asked.as_ref()) {
            match asked {
                Asked { dropped: true, .. } | Asked { awaited: Awaited::Claimed, .. } => {}
                Asked { awaited: Awaited::Answer, at, .. } => silence.add(*at),
                Asked { awaited: Awaited::No, .. } => silence.answered = true,
            }
        }
        silence
    }
}
