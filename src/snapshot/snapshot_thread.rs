//! The thread that copies what changed to the file, once a second.
//!
//! Owns how far each store has been copied. It reads snapshots of the caches as a client does: for each store it has a position,
//! and asks for the names that changed after it. Nothing waits for it and nothing queues for it; a store that changed more than
//! is remembered is compared as a whole.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::disk_state::{CANNOT_WRITE, Disk, clock};
use super::snapshot_file::FileError;
use super::snapshot_keys::GroupId;
use super::snapshot_store::{Changes, GroupChange, Names, StoreChange};
use super::{FileFault, GroupFacts, StoreFacts};
use crate::cache::{Cache, Completeness, Generation, Snapshot, Track, TypeCache};
use crate::resource::Name;
use crate::snapshot_content::{Clock, Selection, StoreId, wildcard_kept};

/// Time between two transactions.
const PERIOD: Duration = Duration::from_secs(1);
/// Time after which the moments up to which content is current are written though nothing changed: those of all groups at once.
const MOMENTS: Duration = Duration::from_secs(60);
/// Difference from which on such a moment is another one. It may lie back: the clock may be set.
const MOVED: Duration = Duration::from_secs(1);
/// First and longest wait before the file is tried again after a fault.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Longest wait where another process has the file open: that may be about to end, with this relay in its place.
const RETRY_LOCKED: Duration = Duration::from_secs(5);
/// Time after which a run counts: a relay that is restarted soon again has not seen which groups are live.
const COUNTS: Duration = Duration::from_secs(600);

/// A node group that runs.
#[derive(Clone, Debug)]
pub struct LiveGroup {
    /// Its identity.
    pub id: GroupId,
    /// Its cache.
    pub cache: Arc<Cache>,
    /// Digest of the node that its control plane is shown.
    pub node: u128,
    /// URI of the server that its content came from; empty if there were several.
    pub server: String,
    /// Time since its content was last known to be current; `None` if its control plane has never answered.
    pub current: Option<Duration>,
}

/// Source of the node groups that run. A group that was not loaded yet is none of them.
pub trait LiveGroups: Send + 'static {
    /// All of them.
    fn all(&self) -> Vec<LiveGroup>;
}

/// The thread.
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
    /// Error of the system if there may be no more threads.
    pub fn start(disk: Arc<Disk>, groups: impl LiveGroups) -> std::io::Result<Self> {
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

    /// Has it write once more, and waits for its end.
    pub fn finish(self) {
        let Self { stop, thread } = self;
        drop(stop);
        if thread.join().is_err() {
            tracing::warn!("the thread of the snapshot panicked; this is a bug in deltafan");
        }
    }
}

/// How far a group was copied.
#[derive(Debug, Default)]
pub(super) struct GroupCursor {
    /// Number of its cache: a group that was released and made again has another one.
    cache: u64,
    stores: HashMap<StoreId, StoreCursor>,
    facts: GroupFacts,
}

/// How far a store was copied.
#[derive(Clone, Copy, Debug)]
struct StoreCursor {
    /// Its number: a store that was dropped and made again has another one.
    index: u32,
    generation: Generation,
    completeness: Completeness,
}

pub(super) struct Writer<G> {
    disk: Arc<Disk>,
    groups: G,
    cursors: HashMap<GroupId, GroupCursor>,
    /// The file that the cursors are about, by how often one was opened.
    opened: Option<u64>,
    /// Number of this run, as of the file that is open.
    run: Option<u64>,
    /// Whether the run counts in that file.
    is_counted: bool,
    /// When the moments of all groups were written last.
    moments_at: Option<Instant>,
    retry_at: Option<Instant>,
    backoff: Duration,
}

impl<G: LiveGroups> Writer<G> {
    pub(super) fn new(disk: Arc<Disk>, groups: G) -> Self {
        let cursors = HashMap::new();
        Self {
            disk,
            groups,
            cursors,
            opened: None,
            run: None,
            is_counted: false,
            moments_at: None,
            retry_at: None,
            backoff: RETRY.0,
        }
    }

    /// Writes what has changed. The last time it is tried whatever happened before.
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
        if std::mem::replace(&mut self.opened, open.opened()) != open.opened() {
            self.begin_anew();
        }
        let result = self.run_number(open).and_then(|run| {
            let selection = self.disk.settings.selection;
            let live = self.groups.all();
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

    /// Nothing is known of the file.
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

    /// A group that went to another server since it was looked at may hold resources of both.
    fn note_switches(
        &self,
        live: &[LiveGroup],
        changes: &mut Changes,
        cursors: &mut HashMap<GroupId, GroupCursor>,
    ) {
        let now = self.groups.all();
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

    /// Changes since the last transaction, and how far everything is copied when they are written.
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
            // The file may have more of it than the relay, which could not read it. Its control plane has not answered either.
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
    };
    let mut cursor = GroupCursor { cache: group.cache.number(), ..GroupCursor::default() };
    let mut stores = Vec::new();
    for of in group.cache.types() {
        let Some(id) = kept_store(&of, &group.cache, selection) else { continue };
        let (index, snapshot) = (of.index(), of.snapshot());
        let at = before.and_then(|before| before.stores.get(&id)).filter(|at| at.index == index);
        let (completeness, generation) = (wildcard_kept(&snapshot, clock.now).0, snapshot.generation());
        cursor.stores.insert(id.clone(), StoreCursor { index, generation, completeness });
        if at.is_none_or(|at| (at.generation, at.completeness) != (generation, completeness)) {
            stores.push(store_change(id, snapshot, at.map(|at| at.generation), selection, clock));
        }
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

/// Identity of a store that is kept: one that is filled from others is not. Where changes are guarded, the stable content is kept:
/// after a restart a change that was on trial comes from the control plane again, and is tried again.
fn kept_store(of: &TypeCache, cache: &Cache, selection: Selection) -> Option<StoreId> {
    let (type_url, view) = (of.type_url(), of.parameter_view());
    let track = if cache.rollout_of(type_url).is_some() { Track::Stable } else { Track::Origin };
    let parameters = view.as_whole().filter(|_| view.track() == track)?.clone();
    selection.has(type_url).then(|| StoreId { type_url: type_url.clone(), parameters })
}

fn store_change(
    id: StoreId,
    snapshot: Arc<Snapshot>,
    since: Option<Generation>,
    selection: Selection,
    clock: Clock,
) -> StoreChange {
    let (completeness, members) = wildcard_kept(&snapshot, clock.now);
    let facts = StoreFacts { completeness, members: members as u64, ..StoreFacts::default() };
    let changed = since.and_then(|since| snapshot.changed_since(since));
    let names = changed.map_or_else(
        || Names::All(snapshot.entries().map(|entry| Name::clone(entry.name())).collect()),
        Names::Some,
    );
    StoreChange { id, facts, names, snapshot, selection, clock }
}
