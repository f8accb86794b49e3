//! Resources and encodings shared by the caches of several node groups.
//!
//! Owns only the table to find them: a value goes with the last cache that holds it. Knows neither types nor
//! groups.
//!
//! Invariant: caches share a resource only if all of it is equal, and encodings only of identical resources. So
//! no group sees anything of another.
//!
//! Example: 200 groups hold the same 1,000 clusters of 1 KiB. Memory holds 1 MiB of clusters, not 200 MiB, and
//! as much again that is encoded.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, OnceLock, Weak};

use bytes::{Bytes, BytesMut};
use foldhash::HashMap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::resource::Resource;

/// Parts with a lock each: writers of groups run in parallel.
const SHARDS: usize = 16;
/// Fewest entries of a part at which dead ones are swept.
const SWEEP: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Interner {
    resources: Table<Resource>,
    encodings: Table<Encodings>,
    hashes: RandomState,
}

impl Interner {
    /// Replaces the resource by an equal one of another cache, if any.
    pub(super) fn share(&self, resource: &mut Arc<Resource>) {
        let digest = resource.digest();
        *resource = self.resources.find_or_insert(digest, Arc::clone(resource), |held, new| held == new);
    }

    /// Encodings of the same resources from another cache, or these.
    pub(super) fn share_encodings(&self, encodings: Encodings) -> Arc<Encodings> {
        let mut hasher = self.hashes.build_hasher();
        encodings.members().iter().for_each(|member| Arc::as_ptr(member).hash(&mut hasher));
        // Both sides hold their members, so equal addresses mean the same resource.
        let is_equal = |held: &Encodings, new: &Encodings| {
            let pairs = || held.members().iter().zip(new.members());
            held.members().len() == new.members().len() && pairs().all(|(held, new)| Arc::ptr_eq(held, new))
        };
        self.encodings.find_or_insert(hasher.finish().into(), Arc::new(encodings), is_equal)
    }
}

/// Live values by key.
#[derive(Debug)]
struct Table<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
}

#[derive(Debug)]
struct Shard<T> {
    values: HashMap<u128, Weak<T>>,
    /// Entries left after the last sweep.
    kept: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(Shard { values: HashMap::default(), kept: 0 })) }
    }
}

impl<T> Table<T> {
    /// Finds the equal live value, or inserts this one.
    fn find_or_insert(&self, key: u128, value: Arc<T>, is_equal: impl Fn(&T, &T) -> bool) -> Arc<T> {
        let mut shard = self.shards[(key % SHARDS as u128) as usize].lock();
        if let Some(held) = shard.values.get(&key).and_then(Weak::upgrade)
            && is_equal(&held, &value)
        {
            return held;
        }
        shard.values.insert(key, Arc::downgrade(&value));
        // Sweeps cost as much as the entries since the last one.
        if shard.values.len() >= SWEEP.max(2 * shard.kept) {
            shard.values.retain(|_, held| held.strong_count() > 0);
            shard.kept = shard.values.len();
        }
        value
    }
}

#[derive(Default)]
pub(super) struct Encodings {
    /// Resources of these encodings if caches share them; else empty.
    members: Box<[Arc<Resource>]>,
    delta: OnceLock<Bytes>,
    sotw: OnceLock<Bytes>,
}

impl fmt::Debug for Encodings {
    /// Without what is encoded: there may be a Secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encodings").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Encodings {
    /// Encodings that caches with these resources may share.
    pub(super) fn of(members: Box<[Arc<Resource>]>) -> Self {
        Self { members, ..Self::default() }
    }

    pub(super) fn members(&self) -> &[Arc<Resource>] {
        &self.members
    }

    /// Elements of `DeltaDiscoveryResponse.resources`. Members must be equal in each call.
    pub(super) fn delta<'r>(&self, members: impl Iterator<Item = &'r Arc<Resource>> + Clone) -> &Bytes {
        self.delta.get_or_init(|| concat(members.map(|resource| &resource.delta_entry()[..])))
    }

    pub(super) fn delta_len(&self) -> Option<usize> {
        self.delta.get().map(Bytes::len)
    }

    /// Elements of `DiscoveryResponse.resources`, as [`delta`](Self::delta).
    pub(super) fn sotw<'r>(&self, members: impl Iterator<Item = &'r Arc<Resource>> + Clone) -> &Bytes {
        self.sotw.get_or_init(|| concat(members.map(|resource| resource.sotw_entry())))
    }
}

fn concat<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let mut out = BytesMut::with_capacity(parts.clone().map(<[u8]>::len).sum());
    parts.for_each(|part| out.extend_from_slice(part));
    out.freeze()
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
