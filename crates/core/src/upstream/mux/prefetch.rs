//! Endpoints that clients are about to ask for.
//!
//! Owns which names are asked for ahead: those of the endpoints of clusters that are new, where clients ask for endpoints by name. A
//! client that is told of the cluster asks for them next, and they are there, or on their way, when it does. What is asked for
//! ahead is treated as a name of a client that has just left: it is let go after the linger, or after 5 s where that is shorter, unless
//! a client asks for it by then.
//!
//! Over state of the world the endpoints of a cluster that is gone leave the list within a second, once no client asks for them: of a
//! list with one name that it does not have java-control-plane answers none (O12).
//!
//! They take no more than half of the room that there is for names which nobody wants: clients that leave have the rest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::linger::Want;
use super::super::topic_set::snapshot;
use super::Mux;
use super::let_go::KEPT;
use crate::cache::{Change, Op, Snapshot, View};
use crate::fairness::NAMES_PER_SLICE;
use crate::resource::{Kind, Name, Parameters, Resource, TypeUrl};

/// Shortest time for which endpoints stay asked for, however short the linger: a client is told of the cluster, and asks, within the
/// time in which it answers what it was sent before.
const LEAST: Duration = Duration::from_secs(5);

impl Mux {
    /// Names of the endpoints of clusters in a change that are not held yet, or have other endpoints there. Clients ask for very many
    /// in parts, between which others have their turn; of these only the first are asked for ahead.
    pub(super) fn new_endpoints(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        change: &Change,
    ) -> Vec<Name> {
        if !self.settings.prefetch_endpoints || type_url.kind() != Kind::Cluster {
            return Vec::new();
        }
        let Some(endpoints) = self.topic_sets.get(&TypeUrl::from(Kind::Endpoint)) else { return Vec::new() };
        let Some(topic) = endpoints.topics.get(parameters).filter(|topic| topic.is_live(View::Named)) else {
            return Vec::new();
        };
        let held = snapshot(self.writer.cache(), type_url, parameters);
        let sets = change.ops.iter().filter_map(|op| match op {
            Op::Set { view, resource, .. } => Some((*view, resource)),
            _ => None,
        });
        let new = sets.filter_map(|(view, resource): (_, &Arc<Resource>)| {
            let service = resource.eds_service()?;
            let before = held.held(view, resource.name().as_str()).and_then(|before| before.eds_service());
            let is_new = before != Some(service) && !topic.names.is_wanted(service.as_str());
            (is_new && service.as_str() != Name::WILDCARD).then(|| service.clone())
        });
        new.take(NAMES_PER_SLICE).collect()
    }

    /// Asks for endpoints that nobody has asked for yet.
    pub(super) fn prefetch(&mut self, names: Vec<Name>, parameters: &Parameters, now: Instant) {
        let type_url = TypeUrl::from(Kind::Endpoint);
        let until = now + self.settings.linger.max(LEAST);
        let Some(topic_set) = self.topic_sets.get_mut(&type_url) else { return };
        let mut change = Change::default();
        for name in names {
            if !self.lingering.has_room_ahead(&type_url, parameters) {
                break;
            }
            if topic_set.topic(parameters).names.is_wanted(name.as_str()) {
                continue;
            }
            change.ops.extend(topic_set.add_name(parameters, &name, self.writer.cache()));
            topic_set.topic(parameters).names.want(&name, Want::Until(until));
            self.lingering.insert(until, type_url.clone(), parameters.clone(), Some(name));
            self.counters.prefetched.add(1);
        }
        topic_set.arrange();
        self.apply(&type_url, vec![(parameters.clone(), change)], now);
        self.tidy(&type_url);
    }

    /// Names of the endpoints of clusters that a change removes, where they must leave the list.
    pub(super) fn gone_endpoints(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        change: &Change,
    ) -> Vec<Name> {
        if !self.habits.speaks_sotw || type_url.kind() != Kind::Cluster {
            return Vec::new();
        }
        let held = snapshot(self.writer.cache(), type_url, parameters);
        let services = change.ops.iter().filter_map(|op| match op {
            Op::Remove { view, name } => held.held(*view, name.as_str())?.eds_service().cloned(),
            _ => None,
        });
        services.collect()
    }

    /// Lets these endpoints go soon, if no client asks for them.
    pub(super) fn let_go_soon(&mut self, names: Vec<Name>, parameters: &Parameters, now: Instant) {
        let type_url = TypeUrl::from(Kind::Endpoint);
        let Some(topic) = self.topic_sets.get_mut(&type_url).and_then(|of| of.topics.get_mut(parameters))
        else {
            return;
        };
        for name in names {
            if let Some(Want::Until(end)) = topic.names.want_mut(name.as_str())
                && *end > now + KEPT
            {
                let before = std::mem::replace(end, now + KEPT);
                let (item, of) = (Some(name), (type_url.clone(), parameters.clone()));
                self.lingering.remove(before, of.0.clone(), of.1.clone(), item.clone());
                self.lingering.insert(now + KEPT, of.0, of.1, item);
            }
        }
    }
}

/// Whether a member of the set of clusters is known to have these endpoints: the one of this name.
pub(super) fn has_endpoints(clusters: &Snapshot, service: &Name) -> bool {
    let cluster = clusters.get(service.as_str()).and_then(|entry| entry.as_member().present());
    cluster.and_then(|cluster| cluster.eds_service()) == Some(service)
}
