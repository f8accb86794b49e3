//! Rollout of changes: canary clients are sent a change first, the others once few enough canaries rejected it.
//!
//! Owns the waiting names, the verdicts of canaries, and when a change spreads or is held. Knows no clock:
//! times are arguments. The [writer](super::Writer) moves resources. Sessions and operators share it.
//!
//! A guarded type has three stores: the origin's, which no client sees; the canaries', which follows it without
//! discarded changes; and the stable one, which follows in trials. A trial holds the state of all guarded types
//! at one moment. It spreads as a whole or not at all, because routes must not come without their clusters.
//!
//! Example, with a window of 30 s: a cluster changes at 0 s and its route at 0.4 s; canaries get each at once.
//! At 1 s the state is cut: both are in the trial. A route that changes at 10 s is for the next one. At 31 s,
//! if no canary rejected, the two spread, and the next trial begins. If the route was rejected, all is held:
//! the fleet keeps its last good state until the control plane changes that route, or an operator releases or
//! discards it. Canaries get back the last good version of the route. If no canary answered, though some were
//! sent the change, the trial begins again: silence is no consent, and a canary that died of a change is
//! silent. So it does, a few times, for a change replaced before any canary was sent it.
//!
//! Invariants:
//! - The stable track shows a state that canaries were sent at some moment, except for discarded changes, and
//!   for names and sets unknown before.
//! - A verdict counts only for its content, not for a later change of the name.
//! - Memory is bounded by the names that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

mod rollout_status;
pub(super) mod track_ops;
mod trial;
mod verdicts;

use super::Generation;
use super::change::{Change, Op};
use super::snapshot::Snapshot;
use super::subscription::Subscription;
use super::type_cache::TypeCache;
use super::view::View;
use crate::resource::{Name, TypeUrl};
pub use rollout_status::{HeldChange, Phase, RolloutStatus};
pub(super) use track_ops::Steps;
pub(super) use trial::{StoreKey, Trial};
use trial::{Waiting, has};
use verdicts::{Answer, Evidence, Rejection};

/// Time to gather changes that belong together before a trial.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Time between checks of a held rollout: an operator's order takes effect within it.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Most trials in a row that begin again because a change was replaced before an answer. A name that changes
/// all the time must not hold up the others.
const MAX_OVERTAKEN: usize = 3;

#[derive(Clone, Debug)]
pub struct RolloutSettings {
    pub types: BTreeSet<TypeUrl>,
    /// Share of clients that are canaries, from 0 to 1; at least one client.
    pub share: f64,
    /// Duration of a trial.
    pub window: Duration,
    /// Largest share of rejecting canaries at which a change still spreads, from 0 to 1.
    pub threshold: f64,
    /// Whether held changes are reported to the control plane.
    pub reports: bool,
    pub counts: Arc<RolloutCounts>,
}

/// Operator's decision on held changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Release,
    /// It never spreads, and does not hold up other changes.
    Discard,
}

#[derive(Debug, Default)]
struct RolloutState {
    canaries: usize,
    /// Canary outside the share, by the hash of its node ID, and its number of streams.
    stand_in: Option<(u64, usize)>,
    /// Changes since the last cut.
    fresh: Waiting,
    /// When the next trial begins.
    cut_at: Option<Instant>,
    trial: Option<Trial>,
    /// Next check of a trial that an operator may decide on.
    check_at: Option<Instant>,
    /// Held or discarded changes, which canaries are not sent, by content digest; `None` for a removal.
    withheld: BTreeMap<(StoreKey, Name), Option<u128>>,
    order: Option<Order>,
    /// Trials in a row without an answer.
    unanswered: usize,
}

#[derive(Debug, Default)]
pub struct RolloutCounts {
    /// Trials that spread by themselves.
    pub spread: AtomicU64,
    pub held: AtomicU64,
    /// Trials that an operator released.
    pub released: AtomicU64,
    /// Trials with changes that an operator discarded.
    pub discarded: AtomicU64,
    /// Trials that no canary answered, so that they began again.
    pub unanswered: AtomicU64,
}

/// Task of the writer.
#[derive(Debug)]
pub(super) enum Decision {
    Nothing,
    /// Bring the stable track to this state, and these held names to the canary track too.
    Spread(Trial, Vec<(StoreKey, Name)>),
    /// Bring these names back to the stable content for canaries.
    TakeBack(Vec<(StoreKey, Name)>),
}

pub(super) struct Split {
    pub(super) canary: Change,
    pub(super) stable: Change,
}

#[derive(Debug)]
pub struct Rollout {
    settings: RolloutSettings,
    state: Mutex<RolloutState>,
}

impl Rollout {
    pub fn new(settings: RolloutSettings) -> Self {
        Self { settings, state: Mutex::default() }
    }

    /// Whether changes of a type are guarded.
    pub fn guards(&self, type_url: &TypeUrl) -> bool {
        self.settings.types.contains(type_url)
    }

    pub const fn counts(&self) -> &Arc<RolloutCounts> {
        &self.settings.counts
    }

    /// Canary seat of a client, if it is a canary: by its node ID, so also after a reconnect. In a group too
    /// small for the share, the first client is one.
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

    /// Counts a canary's answer to a response between two generations; `rejection` is the text of a NACK.
    /// Changes of the response that it names are blamed, or all if it names none. If it names earlier rejected
    /// ones, which a full state repeats, no others are.
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
        let is_in_response = |(of, parameters): &StoreKey, name: &Name, before: Generation| {
            let is_within = of == type_url && from <= before && before < to;
            let visible = || subscription.visible_entry(snapshot.get(name.as_str())?, false);
            is_within
                && view.of(name.as_str()) == parameters
                && visible().is_some_and(|visible| visible.changed > from)
        };
        let RolloutState { fresh, trial, .. } = &mut *state;
        let mut sent = Vec::new();
        for (key, names) in trial.iter_mut().flat_map(|trial| &mut trial.names) {
            let newer = fresh.get(key);
            // The response holds the newer content of a name that changed twice.
            let is_past =
                |name: &Name| newer.and_then(|names| names.get(name)).is_some_and(|newer| newer.first < to);
            let names = names.iter_mut().filter(|(name, _)| !is_past(name));
            sent.extend(names.filter(|(name, evidence)| is_in_response(key, name, evidence.before)));
        }
        for (key, names) in fresh {
            sent.extend(
                names.iter_mut().filter(|(name, evidence)| is_in_response(key, name, evidence.before)),
            );
        }
        let Some((text, rejection)) = rejection else {
            return Evidence::count(
                sent.into_iter().map(|(_, evidence)| evidence),
                seat.node,
                Answer::Accepts,
            );
        };
        let is_named = |(name, _): &(&Name, &mut Evidence)| rejection.mentions(name.as_str());
        let names_some = repeats || sent.iter().any(is_named);
        let (blamed, others): (Vec<_>, Vec<_>) =
            sent.into_iter().partition(|change| !names_some || is_named(change));
        let text = type_url.rejection_text(text);
        for (changes, answer) in [(blamed, Answer::Rejects(&text)), (others, Answer::RejectsOthers)] {
            Evidence::count(changes.into_iter().map(|(_, evidence)| evidence), seat.node, answer);
        }
    }

    /// Splits a change of the origin by tracks. Arguments: the origin's and stable store before it, whether
    /// canaries ask for a name (perhaps a member), and the generation before it.
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
            // Held content lives as long as the origin keeps the newest.
            let kept = || track_ops::last_good(op, stable).or_else(|| track_ops::renewal(op, stable));
            if let Some(withheld) = state.withheld.get(&place) {
                let is_same = match op {
                    Op::Set { resource, .. } => *withheld == Some(resource.digest()),
                    Op::Remove { .. } | Op::LeaveCollection { .. } => withheld.is_none(),
                    _ => false,
                };
                if is_same {
                    canary.extend(kept());
                    settled.extend(kept());
                    continue;
                }
                if track_ops::waits_with_name(op) || matches!(op, Op::Forget { .. }) {
                    state.withheld.remove(&place);
                }
            }
            canary.push(op.clone());
            if track_ops::is_fact(op, origin) && track_ops::is_fact(op, stable) {
                settled.push(op.clone());
                continue;
            }
            let in_trial = state.trial.as_ref().is_some_and(|trial| has(&trial.names, key, name));
            let is_waiting = in_trial || has(&state.fresh, key, name);
            if is_waiting && track_ops::repeats(op, origin) {
                // Canaries that answered are not sent it again, so their answers stay valid.
                settled.extend(kept());
                continue;
            }
            let is_meant = is_waiting && track_ops::waits_with_name(op);
            let waits =
                track_ops::is_change(op, stable) || (is_meant && !track_ops::is_first_answer(op, stable));
            if waits {
                settled.extend(kept());
            } else {
                settled.push(op.clone());
                if !(is_meant || is_waiting && matches!(op, Op::Forget { .. })) {
                    continue;
                }
                // The trial must not bring it back: the next cut compares it with the content of that time.
                if let Some(names) = state.trial.as_mut().and_then(|trial| trial.names.get_mut(key)) {
                    names.remove(name);
                }
            }
            let is_member = op.view() == View::Wildcard
                || stable.get(name.as_str()).is_some_and(|entry| entry.is_member());
            let is_asked = is_asked(name, is_member);
            let tried = state.trial.as_ref().and_then(|trial| trial.names.get(key)?.get(name)).cloned();
            let names = state.fresh.entry(key.clone()).or_default();
            if track_ops::is_known_by_name(op, origin)
                && let Some(older) = names.get(name).cloned().or(tried)
            {
                // Canaries are not sent it again, so their answers stay valid.
                names.insert(name.clone(), older);
                continue;
            }
            let first = names.get(name).map_or(clock, |older| older.first);
            let evidence = Evidence { first, before: clock, is_asked, verdicts: Arc::clone(&verdicts) };
            names.insert(name.clone(), evidence);
        }
        if state.cut_at.is_none() && !state.fresh.is_empty() {
            state.cut_at = Some(now + GATHER_TIME);
        }
        let part = |ops| Change { ops, ..change.clone() };
        Split { canary: part(canary), stable: part(settled) }
    }

    /// When to [`decide`](Self::decide) next if nothing happens.
    pub(super) fn next_decision(&self) -> Option<Instant> {
        let state = self.state.lock();
        match &state.trial {
            None => state.cut_at,
            Some(trial) if trial.held.is_empty() => state.check_at.into_iter().chain([trial.ends]).min(),
            Some(_) => state.check_at,
        }
    }

    /// Decides what is due. `content`: the origin's store; `differs`: from the stable track; `asks`: canaries
    /// ask for the name in that state.
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
                state.check_at = state.check_at.map(|_| now + CHECK_INTERVAL);
                state.trial = Some(trial);
                return Decision::Nothing;
            }
            trial.held = self.rejected(&trial);
            let repeats = trial.is_unanswered(state.canaries > 0, &asks)
                || (state.unanswered < MAX_OVERTAKEN && trial.is_overtaken(&state.fresh, &asks));
            if trial.held.is_empty() && repeats {
                self.settings.counts.unanswered.fetch_add(1, Ordering::Relaxed);
                state.unanswered += 1;
                trial.log_unanswered(state.canaries);
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
            trial.log_held();
            let taken_back = state.withhold(&trial);
            state.check_at = Some(now + CHECK_INTERVAL);
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
        // All of them changed again: canaries are asked anew.
        if trial.held.iter().all(|(key, name)| has(&state.fresh, key, name)) {
            state.put_back(trial, now);
            return Decision::Nothing;
        }
        state.check_at = Some(now + CHECK_INTERVAL);
        state.trial = Some(trial);
        Decision::Nothing
    }

    fn rejected(&self, trial: &Trial) -> BTreeSet<(StoreKey, Name)> {
        let all = trial.names.iter().flat_map(|(key, names)| names.iter().map(move |pair| (key, pair)));
        let rejected = all.filter(|(_, (_, evidence))| evidence.verdicts.exceed(self.settings.threshold));
        rejected.map(|(key, (name, _))| (key.clone(), name.clone())).collect()
    }

    fn cut(
        &self,
        state: &mut RolloutState,
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
        state.check_at = (state.unanswered > 0).then_some(now + CHECK_INTERVAL);
        state.trial = Some(trial);
    }

    /// Records an operator's decision, which takes effect within a second. Returns whether it applies to held
    /// changes, or releases waiting ones.
    pub fn order(&self, order: Order) -> bool {
        let mut state = self.state.lock();
        let is_held = state.trial.as_ref().is_some_and(|trial| !trial.held.is_empty());
        let is_due = is_held || (state.unanswered > 0 && order == Order::Release);
        if is_due {
            state.order = Some(order);
        }
        is_due
    }
}

impl RolloutState {
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

    /// After a trial: changes since it are old enough to be cut.
    fn gather_again(&mut self, now: Instant) {
        self.check_at = None;
        self.unanswered = 0;
        self.cut_at = (!self.fresh.is_empty()).then_some(now);
    }

    /// Moves the names of a trial to the next one, except those that changed since.
    fn put_back(&mut self, trial: Trial, now: Instant) {
        for (key, names) in trial.names {
            let fresh = self.fresh.entry(key).or_default();
            for (name, evidence) in names {
                fresh.entry(name).or_insert(evidence);
            }
        }
        self.check_at = None;
        self.cut_at = Some(now + GATHER_TIME);
    }

    /// Withholds held changes from canaries. Returns their names, except those that changed since and are tried
    /// anew.
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

/// A client's place among the canaries, given back on drop.
#[derive(Debug)]
pub struct CanarySeat {
    rollout: Arc<Rollout>,
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
