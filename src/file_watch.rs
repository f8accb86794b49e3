//! Files that may change, and threads that follow them.
//!
//! Owns when a change counts. Knows nothing of contents. A thread looks at the metadata of its files once a second:
//! that works on each filesystem, and through links and folders that are replaced. A change counts once the files
//! stay the same for a quarter of a second, because several are replaced one by one, or one in several steps.
//!
//! Example: a file is written from 0.8 s to 1.1 s. The looks at 1 s and 1.25 s find it changed, and that at 1.5 s the
//! same. Then it is read.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// As before, after a look that found a change.
const SETTLE: Duration = Duration::from_millis(250);
/// Looks take at most one part in so many of the time, however many files there are.
const SHARE: u32 = 100;
/// Longest time without a reading: a file may change all the time, and others may matter that are not looked at.
const LONGEST: Duration = Duration::from_secs(10);
/// Age from which a fingerprint is sure. Before, the file may change again within one tick of the filesystem's clock.
const SURE: Duration = Duration::from_secs(2);

/// Differs if a file was replaced or written, and once more when it is sure.
pub type Fingerprint = ([u64; 3], [i64; 4], bool);

pub fn fingerprint(of: &Metadata) -> Fingerprint {
    let changed = u64::try_from(of.ctime()).unwrap_or_default();
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(changed));
    let times = [of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()];
    ([of.dev(), of.ino(), of.size()], times, age.is_ok_and(|age| age > SURE))
}

/// Fingerprint of the file at a path; `None` if there is none.
pub fn fingerprint_at(path: &Path) -> Option<Fingerprint> {
    path.metadata().ok().as_ref().map(fingerprint)
}

/// Thread that reads files after each change, and from time to time. It ends when this is dropped.
#[derive(Debug)]
pub struct FileFollower {
    _stop: Sender<()>,
}

impl FileFollower {
    /// Starts a thread of this name. It calls `read` now, and later with what `look` has returned.
    ///
    /// # Errors
    ///
    /// The system allows no further thread.
    pub fn start<S: PartialEq>(
        name: &str,
        mut look: impl FnMut() -> S + Send + 'static,
        mut read: impl FnMut(&S) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let follow = move || {
            let mut seen = look();
            read(&seen);
            let (mut last, mut is_news, mut pause) = (Instant::now(), false, PAUSE);
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                let now = look();
                let is_settled = now == seen;
                pause = if is_settled { PAUSE } else { SETTLE }.max(begun.elapsed() * SHARE);
                if !is_settled && !is_news {
                    // Files that have just begun to change have their time to settle.
                    last = begun;
                }
                is_news |= !is_settled;
                seen = now;
                if (is_settled && is_news) || last.elapsed() >= LONGEST {
                    read(&seen);
                    (last, is_news) = (Instant::now(), !is_settled);
                }
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(follow)?;
        Ok(Self { _stop: stop })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tempfile::TempDir;

    use super::*;

    /// Counts the readings of a file.
    fn follow(path: PathBuf) -> (FileFollower, Arc<AtomicUsize>) {
        let readings = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&readings);
        let read = move |_: &_| _ = count.fetch_add(1, Ordering::Relaxed);
        (FileFollower::start("test", move || fingerprint_at(&path), read).unwrap(), readings)
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_change_is_read_when_it_is_over_and_once_more_when_it_is_sure() {
        let home = TempDir::new().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "").unwrap();
        let (follower, readings) = follow(path.clone());
        let are = |count| readings.load(Ordering::Relaxed) >= count;
        wait_until("the first reading", || are(1));
        wait_until("the file is old", || are(2));
        // The next reading without a change would come while it is written.
        thread::sleep(LONGEST - PAUSE - SETTLE);
        let begun = Instant::now();
        for number in 0..40 {
            fs::write(&path, number.to_string()).unwrap();
            thread::sleep(SETTLE / 5);
        }
        // The machine may be busy.
        assert!(!are(3) || begun.elapsed() > PAUSE * 4, "read while it was written");
        wait_until("the change", || are(3));
        wait_until("a sure reading", || are(4));
        drop(follower);
    }

    #[test]
    fn its_thread_ends_with_it() {
        let (follower, readings) = follow(PathBuf::from("/nowhere"));
        drop(follower);
        wait_until("it still runs", || Arc::strong_count(&readings) == 1);
    }
}
