//! Memory that requests take, counted for each connection and for all.
//!
//! Owns the counts of two pools. One is for requests that have begun to come and are not whole, or wait to be taken in: a
//! request that comes whole at once and is taken in then is never counted; one that is not has a [`Share`] until it is, or
//! is given up. The other is for the versions that clients say they hold, from when they come until they have been compared
//! with what there is, and then for the names of those that are gone until they have been told. Without such bounds a
//! connection could have as much as the largest request for each of its streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::connection::Connection;
use super::status::report;
use crate::subscription::Quota;
use crate::telemetry::Limit;

/// What a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Requests,
    Versions,
}

/// See the module.
#[derive(Debug)]
pub struct Buffered {
    pool: Pool,
    bytes: AtomicUsize,
    limit: usize,
    limit_per_connection: usize,
}

impl Buffered {
    /// Requests that are not whole. Nothing yet, and so much at most, in bytes: of all connections, and of each.
    pub fn new(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        Arc::new(Self { pool: Pool::Requests, bytes: AtomicUsize::new(0), limit, limit_per_connection })
    }

    /// The same of the versions that clients say they hold.
    pub fn versions(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        Arc::new(Self { pool: Pool::Versions, bytes: AtomicUsize::new(0), limit, limit_per_connection })
    }
}

impl Pool {
    /// The limits of all connections, and of each.
    const fn limits(self) -> [Limit; 2] {
        match self {
            Self::Requests => [Limit::Buffered, Limit::BufferedPerConnection],
            Self::Versions => [Limit::Versions, Limit::VersionsPerConnection],
        }
    }
}

/// What one request takes.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Buffered>,
    connection: Arc<Connection>,
    bytes: usize,
    /// When the message began to come that is not whole.
    pub(super) since: Option<Instant>,
}

impl Share {
    pub(super) fn new(of: &Arc<Buffered>, connection: &Arc<Connection>) -> Self {
        Self { of: Arc::clone(of), connection: Arc::clone(connection), bytes: 0, since: None }
    }

    /// It takes so much now. Who is told that it is too much gives the request up, and this with it.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Limit> {
        let counts = self.counts();
        let Some(more) = bytes.checked_sub(self.bytes) else {
            let less = self.bytes - bytes;
            for count in counts {
                count.fetch_sub(less, Ordering::Relaxed);
            }
            self.bytes = bytes;
            return Ok(());
        };
        let [all, own] = counts.map(|count| count.fetch_add(more, Ordering::Relaxed) + more);
        self.bytes = bytes;
        let [limit, limit_per_connection] = self.of.pool.limits();
        if own > self.of.limit_per_connection {
            Err(limit_per_connection)
        } else if all > self.of.limit {
            Err(limit)
        } else {
            Ok(())
        }
    }

    fn counts(&self) -> [&AtomicUsize; 2] {
        let own = match self.of.pool {
            Pool::Requests => self.connection.buffered(),
            Pool::Versions => self.connection.versions(),
        };
        [&self.of.bytes, own]
    }
}

impl Quota for Share {
    fn charge(&mut self, bytes: usize) -> bool {
        let charged = self.set(bytes);
        if let Err(limit) = charged {
            let whom = self.connection.peer().map(|peer| peer.to_string()).unwrap_or_default();
            report(
                limit,
                &whom,
                "more `initial_resource_versions` than are held; all is sent as if there were none",
            );
        }
        charged.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        for count in self.counts() {
            count.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::downstream::Connections;

    #[test]
    fn what_is_taken_is_bounded_per_connection_and_in_all_and_comes_back() {
        let connections: Arc<Connections> = Arc::default();
        let open = || connections.open(Duration::from_secs(60), Instant::now());
        let (one, other) = (open(), open());
        let all = Buffered::new(150, 100);
        let mut first = Share::new(&all, &one.connection);
        let mut second = Share::new(&all, &one.connection);
        assert_eq!(
            [first.set(60), second.set(40), second.set(41)],
            [Ok(()), Ok(()), Err(Limit::BufferedPerConnection)]
        );
        drop(second);
        let mut third = Share::new(&all, &other.connection);
        assert_eq!(
            [third.set(90), third.set(91), first.set(10), third.set(100)],
            [Ok(()), Err(Limit::Buffered), Ok(()), Ok(())]
        );
        drop((first, third));
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(one.connection.buffered().load(Ordering::Relaxed), 0);
    }
}
