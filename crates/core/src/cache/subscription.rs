//! Subscriptions: the names and the wildcard that a client asks for of one type, and what it sees of an entry because of them.
//!
//! Owns the comparison of two lists of names and the spelling of each name. Knows nothing of the subscribers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use super::Generation;
use super::entry::{Entry, Seen};
use super::lease::LeaseHistory;
use super::name_diff::edited;
use super::origin_error::ErrorRecord;
use super::parameter_view::{ClientScope, ParameterView};
use super::profile::StreamProfile;
use crate::resource::{Collection, Name, Parameters};

/// Names, and perhaps the wildcard, that a client subscribes to, of one type.
#[derive(Clone)]
pub struct Subscription {
    /// Everything that the origin lists.
    pub wildcard: bool,
    /// The sum of the hashes of its names: what a few names change of it does not cost a look at all of them.
    digest: u64,
    /// The length of all of its names, in bytes.
    bytes: usize,
    /// Not a slice: what is made of it name by name would be copied once more.
    names: Arc<Vec<Name>>,
    /// Whether any of these is that of a collection.
    has_collections: bool,
    /// How a client spells those of its names that it does not spell in their normal form.
    spelled: Option<Spellings>,
    /// Names, or `*`, that it asks for by locator, with the parameters as it sent them.
    located: Option<Arc<BTreeMap<Name, Parameters>>>,
}

impl PartialEq for Subscription {
    fn eq(&self, other: &Self) -> bool {
        // A list is mostly held against itself, or against one that differs.
        self.wildcard == other.wildcard
            && self.digest == other.digest
            && (Arc::ptr_eq(&self.names, &other.names) || self.names == other.names)
            && self.spelled == other.spelled
            && self.located == other.located
    }
}

impl Eq for Subscription {}

impl Hash for Subscription {
    /// By its names themselves: a digest of them may be that of others.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.wildcard.hash(state);
        self.names.hash(state);
        self.spelled.hash(state);
        self.located.hash(state);
    }
}

/// Keys that nobody outside knows: a client chooses its names, and what they hash to decides what a look-up costs.
static KEYS: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);

/// Sum of the hashes of these names, and their length in bytes.
fn sums<'a>(names: impl IntoIterator<Item = &'a Name>) -> (u64, usize) {
    names.into_iter().fold((0, 0), |(digest, bytes), name| {
        (digest.wrapping_add(KEYS.hash_one(name)), bytes + name.as_str().len())
    })
}

fn is_collection(name: &Name) -> bool {
    Collection::named(name.as_str()).is_some()
}

/// Other spellings by the normal forms of names.
type Spellings = Arc<BTreeMap<Name, Name>>;

impl Subscription {
    /// A subscription to these names, and to the wildcard if so said.
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

    /// A copy with the added names, of which it has none, and without the removed ones, which it has. Its other names are not
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

    /// Where cohorts with this subscription are found: equal ones are found at one place.
    pub(super) fn key(&self, profile: StreamProfile) -> u64 {
        KEYS.hash_one((self.digest, self.wildcard, &self.spelled, &self.located, profile))
    }

    /// Answers with these names in place of their normal forms (R-XT-03). It makes a cohort of its own.
    #[must_use]
    pub fn spelled(mut self, mut spelled: BTreeMap<Name, Name>) -> Self {
        spelled.retain(|name, _| self.contains(name.as_str()));
        self.spelled = (!spelled.is_empty()).then(|| Arc::new(spelled));
        self
    }

    /// Marks these of its names, or `*`, as asked for by locators with these parameters. They are answered by locators
    /// (R-DP-09); which resources they stand for is the business of a [`ParameterView`].
    #[must_use]
    pub fn located(mut self, mut located: BTreeMap<Name, Parameters>) -> Self {
        located.retain(|name, _| match name.as_str() {
            Name::WILDCARD => self.wildcard,
            name => self.contains(name),
        });
        self.located = (!located.is_empty()).then(|| Arc::new(located));
        self
    }

    /// Names, or `*`, that are asked for by locators, with the parameters as they were sent.
    pub fn locators(&self) -> Option<&BTreeMap<Name, Parameters>> {
        self.located.as_deref()
    }

    /// Whether this name is answered by locator.
    pub fn locates(&self, name: &str) -> bool {
        let Some(located) = &self.located else { return false };
        if self.contains(name) {
            return located.contains_key(name);
        }
        let covering = Collection::covering(name).filter(|covering| self.contains(covering));
        located.contains_key(covering.as_deref().unwrap_or(Name::WILDCARD))
    }

    /// Through what it sees its names, for a client that has this by the operator's rules.
    pub fn parameter_view(&self, allotted: &ClientScope) -> ParameterView {
        let Some(located) = &self.located else {
            return ParameterView::new(allotted, true, &BTreeMap::new());
        };
        let star = located.contains_key(Name::WILDCARD);
        let asks_plainly = (self.wildcard && !star) || located.len() - usize::from(star) < self.names.len();
        let parameter_view = ParameterView::new(allotted, asks_plainly, located);
        if self.wildcard { parameter_view.beside_wildcard(&self.names) } else { parameter_view }
    }

    /// How names are spelled whose normal form is another one.
    pub fn spellings(&self) -> Option<&BTreeMap<Name, Name>> {
        self.spelled.as_deref()
    }

    /// Whether its resources have to be written in the form that it asked in, not in the form of the cache.
    pub(super) const fn has_own_form(&self) -> bool {
        self.spelled.is_some() || self.located.is_some()
    }

    /// A name as it spells it.
    pub(super) fn spelling<'a>(&'a self, name: &'a Name) -> &'a Name {
        self.spelled.as_ref().and_then(|spelled| spelled.get(name)).unwrap_or(name)
    }

    /// Takes equal names, each with the place of the one that it replaces: their allocations are in use already.
    pub(super) fn share(&mut self, equals: Vec<(usize, Name)>) {
        if !equals.is_empty() {
            let names = Arc::make_mut(&mut self.names);
            equals.into_iter().for_each(|(at, name)| names[at] = name);
        }
    }

    /// Equal subscription with the allocations of these names, which are equal to its own one by one.
    pub(super) fn with_allocations(&self, names: Vec<Name>) -> Self {
        Self { names: Arc::new(names), ..self.clone() }
    }

    /// A subscription to nothing.
    pub fn none() -> Self {
        Self::new(false, [])
    }

    /// The names, sorted.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Bytes that a client spends on saying it: those of its names, of other spellings and of locators.
    pub fn weight(&self) -> usize {
        let spelled = self.spelled.iter().flat_map(|spelled| spelled.values());
        let located = self.located.iter().flat_map(|located| located.values()).flat_map(Parameters::iter);
        let parameters = located.map(|(key, value)| key.len() + value.len());
        self.bytes + spelled.map(|name| name.as_str().len()).sum::<usize>() + parameters.sum::<usize>()
    }

    /// The bytes of its names.
    pub const fn name_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this very name was asked for.
    pub fn contains(&self, name: &str) -> bool {
        self.position(name.as_bytes()).is_some()
    }

    /// The collections that were asked for.
    pub fn collections(&self) -> impl Iterator<Item = (&Name, Collection<'_>)> {
        let names = if self.has_collections { &self.names[..] } else { &[] };
        names.iter().filter_map(|name| Some((name, Collection::named(name.as_str())?)))
    }

    /// Whether any collection was asked for.
    pub const fn has_collections(&self) -> bool {
        self.has_collections
    }

    /// Whether this name is a member of a collection that was asked for.
    pub fn covers(&self, name: &str) -> bool {
        self.has_collections && Collection::covering(name).is_some_and(|covering| self.contains(&covering))
    }

    /// Where among the names this one is.
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.names.binary_search_by(|other| other.as_str().as_bytes().cmp(name)).ok()
    }

    /// Whether it asks for the wildcard, and for nothing by name.
    pub fn is_lone_wildcard(&self) -> bool {
        self.wildcard && self.names.is_empty()
    }

    /// Whether it asks for nothing at all.
    pub fn is_empty(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }

    /// View that such a client has of an entry, without the moments of changes, whatever kind of stream it has.
    pub(super) fn look_at<'a>(&self, entry: &'a Entry) -> Option<Seen<'a>> {
        self.look(entry, false).map(|look| look.seen)
    }

    /// View that a client with this subscription has of an entry, or `None` where it does not subscribe to it.
    pub(super) fn look<'a>(&self, entry: &'a Entry, aggregated: bool) -> Option<Look<'a>> {
        if self.contains(entry.name().as_str()) {
            Some(Look::by_name(entry, aggregated))
        } else if !matches!(entry.as_listed(), Seen::Unknown) && self.covers(entry.name().as_str()) {
            // A client that was told nothing yet has not asked for what is gone.
            Some(Look {
                seen: entry.as_listed(),
                since: Generation::ZERO.next(),
                failed: entry.failed_as(entry.as_listed()),
                ..Look::by_name(entry, aggregated)
            })
        } else if self.wildcard {
            let repushed = if aggregated { entry.repushed() } else { Generation::ZERO };
            let seen = entry.as_member();
            // An entry that is no member cannot be sent again: its name is not even to be known (R-Relay-03).
            let changed = seen.present().map_or(entry.wild_changed, |_| entry.wild_changed.max(repushed));
            Some(Look { seen, changed, since: entry.wild_since, failed: None })
        } else {
            None
        }
    }

    /// The lease of what a client with this subscription [sees](Self::look) of an entry.
    pub(super) fn history(&self, entry: &Entry) -> Option<LeaseHistory> {
        let leases = entry.leases()?;
        let name: &Name = entry.name();
        if self.contains(name.as_str()) {
            leases.of(entry.view_by_name()?).copied()
        } else if !matches!(entry.as_listed(), Seen::Unknown) && self.covers(name.as_str()) {
            // A client that asked for it by name before may have been told of the other copy.
            let is_sure = entry.wild.is_none();
            leases.named.map(|history| LeaseHistory { before: history.before.filter(|_| is_sure), ..history })
        } else if self.wildcard {
            leases.wild
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

/// See [`Subscription::look`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) seen: Seen<'a>,
    pub(super) changed: Generation,
    /// A client told before this cannot hold it; zero where it is to be told of absence in any case.
    pub(super) since: Generation,
    /// The error of the name; the wildcard's clients are told of none (R-Err-05).
    pub(super) failed: Option<&'a ErrorRecord>,
}

impl<'a> Look<'a> {
    /// View of a client that asks by this very name.
    pub(super) fn by_name(entry: &'a Entry, aggregated: bool) -> Self {
        let repushed = if aggregated { entry.repushed() } else { Generation::ZERO };
        let changed = entry.named_changed.max(repushed);
        let seen = entry.by_name();
        Self { seen, changed, since: Generation::ZERO, failed: entry.failed_as(seen) }
    }
}
