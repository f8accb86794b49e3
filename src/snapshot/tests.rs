//! The file, as it is and as it must not be.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use deltafan_test_support::small_disk::SmallDisk;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use redb::ReadableDatabase as _;
use tempfile::TempDir;

use super::disk_state::Disk;
use super::snapshot_encoding::META;
use super::snapshot_file::{FILE, FileError};
use super::snapshot_store::{Cursors, StoredGroup};
use super::snapshot_thread::{LiveGroup, LiveGroups, Writer};
use super::{GroupId, SnapshotSettings, report, verify};
use crate::cache::{self, Budget, Cache, Change, Lease, Limits, Op, View};
use crate::resource::{Envelope, Kind, Name, Resource, TypeUrl, wire};
use crate::snapshot_content::{Clock, Content, Kept, Selection};

const NODE: u128 = 7;
const MAX_GROUPS: usize = 4;

fn resource(type_url: &TypeUrl, name: &str, version: &str) -> Arc<Resource> {
    let field = |number, payload: &[u8]| {
        let mut out = BytesMut::new();
        wire::put_field(&mut out, number, payload);
        out.to_vec()
    };
    let body = format!("{name}@{version}");
    let any = [field(1, type_url.as_str().as_bytes()), field(2, body.as_bytes())].concat();
    let sent = [field(1, version.as_bytes()), field(2, &any), field(3, name.as_bytes())].concat();
    let envelope = Envelope::parse(&sent, type_url).unwrap();
    Arc::new(envelope.encode(type_url, name.into()).unwrap())
}

/// Groups of a test.
#[derive(Clone, Default)]
struct Live(Arc<Mutex<Vec<LiveGroup>>>);

impl Live {
    fn groups(&self) -> LiveGroups {
        let live = Arc::clone(&self.0);
        Box::new(move || live.lock().clone())
    }
}

/// A relay's caches, and the thread that writes them, without the thread.
struct Fixture {
    live: Live,
    budget: Budget,
    writers: BTreeMap<GroupId, cache::Writer>,
    disk: Arc<Disk>,
    writer: Writer,
}

fn open(folder: &Path, secrets: bool) -> Arc<Disk> {
    Disk::open(SnapshotSettings {
        folder: folder.to_owned(),
        max_groups: MAX_GROUPS,
        selection: Selection { secrets },
    })
}

/// Content of a group in the file.
fn stored(disk: &Disk, group: &GroupId, node: u128) -> Option<StoredGroup> {
    disk.load(group, node).ok()?
}

impl Fixture {
    fn new(folder: &Path) -> Self {
        let (live, disk) = (Live::default(), open(folder, true));
        let writer = Writer::new(Arc::clone(&disk), live.groups());
        let (budget, writers) = (Budget::new(1 << 20), BTreeMap::new());
        let mut fixture = Self { live, budget, writers, disk, writer };
        fixture.add(GroupId::own());
        fixture
    }

    /// Starts a group that reads its content, if the file can be read.
    fn add(&mut self, id: GroupId) {
        self.start(id.clone());
        if self.disk.load(&id, NODE).is_ok() {
            self.disk.note_read(id, &self.live.0.lock().last().unwrap().cache);
        }
    }

    fn start(&mut self, id: GroupId) {
        let (cache, writer) = Cache::guarded(Limits::default(), &self.budget, None);
        let (server, current) = ("http://a:1".to_owned(), Some(Duration::from_secs(5)));
        self.live.0.lock().push(LiveGroup { id: id.clone(), cache, node: NODE, server, current });
        self.writers.insert(id, writer);
    }

    fn apply(&mut self, id: &GroupId, kind: Kind, ops: Vec<Op>) {
        let writer = self.writers.get_mut(id).unwrap();
        writer.apply(&kind.into(), Change { ops, ..Change::default() }, Instant::now()).unwrap();
    }

    fn set(&mut self, id: &GroupId, kind: Kind, versions: &[(&str, &str)]) {
        let type_url: TypeUrl = kind.into();
        let held = |(name, version): &(&str, &str)| {
            Op::held(View::Wildcard, resource(&type_url, name, version), None)
        };
        self.apply(id, kind, versions.iter().map(held).collect());
    }

    fn write(&self) {
        // A process that another test starts has the locks of this one between fork and exec.
        let is_locked = || self.disk.status().error == Some(FileError::Locked.to_string());
        let begun = Instant::now();
        while self.writer.write(false).is_err() {
            assert!(is_locked() && begun.elapsed() < Duration::from_secs(10), "{:?}", self.disk.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Positions of the groups that differ from what was written last.
fn behind(fixture: &Fixture, clock: Clock) -> Cursors {
    let (store, live) = (fixture.disk.store.lock(), fixture.live.groups()());
    let mut cursors = fixture.writer.cursors(&live, clock, false);
    cursors.retain(|(id, cursor)| store.as_ref().unwrap().cursors.get(id) != Some(cursor));
    cursors
}

/// Names and versions in content.
fn versions(content: &Content) -> Vec<(String, String)> {
    let records = content.stores.iter().flat_map(|store| &store.records);
    let version = |(name, record): &(Name, crate::snapshot_content::Record)| match &record.kept {
        Kept::Resource(resource) => {
            assert!(resource.body().ends_with(format!("{name}@{}", resource.version()).as_bytes()), "{name}");
            Some((name.to_string(), resource.version().to_owned()))
        }
        Kept::Collection => None,
    };
    records.filter_map(version).collect()
}

fn loaded(folder: &Path, id: &GroupId) -> Vec<(String, String)> {
    stored(&open(folder, true), id, NODE).map(|loaded| versions(&loaded.content)).unwrap_or_default()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
}

fn edge() -> GroupId {
    GroupId::from_text(r#"["edge",""]"#)
}

#[test]
fn changes_are_on_disk_with_the_next_transaction_and_for_the_owner_alone() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("a/snapshot");
    let own = GroupId::own();
    {
        let mut fixture = Fixture::new(&folder);
        fixture.add(edge());
        fixture.set(&own, Kind::Cluster, &[("a", "1"), ("b", "1"), ("c", "1")]);
        fixture.set(&edge(), Kind::Cluster, &[("a", "9")]);
        fixture.write();
        fixture.set(&own, Kind::Cluster, &[("b", "2")]);
        fixture.apply(&own, Kind::Cluster, vec![Op::Remove { view: View::Wildcard, name: "c".into() }]);
        fixture.write();
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join(FILE))), (0o700, 0o600));
    assert_eq!(loaded(&folder, &own), pairs(&[("a", "1"), ("b", "2")]));
    assert_eq!(loaded(&folder, &edge()), pairs(&[("a", "9")]));
    let loaded = stored(&open(&folder, true), &own, NODE).unwrap();
    assert_eq!(loaded.facts.server, "http://a:1");
    assert!(loaded.age(super::clock()).is_some_and(|age| age >= Duration::from_secs(5)));
    assert!(stored(&open(&folder, true), &own, NODE + 1).is_none(), "it is of another node");
}

#[test]
fn nothing_is_written_while_nothing_changes_and_a_change_of_one_is_small() {
    let home = tempfile::tempdir().unwrap();
    let mut fixture = Fixture::new(home.path());
    let own = GroupId::own();
    let names: Vec<String> = (0..1_000).map(|number| format!("c{number}")).collect();
    let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    fixture.set(&own, Kind::Cluster, &all);
    fixture.write();
    fixture.write();
    fixture.write();
    assert!(fixture.disk.status().writes <= 2, "at most one more, as a minute began");
    fixture.set(&own, Kind::Cluster, &[("c500", "2")]);
    let behind = behind(&fixture, super::disk_state::clock());
    let store = fixture.disk.store.lock();
    let (id, cursor) = behind[0].1.stores.iter().next().unwrap();
    let written = &store.as_ref().unwrap().cursors[&own].stores[id];
    assert_eq!(cursor.snapshot.changed_since(&written.snapshot).len(), 1);
}

/// Nothing else changes. Of a control plane that is away the moment stays.
#[test]
fn the_moment_up_to_which_content_is_current_is_written_every_minute() {
    let home = tempfile::tempdir().unwrap();
    let mut fixture = Fixture::new(home.path());
    let own = GroupId::own();
    fixture.add(edge());
    fixture.set(&own, Kind::Cluster, &[("a", "1")]);
    fixture.set(&edge(), Kind::Cluster, &[("a", "1")]);
    let tell = |fixture: &Fixture, own: u64, edge: u64| {
        let mut live = fixture.live.0.lock();
        (live[0].current, live[1].current) =
            (Some(Duration::from_secs(own)), Some(Duration::from_secs(edge)));
    };
    tell(&fixture, 0, 5);
    fixture.write();
    // The next minute after what was written.
    let base = super::disk_state::clock();
    let minute = Duration::from_secs((base.unix.as_secs() / 60 + 2) * 60);
    let written = |fixture: &Fixture, unix: Duration| {
        let behind = behind(fixture, Clock { now: base.now, unix });
        behind.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>()
    };
    tell(&fixture, 0, 3_600);
    assert_eq!(written(&fixture, minute), ["own", "edge"], "in one transaction");
    fixture.live.0.lock()[1].current = None;
    fixture.write();
    assert_eq!(written(&fixture, minute), ["own"]);
    assert_eq!(written(&fixture, minute - Duration::from_secs(3_600)), ["own"], "the clock was set back");
}

#[test]
fn secrets_that_are_not_to_be_kept_are_neither_read_nor_left() {
    let home = tempfile::tempdir().unwrap();
    let own = GroupId::own();
    {
        let mut fixture = Fixture::new(home.path());
        fixture.set(&own, Kind::Secret, &[("key", "1")]);
        fixture.set(&own, Kind::Cluster, &[("a", "1")]);
        fixture.write();
    }
    assert_eq!(loaded(home.path(), &own), pairs(&[("a", "1"), ("key", "1")]));
    {
        let disk = open(home.path(), false);
        assert_eq!(versions(&stored(&disk, &own, NODE).unwrap().content), pairs(&[("a", "1")]));
        let (cache, mut cache_writer) = Cache::new(Limits::default());
        disk.note_read(own.clone(), &cache);
        let sds = TypeUrl::from(Kind::Secret);
        let ops = vec![Op::held(View::Named, resource(&sds, "key", "1"), None)];
        cache_writer.apply(&sds, Change { ops, ..Change::default() }, Instant::now()).unwrap();
        let live = Live::default();
        let server = String::new();
        live.0.lock().push(LiveGroup { id: own.clone(), cache, node: NODE, server, current: None });
        Writer::new(disk, live.groups()).write(false).unwrap();
    }
    assert_eq!(loaded(home.path(), &own), []);
}

#[test]
fn a_group_that_was_released_stays_and_one_that_is_made_again_is_compared() {
    let home = tempfile::tempdir().unwrap();
    {
        let mut fixture = Fixture::new(home.path());
        fixture.add(edge());
        fixture.set(&edge(), Kind::Cluster, &[("a", "1"), ("b", "1")]);
        fixture.write();
        fixture.live.0.lock().pop();
        fixture.add(edge());
        fixture.set(&edge(), Kind::Cluster, &[("b", "1")]);
        fixture.write();
    }
    assert_eq!(loaded(home.path(), &edge()), pairs(&[("b", "1")]));
    {
        let mut fixture = Fixture::new(home.path());
        fixture.add(edge());
        fixture.live.0.lock().pop();
        fixture.start(edge());
        fixture.live.0.lock().last_mut().unwrap().current = None;
        fixture.write();
    }
    assert_eq!(loaded(home.path(), &edge()), pairs(&[("b", "1")]), "its content was read for the one before");
    {
        let mut fixture = Fixture::new(home.path());
        fixture.add(edge());
        fixture.write();
        fixture.live.0.lock().pop();
        fixture.write();
    }
    assert_eq!(loaded(home.path(), &edge()), []);
}

/// Clients may make as many groups as they make up nodes.
#[test]
fn of_groups_that_do_not_run_no_more_stay_than_may_run() {
    let home = tempfile::tempdir().unwrap();
    let numbered = |number: usize| GroupId::from_text(&format!(r#"["made-{number:02}",""]"#));
    let mut fixture = Fixture::new(home.path());
    for number in 0..3 * MAX_GROUPS {
        fixture.add(numbered(number));
        fixture.live.0.lock().last_mut().unwrap().current = Some(Duration::from_secs(1_000 - number as u64));
        fixture.set(&numbered(number), Kind::Cluster, &[("a", "1")]);
        fixture.write();
        fixture.live.0.lock().pop();
    }
    fixture.add(edge());
    fixture.write();
    let groups = fixture.disk.store.lock().as_ref().unwrap().groups().unwrap();
    assert!(groups.len() <= MAX_GROUPS + 2, "{}", groups.len());
    assert!(groups.iter().any(|(id, _)| *id == numbered(3 * MAX_GROUPS - 1)), "the newest");
}

/// Another process had the file when this one started, and its control plane is away.
#[test]
fn content_that_was_not_read_is_not_written_over_until_the_control_plane_has_answered() {
    let home = tempfile::tempdir().unwrap();
    let own = GroupId::own();
    let mut before = Fixture::new(home.path());
    before.set(&own, Kind::Cluster, &[("a", "1")]);
    before.write();
    let fixture = Fixture::new(home.path());
    assert!(stored(&fixture.disk, &own, NODE).is_none());
    fixture.live.0.lock()[0].current = None;
    drop(before);
    fixture.writer.write(false).unwrap();
    assert_eq!(versions(&stored(&fixture.disk, &own, NODE).unwrap().content), pairs(&[("a", "1")]));
    drop(fixture);
    let mut fixture = Fixture::new(home.path());
    fixture.set(&own, Kind::Cluster, &[("b", "1")]);
    fixture.write();
    assert_eq!(loaded_from(&fixture, &own), pairs(&[("b", "1")]), "it has answered");
}

#[test]
fn a_file_that_was_moved_away_is_noticed_and_one_in_its_place_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let own = GroupId::own();
    let mut fixture = Fixture::new(home.path());
    fixture.set(&own, Kind::Cluster, &[("a", "1")]);
    fixture.write();
    std::fs::rename(fixture.disk.path(), home.path().join("moved")).unwrap();
    assert!(fixture.writer.write(false).is_err());
    assert!(fixture.disk.status().error.is_some_and(|error| error.contains("moved away or replaced")));
    fixture.writer.write(false).unwrap();
    assert_eq!(loaded_from(&fixture, &own), pairs(&[("a", "1")]), "begun anew");
    std::fs::write(home.path().join("theirs"), "theirs").unwrap();
    std::fs::rename(home.path().join("theirs"), fixture.disk.path()).unwrap();
    assert!(fixture.writer.write(false).is_err() && fixture.writer.write(false).is_err());
    assert_eq!(std::fs::read(fixture.disk.path()).unwrap(), b"theirs");
}

#[test]
fn a_pipe_in_the_place_of_the_file_holds_up_nothing() {
    let home = tempfile::tempdir().unwrap();
    let made =
        std::process::Command::new("mkfifo").arg(home.path().join(super::snapshot_file::FILE)).status();
    assert!(made.unwrap().success());
    let disk = open(home.path(), true);
    assert!(disk.status().error.is_some_and(|error| error.contains("no snapshot of deltafan")));
}

fn loaded_from(fixture: &Fixture, id: &GroupId) -> Vec<(String, String)> {
    versions(&stored(&fixture.disk, id, NODE).unwrap().content)
}

#[test]
fn a_ttl_is_an_absolute_time_on_disk() {
    let home = tempfile::tempdir().unwrap();
    let own = GroupId::own();
    let mut fixture = Fixture::new(home.path());
    let eds = TypeUrl::from(Kind::Endpoint);
    let lease = Lease::new(Duration::from_secs(100), Instant::now());
    fixture.apply(&own, Kind::Endpoint, vec![Op::held(View::Named, resource(&eds, "a", "1"), lease)]);
    fixture.write();
    let loaded = stored(&fixture.disk, &own, NODE).unwrap();
    let (ttl, deadline) = loaded.content.stores[0].records[0].1.lease.unwrap();
    let left = super::disk_state::clock().left_until(deadline).unwrap();
    assert_eq!(ttl, Duration::from_secs(100));
    assert!(left <= ttl && left > Duration::from_secs(30), "{left:?}");
}

/// A folder in memory, if the system has one: nothing waits for a disk.
fn home_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A small file; returns its bytes and what may be loaded from it.
fn small_file(home: &TempDir) -> (Vec<u8>, Vec<(String, String)>) {
    let folder = home.path().join("origin");
    let mut fixture = Fixture::new(&folder);
    let own = GroupId::own();
    fixture.set(&own, Kind::Cluster, &[("a", "1"), ("b", "1"), ("c", "1")]);
    fixture.write();
    fixture.set(&own, Kind::Cluster, &[("b", "2")]);
    fixture.write();
    // As after a kill: the file was not closed.
    let bytes = fs::read(folder.join(FILE)).unwrap();
    (bytes, pairs(&[("a", "1"), ("b", "2"), ("c", "1")]))
}

/// Loads the own group from a file with these bytes. It has to be whole, or nothing with an error that says why.
fn load_torn(folder: &Path, bytes: &[u8], whole: &[(String, String)]) -> bool {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(FILE), bytes).unwrap();
    let disk = open(folder, true);
    let found =
        stored(&disk, &GroupId::own(), NODE).map(|loaded| versions(&loaded.content)).unwrap_or_default();
    let is_told = disk.status().error.is_some();
    drop(disk);
    assert!(found == whole || (found.is_empty() && is_told), "{found:?}, told: {is_told}");
    for entry in fs::read_dir(folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    found == whole
}

#[test]
fn a_torn_file_loads_nothing_wrong_wherever_it_is_cut() {
    let home = home_in_memory();
    let (bytes, whole) = small_file(&home);
    let folder = home.path().join("torn");
    assert!(load_torn(&folder, &bytes, &whole));
    let mut rng = StdRng::seed_from_u64(1);
    let cuts = (0..bytes.len()).step_by(4096).chain(0..200);
    let cuts: Vec<usize> = cuts.chain((0..100).map(|_| rng.random_range(0..bytes.len()))).collect();
    for cut in cuts {
        load_torn(&folder, &bytes[..cut], &whole);
        // Space of the file was given out, and what stood there was not written.
        let mut zeroed = bytes.clone();
        zeroed[cut..].fill(0);
        load_torn(&folder, &zeroed, &whole);
    }
}

#[test]
fn a_file_with_a_wrong_bit_loads_nothing_wrong() {
    let home = home_in_memory();
    let (bytes, whole) = small_file(&home);
    let folder = home.path().join("torn");
    let mut rng = StdRng::seed_from_u64(2);
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    for round in 0..900 {
        // The header, bytes that mean something, and any others.
        let at = match round % 3 {
            0 => rng.random_range(0..320),
            1 => used[rng.random_range(0..used.len())],
            _ => rng.random_range(0..bytes.len()),
        };
        let mut torn = bytes.clone();
        torn[at] ^= 1 << rng.random_range(0..8);
        load_torn(&folder, &torn, &whole);
    }
}

/// A loss of power may leave a file that is empty, cut short, or full of zeros.
#[test]
fn a_file_whose_beginning_was_not_written_is_moved_aside() {
    for left in [&b""[..], b"redb", &[0; 4096]] {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(FILE), left).unwrap();
        for looked in [verify(home.path()).map(drop), report(home.path()).map(drop)] {
            let fault = looked.unwrap_err().to_string();
            assert!(fault.contains("corrupt"), "{fault}");
        }
        let fault = open(home.path(), true).status().error.unwrap_or_default();
        assert!(fault.contains("corrupt"), "{fault}");
        assert_eq!(fs::read(home.path().join(format!("{FILE}.corrupt"))).unwrap(), left);
        assert_eq!(open(home.path(), true).status().error, None);
    }
}

#[test]
fn a_file_of_others_and_one_of_a_later_version_are_not_touched() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(FILE);
    fs::write(&file, "a letter").unwrap();
    let fault = |disk: &Disk| disk.status().error.unwrap_or_default();
    let disk = open(home.path(), true);
    assert_eq!(fault(&disk), FileError::Foreign.to_string());
    let looked = verify(home.path()).unwrap_err().to_string();
    assert!(looked.contains("no snapshot of deltafan"), "{looked}");
    assert_eq!(fs::read(&file).unwrap(), b"a letter");
    fs::remove_file(&file).unwrap();

    let table = redb::TableDefinition::<&str, u64>::new("of others");
    {
        let database = redb::Database::create(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(table).unwrap().insert("a", 1).unwrap();
        transaction.commit().unwrap();
    }
    assert_eq!(fault(&open(home.path(), true)), FileError::Foreign.to_string());
    {
        let database = redb::Database::create(&file).unwrap();
        let transaction = database.begin_read().unwrap();
        assert_eq!(transaction.open_table(table).unwrap().get("a").unwrap().unwrap().value(), 1);
    }
    fs::remove_file(&file).unwrap();

    drop(open(home.path(), true));
    {
        let database = redb::Database::create(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("format", 1_000).unwrap();
        transaction.commit().unwrap();
    }
    let disk = open(home.path(), true);
    assert!(fault(&disk).contains("a later version"), "{}", fault(&disk));
    assert!(file.exists() && fs::read_dir(home.path()).unwrap().count() == 1);
}

#[test]
fn a_corrupt_file_is_moved_aside_and_a_new_one_is_written() {
    let home = tempfile::tempdir().unwrap();
    let (mut bytes, _) = small_file(&home);
    let folder = home.path().join("torn");
    fs::create_dir(&folder).unwrap();
    bytes[20..].fill(0xa5);
    fs::write(folder.join(FILE), &bytes).unwrap();
    let mut fixture = Fixture::new(&folder);
    assert!(fixture.disk.status().error.is_some_and(|error| error.contains("corrupt")));
    assert_eq!(fs::read(folder.join("cache.redb.corrupt")).unwrap(), bytes);
    fixture.set(&GroupId::own(), Kind::Cluster, &[("a", "1")]);
    fixture.write();
    drop(fixture);
    assert_eq!(loaded(&folder, &GroupId::own()), pairs(&[("a", "1")]));
}

/// A group that could not be read gives the file up, and the thread does not know.
#[test]
fn a_file_that_was_opened_anew_is_compared_as_a_whole() {
    let home = tempfile::tempdir().unwrap();
    let mut fixture = Fixture::new(home.path());
    fixture.set(&GroupId::own(), Kind::Cluster, &[("a", "1")]);
    fixture.write();
    fixture.disk.close();
    fs::remove_file(home.path().join(FILE)).unwrap();
    fixture.set(&GroupId::own(), Kind::Cluster, &[("b", "1")]);
    fixture.write();
    drop(fixture);
    assert_eq!(loaded(home.path(), &GroupId::own()), pairs(&[("a", "1"), ("b", "1")]));
}

#[test]
fn a_second_process_leaves_the_file_alone_and_takes_it_when_it_is_free() {
    let home = tempfile::tempdir().unwrap();
    let mut first = Fixture::new(home.path());
    first.set(&GroupId::own(), Kind::Cluster, &[("a", "1")]);
    first.write();
    let mut second = Fixture::new(home.path());
    assert_eq!(second.disk.status().error, Some(FileError::Locked.to_string()));
    assert!(stored(&second.disk, &GroupId::own(), NODE).is_none());
    assert!(second.writer.write(false).is_err());
    drop(first);
    second.set(&GroupId::own(), Kind::Cluster, &[("b", "1")]);
    second.write();
    assert_eq!(second.disk.status().error, None);
    drop(second);
    assert_eq!(loaded(home.path(), &GroupId::own()), pairs(&[("b", "1")]));
}

/// Its control plane is away, so that there is nothing to write yet.
#[test]
fn a_file_that_is_free_again_is_no_fault_though_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    let first = Fixture::new(home.path());
    let second = Fixture::new(home.path());
    second.live.0.lock()[0].current = None;
    assert!(second.writer.write(false).is_err());
    drop(first);
    second.write();
    assert_eq!((second.disk.status().error, second.disk.status().writes), (None, 0));
}

/// Content can be read there, and not written.
#[test]
fn a_disk_that_is_read_only_is_read() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(home.path(), "size=40m") else { return };
    let (own, folder) = (GroupId::own(), home.path().join("snapshot"));
    let mut before = Fixture::new(&folder);
    before.add(edge());
    before.set(&own, Kind::Cluster, &[("a", "1")]);
    before.set(&edge(), Kind::Cluster, &[("e", "1")]);
    before.write();
    drop(before);
    disk.remount("ro");
    let mut fixture = Fixture::new(&folder);
    assert_eq!(loaded_from(&fixture, &own), pairs(&[("a", "1")]));
    assert_eq!(fixture.disk.others().map(|others| others.groups), Some(1));
    let told = |fixture: &Fixture| fixture.disk.status().error.unwrap_or_default();
    assert!(told(&fixture).contains("Read-only"), "{}", told(&fixture));
    assert!(fixture.writer.write(false).is_err(), "it cannot be written");
    assert!(told(&fixture).contains("Read-only"), "{}", told(&fixture));
    assert_eq!(loaded_from(&fixture, &edge()), pairs(&[("e", "1")]), "its first client comes later");
    disk.remount("rw");
    fixture.set(&own, Kind::Cluster, &[("b", "1")]);
    fixture.write();
    assert_eq!(fixture.disk.status().error, None);
    assert_eq!(loaded_from(&fixture, &own), pairs(&[("b", "1")]));
}

/// Pages that a transaction took before it failed are in nobody's way.
#[test]
fn a_disk_that_the_snapshot_filled_has_room_again_for_less() {
    let home = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(home.path(), "size=1m") else { return };
    let own = GroupId::own();
    let mut fixture = Fixture::new(&home.path().join("snapshot"));
    fixture.add(edge());
    fixture.set(&edge(), Kind::Cluster, &[("e", "1")]);
    let names: Vec<String> = (0..4_000).map(|number| format!("c{number:04}")).collect();
    let few = |version: &str| -> Vec<(String, String)> {
        names[..900].iter().map(|name| (name.clone(), version.to_owned() + &"x".repeat(100))).collect()
    };
    let set = |fixture: &mut Fixture, all: &[(String, String)]| {
        let all: Vec<(&str, &str)> = all.iter().map(|(name, version)| (&**name, &**version)).collect();
        fixture.set(&own, Kind::Cluster, &all);
    };
    set(&mut fixture, &few("1"));
    fixture.write();
    let large = "2".repeat(900);
    let all: Vec<(String, String)> = names.iter().map(|name| (name.clone(), large.clone())).collect();
    set(&mut fixture, &all);
    assert!(fixture.writer.write(false).is_err() && fixture.writer.write(false).is_err());
    let gone =
        names[900..].iter().map(|name| Op::Remove { view: View::Wildcard, name: name.as_str().into() });
    fixture.apply(&own, Kind::Cluster, gone.collect());
    set(&mut fixture, &few("3"));
    fixture.write();
    assert_eq!(fixture.disk.status().error, None);
    drop(fixture);
    assert_eq!(loaded(&home.path().join("snapshot"), &own), few("3"));
    assert_eq!(loaded(&home.path().join("snapshot"), &edge()), pairs(&[("e", "1")]));
}

/// Rules may make groups of one text, and one rule may of other values.
#[test]
fn groups_of_one_text_are_told_apart_by_rule_and_values() {
    let home = tempfile::tempdir().unwrap();
    let ids = [
        r#"["edge","x-y-z","x","y-z"]"#,
        r#"["edge","x-y-z","x-y","z"]"#,
        r#"["core","x","x"]"#,
        r#"["own",""]"#,
    ];
    let mut fixture = Fixture::new(home.path());
    for id in ids.map(GroupId::from_text) {
        fixture.add(id.clone());
        fixture.set(&id, Kind::Cluster, &[("a", "1")]);
    }
    fixture.write();
    assert_eq!(fixture.disk.others().unwrap().groups, 4);
    drop(fixture);
    let json = report(home.path()).unwrap();
    let of = |at: usize| (json["groups"][at]["rule"].clone(), json["groups"][at]["values"].clone());
    assert_eq!(of(0), (serde_json::Value::Null, serde_json::Value::Null));
    assert_eq!(of(3), ("edge".into(), serde_json::json!(["x-y", "z"])));
}

#[test]
fn a_snapshot_is_shown_and_verified_without_a_change_of_the_file() {
    let home = tempfile::tempdir().unwrap();
    let (bytes, _) = small_file(&home);
    let file = home.path().join(FILE);
    fs::write(&file, &bytes).unwrap();
    for path in [home.path(), &file] {
        let json = report(path).unwrap();
        assert!(!json.to_string().contains("a@1"), "a body is shown: {json}");
        assert_eq!(
            (&json["groups"][0]["group"], &json["groups"][0]["server"]),
            (&"own".into(), &"http://a:1".into())
        );
        assert_eq!(json["groups"][0]["types"][0]["resources"][1]["version"], "2");
        assert_eq!(verify(path).unwrap(), "intact: groups 1, types 1, records 3\n");
    }
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let mut torn = bytes;
    for at in 0..torn.len() - 3 {
        // In both of the last transactions: the library goes back to the one before.
        if &torn[at..at + 3] == b"a@1" {
            torn[at] ^= 1;
        }
    }
    fs::write(&file, &torn).unwrap();
    let broken = verify(home.path()).unwrap_err().to_string();
    assert!(broken.contains("corrupt"), "{broken}");
    assert_eq!(fs::read(&file).unwrap(), torn);
    let _disk = {
        fs::remove_file(&file).unwrap();
        open(home.path(), true)
    };
    assert!(verify(home.path()).unwrap_err().to_string().contains("a relay has it open"));
}
