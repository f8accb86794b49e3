//! Writing of the snapshot: supplies its thread with the node groups.

use std::sync::Arc;
use std::time::Instant;

use super::config_settings;
use super::origin::Origin;
use crate::config::Config;
use crate::groups::Groups;
use crate::snapshot::{Disk, GroupId, LiveGroup, LiveGroups, WriterThread, node_digest};

/// Keeps the groups on disk from now on.
pub(super) fn keep(
    disk: Option<&Arc<Disk>>,
    groups: &Arc<Groups>,
    origin: &Origin,
    config: &Config,
) -> Option<WriterThread> {
    let node = node_digest(&config_settings::own_node(config));
    let live = Live { groups: Arc::clone(groups), origin: origin.clone(), node };
    let thread = WriterThread::start(Arc::clone(disk?), live);
    thread
        .inspect_err(
            |error| tracing::warn!(%error, "cannot start the thread of the snapshot; it is not written"),
        )
        .ok()
}

#[derive(Debug)]
struct Live {
    groups: Arc<Groups>,
    origin: Origin,
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
            current: state.as_ref().and_then(|state| state.current_ago(now)),
        };
        std::iter::once(own).chain(self.groups.live(now)).collect()
    }
}
