//! Events in a folder that wake the user of a watch, and those that do not.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use std::ffi::OsStr;

use super::*;

const AT_ONCE: Debounce = Debounce { quiet: Duration::ZERO, longest: Duration::ZERO };
const HOUR: Duration = Duration::from_secs(3_600);

/// Watched file `relay.yaml` in `home`; or all files of `home` that a rule matches.
struct Fixture {
    _root: TempDir,
    home: PathBuf,
    follower: FileFollower,
    wakes: Arc<AtomicUsize>,
}

type Rule = fn(&OsStr) -> bool;

impl Fixture {
    fn new() -> Self {
        Self::with(AT_ONCE, None)
    }

    fn with(debounce: Debounce, rule: Option<Rule>) -> Self {
        let root = TempDir::new().unwrap();
        let home = root.path().canonicalize().unwrap().join("home");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("relay.yaml"), "1").unwrap();
        let wakes = Arc::new(AtomicUsize::new(0));
        let (count, folder) = (Arc::clone(&wakes), home.clone());
        let look = move |watcher: &mut FileWatcher| {
            watcher.renew(|| {
                let mut paths = WatchedPaths::default();
                match rule {
                    Some(rule) => paths.add_entries(&folder, rule),
                    None => _ = paths.add(&folder.join("relay.yaml")),
                }
                paths
            });
            count.fetch_add(1, Ordering::Relaxed);
        };
        let follower = FileFollower::start(("test", "a test"), (debounce, HOUR), look).unwrap();
        let fixture = Self { _root: root, home, follower, wakes };
        fixture.wait_for(0, "the start");
        fixture
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Waits for more looks than these.
    fn wait_for(&self, before: usize, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.wakes() <= before {
            assert!(Instant::now() < deadline, "not noticed: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn look(&self) {
        let before = self.wakes();
        self.follower.wake();
        self.wait_for(before, "a wake-up");
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Asserts that `act` is noticed.
    fn notices(&self, what: &str, act: impl FnOnce(&Self)) {
        self.look();
        let before = self.wakes();
        act(self);
        self.wait_for(before, what);
        self.rest();
    }

    /// Asserts that `act` is not noticed.
    fn ignores(&self, what: &str, act: impl FnOnce(&Self)) {
        self.look();
        self.rest();
        let before = self.wakes();
        act(self);
        self.rest();
        assert_eq!(self.wakes(), before, "noticed: {what}");
    }

    /// Waits until all events so far are read.
    fn rest(&self) {
        thread::sleep(Duration::from_millis(100));
    }
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_file_that_is_written_replaced_or_removed_is_noticed() {
    let watch = Fixture::new();
    watch.notices("written in place", |at| fs::write(at.at("relay.yaml"), "2").unwrap());
    watch.notices("replaced", |at| replace(&at.at("relay.yaml"), "3"));
    watch.notices("read by others", |at| {
        fs::set_permissions(at.at("relay.yaml"), Permissions::from_mode(0o600)).unwrap();
    });
    watch.notices("moved away", |at| fs::rename(at.at("relay.yaml"), at.at("old")).unwrap());
    watch.notices("moved back", |at| fs::rename(at.at("old"), at.at("relay.yaml")).unwrap());
    watch.notices("removed", |at| fs::remove_file(at.at("relay.yaml")).unwrap());
    watch.notices("made again", |at| fs::write(at.at("relay.yaml"), "4").unwrap());
}

#[test]
fn other_files_in_its_folder_are_not_noticed() {
    let watch = Fixture::new();
    let mut log = File::create(watch.at("log")).unwrap();
    watch.ignores("appended to", |_| {
        for _ in 0..1000 {
            log.write_all(b"line\n").unwrap();
        }
    });
    watch.ignores("made, written, replaced and removed", |at| {
        for number in 0..100 {
            replace(&at.at("other.txt"), &number.to_string());
            fs::remove_file(at.at("other.txt")).unwrap();
        }
    });
    watch.ignores("a file that is still open, which is noticed when it is closed", |at| {
        let mut file = File::options().append(true).open(at.at("relay.yaml")).unwrap();
        file.write_all(b"2").unwrap();
        at.rest();
        std::mem::forget(file);
    });
    watch.ignores("read", |at| _ = fs::read(at.at("relay.yaml")).unwrap());
}

/// Many events are read in batches.
/// As `sed -i` changes files.
#[test]
fn a_change_right_after_one_of_another_file_is_noticed_soon() {
    let watch = Fixture::new();
    let delay = |_| {
        watch.look();
        let before = watch.wakes();
        fs::write(watch.at("relay.tmp"), "2").unwrap();
        thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        fs::rename(watch.at("relay.tmp"), watch.at("relay.yaml")).unwrap();
        watch.wait_for(before, "a rename");
        begun.elapsed()
    };
    // The machine may be busy.
    assert!((0..5).map(delay).min() < Some(Duration::from_millis(500)));
}

#[test]
fn a_burst_is_a_few_wake_ups() {
    let watch = Fixture::new();
    let (start, before) = (Instant::now(), watch.wakes());
    for number in 0..2000 {
        fs::write(watch.at("relay.yaml"), number.to_string()).unwrap();
    }
    watch.rest();
    let most = start.elapsed().as_millis() / 20 + 1;
    let wakes = watch.wakes() - before;
    assert!(wakes as u128 <= most, "{wakes} wake-ups, more than {most}");
}

#[test]
fn a_burst_is_reported_once_when_it_is_over() {
    let debounce = Debounce { quiet: Duration::from_secs(1), longest: Duration::from_secs(60) };
    let watch = Fixture::with(debounce, None);
    let (start, before) = (Instant::now(), watch.wakes());
    for number in 0..5 {
        fs::write(watch.at("relay.yaml"), number.to_string()).unwrap();
        watch.rest();
    }
    watch.wait_for(before, "the burst");
    assert!(start.elapsed() >= debounce.quiet, "reported after {:?}", start.elapsed());
    watch.rest();
    assert_eq!(watch.wakes(), before + 1);
}

#[test]
fn a_burst_is_due_when_it_is_quiet_and_in_the_end_though_it_is_not() {
    let (start, ms) = (Instant::now(), Duration::from_millis);
    let debounce = Debounce { quiet: ms(100), longest: ms(1000) };
    let due = |last| debounce.due((start, start + ms(last))) - start;
    assert_eq!([0, 300, 950].map(due), [100, 400, 1000].map(ms));
}

#[test]
fn a_folder_that_goes_and_comes_back_is_noticed() {
    let watch = Fixture::new();
    watch.notices("removed", |at| fs::remove_dir_all(&at.home).unwrap());
    watch.notices("the folder made again", |at| fs::create_dir(&at.home).unwrap());
    watch.notices("the file made again", |at| fs::write(at.at("relay.yaml"), "2").unwrap());
    watch.notices("replaced by another", |at| {
        let next = at.home.with_file_name("next");
        fs::create_dir(&next).unwrap();
        fs::write(next.join("relay.yaml"), "3").unwrap();
        fs::rename(&at.home, at.home.with_file_name("before")).unwrap();
        fs::rename(next, &at.home).unwrap();
    });
    watch.notices("written in the new one", |at| fs::write(at.at("relay.yaml"), "4").unwrap());
    watch.ignores("written in the one that was moved away", |at| {
        fs::write(at.home.with_file_name("before").join("relay.yaml"), "5").unwrap();
    });
}

/// Links as in a Kubernetes ConfigMap, and as people make them.
#[test]
fn each_link_on_the_way_counts() {
    let watch = Fixture::new();
    for version in ["..1", "..2"] {
        fs::create_dir(watch.at(version)).unwrap();
        fs::write(watch.at(version).join("relay.yaml"), version).unwrap();
    }
    symlink("..1", watch.at("..data")).unwrap();
    fs::remove_file(watch.at("relay.yaml")).unwrap();
    symlink("..data/relay.yaml", watch.at("relay.yaml")).unwrap();

    watch.ignores("the version that is not in force", |at| {
        fs::write(at.at("..2").join("relay.yaml"), "2").unwrap();
    });
    watch.notices("the link in the middle is moved", |at| {
        symlink("..2", at.at("..data_tmp")).unwrap();
        fs::rename(at.at("..data_tmp"), at.at("..data")).unwrap();
    });
    watch
        .notices("written where it really is", |at| fs::write(at.at("..2").join("relay.yaml"), "3").unwrap());
    watch.ignores("the version from before", |at| fs::remove_dir_all(at.at("..1")).unwrap());
    watch.notices("a link to another folder, which is not there yet", |at| {
        let away = at.home.with_file_name("away");
        fs::remove_file(at.at("relay.yaml")).unwrap();
        symlink(away.join("deep/relay.yaml"), at.at("relay.yaml")).unwrap();
    });
    watch.notices("a part of the way there", |at| fs::create_dir(at.home.with_file_name("away")).unwrap());
    watch
        .notices("the rest of it", |at| fs::create_dir(at.home.with_file_name("away").join("deep")).unwrap());
    watch.notices("the file at the end", |at| {
        fs::write(at.home.with_file_name("away").join("deep/relay.yaml"), "4").unwrap();
    });
}

#[test]
fn links_in_a_circle_are_followed_for_a_while() {
    let watch = Fixture::new();
    fs::remove_file(watch.at("relay.yaml")).unwrap();
    symlink("b", watch.at("relay.yaml")).unwrap();
    symlink("relay.yaml", watch.at("b")).unwrap();
    watch.notices("the circle is opened", |at| {
        fs::remove_file(at.at("b")).unwrap();
        fs::write(at.at("b"), "2").unwrap();
    });
    let mut paths = WatchedPaths::default();
    let real = paths.add(&watch.at("../home/./relay.yaml"));
    assert_eq!(real, Some(watch.at("b")));
}

#[test]
fn of_a_folder_the_entries_count_that_the_rule_says() {
    let rule: Rule = |name| Path::new(name).extension().is_some_and(|end| end == "yaml");
    let watch = Fixture::with(AT_ONCE, Some(rule));
    fs::create_dir(watch.at("..1")).unwrap();
    fs::write(watch.at("..1/linked.yaml"), "1").unwrap();
    symlink("..1/linked.yaml", watch.at("linked.yaml")).unwrap();
    watch.ignores("another kind of file", |at| fs::write(at.at("notes.txt"), "1").unwrap());
    watch.notices("a new file", |at| fs::write(at.at("new.yaml"), "1").unwrap());
    watch.notices("a new name", |at| fs::rename(at.at("notes.txt"), at.at("notes.yaml")).unwrap());
    watch.notices("the end of a link", |at| fs::write(at.at("..1/linked.yaml"), "2").unwrap());
    watch.ignores("a file beside that", |at| fs::write(at.at("..1/other.yaml"), "2").unwrap());
    watch.notices("all of it", |at| fs::remove_dir_all(&at.home).unwrap());
}

#[test]
fn its_thread_ends_with_it() {
    let watch = Fixture::new();
    let wakes = Arc::downgrade(&watch.wakes);
    drop(watch);
    let deadline = Instant::now() + Duration::from_secs(10);
    while wakes.strong_count() > 0 {
        assert!(Instant::now() < deadline, "it still runs");
        thread::sleep(Duration::from_millis(5));
    }
}
