//! Questions that a response answers.

use std::time::Instant;

use foldhash::HashSet;

use super::super::Settings;
use super::super::aliases;
use super::super::arrival::News;
use super::super::response::{DecodedResponse, ErrorReport, ReceivedResource, Removed};
use super::super::stream_subscription::StreamSubscription;
use super::coverage::{aliases_of, concerns, is_covered, is_of_earlier, view_of};
use super::retries::Retries;
use super::{Absences, Placement, Topic};
use crate::cache::{Snapshot, View};
use crate::resource::{Name, Parameters};

/// Relation of a response to the questions of a topic.
#[derive(Default)]
struct Findings {
    /// Whether it answers a question, or holds what the subscription covers.
    concerned: bool,
    /// Resources that are new to the set. A response without them is no part of the answer that is awaited.
    news: News,
    brings_kept_back: bool,
    /// Whether it brings any resource but the one that was kept back.
    brings_others: bool,
    absences: Absences,
    keeps_versions: bool,
}

/// A topic that goes through a response.
struct Hearing<'t> {
    parameters: &'t Parameters,
    borrowed: &'t HashSet<Name>,
    subscription: &'t mut StreamSubscription,
    retries: &'t mut Retries,
    placed: Placement,
    snapshot: &'t Snapshot,
    settings: &'t Settings,
    now: Instant,
    /// Whether parts of an answer are awaited.
    awaits: bool,
    speaks_sotw: bool,
    found: Findings,
}

impl Hearing<'_> {
    /// Whether the topic asks by name: there the first word about a name is a part of the answer to all of them.
    fn is_by_name(&self) -> bool {
        self.placed.view == Some(View::Named)
    }

    fn is_new_member(&self, name: &str) -> bool {
        self.placed.view == Some(View::Wildcard) && self.snapshot.held(View::Wildcard, name).is_none()
    }

    /// The origin says that a name does not exist. If that is its first word about the name, it says so of others too; where it
    /// follows from a state of the world, it says nothing of names of other types.
    fn note_absence(&mut self, name: &str) {
        if self.speaks_sotw {
            return;
        }
        if self.subscription.awaits_first_word(name) && self.snapshot.get(name).is_none() {
            self.found.absences = Absences::Told;
        }
    }

    fn hear_resource(&mut self, heard: &mut ReceivedResource<'_>) {
        if !heard.matches(self.parameters) && heard.is_understood() {
            return;
        }
        let others = aliases_of(self.subscription, self.placed, self.snapshot, heard);
        let is_own = is_covered(self.subscription, self.borrowed, self.placed.view, &heard.name);
        let own = is_own.then_some(&*heard.name);
        for name in own.into_iter().chain(others.iter().map(Name::as_str)) {
            self.found.concerned = true;
            heard.covered = true;
            if heard.envelope.body.is_none() && heard.envelope.ttl.is_none() {
                self.note_absence(name);
            }
            // Held, not claimed, and not sent again before: an answer, however late it comes.
            let was_unseen = self.subscription.saw(name);
            let was_claimed = self.subscription.saw_claimed(name);
            let is_heartbeat = heard.envelope.body.is_none() && heard.envelope.ttl.is_some();
            let is_lacked = self.is_by_name() && self.snapshot.held(View::Named, name).is_none();
            if is_heartbeat && is_lacked && self.subscription.suspect(name, self.now) {
                // It exists, and is no answer.
                self.found.brings_others = true;
                continue;
            }
            let awaited = self.subscription.awaits_since(name).filter(|_| heard.envelope.body.is_some());
            let is_prompt = self.retries.came(name, awaited, self.settings.answer_timeout, self.now);
            self.found.keeps_versions |= is_prompt;
            let answers = self.subscription.heard(name, is_lacked, self.now);
            heard.answers |= answers || was_unseen;
            let is_first = was_unseen || was_claimed || self.is_new_member(name);
            self.found.news.came += usize::from(self.awaits && (is_first || (self.is_by_name() && answers)));
            let is_kept_back = self.subscription.is_kept_back(name);
            self.found.brings_kept_back |= is_kept_back;
            self.found.brings_others |= !is_kept_back;
        }
        self.found.brings_others |= !heard.covered;
        if !is_own {
            self.retries.remove(&heard.name);
        }
        if !is_own && self.parameters.is_empty() && self.is_by_name() {
            self.subscription.note_unasked(&heard.name);
        }
    }

    fn hear_removal(&mut self, removed: &mut Removed<'_>) {
        if is_of_earlier(self.subscription, removed) {
            return;
        }
        let view = view_of(self.subscription, self.borrowed, self.placed.view, &removed.name);
        let is_concerned = view.is_some_and(|view| concerns(removed, view, self.snapshot, self.parameters));
        if is_concerned {
            self.note_absence(&removed.name);
            self.retries.remove(&removed.name);
            let answers = self.subscription.heard(&removed.name, false, self.now);
            let is_first =
                self.subscription.saw(&removed.name) || self.subscription.saw_claimed(&removed.name);
            let is_news = is_first || (self.is_by_name() && answers);
            self.found.news.came += usize::from(self.awaits && is_news);
            let is_held = self.snapshot.held(View::Wildcard, &removed.name).is_some();
            self.found.news.went += usize::from(self.awaits && !is_news && is_held);
        }
        let has_aliases = || !aliases::held_by(self.subscription, self.snapshot, &removed.name).is_empty();
        if is_concerned || (self.is_by_name() && has_aliases()) {
            self.found.concerned = true;
            removed.covered = true;
        }
    }

    fn hear_error(&mut self, report: &mut ErrorReport<'_>) {
        // The wildcard as a whole has no errors (R-Err-05).
        let reportable = self.placed.view.filter(|_| &*report.name != Name::WILDCARD);
        let Some(view) = view_of(self.subscription, self.borrowed, reportable, &report.name) else { return };
        if report.matches(self.parameters) {
            self.found.concerned = true;
            if report.failure.is_not_found() {
                self.note_absence(&report.name);
            }
            self.retries.remove(&report.name);
            self.subscription.heard(&report.name, false, self.now);
            self.found.news.came += usize::from(self.awaits && self.subscription.saw(&report.name));
            // Clients of the wildcard are told of no errors (R-Err-05).
            report.covered |= view == View::Named || report.failure.is_not_found();
        }
    }
}

impl Topic {
    /// Notes which of its questions a response answers, and which parts of the response it covers. Returns whether there
    /// was any of either.
    pub(in crate::upstream) fn hear(
        &mut self,
        placed: Placement,
        reading: &mut DecodedResponse<'_>,
        settings: &Settings,
        snapshot: &Snapshot,
        is_only: bool,
        now: Instant,
    ) -> bool {
        let Some(subscription) = &mut self.subscriptions[placed.stream as usize] else { return false };
        let mut hearing = Hearing {
            parameters: &self.parameters,
            borrowed: &self.borrowed,
            awaits: subscription.awaits_more(),
            subscription,
            retries: &mut self.retries,
            placed,
            snapshot,
            settings,
            now,
            speaks_sotw: self.habits.speaks_sotw,
            found: Findings {
                concerned: is_only || reading.is_empty() || reading.is_whole,
                ..Findings::default()
            },
        };
        reading.resources.iter_mut().for_each(|heard| hearing.hear_resource(heard));
        reading.removed.iter_mut().for_each(|removed| hearing.hear_removal(removed));
        reading.reports.iter_mut().for_each(|report| hearing.hear_error(report));
        let Hearing { subscription, found, .. } = hearing;
        let Findings { concerned, news, brings_kept_back, brings_others, absences, keeps_versions } = found;
        self.habits.absences = self.habits.absences.max(absences);
        self.habits.keeps_versions |= keeps_versions;
        // A relay cuts an answer by its size, be it behind a single resource, and says so.
        let is_relay = self.habits.absences == Absences::Relay;
        let is_part = reading.is_part && is_relay;
        // Parts that came for others say nothing of how far the answer to this one has come.
        if concerned {
            let waited = subscription.given_up_since().map(|since| now.saturating_duration_since(since));
            placed.view.into_iter().for_each(|view| self.silent_streams.end(view, waited));
            subscription.arrived(now, news, is_part);
            // A relay tells another one nothing of a set that is not complete.
            let is_told = is_relay && !self.habits.speaks_sotw && !is_part && subscription.is_only();
            if (is_told || reading.is_whole) && placed.view == Some(View::Wildcard) {
                subscription.note_whole();
            }
        }
        if brings_kept_back || brings_others {
            let is_whole = !brings_others && !is_part && self.would_fill(placed.view, snapshot);
            if let Some(subscription) = &mut self.subscriptions[placed.stream as usize] {
                subscription.judge_proof(is_whole);
            }
        }
        self.habits.gives_versions |=
            reading.resources.iter().any(|heard| !heard.envelope.version.is_empty());
        let bodies = || reading.resources.iter().filter_map(|heard| heard.envelope.body);
        if bodies().nth(1).is_some() {
            self.habits.filled = self.habits.filled.max(bodies().map(<[u8]>::len).sum());
        }
        concerned
    }
}
