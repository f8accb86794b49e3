//! Watch on files that may change.
//!
//! Owns the kernel's watch on folders, and which entries count. Events only trigger a look: the user reads
//! the files, also without events from time to time, since network filesystems have none. Knows nothing of
//! contents.
//!
//! Invariants:
//! - Writes to other files in these folders wake the watcher a bounded number of times, and its user never.
//! - Every step on the way to a file is watched, links included.

mod debounce;
#[cfg(target_os = "linux")]
mod watch;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only the kernel's watch asks what counts"))]
mod watched_paths;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use std::{fmt, io, thread};

pub use debounce::Debounce;
pub use deltafan_transport::tls::files::{Fingerprint, fingerprint};
pub use watched_paths::WatchedPaths;

use watch::Watch;

/// Attempts to follow the way to a file while a link on it moves.
const ROUNDS: usize = 4;

pub struct FileWatcher {
    of: &'static str,
    debounce: Debounce,
    wake: Arc<dyn Fn() + Send + Sync>,
    watch: Option<Watch>,
    complained: bool,
}

impl fmt::Debug for FileWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWatcher")
            .field("of", &self.of)
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

impl FileWatcher {
    /// Creates a watch on nothing. `of` names it in the log. `wake` is called after a burst on a thread of
    /// its own, and must not block.
    pub fn new(of: &'static str, debounce: Debounce, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { of, debounce, wake: Arc::new(wake), watch: None, complained: false }
    }

    /// Watches these paths from now on. Call it before each reading: then a change in between is read or
    /// reported, and replaced folders are watched again.
    pub fn renew(&mut self, paths: impl Fn() -> WatchedPaths) {
        if self.watch.is_none() {
            let wake = Arc::clone(&self.wake);
            match Watch::start(self.debounce, move || wake()) {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => self.complain(&error),
            }
        }
        let Some(watch) = &self.watch else { return };
        for _ in 0..ROUNDS {
            let has_new = match watch.renew(paths()) {
                Ok(has_new) => has_new,
                Err(error) => return self.complain(&error),
            };
            // A link may have moved before its folder was watched.
            if !has_new {
                return;
            }
        }
    }

    /// Each call tries again; only the first failure is logged.
    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "cannot watch the folders of {}: polling them instead; is fs.inotify.max_user_watches or max_user_instances reached?", self.of);
        }
    }
}

/// Thread that looks at files after each change, and from time to time. Dropping it wakes the thread, which
/// has to find that nobody needs it.
#[derive(Debug)]
pub struct FileFollower(SyncSender<()>);

impl FileFollower {
    /// Starts a thread of this name that calls `look` now and later, as long as it returns true. `look` has to
    /// renew the watcher before it reads, so that no change is missed. `of` names the files in the log.
    ///
    /// # Errors
    ///
    /// The system allows no further thread.
    pub fn start(
        (name, of): (&str, &'static str),
        (debounce, poll): (Debounce, Duration),
        mut look: impl FnMut(&mut FileWatcher) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let waker = wake.clone();
        // Full: a wake-up is already on its way.
        let mut watcher = FileWatcher::new(of, debounce, move || _ = waker.try_send(()));
        let follow = move || {
            while look(&mut watcher) {
                // Time is over, or woken.
                woken.recv_timeout(poll).ok();
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(follow)?;
        Ok(Self(wake))
    }

    /// Has it look now.
    pub fn wake(&self) {
        // Full: a wake-up is already on its way.
        self.0.try_send(()).ok();
    }
}

impl Drop for FileFollower {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Without inotify, users find changes by polling.
#[cfg(not(target_os = "linux"))]
mod watch {
    use std::io;

    use super::{Debounce, WatchedPaths};

    #[derive(Debug)]
    pub(super) enum Watch {}

    impl Watch {
        pub(super) fn start(_: Debounce, _: impl Fn() + Send + 'static) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn renew(&self, _: WatchedPaths) -> io::Result<bool> {
            match *self {}
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
