//! Thread that copies changes to the file, once a second.
//!
//! It compares the newest snapshot of each store with the one that it copied last. Nothing waits or queues for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::GroupFacts;
use super::disk_state::{CANNOT_WRITE, Disk, SnapshotSettings, clock};
use super::snapshot_encoding::{self, GroupId};
use super::snapshot_file::FileError;
use super::snapshot_store::{Bounds, Cursors, GroupCursor, Store, StoreCursor};
use crate::cache::{Cache, TypeCache};
use crate::snapshot_content::{Clock, Selection, StoreId, wildcard_kept};

/// Time between two transactions.
const PERIOD: Duration = Duration::from_secs(1);
/// Milliseconds to which the moment of a group's last current content is rounded down, so that it is written once
/// a minute, with all others, while nothing else changes.
const MINUTE: u64 = 60_000;
/// First and longest wait before a retry after a fault.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Longest wait for another process with the file, which may be about to end for this relay to replace it.
const RETRY_LOCKED: Duration = Duration::from_secs(5);

/// Running node group.
#[derive(Clone, Debug)]
pub struct LiveGroup {
    /// Its identity.
    pub id: GroupId,
    /// Its cache.
    pub cache: Arc<Cache>,
    /// Digest of the node shown to its control plane.
    pub node: u128,
    /// URI of the source server; empty with several.
    pub server: String,
    /// Time since its content was last current; `None` if its control plane never answered.
    pub current: Option<Duration>,
}

/// Source of the running node groups.
pub type LiveGroups = Box<dyn Fn() -> Vec<LiveGroup> + Send>;

/// Writer thread.
#[derive(Debug)]
pub struct WriterThread {
    /// Dropped to end it.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl WriterThread {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// Error of the system if no further thread is allowed.
    pub fn start(disk: Arc<Disk>, groups: LiveGroups) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("snapshot".to_owned()).spawn(move || {
            let mut writer = Writer::new(disk, groups);
            loop {
                let is_last = matches!(stopped.recv_timeout(PERIOD), Err(RecvTimeoutError::Disconnected));
                writer.tick(is_last);
                if is_last {
                    writer.disk.close();
                    return;
                }
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Writes once more, and waits for the thread's end.
    pub fn finish(self) {
        let Self { stop, thread } = self;
        drop(stop);
        if thread.join().is_err() {
            tracing::warn!("the thread of the snapshot panicked; this is a bug in deltafan");
        }
    }
}

pub(super) struct Writer {
    disk: Arc<Disk>,
    groups: LiveGroups,
    retry_at: Option<Instant>,
    backoff: Duration,
}

impl Writer {
    pub(super) const fn new(disk: Arc<Disk>, groups: LiveGroups) -> Self {
        Self { disk, groups, retry_at: None, backoff: RETRY.0 }
    }

    /// Writes all changes. The last call ignores earlier failures.
    fn tick(&mut self, is_last: bool) {
        if !is_last && self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match self.write(is_last) {
            Ok(()) => (self.retry_at, self.backoff) = (None, RETRY.0),
            Err(error) => {
                self.retry_at = Some(Instant::now() + self.backoff);
                let most = if matches!(error, FileError::Locked) { RETRY_LOCKED } else { RETRY.1 };
                self.backoff = (self.backoff * 2).min(most);
            }
        }
    }

    /// Writes all changes. A fault was logged.
    pub(super) fn write(&self, is_last: bool) -> Result<(), FileError> {
        let disk = &self.disk;
        let mut store = disk.writable()?;
        let begun = Instant::now();
        let result = self.copy(&mut store, is_last);
        drop(store);
        match result {
            Ok(true) => disk.wrote(begun),
            Ok(false) => disk.is_complete(begun),
            Err(error) => {
                disk.failed(CANNOT_WRITE, &error);
                disk.close();
                return Err(error);
            }
        }
        Ok(())
    }

    fn copy(&self, store: &mut Store, is_last: bool) -> Result<bool, FileError> {
        if !self.disk.is_in_place() {
            return Err(FileError::Replaced);
        }
        let live = (self.groups)();
        let clock = clock();
        let mut cursors = self.cursors(&live, clock, is_last);
        // Groups that changed their server meanwhile may hold resources of both.
        let now: HashMap<_, _> = (self.groups)().into_iter().map(|group| (group.id, group.server)).collect();
        for (id, cursor) in &mut cursors {
            if now.get(id) != Some(&cursor.facts.server) {
                cursor.facts.server.clear();
            }
        }
        let SnapshotSettings { selection, max_groups, .. } = self.disk.settings;
        let live = live.into_iter().map(|group| group.id).collect();
        store.advance(cursors, &Bounds { selection, live, max_groups }, clock)
    }

    /// Positions of the groups as they are now.
    pub(super) fn cursors(&self, live: &[LiveGroup], clock: Clock, is_last: bool) -> Cursors {
        // The file may have more of a group than the relay, which could not read it and has no answer either.
        let is_known =
            |group: &&LiveGroup| self.disk.has_read(&group.id, &group.cache) || group.current.is_some();
        let cursor = |group: &LiveGroup| {
            let facts = group_facts(group, clock, is_last);
            let types = group.cache.types();
            let stores = types.iter().filter_map(|of| {
                let id = kept_store(of, &group.cache, self.disk.settings.selection)?;
                let snapshot = of.snapshot();
                let wildcard = wildcard_kept(&snapshot, clock.now);
                Some((id, StoreCursor { snapshot, wildcard }))
            });
            let stores = stores.collect();
            (group.id.clone(), GroupCursor { cache: group.cache.number(), stores, facts })
        };
        live.iter().filter(is_known).map(cursor).collect()
    }
}

fn group_facts(group: &LiveGroup, clock: Clock, is_last: bool) -> GroupFacts {
    let current = group.current.map_or(Duration::ZERO, |age| clock.unix.saturating_sub(age));
    let current = u64::try_from(current.as_millis()).unwrap_or(u64::MAX);
    let orders = group.cache.rollout().map(|of| snapshot_encoding::orders_text(&of.standing_orders()));
    GroupFacts {
        current: if is_last { current } else { current - current % MINUTE },
        node: group.node,
        server: group.server.clone(),
        orders: orders.unwrap_or_default(),
    }
}

/// Identity of a kept store; derived stores are not kept. Of guarded types the stable content is kept: after
/// a restart the control plane sends a change on trial again, and it is tried again.
fn kept_store(of: &TypeCache, cache: &Cache, selection: Selection) -> Option<StoreId> {
    let (type_url, view) = (of.type_url(), of.parameter_view());
    let track = cache.fleet_track(type_url);
    let parameters = view.as_whole().filter(|_| view.track() == track)?.clone();
    selection.has(type_url).then(|| StoreId { type_url: type_url.clone(), parameters })
}
