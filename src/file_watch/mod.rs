//! Says when a file may have changed.
//!
//! Owns the kernel's watch on folders, and which of their entries count. Events only say "look again": what there is to
//! see is decided by looking, and whoever looks also does so from time to time, because network filesystems have no events.
//! Knows nothing of what the files hold.
//!
//! Invariants: a program that writes to other files in the same folders costs a bounded number of wake-ups, and no look ·
//! every step on the way to a file is watched, links included.

mod debounce;
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only the kernel's watch asks what counts"))]
mod paths;
#[cfg(not(target_os = "linux"))]
#[path = "unsupported.rs"]
mod watch;
#[cfg(target_os = "linux")]
mod watch;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use self::debounce::Debounce;
pub use self::paths::WatchedPaths;
use self::watch::Watch;

/// A link that is moved while the way through it is being followed has it followed again, this often at most.
const ROUNDS: usize = 4;

/// A watch on files; it ends with this value.
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
    /// A watch on nothing yet. `of` is what people call what is watched; `wake` is called on a thread of its own, and
    /// must not block.
    pub fn new(of: &'static str, debounce: Debounce, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { of, debounce, wake: Arc::new(wake), watch: None, complained: false }
    }

    /// Watches these paths from now on. To be called before each look: then what changes in between is seen or
    /// announced, or both; and a folder that was replaced is watched in its new place.
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
            // A link may have been moved before its folder was watched.
            if !has_new {
                return;
            }
        }
    }

    /// It is tried again with every look, but told once.
    fn complain(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "no events from folders of {}: they are polled; is a limit of inotify's reached?", self.of);
        }
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;
