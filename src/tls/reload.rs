//! Values that are read from files and follow them.
//!
//! Owns the watch on the files, and the swap to new contents. Knows nothing of the values' purpose. A set of
//! files makes one value or none: an unusable set leaves the old value in force. Logs only changes.
//!
//! Events only trigger a look. A lost one (network filesystems) costs a poll's time, never correctness.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::files::Files;
use super::pem::PemError;
use crate::file_watch::{Debounce, FileWatcher, WatchedPaths};
use crate::telemetry;

/// Several files may be replaced one by one.
const DEBOUNCE: Debounce = Debounce { quiet: Duration::from_millis(100), longest: Duration::from_secs(1) };
/// Interval of reads without an event.
const POLL: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Unreadable, or without the expected contents.
    #[error(transparent)]
    File(#[from] PemError),
    /// Unusable contents, or a mismatch with other files.
    #[error("{path}: {reason}")]
    Unusable { path: PathBuf, reason: String },
    /// The watching thread could not be started.
    #[error("cannot watch the files of {of}: {error}")]
    NoThread { of: String, error: std::io::Error },
}

#[derive(Debug)]
pub struct Loaded<T> {
    pub value: T,
    pub facts: Vec<Fact>,
    /// Problem of a usable set, for operators.
    pub warning: Option<String>,
}

/// Data on a certificate or list in force, for operators; never secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Kind, as in the configuration's keys: a label of a metric.
    pub which: &'static str,
    /// Earliest expiry, in seconds since 1970.
    pub expires: i64,
    /// Identifies it; empty where that is of no use.
    pub fingerprint: String,
}

/// Value that follows its files while a handle to it exists. Clones are further handles.
#[derive(Debug)]
pub struct Reloaded<T>(Arc<Followed<T>>);

#[derive(Debug)]
struct Followed<T> {
    value: ArcSwap<T>,
    replaced: Notify,
}

impl<T> Reloaded<T> {
    pub fn load(&self) -> Arc<T> {
        self.0.value.load_full()
    }

    /// Waits for a value in force other than `old`, and returns it.
    pub async fn replaced(&self, old: &Arc<T>) -> Arc<T> {
        loop {
            let replaced = self.0.replaced.notified();
            tokio::pin!(replaced);
            // Listen before looking, or a swap in between is missed.
            replaced.as_mut().enable();
            let current = self.load();
            if !Arc::ptr_eq(&current, old) {
                return current;
            }
            replaced.await;
        }
    }

    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Reloaded<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Set whose files were unusable at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Key of the configuration that names the files.
    pub of: String,
    pub error: String,
}

/// Keeps values up to date with their files, on one thread. Clones share it, and it ends with the last.
#[derive(Clone, Debug)]
pub struct Reloader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sets: Mutex<Sets>,
    wake: SyncSender<()>,
}

struct Sets {
    all: Vec<Box<dyn Set>>,
    /// For the thread, until it starts.
    woken: Option<Receiver<()>>,
}

impl std::fmt::Debug for Sets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all.iter().map(|set| set.paths())).finish()
    }
}

impl Default for Reloader {
    fn default() -> Self {
        let (wake, woken) = sync_channel(1);
        let sets = Mutex::new(Sets { all: Vec::new(), woken: Some(woken) });
        Self(Arc::new(Shared { sets, wake }))
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
        let Loaded { value, facts, warning } = load(&files)?;
        warn_of_exposed_keys(of, &files);
        telemetry::tls_loaded(of);
        announce(of, &facts, warning.as_deref(), "certificates are in force");
        let current = Arc::new(Followed { value: ArcSwap::from_pointee(value), replaced: Notify::new() });
        let set = FileSet {
            of: of.to_owned(),
            paths,
            load,
            current: Arc::downgrade(&current),
            seen: Ok(files.digest()),
            failing: None,
        };
        let mut sets = self.0.sets.lock();
        if let Some(woken) = sets.woken.take() {
            let shared = Arc::downgrade(&self.0);
            let wake = self.0.wake.clone();
            thread::Builder::new()
                .name("certificates".to_owned())
                .spawn(move || run(&shared, &woken, &wake))
                .map_err(|error| LoadError::NoThread { of: of.to_owned(), error })?;
        }
        sets.all.push(Box::new(set));
        drop(sets);
        // There are more files to watch.
        self.0.wake.try_send(()).ok();
        Ok(Reloaded(current))
    }

    /// Reads all files now, and returns the sets that could not be put in force. Blocks.
    pub fn reload_now(&self) -> Vec<Failing> {
        self.0.look()
    }
}

impl Shared {
    fn look(&self) -> Vec<Failing> {
        let mut sets = self.sets.lock();
        sets.all.retain_mut(|set| set.look());
        sets.all.iter().filter_map(|set| set.failing()).collect()
    }

    fn watched_paths(&self) -> WatchedPaths {
        let mut watched_paths = WatchedPaths::default();
        for path in self.sets.lock().all.iter().flat_map(|set| set.paths()) {
            watched_paths.add(path);
        }
        watched_paths
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The thread finds that we are gone. If full, a wake-up is pending already.
        self.wake.try_send(()).ok();
    }
}

trait Set: Send {
    /// Reads the files, and swaps if they changed. Returns whether the value still has a handle.
    fn look(&mut self) -> bool;
    fn failing(&self) -> Option<Failing>;
    fn paths(&self) -> &[PathBuf];
}

struct FileSet<T, L> {
    of: String,
    paths: Vec<PathBuf>,
    load: L,
    current: Weak<Followed<T>>,
    /// Digest of the contents at the last look, or why they were unreadable.
    seen: Result<u128, String>,
    failing: Option<String>,
}

impl<T, L> Set for FileSet<T, L>
where
    T: Send + Sync,
    L: Fn(&Files) -> Result<Loaded<T>, LoadError> + Send,
{
    fn look(&mut self) -> bool {
        let Some(current) = self.current.upgrade() else { return false };
        let read = Files::read(&self.paths);
        let seen = match &read {
            Ok(files) => Ok(files.digest()),
            Err(error) => Err(error.to_string()),
        };
        if seen == self.seen {
            return true;
        }
        self.seen = seen;
        if let Ok(files) = &read {
            warn_of_exposed_keys(&self.of, files);
        }
        match read.map_err(LoadError::from).and_then(|files| (self.load)(&files)) {
            Ok(Loaded { value, facts, warning }) => {
                current.value.store(Arc::new(value));
                current.replaced.notify_waiters();
                self.failing = None;
                telemetry::tls_reloaded(&self.of);
                announce(
                    &self.of,
                    &facts,
                    warning.as_deref(),
                    "certificates were read again and are in force for new connections",
                );
            }
            Err(error) => {
                telemetry::tls_reload_failed(&self.of);
                let of = &self.of;
                tracing::warn!(%of, %error, "changed certificates cannot be used; those from before stay in force");
                self.failing = Some(error.to_string());
            }
        }
        true
    }

    fn failing(&self) -> Option<Failing> {
        let error = self.failing.clone()?;
        Some(Failing { of: self.of.clone(), error })
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

fn warn_of_exposed_keys(of: &str, files: &Files) {
    for path in files.exposed_keys() {
        let file = path.display();
        tracing::warn!(of, %file, "every user of this machine can read a private key; allow its owner only (0600, in Kubernetes `defaultMode: 0400`)");
    }
}

fn announce(of: &str, facts: &[Fact], warning: Option<&str>, what: &str) {
    if let Some(warning) = warning {
        tracing::warn!(of, "{warning}");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for Fact { which, expires, fingerprint } in facts {
        telemetry::report_tls_expiry(of, which, *expires);
        if i64::try_from(now).is_ok_and(|now| *expires <= now) {
            tracing::warn!(of, which, expires, fingerprint, "{what}, though this one has expired");
        } else {
            tracing::info!(of, which, expires, fingerprint, "{what}");
        }
    }
}

fn run(shared: &Weak<Shared>, woken: &Receiver<()>, wake: &SyncSender<()>) {
    let wake = wake.clone();
    // If full, a wake-up is pending already.
    let mut watcher = FileWatcher::new("certificates", DEBOUNCE, move || {
        wake.try_send(()).ok();
    });
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            // Watch before looking: a change in between is seen or announced.
            watcher.renew(|| shared.watched_paths());
            shared.look();
        }
        match woken.recv_timeout(POLL) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests;
