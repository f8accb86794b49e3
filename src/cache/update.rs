//! What a client has to be told next, worked out and encoded once for all who stand at the same place.
//!
//! A [`Span`] says how far a client has been told; an [`Update`] is what leads on from there, and a frame is an
//! update in bytes. Both are shared by a cohort through a byte-weighed cache, and both can always be made again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use foldhash::HashSet;

use super::entry::{Entry, Seen};
use super::frame::{self, Fields, Frame, Nonce, Piece, Suffix};
use super::registry::{Cohort, Dialect, Protocol, Subscription};
use super::segments::Segment;
use super::snapshot::Snapshot;
use super::{Generation, TypeCache};
use crate::resource::{Name, Resource, TypeUrl};

/// How far a client has been told of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Of additions and changes.
    pub added: Generation,
    /// Of removals, which may lag behind (R-ADS-03).
    pub removed: Generation,
    /// The newest state that it was ever sent anything of: what came later it cannot hold.
    seen: Generation,
    /// Where it stands in an answer that is sent in parts (R-Up-23).
    part: Part,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Part {
    /// In none.
    #[default]
    Whole,
    /// In a run through the changes: those that were pending when it began are the ones since `floor`.
    Changes { floor: Generation },
    /// In a run through all members by name, begun at `at`.
    Members { at: Generation, after: Name },
}

impl Span {
    /// Told everything up to here.
    pub fn up_to(generation: Generation) -> Self {
        Self { added: generation, removed: generation, seen: generation, part: Part::Whole }
    }

    /// Told nothing yet.
    pub fn is_start(&self) -> bool {
        self.added == Generation::ZERO && self.part == Part::Whole
    }

    /// Whether a part of an answer was sent and the rest was not.
    pub fn is_in_parts(&self) -> bool {
        self.part != Part::Whole
    }

    /// Whether the change at `generation` has been told.
    pub fn covers(&self, generation: Generation) -> bool {
        generation <= self.added
    }

    /// Whether everything up to `generation` has been told, removals too.
    pub fn is_done(&self, generation: Generation) -> bool {
        generation <= self.added && generation <= self.removed
    }

    /// Told everything that there was when `update` was made, which must have been nothing.
    pub fn settle(&mut self, update: &Update) {
        debug_assert!(
            !update.additions && !update.removals,
            "only what has nothing to say may be passed over"
        );
        *self = Self::up_to(update.seen);
    }

    fn floor(&self) -> Generation {
        match self.part {
            Part::Changes { floor } => floor,
            Part::Whole | Part::Members { .. } => self.added,
        }
    }

    /// Moves on over an update of which `class` was sent.
    pub fn advance(&mut self, update: &Update, class: Class) {
        self.seen = self.seen.max(update.seen);
        if self.removed == Generation::ZERO && update.next != Next::Stay {
            // The first that it was told: what was gone by then it cannot hold, what goes from then on it may.
            self.removed = update.seen;
        }
        match &update.next {
            Next::Stay => {}
            Next::Members { at, after } => self.part = Part::Members { at: *at, after: after.clone() },
            Next::Changes { floor } => {
                self.part = Part::Changes { floor: *floor };
                self.added = update.to;
            }
            Next::Done => {
                self.part = Part::Whole;
                self.added = update.to;
                if class != Class::Additions {
                    self.removed = update.to;
                }
            }
        }
    }
}

/// Where a client stands once it took an update.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    /// Where it stood: the update held nothing but what it was owed.
    Stay,
    /// Within the changes up to `to`.
    Changes { floor: Generation },
    /// Within the members.
    Members { at: Generation, after: Name },
    /// At `to`.
    Done,
}

/// Which half of an update a response carries (R-ADS-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Everything.
    Both,
    /// Additions and changes; state of the world: old and new united. The removals follow.
    Additions,
}

/// What one client is to be told beside its cohort.
#[derive(Clone, Debug, Default)]
pub struct Owed {
    /// Names that it newly asked for, or that are to be repeated to it.
    pub names: BTreeSet<Name>,
    /// Names that it is to be told are gone, whatever it subscribes to (R-Delta-07).
    pub gone: BTreeSet<Name>,
}

impl Owed {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.gone.is_empty()
    }
}

/// What leads on from a [`Span`].
#[derive(Debug)]
pub struct Update {
    /// Where it leads.
    to: Generation,
    seen: Generation,
    next: Next,
    /// When the newest generation in it was made.
    at: Option<Instant>,
    dialect: Dialect,
    type_url: TypeUrl,
    type_index: u32,
    version: Arc<str>,
    /// The body: in a state-of-the-world answer of a full-state type everything, else what is new.
    resources: Vec<Arc<Resource>>,
    segments: Vec<Arc<Segment>>,
    ghosts: Vec<Arc<Resource>>,
    /// Names that were asked for and do not exist: an answer, which need not wait as removals do.
    absent: Vec<Name>,
    removed: Vec<Name>,
    /// Whether anything is new, and whether anything is gone.
    additions: bool,
    removals: bool,
    unknown_name: bool,
    known_name: bool,
    unknown_wildcard: bool,
    /// Whether it is the first that is told.
    from_start: bool,
    /// Endpoints of changed EDS clusters in it, where it is not.
    endpoints: Vec<Name>,
    owed: Owed,
    digest: u128,
    frames: [OnceLock<Frame>; 2],
}

impl Update {
    /// Whether it brings additions or changes.
    pub const fn has_additions(&self) -> bool {
        self.additions
    }

    /// Whether it takes anything away.
    pub const fn has_removals(&self) -> bool {
        self.removals
    }

    /// Whether a name in the subscription is not known yet (R-Relay-04).
    pub const fn has_unknown_name(&self) -> bool {
        self.unknown_name
    }

    /// Whether a name in the subscription is known, be it absent.
    pub const fn has_known_name(&self) -> bool {
        self.known_name
    }

    /// Whether the wildcard is subscribed to and its set not known yet (R-Relay-05).
    pub const fn has_unknown_wildcard(&self) -> bool {
        self.unknown_wildcard
    }

    /// Whether more of the same follows (R-Up-23).
    pub fn is_partial(&self) -> bool {
        self.next != Next::Done
    }

    /// When the newest change in it was applied to the cache.
    pub const fn changed_at(&self) -> Option<Instant> {
        self.at
    }

    /// Names of the endpoints whose clusters changed in it (R-ADS-05), or may have: what a client held before its
    /// stream began is not known.
    pub fn endpoints(&self) -> impl Iterator<Item = &Name> {
        let listed = self.resources.iter().filter(|_| self.from_start);
        let members = self.segments.iter().filter(|_| self.from_start).flat_map(|segment| segment.members());
        self.endpoints.iter().chain(listed.chain(members).filter_map(|resource| resource.eds_service()))
    }

    /// Where it leads.
    pub const fn to(&self) -> Generation {
        self.to
    }

    /// Whether it holds all that the client may see, so that nothing else can be owed (R-SotW-18).
    pub fn is_full_state(&self) -> bool {
        self.dialect.protocol == Protocol::Sotw && self.type_url.kind().full_state()
    }

    /// What of the client's own set it took in.
    pub const fn owed(&self) -> &Owed {
        &self.owed
    }

    /// The digest of the client's effective set (R-Relay-11): `version_info`.
    pub fn version_info(&self) -> String {
        format!("{:032x}", self.digest)
    }

    /// The frame that the whole cohort shares.
    pub fn shared_frame(&self, class: Class, encoder: &Encoder) -> Frame {
        let (slot, suffix) = match class {
            Class::Both => (0, Suffix::None),
            Class::Additions => (1, Suffix::Additions),
        };
        self.frames[slot].get_or_init(|| self.encode(class, suffix, encoder)).clone()
    }

    /// A frame with a nonce of the stream's own.
    pub fn own_frame(&self, class: Class, number: u32, encoder: &Encoder) -> Frame {
        self.encode(class, Suffix::Own(number), encoder)
    }

    fn encode(&self, class: Class, suffix: Suffix, encoder: &Encoder) -> Frame {
        encoder.encodes.fetch_add(1, Ordering::Relaxed);
        let nonce = Nonce { type_index: self.type_index, generation: self.to, suffix };
        match self.dialect.protocol {
            Protocol::Delta => {
                let removed = if class == Class::Both { &self.removed[..] } else { &[] };
                let removed = [removed, &self.absent];
                let fields = Fields { version: &self.version, type_url: self.type_url.as_str(), removed };
                let segments = self.segments.iter().map(|segment| Piece::Shared(segment.delta()));
                let resources = self.resources.iter().map(|resource| Piece::Shared(resource.delta_entry()));
                frame::splice(fields, nonce, segments.chain(resources))
            }
            Protocol::Sotw => {
                let ghosts = if class == Class::Additions { &self.ghosts[..] } else { &[] };
                let union = ghosts.iter().fold(self.digest, |sum, ghost| sum.wrapping_add(ghost.digest()));
                let version = format!("{union:032x}");
                let fields =
                    Fields { version: &version, type_url: self.type_url.as_str(), removed: [&[], &[]] };
                let pieces = self.segments.iter().map(|segment| Piece::Shared(segment.sotw()));
                let listed = self.resources.iter().chain(ghosts);
                let pieces = pieces.chain(listed.map(|resource| {
                    let (entry, at) = resource.sotw_tail();
                    Piece::Tail(entry, at)
                }));
                frame::splice(fields, nonce, pieces)
            }
        }
    }

    fn weight(&self) -> u32 {
        let bytes: usize = self.resources.iter().map(|resource| resource.delta_entry().len()).sum();
        u32::try_from(bytes + 512 + 16 * (self.segments.len() + self.removed.len())).unwrap_or(u32::MAX)
    }
}

/// Under what an update is shared. `touched` stands for the state: nothing in it that concerns the cohort changed
/// since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UpdateKey {
    type_index: u32,
    cohort: u64,
    touched: Generation,
    span: Span,
}

/// Makes updates and shares them.
#[derive(Debug)]
pub struct Encoder {
    updates: moka::sync::Cache<UpdateKey, Arc<Update>>,
    encodes: AtomicU64,
    response_bytes: usize,
}

impl Encoder {
    pub(super) fn new(budget: u64, response_bytes: usize) -> Self {
        let updates = moka::sync::Cache::builder()
            .max_capacity(budget)
            .weigher(|_, update: &Arc<Update>| update.weight())
            .build();
        Self { updates, encodes: AtomicU64::new(0), response_bytes }
    }

    /// How many frames were encoded.
    pub fn encodes(&self) -> u64 {
        self.encodes.load(Ordering::Relaxed)
    }

    /// What a client of this cohort has to be told next.
    pub fn update(&self, of: &TypeCache, cohort: &Cohort, span: &Span) -> Result<Arc<Update>, FellBehind> {
        let touched = cohort.touched();
        if !cohort.is_shared() {
            let made = Scan::new(of, cohort, span, touched, self.response_bytes)?.run(&Owed::default());
            return Ok(Arc::new(made));
        }
        let key = UpdateKey { type_index: of.index, cohort: cohort.id, touched, span: span.clone() };
        if let Some(found) = self.updates.get(&key) {
            return Ok(found);
        }
        let made = Scan::new(of, cohort, span, touched, self.response_bytes)?.run(&Owed::default());
        let made = self.updates.entry(key.clone()).or_insert_with(|| Arc::new(made)).into_value();
        let mut live = cohort.live.lock();
        if live.0 < touched {
            live.1.drain(..).for_each(|old| self.updates.invalidate(&old));
            live.0 = touched;
        }
        if live.0 == touched {
            live.1.push(key);
        }
        Ok(made)
    }

    /// The same for a client that is owed something of its own.
    pub fn own_update(
        &self,
        of: &TypeCache,
        cohort: &Cohort,
        span: &Span,
        owed: &Owed,
    ) -> Result<Update, FellBehind> {
        Ok(Scan::new(of, cohort, span, cohort.touched(), self.response_bytes)?.run(owed))
    }
}

/// The client stands before what the cache remembers of removals: it has to come again with its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too far behind: reconnect to resume from the versions held")]
pub struct FellBehind;

/// One computation of an update.
struct Scan<'a> {
    snapshot: Arc<Snapshot>,
    of: &'a TypeCache,
    subscription: &'a Subscription,
    dialect: Dialect,
    span: &'a Span,
    touched: Generation,
    limit: usize,
}

impl<'a> Scan<'a> {
    fn new(
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

    fn run(&self, owed: &Owed) -> Update {
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
