//! Changes that a response makes to the topics of a type.

use super::super::quiet_clock::Moment;
use super::super::response::{DecodedResponse, Removed};
use super::super::topic::Asking;
use super::super::{Counters, StreamId};
use super::{Changes, TopicSet, Unusable, snapshot};
use crate::cache::{Cache, View};

const NOT_UNDERSTOOD: &str = "its constraints cannot be read (R-DP-02): it is passed on to nobody";

const AMBIGUOUS: &str =
    "more than one variant of it is for the same parameters (R-DP-04): clients see one of them";

impl TopicSet {
    /// Returns the changes of an accepted response, and its last unusable resource.
    pub(in crate::upstream) fn apply_response(
        &mut self,
        stream: StreamId,
        mut reading: DecodedResponse<'_>,
        cache: &Cache,
        counters: &Counters,
        moment: Moment,
    ) -> (Changes, Unusable) {
        let Some(view) = self.placed(stream).filter(|_| self.open[stream as usize]) else {
            return (Changes::new(), None);
        };
        let asking = Asking { view, traits: self.traits };
        let is_only = self.topics.len() == 1;
        // Without locators the answer is to the plain wildcard beside them.
        let understood = self.traits.knows_locators
            || self.traits.is_relay
            || (self.has_wildcard && view == View::Wildcard);
        self.refused.take_if(|refused| refused.ends_with(&reading));
        if self.traits.is_plain || is_only {
            reading.removed.iter_mut().for_each(|removed| removed.asked = None);
        } else {
            // Questions are answered in the order of the requests.
            let is_open =
                |removed: &&mut Removed<'_>| removed.constraints.is_none() && removed.asked.is_none();
            for removed in reading.removed.iter_mut().filter(is_open) {
                let topics = self.topics.values().filter(|_| view == View::Named);
                removed.asked = topics.filter_map(|topic| topic.names.awaits_since(&removed.name)).min();
            }
        }
        let mut answered = Vec::new();
        let mut is_answer = false;
        let mut snapshots = Vec::with_capacity(self.topics.len());
        for (parameters, topic) in &mut self.topics {
            let snapshot = snapshot(cache, &self.type_url, parameters);
            let asked = topic.members.asked_at().filter(|_| view == View::Wildcard);
            let expects = view == View::Wildcard && topic.members.expects_members();
            if topic.match_response(asking, &mut reading, &snapshot, (is_only, understood), moment.quiet) {
                answered.extend(asked);
                is_answer |= expects;
            }
            snapshots.push(snapshot);
        }
        // Variants for other parameters are no resend (R-Relay-21).
        reading.resources.iter_mut().for_each(|received| received.answers |= is_answer);
        // One response may answer all wildcards of one request, and hold nothing for some.
        self.topics.values_mut().for_each(|topic| topic.note_other_answers(&answered, moment.quiet));
        let covered = reading.resources.iter().map(|received| received.covered);
        let covered = covered.chain(reading.removed.iter().map(|removed| removed.covered));
        let covered = covered.chain(reading.reports.iter().map(|report| report.covered));
        let unrequested = covered.filter(|covered| !covered).count();
        counters.resource_errors.add(reading.reports.len() as u64);
        counters.unrequested_resources.add(unrequested as u64);
        let refused =
            || reading.resources.iter().filter(|received| received.covered && !received.is_understood());
        counters.refused_resources.add(refused().count() as u64);
        let mut unusable = refused().next().map(|received| (received.name.as_ref().into(), NOT_UNDERSTOOD));
        let mut changes = Vec::with_capacity(self.topics.len());
        for ((parameters, topic), snapshot) in self.topics.iter_mut().zip(&snapshots) {
            let change =
                topic.apply_response(asking, &self.type_url, &mut reading, snapshot, counters, moment);
            let ambiguous = topic.ambiguous.take().map(|name| (name, AMBIGUOUS));
            unusable = unusable.or(ambiguous);
            changes.push((parameters.clone(), change));
        }
        (changes, unusable)
    }
}
