//! Generations, the cache's only notion of time, and the mark of a cohort.

use std::fmt;

/// Point in the history of a group's cache. Each change of a resource has its own. All types of a group share
/// one counter, so generations order everything.
///
/// Example: the control plane sends clusters `a` and `b`, then endpoints of `a`. The clusters get 1 and 2, the
/// endpoints 3. A client at 1 was sent `a` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    pub const ZERO: Self = Self(0);

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// As a number, for nonces and metrics.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Generation {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Newest mark of a cohort: one word, so that readers see both parts of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) generation: Generation,
    pub(super) changes: ChangeCount,
}

/// Number of changes of a cohort. It wraps at 2²⁰: only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeCount(u32);

impl ChangeCount {
    /// Bits in a word. The other 44 hold the generation: 1,000 changes a second for 500 years.
    const BITS: u32 = 20;
    const MASK: u32 = (1 << Self::BITS) - 1;

    pub(super) const fn next(self) -> Self {
        Self((self.0 + 1) & Self::MASK)
    }

    pub(super) const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }
}

impl Mark {
    pub(super) fn starting(generation: Generation) -> Self {
        Self { generation, changes: ChangeCount::default() }
    }

    pub(super) const fn to_word(self) -> u64 {
        (self.generation.get() << ChangeCount::BITS) | self.changes.0 as u64
    }

    pub(super) fn from_word(word: u64) -> Self {
        let changes = ChangeCount(word as u32 & ChangeCount::MASK);
        Self { generation: (word >> ChangeCount::BITS).into(), changes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_one_word() {
        let mut mark = Mark::starting(7.into());
        assert_eq!(Mark::from_word(mark.to_word()), mark);
        mark.generation = ((1 << 44) - 1).into();
        mark.changes = mark.changes.next().next();
        assert_eq!(Mark::from_word(mark.to_word()), mark);
        assert_eq!(mark.changes.since(ChangeCount::default()), 2);
    }

    #[test]
    fn a_count_begins_anew_and_differences_stay() {
        let before = ChangeCount(ChangeCount::MASK);
        let after = before.next().next();
        assert_eq!((after.0, after.since(before)), (1, 2));
    }
}
