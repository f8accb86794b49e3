//! Rollout of changes: clients of a canary share are sent a change first, the others once no more of these than a threshold have
//! rejected it.
//!
//! Owns which names wait for a verdict, the verdicts of canaries on each, and when a change spreads or is held. Knows no clock: times
//! come in. Moves no resources: the [writer](super::Writer) does, when this says so. Sessions and operators share it with the writer.
//!
//! A type that is guarded has three stores: that of the origin, which no client sees, that of the canaries, which follows it but for
//! changes that an operator discarded, and the stable one, which follows in trials. A trial is of the whole state of all guarded types
//! at one moment: it spreads as a whole or not at all, because routes must not come without their clusters.
//!
//! Example, with a window of 30 s: a cluster changes at 0 s and its route at 0.4 s; canaries get each at once. At 1 s the state is cut:
//! both are in the trial. A route that changes at 10 s is for the next one. At 31 s, if no canary has rejected, the two spread, and
//! the next trial begins. If the route was rejected, all is held: the fleet keeps its last good state until the control plane changes
//! that route, or an operator releases or discards it. Canaries get back the last good version of the route. If no canary has answered
//! anything, though some were sent it, the trial begins anew, and so it does a few times for a change that was replaced before any canary
//! was sent it: silence is no consent, and a canary that died of a change is silent.
//!
//! Invariants:
//! - What the stable track shows of a type was, at some moment, what the canaries were sent of it, but for discarded changes, and for
//!   names and sets that were not known before.
//! - A verdict counts for the content that it is about: one that came after the name changed again does not.
//! - What is kept is bounded by the names that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

pub(super) mod gate;
mod report;
mod status;
mod trial;
mod verdicts;

use super::Generation;
use super::change::{Change, Op};
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use super::type_store::TypeCache;
use super::view::View;
use crate::resource::{Name, TypeUrl};
pub(super) use gate::Steps;
pub use status::{HeldChange, Phase, RolloutStatus};
pub(super) use trial::{StoreKey, Trial};
use trial::{Waiting, has};
use verdicts::{Answer, Evidence, Rejection};

/// Time in which changes that belong together are gathered before they are tried.
const GATHER: Duration = Duration::from_secs(1);
/// Time between two looks at a rollout that is held: an order of an operator takes effect within it.
const LOOK: Duration = Duration::from_secs(1);
/// Trials in a row that begin anew because a change was replaced before a canary answered: one that changes all the time, of which a
/// single client hangs, must not hold up the others for ever.
const OVERTAKEN: usize = 3;

/// Guard of rollouts.
#[derive(Clone, Debug)]
pub struct RolloutSettings {
    /// Types whose changes are tried.
    pub types: BTreeSet<TypeUrl>,
    /// Share of clients that are canaries, from 0 to 1. There is always one.
    pub share: f64,
    /// Time for which a change is tried.
    pub window: Duration,
    /// Share of the canaries that may reject a change and it spreads all the same, from 0 to 1.
    pub threshold: f64,
    /// Whether the control plane is told of changes that are held.
    pub reports: bool,
    /// Counts over all node groups.
    pub counts: Arc<RolloutCounts>,
}

/// Decision of an operator on what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It spreads.
    Release,
    /// It never spreads, and does not hold up what else changes.
    Discard,
}

#[derive(Debug, Default)]
struct State {
    canaries: usize,
    /// Client that is a canary though its place is beyond the share, by the hash of its node ID, and how many streams it has.
    stand_in: Option<(u64, usize)>,
    /// Changes since the last cut.
    fresh: Waiting,
    /// When they are cut.
    cut_at: Option<Instant>,
    trial: Option<Trial>,
    /// When a trial that an operator may decide on is looked at.
    look_at: Option<Instant>,
    /// Changes that canaries are not sent, because they are held or an operator discarded them, by the digest of their content; of a
    /// removal nothing.
    withheld: BTreeMap<(StoreKey, Name), Option<u128>>,
    order: Option<Order>,
    /// Trials in a row that no canary has answered.
    unanswered: usize,
}

/// Counts of rollouts since the start.
#[derive(Debug, Default)]
pub struct RolloutCounts {
    /// Trials that spread by themselves.
    pub spread: AtomicU64,
    /// Trials that were held.
    pub held: AtomicU64,
    /// Trials that were released by an operator.
    pub released: AtomicU64,
    /// Trials of which changes were discarded by an operator.
    pub discarded: AtomicU64,
    /// Trials that no canary answered, and that began anew.
    pub unanswered: AtomicU64,
}

/// Task of the writer.
#[derive(Debug)]
pub(super) enum Decision {
    Nothing,
    /// Bring the stable track to this, and these names, which were held, on the canary track too.
    Spread(Trial, Vec<(StoreKey, Name)>),
    /// Bring these names of the canaries back to the content of the stable track.
    TakeBack(Vec<(StoreKey, Name)>),
}

/// A change as each track is to have it.
pub(super) struct Split {
    pub(super) canary: Change,
    pub(super) stable: Change,
}

/// The guarded rollouts of one node group.
#[derive(Debug)]
pub struct Rollout {
    settings: RolloutSettings,
    state: Mutex<State>,
}

impl Rollout {
    /// Creates the guard of a group, in which nothing has changed yet.
    pub fn new(settings: RolloutSettings) -> Self {
        Self { settings, state: Mutex::default() }
    }

    /// Whether changes of a type are tried.
    pub fn guards(&self, type_url: &TypeUrl) -> bool {
        self.settings.types.contains(type_url)
    }

    /// Counts over all node groups.
    pub const fn counts(&self) -> &Arc<RolloutCounts> {
        &self.settings.counts
    }

    /// Seat of a client among the canaries, if it is one: by its node ID, so that it is again when it comes back, and the first client
    /// of a group too small for the share.
    pub fn seat(self: &Arc<Self>, node_id: &str) -> Option<CanarySeat> {
        let node = xxh3_64(node_id.as_bytes());
        let mut state = self.state.lock();
        if node as f64 / u64::MAX as f64 >= self.settings.share {
            let is_first = state.canaries == 0;
            match &mut state.stand_in {
                Some((of, streams)) if *of == node => *streams += 1,
                none @ None if is_first => *none = Some((node, 1)),
                _ => return None,
            }
        }
        state.canaries += 1;
        drop(state);
        Some(CanarySeat { rollout: Arc::clone(self), node })
    }

    /// Counts the answer of a canary to a response that led from one generation of a store to another: `rejection` is the text of a
    /// NACK. If that names some of the changes in the response, the others are not blamed; if it names others that were rejected
    /// before, which a full state repeats, none is.
    pub fn vote(
        &self,
        of: &TypeCache,
        subscription: &Subscription,
        (from, to): (Generation, Generation),
        seat: &CanarySeat,
        rejection: Option<&str>,
    ) {
        let (type_url, view, snapshot) = (of.type_url(), of.parameter_view(), of.snapshot());
        let rejection = rejection.map(|text| (text, Rejection::new(text)));
        let mut state = self.state.lock();
        let repeats = rejection.as_ref().is_some_and(|(_, names)| state.names_rejected_one(type_url, names));
        let is_told = |(of, parameters): &StoreKey, name: &Name, before: Generation| {
            let is_within = of == type_url && from <= before && before < to;
            let look = || subscription.look(snapshot.get(name.as_str())?, false);
            is_within
                && view.of(name.as_str()) == parameters
                && look().is_some_and(|look| look.changed > from)
        };
        let State { fresh, trial, .. } = &mut *state;
        let mut told = Vec::new();
        for (key, names) in trial.iter_mut().flat_map(|trial| &mut trial.names) {
            let newer = fresh.get(key);
            // Of a name that changed twice the response holds the newer content.
            let is_past =
                |name: &Name| newer.and_then(|names| names.get(name)).is_some_and(|newer| newer.first < to);
            let names = names.iter_mut().filter(|(name, _)| !is_past(name));
            told.extend(names.filter(|(name, evidence)| is_told(key, name, evidence.before)));
        }
        for (key, names) in fresh {
            told.extend(names.iter_mut().filter(|(name, evidence)| is_told(key, name, evidence.before)));
        }
        let Some((text, rejection)) = rejection else {
            return Evidence::count(
                told.into_iter().map(|(_, evidence)| evidence),
                seat.node,
                Answer::Accepts,
            );
        };
        let is_named = |(name, _): &(&Name, &mut Evidence)| rejection.mentions(name.as_str());
        let names_some = repeats || told.iter().any(is_named);
        let (blamed, others): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|change| !names_some || is_named(change));
        let text = type_url.rejection_text(text);
        for (changes, answer) in [(blamed, Answer::Rejects(&text)), (others, Answer::RejectsOthers)] {
            Evidence::count(changes.into_iter().map(|(_, evidence)| evidence), seat.node, answer);
        }
    }

    /// Splits a change of the origin by tracks: what its store and that of the stable track held before, whether canaries ask for
    /// a name, which may be a member of the wildcard set, and `clock`, the generation before it.
    pub(super) fn split(
        &self,
        key: &StoreKey,
        change: &Change,
        (origin, stable): (&Snapshot, &Snapshot),
        is_asked: impl Fn(&Name, bool) -> bool,
        clock: Generation,
        now: Instant,
    ) -> Split {
        let mut state = self.state.lock();
        let state = &mut *state;
        let (mut canary, mut settled) = (Vec::new(), Vec::new());
        let verdicts = Arc::default();
        for op in &change.ops {
            let name = op.name();
            let place = (key.clone(), name.clone());
            // The last good content is kept for as long as the origin keeps the newest.
            let kept = || gate::last_good(op, stable).or_else(|| gate::renewal(op, stable));
            if let Some(withheld) = state.withheld.get(&place) {
                let is_same = match op {
                    Op::Set { resource, .. } => *withheld == Some(resource.digest()),
                    Op::Remove { .. } | Op::Withdraw { .. } => withheld.is_none(),
                    _ => false,
                };
                if is_same {
                    canary.extend(kept());
                    settled.extend(kept());
                    continue;
                }
                if gate::waits_with_name(op) || matches!(op, Op::Forget { .. }) {
                    state.withheld.remove(&place);
                }
            }
            canary.push(op.clone());
            if gate::is_fact(op, origin) && gate::is_fact(op, stable) {
                settled.push(op.clone());
                continue;
            }
            let in_trial = state.trial.as_ref().is_some_and(|trial| has(&trial.names, key, name));
            let is_waiting = in_trial || has(&state.fresh, key, name);
            if is_waiting && gate::repeats(op, origin) {
                // Canaries that answered it are not sent it again, so that what they said counts.
                settled.extend(kept());
                continue;
            }
            let is_meant = is_waiting && gate::waits_with_name(op);
            let waits = gate::is_change(op, stable) || (is_meant && !gate::is_first_answer(op, stable));
            if waits {
                settled.extend(kept());
            } else {
                settled.push(op.clone());
                if !(is_meant || is_waiting && matches!(op, Op::Forget { .. })) {
                    continue;
                }
                // Nothing of it may come back from the trial: at the next cut it is compared with the content of that moment.
                if let Some(names) = state.trial.as_mut().and_then(|trial| trial.names.get_mut(key)) {
                    names.remove(name);
                }
            }
            let is_member = op.view() == View::Wildcard
                || stable.get(name.as_str()).is_some_and(|entry| entry.is_member());
            let is_asked = is_asked(name, is_member);
            let tried = state.trial.as_ref().and_then(|trial| trial.names.get(key)?.get(name)).cloned();
            let names = state.fresh.entry(key.clone()).or_default();
            if gate::is_known_by_name(op, origin)
                && let Some(older) = names.get(name).cloned().or(tried)
            {
                // Canaries are not sent it again, so that what they said counts.
                names.insert(name.clone(), older);
                continue;
            }
            let first = names.get(name).map_or(clock, |older| older.first);
            let evidence = Evidence { first, before: clock, is_asked, verdicts: Arc::clone(&verdicts) };
            names.insert(name.clone(), evidence);
        }
        if state.cut_at.is_none() && !state.fresh.is_empty() {
            state.cut_at = Some(now + GATHER);
        }
        let part = |ops| Change { ops, ..change.clone() };
        Split { canary: part(canary), stable: part(settled) }
    }

    /// When to [`decide`](Self::decide) though nothing happened.
    pub(super) fn next_decision(&self) -> Option<Instant> {
        let state = self.state.lock();
        match &state.trial {
            None => state.cut_at,
            Some(trial) if trial.held.is_empty() => state.look_at.into_iter().chain([trial.ends]).min(),
            Some(_) => state.look_at,
        }
    }

    /// Decides what is due. `content` is the state of the origin's store, `differs` whether a name there is another than on the stable
    /// track, `asks` whether canaries ask for a name in such a state.
    pub(super) fn decide(
        &self,
        now: Instant,
        content: impl Fn(&StoreKey) -> Option<Arc<Snapshot>>,
        differs: impl Fn(&StoreKey, &Name, &Snapshot) -> bool,
        asks: impl Fn(&StoreKey, &Name, &Snapshot) -> bool,
    ) -> Decision {
        let mut state = self.state.lock();
        let Some(mut trial) = state.trial.take() else {
            if state.cut_at.is_some_and(|at| at <= now) {
                self.cut(&mut state, now, content, differs);
            }
            return Decision::Nothing;
        };
        let order = state.order.take();
        if trial.held.is_empty() && order == Some(Order::Release) {
            self.settings.counts.released.fetch_add(1, Ordering::Relaxed);
            state.gather_again(now);
            return Decision::Spread(trial, Vec::new());
        }
        if trial.held.is_empty() {
            if now < trial.ends {
                state.look_at = state.look_at.map(|_| now + LOOK);
                state.trial = Some(trial);
                return Decision::Nothing;
            }
            trial.held = self.rejected(&trial);
            let repeats = trial.is_unanswered(state.canaries > 0, &asks)
                || (state.unanswered < OVERTAKEN && trial.is_overtaken(&state.fresh, &asks));
            if trial.held.is_empty() && repeats {
                self.settings.counts.unanswered.fetch_add(1, Ordering::Relaxed);
                state.unanswered += 1;
                trial.complain_of_silence(state.canaries);
                state.put_back(trial, now);
                return Decision::Nothing;
            }
            if trial.held.is_empty() {
                self.settings.counts.spread.fetch_add(1, Ordering::Relaxed);
                state.gather_again(now);
                return Decision::Spread(trial, Vec::new());
            }
            self.settings.counts.held.fetch_add(1, Ordering::Relaxed);
            state.unanswered = 0;
            trial.complain();
            let taken_back = state.withhold(&trial);
            state.look_at = Some(now + LOOK);
            state.trial = Some(trial);
            return Decision::TakeBack(taken_back);
        }
        match order {
            Some(Order::Release) => {
                self.settings.counts.released.fetch_add(1, Ordering::Relaxed);
                state.gather_again(now);
                let is_withheld = |place: &&(StoreKey, Name)| state.withheld.remove(place).is_some();
                let given = trial.held.iter().filter(is_withheld).cloned().collect();
                return Decision::Spread(trial, given);
            }
            Some(Order::Discard) => {
                self.settings.counts.discarded.fetch_add(1, Ordering::Relaxed);
                for (key, name) in std::mem::take(&mut trial.held) {
                    if let Some(names) = trial.names.get_mut(&key) {
                        names.remove(&name);
                    }
                }
                state.put_back(trial, now);
                return Decision::Nothing;
            }
            None => {}
        }
        // Each of them has changed since, so that canaries are asked anew.
        if trial.held.iter().all(|(key, name)| has(&state.fresh, key, name)) {
            state.put_back(trial, now);
            return Decision::Nothing;
        }
        state.look_at = Some(now + LOOK);
        state.trial = Some(trial);
        Decision::Nothing
    }

    fn rejected(&self, trial: &Trial) -> BTreeSet<(StoreKey, Name)> {
        let all = trial.names.iter().flat_map(|(key, names)| names.iter().map(move |pair| (key, pair)));
        let rejected = all.filter(|(_, (_, evidence))| evidence.verdicts.exceed(self.settings.threshold));
        rejected.map(|(key, (name, _))| (key.clone(), name.clone())).collect()
    }

    /// Begins the trial of what has changed.
    fn cut(
        &self,
        state: &mut State,
        now: Instant,
        content: impl Fn(&StoreKey) -> Option<Arc<Snapshot>>,
        differs: impl Fn(&StoreKey, &Name, &Snapshot) -> bool,
    ) {
        state.cut_at = None;
        let mut trial = Trial {
            names: Waiting::new(),
            content: BTreeMap::new(),
            ends: now + self.settings.window,
            held: BTreeSet::new(),
        };
        for (key, mut names) in std::mem::take(&mut state.fresh) {
            let Some(content) = content(&key) else { continue };
            names.retain(|name, _| differs(&key, name, &content));
            if !names.is_empty() {
                trial.content.insert(key.clone(), content);
                trial.names.insert(key, names);
            }
        }
        if trial.names.is_empty() {
            (state.unanswered, state.order) = (0, None);
            return;
        }
        state.look_at = (state.unanswered > 0).then_some(now + LOOK);
        state.trial = Some(trial);
    }

    /// Notes the decision of an operator. It takes effect within a second. Returns whether anything is held, or waits for an answer of
    /// canaries and may be released.
    pub fn order(&self, order: Order) -> bool {
        let mut state = self.state.lock();
        let is_held = state.trial.as_ref().is_some_and(|trial| !trial.held.is_empty());
        let is_due = is_held || (state.unanswered > 0 && order == Order::Release);
        if is_due {
            state.order = Some(order);
        }
        is_due
    }

    /// State for operators.
    pub fn status(&self, now: Instant) -> RolloutStatus {
        let state = self.state.lock();
        let phase = match &state.trial {
            None if state.fresh.is_empty() => Phase::Idle,
            None => Phase::Gathering,
            Some(trial) if trial.held.is_empty() => {
                Phase::Trying { left: trial.ends.saturating_duration_since(now) }
            }
            Some(_) => Phase::Held,
        };
        let is_held =
            |place: &&(StoreKey, Name)| state.trial.as_ref().is_some_and(|trial| trial.held.contains(place));
        let discarded = state.withheld.keys().filter(|place| !is_held(place));
        let count = |waiting: &Waiting| waiting.values().map(BTreeMap::len).sum();
        let held = state.trial.iter().flat_map(|trial| {
            trial.held.iter().filter_map(|(key, name)| {
                let evidence = trial.names.get(key)?.get(name)?;
                let content = trial.content.get(key)?;
                Some(HeldChange {
                    type_url: key.0.clone(),
                    parameters: key.1.clone(),
                    name: name.clone(),
                    version: version(content, name),
                    accepted: evidence.verdicts.accepted(),
                    rejected: evidence.verdicts.rejected(),
                    texts: evidence.verdicts.texts().to_vec(),
                })
            })
        });
        RolloutStatus {
            phase,
            canaries: state.canaries,
            tried: state.trial.as_ref().map_or(0, |trial| count(&trial.names)),
            waiting: count(&state.fresh),
            unanswered: state.unanswered,
            discarded: discarded.map(|((of, _), name)| (of.clone(), name.clone())).collect(),
            held: held.collect(),
        }
    }
}

impl State {
    /// Whether a text names a change that was rejected before.
    fn names_rejected_one(&self, type_url: &TypeUrl, rejection: &Rejection<'_>) -> bool {
        let waiting = std::iter::once(&self.fresh).chain(self.trial.as_ref().map(|trial| &trial.names));
        let of_type = waiting.flatten().filter(|((of, _), _)| of == type_url);
        let rejected = of_type.flat_map(|(_, names)| {
            names.iter().filter(|(_, evidence)| evidence.verdicts.rejected() > 0).map(|(name, _)| name)
        });
        let withheld = self.withheld.keys().filter(|((of, _), _)| of == type_url).map(|(_, name)| name);
        rejected.chain(withheld).any(|name| rejection.mentions(name.as_str()))
    }

    /// After a trial that is over: what came since is old enough to be cut.
    fn gather_again(&mut self, now: Instant) {
        self.look_at = None;
        self.unanswered = 0;
        self.cut_at = (!self.fresh.is_empty()).then_some(now);
    }

    /// Has the names of a trial wait for the next one, but for those that changed since.
    fn put_back(&mut self, trial: Trial, now: Instant) {
        for (key, names) in trial.names {
            let fresh = self.fresh.entry(key).or_default();
            for (name, evidence) in names {
                fresh.entry(name).or_insert(evidence);
            }
        }
        self.look_at = None;
        self.cut_at = Some(now + GATHER);
    }

    /// Notes the changes of a trial that are held, and that canaries are not to be sent any more. Returns their names, but for those
    /// that changed since: that is another change, which is tried.
    fn withhold(&mut self, trial: &Trial) -> Vec<(StoreKey, Name)> {
        let is_current = |(key, name): &&(StoreKey, Name)| !has(&self.fresh, key, name);
        let held: Vec<_> = trial.held.iter().filter(is_current).cloned().collect();
        for place in &held {
            let content = trial.content.get(&place.0).and_then(|content| content.get(place.1.as_str()));
            let digest =
                content.and_then(|entry| entry.by_name().present()).map(|resource| resource.digest());
            self.withheld.insert(place.clone(), digest);
        }
        held
    }
}

fn version(content: &Snapshot, name: &Name) -> Option<Box<str>> {
    content.get(name.as_str())?.by_name().present().map(|resource| resource.version().into())
}

/// Place of a client among the canaries, given back on drop.
#[derive(Debug)]
pub struct CanarySeat {
    rollout: Arc<Rollout>,
    /// Hash of the node ID.
    node: u64,
}

impl Drop for CanarySeat {
    fn drop(&mut self) {
        let mut state = self.rollout.state.lock();
        state.canaries -= 1;
        if let Some((of, streams)) = &mut state.stand_in
            && *of == self.node
        {
            *streams -= 1;
            if *streams == 0 {
                state.stand_in = None;
            }
        }
    }
}
