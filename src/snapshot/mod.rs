//! Snapshot of the caches on disk, for starts while the control plane is away.
//!
//! Owns a redb database in the folder `snapshot.path`. `snapshot_file` opens it, `snapshot_store` reads and
//! writes the tables of `snapshot_encoding`. `snapshot_thread` copies changes once a second. [`Disk`]
//! shares state with the loading of node groups and with operators.
//! `snapshot_command` is `deltafan snapshot`. The core maps caches to records and
//! back ([`snapshot_content`](crate::snapshot_content)).
//!
//! Invariants:
//! - A page that fails its checksum makes the file corrupt, and a corrupt file loads nothing.
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

pub use disk_state::{Disk, DiskStatus, LoadedFigures, OtherGroups, SnapshotSettings, clock};
pub use snapshot_command::{report, verify};
pub use snapshot_encoding::{GroupId, node_digest};
pub use snapshot_store::StoredGroup;
pub use snapshot_thread::{LiveGroup, LiveGroups, WriterThread};

use crate::upstream::{Client, LateRestore};

/// The file could not be used; the reason was logged.
#[derive(Clone, Copy, Debug)]
pub struct FileFault;

/// Facts about a node group beside its stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFacts {
    /// Moment of the last current content, in milliseconds since 1970; 0 if the control plane never answered.
    pub(crate) current: u64,
    /// Digest of the node shown to the control plane.
    pub(crate) node: u128,
    /// URI of the source server.
    pub(crate) server: String,
    /// Orders of the rollout guard, as text in one line.
    pub(crate) orders: String,
}

/// Time between two attempts of [`load`].
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
    let attempt = move || {
        let read = Arc::clone(&read);
        tokio::task::spawn_blocking(move || read())
    };
    if let Ok(Some(content)) = attempt().await {
        return Box::new(move |client| restore(content, client));
    }
    // Closed once the client is past its start.
    let (mut sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
            if let Ok(Some(content)) = attempt().await {
                drop(sender.send(LateRestore::new(move |client| restore(content, client))));
                return;
            }
        }
    });
    Box::new(|client| client.restore_later(receiver))
}
