//! Quotas: counts with a limit, given back on drop.
//!
//! Knows nothing of the counted things. [`Quota`] counts by key, such as connections by address.
//! [`ByteQuota`] is one sum that many threads take from without a lock. A [pool](crate::pool) has
//! no fixed part for each peer.
//!
//! Invariants: dropping a guard always gives its part back · a count is kept only while it is not
//! zero, so that live guards bound the table · a count never exceeds the limit of its last
//! addition.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::HashMap;
use parking_lot::Mutex;

/// Number of guards of each key, and of all.
#[derive(Debug)]
pub struct Quota<K: Hash + Eq> {
    limit: usize,
    counts: Mutex<Counts<K>>,
}

#[derive(Debug)]
struct Counts<K> {
    all: usize,
    by_key: HashMap<K, usize>,
}

/// Limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaError {
    All,
    Key,
}

impl<K: Hash + Eq> Quota<K> {
    pub fn new(limit: usize) -> Self {
        Self { limit, counts: Mutex::new(Counts { all: 0, by_key: HashMap::default() }) }
    }
}

impl<K: Hash + Eq> Default for Quota<K> {
    /// A quota with limits for keys only.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl<K: Hash + Eq + Clone> Quota<K> {
    /// Takes one of this key until the guard is dropped, unless the key has `limit` already.
    ///
    /// # Errors
    ///
    /// The limit that is reached; nothing is taken.
    pub fn take(self: &Arc<Self>, key: K, limit: usize) -> Result<QuotaGuard<K>, QuotaError> {
        let mut taken = self.counts.lock();
        if taken.all >= self.limit {
            return Err(QuotaError::All);
        }
        match taken.by_key.get_mut(&key) {
            Some(count) if *count < limit => *count += 1,
            None if limit > 0 => _ = taken.by_key.insert(key.clone(), 1),
            _ => return Err(QuotaError::Key),
        }
        taken.all += 1;
        drop(taken);
        Ok(QuotaGuard { of: Arc::clone(self), key })
    }
}

/// One of a [`Quota`]; given back on drop.
#[derive(Debug)]
pub struct QuotaGuard<K: Hash + Eq> {
    of: Arc<Quota<K>>,
    key: K,
}

impl<K: Hash + Eq> Drop for QuotaGuard<K> {
    fn drop(&mut self) {
        let mut taken = self.of.counts.lock();
        taken.all -= 1;
        subtract(&mut taken.by_key, &self.key, 1);
    }
}

/// Subtracts from a count, and removes it once it is zero.
pub(crate) fn subtract<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K, less: usize) {
    let Some(count) = counts.get_mut(key) else { return };
    *count -= less;
    if *count == 0 {
        counts.remove(key);
        // A storm of peers leaves no empty table behind.
        if counts.len() < counts.capacity() / 8 {
            counts.shrink_to(counts.len() * 2);
        }
    }
}

/// Bytes that may be taken.
#[derive(Debug)]
pub struct ByteQuota {
    left: AtomicU64,
}

impl ByteQuota {
    pub const fn new(bytes: u64) -> Self {
        Self { left: AtomicU64::new(bytes) }
    }

    /// Takes bytes until the guard is dropped; `None` if fewer are left.
    pub fn take(self: &Arc<Self>, bytes: u32) -> Option<ByteQuotaGuard> {
        let less = |left: u64| left.checked_sub(bytes.into());
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(ByteQuotaGuard { of: Arc::clone(self), bytes })
    }
}

/// Bytes of a [`ByteQuota`]; given back on drop.
#[derive(Debug)]
pub struct ByteQuotaGuard {
    of: Arc<ByteQuota>,
    bytes: u32,
}

impl Drop for ByteQuotaGuard {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.bytes.into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_has_a_limit_of_its_own_and_leaves_nothing_behind() {
        let quota = Arc::<Quota<&str>>::default();
        let two = [quota.take("a", 2), quota.take("a", 2)];
        assert!(two.iter().all(Result::is_ok));
        assert_eq!(quota.take("a", 2).err(), Some(QuotaError::Key));
        assert_eq!(quota.take("a", 1).err(), Some(QuotaError::Key), "a lowered limit takes nothing away");
        assert_eq!(quota.take("b", 0).err(), Some(QuotaError::Key));
        let other = quota.take("b", 2);
        assert!(other.is_ok(), "one key's guards are not another's");
        drop(two);
        assert!(quota.take("a", 2).is_ok());
        drop(other);
        let taken = quota.counts.lock();
        assert_eq!((taken.all, taken.by_key.len()), (0, 0));
    }

    #[test]
    fn bytes_come_back() {
        let quota = Arc::new(ByteQuota::new(10));
        let six = quota.take(6);
        assert!(six.is_some() && quota.take(5).is_none());
        let four = quota.take(4);
        assert!(four.is_some() && quota.take(1).is_none());
        drop(six);
        assert!(quota.take(6).is_some());
    }

    proptest! {
        /// Counts are those of the guards that are alive after any history, and no limit is passed.
        #[test]
        fn counts_are_of_guards_that_are_alive(steps in prop::collection::vec((0_u8..4, any::<bool>()), 0..200)) {
            let quota = Arc::new(Quota::new(6));
            let mut open: Vec<(u8, QuotaGuard<u8>)> = Vec::new();
            for (key, leaves) in steps {
                if leaves && !open.is_empty() {
                    open.swap_remove(usize::from(key) % open.len());
                } else {
                    let of_key = open.iter().filter(|(other, _)| *other == key).count();
                    let taken = quota.take(key, 3);
                    let expected = match (open.len() < 6, of_key < 3) {
                        (false, _) => Some(QuotaError::All),
                        (true, false) => Some(QuotaError::Key),
                        (true, true) => None,
                    };
                    prop_assert_eq!(taken.as_ref().err().copied(), expected);
                    open.extend(taken.ok().map(|guard| (key, guard)));
                }
                let taken = quota.counts.lock();
                prop_assert_eq!(taken.all, open.len());
                prop_assert_eq!(taken.by_key.values().sum::<usize>(), open.len());
                prop_assert!(taken.by_key.values().all(|count| *count > 0));
            }
        }
    }
}
