//! Names that a connection asks for, over all its streams and requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::Connection;

/// Part of the names of a connection that one stream, Fetch or poll asks for. It is taken back when this is dropped.
#[derive(Debug)]
pub(super) struct NameShare {
    connection: Arc<Connection>,
    names: usize,
    bytes: usize,
}

impl NameShare {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        Self { connection: Arc::clone(connection), names: 0, bytes: 0 }
    }

    /// Sets how many names these are, and how long their text is in bytes. Returns the names of the whole connection if
    /// these have become more.
    pub(super) fn set(&mut self, names: usize, bytes: usize) -> Option<usize> {
        let before = std::mem::replace(&mut self.names, names);
        // Fewer names are added as a number that wraps.
        let more = names.wrapping_sub(before);
        let all = self.connection.names().fetch_add(more, Ordering::Relaxed).wrapping_add(more);
        let more = bytes.wrapping_sub(std::mem::replace(&mut self.bytes, bytes));
        self.connection.name_bytes().fetch_add(more, Ordering::Relaxed);
        (names > before).then_some(all)
    }
}

impl Drop for NameShare {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}
