//! Thread that copies changes to the file, once a second.
//!
//! Owns the snapshot of each store that it copied last, and compares the newest one with it. Nothing waits or
//! queues for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::disk_state::{CANNOT_WRITE, Disk, clock};
use super::snapshot_encoding::{self, GroupId};
use super::snapshot_file::FileError;
use super::snapshot_store::{Changes, GroupChange, Names, StoreChange};
use super::{FileFault, GroupFacts, StoreFacts};
use crate::cache::{Cache, Completeness, Snapshot, TypeCache};
use crate::resource::Name;
use crate::snapshot_content::{Clock, Selection, StoreId, wildcard_kept};

/// Time between two transactions.
const PERIOD: Duration = Duration::from_secs(1);
/// Time after which all groups' current moments are written even without a change.
const MOMENTS: Duration = Duration::from_secs(60);
/// Least difference of such a moment, also backwards: the clock may be set.
const MOVED: Duration = Duration::from_secs(1);
/// First and longest wait before a retry after a fault.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Longest wait for another process with the file, which may be about to end for this relay to replace it.
const RETRY_LOCKED: Duration = Duration::from_secs(5);
/// Time after which a run counts: shorter runs do not show which groups are live.
const COUNTS: Duration = Duration::from_secs(600);

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

/// Source of the running node groups, without groups not loaded yet.
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

/// Copied position of a group.
#[derive(Debug, Default)]
pub(super) struct GroupCursor {
    /// Number of its cache, which changes when a group is recreated.
    cache: u64,
    stores: HashMap<StoreId, StoreCursor>,
    facts: GroupFacts,
}

/// Copied position of a store.
#[derive(Debug)]
struct StoreCursor {
    snapshot: Arc<Snapshot>,
    completeness: Completeness,
}

pub(super) struct Writer {
    disk: Arc<Disk>,
    groups: LiveGroups,
    cursors: HashMap<GroupId, GroupCursor>,
    /// File of the cursors, by its number of openings.
    opened: Option<u64>,
    /// Number of this run, by the open file.
    run: Option<u64>,
    /// Whether the run counts in that file.
    is_counted: bool,
    /// Time of the last write of all moments.
    moments_at: Option<Instant>,
    retry_at: Option<Instant>,
    backoff: Duration,
}

impl Writer {
    pub(super) fn new(disk: Arc<Disk>, groups: LiveGroups) -> Self {
        let (cursors, opened, run, is_counted, moments_at, retry_at) = Default::default();
        let backoff = RETRY.0;
        Self { disk, groups, cursors, opened, run, is_counted, moments_at, retry_at, backoff }
    }

    /// Writes all changes. The last call ignores earlier failures.
    fn tick(&mut self, is_last: bool) {
        if !is_last && self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        if is_last {
            self.moments_at = None;
        }
        match self.write() {
            Ok(()) => (self.retry_at, self.backoff) = (None, RETRY.0),
            Err(FileFault) => {
                self.begin_anew();
                self.retry_at = Some(Instant::now() + self.backoff);
                let most = if self.disk.is_locked() { RETRY_LOCKED } else { RETRY.1 };
                self.backoff = (self.backoff * 2).min(most);
            }
        }
    }

    pub(super) fn write(&mut self) -> Result<(), FileFault> {
        if !self.disk.reopen() {
            return Err(FileFault);
        }
        let begun = Instant::now();
        let disk = Arc::clone(&self.disk);
        if let Some(fault) = disk.tampering() {
            disk.failed(CANNOT_WRITE, &fault);
            disk.close();
            return Err(FileFault);
        }
        let store = disk.store.lock();
        let Some(open) = &*store else { return Err(FileFault) };
        if std::mem::replace(&mut self.opened, open.opened) != open.opened {
            self.begin_anew();
        }
        let result = self.run_number(open).and_then(|run| {
            let selection = self.disk.settings.selection;
            let live = (self.groups)();
            let clock = clock();
            let (mut changes, mut cursors) = self.changes(&live, run, selection, clock);
            self.note_switches(&live, &mut changes, &mut cursors);
            if changes.groups.is_empty() && changes.run.is_none() {
                return Ok(None);
            }
            open.commit(&changes)?;
            if self.has_moments_due(clock) {
                self.moments_at = Some(clock.now);
            }
            Ok(Some((cursors, changes.run.is_some())))
        });
        drop(store);
        match result {
            Ok(None) => {
                disk.is_complete(begun);
                Ok(())
            }
            Ok(Some((cursors, is_counted))) => {
                self.cursors = cursors;
                self.is_counted |= is_counted;
                disk.wrote(begun);
                Ok(())
            }
            Err(error) => {
                disk.failed(CANNOT_WRITE, &error);
                disk.close();
                Err(FileFault)
            }
        }
    }

    /// Forgets everything about the file.
    fn begin_anew(&mut self) {
        self.cursors.clear();
        (self.run, self.is_counted) = (None, false);
    }

    fn run_number(&mut self, open: &super::snapshot_store::Store) -> Result<u64, FileError> {
        if let Some(run) = self.run {
            return Ok(run);
        }
        let run = open.run()? + 1;
        self.run = Some(run);
        Ok(run)
    }

    /// Marks groups that changed their server since: they may hold resources of both.
    fn note_switches(
        &self,
        live: &[LiveGroup],
        changes: &mut Changes,
        cursors: &mut HashMap<GroupId, GroupCursor>,
    ) {
        let now = (self.groups)();
        for change in &mut changes.groups {
            let server = |groups: &[LiveGroup]| {
                groups.iter().find(|group| group.id == change.id).map(|group| group.server.clone())
            };
            if server(live) != server(&now) {
                change.facts.server.clear();
                if let Some(cursor) = cursors.get_mut(&change.id) {
                    cursor.facts.server.clear();
                }
            }
        }
    }

    fn has_moments_due(&self, clock: Clock) -> bool {
        self.moments_at.is_none_or(|at| clock.now.saturating_duration_since(at) >= MOMENTS)
    }

    /// Changes since the last transaction, and the positions after it.
    pub(super) fn changes(
        &self,
        live: &[LiveGroup],
        run: u64,
        selection: Selection,
        clock: Clock,
    ) -> (Changes, HashMap<GroupId, GroupCursor>) {
        let (mut changes, mut cursors) = (Changes::default(), HashMap::new());
        changes.live = live.iter().map(|group| group.id.clone()).collect();
        changes.max_groups = self.disk.settings.max_groups;
        for group in live {
            // The file may have more of this group than the relay, which could not read it and has no answer
            // either.
            if !self.disk.has_read(&group.id) && group.current.is_none() {
                continue;
            }
            let before = self.cursors.get(&group.id).filter(|before| before.cache == group.cache.number());
            let (change, cursor) =
                group_change(group, before, (run, self.has_moments_due(clock)), selection, clock);
            changes.groups.extend(change);
            cursors.insert(group.id.clone(), cursor);
        }
        let counts = !self.is_counted && self.disk.started.elapsed() >= COUNTS;
        changes.run = counts.then_some(run);
        (changes, cursors)
    }
}

fn group_change(
    group: &LiveGroup,
    before: Option<&GroupCursor>,
    (run, has_moment_due): (u64, bool),
    selection: Selection,
    clock: Clock,
) -> (Option<GroupChange>, GroupCursor) {
    let current = group.current.map_or(Duration::ZERO, |age| clock.unix.saturating_sub(age));
    let facts = GroupFacts {
        run,
        current: u64::try_from(current.as_millis()).unwrap_or(u64::MAX),
        node: group.node,
        server: group.server.clone(),
        orders: group
            .cache
            .rollout()
            .map(|of| snapshot_encoding::orders_text(&of.standing_orders()))
            .unwrap_or_default(),
    };
    let mut cursor = GroupCursor { cache: group.cache.number(), ..GroupCursor::default() };
    let mut stores = Vec::new();
    for of in group.cache.types() {
        let Some(id) = kept_store(&of, &group.cache, selection) else { continue };
        let snapshot = of.snapshot();
        let at = before.and_then(|before| before.stores.get(&id));
        let completeness = wildcard_kept(&snapshot, clock.now).0;
        let is_copied = |at: &StoreCursor| {
            (at.snapshot.generation(), at.completeness) == (snapshot.generation(), completeness)
        };
        if !at.is_some_and(is_copied) {
            let earlier = at.map(|at| &*at.snapshot);
            stores.push(store_change(id.clone(), Arc::clone(&snapshot), earlier, selection, clock));
        }
        cursor.stores.insert(id, StoreCursor { snapshot, completeness });
    }
    let is_gone = |id: &&StoreId| !cursor.stores.contains_key(*id);
    let gone: Vec<StoreId> =
        before.iter().flat_map(|before| before.stores.keys()).filter(is_gone).cloned().collect();
    let all: Option<HashSet<StoreId>> = before.is_none().then(|| cursor.stores.keys().cloned().collect());
    let is_news = before.is_none_or(|before| {
        let moved = facts.current.abs_diff(before.facts.current);
        let is_due = has_moment_due && u128::from(moved) >= MOVED.as_millis();
        is_due
            || GroupFacts { current: 0, ..before.facts.clone() } != GroupFacts { current: 0, ..facts.clone() }
    });
    let is_written = is_news || !stores.is_empty() || !gone.is_empty();
    cursor.facts = match before {
        Some(before) if !is_written => before.facts.clone(),
        _ => facts.clone(),
    };
    let change = GroupChange { id: group.id.clone(), facts, stores, gone, all };
    (is_written.then_some(change), cursor)
}

/// Identity of a kept store; derived stores are not kept. Of guarded types the stable content is kept: after
/// a restart the control plane sends a change on trial again, and it is tried again.
fn kept_store(of: &TypeCache, cache: &Cache, selection: Selection) -> Option<StoreId> {
    let (type_url, view) = (of.type_url(), of.parameter_view());
    let track = cache.fleet_track(type_url);
    let parameters = view.as_whole().filter(|_| view.track() == track)?.clone();
    selection.has(type_url).then(|| StoreId { type_url: type_url.clone(), parameters })
}

fn store_change(
    id: StoreId,
    snapshot: Arc<Snapshot>,
    earlier: Option<&Snapshot>,
    selection: Selection,
    clock: Clock,
) -> StoreChange {
    let (completeness, members) = wildcard_kept(&snapshot, clock.now);
    let facts = StoreFacts { completeness, members: members as u64, ..StoreFacts::default() };
    let names = match earlier {
        Some(earlier) => Names::Some(snapshot.changed_since(earlier)),
        None => Names::All(snapshot.entries().map(|entry| Name::clone(entry.name())).collect()),
    };
    StoreChange { id, facts, names, snapshot, selection, clock }
}
