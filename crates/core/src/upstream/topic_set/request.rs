//! Next request for a type, of all its topics.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prost::Message as _;

use super::super::names::room;
use super::super::quiet_clock::Moment;
use super::super::target::Target;
use super::super::topic::Topic;
use super::super::{Settings, StreamId};
use super::TopicSet;
use crate::cache::{Cache, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Name, Parameters, Resource};

impl TopicSet {
    /// Returns the next request on a stream, and whether another has to follow.
    pub(in crate::upstream) fn changes(
        &mut self,
        stream: StreamId,
        cache: &Cache,
        settings: &Settings,
        moment: Moment,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        let Some(view) = self.placed(stream) else { return (None, false) };
        let fresh = !self.started[view as usize];
        // Beside locators an empty list would not be the legacy wildcard, and some types have none.
        let has_legacy_wildcard = self.type_url.kind().has_legacy_wildcard()
            && (self.plain || self.topics.keys().all(Parameters::is_empty));
        let mut whole: Option<DeltaDiscoveryRequest> = None;
        let mut more = false;
        let mut bytes = 0;
        let unclaimed = HashMap::new();
        let snapshots: BTreeMap<Parameters, Arc<Snapshot>> = self
            .topics
            .keys()
            .map(|parameters| (parameters.clone(), self.snapshot(cache, parameters)))
            .collect();
        let speaks_sotw = self.traits.speaks_sotw;
        let is_first_of_held = fresh && snapshots.values().any(|snapshot| snapshot.holds_anything());
        let room = room(is_first_of_held, speaks_sotw);
        for (parameters, snapshot) in &snapshots {
            // A plain wildcard is requested once per stream, by all topics in one request.
            if bytes >= room && view != View::Wildcard {
                more = true;
                break;
            }
            let Some(mut topic) = self.topics.remove(parameters) else { continue };
            // A claim goes by name alone: it must be true for every topic that asks for it
            // (R-DP-14).
            let is_shared = |view, held: &Resource| {
                let asks = |topic: &Topic| match view {
                    View::Wildcard => topic.wants(view),
                    View::Named => topic.names.asks_for(held.name().as_str()),
                };
                self.topics.iter().filter(|(_, topic)| asks(topic)).all(|(other, _)| {
                    let theirs =
                        snapshots.get(other).and_then(|other| other.held(view, held.name().as_str()));
                    theirs.is_some_and(|theirs| theirs.same_content(held))
                })
            };
            let nothing = Parameters::NONE;
            let wildcard_waits = self.plain && !fresh && self.has_wildcard;
            let (provenance, refreshed) = topic.lend();
            let claimed = whole.as_ref().map_or(&unclaimed, |whole| &whole.initial_resource_versions);
            let target = Target {
                claimed,
                beside: !self.plain && snapshots.len() > 1,
                speaks_sotw,
                is_wanted: topic.wants(view),
                parameters: if self.plain { &nothing } else { parameters },
                fresh: fresh && parameters.is_empty(),
                is_first: fresh,
                has_legacy_wildcard,
                wildcard_waits,
                is_shared: &is_shared,
                provenance: &provenance,
                refreshed: &refreshed,
                snapshot,
                settings,
                moment,
            };
            let (request, again) = topic.changes(view, &target);
            topic.take_back((provenance, refreshed));
            more |= again;
            bytes += request.as_ref().map_or(0, DeltaDiscoveryRequest::encoded_len);
            match (&mut whole, request) {
                (Some(whole), Some(request)) => merge(whole, request),
                (None, request) => whole = request,
                (Some(_), None) => {}
            }
            self.topics.insert(parameters.clone(), topic);
        }
        if let Some(request) = whole.as_mut().filter(|_| self.plain && self.topics.len() > 1) {
            self.merge_plain_names(view, request);
        }
        self.started[view as usize] |= whole.is_some();
        let has_wildcard = self.plain_topics().any(Topic::covers_wildcard);
        self.has_wildcard |= has_wildcard && view == View::Wildcard;
        (whole, more)
    }

    /// Keeps each plain name once, and unsubscribes from none that another topic holds.
    fn merge_plain_names(&self, view: View, request: &mut DeltaDiscoveryRequest) {
        for names in [&mut request.resource_names_subscribe, &mut request.resource_names_unsubscribe] {
            names.sort_unstable();
            names.dedup();
        }
        request.resource_names_unsubscribe.retain(|name| {
            !self.topics.values().any(|topic| match view {
                View::Wildcard => topic.covers_wildcard(),
                View::Named => topic.names.covered(name).is_some(),
            })
        });
    }
}

fn merge(whole: &mut DeltaDiscoveryRequest, part: DeltaDiscoveryRequest) {
    whole.resource_names_subscribe.extend(part.resource_names_subscribe);
    // All topics of a first request leave its end mark.
    let is_said = |name: &String| name == Name::END_MARK && whole.resource_names_unsubscribe.contains(name);
    let unsubscribed: Vec<_> =
        part.resource_names_unsubscribe.into_iter().filter(|name| !is_said(name)).collect();
    whole.resource_names_unsubscribe.extend(unsubscribed);
    whole.resource_locators_subscribe.extend(part.resource_locators_subscribe);
    whole.resource_locators_unsubscribe.extend(part.resource_locators_unsubscribe);
    whole.initial_resource_versions.extend(part.initial_resource_versions);
}
