//! Rollout of changes: canary clients are sent a change first, the others once canaries have accepted it.
//!
//! Owns the changes that wait, the trial, the verdicts of canaries, and when a change spreads or is held. Knows no
//! clock. The [writer](super::Writer) moves resources.
//!
//! A guarded type has a store for the origin, which no client sees, one for each step of canaries, and the stable one with
//! the last state that canaries accepted. A trial brings the first step to the origin's state of that moment, of all guarded
//! types, because routes must not come without their clusters. A window later the next step is sent it. Changes during a
//! trial wait for the next one, so that canaries have one content of a name to judge.
//!
//! Example, with a window of 30 s: a cluster changes at 0 s and its route at 0.4 s. At 1 s both are on trial. A route
//! that changes at 10 s is for the next one. At 31 s, if canaries accepted the two, they spread, and the next trial
//! begins. If a canary rejected a response, everything in it that this canary has not accepted is suspect, whatever
//! the text names. Then all is held: the fleet keeps its last good state, and canaries get it back, while the
//! [search](trial::Hold) finds the bad changes. The hold ends when the control plane has changed each of them, or an
//! operator [releases or discards](orders) them. The others keep their verdicts in the next trial.
//!
//! Invariants:
//! - A change that canaries of a step were sent goes on only if one of them accepted a response with it, or an operator says
//!   so. Silence is no consent, and a canary that died of a change is silent: the trial begins again.
//! - A verdict is about a content of a name, whichever way it was delivered, and counts once per client.
//! - Names and sets that were unknown before are answered at once: their clients have nothing better.
//! - Memory is bounded by the names that wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use siphasher::sip::SipHasher13;

mod follow_orders;
mod orders;
mod rollout_status;
pub(super) mod track_ops;
mod trial;
mod verdicts;

use super::change::{Change, Op};
use super::parameter_view::Track;
use super::snapshot::Snapshot;
use crate::identity::Certificate;
use crate::node_group::NodeMatch;
use crate::pool::Tenant;
use crate::proto::Node;
use crate::resource::{Name, TypeUrl};

use orders::StandingOrders;
pub use orders::{EarlierState, Note, Order, OrderKind, StandingOrder};
pub use rollout_status::{HeldChange, HoldReason, Phase, RolloutStatus, Withheld};
use track_ops::ALL_TRACKS;
pub(super) use track_ops::{Moment, Move, Reach, Steps, StoreKey, Stores, Tracks};
pub use trial::CanaryResponse;
use trial::{Candidate, Place, Trial, has_some_of};
use verdicts::Voter;

/// Time to gather changes that belong together before a trial.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Time between checks of a held rollout, in which the search makes a step.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct RolloutSettings {
    pub types: BTreeSet<TypeUrl>,
    /// Canaries of the first step; `None`: the first share are.
    pub named: Option<NodeMatch>,
    /// Shares of the other clients that are canaries, from 0 to 1, smaller ones first: one step each. Without named canaries at
    /// least one client is.
    pub shares: Vec<f64>,
    /// Chooses the canaries by their node IDs. Secret, so that no client can choose to be one.
    pub key: [u8; 16],
    /// Duration of each step of a trial. Zero: no trials, all clients are sent a change that the brake does not hold.
    pub window: Duration,
    /// Largest share of rejecting canaries at which a change still spreads, from 0 to 1.
    pub threshold: f64,
    /// Largest share of a store's resources that a trial may remove, from 0 to 1. More are held before any client is
    /// sent the change.
    pub max_removed: Option<f64>,
    /// Whether held changes are reported to the control plane.
    pub reports: bool,
    pub counts: Arc<RolloutCounts>,
}

#[derive(Debug, Default)]
struct RolloutState {
    /// Streams of canaries by step; empty until the first one. A group of relays alone never has one, and does not wait for it.
    canaries: Vec<usize>,
    /// Canary outside the share, by the hash of its node ID, and its number of streams.
    stand_in: Option<(u64, usize)>,
    /// Names that changed since the trial began, with the digest of the newest content; `None` for a removal.
    waiting: BTreeMap<Place, Option<u128>>,
    /// When the next trial begins.
    begins_at: Option<Instant>,
    trial: Option<Trial>,
    /// Next check of a held trial, or time of an order.
    check_at: Option<Instant>,
    /// Orders to follow.
    orders: VecDeque<Order>,
    standing: StandingOrders,
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
    /// Trials with a change that no canary answered, so that they began again.
    pub unanswered: AtomicU64,
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

    pub fn types(&self) -> impl Iterator<Item = &TypeUrl> {
        self.settings.types.iter()
    }

    pub const fn counts(&self) -> &Arc<RolloutCounts> {
        &self.settings.counts
    }

    /// Number of steps of a trial, from 1.
    pub fn steps(&self) -> u8 {
        let RolloutSettings { named, shares, .. } = &self.settings;
        u8::try_from(usize::from(named.is_some()) + shares.len()).map_or(u8::MAX, |steps| steps.max(1))
    }

    /// Whether the configuration names a client as a canary.
    pub fn names(&self, node: &Node, proof: Option<&Certificate>) -> bool {
        self.settings.named.as_ref().is_some_and(|named| named.matches(node, proof))
    }

    fn hash(&self, of: impl Hash) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.settings.key);
        of.hash(&mut hasher);
        hasher.finish()
    }

    /// Canary seat of a client, if it is a canary: a named one, or by its node ID, so also after a reconnect. Without
    /// named ones, in a group too small for the share, the first client is one.
    pub fn seat(
        self: &Arc<Self>,
        node_id: &str,
        peer: Option<&Tenant>,
        is_named: bool,
    ) -> Option<CanarySeat> {
        let RolloutSettings { named, shares, .. } = &self.settings;
        let node = self.hash(node_id);
        let place = node as f64 / u64::MAX as f64;
        let mut state = self.state.lock();
        state.canaries.resize(usize::from(self.steps()), 0);
        let of_share =
            || shares.iter().position(|share| place < *share).map(|at| at + usize::from(named.is_some()));
        let step = if is_named { Some(0) } else { of_share() };
        let step = match step {
            Some(step) => step,
            None if named.is_some() => return None,
            None => {
                let is_first = state.canaries.iter().sum::<usize>() == 0;
                match &mut state.stand_in {
                    Some((of, streams)) if *of == node => *streams += 1,
                    none @ None if is_first => *none = Some((node, 1)),
                    _ => return None,
                }
                0
            }
        };
        state.canaries[step] += 1;
        drop(state);
        let peer = peer.map_or(node, |peer| self.hash(peer.account()));
        Some(CanarySeat { rollout: Arc::clone(self), voter: Voter { step: step as u8, peer, node } })
    }

    /// Whether a response may have a change on trial now.
    pub fn is_trying(&self, type_url: &TypeUrl) -> bool {
        let state = self.state.lock();
        state.trial.as_ref().is_some_and(|trial| {
            let mut stores = trial.content.keys().filter(|(of, _)| of == type_url);
            stores.any(|key| has_some_of(&trial.names, key))
        })
    }

    /// Counts a canary's answer.
    pub fn vote(&self, response: &CanaryResponse<'_>, seat: &CanarySeat) {
        if let Some(trial) = &mut self.state.lock().trial {
            trial.count_answer(response, seat.voter);
        }
    }

    /// Splits a change of the origin by tracks, the stable one last. `stores` are as before it, `newest` is the
    /// origin's after it.
    pub(super) fn split(
        &self,
        key: &StoreKey,
        change: &Change,
        stores: &Stores,
        newest: &Snapshot,
        now: Instant,
    ) -> Vec<Change> {
        let Stores { origin, canaries, stable } = stores;
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut split = vec![Vec::new(); canaries.len() + 1];
        for op in &change.ops {
            let name = op.name();
            let place = (key.clone(), name.clone());
            let (has_content, digest) = (track_ops::waits_with_name(op), track_ops::digest(newest, name));
            let kept_back = state.standing.kept_back(&place);
            if kept_back.is_some() && matches!(op, Op::Forget { .. }) {
                // The order stands, and the next client is sent what it says.
                continue;
            }
            let is_kept_back = has_content && kept_back == Some(digest);
            if kept_back.is_some() && has_content && !is_kept_back {
                state.standing.contents.remove(&place);
            }
            let is_on_trial = state.trial.as_ref().is_some_and(|trial| trial.names.contains_key(&place));
            // The stable track does not have what the origin has.
            let is_waiting = is_on_trial || kept_back.is_some() || state.waiting.contains_key(&place);
            let is_fact = |of: &Snapshot| track_ops::is_fact(op, of);
            if !is_kept_back && is_fact(origin) && is_fact(stable) {
                for (ops, track) in split.iter_mut().zip(canaries.iter().chain([stable])) {
                    ops.extend(is_fact(track).then(|| op.clone()));
                }
                continue;
            }
            // The origin may repeat itself: that is one change.
            let is_repeated = is_kept_back || (is_waiting && !track_ops::differs(name, origin, newest));
            let waits = has_content
                && (is_repeated
                    || ((is_waiting || track_ops::is_change(name, stable, newest))
                        && !track_ops::is_first_answer(op, stable)));
            for (ops, track) in split.iter_mut().zip(canaries.iter().chain([stable])) {
                ops.extend(match track_ops::last_good(op, track) {
                    None if waits => track_ops::renewal(op, track),
                    None => Some(op.clone()),
                    member => member,
                });
            }
            let is_meant = has_content || track_ops::forgets_all(op, origin);
            if waits && !is_repeated || !waits && is_waiting && is_meant {
                // A change on trial stays so, unless the stable track has moved on: then it is compared again.
                let is_same = |of: &Candidate| of.digest == digest;
                if let Some(trial) = state.trial.as_mut().filter(|_| !waits)
                    && !trial.names.get(&place).is_some_and(is_same)
                {
                    trial.remove(&place);
                }
                state.waiting.insert(place, digest);
            }
        }
        if state.begins_at.is_none() && !state.waiting.is_empty() {
            state.begins_at = Some(now + GATHER_TIME);
        }
        split.into_iter().map(|ops| Change { ops, ..change.clone() }).collect()
    }

    /// When to [`decide`](Self::decide) next if nothing happens.
    pub(super) fn next_decision(&self) -> Option<Instant> {
        let state = self.state.lock();
        let due = match &state.trial {
            None => state.begins_at,
            Some(trial) => trial.hold.is_none().then_some(trial.ends),
        };
        due.into_iter().chain(state.check_at).min()
    }

    /// Decides what is due.
    pub(super) fn decide(&self, at: &Moment<'_>) -> Vec<Move> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(order) = state.orders.pop_front() {
            let moves = self.follow(state, order, at);
            let is_held = state.trial.as_ref().is_some_and(|trial| trial.hold.is_some());
            // The next order is due at once, and stores have not moved yet.
            let next = if state.orders.is_empty() { at.now + CHECK_INTERVAL } else { at.now };
            state.check_at = (is_held || !state.orders.is_empty()).then_some(next);
            return moves;
        }
        let next_step = state.trial.as_ref().and_then(|trial| state.step_from(trial.step + 1));
        let Some(trial) = &mut state.trial else {
            let is_due = state.begins_at.is_some_and(|begins_at| begins_at <= at.now);
            return if is_due { self.begin(state, at, false) } else { Vec::new() };
        };
        if trial.hold.is_some() {
            state.check_at = Some(at.now + CHECK_INTERVAL);
            return self.decide_on_hold(state, at);
        }
        if at.now < trial.ends {
            return Vec::new();
        }
        let has_trials = !self.settings.window.is_zero();
        let suspects = if has_trials { trial.suspects(self.settings.threshold) } else { BTreeSet::new() };
        if !suspects.is_empty() {
            let taken_back = trial.hold(suspects, at);
            self.begin_hold(state, at.now);
            return taken_back;
        }
        if has_trials && trial.is_unanswered(at.asks) {
            self.settings.counts.unanswered.fetch_add(1, Ordering::Relaxed);
            state.unanswered += 1;
            trial.log_unanswered(state.canaries.iter().sum());
            return self.begin(state, at, false);
        }
        if let Some(step) = next_step.filter(|_| has_trials) {
            return trial.advance(step, at.now + self.settings.window, at);
        }
        self.settings.counts.spread.fetch_add(1, Ordering::Relaxed);
        state.spread(at)
    }

    fn begin_hold(&self, state: &mut RolloutState, now: Instant) {
        self.settings.counts.held.fetch_add(1, Ordering::Relaxed);
        state.trial.iter().for_each(Trial::log_held);
        (state.unanswered, state.check_at) = (0, Some(now + CHECK_INTERVAL));
    }

    fn decide_on_hold(&self, state: &mut RolloutState, at: &Moment<'_>) -> Vec<Move> {
        if let Some(trial) = &mut state.trial {
            let late = trial.review(self.settings.threshold);
            if !late.is_empty() {
                return trial.hold(late, at);
            }
        }
        let changed = state.changed_on_hold();
        let Some(trial) = &mut state.trial else { return Vec::new() };
        let Some(hold) = &trial.hold else { return Vec::new() };
        if hold.held.is_empty() {
            // Canaries accepted all of it in the end.
            (trial.hold, trial.ends, state.check_at) = (None, at.now, None);
            return Vec::new();
        }
        let has_changed = |place: &Place| changed.contains(place);
        // All of them changed again, or some removed ones are back: canaries are asked anew.
        if hold.held.len() == changed.len() || (hold.is_braked && !changed.is_empty()) {
            return self.begin(state, at, false);
        }
        let was_searching = hold.is_searching();
        let moves = trial.search(self.settings.window, has_changed, at);
        if was_searching && trial.hold.as_ref().is_some_and(|hold| !hold.is_searching()) {
            trial.log_held();
        }
        moves
    }

    /// Begins a trial of what waits and what is left of the one before, whose verdicts stay where the content did.
    /// `is_released`: an operator lets the held removals pass the brake.
    fn begin(&self, state: &mut RolloutState, at: &Moment<'_>, is_released: bool) -> Vec<Move> {
        state.begins_at = None;
        let old = state.trial.take().unwrap_or_else(|| Trial::new(at.now, 0));
        state.waiting.extend(old.names.iter().map(|(place, of)| (place.clone(), of.digest)));
        let due = state.waiting.extract_if(.., |((type_url, _), _), _| !state.standing.holds(type_url));
        let due: Vec<Place> = due.map(|(place, _)| place).collect();
        let mut trial = Trial::new(at.now + self.settings.window, state.step_from(0).unwrap_or_default());
        let (mut moves, mut later, mut braked) = (Vec::new(), Vec::new(), BTreeSet::new());
        let none = Arc::default();
        let are_gone = !state.canaries.is_empty() && state.canaries.iter().all(|streams| *streams == 0);
        let step = Track::Canary(trial.step);
        let asked = step..=if are_gone { Track::Stable } else { step };
        for (key, names) in trial::by_store(due) {
            let Some(stores) = (at.stores)(&key) else { continue };
            let Some(canary) = stores.canaries.get(usize::from(trial.step)) else { continue };
            let (origin, stable) = (&stores.origin, &stores.stable);
            let (mut moved, mut removed, mut new) = (Vec::new(), Vec::new(), Vec::new());
            for name in names {
                new.push(name.clone());
                let place = (key.clone(), name);
                let (name, digest) = (&place.1, track_ops::digest(origin, &place.1));
                if state.standing.kept_back(&place) == Some(digest) {
                    continue;
                }
                let is_sent_anew = track_ops::differs(name, canary, origin);
                moved.push(name.clone());
                if !track_ops::differs(name, stable, origin) {
                    continue;
                }
                let older = old.names.get(&place).filter(|older| older.digest == digest);
                // Canaries were sent it before, or an operator lets it through.
                let has_passed = older.is_some_and(|older| older.sent_at.is_some())
                    || (is_released && old.held().is_some_and(|held| held.contains(&place)));
                if !has_passed && track_ops::is_removed(name, stable, origin) {
                    removed.push(place.clone());
                }
                let retained = older.filter(|_| !is_sent_anew).inspect(|_| _ = new.pop());
                let candidate = retained.cloned().unwrap_or_else(|| {
                    let reach = Reach::of(name, canary, origin);
                    let is_asked = (at.asks)(&key, name, reach, asked.clone());
                    let verdicts = Arc::clone(older.map_or(&none, |older| &older.verdicts));
                    Candidate { digest, sent_at: Some(at.clock), reach, is_asked, verdicts }
                });
                trial.content.entry(key.clone()).or_insert_with(|| Arc::clone(origin));
                trial.names.insert(place, candidate);
            }
            let most = self.settings.max_removed;
            if most.is_some_and(|most| track_ops::is_too_much(removed.len(), stable, most)) {
                braked.extend(removed);
            }
            // Those of later steps are not sent it yet.
            let tracks = Track::Canary(trial.step + 1)..=Track::Canary(u8::MAX);
            later.push(Move { tracks, key: key.clone(), names: new, to: Arc::clone(stable) });
            let tracks = Track::Canary(0)..=step;
            moves.push(Move { tracks, key, names: moved, to: stores.origin });
        }
        let is_braked = !braked.is_empty();
        if is_braked {
            trial.brake(braked, &mut moves, at);
        }
        moves.extend(later);
        if trial.names.is_empty() {
            (state.unanswered, state.check_at) = (0, None);
            return moves;
        }
        state.check_at = None;
        state.trial = Some(trial);
        if is_braked {
            self.begin_hold(state, at.now);
        }
        moves
    }
}

impl RolloutState {
    /// Held changes.
    fn held(&self) -> impl Iterator<Item = (&Place, &Candidate)> {
        self.trial.iter().flat_map(|trial| {
            let held = trial.held().into_iter().flatten();
            held.filter_map(|place| Some((place, trial.names.get(place)?)))
        })
    }

    /// Held changes that the origin has replaced.
    fn changed_on_hold(&self) -> BTreeSet<Place> {
        let changed = self.held().filter(|(place, of)| self.has_changed(place, of));
        changed.map(|(place, _)| place.clone()).collect()
    }

    /// Whether the origin has replaced the content of a change on trial. It may send the same in another way, as a new
    /// member say.
    fn has_changed(&self, place: &Place, candidate: &Candidate) -> bool {
        self.waiting.get(place).is_some_and(|digest| *digest != candidate.digest)
    }

    /// First step that has a canary, from this one on.
    fn step_from(&self, first: u8) -> Option<u8> {
        let mut steps = (0u8..).zip(&self.canaries).filter(|(step, streams)| *step >= first && **streams > 0);
        steps.next().map(|(step, _)| step)
    }

    /// Ends the trial: all its changes go to the stable track, and those that canaries do not have to theirs.
    fn spread(&mut self, at: &Moment<'_>) -> Vec<Move> {
        let mut moves = Vec::new();
        let Some(trial) = self.trial.take() else { return moves };
        for (key, names) in trial::by_store(trial.names.keys().cloned()) {
            let (Some(content), Some(Stores { origin, .. })) = (trial.content.get(&key), (at.stores)(&key))
            else {
                continue;
            };
            // A released name may have joined the wildcard set since, with this content.
            let is_given = |name: &Name| {
                let of = trial.names.get(&(key.clone(), name.clone()));
                of.is_some_and(|of| of.sent_at.is_none() && track_ops::digest(&origin, name) == of.digest)
            };
            let (given, tried): (Vec<_>, Vec<_>) = names.into_iter().partition(is_given);
            for name in &given {
                self.waiting.remove(&(key.clone(), name.clone()));
            }
            moves.push(Move { tracks: ALL_TRACKS, key: key.clone(), names: given, to: origin });
            let tracks = Track::Canary(trial.step + 1)..=Track::Stable;
            moves.push(Move { tracks, key, names: tried, to: Arc::clone(content) });
        }
        (self.check_at, self.unanswered) = (None, 0);
        // Changes since the trial began are old enough for the next one.
        self.begins_at = (!self.waiting.is_empty()).then_some(at.now);
        moves
    }
}

/// A client's place among the canaries, given back on drop.
#[derive(Debug)]
pub struct CanarySeat {
    rollout: Arc<Rollout>,
    voter: Voter,
}

impl CanarySeat {
    /// Step of a trial in which it is sent changes.
    pub(crate) const fn step(&self) -> u8 {
        self.voter.step
    }
}

impl Drop for CanarySeat {
    fn drop(&mut self) {
        let mut state = self.rollout.state.lock();
        state.canaries[usize::from(self.voter.step)] -= 1;
        if let Some((of, streams)) = &mut state.stand_in
            && *of == self.voter.node
        {
            *streams -= 1;
            if *streams == 0 {
                state.stand_in = None;
            }
        }
    }
}
