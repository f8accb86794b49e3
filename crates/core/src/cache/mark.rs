//! Mark of a cohort: the newest change that concerns it, and how many there were.

use super::Generation;

/// Newest mark of a cohort, kept as one word so that a reader sees both parts of the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Newest generation that the members of the cohort have something to learn from.
    pub(super) generation: Generation,
    /// Number of changes up to there.
    pub(super) changes: ChangeCount,
}

/// Number of changes that a cohort was marked with, which begins anew at 2²⁰: only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeCount(u32);

impl ChangeCount {
    /// Bits that it takes in a word. The other 44 hold the generation: 1,000 changes in each second for 500 years.
    const BITS: u32 = 20;
    const MASK: u32 = (1 << Self::BITS) - 1;

    pub(super) const fn next(self) -> Self {
        Self((self.0 + 1) & Self::MASK)
    }

    /// Number of changes since an earlier count.
    pub(super) const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }
}

impl Mark {
    /// Mark of a cohort that begins at this generation.
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
