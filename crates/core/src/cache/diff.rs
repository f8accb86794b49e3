//! Next update from a position: found among those that the cohort shares, or computed from a snapshot.
//!
//! A cohort keeps a bounded number of updates: a missing one is made again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

mod candidates;
mod changes;
mod error_timing;
mod full_state;
mod own_forms;

use super::Generation;
use super::budget::Budget;
use super::change::Completeness;
use super::cohort::{ChangedNames, Cohort};
use super::entry::{Entry, VisibleState};
use super::position::{FellBehindError, Part, Position};
use super::snapshot::Snapshot;
use super::subscription::{Protocol, StreamProfile, Subscription};
use super::update::{OwedItems, Update};
use super::update_cache::KeptUpdates;
use crate::resource::{Name, Resource, TypeUrl};

#[derive(Debug)]
pub struct Encoder {
    /// Number of its cache among those of a budget.
    cache: u64,
    pub(super) updates: Arc<KeptUpdates>,
    encodes: Arc<AtomicU64>,
    /// Size at which an answer is cut. An answer in parts goes on when this changes.
    response_bytes: AtomicUsize,
}

impl Encoder {
    pub(super) fn new(budget: &Budget, response_bytes: usize) -> Self {
        Self {
            cache: budget.number(),
            updates: Arc::clone(&budget.updates),
            encodes: Arc::clone(&budget.encodes),
            response_bytes: AtomicUsize::new(response_bytes),
        }
    }

    pub(super) const fn cache(&self) -> u64 {
        self.cache
    }

    pub(super) fn set_response_bytes(&self, response_bytes: usize) {
        self.response_bytes.store(response_bytes, Ordering::Relaxed);
    }

    /// Number of encoded frames over all caches of a budget.
    pub fn encodes(&self) -> u64 {
        self.encodes.load(Ordering::Relaxed)
    }

    pub fn count(&self) -> &AtomicU64 {
        &self.encodes
    }

    /// Makes an update. `source` was loaded after the cohort's `changes` and `touched`: it has everything marked.
    pub(super) fn make(
        &self,
        (changes, touched): (u64, Generation),
        source: Source<'_>,
        cohort: &Cohort,
        position: &Position,
        owed: &OwedItems,
        now: Instant,
    ) -> Result<Update, FellBehindError> {
        if source.snapshot.has_forgotten(&cohort.subscription, position.removed) {
            return Err(FellBehindError);
        }
        let Source { type_url, index, snapshot } = source;
        let (subscription, profile) = (&cohort.subscription, cohort.profile);
        // In parts, places of entries count. Changes that are no news to the cohort move them too.
        let is_whole = !position.is_start() && !position.is_in_parts();
        let from = position.added.min(position.removed);
        let diff = Diff {
            is_timed: profile.receives_ttls() && snapshot.leased > 0,
            snapshot,
            type_url,
            index,
            cohort,
            subscription,
            profile,
            position,
            owed,
            now,
            touched,
            limit: self.response_bytes.load(Ordering::Relaxed),
            changed: if is_whole { cohort.changed_after(from) } else { None },
        };
        let mut update = diff.run();
        update.changes = (update.to >= touched).then_some(changes);
        Ok(update)
    }
}

#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) type_url: &'a TypeUrl,
    pub(super) index: u32,
    pub(super) snapshot: Arc<Snapshot>,
}

struct Diff<'a> {
    snapshot: Arc<Snapshot>,
    type_url: &'a TypeUrl,
    index: u32,
    cohort: &'a Cohort,
    subscription: &'a Subscription,
    profile: StreamProfile,
    position: &'a Position,
    owed: &'a OwedItems,
    now: Instant,
    /// Whether there are TTLs to send.
    is_timed: bool,
    touched: Generation,
    limit: usize,
    /// All names that may have changed, if the cohort remembers them.
    changed: Option<ChangedNames>,
}

/// News of an entry: when it last changed for the client, its place in the order of changes, and the resource
/// to send.
#[derive(Clone, Copy)]
struct News<'s> {
    pub(super) name: &'s Name,
    changed: Generation,
    place: Generation,
    resource: &'s Arc<Resource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Place,
    Name,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorTiming {
    Now,
    /// With the first part of the first answer, like names that do not exist.
    AtFirst,
    /// With the removal that it explains.
    WithRemoval,
    /// In a later response than the body of its name.
    Later,
}

/// Entries with an error to send, and whether the client is owed it.
type ErrorEntries<'s> = Vec<(&'s Arc<Entry>, ErrorTiming, bool)>;

impl Diff<'_> {
    fn run(mut self) -> Update {
        let update = self.compute();
        // The change log may lag behind the snapshot: a part would move the client past unsent changes.
        let is_listed = update.to <= self.touched;
        if self.changed.is_none() || (is_listed && (update.additions || update.removals)) {
            return update;
        }
        // Only the snapshot can say that there is nothing up to the newest state.
        self.changed = None;
        self.compute()
    }

    fn compute(&self) -> Update {
        let mut update = self.blank();
        let full_state = self.profile.is_full_state(self.type_url.kind());
        if full_state {
            self.full_state(&mut update);
        } else if self.is_whole_set()
            && (self.position.is_start() || matches!(self.position.part, Part::Members { .. }))
        {
            self.members(&mut update);
        } else {
            self.changes(&mut update);
        }
        if self.profile.protocol == Protocol::Sotw && !full_state {
            // Outside full-state types, state of the world cannot express removals (R-SotW-19).
            update.absent.clear();
            update.removed.clear();
            update.digest = self.effective_digest();
        }
        // A missed body counts as unknown until it is fetched again.
        update.unknown_name |= !update.missed.is_empty();
        if !full_state {
            // A full state also lists resources that are not new.
            update.additions |= !update.resources.is_empty() || !update.absent.is_empty();
            update.removals |= !update.removed.is_empty();
        }
        if self.subscription.locators().is_some() && self.profile.protocol == Protocol::Delta {
            self.remember_variants(&mut update);
        }
        self.write_own_encodings(&mut update);
        update
    }

    /// Records the variants that a client may hold of the update's names, to be removed later.
    fn remember_variants(&self, update: &mut Update) {
        let sent = update.resources.iter().map(|resource| (resource.name(), Some(resource.constraints())));
        let gone = update.absent.iter().chain(&update.removed).map(|name| (name, None));
        let mut all = BTreeMap::new();
        for (name, is) in sent.chain(gone).filter(|(name, _)| self.subscription.locates(name.as_str())) {
            let past = self.past_variants(name, is);
            if !past.is_empty() {
                all.insert(name.clone(), past);
            }
            if self.owed.past.contains_key(name) {
                update.owed.past.insert(name.clone(), Vec::new());
            }
        }
        update.past = all;
    }

    fn blank(&self) -> Update {
        let (unknown_name, known_name) = self.names_known();
        Update {
            to: self.touched,
            newest_state: self.snapshot.generation,
            changes: None,
            next: Some(Part::Whole),
            changed_at: self.snapshot.at,
            profile: self.profile,
            asked: self.subscription.has_own_form().then(|| self.subscription.clone()),
            past: BTreeMap::new(),
            type_url: self.type_url.clone(),
            type_index: self.index,
            system_version: Arc::clone(&self.snapshot.system_version),
            control_plane: Arc::clone(&self.snapshot.control_plane),
            resources: Vec::new(),
            segments: Vec::new(),
            ghosts: Vec::new(),
            absent: Vec::new(),
            missed: Vec::new(),
            removed: Vec::new(),
            removed_to: None,
            absent_later: Vec::new(),
            errors: None,
            additions: false,
            removals: false,
            unknown_name,
            known_name,
            wildcard: self.wildcard_completeness(),
            from_start: self.position.is_start() || matches!(self.position.part, Part::Members { .. }),
            endpoints: Vec::new(),
            owed: OwedItems::default(),
            digest: 0,
            own_encodings: None,
            routed: OnceLock::new(),
            frames: Default::default(),
        }
    }

    /// A wildcard that is not subscribed to has no members to come.
    fn wildcard_completeness(&self) -> Completeness {
        if self.subscription.wildcard { self.snapshot.completeness } else { Completeness::Complete }
    }

    /// Whether a resource that a client held may still exist: unknown name, or incomplete wildcard set.
    fn may_exist(&self, name: &Name) -> bool {
        if self.subscription.contains(name.as_str()) {
            self.snapshot
                .get(name.as_str())
                .is_none_or(|entry| matches!(entry.by_name(), VisibleState::Unknown))
        } else {
            self.wildcard_completeness() < Completeness::Complete
        }
    }

    fn is_delta(&self) -> bool {
        self.profile.protocol == Protocol::Delta
    }

    fn is_whole_set(&self) -> bool {
        self.subscription.is_lone_wildcard()
    }

    /// Whether any subscribed name is unknown, and whether any is known.
    fn names_known(&self) -> (bool, bool) {
        let names = self.subscription.names();
        if names.is_empty() {
            return (false, false);
        }
        let unknown = self.cohort.tally(&self.snapshot).unknown;
        (unknown > 0, unknown < names.len())
    }

    /// The whole wildcard set for a client that holds nothing, by segments; by members where a segment is too
    /// large (R-Up-23).
    fn members(&self, update: &mut Update) {
        let (at, after) = match &self.position.part {
            Part::Members { at, after } => (*at, Some(after.as_str())),
            Part::Start | Part::Whole | Part::Changes { .. } | Part::Names { .. } => (self.touched, None),
        };
        update.to = at;
        let mut bytes = 0;
        let mut last: Option<&str> = None;
        'segments: for segment in self.snapshot.table.after(after) {
            // The last part ended in this segment, or segments were split or joined since.
            let is_begun =
                after.is_some_and(|after| segment.first_name().is_some_and(|first| first <= after));
            if !is_begun && !self.has_own_form(segment) && bytes + segment.delta_len() <= self.limit {
                bytes += segment.delta_len();
                last = segment.last_name();
                update.segments.push(Arc::clone(segment));
                continue;
            }
            let is_next = |member: &&Arc<Resource>| after.is_none_or(|after| member.name().as_str() > after);
            for member in segment.members().filter(is_next) {
                let size = self.bytes_of(update, member);
                if let Some(after) = last.filter(|_| bytes > 0 && bytes + size > self.limit) {
                    update.next = Some(Part::Members { at, after: after.into() });
                    break 'segments;
                }
                bytes += size;
                last = Some(member.name().as_str());
                update.resources.push(Arc::clone(member));
            }
        }
        update.additions = bytes > 0;
    }
}
