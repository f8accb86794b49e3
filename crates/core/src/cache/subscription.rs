//! Subscription and profile of a client: all that decides which bytes it is sent.
//!
//! Owns the comparison of name lists, the spelling of names, and the visible state of an entry. Knows nothing of the
//! subscribers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use super::Generation;
use super::entry::{Entry, VisibleState};
use super::origin_error::ErrorRecord;
use super::parameter_view::{ClientScope, ParameterView};
use super::view_leases::{LeaseHistory, View};
use crate::resource::{Collection, Kind, Name, Parameters};

/// Subscribed names of one type, and perhaps the wildcard.
#[derive(Clone)]
pub struct Subscription {
    /// The origin's whole set.
    pub wildcard: bool,
    /// Sum of the names' hashes: a few changed names do not cost a visit to all.
    digest: u64,
    bytes: usize,
    /// Not a slice: building one name by name would cost another copy.
    names: Arc<Vec<Name>>,
    /// Whether any name is a collection's.
    has_collections: bool,
    /// The client's spelling of names that it does not write in their normal form.
    spelled: Option<Spellings>,
    /// Names, or `*`, requested by locator, with the parameters that were sent.
    located: Option<Arc<BTreeMap<Name, Parameters>>>,
}

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        // Mostly compared with itself or with a different list.
        self.wildcard == other.wildcard
            && self.digest == other.digest
            && (Arc::ptr_eq(&self.names, &other.names) || self.names == other.names)
            && self.spelled == other.spelled
            && self.located == other.located
    }
}

impl Eq for Subscription {}

impl Hash for Subscription {
    /// By the names themselves: digests may collide.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.wildcard.hash(state);
        self.names.hash(state);
        self.spelled.hash(state);
        self.located.hash(state);
    }
}

/// Secret keys: clients choose names, and hashes decide the cost of a look-up.
static KEYS: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);

/// Sum of the hashes and of the lengths in bytes.
fn sums<'a>(names: impl IntoIterator<Item = &'a Name>) -> (u64, usize) {
    names.into_iter().fold((0, 0), |(digest, bytes), name| {
        (digest.wrapping_add(KEYS.hash_one(name)), bytes + name.as_str().len())
    })
}

fn is_collection(name: &Name) -> bool {
    Collection::named(name.as_str()).is_some()
}

/// Other spellings by normal form.
type Spellings = Arc<BTreeMap<Name, Name>>;

impl Subscription {
    /// Subscription to these names, with or without the wildcard.
    pub fn new(wildcard: bool, names: impl IntoIterator<Item = Name>) -> Self {
        let mut names: Vec<Name> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        names.shrink_to_fit();
        let (digest, bytes) = sums(&names);
        let has_collections = names.iter().any(is_collection);
        Self {
            wildcard,
            digest,
            bytes,
            names: Arc::new(names),
            has_collections,
            spelled: None,
            located: None,
        }
    }

    /// Copy with `added` names, none present, and without `removed` ones, all present. The other names are not
    /// hashed again.
    #[must_use]
    pub fn edited(&self, wildcard: bool, added: BTreeSet<Name>, removed: &BTreeSet<Name>) -> Self {
        let ((more, longer), (less, shorter)) = (sums(&added), sums(removed));
        let brings_collections = added.iter().any(is_collection);
        let names = match added.is_empty() && removed.is_empty() {
            true => Arc::clone(&self.names),
            false => Arc::new(edited(&self.names, added, removed)),
        };
        let had = self.has_collections && (removed.is_empty() || names.iter().any(is_collection));
        let edited = Self {
            wildcard,
            digest: self.digest.wrapping_add(more).wrapping_sub(less),
            bytes: self.bytes + longer - shorter,
            names,
            has_collections: had || brings_collections,
            spelled: self.spelled.clone(),
            located: self.located.clone(),
        };
        if removed.is_empty() && wildcard == self.wildcard {
            return edited;
        }
        let spelled = edited.spellings().cloned().unwrap_or_default();
        let located = edited.locators().cloned().unwrap_or_default();
        edited.spelled(spelled).located(located)
    }

    /// Key of cohorts: equal for equal subscriptions.
    pub(super) fn key(&self, profile: StreamProfile) -> u64 {
        KEYS.hash_one((self.digest, self.wildcard, &self.spelled, &self.located, profile))
    }

    /// Answers with these spellings instead of normal forms (R-XT-03), from a cohort of its own.
    #[must_use]
    pub fn spelled(mut self, mut spelled: BTreeMap<Name, Name>) -> Self {
        spelled.retain(|name, _| self.contains(name.as_str()));
        self.spelled = (!spelled.is_empty()).then(|| Arc::new(spelled));
        self
    }

    /// Marks names, or `*`, as requested by locator, to be answered by locator (R-DP-09). A [`ParameterView`]
    /// decides which resources they mean.
    #[must_use]
    pub fn located(mut self, mut located: BTreeMap<Name, Parameters>) -> Self {
        located.retain(|name, _| match name.as_str() {
            Name::WILDCARD => self.wildcard,
            name => self.contains(name),
        });
        self.located = (!located.is_empty()).then(|| Arc::new(located));
        self
    }

    /// Names, or `*`, requested by locator, with the parameters that were sent.
    pub fn locators(&self) -> Option<&BTreeMap<Name, Parameters>> {
        self.located.as_deref()
    }

    pub fn locates(&self, name: &str) -> bool {
        let Some(located) = &self.located else { return false };
        if self.contains(name) {
            return located.contains_key(name);
        }
        let covering = Collection::covering(name).filter(|covering| self.contains(covering));
        located.contains_key(covering.as_deref().unwrap_or(Name::WILDCARD))
    }

    /// Parameter view of a client with these rules of the operator.
    pub fn parameter_view(&self, allotted: &ClientScope) -> ParameterView {
        let Some(located) = &self.located else {
            return ParameterView::new(allotted, true, &BTreeMap::new());
        };
        let star = located.contains_key(Name::WILDCARD);
        let asks_plainly = (self.wildcard && !star) || located.len() - usize::from(star) < self.names.len();
        let parameter_view = ParameterView::new(allotted, asks_plainly, located);
        if self.wildcard { parameter_view.beside_wildcard(&self.names) } else { parameter_view }
    }

    /// Spellings of names whose normal form differs.
    pub fn spellings(&self) -> Option<&BTreeMap<Name, Name>> {
        self.spelled.as_deref()
    }

    /// Whether resources need the client's form instead of the cache's.
    pub(super) const fn has_own_form(&self) -> bool {
        self.spelled.is_some() || self.located.is_some()
    }

    /// The client's spelling of a name.
    pub(super) fn spelling<'a>(&'a self, name: &'a Name) -> &'a Name {
        self.spelled.as_ref().and_then(|spelled| spelled.get(name)).unwrap_or(name)
    }

    /// Replaces names by equal ones whose allocations are in use, given with their places.
    pub(super) fn share(&mut self, equals: Vec<(usize, Name)>) {
        if !equals.is_empty() {
            let names = Arc::make_mut(&mut self.names);
            equals.into_iter().for_each(|(at, name)| names[at] = name);
        }
    }

    /// Equal subscription with these allocations, in order.
    pub(super) fn with_allocations(&self, names: Vec<Name>) -> Self {
        Self { names: Arc::new(names), ..self.clone() }
    }

    pub fn none() -> Self {
        Self::new(false, [])
    }

    /// The names, sorted.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Bytes of its names, other spellings and locators.
    pub fn weight(&self) -> usize {
        let spelled = self.spelled.iter().flat_map(|spelled| spelled.values());
        let located = self.located.iter().flat_map(|located| located.values()).flat_map(Parameters::iter);
        let parameters = located.map(|(key, value)| key.len() + value.len());
        self.bytes + spelled.map(|name| name.as_str().len()).sum::<usize>() + parameters.sum::<usize>()
    }

    pub const fn name_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this very name was requested.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name.as_bytes()).is_some()
    }

    pub fn collections(&self) -> impl Iterator<Item = (&Name, Collection<'_>)> {
        let names = if self.has_collections { &self.names[..] } else { &[] };
        names.iter().filter_map(|name| Some((name, Collection::named(name.as_str())?)))
    }

    pub const fn has_collections(&self) -> bool {
        self.has_collections
    }

    /// Whether the name is a member of a requested collection.
    pub fn covers(&self, name: &str) -> bool {
        self.has_collections && Collection::covering(name).is_some_and(|covering| self.contains(&covering))
    }

    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.names.binary_search_by(|other| other.as_str().as_bytes().cmp(name)).ok()
    }

    pub fn is_lone_wildcard(&self) -> bool {
        self.wildcard && self.names.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }

    /// State of an entry for such a client, without times of change.
    pub(super) fn visible_state<'a>(&self, entry: &'a Entry) -> Option<VisibleState<'a>> {
        self.visible_entry(entry, false).map(|visible| visible.state)
    }

    /// State of an entry for such a client; `None` if it does not subscribe to it.
    pub(super) fn visible_entry<'a>(&self, entry: &'a Entry, aggregated: bool) -> Option<VisibleEntry<'a>> {
        if self.contains(entry.name().as_str()) {
            Some(VisibleEntry::by_name(entry, aggregated))
        } else if !matches!(entry.as_listed(), VisibleState::Unknown) && self.covers(entry.name().as_str()) {
            // A new client has not asked for members that are gone.
            Some(VisibleEntry {
                state: entry.as_listed(),
                since: Generation::ZERO.next(),
                failed: entry.failed_as(entry.as_listed()),
                ..VisibleEntry::by_name(entry, aggregated)
            })
        } else if self.wildcard {
            let resent_at = if aggregated { entry.resent_at() } else { Generation::ZERO };
            let state = entry.as_member();
            // A nonmember is not sent again: its name must stay hidden (R-Relay-03).
            let changed = state.present().map_or(entry.wild_changed, |_| entry.wild_changed.max(resent_at));
            Some(VisibleEntry { state, changed, since: entry.wild_since, failed: None })
        } else {
            None
        }
    }

    /// Lease history of the copy that [is visible](Self::visible_entry).
    pub(super) fn history(&self, entry: &Entry) -> Option<LeaseHistory> {
        let leases = entry.leases()?;
        let name: &Name = entry.name();
        if self.contains(name.as_str()) {
            leases.of(entry.view_by_name()?)
        } else if !matches!(entry.as_listed(), VisibleState::Unknown) && self.covers(name.as_str()) {
            // The client may have been sent the other copy by name before.
            let is_sure = entry.wild.is_none();
            let history = leases.of(View::Named)?;
            Some(LeaseHistory { before: history.before.filter(|_| is_sure), ..history })
        } else if self.wildcard {
            leases.of(View::Wildcard)
        } else {
            None
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = self.wildcard.then_some(Name::WILDCARD);
        f.debug_set().entries(star).entries(self.names.iter()).finish()
    }
}

/// An entry as a client [sees it](Subscription::visible_entry).
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleEntry<'a> {
    pub(super) state: VisibleState<'a>,
    pub(super) changed: Generation,
    /// A client last sent anything before this cannot hold it; zero if absence is always sent.
    pub(super) since: Generation,
    /// Error of the name; the wildcard's clients get none (R-Err-05).
    pub(super) failed: Option<&'a ErrorRecord>,
}

impl<'a> VisibleEntry<'a> {
    pub(super) fn by_name(entry: &'a Entry, aggregated: bool) -> Self {
        let resent_at = if aggregated { entry.resent_at() } else { Generation::ZERO };
        let changed = entry.named_changed.max(resent_at);
        let state = entry.by_name();
        Self { state, changed, since: Generation::ZERO, failed: entry.failed_as(state) }
    }
}

/// Difference between a sorted list of names and a new one.
///
/// Names in one allocation are equal without a comparison. Most are, if a client adds one to many.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NameDiff {
    /// Indices of new names, in the new list.
    pub(super) added: Vec<usize>,
    /// Indices of missing names, in the old list.
    pub(super) removed: Vec<usize>,
    /// Equal names in different allocations: index in the new list, and the old name.
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

/// Sorted list with `added` names, none present, and without `removed` ones, all present.
fn edited(names: &[Name], added: BTreeSet<Name>, removed: &BTreeSet<Name>) -> Vec<Name> {
    let mut list = Vec::with_capacity((names.len() + added.len()).saturating_sub(removed.len()));
    let place = |name: &Name| names.partition_point(|other| other < name);
    let gone = removed.iter().map(|name| (place(name), None));
    let mut edits: Vec<(usize, Option<Name>)> =
        added.into_iter().map(|name| (place(&name), Some(name))).chain(gone).collect();
    // Stable: additions at a place keep their order, and come before its removal.
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

crate::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Protocol {
        Sotw = "sotw",
        Delta = "delta",
    }
}

impl Protocol {
    pub const fn node_field(self) -> u8 {
        match self {
            Self::Sotw => 2,
            Self::Delta => 1,
        }
    }
}

/// Whether a client is sent TTLs (R-TTL-07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TtlSupport {
    /// No: the relay removes expired resources.
    #[default]
    Unsupported,
    /// With resources only: a heartbeat would look like an error (R-TTL-06).
    WithResources,
    /// Yes, with heartbeats. Only over delta: state of the world has none.
    Heartbeats,
}

/// Properties of a client that decide its bytes, besides the subscription.
///
/// A poll counts as a state-of-the-world stream of one type. Its bytes are made from its
/// [`SetState`](super::SetState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamProfile {
    pub protocol: Protocol,
    /// Whether its types share one stream (ADS). Then endpoints are repeated behind changed clusters
    /// (R-ADS-05).
    pub aggregated: bool,
    pub ttl: TtlSupport,
}

impl StreamProfile {
    pub fn receives_ttls(self) -> bool {
        self.ttl != TtlSupport::Unsupported
    }

    /// Whether each response of the type holds everything visible, so that nothing else can be owed
    /// (R-SotW-18).
    pub const fn is_full_state(self, kind: Kind) -> bool {
        matches!(self.protocol, Protocol::Sotw) && kind.full_state()
    }
}

/// Whether a client's subscriptions create demand upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Client,
    /// No: it sees what others hold, without any effect on them or upstream.
    Observer,
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
