//! One copy of each resource that the caches of several node groups hold.
//!
//! Owns no resource, only the way to find one that is held: a resource goes with the last cache that holds it. Knows neither
//! types nor groups.
//!
//! Invariant: two caches share a resource only if each part of it is equal, so that no group is shown anything of another.
//!
//! Example: 200 groups hold the same 1,000 clusters of 1 KiB. There is 1 MiB of clusters in memory, not 200 MiB.

use std::sync::{Arc, Weak};

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::resource::Resource;

/// Parts of the table, each with a lock: the writers of groups run beside each other.
const SHARDS: usize = 16;
/// Fewest entries of a part at which it is searched for resources that nobody holds any more.
const SWEEP: usize = 64;

/// Resources by their digest.
#[derive(Debug, Default)]
pub(super) struct Interner {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    resources: HashMap<u128, Weak<Resource>>,
    /// Number of entries at the end of the last search for those that nobody holds any more.
    kept: usize,
}

impl Interner {
    /// Puts an equal resource that another cache holds in the place of this one, if there is one.
    pub(super) fn share(&self, resource: &mut Arc<Resource>) {
        let digest = resource.digest();
        let mut shard = self.shards[(digest % SHARDS as u128) as usize].lock();
        if let Some(held) = shard.resources.get(&digest).and_then(Weak::upgrade)
            && held == *resource
        {
            *resource = held;
            return;
        }
        shard.resources.insert(digest, Arc::downgrade(resource));
        // The cost of a search is that of the entries since the last one.
        if shard.resources.len() >= SWEEP.max(2 * shard.kept) {
            shard.resources.retain(|_, held| held.strong_count() > 0);
            shard.kept = shard.resources.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Envelope, Kind};

    fn resource(name: &str, body: &[u8]) -> Arc<Resource> {
        let url = Kind::Cluster.url().expect("a known type");
        let any = [&[10, url.len() as u8], url.as_bytes(), &[18, body.len() as u8], body].concat();
        let message =
            [&[10, 1, b'1', 26, name.len() as u8], name.as_bytes(), &[18, any.len() as u8], &any].concat();
        let envelope = Envelope::parse(&message, &Kind::Cluster.into()).expect("a resource");
        Arc::new(envelope.encode(&Kind::Cluster.into(), name.into()).expect("it has a body"))
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
        let entries: usize = interner.shards.iter().map(|shard| shard.lock().resources.len()).sum();
        assert!(entries <= SHARDS * SWEEP, "{entries}");
    }
}
