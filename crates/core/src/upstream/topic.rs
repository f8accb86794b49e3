//! One type with one set of parameters: what is wanted of it, and what a response changes of it.
//!
//! Knows nothing of other types, nor of this type with other parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashSet;

use super::disproved::Disproved;
use super::doubts::{Doubt, Doubts};
use super::expiry::Expiry;
use super::response::DecodedResponse;
use super::stream_subscription::{StreamSubscription, Target};
use super::variants::Candidates;
use super::{Counters, Reconcile, Settings, StreamId};
use crate::cache::{Change, Completeness, Lease, Named, Op, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Collection, Form, Name, NameMap, Parameters, Resource, take_out};

const VIEWS: [View; 2] = [View::Wildcard, View::Named];

/// Whether anybody wants something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Want {
    /// Nobody, and it is not subscribed to.
    #[default]
    No,
    /// Somebody does.
    Yes,
    /// Nobody; it is let go at this time.
    Until(Instant),
    /// Nobody, since this time: a wildcard that stays subscribed to for as long as its stream lives, and is kept up to
    /// date. Origins do not let go of one that they were asked for, or do not answer when it is asked for again (O1).
    Kept(Instant),
}

impl Want {
    /// Whether somebody wants it, or did lately.
    pub(super) const fn is_live(self) -> bool {
        matches!(self, Self::Yes | Self::Until(_))
    }
}

/// An origin may take long for its first answer: what it has to send again, and does not, is doubted after so many times
/// the time for an answer.
const MISSING_TIMEOUTS: u32 = 5;

/// A name that the origin leaves unanswered for so many times the time for an answer is asked for where silence proves that it
/// does not exist.
const OPEN_TIMEOUTS: u32 = 2;

/// A set of which it is not proven for so long that it is complete counts as complete all the same: an origin where something
/// changes all the time proves nothing.
const UNPROVEN: Duration = Duration::from_secs(90);

/// After so many streams on which nothing at all came of a view, its silence is a reason to open one more and no other. By then
/// each version that fits into a request was told once, and one was kept back in vain; on the last stream all are told.
const SILENT_STREAMS: u32 = 3;

/// Streams in a row, by view, on which nothing at all came.
#[derive(Debug, Default)]
pub(super) struct SilentStreams([u32; 2]);

impl SilentStreams {
    /// Whether another one is a reason to open the stream anew.
    const fn may_renew(&self, view: View) -> bool {
        self.0[view as usize] <= SILENT_STREAMS
    }

    /// Whether the stream that is to be opened is the last for this reason.
    pub(super) const fn are_over(&self, view: View) -> bool {
        self.0[view as usize] >= SILENT_STREAMS
    }

    const fn add(&mut self, view: View) {
        self.0[view as usize] += 1;
    }

    /// Something came.
    pub(super) const fn end(&mut self, view: View) {
        self.0[view as usize] = 0;
    }
}

/// Clients that hold nothing are shown such a set after this, as it is: well before the 15 s that Envoy and gRPC wait.
const SHOWN: Duration = Duration::from_secs(5);

/// A wildcard set that streams were opened anew to prove complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unproven {
    since: Instant,
    /// Whether clients that hold nothing are shown it.
    is_shown: bool,
}

impl Unproven {
    fn deadline(self) -> Instant {
        self.since + if self.is_shown { UNPROVEN } else { SHOWN }
    }
}

/// Reason to open a stream anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Renewal {
    /// Something may be gone, or is for others too: nobody lacks anything meanwhile.
    Doubt,
    /// A client waits for proof that a wildcard set is complete.
    Proof,
    /// The origin leaves unanswered what it takes for delivered: clients wait for it.
    Unanswered,
}

impl Renewal {
    /// How many there are.
    pub(super) const COUNT: usize = 3;
}

/// Word of the origin about names that do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Absences {
    /// None so far: many origins never say it (O2).
    #[default]
    Untold,
    /// It says so of each name, perhaps of one after the other: its silence about one proves nothing.
    Told,
    /// It says so of each name, and may itself wait for an origin that is silent. It is a relay like this one.
    Relay,
}

/// Habits of the origin, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OriginHabits {
    pub(super) absences: Absences,
    /// The most bytes of resources that it has put into one response of several. From one that sends each by itself, or cuts
    /// its answers before that, a single resource proves nothing.
    pub(super) filled: usize,
}

impl OriginHabits {
    /// Habits that were seen here or there.
    pub(super) fn and(self, other: Self) -> Self {
        Self { absences: self.absences.max(other.absences), filled: self.filled.max(other.filled) }
    }

    /// Habits to be expected of an origin that may be another one. That it says what does not exist is held on to: where that
    /// is wrong, it costs time. All else would be evidence.
    pub(super) fn of_another(self) -> Self {
        let absences = if self.absences == Absences::Told { Absences::Told } else { Absences::Untold };
        Self { absences, filled: 0 }
    }
}

/// View of the type that a stream carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) stream: StreamId,
    pub(super) view: Option<View>,
}

/// Subscription to one type with one set of parameters, and how far it is answered.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) parameters: Parameters,
    pub(super) wildcard: Want,
    pub(super) names: NameMap<Want>,
    /// Of these, which are not asked for here: another topic's subscription brings them too (R-DP-16).
    pub(super) borrowed: HashSet<Name>,
    /// Resources from a lender or an earlier stream that may be gone: kept until the answer to what is asked in their place,
    /// which takes their place whatever its constraints (R-DP-14, R-DP-16).
    pub(super) orphans: HashSet<(View, Name)>,
    /// Resources that are held and may be gone.
    pub(super) doubts: Doubts,
    /// Streams in a row, of each view, on which nothing at all came for as long as an answer may take.
    pub(super) silent_streams: SilentStreams,
    /// Of what is orphaned or borrowed, which identities the origin has said to be gone.
    pub(super) disproved: Disproved,
    /// Whether a client waits for evidence, of each view, that what the origin has not sent does not exist.
    pub(super) needs_proof: [bool; 2],
    /// This is new.
    pub(super) looks_again: bool,
    /// Set while streams are opened anew for proof that the wildcard set is complete.
    pub(super) unproven: Option<Unproven>,
    /// The origin sends what it was told is held: nothing is proven by what it does not send.
    pub(super) ignores_versions: bool,
    pub(super) habits: OriginHabits,
    /// Which of the streams are to be opened anew, and why.
    pub(super) renewals: [BTreeSet<Renewal>; 2],
    /// Where more than one variant of a name is for these parameters (R-DP-04), all that are held.
    pub(super) rivals: BTreeMap<(View, Name), Candidates>,
    /// One of these that came last, until it is complained of.
    pub(super) ambiguous: Option<Name>,
    pub(super) expiry: Expiry,
    /// When what may not be kept came (R-XT-09).
    pub(super) uncacheable: Expiry,
    /// `None` where the stream is not open.
    pub(super) subscriptions: [Option<StreamSubscription>; 2],
}

impl Topic {
    /// Parameters with which nothing is wanted yet, and which of the streams are open.
    pub(super) fn new(parameters: Parameters, open: [bool; 2]) -> Self {
        Self {
            parameters,
            wildcard: Want::No,
            names: NameMap::default(),
            borrowed: HashSet::default(),
            orphans: HashSet::default(),
            doubts: Doubts::default(),
            silent_streams: SilentStreams::default(),
            disproved: Disproved::default(),
            needs_proof: [false; 2],
            looks_again: false,
            unproven: None,
            ignores_versions: false,
            habits: OriginHabits::default(),
            renewals: Default::default(),
            rivals: BTreeMap::new(),
            ambiguous: None,
            expiry: Expiry::default(),
            uncacheable: Expiry::default(),
            subscriptions: open.map(|open| open.then(StreamSubscription::default)),
        }
    }

    pub(super) const fn subscription(&self, stream: StreamId) -> Option<&StreamSubscription> {
        self.subscriptions[stream as usize].as_ref()
    }

    /// A client waits for evidence that what the origin has not sent does not exist.
    pub(super) fn ask_for_proof(&mut self) {
        (self.needs_proof, self.looks_again) = ([true; 2], true);
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_idle(&self) -> bool {
        // Names that were let go are remembered for clients without parameters only: there is one topic of these.
        let is_over = |subscription: &StreamSubscription| {
            if self.parameters.is_empty() { subscription.is_idle() } else { subscription.asks_nothing() }
        };
        VIEWS.iter().all(|view| !self.wants(*view)) && self.subscriptions.iter().flatten().all(is_over)
    }

    /// Whether anybody wants anything in a view, or did lately.
    pub(super) fn is_live(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard.is_live(),
            View::Named => !self.names.is_empty(),
        }
    }

    pub(super) fn wants(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard != Want::No,
            View::Named => !self.names.is_empty(),
        }
    }

    /// Whether anything is asked for in a view that is not borrowed.
    pub(super) fn asks_in(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard != Want::No,
            View::Named => self.names.len() > self.borrowed.len(),
        }
    }

    /// Whether the origin is asked for this name here.
    pub(super) fn asks_for(&self, name: &Name) -> bool {
        self.names.contains_key(name) && !self.borrowed.contains(name)
    }

    /// Whether others may have it from here: what may not be kept is nothing to lend (R-XT-09), nor what is said to be gone.
    pub(super) fn may_lend(&self, name: &Name) -> bool {
        self.asks_for(name)
            && !self.uncacheable.has(View::Named, name)
            && !self.disproved.has(View::Named, name)
    }

    /// Whether what is held was not answered since it was asked for on this stream, or since a loan ended.
    pub(super) fn is_orphan(&self, view: View, name: &Name) -> bool {
        !self.orphans.is_empty() && self.orphans.contains(&(view, name.clone()))
    }

    pub(super) fn has_loans(&self) -> bool {
        !self.borrowed.is_empty()
    }

    pub(super) fn has_borrowed(&self, name: &Name) -> bool {
        self.borrowed.contains(name)
    }

    pub(super) fn opened(&mut self, stream: StreamId) {
        self.subscriptions[stream as usize] = Some(StreamSubscription::default());
        self.renewals[stream as usize].clear();
    }

    pub(super) fn closed(&mut self, stream: StreamId) {
        self.subscriptions[stream as usize] = None;
    }

    /// A name is wanted that was not, and what is held by another topic serves.
    pub(super) fn borrow(&mut self, name: &Name, lease: Option<Lease>) {
        self.expiry.set(View::Named, name, lease.map(|lease| lease.until()));
        self.names.insert(name.clone(), Want::Yes);
        self.borrowed.insert(name.clone());
    }

    /// A borrowed name is to be asked for.
    pub(super) fn end_loan(&mut self, name: &Name, home: Option<StreamId>) {
        self.orphans.extend(self.borrowed.take(name).map(|name| (View::Named, name)));
        self.touch_on(home, Some(name));
    }

    /// A name is wanted that was not.
    pub(super) fn add_name(&mut self, name: &Name, home: Option<StreamId>) {
        self.names.insert(name.clone(), Want::Yes);
        self.touch_on(home, Some(name));
    }

    /// The wildcard is wanted that was not.
    pub(super) fn add_wildcard(&mut self, home: Option<StreamId>) {
        self.wildcard = Want::Yes;
        self.touch_on(home, None);
    }

    /// The wildcard is seen as another topic sees it that asked for it in the same words, with what is in doubt there.
    pub(super) fn share_wildcard(&mut self, of: &Self, stream: Option<StreamId>, held: &[Op]) {
        let members = || held.iter().map(|op| (View::Wildcard, op.name().clone()));
        self.doubts.share(&of.doubts, members());
        self.orphans.extend(members().filter(|member| of.orphans.contains(member)));
        if let Some(stream) = stream
            && let (Some(subscription), Some(of)) =
                (&mut self.subscriptions[stream as usize], of.subscription(stream))
        {
            subscription.share_wildcard(of, members().map(|(_, name)| name));
        }
    }

    fn touch_on(&mut self, home: Option<StreamId>, name: Option<&Name>) {
        if let Some(subscription) = home.and_then(|home| self.subscriptions[home as usize].as_mut()) {
            subscription.touch(name.cloned());
        }
    }

    /// The wildcard that was asked for at one of these moments was answered for some topic.
    pub(super) fn hear_of_others(&mut self, stream: StreamId, asked: &[Instant], now: Instant) {
        if let Some(subscription) = &mut self.subscriptions[stream as usize]
            && subscription.wildcard_asked().is_some_and(|at| asked.contains(&at))
        {
            subscription.arrived(now, false, false);
        }
    }

    /// Other topics that asked for the wildcard on a stream have been answered.
    pub(super) fn others_answered(&mut self, stream: StreamId) {
        if let Some(subscription) = &mut self.subscriptions[stream as usize] {
            subscription.others_answered();
        }
    }

    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        self.subscriptions.iter().flatten().filter_map(StreamSubscription::unanswered_since).min()
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(super) fn shift(&mut self, pause: Duration, now: Instant) {
        self.disproved.shift(pause);
        self.unproven = self.unproven.map(|unproven| Unproven { since: unproven.since + pause, ..unproven });
        self.subscriptions.iter_mut().flatten().for_each(|subscription| subscription.shift(pause, now));
    }

    /// A name is let go.
    pub(super) fn remove_name(&mut self, name: &Name) {
        take_out(&mut self.names, name);
        self.borrowed.remove(name);
        self.orphans.remove(&(View::Named, name.clone()));
        self.disproved.remove(View::Named, name);
        self.doubts.remove(View::Named, name);
        for (subscription, renewals) in self.subscriptions.iter_mut().zip(&mut self.renewals) {
            if subscription.as_mut().is_some_and(|subscription| subscription.drop_name(name))
                && !self.names.is_empty()
            {
                // On another stream another one is to be sent.
                renewals.insert(Renewal::Doubt);
            }
        }
    }

    /// A client asks for a name that is asked for already: what was not kept has to come once more (R-XT-09).
    pub(super) fn want_again(&mut self, name: &Name, snapshot: &Snapshot) {
        if snapshot.held(View::Named, name.as_str()).is_some_and(|held| held.form() == Form::Dropped) {
            self.subscriptions.iter_mut().flatten().for_each(|subscription| subscription.ask_once_more(name));
        }
    }

    /// A name is to be subscribed to once more.
    pub(super) fn ask_again(&mut self, name: &Name) {
        self.subscriptions.iter_mut().flatten().for_each(|subscription| subscription.ask_again(name));
    }

    /// Whether a collection was asked for that has this member.
    fn is_listed(&self, name: &Name) -> bool {
        let covering = Collection::covering(name.as_str());
        covering.is_some_and(|covering| self.names.contains_key(covering.as_str()))
    }

    /// Ops for what is no longer known when a name was let go.
    pub(super) fn forget(&mut self, name: Name, snapshot: &Snapshot) -> Vec<Op> {
        let view = View::Named;
        let is_own = |held: &Arc<Resource>| *held.name() == name;
        if self.is_listed(&name) && snapshot.held(view, name.as_str()).is_some_and(is_own) {
            // It is held as a member of a collection too.
            return Vec::new();
        }
        let members = snapshot.answers_of(&name).cloned();
        let mut ops: Vec<Op> = members
            .filter(|member| !self.names.contains_key(member))
            .map(|name| Op::Forget { view, name })
            .collect();
        ops.push(Op::Forget { view, name });
        self.note(&ops);
        ops
    }

    fn remove_wildcard(&mut self, by_locator: bool) {
        self.wildcard = Want::No;
        self.unproven = None;
        self.doubts.drop_wildcard();
        self.expiry.drop_wildcard();
        self.rivals.retain(|(view, _), _| *view != View::Wildcard);
        self.orphans.retain(|(view, _)| *view != View::Wildcard);
        self.subscriptions
            .iter_mut()
            .flatten()
            .for_each(|subscription| subscription.drop_wildcard(by_locator));
    }

    /// Forgets the wildcard set. The origin is told if it was asked by locator. A member that clients ask for by name stays
    /// under its name until the origin answers for that: its end is nobody's word yet. Nor is what was said of the name before
    /// the member came: that is asked for again.
    pub(super) fn forget_wildcard(&mut self, by_locator: bool, snapshot: &Snapshot, now: Instant) -> Change {
        self.remove_wildcard(by_locator);
        let is_outdated = |name: &Name| self.asks_for(name) && is_absent(snapshot, name);
        let outdated: Vec<&Name> =
            snapshot.members().map(|member| member.name()).filter(|name| is_outdated(name)).collect();
        outdated.into_iter().for_each(|name| self.ask_again(name));
        let open = snapshot.members().filter(|member| self.is_open(member.name()));
        let open: BTreeMap<&Name, &Arc<Resource>> = open.map(|member| (member.name(), member)).collect();
        self.disproved.drop_wildcard(|name| open.contains_key(name), now);
        let mut ops: Vec<Op> = open.values().map(|member| snapshot.op_as_named(member)).collect();
        for name in open.into_keys() {
            let lease = snapshot.lease(View::Wildcard, name.as_str());
            self.expiry.set(View::Named, name, lease.map(|lease| lease.until()));
            if self.is_awaited(name) {
                self.orphans.insert((View::Named, name.clone()));
            }
        }
        let forget = |name: &Name| Op::Forget { view: View::Wildcard, name: name.clone() };
        ops.extend(snapshot.members().map(|member| forget(member.name())));
        Change { ops, wildcard_known: Some(Completeness::Unknown), ..Change::default() }
    }

    /// Takes notice of what is no longer held: whatever is gone does not end once more.
    pub(super) fn note(&mut self, ops: &[Op]) {
        self.expiry.note(ops);
        self.uncacheable.note(ops);
        self.disproved.note(ops);
        self.doubts.note(ops);
        let ends = |op: &&Op| matches!(op, Op::Remove { .. } | Op::Forget { .. } | Op::Withdraw { .. });
        if !self.rivals.is_empty() {
            for op in ops.iter().filter(ends) {
                self.rivals.remove(&(op.view(), op.name().clone()));
            }
        }
    }

    pub(super) fn enter(&mut self, view: View, stream: StreamId) {
        let Some(subscription) = &mut self.subscriptions[stream as usize] else { return };
        match view {
            View::Wildcard => subscription.touch([]),
            View::Named => {
                let borrowed = &self.borrowed;
                subscription.touch(self.names.keys().filter(|name| !borrowed.contains(*name)).cloned());
            }
        }
    }

    /// Takes notice of what the origin sends to others and is held here: it is there.
    pub(super) fn confirm(&mut self, reading: &DecodedResponse<'_>, snapshot: &Snapshot) {
        if self.disproved.is_empty() {
            return;
        }
        for heard in &reading.resources {
            for view in VIEWS {
                if let Some(held) = snapshot.held(view, &heard.name).filter(|held| heard.is_variant_of(held))
                {
                    self.disproved.remove(view, held.name());
                }
            }
        }
    }

    /// Whether anything may be held that the origin has not answered for these parameters on the streams that are open.
    pub(super) fn has_questions(&self) -> bool {
        let subscriptions = || self.subscriptions.iter().flatten();
        !self.orphans.is_empty()
            || !self.borrowed.is_empty()
            || subscriptions().any(|subscription| !subscription.has_asked())
            || (self.wants(View::Wildcard) && !subscriptions().any(StreamSubscription::covers_wildcard))
            || (self.asks_in(View::Named) && !subscriptions().any(StreamSubscription::has_names))
    }

    /// Whether it is still to be asked for: what is held is from an earlier stream, or from others.
    fn is_unasked(&self, view: View, name: &Name) -> bool {
        let mut subscriptions = self.subscriptions.iter().flatten();
        match view {
            View::Wildcard => self.wants(view) && !subscriptions.any(StreamSubscription::covers_wildcard),
            View::Named => {
                self.asks_for(name)
                    && !subscriptions.any(|subscription| subscription.asked_at(name).is_some())
            }
        }
    }

    /// Whether the origin has been asked for a name here, and has said nothing of it since.
    fn is_awaited(&self, name: &Name) -> bool {
        self.subscriptions
            .iter()
            .flatten()
            .any(|subscription| subscription.awaits_since(name.as_str()).is_some())
    }

    /// Whether a name is to be answered here that is asked for, or still to be asked for.
    fn is_open(&self, name: &Name) -> bool {
        self.asks_for(name) && (self.is_awaited(name) || self.is_unasked(View::Named, name))
    }

    /// Whether this variant is held beside others for the same parameters.
    pub(super) fn weighs(&self, view: View, held: &Resource) -> bool {
        let rivals = || self.rivals.get(&(view, held.name().clone()));
        !self.rivals.is_empty() && rivals().is_some_and(|rivals| rivals.has(held.constraints()))
    }

    /// Resource that is held of a name and was not answered for these parameters.
    pub(super) fn questions<'s>(
        &'s self,
        snapshot: &'s Snapshot,
        name: &str,
    ) -> impl Iterator<Item = (View, &'s Arc<Resource>)> {
        let held = VIEWS.map(|view| snapshot.held(view, name).map(|held| (view, held)));
        let is_own = |held: &Resource| held.name().as_str() == name;
        let held: Vec<_> = held.into_iter().flatten().filter(|(_, held)| is_own(held)).collect();
        held.into_iter().filter(|(view, held)| {
            (*view == View::Named && self.borrowed.contains(held.name()))
                || self.orphans.contains(&(*view, held.name().clone()))
                || self.is_unasked(*view, held.name())
        })
    }

    /// Does what has become due on the streams.
    pub(super) fn advance(
        &mut self,
        placed: [Placement; 2],
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
        counters: &Counters,
    ) -> Change {
        let mut change = Change::default();
        let ended = self.expiry.take_due(now);
        change.wildcard_known = self.note_lapse(&ended, snapshot);
        for (view, name) in ended {
            // The origin may hold it still: by name it is asked for again (R-TTL-09).
            if view == View::Named {
                self.ask_again(&name);
            }
            counters.expired.add(1);
            change.ops.push(gone(&self.names, view, name));
        }
        let past = now.checked_sub(settings.settle_max).map(|before| self.uncacheable.take_due(before));
        for (_, name) in past.into_iter().flatten() {
            // A collection is served from memory, as the wildcard is.
            if !self.is_listed(&name) {
                change.ops.push(Op::Drop { name });
            }
        }
        let subscriptions = &self.subscriptions;
        let asked =
            |name: &Name| subscriptions.iter().flatten().find_map(|subscription| subscription.asked_at(name));
        for name in self.disproved.take_due(settings.answer_timeout, now, asked) {
            self.orphans.remove(&(View::Named, name.clone()));
            change.ops.push(gone(&self.names, View::Named, name));
        }
        for Placement { stream, view } in placed {
            let Some(subscription) = &mut self.subscriptions[stream as usize] else { continue };
            let asked = now.checked_sub(settings.answer_timeout);
            if asked.is_some_and(|asked| subscription.give_up_on_suspects(asked)) {
                self.renewals[stream as usize].insert(Renewal::Unanswered);
            }
            let Some(view) = view else { continue };
            let complete =
                if view == View::Named { subscription.complete(settings, now) } else { Vec::new() };
            let degree = if subscription.has_asked() { subscription.step(settings, now) } else { None };
            let is_late = subscription
                .missing_since()
                .is_some_and(|since| since + MISSING_TIMEOUTS * settings.answer_timeout <= now);
            if is_late {
                self.silent_streams.add(view);
            }
            let may_renew = self.silent_streams.may_renew(view);
            let sweeps = settings.reconcile == Reconcile::Sweep;
            if (is_late || (degree.is_some() && subscription.is_over()))
                && self.doubts.met_silence(view, |name| !subscription.lacks(name))
            {
                // A sweep goes on without the versions that were told after a silence: the origin may never say what is gone.
                if sweeps && may_renew {
                    self.renewals[stream as usize].insert(Renewal::Doubt);
                } else if !sweeps && !is_late && view == View::Named {
                    self.doubts.note_unheeded();
                }
            }
            if is_late {
                // Nothing came at all, which is evidence of nothing.
                let has_version = |name: &&Name| {
                    let held = snapshot.held(view, name.as_str());
                    held.is_some_and(|held| held.origin_version().is_some() && held.constraints().is_none())
                };
                // Everything was claimed and may be as it was: then there was nothing to say. Somebody may wait for a sign that
                // the origin answers.
                if subscription.misses_nothing()
                    && may_renew
                    && (view == View::Named || snapshot.completeness() < Completeness::Complete)
                {
                    self.renewals[stream as usize].insert(Renewal::Doubt);
                }
                let missing: Vec<Name> = subscription.note_missing().filter(has_version).cloned().collect();
                self.doubt(Placement { stream, view: Some(view) }, missing, Doubt::Silence);
            }
            self.ask_about_open(Placement { stream, view: Some(view) }, settings, now, snapshot);
            self.doubt_kept_back(Placement { stream, view: Some(view) });
            let Some(subscription) = &mut self.subscriptions[stream as usize] else { continue };
            let unseen = match degree {
                Some(_) if subscription.is_over() => subscription.take_unseen(),
                // Resources that are missing after a long silence are asked for anew. They are taken for gone by an answer that is
                // over.
                Some(Completeness::Complete) => {
                    let (doubts, disproved) = (&self.doubts, &self.disproved);
                    let is_first = |name: &Name| doubts.get(view, name) != Some(Doubt::Missing);
                    subscription.note_late(|name| is_first(name) && !disproved.has(view, name))
                }
                _ => HashSet::default(),
            };
            for (name, unseen) in complete {
                change.ops.extend(self.judge(Placement { stream, view: Some(view) }, unseen, settings));
                change.ops.push(Op::Complete { name });
            }
            change.ops.extend(self.judge(Placement { stream, view: Some(view) }, unseen, settings));
            if view == View::Wildcard {
                let known = self.known_of_wildcard(stream, degree, settings, now, snapshot);
                let more = known.filter(|known| *known > snapshot.completeness());
                change.wildcard_known = change.wildcard_known.or(more);
            }
        }
        self.answer_by_name(&mut change.ops, snapshot);
        self.note(&change.ops);
        change
    }

    /// Members have come to their end. Where that leaves nothing of a set that is not complete, the origin was silent for as
    /// long, and what has not come yet is as unknown as before. Where their versions were told and no answer has come, the
    /// origin takes them for held.
    fn note_lapse(&mut self, ended: &[(View, Name)], snapshot: &Snapshot) -> Option<Completeness> {
        let members = ended.iter().filter(|(view, _)| *view == View::Wildcard).count();
        let left = snapshot.member_count().saturating_sub(members);
        let leaves_nothing = left == 0 && snapshot.completeness() < Completeness::Complete;
        let is_claimed = || {
            self.subscriptions
                .iter()
                .flatten()
                .any(|subscription| subscription.covers_wildcard() && subscription.awaits_proof())
        };
        if members == 0 || !(leaves_nothing || is_claimed()) {
            return None;
        }
        self.lapse(left, snapshot)
    }

    /// The wildcard set is known to lack something, or may, that the origin takes for delivered: it is asked for anew. Returns
    /// how much of the set is known until then, if that is less than before, given how many members are left. Clients that were
    /// shown the set see what goes from it. Newcomers are shown no set of which nothing is left.
    pub(super) fn lapse(&mut self, left: usize, snapshot: &Snapshot) -> Option<Completeness> {
        for (subscription, renewal) in self.subscriptions.iter_mut().zip(&mut self.renewals) {
            if let Some(subscription) =
                subscription.as_mut().filter(|subscription| subscription.covers_wildcard())
            {
                subscription.lapse();
                renewal.insert(Renewal::Doubt);
            }
        }
        self.needs_proof[View::Wildcard as usize] |= self.unproven.take().is_some();
        let known = if left > 0 { Completeness::Presumed } else { Completeness::Settled };
        Some(known).filter(|known| *known < snapshot.completeness())
    }

    /// How much of the wildcard set is known, given the degree that the answer has reached by its silence. Silence shows a set
    /// to newcomers, and proves nothing to clients that may hold something.
    fn known_of_wildcard(
        &mut self,
        stream: StreamId,
        degree: Option<Completeness>,
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
    ) -> Option<Completeness> {
        if snapshot.completeness() == Completeness::Complete {
            self.unproven = None;
            self.needs_proof[View::Wildcard as usize] = false;
            return degree;
        }
        let subscription = self.subscription(stream)?;
        if subscription.has_lapsed() {
            return None;
        }
        if !subscription.has_settled() {
            return degree;
        }
        let (reached, misses_some) = (subscription.degree(), !subscription.misses_nothing());
        let is_told = misses_some || snapshot.completeness() >= Completeness::Presumed;
        if degree.is_none()
            && is_told
            && self.unproven.is_none()
            && !self.needs_proof[View::Wildcard as usize]
        {
            // Nothing has changed: whether it is provable takes a look at each member.
            return None;
        }
        if !self.is_provable(View::Wildcard, stream, settings, snapshot) {
            if self.unproven.take().is_some()
                && self.ignores_versions
                && settings.reconcile == Reconcile::Sweep
            {
                // A member whose version was told in vain may be gone, and is swept.
                self.renewals[stream as usize].insert(Renewal::Doubt);
            }
            // Members that have not come again may still come, and others with them.
            let least = if misses_some { Completeness::Settled } else { Completeness::Presumed };
            return Some(degree.unwrap_or(reached).max(least));
        }
        if std::mem::take(&mut self.needs_proof[View::Wildcard as usize]) {
            self.unproven.get_or_insert(Unproven { since: now, is_shown: false });
            self.renewals[stream as usize].insert(Renewal::Proof);
        }
        let Some(unproven) = &mut self.unproven else {
            let is_long = reached == Completeness::Complete;
            return Some(if is_long { Completeness::Presumed } else { Completeness::Settled });
        };
        if unproven.since + UNPROVEN <= now {
            self.unproven = None;
            return Some(Completeness::Complete);
        }
        unproven.is_shown |= unproven.since + SHOWN <= now;
        Some(if unproven.is_shown { Completeness::Presumed } else { Completeness::Settled })
    }

    /// Whether the origin could prove on a stream that is opened anew that it has no more than what is held.
    fn is_provable(&self, view: View, stream: StreamId, settings: &Settings, snapshot: &Snapshot) -> bool {
        // A sweep that is not over yet goes on.
        let is_swept = StreamSubscription::misses_nothing;
        let trusts = settings.reconcile == Reconcile::Trust;
        let can_ask = |subscription: &StreamSubscription| {
            subscription.is_only() && (trusts || (view == View::Wildcard && is_swept(subscription)))
        };
        if self.ignores_versions || !self.subscription(stream).is_some_and(can_ask) {
            return false;
        }
        let is_claimable = |held: &Resource| held.origin_version().is_some() && held.constraints().is_none();
        self.would_fill(Some(view), snapshot)
            && match view {
                View::Wildcard => {
                    let fits = StreamSubscription::fits_in_one_request(snapshot.members());
                    snapshot.members().all(|held| is_claimable(held)) && fits
                }
                View::Named => self.names.keys().any(|name| {
                    let held = snapshot.held(view, name.as_str());
                    held.is_some_and(|held| held.form() == Form::Whole && is_claimable(held))
                }),
            }
    }

    /// Whether the origin was seen to put as much into one response as the least of what is held and another like the largest.
    pub(super) fn would_fill(&self, view: Option<View>, snapshot: &Snapshot) -> bool {
        let bounds = |bytes: &mut dyn Iterator<Item = usize>| {
            let first = bytes.next()?;
            Some(bytes.fold((first, first), |(least, most), bytes| (least.min(bytes), most.max(bytes))))
        };
        let bounds = if view == Some(View::Wildcard) {
            bounds(&mut snapshot.members().map(|held| held.body().len()))
        } else {
            let held = self.names.keys().filter_map(|name| snapshot.held(View::Named, name.as_str()));
            bounds(&mut held.map(|held| held.body().len()))
        };
        bounds.is_some_and(|(least, most)| least + most <= self.habits.filled)
    }

    /// Has names of which nothing is known, and that stay unanswered, asked for where silence says that they do not exist.
    fn ask_about_open(&mut self, placed: Placement, settings: &Settings, now: Instant, snapshot: &Snapshot) {
        let asked = now
            .checked_sub(OPEN_TIMEOUTS * settings.answer_timeout)
            .filter(|_| self.needs_proof[View::Named as usize]);
        let subscription = self.subscriptions[placed.stream as usize].as_mut();
        let open = asked
            .zip(subscription)
            .map(|(asked, subscription)| subscription.take_open(asked))
            .unwrap_or_default();
        if !open.is_empty()
            && self.habits.absences == Absences::Untold
            && self.is_provable(View::Named, placed.stream, settings, snapshot)
        {
            self.needs_proof[View::Named as usize] = false;
            self.doubt(placed, open, Doubt::Silence);
        }
    }

    /// Claims the resource that was kept back on another stream, where the answer has settled without it. All others were
    /// claimed, so that little is left to wait for; and each change meanwhile would put off the end of the answer.
    fn doubt_kept_back(&mut self, placed: Placement) {
        let (Some(view), Some(subscription)) = (placed.view, &mut self.subscriptions[placed.stream as usize])
        else {
            return;
        };
        let Some(name) = subscription.lacks_kept_back().cloned() else { return };
        let may_be_heeded = view == View::Wildcard || self.doubts.may_be_heeded();
        if may_be_heeded && self.doubts.get(view, &name).is_none_or(Doubt::was_told) {
            let late = subscription.note_late(|unseen| *unseen == name);
            self.doubt(placed, late, Doubt::Missing);
        }
    }

    /// Decides about what is held, was not claimed, and is missing from a complete answer. An answer that seems complete
    /// may be one that an origin or a link holds up: what is missing once is asked for again on another stream, with its
    /// version before all others, so that the origin can say itself that it is gone. Missing twice, it is gone: but for
    /// names that an origin is trusted to say that of.
    fn judge(&mut self, placed: Placement, unseen: HashSet<Name>, settings: &Settings) -> Vec<Op> {
        let Some(view) = placed.view else { return Vec::new() };
        let mut gone_now = Vec::new();
        for name in unseen {
            let is_listed = !self.names.contains_key(&name);
            let has_word = settings.reconcile == Reconcile::Trust || self.habits.absences == Absences::Relay;
            let is_left_to_origin = view == View::Named && !is_listed && has_word;
            // With parameters no version can be told (R-DP-14), and in a sweep none is told because of this: a new stream would
            // be no reason for the origin to say more.
            let asks_the_same = !self.parameters.is_empty() || settings.reconcile == Reconcile::Sweep;
            if is_left_to_origin && (asks_the_same || !self.doubts.may_be_heeded()) {
                continue;
            }
            let is_disproved = self.disproved.has(view, &name);
            if !is_disproved && self.doubts.get(view, &name) != Some(Doubt::Missing) {
                self.doubt(placed, [name], Doubt::Missing);
            } else if !is_left_to_origin {
                gone_now.push(gone(&self.names, view, name));
            }
        }
        gone_now
    }

    /// Has names asked for on another stream, before all others.
    fn doubt(&mut self, placed: Placement, names: impl IntoIterator<Item = Name>, doubt: Doubt) {
        let Some(view) = placed.view else { return };
        let may_renew = doubt != Doubt::Silence || self.silent_streams.may_renew(view);
        for name in names {
            if self.doubts.insert(view, name, doubt) && may_renew {
                self.renewals[placed.stream as usize].insert(Renewal::Doubt);
            }
        }
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let of = |stream: StreamId| {
            let subscription = self.subscription(stream)?;
            let suspect = subscription.suspect_since().map(|since| since + settings.answer_timeout);
            let missing =
                subscription.missing_since().map(|since| since + MISSING_TIMEOUTS * settings.answer_timeout);
            let open = subscription.open_since().filter(|_| self.needs_proof[View::Named as usize]);
            let open = open.map(|since| since + OPEN_TIMEOUTS * settings.answer_timeout);
            subscription.deadline(settings).into_iter().chain(suspect).chain(missing).chain(open).min()
        };
        let uncacheable = self.uncacheable.next().map(|came| came + settings.settle_max);
        let disproved = self.disproved.not_before().map(|at| at + settings.answer_timeout);
        let has_settled = || self.subscriptions.iter().flatten().any(StreamSubscription::has_settled);
        let unproven = self.unproven.filter(|_| has_settled()).map(|unproven| unproven.deadline());
        let rest = self.expiry.next().into_iter().chain(uncacheable).chain(disproved).chain(unproven);
        StreamId::ALL.into_iter().filter_map(of).chain(rest).min()
    }

    /// The next request for this type on a stream, and whether another has to follow.
    pub(super) fn changes(
        &mut self,
        stream: StreamId,
        target: &Target<'_>,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        let wanted = |name: &Name| self.names.contains_key(name) && !self.borrowed.contains(name);
        let Some(subscription) = &mut self.subscriptions[stream as usize] else { return (None, false) };
        let (request, more) = subscription.changes(target, &self.doubts, &wanted);
        if let Some(request) = &request {
            self.orphan(request, target);
            if let Some(view) = target.view {
                request.initial_resource_versions.keys().for_each(|name| self.doubts.tell(view, name));
            }
        }
        (request, more)
    }

    /// Notes which held resources, of those asked for now, may have become another variant: all but the claimed ones.
    fn orphan(&mut self, request: &DeltaDiscoveryRequest, target: &Target<'_>) {
        let Some(view) = target.view else { return };
        let located = request.resource_locators_subscribe.iter().map(|locator| &locator.name);
        let asked = || request.resource_names_subscribe.iter().chain(located.clone());
        let is_claimed = |held: &Arc<Resource>| {
            let name = held.name().as_str();
            target.is_claimed(held) || request.initial_resource_versions.contains_key(name)
        };
        let disproved = &mut self.disproved;
        let doubted = |held: &Arc<Resource>| {
            if is_claimed(held) {
                // Of what is claimed, silence says that it is there.
                disproved.remove(view, held.name());
                return None;
            }
            Some((view, held.name().clone()))
        };
        // Those that are not seen are not claimed either.
        if view == View::Named {
            let held = asked().filter_map(|name| target.snapshot.held(view, name));
            self.orphans.extend(held.filter_map(doubted));
            if !self.rivals.is_empty() {
                asked().for_each(|name| drop(self.rivals.remove(&(view, name.as_str().into()))));
            }
        } else if asked().next().is_some() || request.resource_names_unsubscribe.is_empty() {
            self.orphans.extend(target.snapshot.members().filter_map(doubted));
            self.rivals.retain(|(other, _), _| *other != view);
        }
    }
}

/// Whether the origin has said that a name does not exist.
fn is_absent(snapshot: &Snapshot, name: &Name) -> bool {
    snapshot.get(name.as_str()).is_some_and(|entry| matches!(entry.named(), Named::Absent))
}

/// Op for a name that does not exist (any more): clients that ask for it by name are told so for as long as it is asked for,
/// clients that ask for a collection only that it left.
pub(super) fn gone(names: &NameMap<Want>, view: View, name: Name) -> Op {
    if view == View::Named && !names.contains_key(&name) {
        Op::Withdraw { name }
    } else {
        Op::Remove { view, name }
    }
}
