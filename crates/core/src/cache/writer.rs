//! The only writer of a group's cache.
//!
//! Owns the order of a change: snapshot, cohorts, wake-ups; for guarded types also which store it goes to.
//! Knows nothing of streams; time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::change::{Change, Completeness, Op};
use super::change_history::{self, StoreChanges};
use super::entry::{Entry, Named};
use super::parameter_view::{ParameterView, Track};
use super::rollout::{Moment, Move, Reach, Steps, StoreKey, Stores, Tracks};
use super::segments::Interner;
use super::snapshot::{Draft, Snapshot, Touch};
use super::stores::{Claim, StoreLimitError};
use super::type_cache::TypeCache;
use super::view_leases::View;
use super::{Cache, Generation, Wanted, cohort_index};
use crate::RelayIdentity;
use crate::resource::{Collection, Kind, Name, Parameters, TypeUrl};

#[derive(Debug)]
pub struct Writer {
    cache: Arc<Cache>,
    clock: Generation,
    resend_endpoints: bool,
    /// `control_plane.identifier` of a type until a change sets another.
    identifier: Arc<str>,
    /// Shared resources, if there are other caches.
    interner: Option<Arc<Interner>>,
}

impl Writer {
    pub(super) fn new(cache: Arc<Cache>, interner: Option<Arc<Interner>>) -> Self {
        let (clock, identifier) = (Generation::ZERO, Arc::from(""));
        Self { cache, clock, resend_endpoints: true, identifier, interner }
    }

    /// Whether endpoints follow their changed clusters (R-ADS-05). On by default.
    pub const fn set_eds_repush(&mut self, on: bool) {
        self.resend_endpoints = on;
    }

    /// Names this relay to clients (R-Relay-19).
    pub fn set_identity(&mut self, identity: &RelayIdentity) {
        self.identifier = identity.own();
    }

    pub const fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Records that the origin answered for a type. Wakes nobody: waiting clients check every `cold_deadline`.
    pub fn record_answer(&self, type_url: &TypeUrl, now: Instant) {
        if let Some(of) = self.cache.stores.read().of(type_url).next() {
            of.answering.record(now);
        }
    }

    /// Excludes a time in which the relay did not run.
    pub fn exclude_pause(&self, pause: Duration, now: Instant) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.exclude_pause(pause, now));
    }

    /// On a new connection: the origin has answered for no type yet.
    pub fn reset_answers(&self) {
        self.cache.stores.read().answering().for_each(|(_, of)| of.reset());
    }

    /// Names of these types are requested again: earlier silence does not count.
    pub fn restart_silence(&self, is_one: impl Fn(&TypeUrl) -> bool, now: Instant) {
        let stores = self.cache.stores.read();
        stores.answering().filter(|(of, _)| is_one(of)).for_each(|(_, of)| of.restart(now));
    }

    /// Applies a change for clients without parameters, as a whole, and wakes those concerned.
    ///
    /// # Errors
    ///
    /// [`StoreLimitError`] if the type is new and the limit of types is reached; then nothing changes.
    pub fn apply(&mut self, type_url: &TypeUrl, change: Change, now: Instant) -> Result<(), StoreLimitError> {
        self.apply_with_parameters(type_url, &Parameters::NONE, change, now)
    }

    /// Like [`apply`](Self::apply), for clients with these parameters.
    ///
    /// # Errors
    ///
    /// As of [`apply`](Self::apply), and at the limit of sets of parameters.
    pub fn apply_with_parameters(
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
        let of = self.track(type_url, parameters, Track::Origin)?;
        let Some(rollout) = self.cache.rollout_of(type_url).cloned() else {
            self.apply_on(&of, parameters, change, now);
            return Ok(());
        };
        let stable = self.track(type_url, parameters, Track::Stable)?;
        let canaries = (0..rollout.steps()).map(|step| self.track(type_url, parameters, Track::Canary(step)));
        let canaries = canaries.collect::<Result<Vec<_>, _>>()?;
        let key = (type_url.clone(), parameters.clone());
        let stores = Stores {
            origin: of.snapshot(),
            canaries: canaries.iter().map(|of| of.snapshot()).collect(),
            stable: stable.snapshot(),
        };
        // No client sees this store: endpoints follow the clusters of the tracks.
        self.publish(&of, change.clone(), now);
        let mut split = rollout.split(&key, &change, &stores, &of.snapshot(), now);
        if rollout.is_open(&key) {
            // The tracks do not have all of this version.
            split.iter_mut().for_each(|change| change.system_version = None);
        }
        for (track, change) in canaries.iter().chain([&stable]).zip(split) {
            self.apply_on(track, parameters, change, now);
        }
        Ok(())
    }

    fn track(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        track: Track,
    ) -> Result<Arc<TypeCache>, StoreLimitError> {
        let view = ParameterView::uniform(parameters.clone()).on(track);
        self.cache.claim_store(Claim::Origin, type_url, &view)
    }

    /// Applies a change to a store, and to stores of its track that show a part of it.
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

    /// When to call [`roll_out`](Self::roll_out) next if nothing happens.
    pub fn next_rollout(&self) -> Option<Instant> {
        self.cache.rollout()?.next_decision()
    }

    /// Sends guarded changes to canaries, spreads them or takes them back, as far as due.
    pub fn roll_out(&mut self, now: Instant) {
        let Some(rollout) = self.cache.rollout().cloned() else { return };
        let cache = Arc::clone(&self.cache);
        let find = |key: &StoreKey, track| {
            cache.find(&key.0, &ParameterView::uniform(key.1.clone()).on(track)).map(|of| of.snapshot())
        };
        let stores = |key: &StoreKey| {
            let canaries = (0..rollout.steps()).map(|step| find(key, Track::Canary(step)));
            let (origin, canaries) = (find(key, Track::Origin)?, canaries.collect::<Option<_>>()?);
            Some(Stores { origin, canaries, stable: find(key, Track::Stable)? })
        };
        let asks = |key: &StoreKey, name: &Name, reach: Reach, tracks: Tracks| {
            is_asked_for(&cache.mixed(&key.0, &key.1), &key.1, name, reach, &tracks)
        };
        let mut by_track: BTreeMap<Track, BTreeMap<StoreKey, Steps>> = BTreeMap::new();
        let at = Moment { now, clock: self.clock, stores: &stores, asks: &asks };
        let all = || (0..rollout.steps()).map(Track::Canary).chain([Track::Stable]);
        for Move { tracks, key, names, to } in rollout.decide(&at) {
            let Some(origin) = find(&key, Track::Origin).filter(|_| !names.is_empty()) else { continue };
            let shown = if rollout.is_open(&key) { &to } else { &origin };
            for track in all().filter(|track| tracks.contains(track)) {
                let Some(held) = find(&key, track) else { continue };
                let steps = by_track.entry(track).or_default().entry(key.clone()).or_default();
                names.iter().for_each(|name| steps.add_difference(name, &held, &to));
                steps.system_version = Some(Arc::clone(shown.system_version()));
                if track == Track::Stable {
                    steps.keep_later_members(&to, &origin);
                }
                steps.copy_leases(&origin);
            }
        }
        by_track.into_iter().for_each(|(track, steps)| self.apply_steps(steps, track, now));
    }

    /// Moves the stores of a track on: additions in sending order of types, then removals in reverse. So no
    /// reader sees a route without its cluster (R-ADS-03).
    fn apply_steps(&mut self, steps: BTreeMap<StoreKey, Steps>, track: Track, now: Instant) {
        let mut steps: Vec<(StoreKey, Steps)> = steps.into_iter().collect();
        steps.sort_by_key(|((type_url, _), _)| type_url.kind());
        let (mut additions, mut removals) = (Vec::new(), Vec::new());
        for (key, steps) in steps {
            additions.push((key.clone(), steps.additions, steps.system_version));
            removals.push((key, steps.removals, None));
        }
        let changes = additions.into_iter().chain(removals.into_iter().rev());
        for ((type_url, parameters), ops, system_version) in changes {
            if let Ok(of) = self.track(&type_url, &parameters, track) {
                self.apply_on(&of, &parameters, Change { ops, system_version, ..Change::default() }, now);
            }
        }
    }

    /// Fills a store of mixed parameters with what the store of one set knows of newly wanted names.
    pub fn fill(&mut self, wanted: &Wanted, now: Instant) {
        let Some(of) = &wanted.mixed else { return };
        // Names that a client may not see do not exist for it.
        let refused = wanted.refused.iter().map(|name| {
            let (view, name) = (View::Named, name.clone());
            if of.asks(name.as_str()) { Op::Remove { view, name } } else { Op::Forget { view, name } }
        });
        let mut change = Change { ops: refused.collect(), ..Change::default() };
        let whole = ParameterView::uniform(wanted.parameters.clone()).on(of.parameter_view.track());
        // Clients of the store hold this one too.
        let Some(from) = self.cache.find(&wanted.type_url, &whole).map(|from| from.snapshot()) else {
            return self.publish_with_endpoints(of, change, now);
        };
        change.system_version = Some(Arc::clone(&from.system_version));
        change.control_plane = Some(Arc::clone(&from.control_plane));
        // Demand of other stores with these parameters does not count here.
        let has_wildcard = of.parameter_view.wildcard() == &wanted.parameters && of.serves_wildcard();
        let known = of.snapshot().completeness();
        if has_wildcard && known == Completeness::Unknown {
            change.ops.extend(of.members_of(&from));
        }
        // After the first filling, content is kept up to date.
        change.wildcard_known = Some(from.completeness()).filter(|more| has_wildcard && *more > known);
        let names = wanted.interest.names.iter().map(|(name, _)| name);
        for name in names.filter(|name| of.serves(name.as_str())) {
            let ops = from.ops_by_name(name).into_iter();
            change.ops.extend(ops.filter_map(|op| op.through(of.parameter_view.scope())));
        }
        self.publish_with_endpoints(of, change, now);
    }

    /// Part of an applied change for a store of mixed parameters; `from` is the snapshot after it.
    fn part(of: &TypeCache, parameters: &Parameters, change: &Change, from: &Snapshot) -> Change {
        let snapshot = of.snapshot();
        let has_wildcard =
            of.parameter_view.wildcard() == parameters && (of.serves_wildcard() || snapshot.holds_wildcard());
        let mut ops = Vec::new();
        for op in &change.ops {
            let name = op.name();
            let own = of.parameter_view.of(name.as_str()) == parameters;
            let entry = snapshot.get(name.as_str());
            // A client may ask again before an unsubscribed name is forgotten here.
            let is_known = || entry.is_some_and(|entry| !matches!(entry.named(), Named::Unknown));
            let is_member = op.view() == View::Wildcard;
            if is_member && has_wildcard && !of.parameter_view.is_beside_wildcard(name.as_str()) {
                ops.push(op.clone());
            }
            // Clients that ask by name see a member too.
            let is_listed =
                || Collection::covering(name.as_str()).is_some_and(|covering| of.serves(&covering));
            if own && (of.serves(name.as_str()) || (!is_member && is_listed()) || is_known()) {
                ops.extend(from.op_by_name(op));
            }
        }
        // Once the set is known, newcomers get all of it, not only this change.
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
        if self.resend_endpoints && of.type_url.kind() == Kind::Cluster && !endpoints.is_empty() {
            // A client with other parameters for endpoints than for clusters gets them from its own session.
            let endpoint = Kind::Endpoint.into();
            let is_guarded = self.cache.rollout_of(&endpoint).is_some();
            let track = if is_guarded { of.parameter_view.track() } else { Track::Origin };
            let view = of.parameter_view.clone().on(track);
            if let Some(of) = self.cache.find(&endpoint, &view) {
                let ops = endpoints.into_iter().map(|name| Op::ResendEndpoints { name }).collect();
                self.publish(&of, Change { ops, ..Change::default() }, now);
            }
        }
    }

    fn publish(&mut self, of: &TypeCache, change: Change, now: Instant) -> Vec<Name> {
        if change.is_nothing() {
            return Vec::new();
        }
        let tombstones = self.cache.limits.lock().tombstones;
        // Other stores show the same changes sooner or later.
        let track = of.parameter_view.track();
        let is_recorded = !matches!(track, Track::Canary(_));
        let recorded = self.cache.history.as_ref().zip(of.parameter_view.as_whole()).filter(|_| is_recorded);
        let forgotten = forgotten(&change);
        let before = of.snapshot.load();
        let mut draft = Draft::new(&before, &of.type_url, &mut self.clock);
        draft.apply(change);
        draft.identify(&self.identifier);
        let Draft { mut snapshot, touched, endpoints, completeness_changed, .. } =
            draft.finish(tombstones, now);
        if let Some(interner) = &self.interner {
            snapshot.table.share(interner);
        }
        if of.type_url.kind().full_state() && snapshot.wildcard_digest != before.wildcard_digest {
            of.earlier_states.record(before.wildcard_digest, before.generation());
        }
        let is_of_fleet = track == self.cache.fleet_track(&of.type_url);
        if is_of_fleet && of.parameter_view.as_whole().is_some() {
            let sizes = (before.held_in_all().resources, snapshot.held_in_all().resources);
            of.watch_removals(sizes, forgotten_resources(&touched, &forgotten), now);
        }
        let generation = snapshot.generation();
        let (cohorts, _old) = {
            let cohort_index = of.cohort_index.lock();
            cohort_index.record(&touched, generation);
            // The old snapshot may be the last of its kind: drop it without the lock.
            let old = of.snapshot.swap(Arc::new(snapshot));
            (cohort_index.mark(&touched, completeness_changed, generation), old)
        };
        cohort_index::wake(&cohorts);
        if let Some((history, parameters)) = recorded {
            let (cache, type_url, parameters) =
                (self.cache.number(), of.type_url.clone(), parameters.clone());
            let store = change_history::StoreKey { cache, type_url, track, parameters };
            let (touched, was_known, forgotten) = (&*touched, before.wildcard_known(), &forgotten);
            history.record(&StoreChanges { store, touched, was_known, forgotten, generation }, now);
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

/// Names that the relay unsubscribed. The last operation of a name counts.
fn forgotten(change: &Change) -> HashSet<Name> {
    let mut forgotten = HashSet::default();
    for op in &change.ops {
        if let Op::Forget { name, .. } = op {
            forgotten.insert(name.clone());
        } else if !forgotten.is_empty() {
            forgotten.remove(op.name());
        }
    }
    forgotten
}

/// Number of resources that went with these names.
fn forgotten_resources(touched: &[Touch], forgotten: &HashSet<Name>) -> usize {
    let is_held = |entry: &Option<Arc<Entry>>| entry.as_ref().is_some_and(|entry| entry.held().is_some());
    let went = touched.iter().filter(|touch| is_held(&touch.was) && !is_held(&touch.is));
    went.filter(|touch| forgotten.contains(&touch.name)).count()
}

/// Whether a client of these tracks asks for a name in one of these stores, and sees this difference.
fn is_asked_for(
    stores: &[Arc<TypeCache>],
    parameters: &Parameters,
    name: &Name,
    reach: Reach,
    tracks: &Tracks,
) -> bool {
    let is_meant = |of: &&Arc<TypeCache>| {
        let view = &of.parameter_view;
        tracks.contains(&view.track()) && view.of(name.as_str()) == parameters
    };
    stores
        .iter()
        .filter(is_meant)
        .any(|of| of.cohort_index.lock().slots_of(name, reach.by_name, reach.as_member).next().is_some())
}
