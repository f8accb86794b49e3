//! Sorted lists of names: what distinguishes two of them, and what a few changes make of one.
//!
//! Owns nothing. What differs is found without a look into names that are the same allocation, which is what most are
//! where a client adds one to many.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::resource::Name;

/// Changes that lead from an old list of names to a new one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NameDiff {
    /// Where in the new list names are that the old one does not have.
    pub(super) added: Vec<usize>,
    /// Where in the old list names are that the new one does not have.
    pub(super) removed: Vec<usize>,
    /// Names of both lists in different allocations: where in the new list, and the name as in the old one.
    pub(super) kept: Vec<(usize, Name)>,
}

impl NameDiff {
    pub(super) fn between(old: &[Name], new: &[Name]) -> Self {
        let (mut name_diff, mut at, mut of) = (Self::default(), 0, 0);
        while let (Some(before), Some(after)) = (old.get(of), new.get(at)) {
            let is_shared = before.same_allocation(after);
            match if is_shared { Ordering::Equal } else { before.cmp(after) } {
                Ordering::Equal => {
                    if !is_shared {
                        name_diff.kept.push((at, before.clone()));
                    }
                    (at, of) = (at + 1, of + 1);
                }
                Ordering::Less => {
                    name_diff.removed.push(of);
                    of += 1;
                }
                Ordering::Greater => {
                    name_diff.added.push(at);
                    at += 1;
                }
            }
        }
        name_diff.added.extend(at..new.len());
        name_diff.removed.extend(of..old.len());
        name_diff
    }
}

/// A list with these names, of which it has none, and without those, which it has.
pub(super) fn edited(names: &[Name], added: BTreeSet<Name>, removed: &BTreeSet<Name>) -> Vec<Name> {
    let mut list = Vec::with_capacity((names.len() + added.len()).saturating_sub(removed.len()));
    let place = |name: &Name| names.partition_point(|other| other < name);
    let gone = removed.iter().map(|name| (place(name), None));
    let mut edits: Vec<(usize, Option<Name>)> =
        added.into_iter().map(|name| (place(&name), Some(name))).chain(gone).collect();
    // Stable: what comes to a place comes in its order, and before what goes from there.
    edits.sort_by_key(|(at, _)| *at);
    let mut done = 0;
    for (at, name) in edits {
        list.extend_from_slice(&names[done..at]);
        done = at + usize::from(name.is_none());
        list.extend(name);
    }
    list.extend_from_slice(&names[done..]);
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(names: &BTreeSet<u8>) -> BTreeSet<Name> {
        names.iter().map(|name| Name::from(format!("n{name}"))).collect()
    }

    proptest! {
        #[test]
        fn edits_make_the_list_and_the_difference_finds_them(
            before in proptest::collection::btree_set(0_u8..30, 0..20),
            after in proptest::collection::btree_set(0_u8..30, 0..20),
            shares in any::<bool>(),
        ) {
            let old: Vec<Name> = set(&before).into_iter().collect();
            let new: Vec<Name> = set(&after).into_iter().collect();
            let (added, removed) = (set(&(&after - &before)), set(&(&before - &after)));
            let made = edited(&old, added.clone(), &removed);
            prop_assert_eq!(&*made, &new[..]);

            let list = if shares { &made[..] } else { &new };
            let name_diff = NameDiff::between(&old, list);
            let of = |list: &[Name], at: &[usize]| at.iter().map(|at| list[*at].clone()).collect::<BTreeSet<_>>();
            prop_assert_eq!(of(list, &name_diff.added), added);
            prop_assert_eq!(of(&old, &name_diff.removed), removed);
            let both = before.intersection(&after).count();
            prop_assert_eq!(name_diff.kept.len(), if shares { 0 } else { both });
            prop_assert!(name_diff.kept.iter().all(|(at, name)| list[*at] == *name));
        }
    }
}
