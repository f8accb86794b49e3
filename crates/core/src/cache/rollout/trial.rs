//! Trial: the state of all guarded types that canaries try, and the search for the bad changes in it.
//!
//! Owns its changes with their verdicts, and which are held. Knows nothing of later changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Generation;
use super::super::parameter_view::Track;
use super::super::snapshot::Snapshot;
use super::track_ops::{Asks, Moment, Move, Reach, StoreKey};
use super::verdicts::Verdicts;
use crate::resource::Name;

/// Held changes that are logged per rollout.
const LOGGED: usize = 4;

pub(super) type Place = (StoreKey, Name);

/// A change on trial.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Digest of its content; `None` for a removal. The verdicts are about this content.
    pub(super) digest: Option<u128>,
    /// When the canary track took it over, if it shows it.
    pub(super) sent_at: Option<Generation>,
    /// Canaries that were to be sent it.
    pub(super) reach: Reach,
    /// Whether there were any, or all canaries were gone.
    pub(super) is_asked: bool,
    pub(super) verdicts: Arc<Verdicts>,
}

/// Tried state: the whole content of stores with changes.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) names: BTreeMap<StoreKey, BTreeMap<Name, Candidate>>,
    /// Content of the origin's stores when it began.
    pub(super) content: BTreeMap<StoreKey, Arc<Snapshot>>,
    pub(super) ends: Instant,
    /// Canaries up to this step have it.
    pub(super) step: u8,
    pub(super) hold: Option<Hold>,
}

/// Changes that too many canaries rejected, and the search for the bad ones among them.
///
/// A rejected response tells only that something in it is bad. So the relay takes all of it back from canaries, and
/// sends them a part at a time: first the changes that no text names, then the others, and halves of what is rejected
/// again. A change that a canary accepts leaves the hold.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) held: BTreeSet<Place>,
    pub(super) since: Instant,
    /// Held before any client was sent it, as it removes too much. There is nothing to search.
    pub(super) is_braked: bool,
    /// Parts that are to be sent, the next one last.
    parts: Vec<Vec<Place>>,
    /// The part that canaries have.
    pub(super) tested: Vec<Place>,
    /// When the wait for answers to it ends.
    until: Option<Instant>,
    /// Whether a canary rejected it.
    pub(super) is_rejected: bool,
}

/// Next step of the search.
pub(super) enum Step {
    Wait,
    Send(Vec<Place>),
    TakeBack(Vec<Place>),
}

impl Trial {
    pub(super) const fn new(ends: Instant, step: u8) -> Self {
        Self { names: BTreeMap::new(), content: BTreeMap::new(), ends, step, hold: None }
    }

    pub(super) fn get(&self, (key, name): &Place) -> Option<&Candidate> {
        self.names.get(key)?.get(name)
    }

    pub(super) fn remove(&mut self, place: &Place) -> Option<Candidate> {
        if let Some(hold) = &mut self.hold {
            hold.held.remove(place);
        }
        let (key, name) = place;
        self.names.get_mut(key)?.remove(name)
    }

    pub(super) fn held(&self) -> Option<&BTreeSet<Place>> {
        self.hold.as_ref().map(|hold| &hold.held)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&StoreKey, &Name, &Candidate)> {
        self.names.iter().flat_map(|(key, names)| names.iter().map(move |(name, of)| (key, name, of)))
    }

    pub(super) fn insert(&mut self, (key, name): Place, candidate: Candidate, content: &Arc<Snapshot>) {
        self.content.entry(key.clone()).or_insert_with(|| Arc::clone(content));
        self.names.entry(key).or_default().insert(name, candidate);
    }

    /// Brings these changes to the canaries that had the trial.
    pub(super) fn send(&mut self, part: Vec<Place>, at: &Moment<'_>) -> Vec<Move> {
        let mut moves = Vec::new();
        for (key, names) in by_store(part) {
            let (Some(content), Some(stores)) = (self.content.get(&key), (at.stores)(&key)) else { continue };
            let Some(tried) = self.names.get_mut(&key) else { continue };
            for name in &names {
                if let Some(candidate) = tried.get_mut(name) {
                    candidate.sent_at = Some(at.clock);
                    candidate.reach = Reach::of(name, &stores.stable, content);
                }
            }
            moves.extend((0..=self.step).map(|step| {
                let (key, names, to) = (key.clone(), names.clone(), Arc::clone(content));
                Move { track: Track::Canary(step), key, names, to }
            }));
        }
        moves
    }

    /// Gives all canaries the stable content of these names back.
    pub(super) fn take_back(&mut self, part: Vec<Place>, at: &Moment<'_>) -> Vec<Move> {
        let mut moves = Vec::new();
        for (key, names) in by_store(part) {
            let tried = self.names.get_mut(&key);
            let tried = tried.into_iter().flatten().filter(|(name, _)| names.contains(name));
            tried.for_each(|(_, candidate)| candidate.sent_at = None);
            let stores = (at.stores)(&key);
            moves.extend(stores.map(|stores| stores.to_canaries(0, &key, &names, &stores.stable)));
        }
        moves.into_iter().flatten().collect()
    }

    /// Brings the whole trial to the canaries up to a step.
    pub(super) fn advance(&mut self, step: u8, ends: Instant, at: &Moment<'_>) -> Vec<Move> {
        let mut moves = Vec::new();
        for (key, names) in &mut self.names {
            let Some(content) = self.content.get(key) else { continue };
            for track in (self.step + 1..=step).map(Track::Canary) {
                let (names, to) = (names.keys().cloned().collect(), Arc::clone(content));
                moves.push(Move { track, key: key.clone(), names, to });
            }
            for (name, candidate) in names {
                let tracks = Track::Canary(step)..=Track::Canary(step);
                candidate.is_asked = (at.asks)(key, name, candidate.reach, tracks);
            }
        }
        (self.step, self.ends) = (step, ends);
        moves
    }

    /// Forgets rejections of changes that a canary of this step accepted, as they are about larger responses and came from canaries that
    /// do not answer any more. Returns whether there are such.
    fn forgive(&mut self, part: &[Place]) -> bool {
        let mut is_any = false;
        for (key, name) in part {
            let candidate = self.names.get_mut(key).and_then(|names| names.get_mut(name));
            if let Some(candidate) = candidate.filter(|of| of.verdicts.has_acceptance_in(self.step)) {
                candidate.verdicts = Arc::new(candidate.verdicts.without_rejections());
                is_any = true;
            }
        }
        is_any
    }

    /// Takes changes off the hold that canaries have accepted since.
    pub(super) fn forget_accepted(&mut self, threshold: f64) {
        let Some(mut hold) = self.hold.take() else { return };
        hold.held.retain(|place| hold.is_braked || self.is_suspect(place, threshold));
        self.hold = Some(hold);
    }

    fn is_suspect(&self, place: &Place, threshold: f64) -> bool {
        self.get(place).is_some_and(|candidate| candidate.verdicts.is_suspect(threshold))
    }

    pub(super) fn suspects(&self, threshold: f64) -> BTreeSet<Place> {
        // Many changes share one record.
        let mut last: Option<(&Arc<Verdicts>, bool)> = None;
        let mut is_suspect = |verdicts| match last {
            Some((other, is)) if Arc::ptr_eq(other, verdicts) => is,
            _ => {
                let is = verdicts.is_suspect(threshold);
                last = Some((verdicts, is));
                is
            }
        };
        let suspects = self.all().filter(|(.., candidate)| is_suspect(&candidate.verdicts));
        suspects.map(|(key, name, _)| (key.clone(), name.clone())).collect()
    }

    /// Holds these changes.
    pub(super) fn hold(&mut self, held: BTreeSet<Place>, now: Instant) {
        let verdicts = |place: &Place| self.get(place).map(|candidate| &candidate.verdicts);
        let mut hold = Hold::new(now);
        if held.len() > 1 {
            let unproven =
                held.iter().filter(|place| verdicts(place).is_some_and(|of| !of.is_rejected_alone()));
            let (mut named, mut others): (Vec<_>, Vec<_>) =
                unproven.cloned().partition(|place| verdicts(place).is_some_and(|of| !of.texts().is_empty()));
            if named.is_empty() || others.is_empty() {
                named.append(&mut others);
                others = named.split_off(named.len() / 2);
            }
            hold.push(named, others);
        }
        hold.held = held;
        self.hold = Some(hold);
    }

    /// Holds the whole trial, because of these removals. No canary is sent what it does not have.
    pub(super) fn brake(&mut self, removed: BTreeSet<Place>, moves: &mut Vec<Move>, at: &Moment<'_>) {
        for Move { key, names, .. } in &mut *moves {
            let Some(tried) = self.names.get_mut(key) else { continue };
            names.retain(|name| match tried.get_mut(name) {
                Some(candidate) => {
                    candidate.sent_at.take_if(|sent_at| *sent_at == at.clock);
                    false
                }
                None => true,
            });
        }
        self.hold = Some(Hold { held: removed, is_braked: true, ..Hold::new(at.now) });
    }

    pub(super) fn is_held(&self, place: &Place) -> bool {
        self.held().is_some_and(|held| held.contains(place))
    }

    /// The next step of the search; `window` is the longest wait for an answer. A part without an answer stays held, and
    /// what the origin has changed since is not sent any more.
    pub(super) fn search(
        &mut self,
        threshold: f64,
        (now, window): (Instant, Duration),
        has_changed: impl Fn(&Place) -> bool,
    ) -> Step {
        let Some(mut hold) = self.hold.take() else { return Step::Wait };
        let tested = std::mem::take(&mut hold.tested);
        let rejected: Vec<Place> =
            tested.iter().filter(|place| self.is_suspect(place, threshold)).cloned().collect();
        let is_over = hold.is_rejected || hold.until.is_some_and(|until| until <= now);
        let step = if !rejected.is_empty() && !is_over {
            hold.tested = tested;
            Step::Wait
        } else if !rejected.is_empty() && !hold.is_rejected && self.forgive(&rejected) {
            // Others rejected it beside bad changes.
            hold.tested = tested;
            Step::Wait
        } else if !rejected.is_empty() {
            let is_alone = |place: &Place| self.get(place).is_some_and(|of| of.verdicts.is_rejected_alone());
            let mut open: Vec<Place> = rejected.iter().filter(|place| !is_alone(place)).cloned().collect();
            if hold.is_rejected && tested.len() > 1 && !open.is_empty() {
                let half = open.split_off(open.len() / 2);
                hold.push(half, open);
            }
            Step::TakeBack(rejected)
        } else if let Some(next) = hold.next_part(has_changed) {
            hold.tested.clone_from(&next);
            hold.until = Some(now + window);
            Step::Send(next)
        } else {
            Step::Wait
        };
        hold.is_rejected = false;
        self.hold = Some(hold);
        step
    }

    /// Whether no canary of this step accepted a change that one asks for, or that somebody asks for and one was sent: it may
    /// have died of it.
    pub(super) fn is_unanswered(&self, asks: &Asks<'_>) -> bool {
        let mut open = self.all().filter(|(.., candidate)| !candidate.verdicts.has_acceptance_in(self.step));
        let step = Track::Canary(self.step);
        open.any(|(key, name, candidate)| {
            let last = if candidate.is_asked { Track::Stable } else { step };
            asks(key, name, candidate.reach, step..=last)
        })
    }

    pub(super) fn log_held(&self) {
        let Some(hold) = &self.hold else { return };
        if hold.is_searching() {
            tracing::warn!(
                changes = hold.held.len(),
                "canaries reject changes, so the other clients keep the last good resources; sending canaries a part at a time to \
                 find the bad ones"
            );
            return;
        }
        if let (true, Some(((type_url, _), name))) = (hold.is_braked, hold.held.first()) {
            tracing::warn!(
                %type_url,
                %name,
                removed = hold.held.len(),
                "a change removes more than `rollout.max_removed` allows, so no client is sent it; put the resources back at the control \
                 plane, or run `deltafan rollout release` or `discard`"
            );
            return;
        }
        for place in hold.held.iter().take(LOGGED) {
            let Some(candidate) = self.get(place) else { continue };
            tracing::warn!(
                type_url = %place.0.0,
                name = %place.1,
                rejected = candidate.verdicts.rejected(),
                accepted = candidate.verdicts.accepted(),
                text = candidate.verdicts.texts().first().map_or("", |text| text),
                held = hold.held.len(),
                "canaries reject a change, so the other clients keep the last good resources; correct it at the control plane, or \
                 run `deltafan rollout release` or `discard`"
            );
        }
    }

    pub(super) fn log_unanswered(&self, canaries: usize) {
        let open = self.all().find(|(.., candidate)| !candidate.verdicts.has_acceptance_in(self.step));
        let Some(((type_url, _), name, _)) = open else { return };
        tracing::warn!(
            %type_url,
            %name,
            canaries,
            changes = self.names.values().map(BTreeMap::len).sum::<usize>(),
            "no canary answers a change, so the other clients keep the last good resources and the trial begins anew; see whether the \
             canaries are alive, or run `deltafan rollout release`"
        );
    }
}

fn by_store(places: Vec<Place>) -> BTreeMap<StoreKey, Vec<Name>> {
    let mut by_store: BTreeMap<StoreKey, Vec<Name>> = BTreeMap::new();
    places.into_iter().for_each(|(key, name)| by_store.entry(key).or_default().push(name));
    by_store
}

impl Hold {
    const fn new(since: Instant) -> Self {
        Self {
            held: BTreeSet::new(),
            since,
            is_braked: false,
            parts: Vec::new(),
            tested: Vec::new(),
            until: None,
            is_rejected: false,
        }
    }

    fn push(&mut self, last: Vec<Place>, first: Vec<Place>) {
        self.parts.extend([last, first].into_iter().filter(|part| !part.is_empty()));
    }

    fn next_part(&mut self, has_changed: impl Fn(&Place) -> bool) -> Option<Vec<Place>> {
        loop {
            let mut part = self.parts.pop()?;
            part.retain(|place| self.held.contains(place) && !has_changed(place));
            if !part.is_empty() {
                return Some(part);
            }
        }
    }

    pub(super) fn is_searching(&self) -> bool {
        !(self.parts.is_empty() && self.tested.is_empty())
    }
}
