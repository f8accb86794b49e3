//! One copy of each resource, and of what is encoded of it, that the caches of several node groups hold.
//!
//! Owns neither, only the way to find one that is held: it goes with the last cache that holds it. Knows neither types nor groups.
//!
//! Invariant: two caches share a resource only if each part of it is equal, and encodings only if they are of the same resources,
//! so that no group is shown anything of another.
//!
//! Example: 200 groups hold the same 1,000 clusters of 1 KiB. There is 1 MiB of clusters in memory, not 200 MiB, and as much again
//! that is encoded for their clients.

use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, Weak};

use foldhash::HashMap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::encodings::Encodings;
use crate::resource::Resource;

/// Parts of a table, each with a lock: the writers of groups run beside each other.
const SHARDS: usize = 16;
/// Fewest entries of a part at which it is searched for those that nobody holds any more.
const SWEEP: usize = 64;

/// Resources by their digest, and encodings by their members.
#[derive(Debug, Default)]
pub(super) struct Interner {
    resources: Table<Resource>,
    encodings: Table<Encodings>,
    hashes: RandomState,
}

impl Interner {
    /// Puts an equal resource that another cache holds in the place of this one, if there is one.
    pub(super) fn share(&self, resource: &mut Arc<Resource>) {
        let digest = resource.digest();
        *resource = self.resources.find_or_insert(digest, Arc::clone(resource), |held, new| held == new);
    }

    /// Encodings of the same resources that another cache holds, or these.
    pub(super) fn share_encodings(&self, encodings: Encodings) -> Arc<Encodings> {
        let mut hasher = self.hashes.build_hasher();
        encodings.members().iter().for_each(|member| Arc::as_ptr(member).hash(&mut hasher));
        // The members of both are held, so that equal addresses are of the same resource.
        let is_equal = |held: &Encodings, new: &Encodings| {
            let pairs = || held.members().iter().zip(new.members());
            held.members().len() == new.members().len() && pairs().all(|(held, new)| Arc::ptr_eq(held, new))
        };
        self.encodings.find_or_insert(hasher.finish().into(), Arc::new(encodings), is_equal)
    }
}

/// Values that somebody holds.
#[derive(Debug)]
struct Table<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
}

#[derive(Debug)]
struct Shard<T> {
    values: HashMap<u128, Weak<T>>,
    /// Number of entries at the end of the last search for those that nobody holds any more.
    kept: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(Shard { values: HashMap::default(), kept: 0 })) }
    }
}

impl<T> Table<T> {
    /// The equal value that somebody holds, or else this one, which is found from now on.
    fn find_or_insert(&self, key: u128, value: Arc<T>, is_equal: impl Fn(&T, &T) -> bool) -> Arc<T> {
        let mut shard = self.shards[(key % SHARDS as u128) as usize].lock();
        if let Some(held) = shard.values.get(&key).and_then(Weak::upgrade)
            && is_equal(&held, &value)
        {
            return held;
        }
        shard.values.insert(key, Arc::downgrade(&value));
        // The cost of a search is that of the entries since the last one.
        if shard.values.len() >= SWEEP.max(2 * shard.kept) {
            shard.values.retain(|_, held| held.strong_count() > 0);
            shard.kept = shard.values.len();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;
    use crate::resource::Kind;

    fn resource(name: &str, body: &[u8]) -> Arc<Resource> {
        fixture::resource(&Kind::Cluster.into(), name, "1", body)
    }

    #[test]
    fn equal_resources_are_one_and_others_are_not() {
        let interner = Interner::default();
        let (mut one, mut same, mut other) = (resource("a", b"x"), resource("a", b"x"), resource("a", b"y"));
        for resource in [&mut one, &mut same, &mut other] {
            interner.share(resource);
        }
        assert!(Arc::ptr_eq(&one, &same));
        assert_eq!((Arc::strong_count(&one), other.body().last()), (2, Some(&b'y')));
    }

    #[test]
    fn resources_that_no_cache_holds_leave_no_entry_for_long() {
        let interner = Interner::default();
        for number in 0..10_000 {
            interner.share(&mut resource(&number.to_string(), b"x"));
        }
        let entries: usize = interner.resources.shards.iter().map(|shard| shard.lock().values.len()).sum();
        assert!(entries <= SHARDS * SWEEP, "{entries}");
    }
}
