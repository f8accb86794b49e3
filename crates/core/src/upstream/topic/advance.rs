//! Consequences of silence: what becomes due on the streams though nothing happened.

use std::time::Instant;

use foldhash::HashSet;

use super::super::doubts::Doubt;
use super::super::stream_subscription::StreamSubscription;
use super::super::{Counters, Reconcile, Settings, StreamId};
use super::{Absences, Placement, Renewal, SilentStreams, Topic, gone};
use crate::cache::{Change, Completeness, Op, Snapshot, View};
use crate::resource::Name;

/// An origin may take long for its first answer: what it has to send again, and does not, is doubted after so many times
/// the time for an answer.
const MISSING_TIMEOUTS: u32 = 5;

/// A name of which nothing is known, and that the origin leaves unanswered for so many times the time for an answer, is claimed on another
/// stream. An origin that is busy may take longer for a name than for the rest: what it says first is taken for all there is.
const OPEN_TIMEOUTS: u32 = 2;

impl Topic {
    /// Does what has become due on the streams.
    pub(in crate::upstream) fn advance(
        &mut self,
        placed: [Placement; 2],
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
        counters: &Counters,
    ) -> Change {
        let mut change = self.end_times(settings, now, snapshot, counters);
        for placed in placed {
            self.advance_on(placed, settings, now, snapshot, &mut change);
        }
        self.answer_by_name(&mut change.ops, snapshot);
        self.note(&change.ops);
        change
    }

    /// Ends what has its time behind it: resources with a TTL, bodies that may not be kept, and what was disproved and not
    /// answered since.
    fn end_times(
        &mut self,
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
        change
    }

    /// Does what has become due on one stream.
    fn advance_on(
        &mut self,
        placed: Placement,
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
        change: &mut Change,
    ) {
        let Some(subscription) = &mut self.subscriptions[placed.stream as usize] else { return };
        if let Some(asked) = now.checked_sub(settings.answer_timeout) {
            let given_up = subscription.give_up_on_suspects(asked);
            if !given_up.is_empty() {
                self.renewals[placed.stream as usize].insert(Renewal::Unanswered);
            }
            self.retries.insert(given_up, now);
        }
        let Some(view) = placed.view else { return };
        let complete = if view == View::Named { subscription.complete(settings, now) } else { Vec::new() };
        let degree = if subscription.has_asked() { subscription.step(settings, now) } else { None };
        self.note_silence(placed, degree, settings, now, snapshot);
        self.ask_about_open(placed, settings, now);
        self.doubt_kept_back(placed);
        let Some(subscription) = &mut self.subscriptions[placed.stream as usize] else { return };
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
            change.ops.extend(self.judge(placed, unseen, settings));
            change.ops.push(Op::Complete { name });
        }
        change.ops.extend(self.judge(placed, unseen, settings));
        if view == View::Wildcard {
            let known = self.known_of_wildcard(placed.stream, degree, settings, now, snapshot);
            let more = known.filter(|known| *known > snapshot.completeness());
            change.wildcard_known = change.wildcard_known.or(more);
        }
    }

    /// Doubts what is held where the origin is silent: at the end of an answer, or where nothing at all came of it for long.
    fn note_silence(
        &mut self,
        placed: Placement,
        degree: Option<Completeness>,
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
    ) {
        let (Some(view), Some(subscription)) = (placed.view, &mut self.subscriptions[placed.stream as usize])
        else {
            return;
        };
        if self.habits.speaks_sotw {
            // It was told no version to speak of, and would answer the same question with the same silence.
            return;
        }
        let sweeps = settings.reconcile == Reconcile::Sweep;
        let is_late = missing_at(subscription, &self.silent_streams, settings).is_some_and(|at| at <= now);
        if is_late {
            self.silent_streams.add(view);
        }
        let may_renew = self.silent_streams.may_renew(view);
        // The answer may still come where no other stream is to be opened for a silence.
        let is_silent = is_late && (may_renew || !sweeps);
        if (is_silent || (degree.is_some() && subscription.is_over()))
            && self.doubts.met_silence(view, |name| !subscription.lacks(name))
        {
            // A sweep goes on without the versions that were told after a silence: the origin may never say what is gone.
            if sweeps && may_renew {
                self.renewals[placed.stream as usize].insert(Renewal::Doubt);
            } else if !sweeps && !is_late && view == View::Named {
                self.doubts.note_unheeded();
            }
        }
        if is_late {
            // Nothing came at all, which is evidence of nothing.
            let provenance = &self.provenance;
            let has_version = |name: &&Name| {
                let held = snapshot.held(view, name.as_str());
                held.is_some_and(|held| provenance.may_claim(view, held))
            };
            // Everything was claimed and may be as it was: then there was nothing to say. Somebody may wait for a sign that
            // the origin answers.
            if subscription.misses_nothing()
                && may_renew
                && (view == View::Named || snapshot.completeness() < Completeness::Complete)
            {
                self.renewals[placed.stream as usize].insert(Renewal::Doubt);
            }
            let missing: Vec<Name> = subscription.note_missing().filter(has_version).cloned().collect();
            self.doubt(placed, missing, Doubt::Silence);
        }
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

    /// Has names of which nothing is known, and that stay unanswered, asked for where silence says that they do not exist, or an origin
    /// that reads versions says it itself.
    fn ask_about_open(&mut self, placed: Placement, settings: &Settings, now: Instant) {
        let asked = now
            .checked_sub(OPEN_TIMEOUTS * settings.answer_timeout)
            .filter(|_| self.needs_proof[View::Named as usize]);
        let subscription = self.subscriptions[placed.stream as usize].as_mut();
        let open = asked
            .zip(subscription)
            .map(|(asked, subscription)| subscription.take_open(asked))
            .unwrap_or_default();
        let is_only = self.subscription(placed.stream).is_some_and(StreamSubscription::is_only);
        if !open.is_empty()
            && self.habits.absences == Absences::Untold
            && self.reads_versions()
            && self.habits.gives_versions
            && !self.habits.ignores_versions
            && settings.reconcile == Reconcile::Trust
            && is_only
        {
            self.needs_proof[View::Named as usize] = false;
            let is_new = |name: &Name| self.doubts.get(View::Named, name).is_none();
            let open: Vec<Name> = open.into_iter().filter(is_new).collect();
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
        if self.habits.speaks_sotw {
            // The state of the world has told what is gone; of other types nothing is missing (R-SotW-19).
            return Vec::new();
        }
        let mut gone_now = Vec::new();
        for name in unseen {
            let is_listed = !self.names.contains_key(&name);
            let has_word = settings.reconcile == Reconcile::Trust || self.habits.absences == Absences::Relay;
            let is_left_to_origin = view == View::Named && !is_listed && has_word;
            // With parameters no version can be told (R-DP-14), nor one that another server gave (R-Up-04), and in a sweep none is
            // told because of this: a new stream would be no reason for the origin to say more.
            let asks_the_same = !self.parameters.is_empty()
                || settings.reconcile == Reconcile::Sweep
                || self.provenance.is_foreign(view, &name);
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
    pub(in crate::upstream) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let of = |stream: StreamId| {
            let subscription = self.subscription(stream)?;
            let suspect = subscription.suspect_since().map(|since| since + settings.answer_timeout);
            let missing =
                missing_at(subscription, &self.silent_streams, settings).filter(|_| !self.habits.speaks_sotw);
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
}

/// When an answer of which nothing at all came is given up.
fn missing_at(
    subscription: &StreamSubscription,
    silent_streams: &SilentStreams,
    settings: &Settings,
) -> Option<Instant> {
    let usual = MISSING_TIMEOUTS * settings.answer_timeout;
    let view = if subscription.covers_wildcard() { View::Wildcard } else { View::Named };
    let patience = match settings.reconcile {
        Reconcile::Sweep => silent_streams.patience(view, usual),
        Reconcile::Trust => usual,
    };
    subscription.missing_since().map(|since| since + patience)
}
