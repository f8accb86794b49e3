//! Who subscribes to what, seen from a type: cohorts, the index from names to them, and what is wanted upstream.
//!
//! Clients that must be told the same things are one [`Cohort`]. The index counts cohorts, never clients: what a
//! change costs here grows with the number of distinct subscriptions it touches. The union of the index is the
//! subscription upstream; names whose answer to "does anybody want this?" changed are kept until the upstream asks.

use std::collections::{BTreeMap, BTreeSet, hash_map};
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use foldhash::HashMap;
use parking_lot::MutexGuard;
use slab::Slab;
use smallvec::SmallVec;

use super::audience::Audience;
use super::cohort::{Cohort, Dialect, Mailbox, Role, Ttl};
use super::difference::{Difference, edited};
use super::entry::{Entry, Seen};
use super::failure::Failed;
use super::queue::Queue;
use super::snapshot::{Snapshot, Touch};
use super::span::Span;
use super::{Allotment, Generation, Lens, TypeCache};
use crate::resource::{Collection, Name, Parameters, Resource};

/// What a client subscribes to, of one type.
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
    /// What it asks for by locator, with the parameters as it sent them.
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

/// Names, about, that the upstream takes at once: what one client asks for or lets go is not to hold up what all others are
/// told, neither when it is asked for nor when it is answered.
const TAKEN_AT_ONCE: usize = 500;
/// And bytes of names: about what a request upstream takes, so that those who wait do so here, in their order.
const BYTES_AT_ONCE: usize = 16 << 10;

/// Names by which a cohort differs from what it was when it is altered in one go.
const ALTERED_AT_ONCE: usize = 5000;

/// Names that are listed before others have their turn, who may wait for the same type.
const LISTED_AT_ONCE: usize = 500;

/// Keys that nobody outside knows: a client chooses its names, and what they hash to decides what a look-up costs.
static KEYS: LazyLock<foldhash::quality::RandomState> = LazyLock::new(Default::default);

/// What distinguishes these names from others, and their length.
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

    /// The same with these names, of which it has none, and without those, which it has. What its other names are is not
    /// looked at again.
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
    fn key(&self, dialect: Dialect) -> u64 {
        KEYS.hash_one((self.digest, self.wildcard, &self.spelled, &self.located, dialect))
    }

    /// The same, with what is asked for answered by these names in place of their normal forms (R-XT-03). It makes a
    /// cohort of its own.
    #[must_use]
    pub fn spelled(mut self, mut spelled: BTreeMap<Name, Name>) -> Self {
        spelled.retain(|name, _| self.contains(name.as_str()));
        self.spelled = (!spelled.is_empty()).then(|| Arc::new(spelled));
        self
    }

    /// The same, with these of its names, or `*`, asked for by locators with these parameters. They are answered by locators
    /// (R-DP-09); which resources they stand for is the business of a [`Lens`].
    #[must_use]
    pub fn located(mut self, mut located: BTreeMap<Name, Parameters>) -> Self {
        located.retain(|name, _| match name.as_str() {
            Name::WILDCARD => self.wildcard,
            name => self.contains(name),
        });
        self.located = (!located.is_empty()).then(|| Arc::new(located));
        self
    }

    /// What is asked for by locators, with the parameters as they were sent.
    pub fn locators(&self) -> Option<&BTreeMap<Name, Parameters>> {
        self.located.as_deref()
    }

    /// Whether what it sees of this name is answered by locator.
    pub fn locates(&self, name: &str) -> bool {
        let Some(located) = &self.located else { return false };
        if self.contains(name) {
            return located.contains_key(name);
        }
        let covering = Collection::covering(name).filter(|covering| self.contains(covering));
        located.contains_key(covering.as_deref().unwrap_or(Name::WILDCARD))
    }

    /// Through what it sees its names, for a client that has this by the operator's rules.
    pub fn lens(&self, allotted: &Allotment) -> Lens {
        let Some(located) = &self.located else { return Lens::new(allotted, true, &BTreeMap::new()) };
        let star = located.contains_key(Name::WILDCARD);
        let asks_plainly = (self.wildcard && !star) || located.len() - usize::from(star) < self.names.len();
        let lens = Lens::new(allotted, asks_plainly, located);
        if self.wildcard { lens.beside_wildcard(&self.names) } else { lens }
    }

    /// How names are spelled whose normal form is another one.
    pub fn spellings(&self) -> Option<&BTreeMap<Name, Name>> {
        self.spelled.as_deref()
    }

    /// Whether what it is told has to be written as it asked, not as it is kept.
    pub(super) const fn has_own_form(&self) -> bool {
        self.spelled.is_some() || self.located.is_some()
    }

    /// A name as it spells it.
    pub(super) fn spelling<'a>(&'a self, name: &'a Name) -> &'a Name {
        self.spelled.as_ref().and_then(|spelled| spelled.get(name)).unwrap_or(name)
    }

    /// A subscription to nothing.
    pub fn none() -> Self {
        Self::new(false, [])
    }

    /// The names, sorted.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// What a client spends on saying it: the bytes of its names, of other spellings and of locators.
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

    /// Whether it asks for nothing at all.
    pub fn is_empty(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }

    /// What a client with this subscription may hold that has been told so much: resources that are there, and names that
    /// went of which it has not been told.
    pub fn held<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        span: &'a Span,
    ) -> impl Iterator<Item = (&'a Name, Option<&'a Resource>)> {
        snapshot.entries().filter_map(|entry| {
            let look = self.look(entry, false)?;
            match look.seen.present() {
                Some(resource) => Some((resource.name(), Some(&**resource))),
                None if look.changed > span.removed && look.since <= span.seen => Some((entry.name(), None)),
                None => None,
            }
        })
    }

    /// The resource that a client with this subscription sees by this name, if there is one.
    pub fn sees<'a>(&self, snapshot: &'a Snapshot, name: &str) -> Option<&'a Resource> {
        self.look(snapshot.get(name)?, false)?.seen.present().map(|resource| &**resource)
    }

    /// The same without the moments, whatever kind of stream it is.
    pub(super) fn look_at<'a>(&self, entry: &'a Entry) -> Option<Seen<'a>> {
        self.look(entry, false).map(|look| look.seen)
    }

    /// What a client with this subscription sees of an entry, or `None` where it does not subscribe to it.
    pub(super) fn look<'a>(&self, entry: &'a Entry, aggregated: bool) -> Option<Look<'a>> {
        if self.contains(entry.name().as_str()) {
            Some(Look::by_name(entry, aggregated))
        } else if !matches!(entry.as_listed(), Seen::Unknown) && self.covers(entry.name().as_str()) {
            // Who was told nothing yet has not asked for what is gone.
            Some(Look {
                seen: entry.as_listed(),
                since: Generation::ZERO.next(),
                failed: entry.failed_as(entry.as_listed()),
                ..Look::by_name(entry, aggregated)
            })
        } else if self.wildcard {
            let repushed = if aggregated { entry.repushed } else { Generation::ZERO };
            let seen = entry.as_member();
            // What is no member cannot be sent again: its name is not even to be known (R-Relay-03).
            let changed = seen.present().map_or(entry.wild_changed, |_| entry.wild_changed.max(repushed));
            Some(Look { seen, changed, since: entry.wild_since, failed: None })
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
    pub(super) failed: Option<&'a Failed>,
}

impl<'a> Look<'a> {
    /// What a client that asks by this very name sees.
    pub(super) fn by_name(entry: &'a Entry, aggregated: bool) -> Self {
        let repushed = if aggregated { entry.repushed } else { Generation::ZERO };
        let changed = entry.named_changed.max(repushed);
        let seen = entry.by_name();
        Self { seen, changed, since: Generation::ZERO, failed: entry.failed_as(seen) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    cohorts: Slab<Arc<Cohort>>,
    /// By [`Subscription::key`].
    by_key: HashMap<u64, SmallVec<[u32; 2]>>,
    clients: Audience,
    observers: Audience,
    /// How many cohorts are told TTLs.
    timed: usize,
    /// Names of which the upstream is to be told whether anybody asks for them, in the order in which that changed.
    dirty: Queue,
    /// The same of who asks for many at once, behind those of all others.
    dirty_many: Queue,
    wildcard_dirty: bool,
    /// Whether the store is filled from others, and so has to be for its observers, of whom nobody upstream is told.
    is_filled: bool,
    /// Names that observers ask for, to be filled in.
    looked: Queue,
    wildcard_looked: bool,
    next_id: u64,
}

/// Does something with each name, and lets others have the registry in between.
fn in_parts(
    registry: &mut MutexGuard<'_, Registry>,
    names: &[Name],
    mut with: impl FnMut(&mut Registry, &Name),
) {
    let mut parts = names.chunks(LISTED_AT_ONCE).peekable();
    while let Some(part) = parts.next() {
        part.iter().for_each(|name| with(registry, name));
        if parts.peek().is_some() {
            MutexGuard::bump(registry);
        }
    }
}

impl Registry {
    /// That of a store, and whether what it has is filled in from other stores.
    pub(super) fn new(is_filled: bool) -> Self {
        Self { is_filled, ..Self::default() }
    }

    const fn audience(&mut self, role: Role) -> &mut Audience {
        match role {
            Role::Client => &mut self.clients,
            Role::Observer => &mut self.observers,
        }
    }

    /// The cohort of this subscription, dialect and role, if there is one.
    fn find(&self, key: u64, subscription: &Subscription, dialect: Dialect, role: Role) -> Option<usize> {
        let is_it = |at: &usize| {
            let cohort = &self.cohorts[*at];
            cohort.dialect == dialect && cohort.role == role && cohort.subscription == *subscription
        };
        self.by_key.get(&key)?.iter().map(|slot| *slot as usize).find(is_it)
    }

    /// The cohort of this subscription, dialect and role, made where there is none. Others have their turn between its names:
    /// nobody finds it before all are listed, and what is marked meanwhile is what its members begin with.
    fn enter(
        this: &mut MutexGuard<'_, Self>,
        of: &TypeCache,
        subscription: &Subscription,
        dialect: Dialect,
        role: Role,
    ) -> usize {
        let key = subscription.key(dialect);
        loop {
            if let Some(at) = this.find(key, subscription, dialect, role) {
                return at;
            }
            let shared = Self::share_names(this, subscription);
            this.next_id += 1;
            let now = of.snapshot().generation();
            let cohort = Arc::new(Cohort::new(this.next_id, shared, dialect, role, now));
            let at = this.cohorts.insert(Arc::clone(&cohort));
            let (slot, names) = (at as u32, cohort.subscription.names());
            let is_many = names.len() > TAKEN_AT_ONCE;
            in_parts(this, names, |this, name| this.list(name, slot, role, is_many));
            if this.find(key, subscription, dialect, role).is_some() {
                // Another one was as far first.
                in_parts(this, names, |this, name| this.unlist(name, slot, role, is_many));
                this.cohorts.remove(at);
                continue;
            }
            cohort.begin(of.snapshot().generation());
            this.timed += usize::from(dialect.ttl != Ttl::Untold);
            let turns = this.audience(role).add(&cohort.subscription, slot);
            this.turn_wildcard(turns, role);
            this.by_key.entry(key).or_default().push(slot);
            return at;
        }
    }

    /// Gives a cohort of one member another subscription, at the cost of what differs. The subscription is returned where
    /// there are other members, or a cohort to join, or so much differs that it is to be done in parts.
    fn alter(
        &mut self,
        at: usize,
        mut subscription: Subscription,
        snapshot: &Snapshot,
    ) -> Result<Arc<Cohort>, Subscription> {
        let now = snapshot.generation();
        let old = Arc::clone(&self.cohorts[at]);
        let (key, slot, role) = (subscription.key(old.dialect), at as u32, old.role);
        if old.is_shared() || self.find(key, &subscription, old.dialect, role).is_some() {
            return Err(subscription);
        }
        let Difference { added, removed, kept } =
            Difference::between(old.subscription.names(), subscription.names());
        if added.len() + removed.len() > ALTERED_AT_ONCE {
            return Err(subscription);
        }
        let known =
            added.iter().filter_map(|at| Some((*at, self.clients.shared(&subscription.names[*at])?.clone())));
        let shared: Vec<(usize, Name)> = known.chain(kept).collect();
        if !shared.is_empty() {
            let names = Arc::make_mut(&mut subscription.names);
            shared.into_iter().for_each(|(at, name)| names[at] = name);
        }
        let is_many = added.len() + removed.len() > TAKEN_AT_ONCE;
        added.iter().for_each(|at| self.list(&subscription.names[*at], slot, role, is_many));
        removed.iter().for_each(|at| self.unlist(&old.subscription.names[*at], slot, role, is_many));
        let turns = self.audience(role).alter(&old.subscription, &subscription, slot);
        self.turn_wildcard(turns, role);
        self.forget(old.subscription.key(old.dialect), slot);
        self.by_key.entry(key).or_default().push(slot);
        self.next_id += 1;
        let cohort = Cohort::new(self.next_id, subscription, old.dialect, role, now);
        let added = || added.iter().map(|at| &cohort.subscription.names()[*at]);
        let removed = removed.iter().map(|at| &old.subscription.names()[*at]);
        cohort.inherit_tally(&old, snapshot, removed, added());
        cohort.inherit_journal(&old, now, added());
        let cohort = Arc::new(cohort);
        self.cohorts[at] = Arc::clone(&cohort);
        Ok(cohort)
    }

    /// Notes that a cohort asks for a name.
    fn list(&mut self, name: &Name, slot: u32, role: Role, is_many: bool) {
        let is_first = self.audience(role).list(name, slot);
        match role {
            Role::Client if is_first => self.tell(name, is_many),
            // A small subscription must not queue behind a bulk one: the name moves to the fast queue.
            Role::Client => {
                if !is_many && self.dirty_many.remove(name) {
                    self.dirty.push(name);
                }
            }
            Role::Observer if is_first && self.is_filled => self.looked.push(name),
            Role::Observer => {}
        }
    }

    /// Notes that it does not any more.
    fn unlist(&mut self, name: &Name, slot: u32, role: Role, is_many: bool) {
        if self.audience(role).unlist(name, slot) && role == Role::Client {
            self.tell(name, is_many);
        }
    }

    /// The upstream is to be told of a name.
    fn tell(&mut self, name: &Name, is_many: bool) {
        let of = if is_many { &mut self.dirty_many } else { &mut self.dirty };
        of.push(name);
    }

    /// Whether anybody asks for the wildcard may have changed.
    fn turn_wildcard(&mut self, turns: bool, role: Role) {
        match role {
            Role::Client => self.wildcard_dirty |= turns,
            // That nobody looks on any more is told to nobody.
            Role::Observer => {
                self.wildcard_looked |= turns && self.is_filled && self.observers.asks_wildcard();
            }
        }
    }

    fn forget(&mut self, key: u64, slot: u32) {
        if let hash_map::Entry::Occupied(mut slots) = self.by_key.entry(key) {
            slots.get_mut().retain(|other| *other != slot);
            if slots.get().is_empty() {
                slots.remove();
            }
        }
    }

    /// The same subscription with the names' allocations that the index already has.
    fn share_names(this: &mut MutexGuard<'_, Self>, subscription: &Subscription) -> Subscription {
        let mut names = Vec::with_capacity(subscription.names.len());
        in_parts(this, &subscription.names, |this, name| {
            names.push(this.clients.shared(name).unwrap_or(name).clone());
        });
        Subscription { names: Arc::new(names), ..subscription.clone() }
    }

    /// Ends a cohort that has no members. Nobody finds it any more while others have their turn between its names.
    fn leave(this: &mut MutexGuard<'_, Self>, at: usize) {
        let (cohort, slot) = (Arc::clone(&this.cohorts[at]), at as u32);
        this.forget(cohort.subscription.key(cohort.dialect), slot);
        this.timed -= usize::from(cohort.dialect.ttl != Ttl::Untold);
        let turns = this.audience(cohort.role).remove(&cohort.subscription, slot);
        this.turn_wildcard(turns, cohort.role);
        let names = cohort.subscription.names();
        let is_many = names.len() > TAKEN_AT_ONCE;
        in_parts(this, names, |this, name| this.unlist(name, slot, cohort.role, is_many));
        this.cohorts.remove(at);
    }

    /// Whether there is any [`Interest`] to take, or anything to fill in.
    pub(super) fn is_dirty(&self) -> bool {
        self.wildcard_dirty
            || self.wildcard_looked
            || !self.dirty.is_empty()
            || !self.dirty_many.is_empty()
            || !self.looked.is_empty()
    }

    /// Whether any client asks for this name.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.clients.asks(name)
    }

    /// Whether any client or observer does.
    pub(super) fn asks(&self, name: &str) -> bool {
        self.clients.asks(name) || self.observers.asks(name)
    }

    /// Puts names on the list for the upstream that are wanted still; returns whether there are any.
    pub(super) fn ask_again<'a>(&mut self, names: impl IntoIterator<Item = &'a Name>) -> bool {
        let wanted = names.into_iter().filter(|name| self.clients.asks(name.as_str()));
        let before = self.dirty.len();
        wanted.for_each(|name| self.dirty.push(name));
        self.dirty.len() > before
    }

    /// Whether any client asks for the wildcard.
    pub(super) fn wants_wildcard(&self) -> bool {
        self.clients.asks_wildcard()
    }

    /// Whether any client or observer does.
    pub(super) fn asks_wildcard(&self) -> bool {
        self.clients.asks_wildcard() || self.observers.asks_wildcard()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.cohorts.is_empty() && !self.is_dirty()
    }

    pub(super) fn cohorts(&self) -> usize {
        self.cohorts.len()
    }

    /// Interest of the clients that was not taken yet, with `proof` if they ask for that, and names that observers ask for and
    /// that are to be filled in.
    pub(super) fn take_interest(&mut self, proof: bool) -> Option<(Interest, Vec<Name>)> {
        if !proof && !self.is_dirty() {
            return None;
        }
        self.wildcard_dirty = false;
        self.wildcard_looked = false;
        let looked = self.looked.take(TAKEN_AT_ONCE, BYTES_AT_ONCE);
        let mut names = self.dirty.take(TAKEN_AT_ONCE, BYTES_AT_ONCE);
        let taken: usize = names.iter().map(|name| name.as_str().len()).sum();
        // Some in any case, however many ask for few.
        let (count, bytes) = (TAKEN_AT_ONCE - names.len(), BYTES_AT_ONCE.saturating_sub(taken));
        let many = self.dirty_many.take(count.max(TAKEN_AT_ONCE / 5), bytes.max(BYTES_AT_ONCE / 5));
        names.extend(many);
        let with_wanted = |name: Name| {
            let is_wanted = self.wants(name.as_str());
            (name, is_wanted)
        };
        let names = names.into_iter().map(with_wanted).collect();
        Some((Interest { wildcard: self.wants_wildcard(), names, proof }, looked))
    }

    /// Notes a change with every cohort of whose names it changes one, before it is published.
    pub(super) fn note(&self, touched: &[Touch], generation: Generation) {
        let note = |(slot, touch): (u32, &Touch)| self.cohorts[slot as usize].note(generation, touch);
        self.named(touched).chain(self.renewed(touched)).for_each(note);
    }

    /// Marks every cohort that a change concerns and returns them.
    pub(super) fn mark(&self, touched: &[Touch], turned: bool, generation: Generation) -> Vec<Arc<Cohort>> {
        let wildcards = || self.audiences().into_iter().flat_map(Audience::of_wildcard);
        let mut wake = Vec::new();
        let mut mark = |slot: u32| {
            let cohort = &self.cohorts[slot as usize];
            if cohort.mark(generation) {
                wake.push(Arc::clone(cohort));
            }
        };
        if turned || touched.iter().any(|touch| touch.members) {
            wildcards().for_each(&mut mark);
        }
        if self.timed > 0 && touched.iter().any(|touch| touch.renewed.members) {
            wildcards().filter(|slot| self.is_timed(*slot)).for_each(&mut mark);
        }
        self.named(touched).chain(self.renewed(touched)).for_each(|(slot, _)| mark(slot));
        wake
    }

    const fn audiences(&self) -> [&Audience; 2] {
        [&self.clients, &self.observers]
    }

    /// Cohorts by the names of theirs that changed.
    fn named<'t>(&self, touched: &'t [Touch]) -> impl Iterator<Item = (u32, &'t Touch)> {
        touched.iter().filter(|touch| touch.named).flat_map(|touch| self.by_name(touch))
    }

    /// Those that are told TTLs, by the names of which nothing but that was renewed: news to few, and mostly to nobody.
    fn renewed<'t>(&self, touched: &'t [Touch]) -> impl Iterator<Item = (u32, &'t Touch)> {
        let renewed = touched.iter().filter(|touch| self.timed > 0 && touch.renewed.named && !touch.named);
        renewed.flat_map(|touch| self.by_name(touch)).filter(|(slot, _)| self.is_timed(*slot))
    }

    fn by_name<'t>(&self, touch: &'t Touch) -> impl Iterator<Item = (u32, &'t Touch)> {
        let slots = self.audiences().into_iter().flat_map(|of| of.of_name(&touch.name));
        slots.map(move |slot| (slot, touch))
    }

    fn is_timed(&self, slot: u32) -> bool {
        self.cohorts[slot as usize].dialect.ttl != Ttl::Untold
    }
}

/// What the clients of a type want from upstream, where it changed since last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Whether anybody subscribes to the wildcard now.
    pub wildcard: bool,
    /// Names of which it changed, or may have, whether anybody asks for them. Where these are many, not all: more are to be
    /// had.
    pub names: Vec<(Name, bool)>,
    /// Whether a client waits for evidence that what the origin has not sent does not exist.
    pub proof: bool,
}

/// Wakes everyone that a change concerns. Apart from marking, so that no lock is held.
pub(super) fn wake(cohorts: &[Arc<Cohort>]) {
    cohorts.iter().for_each(|cohort| cohort.wake());
}

/// A client's place in a cohort; it leaves when this is dropped.
#[derive(Debug)]
pub struct Membership {
    cohort: Arc<Cohort>,
    cohort_at: usize,
    member_at: usize,
    of: Arc<TypeCache>,
    mailbox: Arc<Mailbox>,
}

impl Membership {
    pub(super) fn join(
        of: Arc<TypeCache>,
        subscription: Subscription,
        dialect: Dialect,
        role: Role,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let (cohort, cohort_at, member_at, dirty) = {
            let mut registry = of.registry.lock();
            let cohort_at = Registry::enter(&mut registry, &of, &subscription, dialect, role);
            let cohort = Arc::clone(&registry.cohorts[cohort_at]);
            let member_at = cohort.add(&mailbox);
            (cohort, cohort_at, member_at, registry.is_dirty())
        };
        if dirty {
            of.interest.wake();
        }
        Self { cohort, cohort_at, member_at, of, mailbox }
    }

    /// Moves to the cohort of another subscription in another store of the type.
    pub fn change_store(&mut self, of: Arc<TypeCache>, subscription: Subscription) {
        let Cohort { dialect, role, .. } = *self.cohort;
        *self = Self::join(of, subscription, dialect, role, Arc::clone(&self.mailbox));
    }

    /// Moves to the cohort of another dialect.
    pub fn turn(&mut self, dialect: Dialect) {
        if dialect != self.cohort.dialect {
            let (of, subscription) = (Arc::clone(&self.of), self.cohort.subscription.clone());
            *self = Self::join(of, subscription, dialect, self.cohort.role, Arc::clone(&self.mailbox));
        }
    }

    /// How its clients are told.
    pub fn dialect(&self) -> Dialect {
        self.cohort.dialect
    }

    /// Moves to the cohort of another subscription.
    pub fn change(&mut self, subscription: Subscription) {
        if let Err(subscription) = self.alter(subscription) {
            // The new place is taken before the old one is left, so that no name is unwanted in between.
            let of = Arc::clone(&self.of);
            let Cohort { dialect, role, .. } = *self.cohort;
            *self = Self::join(of, subscription, dialect, role, Arc::clone(&self.mailbox));
        }
    }

    /// See [`Registry::alter`].
    fn alter(&mut self, subscription: Subscription) -> Result<(), Subscription> {
        let (_old, dirty) = {
            let mut registry = self.of.registry.lock();
            let snapshot = self.of.snapshot();
            let cohort = registry.alter(self.cohort_at, subscription, &snapshot)?;
            self.member_at = cohort.add(&self.mailbox);
            // Given back when the lock is.
            (std::mem::replace(&mut self.cohort, cohort), registry.is_dirty())
        };
        if dirty {
            self.of.interest.wake();
        }
        Ok(())
    }

    /// The cohort.
    pub const fn cohort(&self) -> &Arc<Cohort> {
        &self.cohort
    }

    /// The subscription.
    pub fn subscription(&self) -> &Subscription {
        &self.cohort.subscription
    }

    /// Whether its client is told for how long to keep what it is sent.
    pub fn is_told_times(&self) -> bool {
        self.cohort.dialect.ttl != Ttl::Untold
    }

    /// Whether it only looks on, see [`Role`].
    pub fn role(&self) -> Role {
        self.cohort.role
    }

    /// The type's cache.
    pub const fn of(&self) -> &Arc<TypeCache> {
        &self.of
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let dirty = {
            let mut registry = self.of.registry.lock();
            if self.cohort.remove(self.member_at) {
                Registry::leave(&mut registry, self.cohort_at);
            }
            registry.is_dirty()
        };
        if dirty {
            self.of.interest.wake();
        }
    }
}
