//! How an update is worked out from a snapshot.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use foldhash::HashSet;

use super::encoder::FellBehind;
use super::entry::{Entry, Seen};
use super::registry::{Cohort, Dialect, Protocol, Subscription};
use super::snapshot::Snapshot;
use super::span::{Next, Part, Span};
use super::update::{Owed, Update};
use super::{Generation, TypeCache};
use crate::resource::{Name, Resource};

/// One computation of an update.
pub(super) struct Scan<'a> {
    snapshot: Arc<Snapshot>,
    of: &'a TypeCache,
    subscription: &'a Subscription,
    dialect: Dialect,
    span: &'a Span,
    touched: Generation,
    limit: usize,
}

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
        Ok(Self { snapshot, of, subscription, dialect, span, touched, limit })
    }

    pub(super) fn run(&self, owed: &Owed) -> Update {
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
        update
    }

    fn blank(&self) -> Update {
        Update {
            to: self.touched,
            seen: self.snapshot.generation,
            next: Next::Done,
            at: self.snapshot.at,
            dialect: self.dialect,
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
            unknown_name: self.names_known().any(|known| !known),
            known_name: self.names_known().any(|known| known),
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

    /// For each name in the subscription, whether it is known.
    fn names_known(&self) -> impl Iterator<Item = bool> {
        let names = self.subscription.names().iter();
        names.map(|name| !matches!(self.snapshot.by_name(name.as_str()), Seen::Unknown))
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
        let mut added: BTreeMap<Generation, &Arc<Entry>> = BTreeMap::new();
        let mut bytes = 0;
        for entry in self.candidates() {
            let Some(look) = self.subscription.look(entry, self.dialect.aggregated) else { continue };
            match look.seen {
                Seen::Present(resource) if look.changed > floor && entry.position() > self.span.added => {
                    bytes += resource.delta_entry().len();
                    added.insert(entry.position(), entry);
                    update.to = update.to.max(look.changed);
                }
                Seen::Absent if look.changed > self.span.removed && look.since <= self.span.seen => {
                    let list = if self.span.is_start() { &mut update.absent } else { &mut update.removed };
                    list.push(entry.name().clone());
                    update.to = update.to.max(look.changed);
                }
                Seen::Present(_) | Seen::Absent | Seen::Unknown => {}
            }
        }
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
        let mut entries = added.into_values().peekable();
        while let Some(entry) = entries.next() {
            let Some(look) = self.subscription.look(entry, self.dialect.aggregated) else { continue };
            let Seen::Present(resource) = look.seen else { continue };
            if let Some(service) = resource.eds_service().filter(|_| !self.span.is_start()) {
                update.endpoints.push(service.clone());
            }
            bytes += resource.delta_entry().len();
            update.resources.push(Arc::clone(resource));
            if bytes >= self.limit && entries.peek().is_some() {
                update.to = entry.position();
                update.next = Next::Changes { floor };
                // Removals come with the last part.
                update.removed.clear();
                update.owed.gone.clear();
                break;
            }
        }
    }

    /// Adds what the client is owed beside `added`; returns how many bytes that is.
    fn owed(&self, update: &mut Update, owed: &Owed, added: &BTreeMap<Generation, &Arc<Entry>>) -> usize {
        let mut bytes = 0;
        // Both lists may have as many names as a request: each is looked up, not searched for.
        let mut told: HashSet<Name> = update.removed.iter().chain(&update.absent).cloned().collect();
        for name in &owed.names {
            if bytes >= self.limit {
                break;
            }
            let entry = self.snapshot.table.get(name.as_str());
            let seen = match entry.and_then(|entry| Some((entry, self.subscription.look(entry, false)?))) {
                Some((entry, _)) if added.contains_key(&entry.position()) => Seen::Unknown,
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
                Seen::Absent | Seen::Unknown => {}
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
        for entry in self.candidates() {
            let Some(look) = self.subscription.look(entry, self.dialect.aggregated) else { continue };
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
                Seen::Present(_) | Seen::Absent | Seen::Unknown => continue,
            }
            update.to = update.to.max(look.changed);
        }
        if self.span.is_start() {
            update.ghosts.clear();
            update.removals = false;
            // Who asks for nothing is told nothing, not even that nothing is there.
            update.additions = !self.subscription.is_empty();
        }
        if self.is_whole_set() {
            update.segments = self.snapshot.table.after(None).to_vec();
        } else {
            if self.subscription.wildcard {
                update.resources.extend(self.snapshot.members().cloned());
            }
            update.resources.extend(self.explicit().cloned());
        }
        update.digest = self.effective_digest();
    }

    /// What was asked for by name, exists, and is not seen through the wildcard anyway.
    fn explicit(&self) -> impl Iterator<Item = &Arc<Resource>> {
        let through_wildcard =
            |entry: &Entry| self.subscription.wildcard && entry.as_member().present().is_some();
        let entries = self.subscription.names().iter().filter_map(|name| self.snapshot.get(name.as_str()));
        entries.filter(move |entry| !through_wildcard(entry)).filter_map(|entry| entry.by_name().present())
    }

    fn effective_digest(&self) -> u128 {
        let members = if self.subscription.wildcard { self.snapshot.wildcard_digest } else { 0 };
        self.explicit().fold(members, |sum, resource| sum.wrapping_add(resource.digest()))
    }

    /// Entries that may have changed since, each once: from the order of changes, or by name where that is less.
    fn candidates(&self) -> Box<dyn Iterator<Item = &Arc<Entry>> + '_> {
        let from = self.span.added.min(self.span.removed);
        let changed =
            self.snapshot.log.range((Bound::Excluded(from), Bound::Unbounded)).map(|(_, entry)| entry);
        if self.subscription.wildcard {
            return Box::new(changed);
        }
        let names = self.subscription.names();
        if !self.span.is_start() && changed.clone().nth(names.len()).is_none() {
            return Box::new(changed);
        }
        Box::new(names.iter().filter_map(|name| self.snapshot.table.get(name.as_str())))
    }
}
