//! Admission: limits on the number of connections, in all, per address and per identity.
//!
//! Knows nothing of sockets or TLS. The listener takes a slot before it reads anything, and reports the
//! identity once it is proven. Dropping a [`ConnectionSlot`] gives everything back.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::overload::OverloadManager;
use crate::config::ConnectionLimits;
use crate::identity::{Peer, Source};
use crate::limit::Limit;
use crate::pool::{Account, Pool, PoolError, Share};
use crate::telemetry;

/// Counts of open connections.
#[derive(Debug)]
pub struct Admission {
    limits: ConnectionLimits,
    overload: Arc<OverloadManager>,
    by_source: Arc<Pool>,
    by_identity: Arc<Pool>,
}

/// Limit that keeps a connection out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdmissionError(pub(super) Limit);

impl AdmissionError {
    /// Resets a connection before any byte was sent. It leaves nothing here, not even a socket in TIME_WAIT,
    /// because there may be many.
    pub(super) fn reject<'s, S>(self, socket: &'s S, peer: &dyn fmt::Display)
    where
        socket2::SockRef<'s>: From<&'s S>,
    {
        _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
        self.report(peer);
    }

    /// Counts the refusal, and logs some of them.
    pub(super) fn report(self, peer: &dyn fmt::Display) {
        if let Some(suppressed) = telemetry::refused_at(self.0, Instant::now()) {
            let raise = self.0.key();
            tracing::warn!(%peer, raise, suppressed, "a connection is refused; raise the limit if this load is expected");
        }
    }
}

/// Slot of an open connection; given back on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    of: Arc<Admission>,
    _by_source: Share,
    by_identity: Option<Share>,
}

impl Admission {
    pub fn new(limits: ConnectionLimits, overload: Arc<OverloadManager>) -> Arc<Self> {
        Arc::new(Self { limits, overload, by_source: Arc::default(), by_identity: Arc::default() })
    }

    pub(super) const fn overload(&self) -> &Arc<OverloadManager> {
        &self.overload
    }

    /// Takes a slot for a connection; only its source is known yet.
    pub(super) fn by_source(self: &Arc<Self>, source: Source) -> Result<ConnectionSlot, AdmissionError> {
        if self.overload.refuses_new() {
            return Err(AdmissionError(Limit::MemoryRefuse));
        }
        let ConnectionLimits { max_connections: all, max_connections_per_address: each, .. } = self.limits;
        let taken = self.by_source.take_one(Account::Source(source), all, each);
        let by_source = taken.map_err(|error| match error {
            PoolError::All => AdmissionError(Limit::Connections),
            PoolError::Account => AdmissionError(Limit::ConnectionsPerAddress),
        })?;
        Ok(ConnectionSlot { of: Arc::clone(self), _by_source: by_source, by_identity: None })
    }
}

impl ConnectionSlot {
    /// Counts the identity that the peer has proven, if any. Call it once.
    pub(super) fn identify(&mut self, peer: &Peer) -> Result<(), AdmissionError> {
        let Some(certificate) = &peer.certificate else { return Ok(()) };
        if self.by_identity.is_some() {
            return Ok(());
        }
        let limit = self.of.limits.max_connections_per_identity;
        let account = Account::Identity(certificate.identity().into());
        let taken = self.of.by_identity.take_one(account, usize::MAX, limit);
        self.by_identity = Some(taken.map_err(|_| AdmissionError(Limit::ConnectionsPerIdentity))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::identity::Certificate;

    fn admission(max: usize, per_address: usize, per_identity: usize) -> Arc<Admission> {
        let limits = ConnectionLimits {
            max_connections: max,
            max_connections_per_address: per_address,
            max_connections_per_identity: per_identity,
        };
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
    fn each_limit_is_its_own_and_a_place_comes_back() {
        let admission = admission(3, 2, 5);
        let first = [admission.by_source(source(1)), admission.by_source(source(1))];
        assert!(first.iter().all(Result::is_ok));
        assert_eq!(admission.by_source(source(1)).err(), Some(AdmissionError(Limit::ConnectionsPerAddress)));
        let local = admission.by_source(Source::Unix).expect("another source");
        assert_eq!(admission.by_source(source(2)).err(), Some(AdmissionError(Limit::Connections)));
        drop(first);
        assert!(admission.by_source(source(1)).is_ok(), "what was given back");
        drop(local);
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
            let mut slot = admission.by_source(source(from)).expect("a place");
            let identified = slot.identify(&peer(source(from), spiffe_id, subject));
            if identified.is_ok() {
                open.push(slot);
            }
            identified
        };
        let (one, refused) = (Some("spiffe://mesh/a"), Err(AdmissionError(Limit::ConnectionsPerIdentity)));
        assert_eq!([connect(1, one, "CN=a"), connect(2, one, "CN=b")], [Ok(()), Ok(())]);
        assert_eq!(connect(3, one, "CN=c"), refused, "from wherever it comes");
        assert_eq!([connect(3, None, "CN=a"), connect(3, None, "CN=a")], [Ok(()), Ok(())]);
        assert_eq!(connect(3, None, "CN=a"), refused);
        let mut plain = admission.by_source(source(9)).expect("a place");
        assert_eq!(plain.identify(&Peer::unproven(source(9))), Ok(()));
        open.truncate(3);
        let again = [(); 2].map(|()| {
            let mut slot = admission.by_source(source(9)).expect("a place");
            slot.identify(&peer(source(9), None, "CN=a")).map(|()| slot)
        });
        assert_eq!(again.map(|slot| slot.is_ok()), [true, false], "one of two places came back");
    }

    proptest! {
        /// A connection is let in exactly while the open ones leave room, after any history.
        #[test]
        fn the_counts_are_of_open_connections(steps in prop::collection::vec((0_u8..4, prop::option::of(0_u8..3), any::<bool>()), 0..200)) {
            let admission = admission(6, 3, 2);
            let mut open: Vec<(u8, Option<u8>, ConnectionSlot)> = Vec::new();
            for (from, identity, leaves) in steps {
                if leaves && !open.is_empty() {
                    open.swap_remove(usize::from(from) % open.len());
                } else {
                    let of = open.iter().filter(|(other, ..)| *other == from).count();
                    let taken = admission.by_source(source(from));
                    prop_assert_eq!(taken.is_ok(), open.len() < 6 && of < 3);
                    if let Ok(mut slot) = taken {
                        let name = identity.map(|identity| identity.to_string());
                        let who = name.map_or_else(|| Peer::unproven(source(from)), |name| peer(source(from), None, &name));
                        let of = open.iter().filter(|(_, other, _)| identity.is_some() && *other == identity).count();
                        let identified = slot.identify(&who);
                        prop_assert_eq!(identified.is_ok(), of < 2);
                        if identified.is_ok() {
                            open.push((from, identity, slot));
                        }
                    }
                }
            }
        }
    }
}
