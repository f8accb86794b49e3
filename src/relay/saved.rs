//! Start from the snapshot on disk: it is opened and read before anything else.

use std::sync::Arc;

use super::settings;
use crate::config::Config;
use crate::snapshot::{Disk, GroupId, Loaded, OtherGroups, node_digest};
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
    /// URIs of the servers that are configured.
    servers: Vec<String>,
    own: Option<Loaded>,
    /// The other groups, which are read when their first clients come.
    others: Option<OtherGroups>,
}

impl Saved {
    /// Has the client of the own group take its content in. With other groups the relay has something to serve even if the own one
    /// has nothing.
    pub(super) fn restore(self, client: &mut Client) {
        let (mut restored, mut from, mut age) = (Restored::default(), String::new(), None);
        let is_there = self.own.is_some() || self.others.is_some();
        if let Some(own) = self.own {
            (age, from) = (own.age, own.server.clone());
            restored = own.restore(client);
            if restored.resources > 0 {
                tell_of_strangers(&from, &self.servers);
            }
        }
        if is_there {
            self.disk.note_loaded((restored, from), age, self.others);
        }
        if restored.resources == 0
            && let Some(others) = self.others
        {
            client.others_restored(others.age);
        }
    }
}

/// Tells of content that none of the configured servers gave.
fn tell_of_strangers(from: &str, servers: &[String]) {
    // Identities of servers have no slash at their end.
    let is_configured = servers.iter().any(|server| server.trim_end_matches('/') == from);
    if !from.is_empty() && !is_configured {
        tracing::warn!(
            from,
            configured = servers.join(", "),
            "the snapshot is of a control plane that is not in upstream.servers; serving it until one that is has answered"
        );
    }
}

/// Reads the group of the relay's own node.
pub(super) async fn load(disk: Option<&Arc<Disk>>, config: &Config) -> Option<Saved> {
    let disk = Arc::clone(disk?);
    let node = node_digest(&settings::own_node(config));
    let servers = settings::servers(config);
    let read = move || {
        let (own, others) = (disk.load(&GroupId::own(), node), disk.others());
        Saved { disk, servers, own, others }
    };
    tokio::task::spawn_blocking(read).await.ok()
}
