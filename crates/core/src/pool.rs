//! Pools that all peers share, with a bound on each peer's part.
//!
//! Owns the counts of a pool and the rules. Knows nothing of the counted things, and has no clock. Dropping
//! a [`Share`] gives its amount back.
//!
//! By the fair rule, a peer gets more only while it has at most as much as is left for others. A
//! connection gets more only while it has at most half of its peer's rest. Small amounts
//! (`floor`) are always given while there are any, so that a greedy connection does not starve
//! others of its peer. Of the last 64th a peer gets a 64th.
//!
//! Example: a pool of 4096. A peer gets 2048 of it, and 1024 over one connection. When four peers
//! have taken all they get (2048, 1024, 512 and 256), the next one gets 128.
//!
//! Other pools have a fixed limit for each account, such as connections by address.
//!
//! Invariants: the sum never exceeds the limit of the last addition · a count is kept only while it
//! is not zero, so that live shares bound the table.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::identity::{Peer, Source};

/// Connection that takes from a pool, after the peer that is charged. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant(Arc<[Account]>);

/// Peer by proven identity, or else by source; or one of its connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// A SPIFFE ID, else a subject.
    Identity(Box<str>),
    /// Without a certificate.
    Source(Source),
    Connection(u64),
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
        Self([account, Account::Connection(connection)].into())
    }

    /// The peer.
    pub fn account(&self) -> &Account {
        &self.0[0]
    }
}

#[derive(Debug, Default)]
pub struct Pool(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    taken: usize,
    by_account: HashMap<Account, usize>,
}

/// Limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    All,
    Account,
}

/// Amount of a [`Pool`]; given back on drop.
#[derive(Debug)]
pub struct Share {
    of: Arc<Pool>,
    accounts: Arc<[Account]>,
    amount: usize,
}

/// Amount that a tenant always gets while there is any: a 256th.
fn floor(limit: usize) -> usize {
    (limit / 256).max(1)
}

impl Pool {
    pub fn taken(&self) -> usize {
        self.0.lock().taken
    }

    /// Empty share of a tenant. `None`: only the limit of all applies.
    pub fn share(self: &Arc<Self>, tenant: Option<&Tenant>) -> Share {
        let accounts = tenant.map(|Tenant(accounts)| Arc::clone(accounts)).unwrap_or_default();
        Share { of: Arc::clone(self), accounts, amount: 0 }
    }

    /// Takes an amount by the fair rule, unless it exceeds the rest of `limit` or the tenant's bound.
    pub fn take(self: &Arc<Self>, tenant: Option<&Tenant>, amount: usize, limit: usize) -> Option<Share> {
        let mut share = self.share(tenant);
        share.set(amount, limit).then_some(share)
    }

    /// Takes one, unless all have `limit` or this account has `each` already.
    ///
    /// # Errors
    ///
    /// The limit that is reached; nothing is taken.
    pub fn take_one(
        self: &Arc<Self>,
        account: Account,
        limit: usize,
        each: usize,
    ) -> Result<Share, PoolError> {
        let mut counts = self.0.lock();
        if counts.taken >= limit {
            return Err(PoolError::All);
        }
        if counts.of(&account) >= each {
            return Err(PoolError::Account);
        }
        let accounts = Arc::from([account]);
        counts.replace(&accounts, 0, 1);
        drop(counts);
        Ok(Share { of: Arc::clone(self), accounts, amount: 1 })
    }
}

impl Counts {
    fn of(&self, account: &Account) -> usize {
        self.by_account.get(account).copied().unwrap_or_default()
    }

    /// The fair rule.
    fn has_room(&self, accounts: &[Account], more: usize, limit: usize) -> bool {
        let Some(left) = limit.checked_sub(self.taken.saturating_add(more)) else { return false };
        let [peer, connection] = accounts else { return true };
        let [of_peer, of_connection] = [peer, connection].map(|one| self.of(one).saturating_add(more));
        // The last part is for peers with next to nothing: however many take all they get, the next
        // one finds some.
        let most = if left >= limit / 64 { left.max(floor(limit)) } else { (limit / 4096).max(1) };
        of_peer <= most && of_connection <= (left.saturating_sub(of_peer) / 2).max(floor(limit))
    }

    /// Counts `after` in place of `before` for these accounts.
    fn replace(&mut self, accounts: &[Account], before: usize, after: usize) {
        self.taken = self.taken - before + after;
        for account in accounts {
            let Some(count) = self.by_account.get_mut(account) else {
                if after > 0 {
                    self.by_account.insert(account.clone(), after);
                }
                continue;
            };
            *count = *count - before + after;
            if *count > 0 {
                continue;
            }
            self.by_account.remove(account);
            // A storm of peers leaves no empty table behind.
            if self.by_account.len() < self.by_account.capacity() / 8 {
                self.by_account.shrink_to(self.by_account.len() * 2);
            }
        }
    }
}

impl Share {
    /// Sets the amount. Returns false, and changes nothing, if it grew beyond the rest of `limit` or
    /// the tenant's bound.
    pub fn set(&mut self, amount: usize, limit: usize) -> bool {
        let mut counts = self.of.0.lock();
        let more = amount.saturating_sub(self.amount);
        if more > 0 && !counts.has_room(&self.accounts, more, limit) {
            return false;
        }
        counts.replace(&self.accounts, self.amount, amount);
        self.amount = amount;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.of.0.lock().replace(&self.accounts, self.amount, 0);
        }
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

    fn source(last: u8) -> Account {
        Account::Source(Source::of([10, 0, 0, last].into()))
    }

    /// Takes one at a time until no more is given. Returns how many were.
    fn drain(pool: &Arc<Pool>, tenant: &Tenant) -> usize {
        let taken = std::iter::from_fn(|| pool.take(Some(tenant), 1, LIMIT));
        // They stay taken.
        taken.map(std::mem::forget).count()
    }

    #[test]
    fn a_peer_that_takes_all_it_gets_leaves_half_and_the_next_one_half_of_that() {
        let pool = Arc::<Pool>::default();
        let mut connections = 0..;
        let mut drain_peer = |address| -> usize {
            connections.by_ref().take(100).map(|connection| drain(&pool, &tenant(address, connection))).sum()
        };
        assert_eq!([1, 2, 3, 4, 5].map(&mut drain_peer), [2048, 1024, 512, 256, 128]);
    }

    #[test]
    fn a_connection_leaves_some_to_others_of_its_address() {
        let pool = Arc::<Pool>::default();
        let [one, two, three] = [1, 2, 3].map(|connection| drain(&pool, &tenant(1, connection)));
        assert_eq!((one, two, three), (1024, 512, 256));
        let ordinary: Vec<_> =
            (4..50).map(|connection| pool.take(Some(&tenant(1, connection)), 5, LIMIT)).collect();
        assert!(ordinary.iter().all(Option::is_some), "an ordinary client is served");
    }

    #[test]
    fn an_identity_is_one_peer_from_wherever_it_comes() {
        let pool = Arc::<Pool>::default();
        let of = |address: u8, connection| {
            let certificate = Certificate { subject: "CN=a".into(), ..Certificate::default() };
            let source = Source::of([10, 0, 0, address].into());
            Tenant::new(&Peer { source, certificate: Some(Arc::new(certificate)) }, connection)
        };
        let taken: usize = (0..200).map(|number: u8| drain(&pool, &of(number, number.into()))).sum();
        assert_eq!(taken, LIMIT / 2);
        assert!(pool.take(Some(&tenant(1, 1000)), 1, LIMIT).is_some());
    }

    #[test]
    fn a_host_with_many_addresses_is_one_peer() {
        let pool = Arc::<Pool>::default();
        let of = |host: u128| {
            let address = IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_0000_0001_u128 << 64 | host));
            Tenant::new(&Peer::unproven(Source::of(address)), host as u64)
        };
        let taken: usize = (0..200).map(|host| drain(&pool, &of(host))).sum();
        assert_eq!(taken, LIMIT / 2);
    }

    #[test]
    fn however_many_peers_take_all_they_get_the_next_one_finds_something() {
        let pool = Arc::<Pool>::default();
        for address in 0..60 {
            drain(&pool, &tenant(address, address.into()));
        }
        let next = pool.take(Some(&tenant(250, 250)), 1, LIMIT);
        assert!(next.is_some(), "{} of {LIMIT} are taken", pool.taken());
    }

    #[test]
    fn the_smallest_pool_serves_one() {
        let pool = Arc::<Pool>::default();
        let first = pool.take(Some(&tenant(1, 1)), 1, 1);
        assert!(first.is_some() && pool.take(Some(&tenant(2, 2)), 1, 1).is_none());
        drop(first);
        assert!(pool.take(Some(&tenant(2, 2)), 1, 1).is_some());
    }

    #[test]
    fn an_account_has_a_limit_of_its_own_and_leaves_nothing_behind() {
        let pool = Arc::<Pool>::default();
        let take = |last, each| pool.take_one(source(last), usize::MAX, each);
        let two = [take(1, 2), take(1, 2)];
        assert!(two.iter().all(Result::is_ok));
        assert_eq!(take(1, 2).err(), Some(PoolError::Account));
        assert_eq!(take(1, 1).err(), Some(PoolError::Account), "a lowered limit takes nothing away");
        assert_eq!(take(2, 0).err(), Some(PoolError::Account));
        let other = take(2, 2);
        assert!(other.is_ok(), "one account's shares are not another's");
        drop(two);
        assert!(take(1, 2).is_ok());
        drop(other);
        let counts = pool.0.lock();
        assert_eq!((counts.taken, counts.by_account.len()), (0, 0));
    }

    #[test]
    fn shares_without_a_tenant_come_back() {
        let pool = Arc::<Pool>::default();
        let six = pool.take(None, 6, 10);
        assert!(six.is_some() && pool.take(None, 5, 10).is_none());
        let four = pool.take(None, 4, 10);
        assert!(four.is_some() && pool.take(None, 1, 10).is_none());
        drop(six);
        assert!(pool.take(None, 6, 10).is_some());
    }

    proptest! {
        /// The counts are those of all that is taken, in any order, and a newcomer is served unless many are greedy.
        #[test]
        fn counts_are_of_taken_places(steps in prop::collection::vec((0_u8..5, 0_u64..4, 1_usize..200, any::<bool>()), 0..300)) {
            let pool = Arc::<Pool>::default();
            let mut held: Vec<Share> = Vec::new();
            for (address, connection, amount, gives_back) in steps {
                if gives_back && !held.is_empty() {
                    held.swap_remove(amount % held.len());
                } else if amount % 2 == 0 && !held.is_empty() {
                    let at = amount % held.len();
                    held[at].set(amount, LIMIT);
                } else {
                    let tenant = tenant(address, u64::from(address) * 10 + connection);
                    held.extend(pool.take(Some(&tenant), amount, LIMIT));
                }
                let taken = pool.taken();
                prop_assert_eq!(taken, held.iter().map(|share| share.amount).sum::<usize>());
                prop_assert!(taken < LIMIT);
                let newcomer = pool.take(Some(&tenant(99, 999)), 16, LIMIT);
                prop_assert!(newcomer.is_some() || LIMIT - taken < LIMIT / 64 + 16);
            }
            drop(held);
            let counts = pool.0.lock();
            prop_assert!(counts.taken == 0 && counts.by_account.is_empty());
        }

        /// Counts are those of the shares that are alive after any history, and no limit is passed.
        #[test]
        fn counts_are_of_shares_that_are_alive(steps in prop::collection::vec((0_u8..4, any::<bool>()), 0..200)) {
            let pool = Arc::<Pool>::default();
            let mut open: Vec<(u8, Share)> = Vec::new();
            for (key, leaves) in steps {
                if leaves && !open.is_empty() {
                    open.swap_remove(usize::from(key) % open.len());
                } else {
                    let of_key = open.iter().filter(|(other, _)| *other == key).count();
                    let taken = pool.take_one(source(key), 6, 3);
                    let expected = match (open.len() < 6, of_key < 3) {
                        (false, _) => Some(PoolError::All),
                        (true, false) => Some(PoolError::Account),
                        (true, true) => None,
                    };
                    prop_assert_eq!(taken.as_ref().err().copied(), expected);
                    open.extend(taken.ok().map(|share| (key, share)));
                }
                let counts = pool.0.lock();
                prop_assert_eq!(counts.taken, open.len());
                prop_assert_eq!(counts.by_account.values().sum::<usize>(), open.len());
                prop_assert!(counts.by_account.values().all(|count| *count > 0));
            }
        }
    }
}
