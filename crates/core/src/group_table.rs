//! Table of the node groups that clients made.
//!
//! Owns the number of clients of each group, the time of its release, and the limit of groups, with
//! a share for each peer. Knows neither caches nor streams: the caller keeps a group's content. The
//! group of the relay's own node is not in it.
//!
//! A group counts against the share of the peer that made it until its release, even while others
//! use it.
//!
//! Invariants: a group is released only without clients, and after its linger · the number of
//! groups never exceeds the limit of the last addition · a release gives its share of the pool
//! back.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashMap;

use crate::pool::{Pool, Share, Tenant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this client, or all of them, made too many node groups; all peers may have {limit} (groups.max), and one of them a part of it"
)]
pub struct GroupLimitError {
    pub limit: usize,
}

#[derive(Debug)]
pub struct GroupTable<K, T> {
    groups: HashMap<K, Entry<T>>,
    /// By the time of their release.
    unused: BTreeSet<(Instant, K)>,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    clients: usize,
    release_at: Option<Instant>,
    _share: Share,
}

impl<K, T> Default for GroupTable<K, T> {
    fn default() -> Self {
        Self { groups: HashMap::default(), unused: BTreeSet::new(), pool: Arc::default() }
    }
}

impl<K: Hash + Ord + Clone, T> GroupTable<K, T> {
    /// Adds a client to a group, which `make` builds if it is new.
    ///
    /// # Errors
    ///
    /// [`GroupLimitError`] if the group is new, and the tenant's share, or `limit`, is used up.
    pub fn join(
        &mut self,
        key: &K,
        tenant: Option<&Tenant>,
        limit: usize,
        make: impl FnOnce() -> T,
    ) -> Result<&T, GroupLimitError> {
        if !self.groups.contains_key(key) {
            let share = self.pool.take(tenant, 1, limit).ok_or(GroupLimitError { limit })?;
            let entry = Entry { value: make(), clients: 0, release_at: None, _share: share };
            self.groups.insert(key.clone(), entry);
        }
        let entry = self.groups.get_mut(key).ok_or(GroupLimitError { limit })?;
        entry.clients += 1;
        if let Some(at) = entry.release_at.take() {
            self.unused.remove(&(at, key.clone()));
        }
        Ok(&entry.value)
    }

    /// `release_at`: if nobody joins before.
    pub fn leave(&mut self, key: &K, release_at: Instant) {
        let Some(entry) = self.groups.get_mut(key) else { return };
        entry.clients = entry.clients.saturating_sub(1);
        if entry.clients == 0 && entry.release_at.is_none() {
            entry.release_at = Some(release_at);
            self.unused.insert((release_at, key.clone()));
        }
    }

    pub fn next_release(&self) -> Option<Instant> {
        self.unused.first().map(|(at, _)| *at)
    }

    /// Releases a group that is due. Groups to keep are due again at `later`, after `now`. Call until it
    /// returns `None`.
    pub fn release_unless(
        &mut self,
        now: Instant,
        later: Instant,
        is_kept: impl Fn(&T) -> bool,
    ) -> Option<(K, T)> {
        while self.next_release()? <= now {
            let (_, key) = self.unused.pop_first()?;
            if let Some(entry) = self.groups.get_mut(&key).filter(|entry| is_kept(&entry.value)) {
                entry.release_at = Some(later);
                self.unused.insert((later, key));
                continue;
            }
            let entry = self.groups.remove(&key)?;
            return Some((key, entry.value));
        }
        None
    }

    pub fn iter(&self) -> impl Iterator<Item = (&K, &T, usize)> {
        self.groups.iter().map(|(key, entry)| (key, &entry.value, entry.clients))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::identity::{Peer, Source};

    fn release<K: Hash + Ord + Clone, T>(table: &mut GroupTable<K, T>, now: Instant) -> Option<(K, T)> {
        table.release_unless(now, now, |_| false)
    }

    fn tenant(address: u8) -> Tenant {
        Tenant::new(&Peer::unproven(Source::of([10, 0, 0, address].into())), address.into())
    }

    #[test]
    fn a_group_that_is_to_be_kept_comes_up_again_later() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut table = GroupTable::default();
        for (key, value) in [("kept", true), ("spent", false)] {
            table.join(&key, None, 8, || value).unwrap();
            table.leave(&key, after(60));
        }
        let is_kept = |value: &bool| *value;
        assert_eq!(table.release_unless(after(60), after(120), is_kept), Some(("spent", false)));
        assert_eq!(table.release_unless(after(60), after(120), is_kept), None);
        assert_eq!((table.groups.len(), table.next_release()), (1, Some(after(120))));
        table.join(&"kept", None, 8, || false).unwrap();
        assert_eq!(table.next_release(), None, "somebody came");
        table.leave(&"kept", after(200));
        assert_eq!(table.release_unless(after(200), after(260), |_| false), Some(("kept", true)));
    }

    #[test]
    fn a_group_is_released_after_its_linger_unless_somebody_comes_back() {
        let now = Instant::now();
        let linger = Duration::from_secs(60);
        let mut table = GroupTable::default();
        for _ in 0..2 {
            assert_eq!(table.join(&"edge", None, 4, || 1), Ok(&1));
        }
        table.leave(&"edge", now + linger);
        assert_eq!(table.next_release(), None, "one client is left");
        table.leave(&"edge", now + linger);
        assert_eq!((table.next_release(), release(&mut table, now)), (Some(now + linger), None));
        assert_eq!(table.join(&"edge", None, 4, || 2), Ok(&1), "the group is as it was");
        assert_eq!(release(&mut table, now + linger), None);
        table.leave(&"edge", now + 2 * linger);
        assert_eq!(release(&mut table, now + 2 * linger), Some(("edge", 1)));
        assert!(table.groups.is_empty());
        assert_eq!(table.join(&"edge", None, 4, || 2), Ok(&2));
    }

    #[test]
    fn a_peer_that_makes_groups_leaves_room_for_others() {
        let now = Instant::now();
        let mut table = GroupTable::default();
        let hog = tenant(1);
        let made = (0..1000).take_while(|n| table.join(n, Some(&hog), 64, || ()).is_ok()).count();
        assert_eq!(made, 16, "a quarter over one connection");
        assert_eq!(table.join(&1000, Some(&hog), 64, || ()), Err(GroupLimitError { limit: 64 }));
        assert!(table.join(&1, Some(&hog), 64, || ()).is_ok(), "a group that is there costs nothing");
        assert!(table.join(&1000, Some(&tenant(2)), 64, || ()).is_ok());
        // Groups that nobody is in count until they are released.
        table.leave(&0, now);
        table.leave(&2, now);
        assert!(table.join(&1001, Some(&hog), 64, || ()).is_err());
        assert!(release(&mut table, now).is_some() && release(&mut table, now).is_some());
        assert!(table.join(&1001, Some(&hog), 64, || ()).is_ok());
    }

    proptest! {
        /// Clients are those that joined and have not left, and only groups without any are released.
        #[test]
        fn counts_are_those_of_a_model(steps in prop::collection::vec((0_u8..6, 0_u8..3), 0..200)) {
            let start = Instant::now();
            let at = |second: usize| start + Duration::from_secs(second as u64);
            let mut table = GroupTable::default();
            let mut inside: Vec<u8> = Vec::new();
            for (second, (key, step)) in steps.into_iter().enumerate() {
                match step {
                    0 => if table.join(&key, Some(&tenant(key % 2)), 4, || ()).is_ok() {
                        inside.push(key);
                    },
                    1 => if let Some(place) = inside.iter().position(|other| *other == key) {
                        inside.swap_remove(place);
                        table.leave(&key, at(second + 3));
                    },
                    _ => while let Some((key, ())) = release(&mut table, at(second)) {
                        prop_assert!(!inside.contains(&key));
                    },
                }
                let count = |key: u8| inside.iter().filter(|other| **other == key).count();
                prop_assert!(table.iter().all(|(key, (), clients)| clients == count(*key)));
                prop_assert!(inside.iter().all(|key| table.groups.contains_key(key)));
                prop_assert!(table.groups.len() <= 4 && table.pool.taken() == table.groups.len());
                let unused = table.iter().filter(|(.., clients)| *clients == 0).count();
                prop_assert_eq!(table.unused.len(), unused);
            }
        }
    }
}
