//! Watches the directory and keeps its newest [`Scan`].
//!
//! Its own thread reads and parses, so that a slow disk or large file never blocks the runtime. The channel
//! keeps only the newest state: a slow reader misses steps, never the outcome.
//!
//! Events only trigger a look at the directory. A lost event, or none at all (network filesystems), costs
//! time until the next poll, never correctness.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;

use super::{
    DirectoryError, Scan,
    resource_files::{Files, is_resource_file},
};
use crate::file_watch::{Debounce, FileFollower, FileWatcher, WatchedPaths};

/// Waits of the watch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// Wait for several files that are replaced one by one.
    pub(super) debounce: Debounce,
    /// Interval of looks without an event.
    pub(super) poll: Duration,
}

/// Watched directory. Dropping it ends the watch.
#[derive(Debug)]
pub struct Directory {
    scans: watch::Receiver<Option<Arc<Scan>>>,
    // After `scans`: the thread that this wakes must find the receiver gone.
    _follower: FileFollower,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            debounce: Debounce { quiet: Duration::from_millis(50), longest: Duration::from_millis(500) },
            poll: Duration::from_secs(10),
        }
    }
}

impl Directory {
    /// Watches an existing directory.
    ///
    /// # Errors
    ///
    /// [`DirectoryError`] if the directory does not exist or cannot be watched.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DirectoryError> {
        Self::open_with(path.as_ref(), Timing::default())
    }

    pub(super) fn open_with(path: &Path, timing: Timing) -> Result<Self, DirectoryError> {
        let directory = existing(path)?;
        let (publish, scans) = watch::channel(None);
        let mut files = Files::default();
        let look = move |watcher: &mut FileWatcher| {
            if publish.is_closed() {
                return false;
            }
            watcher.renew(|| paths(&directory));
            let changed = files.refresh(&directory);
            if changed || publish.borrow().is_none() {
                publish.send_replace(Some(Arc::new(files.merge())));
            }
            true
        };
        let names = ("directory", "the resource directory");
        let follower = FileFollower::start(names, (timing.debounce, timing.poll), look)
            .map_err(|source| DirectoryError::NoThread { path: path.to_owned(), source })?;
        Ok(Self { scans, _follower: follower })
    }

    /// Returns the first state when it has been read, then the newest at each change. Cancel-safe: a state is
    /// consumed only by returning it.
    pub async fn next(&mut self) -> Arc<Scan> {
        loop {
            if self.scans.changed().await.is_err() {
                // Only a defect ends the thread early. The last state stays in force.
                tracing::error!(
                    "the thread that watches the resource directory has ended: changes go unseen"
                );
                std::future::pending::<()>().await;
            }
            if let Some(scan) = &*self.scans.borrow_and_update() {
                return Arc::clone(scan);
            }
        }
    }
}

/// Reads a directory once.
///
/// # Errors
///
/// [`DirectoryError`] if the directory does not exist or cannot be listed.
pub fn scan(path: &Path) -> Result<Scan, DirectoryError> {
    let (directory, mut files) = (existing(path)?, Files::default());
    files.refresh(&directory);
    Ok(files.merge())
}

/// Returns the absolute path of a directory, in case the working directory changes. Links are kept, so that
/// a moved link is followed.
fn existing(path: &Path) -> Result<PathBuf, DirectoryError> {
    let unreadable = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => DirectoryError::Missing(path.to_owned()),
        std::io::ErrorKind::NotADirectory => DirectoryError::NotADirectory(path.to_owned()),
        _ => DirectoryError::Unreadable { path: path.to_owned(), source },
    };
    let directory = std::path::absolute(path).map_err(unreadable)?;
    std::fs::read_dir(&directory).map_err(unreadable)?;
    Ok(directory)
}

fn paths(directory: &Path) -> WatchedPaths {
    let mut paths = WatchedPaths::default();
    paths.add_entries(directory, is_resource_file);
    paths
}
