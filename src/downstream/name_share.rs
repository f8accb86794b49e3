//! Names that a connection subscribes to, over all its streams and requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::Connection;

/// Names of one stream, Fetch or poll, as a part of those of its connection. Given back on drop.
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

    /// Sets the number of names and the bytes of their text. Returns the number of names of the whole
    /// connection if this part grew.
    pub(super) fn set(&mut self, names: usize, bytes: usize) -> Option<usize> {
        let before = std::mem::replace(&mut self.names, names);
        // A decrease is added as a number that wraps.
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
