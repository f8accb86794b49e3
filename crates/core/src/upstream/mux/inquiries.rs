//! Inquiries: when to ask, and the conclusions.
//!
//! Unanswered names are asked for, a few times on each stream. A set that may lack something, or
//! that a client waits for, is counted. An answer about names is applied as if it came on the live
//! stream, for names that are still unanswered there.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;

use super::super::StreamId;
use super::super::inquiry::Answer;
use super::super::names::REQUEST_BYTES;
use super::super::quiet_clock::QuietInstant;
use super::super::response;
use super::super::topic::OriginTraits;
use super::Mux;
use crate::cache::{Protocol, View};
use crate::proto::DeltaDiscoveryResponse;
use crate::resource::{Name, TypeUrl};

impl Mux {
    /// Next question: type, whether its set is counted, and when. A relay is never asked: it
    /// reports by itself, and its SotW state for a newcomer may not be whole.
    fn next_question(&self) -> Option<(TypeUrl, bool, QuietInstant)> {
        let open = self.streams[StreamId::Primary as usize].as_ref()?;
        if open.transfer_goes_on || self.traits.is_relay {
            return None;
        }
        let due = self.topic_sets.iter().flat_map(|(type_url, topic_set)| {
            let names = topic_set.names_overdue(&self.settings);
            let census = topic_set.census_since(&self.settings);
            [(false, names), (true, census)].into_iter().filter_map(|(is_census, due)| {
                let due = due?;
                let subject = (type_url.clone(), is_census);
                let at = self.inquiries.not_before(&subject, due);
                Some((due, (subject.0, is_census, at)))
            })
        });
        // Of several, the one that has been due for longest.
        due.min_by_key(|(due, (.., at))| (*at, *due)).map(|(_, question)| question)
    }

    /// Time at which an inquiry is next due, or given up.
    pub(super) fn next_inquiry(&self) -> Option<Instant> {
        let next = || self.next_question().map(|(.., at)| at);
        self.inquiries.deadline().or_else(next).map(|at| self.clock.when(at))
    }

    /// Whether a stream must be open for an inquiry. Close it once this is false.
    pub const fn has_inquiry(&self) -> bool {
        self.inquiries.is_open()
    }

    /// Begins an inquiry that is due. Returns the protocol of its stream and the first request.
    pub fn begin_inquiry(&mut self, now: Instant) -> Option<(Protocol, Bytes)> {
        self.update_clock(now);
        let now = self.clock.at(now);
        let (type_url, is_census, _) =
            self.next_question().filter(|(.., at)| *at <= now && !self.inquiries.is_open())?;
        let topic_set = self.topic_sets.get_mut(&type_url)?;
        let names = if is_census {
            BTreeSet::new()
        } else {
            topic_set.take_overdue(&self.settings, REQUEST_BYTES, now)
        };
        if names.is_empty() && !is_census {
            return None;
        }
        self.counters.inquiries.add(1);
        let protocol = if self.traits.speaks_sotw { Protocol::Sotw } else { Protocol::Delta };
        Some(self.inquiries.begin(type_url, names, (&self.settings.node, protocol), now))
    }

    pub fn inquiry_lost(&mut self) {
        self.inquiries.abandon();
    }

    /// Notes that the control plane does not serve the protocol of an inquiry, or is a relay.
    pub fn inquiry_refused(&mut self, now: Instant) {
        if self.inquiries.refuse() {
            self.set_traits(OriginTraits { refuses_census: true, ..self.traits });
            self.on_deadline(now);
        }
    }

    /// Applies a message on the stream of an inquiry.
    pub fn on_inquiry_message(&mut self, message: Bytes, now: Instant) {
        self.update_clock(now);
        match self.inquiries.take_answer(message) {
            Some((type_url, Answer::Census(names))) => {
                let Some(topic_set) = self.topic_sets.get_mut(&type_url) else { return };
                let changes = topic_set.apply_census(&names, self.writer.cache());
                if changes.iter().any(|(_, change)| change.wildcard_known.is_some()) {
                    self.inquiries.was_useful(&(type_url.clone(), true));
                }
                self.apply(&type_url, changes, now);
                self.tidy(&type_url);
            }
            Some((type_url, Answer::Names(response, names))) => {
                self.apply_inquiry(&type_url, &response, &names, now);
            }
            None => {}
        }
        self.tick(now);
    }

    /// Applies an answer about unanswered names. Names in `ended` that it does not mention do not
    /// exist. An unreadable response is ignored.
    fn apply_inquiry(
        &mut self,
        type_url: &TypeUrl,
        response: &DeltaDiscoveryResponse,
        ended: &BTreeSet<Name>,
        now: Instant,
    ) {
        let Ok(mut reading) = response::read(response, type_url, self.settings.tuning.resource_errors) else {
            return;
        };
        self.inquiries.was_useful(&(type_url.clone(), false));
        let Some(topic_set) = self.topic_sets.get_mut(type_url) else { return };
        let Some(stream) = topic_set.homes[View::Named as usize] else { return };
        reading.retain_answers(ended, |name| topic_set.awaits_plainly(name));
        if !reading.is_empty() {
            reading.mark(if self.traits.speaks_sotw { "" } else { &self.mark });
            let (changes, _) = topic_set.apply_response(
                stream,
                reading,
                self.writer.cache(),
                &self.counters,
                self.clock.moment(now),
            );
            self.apply(type_url, changes, now);
            self.tidy(type_url);
        }
    }
}
