//! Prefetch of endpoints that clients are about to request.
//!
//! Owns which names are requested ahead: endpoints of new clusters, where clients ask for endpoints
//! by name. A client that receives the cluster asks for them next. A prefetched name lingers like
//! one whose client has left, for at least 5 s. Prefetched names take at most half of the room for
//! unwanted names.
//!
//! In SotW the endpoints of a removed cluster leave the list within a second of their last client:
//! java-control-plane answers nothing of a list with one unknown name (O12).

use std::time::{Duration, Instant};

use super::super::linger::Want;
use super::super::topic_set::snapshot;
use super::Mux;
use crate::cache::{Change, Op, Snapshot, View};
use crate::fairness::NAMES_PER_SLICE;
use crate::resource::{Kind, Name, Parameters, TypeUrl};

/// Shortest time for which endpoints stay requested: a client first receives the cluster, and then
/// asks.
const LEAST: Duration = Duration::from_secs(5);

/// Shortest time until a kept name is checked again, however short the linger.
pub(super) const KEPT: Duration = Duration::from_secs(1);

impl Mux {
    /// Names of new endpoints of the clusters in a change. Of very many only the first are
    /// requested ahead.
    fn new_endpoints(&self, parameters: &Parameters, change: &Change) -> Vec<Name> {
        let endpoints = self.topic_sets.get(&TypeUrl::from(Kind::Endpoint));
        let topic = endpoints.and_then(|endpoints| endpoints.topics.get(parameters));
        let Some(topic) = topic.filter(|topic| topic.wants(View::Named)) else { return Vec::new() };
        let held = snapshot(self.writer.cache(), &Kind::Cluster.into(), parameters);
        let new = change.ops.iter().filter_map(|op| {
            let Op::Set { view, resource, .. } = op else { return None };
            let service = resource.eds_service()?;
            let before = held.held(*view, resource.name().as_str()).and_then(|before| before.eds_service());
            let is_new = before != Some(service) && !topic.names.is_wanted(service.as_str());
            (is_new && service.as_str() != Name::WILDCARD).then(|| service.clone())
        });
        new.take(NAMES_PER_SLICE).collect()
    }

    /// Requests endpoints of new clusters that nobody has asked for yet.
    pub(super) fn prefetch(&mut self, parameters: &Parameters, change: &Change, now: Instant) {
        if !self.settings.tuning.prefetch_endpoints {
            return;
        }
        let names = self.new_endpoints(parameters, change);
        let type_url = TypeUrl::from(Kind::Endpoint);
        let until = now + self.settings.linger.max(LEAST);
        let Some(topic_set) = self.topic_sets.get_mut(&type_url).filter(|_| !names.is_empty()) else {
            return;
        };
        let mut change = Change::default();
        for name in names {
            if !self.lingering.has_room_ahead(&type_url, parameters) {
                break;
            }
            if topic_set.topic(parameters).names.is_wanted(name.as_str()) {
                continue;
            }
            change.ops.extend(topic_set.add_name(parameters, &name, self.writer.cache()));
            topic_set.topic(parameters).set_want(Some(&name), Want::Until(until));
            self.lingering.insert(until, (type_url.clone(), parameters.clone(), Some(name)));
            self.counters.prefetched.add(1);
        }
        topic_set.arrange();
        self.apply(&type_url, vec![(parameters.clone(), change)], now);
        self.tidy(&type_url);
    }

    /// In SotW, shortens the linger of endpoints of removed clusters that no client asks for.
    pub(super) fn let_go_soon(&mut self, parameters: &Parameters, change: &Change, now: Instant) {
        let type_url = TypeUrl::from(Kind::Endpoint);
        let topic_set = self.topic_sets.get_mut(&type_url).filter(|_| self.traits.speaks_sotw);
        let Some(topic) = topic_set.and_then(|of| of.topics.get_mut(parameters)) else { return };
        let held = snapshot(self.writer.cache(), &Kind::Cluster.into(), parameters);
        let services = change.ops.iter().filter_map(|op| match op {
            Op::Remove { view, name } => held.held(*view, name.as_str())?.eds_service(),
            _ => None,
        });
        for name in services {
            if let Want::Until(end) = topic.want_of(Some(name))
                && end > now + KEPT
            {
                let item = (type_url.clone(), parameters.clone(), Some(name.clone()));
                topic.set_want(Some(name), Want::Until(now + KEPT));
                self.lingering.remove(end, item.clone());
                self.lingering.insert(now + KEPT, item);
            }
        }
    }
}

pub(super) fn has_endpoints(clusters: &Snapshot, service: &Name) -> bool {
    let cluster = clusters.get(service.as_str()).and_then(|entry| entry.as_member().present());
    cluster.and_then(|cluster| cluster.eds_service()) == Some(service)
}
