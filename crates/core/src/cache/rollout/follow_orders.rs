//! Effect of operators' orders on the trial, the waiting changes and both tracks.
//!
//! The next decision follows an order, as stores move only then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::change::{Change, Op};
use super::super::snapshot::Draft;
use super::super::view_leases::View;
use super::orders::{EarlierState, Note, Order, OrderKind, StandingOrder};
use super::track_ops::{self, ALL_TRACKS, Moment, Move, StoreKey, Stores};
use super::trial::{self, Place};
use super::{Rollout, RolloutState};
use crate::resource::{Parameters, TypeUrl};

impl Rollout {
    /// Gives an order, which is followed at the next decision. Returns whether there is something to order.
    pub(in crate::cache) fn order(&self, order: Order, now: Instant) -> bool {
        let mut state = self.state.lock();
        let has_held = |of: &Option<TypeUrl>| {
            // An order before this one may hold something.
            !state.orders.is_empty() || state.holds(of.as_ref()) || state.standing.has_some_of(of.as_ref())
        };
        let is_due = match &order {
            Order::Hold(of, _) => of.as_ref().is_none_or(|of| self.guards(of)),
            Order::Restore(states, _) => !states.is_empty(),
            Order::Discard(of, _) => has_held(of),
            Order::Release(of) => has_held(of) || state.is_unanswered(of.as_ref()),
        };
        if is_due {
            state.orders.push_back(order);
            state.check_at = Some(now);
        }
        is_due
    }

    pub(in crate::cache) fn has_order(&self) -> bool {
        !self.state.lock().orders.is_empty()
    }

    /// Orders in force.
    pub fn standing_orders(&self) -> Vec<StandingOrder> {
        self.state.lock().standing.all().cloned().collect()
    }

    /// Puts orders in force that stood before a restart.
    pub fn restore_orders(&self, orders: impl IntoIterator<Item = StandingOrder>) {
        let standing = &mut self.state.lock().standing;
        orders
            .into_iter()
            .filter(|order| self.guards(&order.type_url))
            .for_each(|order| standing.insert(order));
    }

    pub(super) fn follow(&self, state: &mut RolloutState, order: Order, at: &Moment<'_>) -> Vec<Move> {
        match order {
            Order::Hold(of, note) => {
                let types = self
                    .settings
                    .types
                    .iter()
                    .filter(|type_url| of.as_ref().is_none_or(|of| of == *type_url));
                let mut moves = Vec::new();
                for type_url in types {
                    moves.extend(state.withdraw(type_url, at));
                    state.standing.insert(StandingOrder {
                        kind: OrderKind::Hold,
                        type_url: type_url.clone(),
                        parameters: Parameters::NONE,
                        name: None,
                        digest: None,
                        version: None,
                        note: note.clone(),
                    });
                }
                moves
            }
            Order::Release(of) => {
                let is_lifted = state.lift(of.as_ref());
                if state.holds(of.as_ref()) || state.is_unanswered(of.as_ref()) {
                    return self.release_trial(state, at);
                }
                // A trial goes first.
                if is_lifted && state.trial.is_none() { self.begin(state, at, false) } else { Vec::new() }
            }
            Order::Discard(of, note) => {
                self.settings.counts.discarded.fetch_add(1, Ordering::Relaxed);
                state.give_up_waiting(of.as_ref(), &note, at);
                if !state.holds(of.as_ref()) {
                    return Vec::new();
                }
                let mut moves = state.give_up_held(&note, self.settings.threshold, at);
                moves.extend(self.begin(state, at, false));
                moves
            }
            Order::Restore(states, note) => state.restore(states, &note, at),
        }
    }

    fn release_trial(&self, state: &mut RolloutState, at: &Moment<'_>) -> Vec<Move> {
        self.settings.counts.released.fetch_add(1, Ordering::Relaxed);
        let changed = state.changed_on_hold();
        let Some(trial) = &mut state.trial else { return Vec::new() };
        let is_braked = trial.hold.as_ref().is_some_and(|hold| hold.is_braked);
        // The origin has replaced these: they are tried with their new content.
        changed.iter().for_each(|place| _ = trial.remove(place));
        // Canaries have not been sent a change that the brake held.
        if is_braked { self.begin(state, at, true) } else { state.spread(at) }
    }
}

impl RolloutState {
    /// Whether a failed trial holds changes of a type, or any.
    fn holds(&self, of: Option<&TypeUrl>) -> bool {
        let held = self.trial.as_ref().and_then(|trial| trial.held());
        held.into_iter().flatten().any(|((key, _), _)| of.is_none_or(|of| of == key))
    }

    /// Whether a trial with a type, or any, stays without an answer.
    fn is_unanswered(&self, of: Option<&TypeUrl>) -> bool {
        let trial = self.trial.as_ref().filter(|trial| self.unanswered > 0 && trial.hold.is_none());
        trial.is_some_and(|trial| trial.names.keys().any(|((key, _), _)| of.is_none_or(|of| of == key)))
    }

    /// Takes a type out of the trial, and all its changes back from canaries. They wait.
    fn withdraw(&mut self, type_url: &TypeUrl, at: &Moment<'_>) -> Vec<Move> {
        let is_meant = |((of, _), _): &Place| of == type_url;
        if let Some(trial) = &mut self.trial {
            let places: Vec<Place> = trial.names.keys().filter(|place| is_meant(place)).cloned().collect();
            for place in places {
                if let Some(candidate) = trial.remove(&place) {
                    self.waiting.entry(place).or_insert(candidate.digest);
                }
            }
        }
        self.trial.take_if(|trial| trial.names.is_empty());
        trial::to_stable(self.waiting.keys().filter(|place| is_meant(place)).cloned(), at)
    }

    /// Ends the orders that hold a type, or all. Returns whether there were any.
    fn lift(&mut self, of: Option<&TypeUrl>) -> bool {
        let is_lifted = self.standing.has_some_of(of);
        let is_meant = |type_url: &TypeUrl| of.is_none_or(|of| of == type_url);
        self.standing.types.retain(|type_url, _| !is_meant(type_url));
        let is_ended =
            |place: &Place, of: &mut StandingOrder| of.kind != OrderKind::Discard && is_meant(&place.0.0);
        let ended = self.standing.contents.extract_if(.., is_ended);
        self.waiting.extend(ended.map(|(place, order)| (place, order.digest)));
        is_lifted
    }

    /// Gives up what a failed trial holds.
    fn give_up_held(&mut self, note: &Note, threshold: f64, at: &Moment<'_>) -> Vec<Move> {
        // Later suspects are held at the next check.
        self.trial.iter_mut().for_each(|trial| drop(trial.review(threshold)));
        let changed = self.changed_on_hold();
        let Some(trial) = &mut self.trial else { return Vec::new() };
        let Some(hold) = &trial.hold else { return Vec::new() };
        let gone: Vec<Place> = hold.held.iter().filter(|place| !changed.contains(place)).cloned().collect();
        let tested = hold.tested.iter().filter(|place| gone.contains(place)).cloned().collect();
        let moves = trial.take_back(tested, at);
        for place in gone {
            if let Some(candidate) = trial.remove(&place) {
                self.standing.keep_back(place, candidate.digest, None, (OrderKind::Discard, note));
            }
        }
        moves
    }

    /// Gives up the changes that wait because a type, or any, is on hold.
    fn give_up_waiting(&mut self, of: Option<&TypeUrl>, note: &Note, at: &Moment<'_>) {
        let is_meant = |((type_url, _), _): &Place, _: &mut _| {
            self.standing.holds(type_url) && of.is_none_or(|of| of == type_url)
        };
        let given_up: Vec<_> = self.waiting.extract_if(.., is_meant).map(|(place, _)| place).collect();
        self.standing.types.retain(|type_url, _| of.is_some_and(|of| of != type_url));
        for (key, names) in trial::by_store(given_up) {
            let Some(Stores { origin, stable, .. }) = (at.stores)(&key) else { continue };
            for name in names.into_iter().filter(|name| track_ops::differs(name, &stable, &origin)) {
                let digest = track_ops::digest(&origin, &name);
                self.standing.keep_back((key.clone(), name), digest, None, (OrderKind::Discard, note));
            }
        }
    }

    /// Brings earlier states to both tracks, in place of what is on trial or waits.
    fn restore(&mut self, states: Vec<EarlierState>, note: &Note, at: &Moment<'_>) -> Vec<Move> {
        let mut by_store: BTreeMap<StoreKey, Vec<EarlierState>> = BTreeMap::new();
        for state in states {
            by_store.entry((state.type_url.clone(), state.parameters.clone())).or_default().push(state);
        }
        let mut moves = Vec::new();
        for (key, states) in by_store {
            let Some(stores) = (at.stores)(&key) else { continue };
            let (mut ops, mut names) = (Vec::new(), Vec::new());
            for EarlierState { name, resource, is_member, .. } in states {
                let place = (key.clone(), name.clone());
                self.trial.as_mut().and_then(|trial| trial.remove(&place));
                self.waiting.remove(&place);
                let newest = track_ops::digest(&stores.origin, &name);
                if newest == resource.as_ref().map(|resource| resource.digest()) {
                    self.standing.contents.remove(&place);
                } else {
                    let version = resource.as_ref().map(|resource| resource.version().into());
                    self.standing.keep_back(place, newest, version, (OrderKind::Restore, note));
                }
                let is_member =
                    is_member || stores.stable.get(name.as_str()).is_some_and(|entry| entry.is_member());
                let view = if is_member { View::Wildcard } else { View::Named };
                match resource {
                    Some(resource) => ops.push(Op::held(view, resource, None)),
                    None => ops.extend(
                        [View::Wildcard, View::Named].map(|view| Op::Remove { view, name: name.clone() }),
                    ),
                }
                names.push(name);
            }
            let mut clock = at.clock;
            let mut draft = Draft::new(&stores.stable, &key.0, &mut clock);
            draft.apply(Change { ops, ..Change::default() });
            let to = Arc::new(draft.finish(0, at.now).snapshot);
            moves.push(Move { tracks: ALL_TRACKS, key, names, to });
        }
        moves
    }
}
