//! Pools that all peers share, with a bound on each peer's part.
//!
//! Owns the counts of a pool and the rule. Knows nothing of the counted things, and has no clock
//! and no lock.
//!
//! A peer gets more only while it has at most as much as is left for others. A connection gets more
//! only while it has at most half of its peer's rest. Small amounts (`Pool::floor`) are always
//! given while there are any, so that a greedy connection does not starve others of its peer. Of
//! the last 64th a peer gets a 64th.
//!
//! Example: a pool of 4096. A peer gets 2048 of it, and 1024 over one connection. When four peers
//! have taken all they get (2048, 1024, 512 and 256), the next one gets 128.
//!
//! Invariants: the sum never exceeds the limit of the last addition · a count is kept only while it
//! is not zero.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use foldhash::HashMap;

use crate::identity::{Peer, Source};
use crate::quota::subtract;

/// Connection that takes from a pool, with the peer that is charged. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(Arc<Charged>);

#[derive(Debug, PartialEq, Eq)]
struct Charged {
    account: Account,
    connection: u64,
}

/// Peer by proven identity, or else by source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// A SPIFFE ID, else a subject.
    Identity(Box<str>),
    /// Without a certificate.
    Source(Source),
}

impl Tenant {
    /// Tenant for a connection of this peer. Connection numbers are unique. All addresses of an
    /// IPv6 /64 are one peer: a single host may have them all.
    pub fn new(peer: &Peer, connection: u64) -> Self {
        let account = match (&peer.certificate, peer.source) {
            (Some(certificate), _) => Account::Identity(certificate.identity().into()),
            (None, Source::Ip(IpAddr::V6(address))) => {
                let network = address.to_bits() >> 64 << 64;
                Account::Source(Source::Ip(Ipv6Addr::from_bits(network).into()))
            }
            (None, source) => Account::Source(source),
        };
        Self(Arc::new(Charged { account, connection }))
    }

    pub fn account(&self) -> &Account {
        &self.0.account
    }
}

#[derive(Debug, Default)]
pub struct Pool {
    taken: usize,
    by_account: HashMap<Account, usize>,
    by_connection: HashMap<u64, usize>,
}

impl Pool {
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// Amount that a tenant always gets while there is any: a 256th.
    const fn floor(limit: usize) -> usize {
        let floor = limit / 256;
        if floor == 0 { 1 } else { floor }
    }

    /// Takes an amount, unless it exceeds the rest of `limit` or the tenant's bound.
    #[must_use]
    pub fn take(&mut self, tenant: Option<&Tenant>, more: usize, limit: usize) -> bool {
        let Some(left) = limit.checked_sub(self.taken.saturating_add(more)) else { return false };
        let Some(Tenant(charged)) = tenant else {
            self.taken += more;
            return true;
        };
        let Charged { account, connection } = &**charged;
        let of = |own: Option<&usize>| own.copied().unwrap_or_default().saturating_add(more);
        let of_account = of(self.by_account.get(account));
        let of_connection = of(self.by_connection.get(connection));
        let left_to_account = left.saturating_sub(of_account);
        let floor = Self::floor(limit);
        // The last part is for peers with next to nothing: however many take all they get, the next
        // one finds some.
        let most = if left >= limit / 64 { left.max(floor) } else { (limit / 4096).max(1) };
        if of_account > most || of_connection > (left_to_account / 2).max(floor) {
            return false;
        }
        if more > 0 {
            self.taken += more;
            self.by_account.insert(account.clone(), of_account);
            self.by_connection.insert(*connection, of_connection);
        }
        true
    }

    /// Gives back an amount of this tenant.
    pub fn give_back(&mut self, tenant: Option<&Tenant>, less: usize) {
        self.taken -= less;
        let Some(Tenant(charged)) = tenant else { return };
        let Charged { account, connection } = &**charged;
        subtract(&mut self.by_account, account, less);
        subtract(&mut self.by_connection, connection, less);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::Certificate;

    const LIMIT: usize = 4096;

    fn tenant(address: u8, connection: u64) -> Tenant {
        Tenant::new(&Peer::unproven(Source::of([10, 0, 0, address].into())), connection)
    }

    /// Takes one at a time until no more is given. Returns how many were.
    fn drain(pool: &mut Pool, tenant: &Tenant) -> usize {
        std::iter::from_fn(|| pool.take(Some(tenant), 1, LIMIT).then_some(())).count()
    }

    #[test]
    fn a_peer_that_takes_all_it_gets_leaves_half_and_the_next_one_half_of_that() {
        let mut pool = Pool::default();
        let mut connections = 0..;
        let mut drain_peer = |address| -> usize {
            connections
                .by_ref()
                .take(100)
                .map(|connection| drain(&mut pool, &tenant(address, connection)))
                .sum()
        };
        assert_eq!([1, 2, 3, 4, 5].map(&mut drain_peer), [2048, 1024, 512, 256, 128]);
    }

    #[test]
    fn a_connection_leaves_some_to_others_of_its_address() {
        let mut pool = Pool::default();
        let [one, two, three] = [1, 2, 3].map(|connection| drain(&mut pool, &tenant(1, connection)));
        assert_eq!((one, two, three), (1024, 512, 256));
        let ordinary = (4..50).map(|connection| pool.take(Some(&tenant(1, connection)), 5, LIMIT));
        assert!(ordinary.into_iter().all(|given| given), "an ordinary client is served");
    }

    #[test]
    fn an_identity_is_one_peer_from_wherever_it_comes() {
        let mut pool = Pool::default();
        let of = |address: u8, connection| {
            let certificate = Certificate { subject: "CN=a".into(), ..Certificate::default() };
            let source = Source::of([10, 0, 0, address].into());
            Tenant::new(&Peer { source, certificate: Some(Box::new(certificate)) }, connection)
        };
        let taken: usize = (0..200).map(|number: u8| drain(&mut pool, &of(number, number.into()))).sum();
        assert_eq!(taken, LIMIT / 2);
        assert!(pool.take(Some(&tenant(1, 1000)), 1, LIMIT));
    }

    #[test]
    fn a_host_with_many_addresses_is_one_peer() {
        let mut pool = Pool::default();
        let of = |host: u128| {
            let address = IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_0000_0001_u128 << 64 | host));
            Tenant::new(&Peer::unproven(Source::of(address)), host as u64)
        };
        let taken: usize = (0..200).map(|host| drain(&mut pool, &of(host))).sum();
        assert_eq!(taken, LIMIT / 2);
    }

    #[test]
    fn however_many_peers_take_all_they_get_the_next_one_finds_something() {
        let mut pool = Pool::default();
        for address in 0..60 {
            drain(&mut pool, &tenant(address, address.into()));
        }
        assert!(pool.take(Some(&tenant(250, 250)), 1, LIMIT), "{} of {LIMIT} are taken", pool.taken());
    }

    #[test]
    fn the_smallest_pool_serves_one() {
        let mut pool = Pool::default();
        assert!(pool.take(Some(&tenant(1, 1)), 1, 1));
        assert!(!pool.take(Some(&tenant(2, 2)), 1, 1));
        pool.give_back(Some(&tenant(1, 1)), 1);
        assert!(pool.take(Some(&tenant(2, 2)), 1, 1));
    }

    proptest! {
        /// The counts are those of all that is taken, in any order, and a newcomer is served unless many are greedy.
        #[test]
        fn counts_are_of_taken_places(steps in prop::collection::vec((0_u8..5, 0_u64..4, 1_usize..200, any::<bool>()), 0..300)) {
            let mut pool = Pool::default();
            let mut held: Vec<(Tenant, usize)> = Vec::new();
            for (address, connection, amount, gives_back) in steps {
                if gives_back && !held.is_empty() {
                    let (tenant, amount) = held.swap_remove(amount % held.len());
                    pool.give_back(Some(&tenant), amount);
                } else {
                    let tenant = tenant(address, u64::from(address) * 10 + connection);
                    if pool.take(Some(&tenant), amount, LIMIT) {
                        held.push((tenant, amount));
                    }
                }
                prop_assert_eq!(pool.taken(), held.iter().map(|(_, amount)| amount).sum::<usize>());
                prop_assert!(pool.taken() < LIMIT);
                let mut newcomer = pool.take(Some(&tenant(99, 999)), 16, LIMIT);
                if newcomer {
                    pool.give_back(Some(&tenant(99, 999)), 16);
                } else {
                    newcomer = LIMIT - pool.taken() < LIMIT / 64 + 16;
                }
                prop_assert!(newcomer);
            }
            for (tenant, amount) in held {
                pool.give_back(Some(&tenant), amount);
            }
            prop_assert!(pool.by_account.is_empty() && pool.by_connection.is_empty());
        }
    }
}
