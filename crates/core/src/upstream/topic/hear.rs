//! Questions that a response answers.

use std::time::Instant;

use super::super::aliases;
use super::super::response::DecodedResponse;
use super::super::stream_subscription::StreamSubscription;
use super::coverage::{aliases_of, concerns, is_covered, is_of_earlier, view_of};
use super::{Absences, Placement, Topic};
use crate::cache::{Snapshot, View};
use crate::resource::Name;

impl Topic {
    /// Notes which of its questions a response answers, and which parts of the response it covers. Returns whether there
    /// was any of either.
    pub(in crate::upstream) fn hear(
        &mut self,
        placed: Placement,
        reading: &mut DecodedResponse<'_>,
        snapshot: &Snapshot,
        is_only: bool,
        now: Instant,
    ) -> bool {
        let Some(subscription) = &mut self.subscriptions[placed.stream as usize] else { return false };
        let mut concerned = is_only || reading.is_empty();
        // A response with nothing that is new to the set is no part of the answer that is awaited.
        let mut brings_news = false;
        let (mut brings_kept_back, mut brings_others) = (false, false);
        let is_new_member =
            |name: &str| placed.view == Some(View::Wildcard) && snapshot.held(View::Wildcard, name).is_none();
        // The first word about a name is a part of the answer to all of them.
        let is_by_name = placed.view == Some(View::Named);
        let awaits = subscription.awaits_more();
        // The first word about a name is that it does not exist: so the origin says it of others too.
        let tells_absence = |subscription: &StreamSubscription, name: &str| {
            subscription.awaits_first_word(name) && snapshot.get(name).is_none()
        };
        let mut absences = Absences::Untold;
        for heard in &mut reading.resources {
            if !heard.matches(&self.parameters) && heard.is_understood() {
                continue;
            }
            let others = aliases_of(subscription, placed, snapshot, heard);
            let own =
                is_covered(subscription, &self.borrowed, placed.view, &heard.name).then_some(&*heard.name);
            for name in own.into_iter().chain(others.iter().map(Name::as_str)) {
                concerned = true;
                heard.covered = true;
                let is_none = heard.envelope.body.is_none() && heard.envelope.ttl.is_none();
                if is_none && tells_absence(subscription, name) {
                    absences = Absences::Told;
                }
                // Held, not claimed, and not sent again before: an answer, however late it comes.
                let was_unseen = subscription.saw(name);
                let was_claimed = subscription.saw_claimed(name);
                let is_heartbeat = heard.envelope.body.is_none() && heard.envelope.ttl.is_some();
                let is_lacked = is_by_name && snapshot.held(View::Named, name).is_none();
                if is_heartbeat && is_lacked && subscription.suspect(name) {
                    // It exists, and is no answer.
                    brings_others = true;
                    continue;
                }
                let answers = subscription.heard(name, now);
                heard.answers |= answers || was_unseen;
                let is_first = was_unseen || was_claimed || is_new_member(name);
                brings_news |= awaits && (is_first || (is_by_name && answers));
                let is_kept_back = subscription.is_kept_back(name);
                brings_kept_back |= is_kept_back;
                brings_others |= !is_kept_back;
            }
            brings_others |= !heard.covered;
            if own.is_none() && self.parameters.is_empty() && placed.view == Some(View::Named) {
                subscription.note_unasked(&heard.name);
            }
        }
        for removed in &mut reading.removed {
            if is_of_earlier(subscription, removed) {
                continue;
            }
            let view = view_of(subscription, &self.borrowed, placed.view, &removed.name);
            let is_concerned = view.is_some_and(|view| concerns(removed, view, snapshot, &self.parameters));
            if is_concerned {
                if tells_absence(subscription, &removed.name) {
                    absences = Absences::Told;
                }
                let answers = subscription.heard(&removed.name, now);
                let is_first = subscription.saw(&removed.name) || subscription.saw_claimed(&removed.name);
                brings_news |= awaits && (is_first || (is_by_name && answers));
            }
            let named = placed.view == Some(View::Named);
            if is_concerned || (named && !aliases::held_by(subscription, snapshot, &removed.name).is_empty())
            {
                concerned = true;
                removed.covered = true;
            }
        }
        for report in &mut reading.reports {
            // The wildcard as a whole has no errors (R-Err-05).
            let reportable = placed.view.filter(|_| &*report.name != Name::WILDCARD);
            let Some(view) = view_of(subscription, &self.borrowed, reportable, &report.name) else {
                continue;
            };
            if report.matches(&self.parameters) {
                concerned = true;
                if report.failure.is_not_found() && tells_absence(subscription, &report.name) {
                    absences = Absences::Told;
                }
                subscription.heard(&report.name, now);
                brings_news |= awaits && subscription.saw(&report.name);
                // Clients of the wildcard are told of no errors (R-Err-05).
                report.covered |= view == View::Named || report.failure.is_not_found();
            }
        }
        self.habits.absences = self.habits.absences.max(absences);
        // A relay cuts an answer by its size, be it behind a single resource, and says so.
        let is_relay = self.habits.absences == Absences::Relay;
        let is_part = reading.is_part && is_relay;
        // Parts that came for others say nothing of how far the answer to this one has come.
        if concerned {
            placed.view.into_iter().for_each(|view| self.silent_streams.end(view));
            subscription.arrived(now, brings_news, is_part);
            // It tells another relay nothing of a set that is not complete.
            if is_relay && !is_part && placed.view == Some(View::Wildcard) {
                subscription.note_whole();
            }
        }
        if brings_kept_back || brings_others {
            let is_whole = !brings_others && !is_part && self.would_fill(placed.view, snapshot);
            if let Some(subscription) = &mut self.subscriptions[placed.stream as usize] {
                subscription.judge_proof(is_whole);
            }
        }
        let bodies = || reading.resources.iter().filter_map(|heard| heard.envelope.body);
        if bodies().nth(1).is_some() {
            self.habits.filled = self.habits.filled.max(bodies().map(<[u8]>::len).sum());
        }
        concerned
    }
}
