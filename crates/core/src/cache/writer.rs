//! The one hand that writes to a group's cache.
//!
//! Owns the order of a change: its snapshot, the cohorts that it concerns, and the clients that are woken; and which store of a type
//! whose changes are guarded it goes to. Knows nothing of streams, and takes the time as an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::change::{Change, Completeness, Op};
use super::entry::{Entry, Named};
use super::history::Changed;
use super::interner::Interner;
use super::parameter_view::{ParameterView, Track};
use super::rollout::{Decision, Steps, StoreKey};
use super::snapshot::{Draft, Snapshot};
use super::stores::{Claim, StoreLimitError};
use super::type_store::TypeCache;
use super::view::View;
use super::wanted::Wanted;
use super::{Cache, Generation, cohort_index};
use crate::RelayIdentity;
use crate::resource::{Collection, Kind, Name, Parameters, TypeUrl};

/// The one writer of a group's cache.
#[derive(Debug)]
pub struct Writer {
    cache: Arc<Cache>,
    clock: Generation,
    repush: bool,
    /// `control_plane.identifier` of a type while no change gives it another one.
    identifier: Arc<str>,
    /// Resources of other caches, if there are any.
    interner: Option<Arc<Interner>>,
    /// Whether names that have no entry any more are remembered.
    remembers: bool,
}

impl Writer {
    /// The writer of an empty store.
    pub(super) fn new(cache: Arc<Cache>, interner: Option<Arc<Interner>>) -> Self {
        let (clock, identifier) = (Generation::ZERO, Arc::from(""));
        Self { cache, clock, repush: true, identifier, interner, remembers: false }
    }

    /// Remembers names that have no entry any more for readers of changes, up to `tombstones` of each store: see
    /// [`Snapshot::changed_since`]. Off by default.
    pub const fn remember_forgotten(&mut self) {
        self.remembers = true;
    }

    /// Whether endpoints are sent again when their cluster changed (R-ADS-05). On by default.
    pub const fn set_eds_repush(&mut self, on: bool) {
        self.repush = on;
    }

    /// Names this relay to clients (R-Relay-19).
    pub fn set_identity(&mut self, identity: &RelayIdentity) {
        self.identifier = identity.own();
    }

    /// The store it writes to.
    pub const fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The newest generation of its cache.
    pub const fn generation(&self) -> Generation {
        self.clock
    }

    /// The origin answered for a type. Nobody is woken: a client that waits for the origin to answer looks
    /// again every `cold_deadline`.
    pub fn heard(&self, type_url: &TypeUrl, now: Instant) {
        if let Some(of) = self.cache.stores.read().any(type_url) {
            of.answering.answer(now);
        }
    }

    /// The relay did not run for this long, which is no silence of the origin.
    pub fn overslept(&self, pause: Duration, now: Instant) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.shift(pause, now));
    }

    /// The origin has not answered for any type on the connection that stands now.
    pub fn unheard(&self) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.end());
    }

    /// The origin's silence about names counts from then on at the earliest.
    pub fn silent_not_before(&self, at: Instant) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.not_before(at));
    }

    /// Names of these types are asked for anew: its silence on an earlier stream says nothing of them.
    pub fn asked_anew(&self, is_one: impl Fn(&TypeUrl) -> bool, now: Instant) {
        let stores = self.cache.stores.read();
        stores.answering().filter(|(of, _)| is_one(of)).for_each(|(_, of)| of.begin_anew(now));
    }

    /// Applies a change to what clients without parameters see, as a whole, and wakes those it concerns.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the type is new and there may be no more types; nothing is changed then.
    pub fn apply(&mut self, type_url: &TypeUrl, change: Change, now: Instant) -> Result<(), StoreLimitError> {
        self.apply_seen(type_url, &Parameters::NONE, change, now)
    }

    /// Like [`apply`](Self::apply), for what clients with these parameters see.
    ///
    /// # Errors
    ///
    /// As of [`apply`](Self::apply), also if there may be no more sets of parameters.
    pub fn apply_seen(
        &mut self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        mut change: Change,
        now: Instant,
    ) -> Result<(), StoreLimitError> {
        if let Some(interner) = &self.interner {
            for op in &mut change.ops {
                if let Op::Set { resource, .. } = op {
                    interner.share(resource);
                }
            }
        }
        let of = self.cache.seen_by(Claim::Origin, type_url, &ParameterView::uniform(parameters.clone()))?;
        let Some(rollout) = self.cache.rollout_of(type_url).cloned() else {
            self.apply_on(&of, parameters, change, now);
            return Ok(());
        };
        let stable = self.track(type_url, parameters, Track::Stable)?;
        let canary = self.track(type_url, parameters, Track::Canary)?;
        let key = (type_url.clone(), parameters.clone());
        let held = (&*of.snapshot(), &*stable.snapshot());
        let canaries = self.cache.mixed(type_url, parameters);
        let is_asked = |name: &Name, is_member| asked_by_canaries(&canaries, parameters, name, is_member);
        let split = rollout.split(&key, &change, held, is_asked, self.clock, now);
        // No client sees it: endpoints follow the clusters of the tracks.
        self.publish(&of, change, now);
        self.apply_on(&canary, parameters, split.canary, now);
        self.apply_on(&stable, parameters, split.stable, now);
        Ok(())
    }

    /// Store of a track, which its clients see whole.
    fn track(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        track: Track,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        let view = ParameterView::uniform(parameters.clone()).on(track);
        self.cache.seen_by(Claim::Origin, type_url, &view)
    }

    /// Applies a change to a store, and to those of its track that show a part of it.
    fn apply_on(&mut self, of: &TypeCache, parameters: &Parameters, change: Change, now: Instant) {
        let track = of.parameter_view.track();
        let mut mixed = self.cache.mixed(&of.type_url, parameters);
        mixed.retain(|of| of.parameter_view.track() == track && of.parameter_view.as_whole().is_none());
        if mixed.is_empty() {
            self.publish_with_endpoints(of, change, now);
            return;
        }
        self.publish_with_endpoints(of, change.clone(), now);
        let from = of.snapshot();
        for mixed in mixed {
            let part = Self::part(&mixed, parameters, &change, &from);
            self.publish_with_endpoints(&mixed, part, now);
        }
    }

    /// When to [`roll_out`](Self::roll_out) though nothing happened.
    pub fn next_rollout(&self) -> Option<Instant> {
        self.cache.rollout()?.next_decision()
    }

    /// Has guarded changes spread, or be taken back, as far as that is due.
    pub fn roll_out(&mut self, now: Instant) {
        let Some(rollout) = self.cache.rollout().cloned() else { return };
        let cache = Arc::clone(&self.cache);
        let find = |key: &StoreKey, track| {
            cache.find(&key.0, &ParameterView::uniform(key.1.clone()).on(track)).map(|of| of.snapshot())
        };
        let differs = |key: &StoreKey, name: &Name, content: &Snapshot| {
            let mut steps = Steps::default();
            find(key, Track::Stable).is_some_and(|stable| {
                steps.bring(name, &stable, content);
                !steps.is_empty()
            })
        };
        let asks = |key: &StoreKey, name: &Name, content: &Snapshot| {
            let stable = find(key, Track::Stable);
            let is_member = [Some(content), stable.as_deref()].into_iter().flatten();
            let is_member = is_member.filter_map(|of| of.get(name.as_str())).any(Entry::is_member);
            asked_by_canaries(&cache.mixed(&key.0, &key.1), &key.1, name, is_member)
        };
        let (mut stable, mut canary) = <(BTreeMap<StoreKey, Steps>, BTreeMap<StoreKey, Steps>)>::default();
        match rollout.decide(now, |key| find(key, Track::Origin), differs, asks) {
            Decision::Nothing => return,
            Decision::Spread(trial, given) => {
                for (key, content) in &trial.content {
                    let (Some(held), Some(origin)) = (find(key, Track::Stable), find(key, Track::Origin))
                    else {
                        continue;
                    };
                    let steps = stable.entry(key.clone()).or_default();
                    for name in trial.names(key) {
                        // It may have come into the wildcard set since, with what is released.
                        let is_given = given.iter().any(|(of, other)| (of, other) == (key, name));
                        steps.bring(name, &held, if is_given { &origin } else { content });
                    }
                    steps.keep_later_members(content, &origin);
                }
                for (key, name) in given {
                    if let (Some(held), Some(origin)) = (find(&key, Track::Canary), find(&key, Track::Origin))
                    {
                        canary.entry(key).or_default().bring(&name, &held, &origin);
                    }
                }
            }
            Decision::TakeBack(names) => {
                for (key, name) in names {
                    let tracks = find(&key, Track::Canary).zip(find(&key, Track::Stable));
                    if let Some((held, good)) = tracks {
                        canary.entry(key).or_default().bring(&name, &held, &good);
                    }
                }
            }
        }
        for (key, steps) in canary.iter_mut().chain(&mut stable) {
            if let Some(origin) = find(key, Track::Origin) {
                steps.lend_as(&origin);
            }
        }
        self.apply_steps(canary, Track::Canary, now);
        self.apply_steps(stable, Track::Stable, now);
    }

    /// Brings the stores of a track on: additions in the order in which types are sent, then removals in the reverse one, so that a
    /// reader in between sees no route without its cluster (R-ADS-03).
    fn apply_steps(&mut self, steps: BTreeMap<StoreKey, Steps>, track: Track, now: Instant) {
        let mut steps: Vec<(StoreKey, Steps)> = steps.into_iter().collect();
        steps.sort_by_key(|((type_url, _), _)| type_url.kind());
        let (mut additions, mut removals) = (Vec::new(), Vec::new());
        for (key, steps) in steps {
            additions.push((key.clone(), steps.additions));
            removals.push((key, steps.removals));
        }
        for ((type_url, parameters), ops) in additions.into_iter().chain(removals.into_iter().rev()) {
            if let Ok(of) = self.track(&type_url, &parameters, track) {
                self.apply_on(&of, &parameters, Change { ops, ..Change::default() }, now);
            }
        }
    }

    /// Brings a store of mixed parameters up to what the store of one set knows of what is newly wanted there.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the store of one of the sets is new and there may be no more of them.
    pub fn fill(&mut self, wanted: &Wanted, now: Instant) -> Result<(), StoreLimitError> {
        let Some(of) = &wanted.mixed else { return Ok(()) };
        if of.parameter_view.as_whole().is_some() {
            // The store of a track has all that the origin's has.
            return Ok(());
        }
        // A name that a client may not see does not exist for it, whether it does or not.
        let refused = wanted.refused.iter().map(|(name, _)| {
            let (view, name) = (View::Named, name.clone());
            if of.asks(name.as_str()) { Op::Remove { view, name } } else { Op::Forget { view, name } }
        });
        let mut change = Change { ops: refused.collect(), ..Change::default() };
        let whole = ParameterView::uniform(wanted.parameters.clone()).on(of.parameter_view.track());
        let from = match self.cache.seen(&wanted.type_url, &whole) {
            Ok(from) => from.snapshot(),
            Err(full) => {
                self.publish_with_endpoints(of, change, now);
                return Err(full);
            }
        };
        change.system_version = Some(Arc::clone(&from.system_version));
        change.control_plane = Some(Arc::clone(&from.control_plane));
        // Demand of other stores with these parameters does not concern this one.
        let has_wildcard = of.parameter_view.wildcard() == &wanted.parameters && of.serves_wildcard();
        let known = of.snapshot().completeness();
        if has_wildcard && known == Completeness::Unknown {
            change.ops.extend(of.members_of(&from));
        }
        // The contents have been kept up to date since they were first filled.
        change.wildcard_known = Some(from.completeness()).filter(|more| has_wildcard && *more > known);
        let names = wanted.interest.names.iter().map(|(name, _)| name).chain(&wanted.looked);
        for name in names.filter(|name| of.serves(name.as_str())) {
            let said = from.told_by_name(name).into_iter();
            change.ops.extend(said.filter_map(|op| op.through(of.parameter_view.scope())));
        }
        self.publish_with_endpoints(of, change, now);
        Ok(())
    }

    /// Part of a change, which has led to this snapshot, that concerns a store of mixed parameters.
    fn part(of: &TypeCache, parameters: &Parameters, change: &Change, from: &Snapshot) -> Change {
        let snapshot = of.snapshot();
        let asks_for = |name: &str| {
            of.serves(name) || Collection::covering(name).is_some_and(|covering| of.serves(&covering))
        };
        let has_wildcard =
            of.parameter_view.wildcard() == parameters && (of.serves_wildcard() || snapshot.holds_wildcard());
        let mut ops = Vec::new();
        for op in &change.ops {
            let name = op.name();
            let own = of.parameter_view.of(name.as_str()) == parameters;
            let entry = snapshot.get(name.as_str());
            // A client that let it go may ask again before it is forgotten here.
            let is_known = || entry.is_some_and(|entry| !matches!(entry.named(), Named::Unknown));
            match op.view() {
                View::Wildcard => {
                    if has_wildcard && !of.parameter_view.is_beside_wildcard(name.as_str()) {
                        ops.push(op.clone());
                    }
                    // A client that asks for it by name sees the member.
                    if own && (of.serves(name.as_str()) || is_known()) {
                        ops.extend(from.said_by_name(op));
                    }
                }
                View::Named => {
                    if own && (asks_for(name.as_str()) || is_known()) {
                        ops.extend(from.said_by_name(op));
                    }
                }
            }
        }
        // A client that comes while the set is known gets all of it, not only what is said next.
        if has_wildcard && from.wildcard_known() && !snapshot.wildcard_known() {
            ops.extend(of.members_of(from));
        }
        let scope = of.parameter_view.scope();
        Change {
            ops: ops.into_iter().filter_map(|op| op.through(scope)).collect(),
            wildcard_known: change.wildcard_known.filter(|_| has_wildcard),
            system_version: change.system_version.clone(),
            control_plane: change.control_plane.clone(),
        }
    }

    fn publish_with_endpoints(&mut self, of: &TypeCache, change: Change, now: Instant) {
        let endpoints = self.publish(of, change, now);
        if self.repush && of.type_url.kind() == Kind::Cluster && !endpoints.is_empty() {
            // A client that sees its endpoints through other parameters than its clusters is owed them by its own session.
            let endpoint = Kind::Endpoint.into();
            let is_guarded = self.cache.rollout_of(&endpoint).is_some();
            let track = if is_guarded { of.parameter_view.track() } else { Track::Origin };
            let view = of.parameter_view.clone().on(track);
            let found = self.cache.stores.read().find(&endpoint, &view).cloned();
            if let Some(of) = found {
                let ops = endpoints.into_iter().map(|name| Op::Repush { name }).collect();
                self.publish(&of, Change { ops, ..Change::default() }, now);
            }
        }
    }

    fn publish(&mut self, of: &TypeCache, change: Change, now: Instant) -> Vec<Name> {
        if change.is_nothing() {
            return Vec::new();
        }
        let tombstones = self.cache.tombstones.load(Ordering::Relaxed);
        let remembers = if self.remembers { tombstones } else { 0 };
        // Other stores show what the origin's do, sooner or later.
        let noted = self.cache.history.as_ref().zip(of.parameter_view.as_uniform());
        let mut forgotten = HashSet::default();
        for op in change.ops.iter().filter(|_| noted.is_some()) {
            // The last operation of a name counts.
            if let Op::Forget { name, .. } = op {
                forgotten.insert(name.clone());
            } else if !forgotten.is_empty() {
                forgotten.remove(op.name());
            }
        }
        let before = of.snapshot.load();
        let mut draft = Draft::new(&before, &of.type_url, &mut self.clock).remembering(remembers);
        draft.apply(change);
        draft.identify(&self.identifier);
        let touched = std::mem::take(&mut draft.touched);
        let endpoints = std::mem::take(&mut draft.endpoints);
        let turned = draft.wildcard_turned;
        let mut snapshot = draft.finish(tombstones, now);
        if let Some(interner) = &self.interner {
            snapshot.table.share(interner);
        }
        if of.type_url.kind() == Kind::Cluster && snapshot.wildcard_digest != before.wildcard_digest {
            of.earlier_states.note(before.wildcard_digest, before.generation());
        }
        let generation = snapshot.generation();
        let (cohorts, _old) = {
            let cohort_index = of.cohort_index.lock();
            cohort_index.note(&touched, generation);
            // The old one may be the last of its kind: it is dropped without the lock.
            let old = of.snapshot.swap(Arc::new(snapshot));
            (cohort_index.mark(&touched, turned, generation), old)
        };
        cohort_index::wake(&cohorts);
        if let Some((history, parameters)) = noted {
            let (cache, type_url) = (self.cache.number(), &of.type_url);
            let (touched, was_known, forgotten) = (&*touched, before.wildcard_known(), &forgotten);
            let changed = Changed { cache, type_url, parameters, touched, was_known, forgotten, generation };
            history.note(changed, now);
        }
        endpoints
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(history) = &self.cache.history {
            history.forget(self.cache.number());
        }
    }
}

/// Whether a canary asks for a name, in those of these stores that are of its track.
fn asked_by_canaries(
    stores: &[Arc<TypeCache>],
    parameters: &Parameters,
    name: &Name,
    is_member: bool,
) -> bool {
    let is_meant = |of: &&Arc<TypeCache>| {
        let view = &of.parameter_view;
        view.track() == Track::Canary && view.of(name.as_str()) == parameters
    };
    stores.iter().filter(is_meant).any(|of| of.cohort_index.lock().clients_of(name, is_member) > 0)
}
