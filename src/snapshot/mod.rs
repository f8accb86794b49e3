//! Snapshot of the caches on disk, for starts while the control plane is away.
//!
//! Owns a redb database in the folder `snapshot.path`. `snapshot_file` opens it, `snapshot_store` reads and
//! writes it, in the bytes of `snapshot_encoding`. `snapshot_thread` copies changes once a second. [`Disk`]
//! shares state with the loading of node groups and with operators.
//! `snapshot_command` is `deltafan snapshot`. The core maps caches to records and
//! back ([`snapshot_content`](crate::snapshot_content)).
//!
//! Invariants:
//! - A value that fails its checksum makes the file corrupt, and a corrupt file loads nothing.
//! - A foreign file, or one of a later version, is neither read nor written.
//! - No thread that serves clients waits for the disk. A fault of the disk or the library ends only the
//!   snapshot.

mod disk_state;
mod snapshot_command;
mod snapshot_encoding;
mod snapshot_file;
mod snapshot_store;
mod snapshot_thread;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

pub use disk_state::{Disk, DiskStatus, Loaded, LoadedFigures, OtherGroups, SnapshotSettings};
pub use snapshot_command::{report, verify};
pub use snapshot_encoding::{GroupId, node_digest};
pub use snapshot_thread::{LiveGroup, LiveGroups, WriterThread};

use crate::cache::Completeness;
use crate::upstream::{Client, LateRestore};

/// The file could not be used; the reason was logged.
#[derive(Clone, Copy, Debug)]
pub struct FileFault;

/// Facts about a node group beside its stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFacts {
    /// Number of the group's last live run.
    pub(crate) run: u64,
    /// Moment of the last current content, in milliseconds since 1970; 0 if the control plane never answered.
    pub(crate) current: u64,
    /// Digest of the node shown to the control plane.
    pub(crate) node: u128,
    /// URI of the source server.
    pub(crate) server: String,
    /// Orders of the rollout guard, as text in one line.
    pub(crate) orders: String,
}

/// Facts about a store beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreFacts {
    /// Known extent of the wildcard set.
    pub(crate) completeness: Completeness,
    /// Members of the set.
    pub(crate) members: u64,
    /// Number of records.
    pub(crate) records: u64,
    /// Sum of their checksums, independent of order.
    pub(crate) sum: u64,
}

/// Time between two attempts of [`load_later`].
const RETRY: Duration = Duration::from_secs(1);

/// Gives content that was read to a client that does not run yet.
pub type Restore = Box<dyn FnOnce(&mut Client) + Send>;

/// Reads content by `read`, which may wait for the disk. If that fails, it is tried again while the client starts,
/// which waits for nothing.
pub async fn load<T: Send + 'static>(
    read: impl Fn() -> Option<T> + Send + Sync + 'static,
    restore: impl FnOnce(T, &mut Client) + Send + 'static,
) -> Restore {
    let read = Arc::new(read);
    let attempt = Arc::clone(&read);
    match tokio::task::spawn_blocking(move || attempt()).await.ok().flatten() {
        Some(content) => Box::new(move |client| restore(content, client)),
        None => Box::new(move |client| client.restore_later(load_later(read, restore))),
    }
}

/// The attempts end once the client is past its start.
fn load_later<T: Send + 'static>(
    read: Arc<impl Fn() -> Option<T> + Send + Sync + 'static>,
    restore: impl FnOnce(T, &mut Client) + Send + 'static,
) -> oneshot::Receiver<LateRestore> {
    let (mut sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
            let attempt = Arc::clone(&read);
            let read = tokio::task::spawn_blocking(move || attempt()).await;
            if let Ok(Some(content)) = read {
                // Fails if the client is past its start.
                drop(sender.send(LateRestore::new(move |client| restore(content, client))));
                return;
            }
        }
    });
    receiver
}
