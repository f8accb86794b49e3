//! State shared by the snapshot's thread, the loading of node groups, and operators.
//!
//! Owns the open file behind a lock, and the figures. Writing a transaction or reading a group holds the
//! lock, so only threads that may wait for the disk take it.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use redb::Database;
use serde::{Serialize, Serializer};

use super::snapshot_encoding::{self, GroupId};
use super::snapshot_file::{self, FileError};
use super::snapshot_store::{Store, StoredGroup};
use super::{FileFault, GroupFacts};
use crate::cache::Cache;
use crate::snapshot_content::{Clock, Selection};
use crate::upstream::{Client, Restored, ServerId};

/// Settings of the snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotSettings {
    /// Its folder.
    pub folder: PathBuf,
    /// Node groups that the file may keep beside the running ones.
    pub max_groups: usize,
    /// Kinds of resources that are written and read.
    pub selection: Selection,
}

/// Stored groups beside the own one.
#[derive(Clone, Copy, Debug)]
pub struct OtherGroups {
    /// Their number.
    pub groups: usize,
    /// Time since any of them was last current; zero if the clock was set back.
    pub age: Duration,
}

/// Figures of loaded content.
#[derive(Clone, Debug, Serialize)]
pub struct LoadedFigures {
    /// Resources.
    pub resources: usize,
    /// Bytes of these.
    bytes: usize,
    /// URI of the source server; `None` with several, or without own content.
    from: Option<String>,
    /// Time from the start to the end of loading.
    seconds: f64,
    /// Age of the content then, if known.
    age_seconds: Option<f64>,
    /// Number of other groups, not yet read.
    node_groups: usize,
}

/// Figures of the snapshot, for operators.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DiskStatus {
    /// Path of the file.
    pub path: String,
    /// Own group's content from the start.
    pub loaded: Option<LoadedFigures>,
    /// Written transactions.
    pub writes: u64,
    /// Failed attempts to open, read or write.
    pub failures: u64,
    /// Time of the last transaction.
    #[serde(rename = "last_write_seconds_ago", serialize_with = "seconds_ago")]
    pub last_write: Option<Instant>,
    /// Moment up to which the file is complete.
    #[serde(rename = "complete_seconds_ago", serialize_with = "seconds_ago")]
    pub complete: Option<Instant>,
    /// Bytes of the file when opened, or after the last transaction.
    pub bytes: u64,
    /// Error of the last attempt, if it failed.
    pub error: Option<String>,
}

fn seconds_ago<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.elapsed().as_secs_f64()).serialize(serializer)
}

/// Snapshot on disk.
#[derive(Debug)]
pub struct Disk {
    pub(super) settings: SnapshotSettings,
    pub(super) store: Mutex<Option<Store>>,
    status: Mutex<DiskStatus>,
    /// Number of the cache that took in a group's stored content.
    read: Mutex<HashMap<GroupId, u64>>,
    /// Whether the disk was full: the failed transaction's pages are still in the file.
    was_full: AtomicBool,
    /// Device and inode of the open file.
    inode: Mutex<Option<(u64, u64)>>,
    pub started: Instant,
}

const CANNOT_OPEN: &str = "cannot open the snapshot; running without it";
pub(super) const CANNOT_WRITE: &str = "cannot write the snapshot; serving goes on";

/// Current time on both clocks.
pub fn clock() -> Clock {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Clock { now: Instant::now(), unix }
}

impl Disk {
    /// Opens the file in its folder. Faults are logged, and the relay runs without it.
    pub fn open(settings: SnapshotSettings) -> Arc<Self> {
        let path = settings.folder.join(snapshot_file::FILE).display().to_string();
        let status = Mutex::new(DiskStatus { path, ..DiskStatus::default() });
        let (store, read, was_full, inode) = Default::default();
        let disk = Self { settings, store, status, read, was_full, inode, started: Instant::now() };
        disk.writable().ok();
        Arc::new(disk)
    }

    /// The file, opened to write it if it was not. A fault was logged; the content may still be readable.
    pub(super) fn writable(&self) -> Result<MappedMutexGuard<'_, Store>, FileError> {
        let mut store = self.store.lock();
        if store.as_ref().is_none_or(|store| !store.is_writable) {
            let opened = self.open_to_write().map(|database| *store = Some(Store::new(database, true)));
            if let Err(error) = &opened {
                // A disk that is full or read-only can still be read.
                let copy = || Some(Store::new(snapshot_file::look(&self.path()).ok()?, false));
                let is_refused = matches!(error, FileError::Io(_));
                *store = if is_refused { store.take().or_else(copy) } else { None };
                self.failed(if store.is_some() { CANNOT_WRITE } else { CANNOT_OPEN }, error);
            }
            if store.is_some() {
                *self.inode.lock() = self.inode_there();
                self.status.lock().bytes = self.bytes_there();
            }
            opened?;
        }
        // Never fails: it was just opened.
        MutexGuard::try_map(store, Option::as_mut).map_err(|_| FileError::Replaced)
    }

    fn open_to_write(&self) -> Result<Database, FileError> {
        let mut database = snapshot_file::open(&self.settings.folder)?;
        if self.was_full.load(Ordering::Relaxed) {
            database = snapshot_file::compacted(database)?;
            self.was_full.store(false, Ordering::Relaxed);
        }
        Ok(database)
    }

    fn inode_there(&self) -> Option<(u64, u64)> {
        self.path().symlink_metadata().ok().map(|file| (file.dev(), file.ino()))
    }

    fn bytes_there(&self) -> u64 {
        self.path().metadata().map_or(0, |file| file.len())
    }

    /// Whether the open file is still in the folder.
    pub(super) fn is_in_place(&self) -> bool {
        let inode = self.inode_there();
        inode.is_some() && inode == *self.inode.lock()
    }

    /// Whether this cache took in the group's stored content; otherwise it must not overwrite the group.
    pub(super) fn has_read(&self, group: &GroupId, cache: &Cache) -> bool {
        self.read.lock().get(group) == Some(&cache.number())
    }

    /// Reads a node group written for this node. Waits for the disk. The group is not overwritten before
    /// [`note_read`](Self::note_read).
    ///
    /// # Errors
    ///
    /// [`FileFault`] if the file is not open, or cannot be read.
    pub fn load(&self, group: &GroupId, node: u128) -> Result<Option<StoredGroup>, FileFault> {
        let read = self.store.lock().as_ref().ok_or(FileFault)?.group(group);
        let mut stored = read.map_err(|error| {
            self.failed("cannot read the snapshot; starting without it", &error);
            self.close();
            FileFault
        })?;
        if stored.as_ref().is_some_and(|stored| stored.facts.node != node) {
            tracing::info!(%group, "the snapshot of this node group is of another node; starting without it");
            return Ok(None);
        }
        if let Some(stored) = &mut stored {
            stored.content.stores.retain(|store| self.settings.selection.has(&store.id.type_url));
        }
        Ok(stored)
    }

    /// Notes that this cache took in a group's stored content.
    pub fn note_read(&self, group: GroupId, cache: &Cache) {
        self.read.lock().insert(group, cache.number());
    }

    /// Answered groups but the own one; `None` without any. Waits for the disk.
    pub fn others(&self) -> Option<OtherGroups> {
        let mut others = self.store.lock().as_ref()?.groups().ok()?;
        others.retain(|(id, facts)| *id != GroupId::own() && facts.current > 0);
        let current = others.iter().map(|(_, facts)| facts.current).max()?;
        Some(OtherGroups { groups: others.len(), age: clock().age_of(Duration::from_millis(current)) })
    }

    /// Gives up the file after a fault. A corrupt one was moved aside.
    pub(super) fn close(&self) {
        let store = self.store.lock().take();
        // The library writes, and may find another fault.
        drop(snapshot_file::guarded(|| {
            drop(store);
            Ok(())
        }));
    }

    /// Notes the own group, loaded before serving, and the others, read when their first clients come.
    pub fn note_loaded(
        &self,
        (own, from): (Restored, String),
        age: Option<Duration>,
        others: Option<OtherGroups>,
    ) {
        let Restored { resources, bytes, ended } = own;
        let (took, from) = (self.started.elapsed(), Some(from).filter(|from| !from.is_empty()));
        let age = age.into_iter().chain(others.map(|others| others.age)).min();
        let (seconds, age_seconds) = (took.as_secs_f64(), age.map(|age| age.as_secs_f64()));
        let node_groups = others.map_or(0, |others| others.groups);
        tracing::info!(resources, node_groups, bytes, ended, ?took, age_seconds, "loaded the snapshot");
        let loaded = LoadedFigures { resources, bytes, from, seconds, age_seconds, node_groups };
        self.status.lock().loaded = Some(loaded);
    }

    /// Notes a written transaction, with everything up to this moment.
    pub(super) fn wrote(&self, as_of: Instant) {
        let bytes = self.bytes_there();
        {
            let mut status = self.status.lock();
            status.bytes = bytes;
            status.writes += 1;
            status.last_write = Some(Instant::now());
        }
        self.is_complete(as_of);
    }

    /// Notes that the file can be written, and is complete up to this moment.
    pub(super) fn is_complete(&self, as_of: Instant) {
        let mut status = self.status.lock();
        status.complete = Some(as_of);
        let error = status.error.take();
        drop(status);
        if error.is_some() {
            tracing::info!("the snapshot is written again");
        }
    }

    /// Notes a fault, and logs it unless it repeats the last one. Moves a corrupt file aside.
    pub(super) fn failed(&self, what: &str, error: &FileError) {
        let text = error.to_string();
        let is_news = {
            let mut status = self.status.lock();
            status.failures += 1;
            status.error.replace(text.clone()).as_ref() != Some(&text)
        };
        if is_news {
            let (path, remedy) = (self.path(), error.remedy());
            tracing::warn!(path = %path.display(), error = text, remedy, "{what}");
        }
        if error.is_full_disk() {
            self.was_full.store(true, Ordering::Relaxed);
        }
        // After a fault in a replaced file, the new one belongs to somebody else.
        let is_ours = self.inode.lock().is_none() || self.is_in_place();
        if matches!(error, FileError::Corrupt(_)) && is_ours {
            match snapshot_file::set_aside(&self.settings.folder) {
                Ok(aside) => tracing::warn!(path = %aside.display(), "moved the corrupt snapshot aside"),
                Err(error) => tracing::warn!(%error, "cannot move the corrupt snapshot aside"),
            }
        }
    }

    /// Figures for operators.
    pub fn status(&self) -> DiskStatus {
        self.status.lock().clone()
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        Path::join(&self.settings.folder, snapshot_file::FILE)
    }
}

impl StoredGroup {
    /// Time since the content was last current, zero if the clock was set back; `None` if the control plane never
    /// answered.
    pub fn age(&self, clock: Clock) -> Option<Duration> {
        let current = Duration::from_millis(self.facts.current);
        (!current.is_zero()).then(|| clock.age_of(current))
    }

    /// Gives the content to a client that does not run yet.
    pub fn restore(self, client: &mut Client) -> Restored {
        let clock = clock();
        let (age, GroupFacts { server, orders, .. }) = (self.age(clock), self.facts);
        if let Some(rollout) = client.cache().rollout() {
            rollout.restore_orders(snapshot_encoding::parse_orders(&orders));
        }
        let from = Some(ServerId::from(&*server)).filter(|_| !server.is_empty());
        client.restore(self.content, from, age, clock)
    }
}
