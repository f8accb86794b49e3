//! Computation of an update from a snapshot.

mod aliases;
mod candidates;
mod changes;
mod error_timing;
mod full_state;
mod own_forms;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Generation;
use super::change::Completeness;
use super::cohort::ChangedNames;
use super::cohort::Cohort;
use super::entry::{Entry, VisibleState};
use super::position::{FellBehindError, Part, Position};
use super::snapshot::Snapshot;
use super::stream_profile::{Protocol, StreamProfile, TtlSupport};
use super::subscription::Subscription;
use super::update::{OwedItems, Update};
use crate::resource::{Constraints, Name, Resource, TypeUrl};

#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) type_url: &'a TypeUrl,
    pub(super) index: u32,
    pub(super) snapshot: Arc<Snapshot>,
}

pub(super) struct Diff<'a> {
    pub(super) snapshot: Arc<Snapshot>,
    type_url: &'a TypeUrl,
    index: u32,
    cohort: &'a Cohort,
    pub(super) subscription: &'a Subscription,
    pub(super) profile: StreamProfile,
    pub(super) position: &'a Position,
    pub(super) now: Instant,
    /// Whether there are TTLs to send.
    pub(super) is_timed: bool,
    touched: Generation,
    pub(super) limit: usize,
    /// See [`OwedItems::refused`].
    refused: Option<&'a BTreeMap<Name, Generation>>,
    /// See [`OwedItems::past`].
    pub(super) past: Option<&'a BTreeMap<Name, Vec<Option<Constraints>>>>,
    /// All names that may have changed, if the cohort remembers them.
    changed: Option<ChangedNames>,
}

/// News of an entry: when it last changed for the client, its place in the order of changes, and the resource
/// to send.
#[derive(Clone, Copy)]
pub(super) struct News<'s> {
    pub(super) name: &'s Name,
    changed: Generation,
    pub(super) place: Generation,
    pub(super) resource: &'s Arc<Resource>,
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

impl<'a> Diff<'a> {
    pub(super) fn new(
        source: Source<'a>,
        cohort: &'a Cohort,
        position: &'a Position,
        touched: Generation,
        limit: usize,
        now: Instant,
    ) -> Result<Self, FellBehindError> {
        let Source { type_url, index, snapshot } = source;
        let (subscription, profile) = (&cohort.subscription, cohort.profile);
        if subscription.wildcard
            && position.removed != Generation::ZERO
            && position.removed < snapshot.horizon
        {
            return Err(FellBehindError);
        }
        if subscription.has_collections()
            && position.removed != Generation::ZERO
            && position.removed < snapshot.collections_horizon(subscription)
        {
            return Err(FellBehindError);
        }
        if position.removed != Generation::ZERO
            && position.removed < snapshot.aliases_horizon
            && position.removed < snapshot.aliases_horizon_for(subscription)
        {
            return Err(FellBehindError);
        }
        // In parts, places of entries count. Changes that are no news to the cohort move them too.
        let from = position.added.min(position.removed);
        let whole = !position.is_start() && !position.is_in_parts();
        let changed = if whole { cohort.changed_after(from) } else { None };
        let is_timed = profile.ttl != TtlSupport::Unsupported && snapshot.leased > 0;
        let (refused, past) = (None, None);
        Ok(Self {
            snapshot,
            type_url,
            index,
            cohort,
            subscription,
            profile,
            position,
            now,
            is_timed,
            touched,
            limit,
            refused,
            past,
            changed,
        })
    }

    pub(super) fn run(mut self, owed: &'a OwedItems) -> Update {
        self.refused = Some(&owed.refused).filter(|refused| !refused.is_empty());
        self.past = Some(&owed.past).filter(|past| !past.is_empty());
        let update = self.compute(owed);
        // The change log may lag behind the snapshot: a part would move the client past unsent changes.
        let is_listed = update.to <= self.touched;
        if self.changed.is_none() || (is_listed && (update.additions || update.removals)) {
            return update;
        }
        // Only the snapshot can say that there is nothing up to the newest state.
        self.changed = None;
        self.compute(owed)
    }

    fn compute(&self, owed: &OwedItems) -> Update {
        let mut update = self.blank();
        let full_state = self.profile.is_full_state(self.type_url.kind());
        if full_state {
            self.full_state(&mut update, owed);
        } else if self.is_whole_set()
            && (self.position.is_start() || matches!(self.position.part, Part::Members { .. }))
        {
            self.members(&mut update);
        } else {
            self.changes(&mut update, owed);
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
            self.remember_variants(&mut update, owed);
        }
        self.write_own_encodings(&mut update);
        update
    }

    /// Records the variants that a client may hold of the update's names, to be removed later.
    fn remember_variants(&self, update: &mut Update, owed: &OwedItems) {
        let sent = update.resources.iter().map(|resource| (resource.name(), Some(resource.constraints())));
        let gone = update.absent.iter().chain(&update.removed).map(|name| (name, None));
        let mut all = BTreeMap::new();
        for (name, is) in sent.chain(gone).filter(|(name, _)| self.subscription.locates(name.as_str())) {
            let past = self.past_variants(name, is);
            if !past.is_empty() {
                all.insert(name.clone(), past);
            }
            if owed.past.contains_key(name) {
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
            at: self.snapshot.at,
            profile: self.profile,
            asked: self.subscription.has_own_form().then(|| self.subscription.clone()),
            past: BTreeMap::new(),
            type_url: self.type_url.clone(),
            type_index: self.index,
            version: Arc::clone(&self.snapshot.system_version),
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

    pub(super) fn is_delta(&self) -> bool {
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
