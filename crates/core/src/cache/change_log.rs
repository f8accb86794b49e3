//! Recent changes to the names of a cohort, so that an update need not look at each name.

use smallvec::SmallVec;

use super::Generation;
use crate::resource::Name;

/// Longest list of changed names. With more changes since a position, all names of the cohort are looked at.
const LISTED: usize = 8;

/// Names that changed, each once.
pub(super) type Changed = SmallVec<[Name; LISTED]>;

/// Names of a cohort that changed lately, in the order in which they did.
///
/// Example: `a` changes at 5, `b` at 6 and `a` again at 8. After 4 these are `a` and `b`, after 6 only `a`. A ninth change
/// empties the log and begins it anew at its generation.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// Generation from which on it is complete.
    since: Generation,
    changed: SmallVec<[(Generation, Name); 1]>,
}

impl ChangeLog {
    pub(super) const fn starting(since: Generation) -> Self {
        Self { since, changed: SmallVec::new_const() }
    }

    /// A name changed, in the change that ends with this generation.
    pub(super) fn note(&mut self, generation: Generation, name: &Name) {
        if self.changed.len() == LISTED {
            self.changed.clear();
            self.since = generation;
        }
        // With other names of its change dropped, this one would be an incomplete list of them.
        if generation > self.since {
            self.changed.push((generation, name.clone()));
        }
    }

    /// Copy that is limited to some of the names.
    pub(super) fn of(&self, names: impl Fn(&Name) -> bool) -> Self {
        let changed = self.changed.iter().filter(|(_, name)| names(name)).cloned().collect();
        Self { since: self.since, changed }
    }

    /// The names that changed after `from`, each once; `None` if it does not go back that far.
    pub(super) fn after(&self, from: Generation) -> Option<Changed> {
        if from < self.since {
            return None;
        }
        let mut names = Changed::new();
        for (_, name) in self.changed.iter().filter(|(generation, _)| *generation > from) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_log_lists_all_that_changed_since_or_says_that_it_cannot(
            changes in proptest::collection::vec(proptest::collection::vec(0_u8..12, 1..12), 0..12),
            from in 0_u64..14,
        ) {
            let mut change_log = ChangeLog::starting(1.into());
            let mut expected = BTreeSet::new();
            for (at, names) in changes.iter().enumerate() {
                let generation = at as u64 + 2;
                for name in names {
                    change_log.note(generation.into(), &Name::from(format!("n{name}")));
                    if generation > from {
                        expected.insert(format!("n{name}"));
                    }
                }
            }
            let listed = change_log.after(from.into());
            let all_fit = changes.iter().flatten().count() <= LISTED;
            prop_assert!(listed.is_some() || from == 0 || !all_fit);
            if let Some(listed) = listed {
                prop_assert_eq!(listed.iter().map(Name::to_string).collect::<BTreeSet<_>>().len(), listed.len());
                prop_assert_eq!(listed.iter().map(Name::to_string).collect::<BTreeSet<_>>(), expected);
            }
        }
    }
}
