//! Questions that a response answers.

use foldhash::HashSet;

use super::super::aliases;
use super::super::quiet_clock::QuietInstant;
use super::super::response::{DecodedResponse, ErrorReport, ReceivedResource, Removed};
use super::super::stream_subscription::StreamSubscription;
use super::coverage::{aliases_of, concerns, covers, is_of_another, is_resource};
use super::{Asking, Topic};
use crate::cache::{Snapshot, View};
use crate::resource::{Name, Parameters};

/// Relation of a response to the questions of a topic.
#[derive(Default)]
struct Findings {
    /// Whether it answers a question, or holds what the subscription covers.
    concerned: bool,
    /// Whether it brings resources that are new to the set. A response without them is no part of the answer that is awaited.
    brings_news: bool,
}

/// A topic that goes through a response.
struct Hearing<'t> {
    parameters: &'t Parameters,
    borrowed: &'t HashSet<Name>,
    subscription: &'t mut StreamSubscription,
    asking: Asking,
    snapshot: &'t Snapshot,
    now: QuietInstant,
    /// Whether parts of an answer are awaited.
    awaits: bool,
    found: Findings,
}

impl Hearing<'_> {
    /// Whether the topic asks by name: there the first word about a name is a part of the answer to all of them.
    fn is_by_name(&self) -> bool {
        self.asking.view == View::Named
    }

    fn covers(&self, name: &str) -> bool {
        covers(self.subscription, self.borrowed, self.asking.view, name)
    }

    fn is_new_member(&self, name: &str) -> bool {
        self.asking.view == View::Wildcard && self.snapshot.held(View::Wildcard, name).is_none()
    }

    fn hear_resource(&mut self, heard: &mut ReceivedResource<'_>) {
        if !heard.matches(self.parameters) && heard.is_understood() {
            return;
        }
        let others = aliases_of(self.subscription, self.asking, self.snapshot, heard);
        let is_own = self.covers(&heard.name) && is_resource(self.asking.view, &heard.name);
        let own = is_own.then_some(&*heard.name);
        for name in own.into_iter().chain(others.iter().map(Name::as_str)) {
            self.found.concerned = true;
            heard.covered = true;
            // Held, not claimed, and not sent again before: an answer, however late it comes.
            let was_unheard = self.subscription.saw(name);
            let is_heartbeat = heard.envelope.body.is_none() && heard.envelope.ttl.is_some();
            let is_lacked = self.is_by_name() && self.snapshot.held(View::Named, name).is_none();
            if is_heartbeat && is_lacked && self.subscription.awaits_since(name).is_some() {
                // It exists, and this is no answer.
                continue;
            }
            let answers = self.subscription.heard(name, is_lacked, self.now);
            heard.answers |= answers || was_unheard == Some(false);
            let is_first = was_unheard.is_some() || self.is_new_member(name);
            self.found.brings_news |= self.awaits && (is_first || (self.is_by_name() && answers));
        }
    }

    fn hear_removal(&mut self, removed: &mut Removed<'_>) {
        if is_of_another(self.subscription, removed) {
            return;
        }
        let is_concerned =
            self.covers(&removed.name) && concerns(removed, self.asking.view, self.snapshot, self.parameters);
        if is_concerned {
            let answers = self.subscription.heard(&removed.name, false, self.now);
            let is_first = self.subscription.saw(&removed.name).is_some();
            self.found.brings_news |= self.awaits && (is_first || (self.is_by_name() && answers));
        }
        let has_aliases = || !aliases::held_by(self.subscription, self.snapshot, &removed.name).is_empty();
        if is_concerned || (self.is_by_name() && has_aliases()) {
            self.found.concerned = true;
            removed.covered = true;
        }
    }

    fn hear_error(&mut self, report: &mut ErrorReport<'_>) {
        // The wildcard as a whole has no errors (R-Err-05).
        let is_reportable = &*report.name != Name::WILDCARD && self.covers(&report.name);
        if is_reportable && report.matches(self.parameters) {
            self.found.concerned = true;
            self.subscription.heard(&report.name, false, self.now);
            self.found.brings_news |= self.awaits && self.subscription.saw(&report.name).is_some();
            // Clients of the wildcard are told of no errors (R-Err-05).
            report.covered |= self.is_by_name() || report.failure.is_not_found();
        }
    }
}

impl Topic {
    /// Notes which of its questions a response answers, and which parts of the response it covers. Returns whether there
    /// was any of either.
    pub(in crate::upstream) fn hear(
        &mut self,
        asking: Asking,
        reading: &mut DecodedResponse<'_>,
        snapshot: &Snapshot,
        (is_only, understood): (bool, bool),
        now: QuietInstant,
    ) -> bool {
        let Some(subscription) = &mut self.subscriptions[asking.view as usize] else { return false };
        let mut hearing = Hearing {
            parameters: &self.parameters,
            borrowed: &self.borrowed,
            awaits: subscription.awaits_more(),
            subscription,
            asking,
            snapshot,
            now,
            found: Findings {
                concerned: is_only || reading.is_empty() || reading.is_whole,
                ..Findings::default()
            },
        };
        reading.resources.iter_mut().for_each(|heard| hearing.hear_resource(heard));
        reading.removed.iter_mut().for_each(|removed| hearing.hear_removal(removed));
        reading.reports.iter_mut().for_each(|report| hearing.hear_error(report));
        let Hearing { subscription, found, .. } = hearing;
        let Findings { concerned, brings_news } = found;
        // A relay cuts an answer by its size, and says so.
        let is_part = reading.is_part && asking.habits.is_relay;
        // An origin that does not read locators may take a wildcard of them for one without.
        let has_members = || !reading.resources.is_empty() || subscription.has_begun();
        let is_plain = asking.is_plain || self.parameters.is_empty();
        let understood = is_plain || understood || (asking.view == View::Wildcard && has_members());
        // Parts that came for others say nothing of how far the answer to this one has come.
        if concerned {
            subscription.arrived(now, brings_news, is_part);
        }
        subscription.hear_end(reading.answers_end_mark, reading.is_whole, understood);
        concerned
    }
}
