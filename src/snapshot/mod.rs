//! Snapshot of the caches on disk, from which a relay starts while its control plane is away.
//!
//! Owns the file, which is a redb database in the folder `snapshot.path`: `snapshot_file` finds and opens it, `snapshot_store` reads and writes it,
//! `checksums` guards each value with a checksum, `snapshot_keys` are its keys. `snapshot_thread` is the thread that copies what changed, once a second;
//! [`Disk`] has the state that it shares with the loading of node groups and with the operators' address; `show` and `unchanged_overlay` are `deltafan snapshot`. Which records follow from a cache, and what follows from records, is for the core
//! ([`snapshot_content`](crate::snapshot_content)).
//!
//! Invariants:
//! - A value that was not written as it is read is no content: it makes the file corrupt, and a corrupt file loads nothing.
//! - A file that is not a snapshot of this program, or is of a later version, is neither read nor written.
//! - No thread that serves clients waits for the disk, and a fault of the disk or of the library ends nothing but the snapshot.

mod checksums;
mod disk_state;
mod snapshot_command;
mod snapshot_file;
mod snapshot_keys;
mod snapshot_store;
mod snapshot_thread;
mod unchanged_overlay;

#[cfg(test)]
mod tests;

pub use disk_state::{Disk, DiskStatus, Loaded, LoadedFigures, OtherGroups, SnapshotSettings};
pub use snapshot_command::{Format, report, verify};
pub use snapshot_keys::{GroupId, node_digest};
pub use snapshot_thread::{LiveGroup, LiveGroups, WriterThread};

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::cache::Completeness;
use crate::upstream::{Client, LateRestore};

/// The file could not be used; the reason was told.
#[derive(Clone, Copy, Debug)]
pub struct FileFault;

/// Facts about a node group beside its stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFacts {
    /// Number of the last run in which the group was live.
    pub(crate) run: u64,
    /// Moment up to which the content was current, in milliseconds since 1970; 0 if the control plane has never answered.
    pub(crate) current: u64,
    /// Digest of the node that the control plane was shown.
    pub(crate) node: u128,
    /// URI of the server that the content came from.
    pub(crate) server: String,
}

/// Facts about a store beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreFacts {
    /// How much of the wildcard set was known.
    pub(crate) completeness: Completeness,
    /// Members of the set.
    pub(crate) members: u64,
    /// Number of records.
    pub(crate) records: u64,
    /// Sum of the checksums of these, which is independent of their order.
    pub(crate) sum: u64,
}

/// Time between two attempts of [`load_later`].
const RETRY: Duration = Duration::from_secs(1);

/// Reads a snapshot that could not be read at the start. Tries to `read` until that can be done, and has the client take in what was read. Once the client is past its start it waits for
/// nothing, and the attempts end. `read` may wait for the disk.
pub fn load_later<T: Send + 'static>(
    read: impl Fn() -> Option<T> + Send + Sync + 'static,
    restore: impl FnOnce(T, &mut Client) + Send + 'static,
) -> oneshot::Receiver<LateRestore> {
    let (mut sender, receiver) = oneshot::channel();
    let read = Arc::new(read);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
            let attempt = Arc::clone(&read);
            let read = tokio::task::spawn_blocking(move || attempt()).await;
            if let Ok(Some(content)) = read {
                // Unless the client is past its start.
                drop(sender.send(LateRestore::new(move |client| restore(content, client))));
                return;
            }
        }
    });
    receiver
}
