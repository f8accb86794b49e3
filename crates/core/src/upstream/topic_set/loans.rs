//! Loans between the topics of a type (R-DP-16).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::ServerId;
use super::super::topic::Topic;
use super::TopicSet;
use crate::cache::{Cache, Lease, View};
use crate::resource::{Form, Name, Parameters, Resource};

/// Resource that a topic may borrow.
pub(super) struct Loan {
    pub(super) resource: Arc<Resource>,
    pub(super) lease: Option<Lease>,
    /// Its server, if that is not the present one.
    pub(super) server: Option<ServerId>,
}

impl TopicSet {
    /// Finds a topic whose subscription keeps the resource up to date for these parameters too.
    /// Answered topics go first.
    pub(super) fn lender(&self, parameters: &Parameters, name: &Name, cache: &Cache) -> Option<Loan> {
        let answered = self.lenders(parameters, name, cache, |topic| is_answered(topic, name)).next();
        answered.or_else(|| self.lenders(parameters, name, cache, |_| true).next())
    }

    fn lenders(
        &self,
        parameters: &Parameters,
        name: &Name,
        cache: &Cache,
        is_one: impl Fn(&Topic) -> bool,
    ) -> impl Iterator<Item = Loan> {
        let others = self
            .topics
            .iter()
            .filter(move |(other, topic)| *other != parameters && topic.may_lend(name) && is_one(topic));
        let held = move |other: &Parameters, topic: &Topic| {
            let snapshot = self.snapshot(cache, other);
            let (view, text) = (View::Named, name.as_str());
            // A denied resource is not for new clients (R-Err-06).
            let held = snapshot.held(view, text).filter(|_| snapshot.denied(text).is_none());
            // Aliases and dropped bodies are requested.
            let held = held.filter(|held| held.name() == name && held.form() == Form::Whole);
            held.map(|held| Loan {
                resource: Arc::clone(held),
                lease: snapshot.lease(view, text),
                server: topic.server_of(view, name),
            })
        };
        others
            .filter_map(move |(other, topic)| held(other, topic))
            .filter(|loan| loan.resource.matches(parameters))
    }

    /// Borrowed names that no topic with `is_one` holds with the same content.
    fn unlent<'n>(
        &self,
        parameters: &Parameters,
        names: impl Iterator<Item = &'n Name>,
        cache: &Cache,
        is_one: impl Fn(&Topic, &Name) -> bool,
    ) -> Vec<(Parameters, Name)> {
        let mine = self.snapshot(cache, parameters);
        let is_lent = |name: &Name| {
            let mut lenders = self.lenders(parameters, name, cache, |topic| is_one(topic, name));
            let mine = mine.held(View::Named, name.as_str());
            mine.is_some_and(|mine| lenders.any(|theirs| theirs.resource.same_content(mine)))
        };
        names.filter(|name| !is_lent(name)).map(|name| (parameters.clone(), name.clone())).collect()
    }

    pub(in crate::upstream) fn has_loans(&self) -> bool {
        self.topics.values().any(|topic| topic.names.has_borrowed_any())
    }

    /// Requests the borrowed names that can no longer be borrowed.
    pub(in crate::upstream) fn end_loans(&mut self, names: &BTreeSet<Name>, cache: &Cache) {
        let mut ended = Vec::new();
        for (parameters, topic) in self.topics.iter().filter(|(_, topic)| topic.names.has_borrowed_any()) {
            let names = names.iter().filter(|name| topic.names.has_borrowed(name));
            ended.extend(self.unlent(parameters, names, cache, |_, _| true));
        }
        for (parameters, name) in &ended {
            self.topic(parameters).names.end_loan(name);
        }
    }
}

fn is_answered(topic: &Topic, name: &Name) -> bool {
    !topic.names.is_unconfirmed(name)
}
