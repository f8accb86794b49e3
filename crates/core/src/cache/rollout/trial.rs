//! Trial: the state of all guarded types that canaries try, and the search for the bad changes in it.
//!
//! Owns its changes with their verdicts, and which are held. Knows nothing of later changes.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::super::Generation;
use super::super::parameter_view::Track;
use super::super::position::Class;
use super::super::snapshot::Snapshot;
use super::super::subscription::{Protocol, Subscription};
use super::super::type_cache::TypeCache;
use super::super::update::Update;
use super::track_ops::{ALL_CANARIES, Asks, Moment, Move, Reach, StoreKey};
use super::verdicts::{Answer, Verdicts, Voter, mentions};
use crate::resource::{Name, Parameters};

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
    pub(super) names: BTreeMap<Place, Candidate>,
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
    /// The part that canaries have, and those before it that none of them answered.
    pub(super) tested: BTreeSet<Place>,
    /// When the wait for answers to the newest part ends.
    until: Option<Instant>,
    /// Whether a canary rejected some of it.
    pub(super) is_rejected: bool,
}

/// Response that a canary answers.
#[derive(Debug)]
pub struct CanaryResponse<'a> {
    pub of: &'a TypeCache,
    pub subscription: &'a Subscription,
    pub update: &'a Update,
    pub class: Class,
    /// Text of the NACK; `None`: it was accepted.
    pub rejection: Option<&'a str>,
}

impl CanaryResponse<'_> {
    fn is_newer(&self, candidate: &Candidate) -> bool {
        candidate.sent_at.is_some_and(|at| at < self.update.newest_state)
    }

    /// Whether its client has no more of what was removed before. A full state ends all that it lacks. Over delta, who accepts
    /// a whole response has been sent the removals too, unless these follow.
    fn ends_removed(&self) -> bool {
        let Self { update, class, .. } = self;
        match update.profile.protocol {
            Protocol::Sotw => update.is_full_state() && *class == Class::Both,
            Protocol::Delta => {
                let has_all = *class == Class::Both || !update.removals;
                self.rejection.is_none() && has_all && !update.is_partial() && update.removed_to.is_none()
            }
        }
    }

    /// Whether it has one resource, or must have all.
    fn is_single(&self) -> bool {
        let (given, _, removed) = self.update.contents(self.class);
        self.update.is_full_state() || given.len() + removed.len() == 1
    }

    /// Tells whether a candidate is in it.
    fn has(&self) -> impl Fn(&Parameters, &Name, &Candidate) -> bool {
        let Self { of, subscription, update, class, .. } = *self;
        let contents = LazyCell::new(move || update.contents(class));
        let (view, ends) = (of.parameter_view(), self.ends_removed());
        move |parameters, name, candidate| {
            let ((given, names, removed), name) = (&*contents, name.as_str());
            let lacks =
                || ends && (subscription.wildcard || subscription.contains(name)) && !names.contains(name);
            let is_told = match candidate.digest {
                Some(digest) => given.contains(&digest),
                None => removed.contains(name) || lacks(),
            };
            view.of(name) == parameters && is_told
        }
    }
}

impl Trial {
    pub(super) const fn new(ends: Instant, step: u8) -> Self {
        Self { names: BTreeMap::new(), content: BTreeMap::new(), ends, step, hold: None }
    }

    pub(super) fn remove(&mut self, place: &Place) -> Option<Candidate> {
        if let Some(hold) = &mut self.hold {
            hold.held.remove(place);
        }
        self.names.remove(place)
    }

    pub(super) fn held(&self) -> Option<&BTreeSet<Place>> {
        self.hold.as_ref().map(|hold| &hold.held)
    }

    /// Counts an answer. A rejection makes all changes of the response suspect that this canary has not accepted.
    pub(super) fn count_answer(&mut self, response: &CanaryResponse<'_>, voter: Voter) {
        let type_url = response.of.type_url();
        // Otherwise it may have content that others have replaced since.
        let first = ((type_url.clone(), Parameters::NONE), "".into());
        let mut of_type = self.names.range(first.clone()..).take_while(|(((of, _), _), _)| of == type_url);
        let is_newest = response.rejection.is_some()
            && of_type.all(|(_, each)| each.sent_at.is_none() || response.is_newer(each));
        let is_in_response = response.has();
        let of_type = self.names.range_mut(first..).take_while(|(((of, _), _), _)| of == type_url);
        // An earlier response has changes beside it that were taken back.
        let sent = of_type.filter(|(((_, parameters), name), of)| {
            response.is_newer(of) && is_in_response(parameters, name, of)
        });
        let Some(text) = response.rejection else {
            return Verdicts::count(sent.map(|(_, of)| &mut of.verdicts), voter, Answer::Accepts);
        };
        if response.class == Class::Additions && response.update.has_ghosts() {
            // The bad one may be a removed cluster that stays for a moment. The response without it comes next.
            return;
        }
        let mut suspects: Vec<_> = sent.filter(|(_, of)| !of.verdicts.has_accepted(voter)).collect();
        let is_alone = is_newest && suspects.len() == 1 && response.is_single();
        if suspects.iter().any(|(_, of)| of.digest.is_some()) {
            // A removal has no content that could be invalid, and one that changes nothing for a client is never answered again.
            suspects.retain(|((_, name), of)| of.digest.is_some() || mentions(text, name.as_str()));
        }
        if let Some(hold) = &mut self.hold {
            hold.is_rejected |= suspects.iter().any(|(place, _)| hold.tested.contains(place));
        }
        let (named, others): (Vec<_>, Vec<_>) =
            suspects.into_iter().partition(|((_, name), _)| mentions(text, name.as_str()));
        let names_some = !named.is_empty();
        let text = type_url.rejection_text(text);
        for (changes, has_text) in [(named, true), (others, !names_some)] {
            let answer = Answer::Rejects { text: has_text.then_some(&*text), is_alone };
            Verdicts::count(changes.into_iter().map(|(_, of)| &mut of.verdicts), voter, answer);
        }
    }

    /// Brings these changes to the canaries that had the trial.
    fn send(&mut self, part: Vec<Place>, at: &Moment<'_>) -> Vec<Move> {
        let mut moves = Vec::new();
        for (key, names) in by_store(part) {
            let (Some(content), Some(stores)) = (self.content.get(&key), (at.stores)(&key)) else { continue };
            for name in &names {
                if let Some(candidate) = self.names.get_mut(&(key.clone(), name.clone())) {
                    candidate.sent_at = Some(at.clock);
                    candidate.reach = Reach::of(name, &stores.stable, content);
                }
            }
            let tracks = Track::Canary(0)..=Track::Canary(self.step);
            moves.push(Move { tracks, key, names, to: Arc::clone(content) });
        }
        moves
    }

    /// Gives all canaries the stable content of these names back.
    pub(super) fn take_back(&mut self, part: Vec<Place>, at: &Moment<'_>) -> Vec<Move> {
        for place in &part {
            self.names.entry(place.clone()).and_modify(|candidate| candidate.sent_at = None);
        }
        to_stable(part, at)
    }

    /// Brings the whole trial to the canaries up to a step.
    pub(super) fn advance(&mut self, step: u8, ends: Instant, at: &Moment<'_>) -> Vec<Move> {
        for ((key, name), candidate) in &mut self.names {
            let tracks = Track::Canary(step)..=Track::Canary(step);
            candidate.is_asked = (at.asks)(key, name, candidate.reach, tracks);
        }
        let tracks = Track::Canary(self.step + 1)..=Track::Canary(step);
        (self.step, self.ends) = (step, ends);
        let moves = by_store(self.names.keys().cloned()).into_iter().filter_map(|(key, names)| {
            let to = Arc::clone(self.content.get(&key)?);
            Some(Move { tracks: tracks.clone(), key, names, to })
        });
        moves.collect()
    }

    /// Forgets rejections of changes that a canary of this step accepted, as they are about larger responses and came from canaries that
    /// do not answer any more. Returns whether there are such.
    fn forgive(&mut self, part: &BTreeSet<Place>) -> bool {
        let mut is_any = false;
        for place in part {
            let candidate = self.names.get_mut(place);
            if let Some(candidate) = candidate.filter(|of| of.verdicts.has_acceptance_in(self.step)) {
                candidate.verdicts = Arc::new(candidate.verdicts.without_rejections());
                is_any = true;
            }
        }
        is_any
    }

    /// Takes changes off the hold that canaries have accepted since. Returns suspects beside it, whose rejections came later.
    pub(super) fn review(&mut self, threshold: f64) -> BTreeSet<Place> {
        let Some(mut hold) = self.hold.take() else { return BTreeSet::new() };
        let mut late = BTreeSet::new();
        if !hold.is_braked {
            (hold.held, late) =
                self.suspects(threshold).into_iter().partition(|place| hold.held.contains(place));
        }
        self.hold = Some(hold);
        late
    }

    pub(super) fn suspects(&self, threshold: f64) -> BTreeSet<Place> {
        // Many changes share one record.
        let mut known: HashMap<*const Verdicts, bool> = HashMap::default();
        let mut is_suspect = |verdicts: &Arc<Verdicts>| {
            *known.entry(Arc::as_ptr(verdicts)).or_insert_with(|| verdicts.is_suspect(threshold))
        };
        let suspects = self.names.iter().filter(|(_, candidate)| is_suspect(&candidate.verdicts));
        suspects.map(|(place, _)| place.clone()).collect()
    }

    /// Holds these changes, beside those that are held. Canaries lose them, and all removals, as an earlier route may need a
    /// removed cluster.
    pub(super) fn hold(&mut self, suspects: BTreeSet<Place>, at: &Moment<'_>) -> Vec<Move> {
        let lost = self.names.iter().filter(|(place, of)| of.digest.is_none() || suspects.contains(place));
        let lost = lost.map(|(place, _)| place.clone()).collect();
        let taken_back = self.take_back(lost, at);
        let mut hold = self.hold.take().unwrap_or_else(|| Hold::new(at.now));
        let verdicts = |place: &Place| self.names.get(place).map(|candidate| &candidate.verdicts);
        let unproven =
            suspects.iter().filter(|place| verdicts(place).is_some_and(|of| !of.is_rejected_alone()));
        let (mut named, mut others): (Vec<_>, Vec<_>) =
            unproven.cloned().partition(|place| verdicts(place).is_some_and(|of| !of.texts().is_empty()));
        if named.is_empty() || others.is_empty() {
            named.append(&mut others);
            others = named.split_off(named.len() / 2);
        }
        hold.push(named, others);
        hold.held.extend(suspects);
        self.hold = Some(hold);
        taken_back
    }

    /// Holds the whole trial, because of these removals. No canary is sent what it does not have.
    pub(super) fn brake(&mut self, removed: BTreeSet<Place>, moves: &mut Vec<Move>, at: &Moment<'_>) {
        for Move { key, names, .. } in &mut *moves {
            names.retain(|name| !self.names.contains_key(&(key.clone(), name.clone())));
        }
        for candidate in self.names.values_mut() {
            candidate.sent_at.take_if(|sent_at| *sent_at == at.clock);
        }
        self.hold = Some(Hold { held: removed, is_braked: true, ..Hold::new(at.now) });
    }

    /// The next step of the search; `window` is the longest wait for an answer. A part without an answer stays held and with the
    /// canaries, whose answer counts when it comes. What the origin has changed since is not sent any more.
    pub(super) fn search(
        &mut self,
        window: Duration,
        has_changed: impl Fn(&Place) -> bool,
        at: &Moment<'_>,
    ) -> Vec<Move> {
        let Some(mut hold) = self.hold.take() else { return Vec::new() };
        let tested = hold.tested.len();
        hold.tested.retain(|place| hold.held.contains(place));
        let moves = if hold.is_rejected && !hold.tested.is_empty() {
            let rejected = std::mem::take(&mut hold.tested);
            let is_alone =
                |place: &Place| self.names.get(place).is_some_and(|of| of.verdicts.is_rejected_alone());
            let mut open: Vec<Place> = rejected.iter().filter(|place| !is_alone(place)).cloned().collect();
            if tested > 1 && !open.is_empty() {
                let half = open.split_off(open.len() / 2);
                hold.push(half, open);
            }
            hold.until = None;
            self.take_back(rejected.into_iter().collect(), at)
        } else if !hold.tested.is_empty() && hold.until.is_some_and(|until| at.now < until) {
            Vec::new()
        } else if self.forgive(&hold.tested) {
            // Others rejected it beside bad changes.
            Vec::new()
        } else if let Some(next) = hold.next_part(has_changed) {
            hold.tested.extend(next.iter().cloned());
            hold.until = Some(at.now + window);
            self.send(next, at)
        } else {
            hold.until = None;
            Vec::new()
        };
        hold.is_rejected = false;
        self.hold = Some(hold);
        moves
    }

    /// Whether no canary of this step accepted a change that one asks for, or that somebody asks for and one was sent: it may
    /// have died of it.
    pub(super) fn is_unanswered(&self, asks: &Asks<'_>) -> bool {
        let mut open =
            self.names.iter().filter(|(_, candidate)| !candidate.verdicts.has_acceptance_in(self.step));
        let step = Track::Canary(self.step);
        open.any(|((key, name), candidate)| {
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
        let Some((place, candidate)) = hold.held.first().and_then(|place| self.names.get_key_value(place))
        else {
            return;
        };
        tracing::warn!(
            type_url = %place.0.0,
            name = %place.1,
            rejected = candidate.verdicts.rejected(),
            accepted = candidate.verdicts.accepted(),
            text = candidate.verdicts.texts().first().map_or("", |text| text),
            held = hold.held.len(),
            "canaries reject a change, so the other clients keep the last good resources; correct it at the control plane, or run \
             `deltafan rollout release` or `discard`"
        );
    }

    pub(super) fn log_unanswered(&self, canaries: usize) {
        let mut names = self.names.iter();
        let open = names.find(|(_, candidate)| !candidate.verdicts.has_acceptance_in(self.step));
        let Some((((type_url, _), name), _)) = open else { return };
        tracing::warn!(
            %type_url,
            %name,
            canaries,
            changes = self.names.len(),
            "no canary answers a change, so the other clients keep the last good resources and the trial begins anew; see whether the \
             canaries are alive, or run `deltafan rollout release`"
        );
    }
}

pub(super) fn by_store(places: impl IntoIterator<Item = Place>) -> BTreeMap<StoreKey, Vec<Name>> {
    let mut by_store: BTreeMap<StoreKey, Vec<Name>> = BTreeMap::new();
    places.into_iter().for_each(|(key, name)| by_store.entry(key).or_default().push(name));
    by_store
}

pub(super) fn has_some_of<V>(names: &BTreeMap<Place, V>, key: &StoreKey) -> bool {
    let first: Place = (key.clone(), "".into());
    names.range(first..).next().is_some_and(|((of, _), _)| of == key)
}

/// Gives all canaries the stable content of these names back.
pub(super) fn to_stable(places: impl IntoIterator<Item = Place>, at: &Moment<'_>) -> Vec<Move> {
    let moves = by_store(places).into_iter().filter_map(|(key, names)| {
        let to = (at.stores)(&key)?.stable;
        Some(Move { tracks: ALL_CANARIES, key, names, to })
    });
    moves.collect()
}

impl Hold {
    const fn new(since: Instant) -> Self {
        Self {
            held: BTreeSet::new(),
            since,
            is_braked: false,
            parts: Vec::new(),
            tested: BTreeSet::new(),
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
        !self.parts.is_empty() || self.until.is_some()
    }
}
