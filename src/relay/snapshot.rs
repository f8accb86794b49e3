//! Snapshot on disk, as far as it concerns the whole relay: opened and read before anything else, written until the end.

use std::sync::Arc;
use std::time::Instant;

use super::origin::Origin;
use super::settings;
use crate::config::Config;
use crate::groups::Groups;
use crate::snapshot::{Disk, GroupId, LiveGroup, LiveGroups, Loaded, WriterThread, node_digest};

/// Opens the snapshot, if one is configured. A fault is told in the log, and the relay runs without it.
pub(super) async fn open(config: &Config) -> Option<Arc<Disk>> {
    let settings = settings::snapshot(config)?;
    tokio::task::spawn_blocking(move || Disk::open(settings)).await.ok()
}

/// Reads the group of the relay's own node.
pub(super) async fn load_own(disk: Option<&Arc<Disk>>, config: &Config) -> Option<Loaded> {
    let disk = Arc::clone(disk?);
    let node = node_digest(&settings::own_node(config));
    tokio::task::spawn_blocking(move || disk.load(&GroupId::own(), node)).await.ok()?
}

/// Keeps the groups on disk from now on.
pub(super) fn keep(
    disk: Option<&Arc<Disk>>,
    groups: &Arc<Groups>,
    origin: &Origin,
    config: &Config,
) -> Option<WriterThread> {
    let node = node_digest(&settings::own_node(config));
    let live = Live { groups: Arc::clone(groups), origin: origin.clone(), node };
    let thread = WriterThread::start(Arc::clone(disk?), live);
    thread
        .inspect_err(
            |error| tracing::warn!(%error, "cannot start the thread of the snapshot; it is not written"),
        )
        .ok()
}

/// Groups of a running relay.
#[derive(Debug)]
struct Live {
    groups: Arc<Groups>,
    origin: Origin,
    /// Digest of the relay's own node.
    node: u128,
}

impl LiveGroups for Live {
    fn all(&self) -> Vec<LiveGroup> {
        let now = Instant::now();
        let state = self.origin.state();
        let own = LiveGroup {
            id: GroupId::own(),
            cache: Arc::clone(self.groups.own().group().cache()),
            node: self.node,
            server: state
                .as_ref()
                .and_then(|state| state.source.as_ref())
                .map_or_else(String::new, ToString::to_string),
            answered: state.as_ref().and_then(|state| state.answered_ago(now)),
        };
        std::iter::once(own).chain(self.groups.live(now)).collect()
    }
}
