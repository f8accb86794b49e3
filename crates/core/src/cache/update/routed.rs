//! Clusters that the routes in an update lead to, and whether they are there.

use parking_lot::Mutex;

use super::super::Generation;
use super::super::snapshot::Snapshot;
use super::Update;
use crate::resource::{Name, clusters_in_routes};

/// See [`Update::has_its_clusters`].
#[derive(Debug)]
pub(in crate::cache) struct Routed {
    clusters: Vec<Name>,
    /// Store of clusters and its state that was last looked at, and whether all of these were there.
    looked_at: Mutex<Option<(u32, Generation, bool)>>,
}

impl Update {
    /// Whether every cluster that its routes name is there in this state of a store, which has this number. It is worked out once for all clients
    /// that are sent this.
    pub fn has_its_clusters(&self, store: u32, snapshot: &Snapshot) -> bool {
        let routed = self.routed.get_or_init(|| {
            let kind = self.type_url.kind();
            let names = self.resources.iter().flat_map(|resource| clusters_in_routes(kind, resource));
            let mut clusters: Vec<Name> = names.collect();
            clusters.sort_unstable();
            clusters.dedup();
            Routed { clusters, looked_at: Mutex::new(None) }
        });
        let known = *routed.looked_at.lock();
        if let Some((_, _, all)) = known.filter(|(of, at, _)| (*of, *at) == (store, snapshot.generation())) {
            return all;
        }
        let all = routed.clusters.iter().all(|name| snapshot.by_name(name.as_str()).existing().is_some());
        *routed.looked_at.lock() = Some((store, snapshot.generation(), all));
        all
    }

    /// Clusters that its routes name and that are not there, if it was ever asked whether all are.
    pub fn lacking_clusters<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Name> {
        let named = self.routed.get().into_iter().flat_map(|routed| &routed.clusters);
        named.filter(|name| snapshot.by_name(name.as_str()).existing().is_none())
    }
}
