//! How an update is worked out from a snapshot.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::cohort::{Cohort, Dialect, Protocol};
use super::encoder::FellBehind;
use super::entry::{Entry, Seen};
use super::journal::{Changed, Known};
use super::registry::{Look, Subscription};
use super::snapshot::Snapshot;
use super::span::{Next, Part, Span};
use super::update::{Owed, Update};
use super::{Generation, TypeCache};
use crate::resource::{Constraints, Name, Resource};

/// One computation of an update.
pub(super) struct Scan<'a> {
    snapshot: Arc<Snapshot>,
    of: &'a TypeCache,
    cohort: &'a Cohort,
    subscription: &'a Subscription,
    dialect: Dialect,
    span: &'a Span,
    touched: Generation,
    limit: usize,
    /// All names that may have changed since, where the cohort remembers.
    changed: Option<Changed>,
}

/// What is news to the client, in the order of changes.
type Added<'s> = SmallVec<[(Generation, &'s Arc<Resource>); 4]>;

impl<'a> Scan<'a> {
    pub(super) fn new(
        of: &'a TypeCache,
        cohort: &'a Cohort,
        span: &'a Span,
        touched: Generation,
        limit: usize,
    ) -> Result<Self, FellBehind> {
        // Loaded after `touched` was read: it holds everything that was marked.
        let snapshot = of.snapshot();
        let (subscription, dialect) = (&cohort.subscription, cohort.dialect);
        if subscription.wildcard && span.removed != Generation::ZERO && span.removed < snapshot.horizon {
            return Err(FellBehind);
        }
        if subscription.has_collections()
            && span.removed != Generation::ZERO
            && span.removed < snapshot.buried(subscription)
        {
            return Err(FellBehind);
        }
        // Within an answer in parts the place of an entry counts, which moves by changes that are no news to the cohort.
        let from = span.added.min(span.removed);
        let whole = !span.is_start() && !span.is_in_parts();
        let changed = if whole { cohort.changed_after(from) } else { None };
        Ok(Self { snapshot, of, cohort, subscription, dialect, span, touched, limit, changed })
    }

    pub(super) fn run(mut self, owed: &Owed) -> Update {
        let update = self.look(owed);
        if self.changed.is_none() || update.additions || update.removals {
            return update;
        }
        // That there is nothing up to the newest state, marked or not, is for the snapshot alone to say.
        self.changed = None;
        self.look(owed)
    }

    fn look(&self, owed: &Owed) -> Update {
        let mut update = self.blank();
        let full_state = self.dialect.protocol == Protocol::Sotw && self.of.type_url.kind().full_state();
        if full_state {
            self.full_state(&mut update);
        } else if self.is_whole_set()
            && (self.span.is_start() || matches!(self.span.part, Part::Members { .. }))
        {
            self.members(&mut update);
        } else {
            self.changes(&mut update, owed);
        }
        if self.dialect.protocol == Protocol::Sotw && !full_state {
            // Beside the full-state types there is no way to say that something is gone (R-SotW-19).
            update.absent.clear();
            update.removed.clear();
            update.digest = self.effective_digest();
        }
        if !full_state {
            // A full state lists what is not new too.
            update.additions |= !update.resources.is_empty() || !update.absent.is_empty();
            update.removals |= !update.removed.is_empty();
        }
        if self.subscription.locators().is_some() && self.dialect.protocol == Protocol::Delta {
            self.remember_variants(&mut update, owed);
        }
        update
    }

    /// Which variants a client may hold of what it is told of, so that it can be told that they are gone.
    fn remember_variants(&self, update: &mut Update, owed: &Owed) {
        let told = update.resources.iter().map(|resource| (resource.name(), Some(resource.constraints())));
        let gone = update.absent.iter().chain(&update.removed).map(|name| (name, None));
        let mut all = BTreeMap::new();
        for (name, is) in told.chain(gone).filter(|(name, _)| self.subscription.locates(name.as_str())) {
            let earlier = owed.past.get(name).into_iter().flatten().cloned();
            let mut past: Vec<Option<Constraints>> =
                self.snapshot.variants(name.as_str()).chain(earlier).collect();
            past.sort_unstable();
            past.dedup();
            past.retain(|other| is != Some(other.as_ref()));
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
            next: Next::Done,
            at: self.snapshot.at,
            dialect: self.dialect,
            form: self.subscription.has_own_form().then(|| self.subscription.clone()),
            past: BTreeMap::new(),
            type_url: self.of.type_url.clone(),
            type_index: self.of.index,
            version: Arc::clone(&self.snapshot.system_version),
            resources: Vec::new(),
            segments: Vec::new(),
            ghosts: Vec::new(),
            absent: Vec::new(),
            removed: Vec::new(),
            additions: false,
            removals: false,
            unknown_name,
            known_name,
            unknown_wildcard: self.subscription.wildcard && !self.snapshot.wildcard_known,
            from_start: self.span.is_start() || matches!(self.span.part, Part::Members { .. }),
            endpoints: Vec::new(),
            owed: Owed::default(),
            digest: 0,
            frames: Default::default(),
        }
    }

    fn is_whole_set(&self) -> bool {
        self.subscription.wildcard && self.subscription.names().is_empty()
    }

    /// Whether any name in the subscription is unknown, and whether any is known. What was found known stays so for
    /// as long as nothing is forgotten.
    fn names_known(&self) -> (bool, bool) {
        let names = self.subscription.names();
        if names.is_empty() {
            return (false, false);
        }
        let is_known = |name: &Name| !matches!(self.snapshot.by_name(name.as_str()), Seen::Unknown);
        let known = self.cohort.known();
        let still = self.snapshot.forgotten <= known.at && known.at <= self.snapshot.generation;
        let begin = if still { known.before } else { 0 };
        let before =
            names[begin..].iter().position(|name| !is_known(name)).map_or(names.len(), |at| begin + at);
        if before != begin || !still {
            self.cohort.set_known(Known { at: self.snapshot.generation, before });
        }
        (before < names.len(), before > 0 || names[1..].iter().any(is_known))
    }

    /// The whole wildcard set to who has nothing, segment by segment.
    fn members(&self, update: &mut Update) {
        let (at, after) = match &self.span.part {
            Part::Members { at, after } => (*at, Some(after.as_str())),
            Part::Whole | Part::Changes { .. } => (self.touched, None),
        };
        update.to = at;
        let mut bytes = 0;
        let mut segments = self.snapshot.table.after(after).iter();
        for segment in segments.by_ref() {
            if let Some(after) =
                after.filter(|after| segment.first_name().is_some_and(|first| first <= *after))
            {
                // Segments were split or joined since the last part: the rest of this one.
                let rest = segment.members().filter(|member| member.name().as_str() > after);
                update.resources.extend(rest.cloned());
                bytes += update.resources.iter().map(|resource| resource.delta_entry().len()).sum::<usize>();
            } else if self.subscription.locates(Name::WILDCARD) {
                update.resources.extend(segment.members().cloned());
                bytes += segment.members().map(|resource| resource.delta_entry().len()).sum::<usize>();
            } else {
                bytes += segment.delta().len();
                update.segments.push(Arc::clone(segment));
            }
            if bytes >= self.limit {
                if let Some(after) = segment.last_name().filter(|_| !segments.as_slice().is_empty()) {
                    update.next = Next::Members { at, after: after.into() };
                }
                break;
            }
        }
        update.additions = bytes > 0;
    }

    /// What changed since, and what is owed.
    fn changes(&self, update: &mut Update, owed: &Owed) {
        let floor = self.span.floor();
        let mut added = Added::new();
        let mut bytes = 0;
        self.for_each_candidate(|entry, look| match look.seen {
            Seen::Present(resource) if look.changed > floor && entry.position() > self.span.added => {
                bytes += resource.delta_entry().len();
                added.push((entry.position(), resource));
                update.to = update.to.max(look.changed);
            }
            Seen::Absent if look.changed > self.span.removed && look.since <= self.span.seen => {
                let list = if self.span.is_start() { &mut update.absent } else { &mut update.removed };
                list.push(entry.name().clone());
                update.to = update.to.max(look.changed);
            }
            Seen::Present(_) | Seen::Absent | Seen::Unknown | Seen::Collection => {}
        });
        added.sort_unstable_by_key(|(position, _)| *position);
        let own = self.owed(update, owed, &added);
        if own > 0 && own + bytes > self.limit {
            // Too much for one response: what is owed goes first, and nothing else yet.
            update.next = Next::Stay;
            update.to = self.span.added;
            update.removed.clear();
            update.owed.gone.clear();
            return;
        }

        let mut bytes = 0;
        let mut added = added.into_iter().peekable();
        while let Some((position, resource)) = added.next() {
            if let Some(service) = resource.eds_service().filter(|_| !self.span.is_start()) {
                update.endpoints.push(service.clone());
            }
            bytes += resource.delta_entry().len();
            update.resources.push(Arc::clone(resource));
            if bytes >= self.limit && added.peek().is_some() {
                update.to = position;
                update.next = Next::Changes { floor };
                // Removals come with the last part.
                update.removed.clear();
                update.owed.gone.clear();
                break;
            }
        }
    }

    /// Adds what the client is owed beside `added`; returns how many bytes that is.
    fn owed(&self, update: &mut Update, owed: &Owed, added: &Added<'_>) -> usize {
        if owed.is_empty() {
            return 0;
        }
        let is_added =
            |entry: &Entry| added.binary_search_by_key(&entry.position(), |(position, _)| *position).is_ok();
        let mut bytes = 0;
        // Both lists may have as many names as a request: each is looked up, not searched for.
        let mut told: HashSet<Name> = update.removed.iter().chain(&update.absent).cloned().collect();
        for name in &owed.names {
            if bytes >= self.limit {
                break;
            }
            let entry = self.snapshot.table.get(name.as_str());
            let seen = match entry.and_then(|entry| Some((entry, self.subscription.look(entry, false)?))) {
                Some((entry, _)) if is_added(entry) => Seen::Unknown,
                Some((_, look)) => look.seen,
                // No longer asked for by name: whether the wildcard has it is the answer (R-Delta-09), if known.
                None if self.subscription.contains(name.as_str()) => Seen::Unknown,
                None if self.subscription.wildcard => Seen::Absent,
                None => Seen::Unknown,
            };
            match seen {
                Seen::Present(resource) => {
                    bytes += resource.delta_entry().len();
                    update.endpoints.extend(resource.eds_service().cloned());
                    update.resources.push(Arc::clone(resource));
                }
                Seen::Absent
                    if !self.subscription.contains(name.as_str()) && !self.snapshot.wildcard_known =>
                {
                    continue;
                }
                Seen::Absent if told.insert(name.clone()) => update.absent.push(name.clone()),
                // What is unknown is told when it is known, as a change like any other.
                // The members of a collection are owed beside it.
                Seen::Absent | Seen::Unknown | Seen::Collection => {}
            }
            update.owed.names.insert(name.clone());
        }
        for name in &owed.gone {
            let held =
                self.snapshot.get(name.as_str()).and_then(|entry| self.subscription.look(entry, false));
            if held.is_none_or(|look| look.seen.present().is_none()) && told.insert(name.clone()) {
                update.removed.push(name.clone());
            }
            update.owed.gone.insert(name.clone());
        }
        bytes
    }

    /// Everything that the client may see, and whether any of it is news.
    fn full_state(&self, update: &mut Update) {
        self.for_each_candidate(|entry, look| {
            match look.seen {
                Seen::Present(resource) if look.changed > self.span.added => {
                    update.additions = true;
                    if let Some(service) = resource.eds_service().filter(|_| !self.span.is_start()) {
                        update.endpoints.push(service.clone());
                    }
                }
                Seen::Absent if look.changed > self.span.removed && look.since <= self.span.seen => {
                    update.removals = true;
                    update.ghosts.extend(entry.ghost().cloned());
                }
                Seen::Present(_) | Seen::Absent | Seen::Unknown | Seen::Collection => return,
            }
            update.to = update.to.max(look.changed);
        });
        if self.span.is_start() {
            update.ghosts.clear();
            update.removals = false;
            // Who asks for nothing is told nothing, not even that nothing is there.
            update.additions = !self.subscription.is_empty();
        }
        if self.is_whole_set() && !self.subscription.locates(Name::WILDCARD) {
            update.segments = self.snapshot.table.after(None).to_vec();
        } else {
            if self.subscription.wildcard {
                update.resources.extend(self.snapshot.members().cloned());
            }
            update.resources.extend(self.explicit().cloned());
        }
        update.digest = self.effective_digest();
    }

    /// What was asked for by name or through a collection, exists, and is not seen through the wildcard anyway.
    fn explicit(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.snapshot.beside_wildcard(self.subscription).filter_map(Seen::present)
    }

    fn effective_digest(&self) -> u128 {
        let members = if self.subscription.wildcard { self.snapshot.wildcard_digest } else { 0 };
        self.explicit().fold(members, |sum, resource| sum.wrapping_add(resource.digest()))
    }

    /// Entries that may have changed since, each once, with what the client sees of them: those that the cohort
    /// remembers; else from the order of changes, or by name where that is less.
    fn for_each_candidate<'s>(&'s self, mut with: impl FnMut(&'s Arc<Entry>, Look<'s>)) {
        let aggregated = self.dialect.aggregated;
        let names = match &self.changed {
            Some(changed) => changed,
            None => self.subscription.names(),
        };
        let from = self.span.added.min(self.span.removed);
        let log = self.snapshot.log.range((Bound::Excluded(from), Bound::Unbounded)).map(|(_, entry)| entry);
        // How many names a collection stands for is not known before they are looked at.
        let has_collections = self.subscription.has_collections();
        let is_shorter =
            || !self.span.is_start() && (has_collections || log.clone().nth(names.len()).is_none());
        if self.subscription.wildcard || (self.changed.is_none() && is_shorter()) {
            for entry in log {
                if let Some(look) = self.subscription.look(entry, aggregated) {
                    with(entry, look);
                }
            }
        } else {
            let listed = self.snapshot.listed(self.subscription).filter(|_| self.changed.is_none());
            for entry in names.iter().filter_map(|name| self.snapshot.table.get(name.as_str())).chain(listed)
            {
                let look = if has_collections {
                    self.subscription.look(entry, aggregated)
                } else {
                    Some(Look::by_name(entry, aggregated))
                };
                if let Some(look) = look {
                    with(entry, look);
                }
            }
        }
    }
}
