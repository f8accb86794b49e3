//! Watches the directory and keeps the newest [`Scan`] at hand.
//!
//! A thread of its own reads and parses, so that a slow disk or a large file never holds up the runtime. It
//! publishes through a channel that keeps only the newest state: a reader that falls behind misses steps, never
//! the outcome.
//!
//! Events only say "look again": what there is to see is decided by looking. Losing an event, or having none
//! (network filesystems), costs time until the next poll, never correctness.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::sync::watch;

use super::{DirectoryError, Scan, files::Files};

/// How long to wait for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// The directory has been quiet for so long when it is read.
    pub(super) debounce: Duration,
    /// But it is not waited longer than this for it to become quiet.
    pub(super) debounce_max: Duration,
    /// The directory is looked at this often without any event.
    pub(super) poll: Duration,
}

/// A watched directory. Dropping it ends the watch.
#[derive(Debug)]
pub struct Directory {
    scans: watch::Receiver<Option<Arc<Scan>>>,
    // After `scans`: when the thread is woken by this, it must find the receiver gone.
    _stop: WakeOnDrop,
}

#[derive(Debug)]
struct WakeOnDrop(SyncSender<()>);

/// The kernel's watch on the directory and on its parent, renewed when the directory is replaced.
struct Lookout {
    directory: PathBuf,
    wake: SyncSender<()>,
    /// Set by events that say that the watched directory may be another one now.
    stale: Arc<AtomicBool>,
    watched: Option<(u64, u64)>,
    watcher: Option<RecommendedWatcher>,
    complained: bool,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            debounce: Duration::from_millis(50),
            debounce_max: Duration::from_millis(500),
            poll: Duration::from_secs(10),
        }
    }
}

impl Directory {
    /// Starts to watch a directory, which must exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DirectoryError> {
        Self::open_with(path.as_ref(), Timing::default())
    }

    pub(super) fn open_with(path: &Path, timing: Timing) -> Result<Self, DirectoryError> {
        let unreadable = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => DirectoryError::Missing(path.to_owned()),
            std::io::ErrorKind::NotADirectory => DirectoryError::NotADirectory(path.to_owned()),
            _ => DirectoryError::Unreadable { path: path.to_owned(), source },
        };
        // Absolute, so that a later change of the working directory changes nothing; links in it are left as they
        // are, so that a link that is moved elsewhere is followed there.
        let directory = std::path::absolute(path).map_err(unreadable)?;
        std::fs::read_dir(&directory).map_err(unreadable)?;

        let (wake, woken) = sync_channel(1);
        let (publish, scans) = watch::channel(None);
        let lookout = Lookout {
            directory,
            wake: wake.clone(),
            stale: Arc::default(),
            watched: None,
            watcher: None,
            complained: false,
        };
        thread::Builder::new()
            .name("directory".to_owned())
            .spawn(move || run(lookout, timing, &woken, &publish))
            .map_err(|source| DirectoryError::NoThread { path: path.to_owned(), source })?;
        Ok(Self { scans, _stop: WakeOnDrop(wake) })
    }

    /// The first state when it has been read, later each new one. When several came to pass between two calls, the
    /// newest is returned. Cancel-safe: a state is consumed only by returning it.
    pub async fn next(&mut self) -> Arc<Scan> {
        loop {
            if self.scans.changed().await.is_err() {
                // Only a defect ends the thread while we live. What was published stays in force.
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

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        // Full means that a wake-up is already on its way.
        self.0.try_send(()).ok();
    }
}

fn run(
    mut lookout: Lookout,
    timing: Timing,
    woken: &Receiver<()>,
    publish: &watch::Sender<Option<Arc<Scan>>>,
) {
    let mut files = Files::default();
    while !publish.is_closed() {
        // First the watch, then the look: what changes in between is seen or announced, or both.
        lookout.renew();
        let changed = files.refresh(&lookout.directory);
        if changed || publish.borrow().is_none() {
            publish.send_replace(Some(Arc::new(files.merge())));
        }
        match woken.recv_timeout(timing.poll) {
            Ok(()) => settle(woken, timing),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Waits for a burst of events to end.
fn settle(woken: &Receiver<()>, timing: Timing) {
    let deadline = Instant::now() + timing.debounce_max;
    while woken.recv_timeout(timing.debounce).is_ok() && Instant::now() < deadline {}
}

impl Lookout {
    /// Watches the directory that is now at the path, unless that is the one being watched.
    fn renew(&mut self) {
        let stale = self.stale.swap(false, Ordering::AcqRel);
        let found = std::fs::metadata(&self.directory).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if !stale && self.watched == found && self.watcher.is_some() {
            return;
        }
        self.watched = found;
        self.watcher = match self.watch() {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                // Most often a limit of the kernel's. It is tried again with every poll, but told once.
                if !std::mem::replace(&mut self.complained, true) {
                    let directory = self.directory.display();
                    tracing::warn!(%error, %directory, "no events from the resource directory: it is polled");
                }
                None
            }
        };
    }

    fn watch(&self) -> notify::Result<RecommendedWatcher> {
        let (directory, wake, stale) = (self.directory.clone(), self.wake.clone(), Arc::clone(&self.stale));
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            match &event {
                Ok(event) if !is_change(event) => return,
                Ok(event) => {
                    if !event.need_rescan() && !event.paths.iter().any(|path| concerns(path, &directory)) {
                        return;
                    }
                    if event.paths.iter().any(|path| directory.starts_with(path)) {
                        stale.store(true, Ordering::Release);
                    }
                }
                Err(_) => {}
            }
            // Full means that a wake-up is already on its way.
            wake.try_send(()).ok();
        })?;
        // The parent sees the directory itself come and go. It may be out of bounds, and then polling does.
        if let Some(parent) = self.directory.parent() {
            watcher.watch(parent, RecursiveMode::NonRecursive).unwrap_or_else(|error| {
                tracing::debug!(%error, parent = %parent.display(), "the resource directory's parent is not watched");
            });
        }
        if self.watched.is_some() {
            watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    }
}

/// Reading is an event too, and we read.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

/// Whether a path is the directory, in it, or above it; the parent's other entries are none of our business.
fn concerns(path: &Path, directory: &Path) -> bool {
    path.parent() == Some(directory) || directory.starts_with(path)
}
