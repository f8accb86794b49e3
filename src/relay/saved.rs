//! Start from the snapshot on disk: it is opened and read before anything else.

use std::sync::Arc;
use std::time::Duration;

use super::settings;
use crate::config::Config;
use crate::snapshot::{Disk, GroupId, Loaded, node_digest};
use crate::upstream::{Client, Restored};

/// Opens the snapshot, if one is configured. A fault is told in the log, and the relay runs without it.
pub(super) async fn open(config: &Config) -> Option<Arc<Disk>> {
    let settings = settings::snapshot(config)?;
    tokio::task::spawn_blocking(move || Disk::open(settings)).await.ok()
}

/// Content with which a relay starts.
#[derive(Debug)]
pub(super) struct Saved {
    disk: Arc<Disk>,
    own: Option<Loaded>,
    /// Age of the newest of the other groups, which are read when their first clients come.
    others: Option<Duration>,
}

impl Saved {
    /// Has the client of the own group take its content in. With other groups the relay has something to serve even if the own one
    /// has nothing.
    pub(super) fn restore(self, client: &mut Client) {
        let mut restored = Restored::default();
        if let Some(own) = self.own {
            let age = own.age;
            restored = own.restore(client);
            self.disk.note_loaded(restored, age);
        }
        if restored.resources == 0
            && let Some(others) = self.others
        {
            client.others_restored(others);
        }
    }
}

/// Reads the group of the relay's own node.
pub(super) async fn load(disk: Option<&Arc<Disk>>, config: &Config) -> Option<Saved> {
    let disk = Arc::clone(disk?);
    let node = node_digest(&settings::own_node(config));
    let read = move || {
        let (own, others) = (disk.load(&GroupId::own(), node), disk.age_of_others());
        Saved { disk, own, others }
    };
    tokio::task::spawn_blocking(read).await.ok()
}
