//! How an update is worked out from a snapshot.

mod aliases;
mod candidates;
mod changes;
mod errors;
mod forms;
mod full_state;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::Generation;
use super::change::Completeness;
use super::change_log::Changed;
use super::cohort::Cohort;
use super::entry::{Entry, Seen};
use super::position::{FellBehindError, NextPosition, Part, Position};
use super::profile::{Protocol, StreamProfile, TtlSupport};
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use super::update::{OwedItems, Update};
use crate::resource::{Constraints, Name, Resource, TypeUrl};

/// State that an update is worked out from.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) type_url: &'a TypeUrl,
    /// Number of the store, for nonces.
    pub(super) index: u32,
    pub(super) snapshot: Arc<Snapshot>,
}

/// One computation of an update.
pub(super) struct Diff<'a> {
    pub(super) snapshot: Arc<Snapshot>,
    type_url: &'a TypeUrl,
    index: u32,
    cohort: &'a Cohort,
    pub(super) subscription: &'a Subscription,
    pub(super) profile: StreamProfile,
    pub(super) position: &'a Position,
    pub(super) now: Instant,
    /// Whether there is any time to tell.
    pub(super) is_timed: bool,
    touched: Generation,
    pub(super) limit: usize,
    /// See [`OwedItems::refused`].
    refused: Option<&'a BTreeMap<Name, Generation>>,
    /// See [`OwedItems::past`].
    pub(super) past: Option<&'a BTreeMap<Name, Vec<Option<Constraints>>>>,
    /// All names that may have changed since, where the cohort remembers.
    changed: Option<Changed>,
}

/// News of an entry for a client: when it last had something to learn, the entry's place in the order of that, and
/// what it is to be told.
#[derive(Clone, Copy)]
pub(super) struct News<'s> {
    pub(super) name: &'s Name,
    changed: Generation,
    pub(super) place: Generation,
    pub(super) resource: &'s Arc<Resource>,
}

/// In which order candidates come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By their places in the order of changes.
    Place,
    Name,
    None,
}

/// When an error is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorTiming {
    Now,
    /// With the first part of the first answer, which says what does not exist.
    AtFirst,
    /// With the removal that it stands for.
    WithRemoval,
    /// In a later response than the body of the same name.
    Later,
}

/// Entries of which an update has an error to tell, and whether the client is owed it.
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
            && position.removed < snapshot.buried(subscription)
        {
            return Err(FellBehindError);
        }
        if position.removed != Generation::ZERO
            && position.removed < snapshot.aliases_buried
            && position.removed < snapshot.aliases_buried_for(subscription)
        {
            return Err(FellBehindError);
        }
        // Within an answer in parts the place of an entry counts, which moves by changes that are no news to the cohort.
        let from = position.added.min(position.removed);
        let whole = !position.is_start() && !position.is_in_parts();
        let changed = if whole { cohort.changed_after(from) } else { None };
        let is_timed = profile.ttl != TtlSupport::Untold && snapshot.leased > 0;
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
        let update = self.look(owed);
        // The change log may lag behind the snapshot: a partial update would take the client past changes that it never got.
        let is_listed = update.to <= self.touched;
        if self.changed.is_none() || (is_listed && (update.additions || update.removals)) {
            return update;
        }
        // That there is nothing up to the newest state, marked or not, is for the snapshot alone to say.
        self.changed = None;
        self.look(owed)
    }

    fn look(&self, owed: &OwedItems) -> Update {
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
            // Beside the full-state types there is no way to say that something is gone (R-SotW-19).
            update.absent.clear();
            update.removed.clear();
            update.digest = self.effective_digest();
        }
        // A missed name is as good as unknown to a client that has to be told of it.
        update.unknown_name |= !update.missed.is_empty();
        if !full_state {
            // A full state lists what is not new too.
            update.additions |= !update.resources.is_empty() || !update.absent.is_empty();
            update.removals |= !update.removed.is_empty();
        }
        if self.subscription.locators().is_some() && self.profile.protocol == Protocol::Delta {
            self.remember_variants(&mut update, owed);
        }
        self.write_forms(&mut update);
        update
    }

    /// Which variants a client may hold of what it is told of, so that it can be told that they are gone.
    fn remember_variants(&self, update: &mut Update, owed: &OwedItems) {
        let told = update.resources.iter().map(|resource| (resource.name(), Some(resource.constraints())));
        let gone = update.absent.iter().chain(&update.removed).map(|name| (name, None));
        let mut all = BTreeMap::new();
        for (name, is) in told.chain(gone).filter(|(name, _)| self.subscription.locates(name.as_str())) {
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
            seen: self.snapshot.generation,
            changes: None,
            next: NextPosition::Done,
            at: self.snapshot.at,
            profile: self.profile,
            form: self.subscription.has_own_form().then(|| self.subscription.clone()),
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
            forms: None,
            routed: OnceLock::new(),
            frames: Default::default(),
        }
    }

    /// A wildcard that is not subscribed to has no more members to come.
    fn wildcard_completeness(&self) -> Completeness {
        if self.subscription.wildcard { self.snapshot.completeness } else { Completeness::Complete }
    }

    /// Whether nothing was said of what a client held: of a name, or of what may be a member that has not come yet.
    fn may_exist(&self, name: &Name) -> bool {
        if self.subscription.contains(name.as_str()) {
            self.snapshot.get(name.as_str()).is_none_or(|entry| matches!(entry.by_name(), Seen::Unknown))
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

    /// Whether any name in the subscription is unknown, and whether any is known.
    fn names_known(&self) -> (bool, bool) {
        let names = self.subscription.names();
        if names.is_empty() {
            return (false, false);
        }
        let unknown = self.cohort.tally(&self.snapshot).unknown;
        (unknown > 0, unknown < names.len())
    }

    /// The whole wildcard set to a client that has nothing: segment by segment, and member by member where the whole
    /// segment would be too much (R-Up-23).
    fn members(&self, update: &mut Update) {
        let (at, after) = match &self.position.part {
            Part::Members { at, after } => (*at, Some(after.as_str())),
            Part::Start | Part::Whole | Part::Changes { .. } | Part::Names { .. } => (self.touched, None),
        };
        update.to = at;
        let mut bytes = 0;
        let mut last: Option<&str> = None;
        'segments: for segment in self.snapshot.table.after(after) {
            // The last part ended within it, or segments were split or joined since.
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
                    update.next = NextPosition::Members { at, after: after.into() };
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
