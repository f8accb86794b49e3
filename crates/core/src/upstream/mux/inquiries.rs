//! Questions on a stream of their own: when they are asked, and what follows from the answers.
//!
//! Names that stay unanswered are asked for once on each stream; a set that may lack something, or that a client waits for, is counted.
//! An answer about names is taken in as if it came on the stream that lives, as far as that has said nothing of them meanwhile.

use std::collections::BTreeSet;
use std::time::Instant;

use bytes::Bytes;

use super::super::StreamId;
use super::super::inquiry::{Answer, Inquiries};
use super::super::topic::OriginHabits;
use super::super::topic_set::snapshot;
use super::Mux;
use crate::cache::{Protocol, View};
use crate::proto::DeltaDiscoveryResponse;
use crate::resource::{Envelope, Name, Parameters, TypeUrl, normal_form};

impl Mux {
    /// Type that is to be asked about, and since when. A relay says itself what it knows, as soon as it knows it, and what it sends to a
    /// newcomer by state of the world need not be whole: it is not asked.
    fn next_question(&self) -> Option<(&TypeUrl, Instant)> {
        let open = self.streams[StreamId::Primary as usize].as_ref()?;
        if self.inquiries.is_open() || open.transfer_goes_on || self.habits.is_relay {
            return None;
        }
        let due = self.topic_sets.iter().filter_map(|(type_url, topic_set)| {
            let has_names = topic_set.topics.values().any(|topic| !topic.inquiries.is_empty());
            let is_counted = Inquiries::can_count(type_url.kind())
                && !(self.habits.refuses_census || self.habits.speaks_sotw);
            let census = || topic_set.census_since(&self.settings, open.opened).filter(|_| is_counted);
            let due = if has_names { Some(open.opened) } else { census() }?;
            Some((type_url, self.inquiries.not_before(type_url, due)))
        });
        due.min_by_key(|(_, at)| *at)
    }

    /// When an inquiry is next due, or given up.
    pub(super) fn next_inquiry(&self) -> Option<Instant> {
        self.inquiries.deadline().or_else(|| self.next_question().map(|(_, at)| at))
    }

    /// Whether a stream is to be open for an inquiry: it is closed once this does not hold any more.
    pub const fn has_inquiry(&self) -> bool {
        self.inquiries.is_open()
    }

    /// Begins an inquiry that is due; returns the protocol of its stream and the first request there.
    pub fn begin_inquiry(&mut self, now: Instant) -> Option<(Protocol, Bytes)> {
        let type_url = self.next_question().filter(|(_, at)| *at <= now)?.0.clone();
        let topic_set = self.topic_sets.get_mut(&type_url)?;
        let had_names = topic_set.topics.values().any(|topic| !topic.inquiries.is_empty());
        let names = topic_set.take_inquiries();
        if had_names && names.is_empty() {
            return None;
        }
        self.counters.inquiries.add(1);
        let protocol = if self.habits.speaks_sotw { Protocol::Sotw } else { Protocol::Delta };
        Some(self.inquiries.begin(type_url, names, (&self.settings.node, protocol), now))
    }

    /// The stream of an inquiry ended before its answer.
    pub fn inquiry_refused(&mut self, now: Instant) {
        if self.inquiries.refuse() {
            self.set_habits(OriginHabits { refuses_census: true, ..self.habits });
            let topics = self.topic_sets.values_mut().flat_map(|topic_set| topic_set.topics.values_mut());
            topics.for_each(|topic| topic.looks_again = true);
            for type_url in self.topic_sets.keys().cloned().collect::<Vec<_>>() {
                self.advance(&type_url, now);
            }
        }
    }

    /// A message came on the stream of an inquiry.
    pub fn on_inquiry_message(&mut self, message: Bytes, now: Instant) {
        self.keep_still(now);
        match self.inquiries.take_answer(message) {
            Ok(Some((type_url, Answer::Census(names)))) => {
                let is_present = |name: &str| names.contains(name);
                self.learn_census(&type_url, names.len(), is_present, now);
            }
            Ok(Some((type_url, Answer::Names(response, names)))) => {
                if names.is_some() {
                    self.inquiries.was_useful(&type_url);
                }
                self.learn_about(&type_url, response, &names.unwrap_or_default(), now);
            }
            Ok(None) => return,
            Err(_) => return self.inquiry_refused(now),
        }
        self.tick(now);
    }

    fn learn_census(
        &mut self,
        type_url: &TypeUrl,
        count: usize,
        is_present: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        let plain = Parameters::NONE;
        let Some(topic_set) = self.topic_sets.get_mut(type_url) else { return };
        let (Some(topic), Some(stream)) =
            (topic_set.topics.get_mut(&plain), topic_set.homes[View::Wildcard as usize])
        else {
            return;
        };
        let held = snapshot(self.writer.cache(), type_url, &plain);
        let present = held.members().filter(|member| is_present(member.name().as_str())).count();
        let change = topic.learn_census(stream, is_present, present == count, &held, now);
        if change.wildcard_known.is_some() {
            self.inquiries.was_useful(type_url);
        }
        self.apply(type_url, vec![(plain, change)], now);
        self.tidy(type_url);
    }

    /// Takes in what was said of names that the stream which lives has left unanswered; `ended` are those of which nothing more will
    /// be said.
    fn learn_about(
        &mut self,
        type_url: &TypeUrl,
        mut response: DeltaDiscoveryResponse,
        ended: &BTreeSet<Name>,
        now: Instant,
    ) {
        let Some(topic_set) = self.topic_sets.get(type_url) else { return };
        let Some(stream) = topic_set.homes[View::Named as usize] else { return };
        response.resources.retain(|bytes| {
            Envelope::parse(bytes, type_url).is_ok_and(|envelope| {
                let mut names = std::iter::once(envelope.name).chain(envelope.aliases());
                names.any(|name| topic_set.awaits(stream, &normal_form(name)))
            })
        });
        response.removed_resources.retain(|name| topic_set.awaits(stream, &normal_form(name)));
        response.resource_errors.clear();
        response.removed_resource_names.clear();
        self.learn_as_on(stream, type_url, &response, now);
        let Some(topic_set) = self.topic_sets.get(type_url) else { return };
        let absent = ended.iter().filter(|name| topic_set.awaits(stream, name.as_str()));
        let removed_resources = absent.map(|name| name.as_str().to_owned()).collect();
        let absent = DeltaDiscoveryResponse { removed_resources, ..DeltaDiscoveryResponse::default() };
        self.learn_as_on(stream, type_url, &absent, now);
    }
}
