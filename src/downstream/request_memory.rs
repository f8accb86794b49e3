//! Memory of requests, counted for each connection and for all.
//!
//! Owns two pools. The first is for requests that are incomplete or wait. A request that arrives whole and is
//! handled at once is never counted. The second is for the versions that clients claim to hold, until they
//! are compared with the cache. Versions of removed names count until the client received the removal.
//! Without limits a connection could take the largest request for each stream.
//!
//! The share of one peer follows from the rule of the [pool](crate::pool).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::connection::Connection;
use super::grpc_status::report;
use crate::limit::Limit;
use crate::pool::Pool;
use crate::subscription::ByteCharge;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryKind {
    Requests,
    Versions,
}

/// Pool of one kind of memory.
#[derive(Debug)]
pub struct RequestMemory {
    kept: MemoryKind,
    bytes: Mutex<Pool>,
    limit: usize,
    limit_per_connection: usize,
}

impl RequestMemory {
    /// Creates the pool for incomplete requests. Limits are in bytes, for all connections and for each.
    pub fn new(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        Self::of(MemoryKind::Requests, limit, limit_per_connection)
    }

    /// Creates the pool for claimed versions. Limits are in bytes, for all connections and for each.
    pub fn versions(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        Self::of(MemoryKind::Versions, limit, limit_per_connection)
    }

    fn of(kept: MemoryKind, limit: usize, limit_per_connection: usize) -> Arc<Self> {
        Arc::new(Self { kept, bytes: Mutex::default(), limit, limit_per_connection })
    }
}

impl MemoryKind {
    /// Limits for all connections, and for each.
    const fn limits(self) -> [Limit; 2] {
        match self {
            Self::Requests => [Limit::Buffered, Limit::BufferedPerConnection],
            Self::Versions => [Limit::Versions, Limit::VersionsPerConnection],
        }
    }
}

/// Bytes of one request; given back on drop.
#[derive(Debug)]
pub(super) struct MemoryShare {
    of: Arc<RequestMemory>,
    connection: Arc<Connection>,
    bytes: usize,
    /// Time at which the incomplete message began to arrive.
    pub(super) since: Option<Instant>,
}

impl MemoryShare {
    pub(super) fn new(of: &Arc<RequestMemory>, connection: &Arc<Connection>) -> Self {
        Self { of: Arc::clone(of), connection: Arc::clone(connection), bytes: 0, since: None }
    }

    /// Sets its bytes. After an error the caller drops the request and this share.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Limit> {
        let own = self.own();
        if let Some(less) = self.bytes.checked_sub(bytes) {
            if less > 0 {
                self.of.bytes.lock().give_back(self.connection.tenant(), less);
                own.fetch_sub(less, Ordering::Relaxed);
            }
        } else {
            let more = bytes - self.bytes;
            let [limit, limit_per_connection] = self.of.kept.limits();
            if own.load(Ordering::Relaxed).saturating_add(more) > self.of.limit_per_connection {
                return Err(limit_per_connection);
            }
            if !self.of.bytes.lock().take(self.connection.tenant(), more, self.of.limit) {
                return Err(limit);
            }
            own.fetch_add(more, Ordering::Relaxed);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn own(&self) -> &AtomicUsize {
        match self.of.kept {
            MemoryKind::Requests => self.connection.buffered(),
            MemoryKind::Versions => self.connection.versions(),
        }
    }
}

impl ByteCharge for MemoryShare {
    fn charge(&mut self, bytes: usize) -> bool {
        let charged = self.set(bytes);
        if let Err(limit) = charged {
            let peer = self.connection.peer().map(|peer| peer.to_string()).unwrap_or_default();
            report(
                limit,
                &peer,
                "more `initial_resource_versions` than are held; all is sent as if there were none",
            );
        }
        charged.is_ok()
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        _ = self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::downstream::Connections;
    use crate::identity::{Peer, Source};

    #[test]
    fn memory_is_bounded_per_connection_and_in_all_and_comes_back() {
        let connections: Arc<Connections> = Arc::default();
        let open = |last: u8| {
            let guard = connections.open(Duration::from_secs(60), Instant::now());
            let peer = Peer::unproven(Source::of([10, 0, 0, last].into()));
            connections.identify(&guard.connection, Arc::new(peer));
            guard
        };
        let (one, other) = (open(1), open(2));
        let all = RequestMemory::new(400, 90);
        let mut first = MemoryShare::new(&all, &one.connection);
        let mut second = MemoryShare::new(&all, &one.connection);
        assert_eq!(
            [first.set(60), second.set(30), second.set(31)],
            [Ok(()), Ok(()), Err(Limit::BufferedPerConnection)]
        );
        drop(second);
        let mut third = MemoryShare::new(&all, &other.connection);
        assert_eq!([third.set(85), third.set(86)], [Ok(()), Err(Limit::Buffered)], "half of what is left");
        first.set(10).expect("less");
        assert_eq!(third.set(90), Ok(()));
        drop((first, third));
        assert_eq!(all.bytes.lock().taken(), 0);
        assert_eq!(one.connection.buffered().load(Ordering::Relaxed), 0);
    }
}
