//! Snapshot of this relay: it is read before anything else, or as soon as possible, and written from then on.

use std::sync::Arc;
use std::time::Instant;

use super::config_settings;
use crate::config::Config;
use crate::groups::Groups;
use crate::snapshot::{self, Disk, GroupId, OtherGroups, Restore, StoredGroup, WriterThread, node_digest};
use crate::upstream::{Client, Restored};

/// Opens the configured snapshot. A fault is logged, and the relay runs without it.
pub(super) async fn open(config: &Config) -> Option<Arc<Disk>> {
    let settings = config_settings::snapshot(config)?;
    tokio::task::spawn_blocking(move || Disk::open(settings)).await.ok()
}

/// Reads the content for the own group's client. The file may be unreadable, perhaps open in another process.
pub(super) async fn load(disk: Option<&Arc<Disk>>, config: &Config) -> Option<Restore> {
    let (disk, servers) = (Arc::clone(disk?), config_settings::servers(config));
    let node = node_digest(&config_settings::own_node(config));
    let read = move || {
        let own = disk.load(&GroupId::own(), node).ok()?;
        let others = disk.others();
        Some(Saved { disk: Arc::clone(&disk), servers: servers.clone(), own, others })
    };
    Some(snapshot::load(read, Saved::restore).await)
}

#[derive(Debug)]
struct Saved {
    disk: Arc<Disk>,
    /// URIs of the configured servers.
    servers: Vec<String>,
    own: Option<StoredGroup>,
    /// Other groups, read when their first clients come.
    others: Option<OtherGroups>,
}

impl Saved {
    /// Gives the own group's client its content. With other groups the relay can serve even without own
    /// content.
    fn restore(self, client: &mut Client) {
        let (mut restored, mut from, mut age) = (Restored::default(), String::new(), None);
        let is_there = self.own.is_some() || self.others.is_some();
        if let Some(own) = self.own {
            (age, from) = (own.age(snapshot::clock()), own.facts.server.clone());
            restored = own.restore(client);
            if restored.resources > 0 {
                warn_of_unknown_server(&from, &self.servers);
            }
        }
        self.disk.note_read(GroupId::own(), client.cache());
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

/// Logs content that came from no configured server.
fn warn_of_unknown_server(from: &str, servers: &[String]) {
    // Server identities have no trailing slash.
    let is_configured = servers.iter().any(|server| server.trim_end_matches('/') == from);
    if !from.is_empty() && !is_configured {
        tracing::warn!(
            from,
            configured = servers.join(", "),
            "the snapshot is of a control plane that is not in upstream.servers; serving it until one that is has answered"
        );
    }
}

/// Keeps the groups on disk from now on.
pub(super) fn keep(disk: Option<&Arc<Disk>>, groups: &Arc<Groups>) -> Option<WriterThread> {
    let groups = Arc::clone(groups);
    let started = WriterThread::start(Arc::clone(disk?), Box::new(move || groups.live(Instant::now())));
    let fault =
        |error: &_| tracing::warn!(%error, "cannot start the thread of the snapshot; it is not written");
    started.inspect_err(fault).ok()
}
