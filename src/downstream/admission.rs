//! Admission: limits on the number of connections, and watermarks of memory.
//!
//! Owns the counts in all, per address and per identity, the figures of memory in use, and the consequences. Knows nothing of
//! sockets or TLS. The listener takes a slot before it reads anything, and one of the
//! identity once it is proven. Dropping a slot gives it back.
//!
//! New clients are refused above one watermark, and connections closed above a second one. Systems that do not report the
//! memory have no watermarks. Freed memory that the allocator keeps is not in use, because new clients are served from it.
//! After a burst of names the process may keep its size for some seconds.
//!
//! Example: 300 MiB are resident. The allocator holds 280 MiB, of which 100 MiB are allocated. Then 300 −
//! (280 − 100) = 120 MiB are in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tikv_jemalloc_ctl::stats;

use super::connections::Connections;
use super::unsent_memory::Unsent;
use crate::config::Downstream;
use crate::identity::{Peer, Source};
use crate::limit::Limit;
use crate::pool::{Account, Pool, PoolError, Share};
use crate::telemetry;

/// Counts of open connections.
#[derive(Debug)]
pub struct Admission {
    limits: Downstream,
    pub(super) overload: Arc<OverloadManager>,
    by_source: Arc<Pool>,
    by_identity: Arc<Pool>,
}

impl Admission {
    pub fn new(limits: Downstream, overload: Arc<OverloadManager>) -> Arc<Self> {
        Arc::new(Self { limits, overload, by_source: Arc::default(), by_identity: Arc::default() })
    }

    /// Takes a slot for a connection; only its source is known yet.
    pub(super) fn by_source(&self, source: Source) -> Result<Share, Limit> {
        if self.overload.refuses_new() {
            return Err(Limit::MemoryRefuse);
        }
        let Downstream { max_connections: all, max_connections_per_address: each, .. } = self.limits;
        let taken = self.by_source.take_one(Account::Source(source), all, each);
        taken.map_err(|error| match error {
            PoolError::All => Limit::Connections,
            PoolError::Account => Limit::ConnectionsPerAddress,
        })
    }

    /// Takes a slot of the identity that the peer has proven, if any.
    pub(super) fn by_identity(&self, peer: &Peer) -> Result<Option<Share>, Limit> {
        let Some(certificate) = &peer.certificate else { return Ok(None) };
        let account = Account::Identity(certificate.identity().into());
        let taken = self.by_identity.take_one(account, usize::MAX, self.limits.max_connections_per_identity);
        taken.map(Some).map_err(|_| Limit::ConnectionsPerIdentity)
    }
}

/// Time between two looks at the memory while more than half of the lower watermark is in use.
const TICK: Duration = Duration::from_millis(250);
/// Time between two looks below that: no second brings as much.
const CALM_TICK: Duration = Duration::from_secs(1);

/// Watermarks in bytes, 0 for none, and whether new clients are refused now.
#[derive(Debug)]
pub struct OverloadManager {
    refuse_above: u64,
    close_above: u64,
    refusing: AtomicBool,
}

const fn is_above(in_use: u64, mark: u64) -> bool {
    mark > 0 && in_use > mark
}

impl OverloadManager {
    /// Creates watermarks in bytes; 0 turns one off.
    pub fn new(refuse_above: u64, close_above: u64) -> Arc<Self> {
        Arc::new(Self { refuse_above, close_above, refusing: AtomicBool::new(false) })
    }

    pub fn refuses_new(&self) -> bool {
        self.refusing.load(Ordering::Relaxed)
    }

    /// Measures the memory again and again, and acts on it. Never returns where the system reports memory.
    pub async fn watch(&self, connections: &Connections, unsent: &Arc<Unsent>) {
        let report = |what, bytes: u64| telemetry::set(telemetry::MEMORY, &[("what", what)], bytes as f64);
        report("refuse_above", self.refuse_above);
        report("close_above", self.close_above);
        let marks = [self.refuse_above, self.close_above].into_iter().filter(|mark| *mark > 0);
        let lower = marks.min().unwrap_or(u64::MAX);
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let looked = tick.tick().await;
            let Some((resident, in_use)) = memory() else {
                tracing::info!(
                    "the system does not report the memory of the process; memory watermarks are off"
                );
                return;
            };
            report("resident", resident);
            report("in_use", in_use);
            let served = connections.served();
            self.refuse(in_use, served);
            if is_above(in_use, self.close_above) {
                self.close(in_use, served.div_ceil(100), connections, unsent);
            }
            if in_use <= lower / 2 {
                tick.reset_at(looked + CALM_TICK);
            }
        }
    }

    fn refuse(&self, in_use: u64, served: usize) {
        // Refusing ends 5 % below the mark, to avoid flapping: for 1000 MiB it ends at 950.
        let mark = self.refuse_above - if self.refuses_new() { self.refuse_above / 20 } else { 0 };
        // Without clients the resources take the memory, and waiting frees nothing. Closing makes no sense while
        // new connections are served.
        let refuses = served > 0 && (is_above(in_use, mark) || is_above(in_use, self.close_above));
        if self.refusing.swap(refuses, Ordering::Relaxed) == refuses {
            return;
        }
        if refuses {
            let is_worse = is_above(in_use, self.close_above);
            let limit = if is_worse { Limit::MemoryClose } else { Limit::MemoryRefuse }.key();
            tracing::warn!(in_use, limit, "memory is short: new connections and streams are refused");
        } else {
            tracing::info!(in_use, "memory is available again: new connections and streams are served");
        }
    }

    fn close(&self, in_use: u64, count: usize, connections: &Connections, unsent: &Unsent) {
        let now = Instant::now();
        let closed = connections.close_costliest(count, in_use, unsent, now);
        if closed > 0
            && let Some(suppressed) = telemetry::refused_at(Limit::MemoryClose, closed as u64, now)
        {
            let limit = Limit::MemoryClose.key();
            tracing::warn!(
                in_use,
                closed,
                limit,
                suppressed,
                "memory is short: closing the connections that take most"
            );
        }
    }
}

/// Resident bytes, and those of them in use, which the allocator cannot hand out. `None` where the system does
/// not report memory.
fn memory() -> Option<(u64, u64)> {
    let resident = resident()?;
    // With another global allocator, this one holds next to nothing.
    let [held, allocated] = heap().unwrap_or_default();
    // The allocator counts untouched pages as resident.
    Some((resident, resident.saturating_sub(held.saturating_sub(allocated)).max(allocated)))
}

/// Bytes that the allocator holds, and bytes that are allocated.
fn heap() -> Result<[u64; 2], tikv_jemalloc_ctl::Error> {
    // Refreshes the figures.
    tikv_jemalloc_ctl::epoch::advance()?;
    Ok([stats::resident::read()?, stats::allocated::read()?].map(|bytes| bytes as u64))
}

/// From `status`: the figure of `stat` is inexact.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::identity::Certificate;

    fn admission(max: usize, per_address: usize, per_identity: usize) -> Arc<Admission> {
        let mut limits = Config::parse("upstream: {directory: d}", "f").unwrap().downstream;
        limits.max_connections = max;
        limits.max_connections_per_address = per_address;
        limits.max_connections_per_identity = per_identity;
        Admission::new(limits, OverloadManager::new(0, 0))
    }

    fn source(last: u8) -> Source {
        Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn peer(source: Source, spiffe_id: Option<&str>, subject: &str) -> Peer {
        let certificate = Certificate {
            spiffe_id: spiffe_id.map(Into::into),
            subject: subject.into(),
            ..Default::default()
        };
        Peer { source, certificate: Some(Arc::new(certificate)) }
    }

    #[test]
    fn an_address_is_one_however_its_socket_writes_it() {
        let admission = admission(10, 1, 1);
        let mapped = Source::of(IpAddr::V6(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped()));
        let _open = admission.by_source(source(1)).expect("the first");
        assert!(admission.by_source(mapped).is_err());
    }

    #[test]
    fn an_identity_is_the_spiffe_id_or_else_the_subject() {
        let admission = admission(100, 100, 2);
        let mut open = Vec::new();
        let mut connect = |from: u8, spiffe_id, subject| {
            admission.by_identity(&peer(source(from), spiffe_id, subject)).map(|slot| open.push(slot))
        };
        let (one, refused) = (Some("spiffe://mesh/a"), Err(Limit::ConnectionsPerIdentity));
        assert_eq!([connect(1, one, "CN=a"), connect(2, one, "CN=b")], [Ok(()), Ok(())]);
        assert_eq!(connect(3, one, "CN=c"), refused, "from wherever it comes");
        assert_eq!([connect(3, None, "CN=a"), connect(3, None, "CN=a")], [Ok(()), Ok(())]);
        assert_eq!(connect(3, None, "CN=a"), refused);
        assert!(admission.by_identity(&Peer::unproven(source(9))).is_ok());
        open.truncate(3);
        let again = [(); 2].map(|()| admission.by_identity(&peer(source(9), None, "CN=a")));
        assert_eq!(again.map(|slot| slot.is_ok()), [true, false], "one of two places came back");
    }

    proptest! {
        /// A connection is let in exactly while the open ones leave room, after any history.
        #[test]
        fn the_counts_are_of_open_connections(steps in prop::collection::vec((0_u8..4, prop::option::of(0_u8..3), any::<bool>()), 0..200)) {
            let admission = admission(6, 3, 2);
            let mut open: Vec<(u8, Option<u8>, [Option<Share>; 2])> = Vec::new();
            for (from, identity, leaves) in steps {
                if leaves && !open.is_empty() {
                    open.swap_remove(usize::from(from) % open.len());
                } else {
                    let of = open.iter().filter(|(other, ..)| *other == from).count();
                    let taken = admission.by_source(source(from));
                    prop_assert_eq!(taken.is_ok(), open.len() < 6 && of < 3);
                    if let Ok(slot) = taken {
                        let name = identity.map(|identity| identity.to_string());
                        let who = name.map_or_else(|| Peer::unproven(source(from)), |name| peer(source(from), None, &name));
                        let of = open.iter().filter(|(_, other, _)| identity.is_some() && *other == identity).count();
                        let identified = admission.by_identity(&who);
                        prop_assert_eq!(identified.is_ok(), of < 2);
                        if let Ok(identified) = identified {
                            open.push((from, identity, [Some(slot), identified]));
                        }
                    }
                }
            }
        }
    }

    /// Whether a manager refuses with each of these amounts in use, one after the other.
    fn refused<const N: usize>(manager: &OverloadManager, in_use: [u64; N], served: usize) -> [bool; N] {
        in_use.map(|in_use| {
            manager.refuse(in_use, served);
            manager.refuses_new()
        })
    }

    #[test]
    fn refusing_begins_above_the_mark_and_ends_well_below_it() {
        let refused =
            refused(&OverloadManager::new(1000, 0), [900, 1000, 1001, 990, 951, 950, 1000, 1001], 10);
        assert_eq!(refused, [false, false, true, true, true, false, false, true]);
    }

    #[test]
    fn newcomers_are_refused_while_connections_are_closed() {
        let manager = OverloadManager::new(0, 1000);
        assert_eq!(refused(&manager, [1000, 1001, 1000], 1), [false, true, false]);
    }

    #[test]
    fn without_clients_a_new_one_is_served() {
        let manager = OverloadManager::new(1000, 2000);
        assert_eq!(refused(&manager, [3000], 1), [true]);
        assert_eq!(refused(&manager, [3000], 0), [false]);
    }

    #[test]
    fn no_watermarks_mean_none() {
        assert_eq!(refused(&OverloadManager::new(0, 0), [u64::MAX], 10), [false]);
    }

    #[test]
    fn the_system_reports_the_memory_of_this_process() {
        let Some((resident, in_use)) = memory() else { return };
        assert!(in_use > 100 << 10 && in_use <= resident, "{in_use} of {resident}");
    }
}
