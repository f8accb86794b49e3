//! Watch on files that may change.
//!
//! Owns the kernel's watch on folders, and which of their entries count. An event only says "look again": the
//! user of a watch reads the files, and does so from time to time without events, because network filesystems
//! have none. Knows nothing of the content of files.
//!
//! Invariants: a program that writes to other files in the same folders causes a bounded number of wake-ups
//! of the watcher, and none of its user · every step on the way to a file is watched, links included.

mod debounce;
#[cfg(target_os = "linux")]
mod watch;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only the kernel's watch asks what counts"))]
mod watched_paths;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use self::debounce::Debounce;
use self::watch::Watch;
pub use self::watched_paths::WatchedPaths;

/// Number of times that the way to a file is followed again because a link on it moved meanwhile.
const ROUNDS: usize = 4;

/// Watch on files; ends on drop.
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
    /// Creates a watch on nothing. `of` names it in the log. `wake` is called at the end of a burst of
    /// events, on a thread of its own, and must not block.
    pub fn new(of: &'static str, debounce: Debounce, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { of, debounce, wake: Arc::new(wake), watch: None, complained: false }
    }

    /// Watches these paths from now on. Call it before each reading: a change in between is then read, or
    /// reported, or both, and a folder that was replaced is watched in its new place.
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

    /// Tried again with each call, but logged once.
    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "cannot watch the folders of {}: polling them instead; is fs.inotify.max_user_watches or max_user_instances reached?", self.of);
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;

/// Replacement for the kernel's watch where there is no inotify: users find changes by polling.
#[cfg(not(target_os = "linux"))]
mod watch {
    use std::io;

    use super::{Debounce, WatchedPaths};

    /// Watch that cannot be created.
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
