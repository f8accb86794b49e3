//! Memory of requests, counted for each connection and for all.
//!
//! Owns two pools. The first is for requests that are incomplete or wait. A request that arrives whole and is
//! handled at once is never counted. The second is for the versions that clients claim to hold, until they
//! are compared with the cache. Versions of removed names count until the client received the removal.
//! Without limits a connection could take the largest request for each stream.
//!
//! The share of one peer follows from the rule of the [pool](crate::pool).

use std::sync::Arc;
use std::time::Instant;

use super::connection::{Charge, Connection, Usage};
use super::grpc_status::report;
use crate::limit::Limit;
use crate::pool::{Pool, Share};
use crate::subscription::ByteCharge;

/// Pool of one kind of memory.
#[derive(Debug)]
pub struct RequestMemory {
    usage: Usage,
    /// Limits to report, for all connections and for each.
    reported: [Limit; 2],
    pool: Arc<Pool>,
    limit: usize,
    limit_per_connection: usize,
}

impl RequestMemory {
    /// Creates the pool for incomplete requests. Limits are in bytes, for all connections and for each.
    pub fn new(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        let reported = [Limit::Buffered, Limit::BufferedPerConnection];
        let (usage, pool) = (Usage::Requests, Arc::default());
        Arc::new(Self { usage, reported, pool, limit, limit_per_connection })
    }

    /// Creates the pool for claimed versions. Limits are in bytes, for all connections and for each.
    pub fn versions(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        let reported = [Limit::Versions, Limit::VersionsPerConnection];
        let (usage, pool) = (Usage::Versions, Arc::default());
        Arc::new(Self { usage, reported, pool, limit, limit_per_connection })
    }
}

/// Bytes of one request; given back on drop.
#[derive(Debug)]
pub(super) struct MemoryShare {
    of: Arc<RequestMemory>,
    of_all: Share,
    of_connection: Charge,
    /// Time at which the incomplete message began to arrive.
    pub(super) since: Option<Instant>,
}

impl MemoryShare {
    pub(super) fn new(of: &Arc<RequestMemory>, connection: &Arc<Connection>) -> Self {
        let of_all = of.pool.share(connection.tenant());
        Self { of: Arc::clone(of), of_all, of_connection: Charge::new(connection, of.usage), since: None }
    }

    /// Sets its bytes. After an error the caller drops the request and this share.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Limit> {
        let [limit, limit_per_connection] = self.of.reported;
        if self.of_connection.total_with(bytes) > self.of.limit_per_connection {
            return Err(limit_per_connection);
        }
        if !self.of_all.set(bytes, self.of.limit) {
            return Err(limit);
        }
        self.of_connection.set(bytes);
        Ok(())
    }
}

impl ByteCharge for MemoryShare {
    fn charge(&mut self, bytes: usize) -> bool {
        let charged = self.set(bytes);
        if let Err(limit) = charged {
            let peer = self.of_connection.connection.peer().map(|peer| peer.to_string()).unwrap_or_default();
            report(
                limit,
                &peer,
                "more `initial_resource_versions` than are held; all is sent as if there were none",
            );
        }
        charged.is_ok()
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
        assert_eq!(all.pool.taken(), 0);
        assert_eq!(one.connection.used(Usage::Requests), 0);
    }
}
