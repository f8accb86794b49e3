//! Clusters that the routes in an update lead to, and whether they are there.

use parking_lot::Mutex;

use super::super::Generation;
use super::super::snapshot::Snapshot;
use super::super::view::View;
use super::Update;
use crate::resource::{Name, clusters_in_routes};

/// See [`Update::has_its_clusters`].
#[derive(Debug)]
pub(in crate::cache) struct Routed {
    clusters: Vec<Name>,
    /// Store of clusters, and its state, in which all of these were there.
    complete: Mutex<Option<(u32, Generation)>>,
}

impl Update {
    /// Whether every cluster that its routes name is a member of the wildcard set in this state of a store, which has this number. It is worked
    /// out once for all clients that are sent this.
    pub fn has_its_clusters(&self, store: u32, snapshot: &Snapshot) -> bool {
        let routed = self.routed.get_or_init(|| {
            let kind = self.type_url.kind();
            let names = self.resources.iter().flat_map(|resource| clusters_in_routes(kind, resource));
            let mut clusters: Vec<Name> = names.collect();
            clusters.sort_unstable();
            clusters.dedup();
            Routed { clusters, complete: Mutex::new(None) }
        });
        let state = Some((store, snapshot.generation()));
        let mut complete = routed.complete.lock();
        if *complete == state {
            return true;
        }
        let is_there = |name: &Name| snapshot.held(View::Wildcard, name.as_str()).is_some();
        let all = routed.clusters.iter().all(is_there);
        if all {
            *complete = state;
        }
        all
    }
}
