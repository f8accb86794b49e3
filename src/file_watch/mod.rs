//! Watch on files that may change.
//!
//! Owns the kernel's watch on folders, and which entries count. Events only trigger a look: the user reads
//! the files, also without events from time to time, since network filesystems have none. Knows nothing of
//! contents.
//!
//! Invariants:
//! - Writes to other files in these folders wake the watcher a bounded number of times, and its user never.
//! - Every step on the way to a file is watched, links included.

mod watch;
mod watched_paths;

use std::fs::Metadata;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use watched_paths::WatchedPaths;

use watch::Watch;

/// Attempts to follow the way to a file while a link on it moves.
const ROUNDS: usize = 4;

/// Between two readings of events; well below the quiet time of a [`Debounce`]. It doubles up to the second while other files of
/// the folders change again and again: they cost next to nothing.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Wait for the end of a burst: several files are replaced one by one, or one in several steps.
#[derive(Clone, Copy, Debug)]
pub struct Debounce {
    /// Silence that ends a burst.
    pub quiet: Duration,
    /// Then a burst is reported though it goes on.
    pub longest: Duration,
}

impl Debounce {
    pub const DEFAULT: Self = Self { quiet: Duration::from_millis(100), longest: Duration::from_secs(1) };

    /// Time of the report.
    ///
    /// Example: with 100 ms of quiet and 1 s at most, a burst from 0 to 300 ms is reported at 400 ms, and an
    /// endless one at 1000 ms.
    fn due(self, (first, last): (Instant, Instant)) -> Instant {
        (last + self.quiet).min(first + self.longest)
    }
}

/// Differs if a file was replaced or written, unless that was within one tick of the filesystem's clock.
pub type Fingerprint = [i64; 7];

pub fn fingerprint(of: &Metadata) -> Fingerprint {
    let file = [of.dev(), of.ino(), of.size()].map(|number| number as i64);
    let [device, inode, size] = file;
    [device, inode, size, of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()]
}

/// Watch of a [`FileFollower`].
#[derive(Debug)]
pub struct FileWatcher {
    of: &'static str,
    watch: Option<Watch>,
    has_complained: bool,
}

impl FileWatcher {
    /// Watches these paths from now on. Call it before each reading: then a change in between is read or
    /// reported, and replaced folders are watched again.
    pub fn renew(&mut self, paths: impl Fn() -> WatchedPaths) {
        if self.watch.is_none() {
            match Watch::start() {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => return self.complain(&error),
            }
        }
        let Some(watch) = &mut self.watch else { return };
        for _ in 0..ROUNDS {
            match watch.renew(paths()) {
                // A link may have moved before its folder was watched.
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.complain(&error),
            }
        }
    }

    /// Each call of [`renew`](Self::renew) tries again; only the first failure is logged.
    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_complained, true) {
            tracing::warn!(%error, "cannot watch the folders of {}: polling them instead; is fs.inotify.max_user_watches or max_user_instances reached?", self.of);
        }
    }

    /// Waits for the end of a burst of changes, for `woken`, or for this time. Returns false if `woken` is closed.
    fn wait(&mut self, mut woken: &PipeReader, debounce: Debounce, longest: Duration) -> bool {
        let (end, mut burst, mut pause) = (Instant::now() + longest, None, PAUSE);
        loop {
            let begun = Instant::now();
            let due = burst.map_or(end, |burst| debounce.due(burst).min(end));
            let timeout = Timespec::try_from(due.saturating_duration_since(begun)).ok();
            let events = self.watch.as_ref().map(|watch| PollFd::from_borrowed_fd(watch.fd(), PollFlags::IN));
            let mut ready: Vec<_> = [PollFd::new(woken, PollFlags::IN)].into_iter().chain(events).collect();
            // After a failure there is nothing to read, and the pause prevents spinning.
            _ = poll(&mut ready, timeout.as_ref());
            if !ready[0].revents().is_empty() {
                return woken.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0);
            }
            let now = Instant::now();
            if self.watch.as_mut().is_some_and(Watch::has_changes) {
                burst = Some((burst.map_or(now, |(first, _)| first), now));
            }
            let is_quiet = now.duration_since(begun) >= LONGEST_PAUSE;
            pause = if burst.is_some() || is_quiet { PAUSE } else { (2 * pause).min(LONGEST_PAUSE) };
            // Events are read once in this time, however many there are.
            thread::sleep(pause.min(end.saturating_duration_since(now)));
            if burst.map_or(end, |burst| debounce.due(burst).min(end)) <= Instant::now() {
                return true;
            }
        }
    }
}

/// Thread that looks at files after each change, and from time to time. It ends when this is dropped.
#[derive(Debug)]
pub struct FileFollower(PipeWriter);

impl FileFollower {
    /// Starts a thread of this name that calls `look` now and later. `look` has to renew the watcher before it
    /// reads, so that no change is missed. `of` names the files in the log.
    ///
    /// # Errors
    ///
    /// The system allows no further thread or pipe.
    pub fn start(
        (name, of): (&str, &'static str),
        (debounce, longest): (Debounce, Duration),
        mut look: impl FnMut(&mut FileWatcher) + Send + 'static,
    ) -> io::Result<Self> {
        let (woken, wake) = io::pipe()?;
        let follow = move || {
            let mut watcher = FileWatcher { of, watch: None, has_complained: false };
            look(&mut watcher);
            while watcher.wait(&woken, debounce, longest) {
                look(&mut watcher);
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(follow)?;
        Ok(Self(wake))
    }

    /// Has it look now.
    pub fn wake(&self) {
        (&self.0).write_all(&[0]).ok();
    }
}

#[cfg(test)]
mod tests;
