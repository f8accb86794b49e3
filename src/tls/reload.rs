//! Values that are read from files and follow them.
//!
//! Owns the watch on the files, and the swap to new contents. Knows nothing of the values' purpose. A set of
//! files makes one value or none: an unusable set leaves the old value in force. Logs only changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::files::{Fact, Files, LoadError, Loaded};
use crate::file_watch::{FileFollower, fingerprint_at};
use crate::telemetry;

/// Value that follows its files while a handle to it exists. Clones are further handles.
#[derive(Debug)]
pub struct Reloaded<T>(watch::Receiver<Arc<T>>);

impl<T> Reloaded<T> {
    pub fn load(&self) -> Arc<T> {
        Arc::clone(&self.0.borrow())
    }

    /// Waits for a value in force other than `old`, and returns it.
    pub async fn replaced(&self, old: &Arc<T>) -> Arc<T> {
        if self.0.clone().wait_for(|current| !Arc::ptr_eq(current, old)).await.is_err() {
            // The reloader is gone.
            std::future::pending::<()>().await;
        }
        self.load()
    }
}

impl<T> Clone for Reloaded<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Keeps values up to date with their files, on one thread. Clones share it, and it ends with the last.
#[derive(Clone, Debug, Default)]
pub struct Reloader(Arc<Mutex<Sets>>);

#[derive(Default)]
struct Sets {
    all: Vec<FileSet>,
    /// From the first set on.
    follower: Option<FileFollower>,
}

impl std::fmt::Debug for Sets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all.iter().map(|set| &set.paths)).finish()
    }
}

impl Reloader {
    /// Reads a set of files now, and again on each change. `of` is its key in the configuration, and a label
    /// of metrics. `load` gets all files as of one moment, on a thread that may block.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the files cannot be used now. Later, the last good ones stay in force.
    pub fn add<T, L>(&self, of: &str, paths: Vec<PathBuf>, load: L) -> Result<Reloaded<T>, LoadError>
    where
        T: Send + Sync + 'static,
        L: Fn(&Files) -> Result<Loaded<T>, LoadError> + Send + 'static,
    {
        let files = Files::read(&paths)?;
        let Loaded { value, facts } = load(&files)?;
        warn_of_exposed_keys(of, &files);
        telemetry::tls_read(of, 0, 0);
        announce(of, &facts, "certificates are in force");
        let (current, handle) = watch::channel(Arc::new(value));
        let current = Arc::new(current);
        let held = Arc::clone(&current);
        let put_in_force = move |files: &Files| {
            let Loaded { value, facts } = load(files)?;
            held.send_replace(Arc::new(value));
            Ok(facts)
        };
        let set = FileSet {
            of: of.to_owned(),
            paths,
            put_in_force: Box::new(put_in_force),
            is_used: Box::new(move || !current.is_closed()),
            seen: Ok(files.digest()),
        };
        let mut sets = self.0.lock();
        sets.all.push(set);
        if sets.follower.is_none() {
            let (looked, read) = (Arc::downgrade(&self.0), Arc::downgrade(&self.0));
            let look = move || {
                let sets = looked.upgrade()?;
                let sets = sets.lock();
                let paths = sets.all.iter().flat_map(|set| &set.paths);
                Some(paths.map(|path| fingerprint_at(path)).collect::<Vec<_>>())
            };
            let read = move |_: &_| _ = read.upgrade().map(|sets| sets.lock().look());
            let started = FileFollower::start("certificates", look, read);
            let fault = |error| LoadError(format!("cannot watch the files of {of}: {error}"));
            sets.follower = Some(started.map_err(fault)?);
        }
        drop(sets);
        Ok(Reloaded(handle))
    }

    /// Reads all files now. Blocks.
    pub fn reload_now(&self) {
        self.0.lock().look();
    }
}

impl Sets {
    fn look(&mut self) {
        self.all.retain(|set| (set.is_used)());
        self.all.iter_mut().for_each(FileSet::look);
    }
}

type PutInForce = Box<dyn Fn(&Files) -> Result<Vec<Fact>, LoadError> + Send>;

struct FileSet {
    of: String,
    paths: Vec<PathBuf>,
    /// Makes a value of the files, and swaps to it.
    put_in_force: PutInForce,
    /// Whether there are handles to the value.
    is_used: Box<dyn Fn() -> bool + Send>,
    /// Digest of the contents at the last look, or why they were unreadable.
    seen: Result<u128, String>,
}

impl FileSet {
    /// Reads the files, and swaps if they changed.
    fn look(&mut self) {
        let read = Files::read(&self.paths);
        let seen = match &read {
            Ok(files) => Ok(files.digest()),
            Err(error) => Err(error.to_string()),
        };
        if seen == self.seen {
            return;
        }
        self.seen = seen;
        if let Ok(files) = &read {
            warn_of_exposed_keys(&self.of, files);
        }
        match read.and_then(|files| (self.put_in_force)(&files)) {
            Ok(facts) => {
                telemetry::tls_read(&self.of, 1, 0);
                announce(
                    &self.of,
                    &facts,
                    "certificates were read again and are in force for new connections",
                );
            }
            Err(error) => {
                telemetry::tls_read(&self.of, 0, 1);
                let of = &self.of;
                tracing::warn!(%of, %error, "changed certificates cannot be used; those from before stay in force");
            }
        }
    }
}

fn warn_of_exposed_keys(of: &str, files: &Files) {
    for path in files.exposed_keys() {
        let file = path.display();
        tracing::warn!(of, %file, "every user of this machine can read a private key; allow its owner only (0600, in Kubernetes `defaultMode: 0400`)");
    }
}

fn announce(of: &str, facts: &[Fact], what: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for Fact { which, expires } in facts {
        telemetry::report_tls_expiry(of, which, *expires);
        if i64::try_from(now).is_ok_and(|now| *expires <= now) {
            tracing::warn!(of, which, expires, "{what}, though this one has expired");
        } else {
            tracing::info!(of, which, expires, "{what}");
        }
    }
}

#[cfg(test)]
mod tests;
