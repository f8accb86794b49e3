//! Next request for a type, of all its topics.

use std::sync::Arc;

use foldhash::HashMap;
use prost::Message as _;

use super::super::names::room;
use super::super::quiet_clock::{Moment, QuietInstant};
use super::super::target::Target;
use super::super::topic::Topic;
use super::super::{Settings, StreamId};
use super::{TopicSet, snapshot};
use crate::cache::{Cache, Lease, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Form, Name, Parameters, Resource};

impl TopicSet {
    /// Returns the next request on a stream. If it is cut, the type stays [dirty](Self::is_dirty).
    pub(in crate::upstream) fn changes(
        &mut self,
        stream: StreamId,
        cache: &Cache,
        settings: &Settings,
        moment: Moment,
    ) -> Option<DeltaDiscoveryRequest> {
        let view = self.placed(stream)?;
        let fresh = !self.started[view as usize];
        // Beside locators an empty list would not be the legacy wildcard, and some types have none.
        let has_legacy_wildcard = self.type_url.kind().has_legacy_wildcard()
            && (self.traits.is_plain || self.topics.keys().all(Parameters::is_empty));
        let mut whole: Option<DeltaDiscoveryRequest> = None;
        let mut bytes = 0;
        let speaks_sotw = self.traits.speaks_sotw;
        let is_only = self.topics.len() == 1;
        let of = |parameters: &Parameters| snapshot(cache, &self.type_url, parameters);
        let is_first_of_held = fresh && self.topics.keys().any(|parameters| of(parameters).holds_anything());
        let room = room(is_first_of_held, speaks_sotw);
        for (parameters, topic) in &mut self.topics {
            // A plain wildcard is requested once per stream, by all topics in one request.
            if bytes >= room && view != View::Wildcard {
                break;
            }
            let nothing = Parameters::NONE;
            let wildcard_waits = self.traits.is_plain && !fresh && self.has_wildcard;
            let target = Target {
                beside: !(self.traits.is_plain || is_only),
                speaks_sotw,
                is_wanted: topic.wants(view),
                parameters: if self.traits.is_plain { &nothing } else { parameters },
                fresh: fresh && parameters.is_empty(),
                // A claim goes by name alone, and must be true for every topic (R-DP-14).
                tells_versions: fresh && parameters.is_empty() && is_only && !speaks_sotw,
                is_first: fresh,
                has_legacy_wildcard,
                wildcard_waits,
                outdated: HashMap::default(),
                snapshot: &of(parameters),
                room,
                settings,
                moment,
            };
            let request = topic.changes(view, target);
            bytes += request.as_ref().map_or(0, DeltaDiscoveryRequest::encoded_len);
            match (&mut whole, request) {
                (Some(whole), Some(request)) => merge(whole, request),
                (None, request) => whole = request,
                (Some(_), None) => {}
            }
        }
        if let Some(request) = whole.as_mut().filter(|_| self.traits.is_plain && self.topics.len() > 1) {
            self.merge_plain_names(view, request);
        }
        self.started[view as usize] |= whole.is_some();
        let has_wildcard = self.plain_topics().any(Topic::covers_wildcard);
        self.has_wildcard |= has_wildcard && view == View::Wildcard;
        whole
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
    // All topics of a first request ask for its end mark, and leave it.
    let add = |all: &mut Vec<String>, mut names: Vec<String>| {
        names.retain(|name| name != Name::END_MARK || !all.contains(name));
        all.append(&mut names);
    };
    add(&mut whole.resource_names_subscribe, part.resource_names_subscribe);
    add(&mut whole.resource_names_unsubscribe, part.resource_names_unsubscribe);
    whole.resource_locators_subscribe.extend(part.resource_locators_subscribe);
    whole.resource_locators_unsubscribe.extend(part.resource_locators_unsubscribe);
    whole.initial_resource_versions.extend(part.initial_resource_versions);
}

/// Resource of a topic that serves new clients with other parameters, until their own answer.
pub(super) struct Copied {
    pub(super) resource: Arc<Resource>,
    pub(super) lease: Option<Lease>,
    pub(super) is_foreign: bool,
    /// Time of that topic's request, if it was answered.
    pub(super) answered: Option<QuietInstant>,
}

impl TopicSet {
    /// Resources of other topics that match these parameters too.
    pub(super) fn copies(
        &self,
        parameters: &Parameters,
        name: &Name,
        cache: &Cache,
    ) -> impl Iterator<Item = Copied> {
        let others =
            self.topics.iter().filter(move |(other, topic)| *other != parameters && topic.may_copy(name));
        let held = move |other: &Parameters, topic: &Topic| {
            let snapshot = self.snapshot(cache, other);
            let (view, text) = (View::Named, name.as_str());
            // A denied resource is not for new clients (R-Err-06).
            let held = snapshot.held(view, text).filter(|_| snapshot.denied(text).is_none());
            // Aliases and dropped bodies are requested.
            let held = held.filter(|held| held.name() == name && held.form() == Form::Whole);
            held.map(|held| Copied {
                resource: Arc::clone(held),
                lease: snapshot.lease(view, text),
                is_foreign: topic.is_foreign(view, name),
                answered: topic.names.answered_since(name),
            })
        };
        others
            .filter_map(move |(other, topic)| held(other, topic))
            .filter(|copied| copied.resource.matches(parameters))
    }
}
