//! Parts of a response that a subscription covers, and the questions that they answer.

use super::super::aliases;
use super::super::names::Names;
use super::super::quiet_clock::QuietInstant;
use super::super::response::{DecodedResponse, ErrorReport, ReceivedResource, Removed};
use super::{Asking, Topic};
use crate::cache::{Snapshot, View};
use crate::resource::{Collection, Name, Parameters, Resource};

/// Requested aliases of a resource.
pub(super) fn aliases_of(
    names: &Names,
    asking: Asking,
    snapshot: &Snapshot,
    received: &ReceivedResource<'_>,
) -> aliases::Asked {
    if asking.view != View::Named {
        return aliases::Asked::new();
    }
    aliases::asked_by(names, snapshot, &received.envelope, &received.name)
}

/// Whether a removal answers clients with these parameters: they may see the identity, or it has no
/// constraints (R-DP-05).
pub(super) fn concerns(
    removed: &Removed<'_>,
    view: View,
    snapshot: &Snapshot,
    parameters: &Parameters,
) -> bool {
    let constraints = removed.constraints.as_ref();
    let is_held = |held: &Resource| held.constraints() == constraints;
    constraints.is_none_or(|constraints| constraints.matches(parameters))
        || snapshot.held(view, &removed.name).is_some_and(|held| is_held(held))
}

/// Whether it answers another topic, while the answer for this one is on its way.
pub(super) fn is_of_another(names: &Names, removed: &Removed<'_>) -> bool {
    removed.asked.is_some_and(|asked| names.awaits_since(&removed.name).is_some_and(|at| at != asked))
}

/// Whether a resource may have this name in a view: collections are no resources.
pub(super) fn is_resource(view: View, name: &str) -> bool {
    view == View::Wildcard || Collection::named(name).is_none()
}

impl Topic {
    /// Whether a subscription covers a name (R-Up-15).
    pub(super) fn covers(&self, view: View, name: &str) -> bool {
        match view {
            View::Wildcard => self.covers_wildcard(),
            View::Named => self.names.covers(name),
        }
    }

    /// Returns a [covered](Self::covers) name, without a new allocation if possible.
    pub(super) fn covering(&self, view: View, snapshot: &Snapshot, name: &str) -> Option<Name> {
        if !self.covers(view, name) {
            return None;
        }
        let known = snapshot.get(name).map(|entry| entry.name()).or_else(|| self.names.covered(name));
        Some(known.cloned().unwrap_or_else(|| name.into()))
    }
}

/// A topic that goes through a response.
struct ResponseMatch<'t> {
    topic: &'t mut Topic,
    asking: Asking,
    snapshot: &'t Snapshot,
    now: QuietInstant,
    /// Whether the response answers a question, or has covered parts.
    concerned: bool,
    /// Whether it brings resources that are new to the set. Otherwise it is no part of the awaited
    /// answer.
    brings_news: bool,
}

impl ResponseMatch<'_> {
    fn is_by_name(&self) -> bool {
        self.asking.view == View::Named
    }

    fn covers(&self, name: &str) -> bool {
        self.topic.covers(self.asking.view, name)
    }

    fn match_resource(&mut self, received: &mut ReceivedResource<'_>) {
        if !received.matches(&self.topic.parameters) && received.is_understood() {
            return;
        }
        let others = aliases_of(&self.topic.names, self.asking, self.snapshot, received);
        let is_own = self.covers(&received.name) && is_resource(self.asking.view, &received.name);
        let own = is_own.then_some(&*received.name);
        let is_heartbeat = received.envelope.body.is_none() && received.envelope.ttl.is_some();
        for name in own.into_iter().chain(others.iter().map(Name::as_str)) {
            self.concerned = true;
            received.covered = true;
            let is_lacked = self.snapshot.held(self.asking.view, name).is_none();
            let Topic { members, names, .. } = &mut *self.topic;
            received.answers |= match self.asking.view {
                View::Wildcard => {
                    // The first mention of a held, unclaimed member is an answer, however late.
                    let was_unheard = members.saw(name);
                    self.brings_news |= members.awaits_more() && (was_unheard.is_some() || is_lacked);
                    members.expects_members() || was_unheard == Some(false)
                }
                // A heartbeat of a resource that is not held is no answer.
                View::Named if is_heartbeat && is_lacked && names.awaits_since(name).is_some() => false,
                View::Named => names.receive(name, is_lacked, self.now),
            };
        }
    }

    /// Notes that a name does not exist.
    fn match_absence(&mut self, name: &str) {
        self.concerned = true;
        let Topic { members, names, .. } = &mut *self.topic;
        match self.asking.view {
            View::Wildcard => self.brings_news |= members.saw(name).is_some() && members.awaits_more(),
            View::Named => _ = names.receive(name, false, self.now),
        }
    }

    fn match_removal(&mut self, removed: &mut Removed<'_>) {
        if self.is_by_name() && is_of_another(&self.topic.names, removed) {
            return;
        }
        let (snapshot, parameters) = (self.snapshot, &self.topic.parameters);
        let is_concerned =
            self.covers(&removed.name) && concerns(removed, self.asking.view, snapshot, parameters);
        if is_concerned {
            self.match_absence(&removed.name);
        }
        let has_aliases = || !aliases::held_by(&self.topic.names, snapshot, &removed.name).is_empty();
        if is_concerned || (self.is_by_name() && has_aliases()) {
            self.concerned = true;
            removed.covered = true;
        }
    }

    fn match_error(&mut self, report: &mut ErrorReport<'_>) {
        // The wildcard as a whole has no errors (R-Err-05).
        let is_reportable = &*report.name != Name::WILDCARD && self.covers(&report.name);
        if is_reportable && report.matches(&self.topic.parameters) {
            self.match_absence(&report.name);
            // Clients of the wildcard receive no errors (R-Err-05).
            report.covered |= self.is_by_name() || report.failure.is_not_found();
        }
    }
}

impl Topic {
    /// Finds the questions that a response answers, and its covered parts. Returns whether there
    /// are any.
    pub(in crate::upstream) fn match_response(
        &mut self,
        asking: Asking,
        reading: &mut DecodedResponse<'_>,
        snapshot: &Snapshot,
        (is_only, understood): (bool, bool),
        now: QuietInstant,
    ) -> bool {
        let concerned = is_only || reading.is_empty() || reading.is_whole;
        let mut hearing = ResponseMatch { topic: self, asking, snapshot, now, concerned, brings_news: false };
        reading.resources.iter_mut().for_each(|received| hearing.match_resource(received));
        reading.removed.iter_mut().for_each(|removed| hearing.match_removal(removed));
        reading.reports.iter_mut().for_each(|report| hearing.match_error(report));
        let ResponseMatch { concerned, brings_news, .. } = hearing;
        let understood = asking.traits.is_plain || self.parameters.is_empty() || understood;
        match asking.view {
            View::Wildcard => {
                // A relay splits an answer by size, and says so.
                let is_part = reading.is_part && asking.traits.is_relay;
                // A control plane that does not read locators may confuse this wildcard with the
                // plain one.
                let understood = understood || !reading.resources.is_empty() || self.members.has_begun();
                // Parts for others say nothing of this answer.
                if concerned {
                    self.members.arrived(now, brings_news, is_part);
                }
                self.members.receive_end_mark(reading.answers_end_mark && understood, reading.is_whole);
            }
            View::Named => self.names.receive_end_mark(reading.answers_end_mark, understood),
        }
        concerned
    }
}
