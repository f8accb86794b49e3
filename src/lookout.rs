//! Says when a file may have changed.
//!
//! Owns the kernel's watch on the folders of files. Events only say "look again": what there is to see is decided by
//! looking, and whoever looks also does so from time to time, because network filesystems have no events and links can be
//! moved out of sight. Knows nothing of what the files hold.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

/// A folder, and which one it is that stands there now, if any.
type Folder = (PathBuf, Option<(u64, u64)>);

/// A watch on folders; it ends with this value.
pub struct Lookout {
    of: &'static str,
    wake: Arc<dyn Fn() + Send + Sync>,
    watched: BTreeSet<Folder>,
    watcher: Option<RecommendedWatcher>,
    complained: bool,
}

impl fmt::Debug for Lookout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookout")
            .field("of", &self.of)
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

impl Lookout {
    /// A watch on nothing yet. `of` is what people call what is watched; `wake` is called on a thread of its own, and
    /// must not block.
    pub fn new(of: &'static str, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { of, wake: Arc::new(wake), watched: BTreeSet::new(), watcher: None, complained: false }
    }

    /// Watches these folders from now on. To be called before each look: then what changes in between is seen or
    /// announced, or both; and a folder that was replaced is watched in its new place.
    pub fn renew(&mut self, folders: BTreeSet<PathBuf>) {
        let identity = |folder: &Path| std::fs::metadata(folder).ok().map(|of| (of.dev(), of.ino()));
        let with_identity = |folder: PathBuf| {
            let identity = identity(&folder);
            (folder, identity)
        };
        let found: BTreeSet<Folder> = folders.into_iter().map(with_identity).collect();
        if self.watcher.is_some() && found == self.watched {
            return;
        }
        self.watcher = match self.watch(&found) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                // Most often a limit of the kernel's. It is tried again with every look, but told once.
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::warn!(%error, "no events from the folder of {}: it is polled", self.of);
                }
                None
            }
        };
        self.watched = found;
    }

    fn watch(&self, folders: &BTreeSet<Folder>) -> notify::Result<RecommendedWatcher> {
        let wake = Arc::clone(&self.wake);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, is_change) {
                wake();
            }
        })?;
        for (folder, identity) in folders {
            // One that does not exist, or is out of bounds, comes into sight through the one above or a look.
            if identity.is_some()
                && let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive)
            {
                if matches!(error.kind, notify::ErrorKind::MaxFilesWatch) {
                    return Err(error);
                }
                tracing::debug!(%error, folder = %folder.display(), "not watched");
            }
        }
        Ok(watcher)
    }
}

/// The folders that say when a file may have changed: its own, which sees it and links beside it replaced (as Kubernetes'
/// `..data`); the one above, which sees the folder replaced; and the one where the file really is.
pub fn folders_of(path: &Path) -> BTreeSet<PathBuf> {
    let folder = path.parent();
    let above = folder.and_then(Path::parent);
    let real = path.canonicalize().ok().and_then(|real| real.parent().map(Path::to_owned));
    [folder, above].into_iter().flatten().map(Path::to_owned).chain(real).collect()
}

/// Reading is an event too, and we read.
fn is_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}
