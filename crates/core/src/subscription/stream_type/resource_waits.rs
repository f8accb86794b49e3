//! Unknown and denied names: which answers they hold back, until when, and which errors a client is owed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::super::per_stream_state::ResumedVersions;
use super::super::session_config::{SessionConfig, Upstream};
use super::{EvaluationInput, StreamType};
use crate::cache::{Completeness, Role, Update, VisibleState};
use crate::resource::{Kind, Name};

impl StreamType {
    /// When the last unknown name that the client may hold counts as absent after a change of
    /// parameters. `None` while the origin does not answer for the type.
    pub(in crate::subscription) fn obscured_until(&self, rules: &SessionConfig) -> Option<Instant> {
        let of = self.membership.of();
        let snapshot = of.snapshot();
        let is_unknown = |name: &Name| matches!(snapshot.by_name(name.as_str()), VisibleState::Unknown);
        let obscured = self.own().obscured.iter().filter(|(name, _)| is_unknown(name));
        let since = obscured.map(|(_, since)| *since).max();
        match since {
            Some(since) => Some(of.answering_since()?.max(since) + rules.longest_silence()),
            None => Some(self.asked),
        }
    }

    /// Whether a full state waits for unknown names.
    ///
    /// Some origins never say that a name does not exist (R-Delta-13), and a client that asks for
    /// one such name wants the others.
    /// - A client that holds nothing can lose nothing: it waits a moment for names that are about
    ///   to be answered.
    /// - A client that may hold the names waits much longer. It waits without end while the origin
    ///   does not answer, or while nothing that it asked for is known to exist.
    pub(super) fn waits_for_names(
        &self,
        update: &Update,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> bool {
        let may_hold = self.may_hold || self.subscription().wildcard;
        let of = self.membership.of();
        let knows = |names| of.parameter_view().scope().is_all() || of.knows_any_of(names);
        let knows = update.known_name && knows(self.subscription().names());
        if !may_hold && self.kind.full_state() && knows && update.has_content() {
            // The first answer of the type may be a part.
            let answering = of.answering_since().map_or(self.asked, |answering| answering.max(self.asked));
            let settled = answering + rules.settle;
            return moment.now < self.waits_until(rules).map_or(settled, |until| settled.min(until));
        }
        let shows = self.subscription().wildcard || (knows && update.has_content());
        // If nothing is held back from the client, each name has its whole time.
        let holds_back = update.has_content() || update.has_ghosts();
        let patience = self.patience(rules, moment).filter(|_| !holds_back);
        let waits = self.is_patient(rules, moment) || patience.is_some_and(|end| moment.now < end);
        // The client holds what this stream sent, and none of these names. Expired resources go
        // whether or not the origin answers (R-TTL-09).
        let longest = rules.longest_silence();
        let goes = update.has_ghosts()
            && moment.now >= self.ongoing(self.waits, longest).unwrap_or(self.asked) + longest;
        (self.may_hold && self.kind.full_state() && !shows)
            || (waits && !goes)
            || self.obscured_until(rules).is_none_or(|end| moment.now < end)
    }

    /// Whether an early answer would take something from this client, or show it too little.
    pub(super) fn may_lose(&self, moment: EvaluationInput) -> bool {
        let subscription = self.subscription();
        let mixes = subscription.wildcard && !subscription.names().is_empty();
        let resumed = matches!(self.own().resumed, Some(ResumedVersions::Versions(_)));
        let excludes = subscription.wildcard && self.is_full_state();
        let may_hold = self.may_hold || moment.is_relay || resumed || mixes || excludes;
        // Names of other types are sent one by one, and never proven absent.
        let is_shown_whole = self.kind.full_state() || subscription.wildcard;
        self.membership.role() == Role::Client && is_shown_whole && may_hold
    }

    /// Whether the client is owed answers about names that may be members of an incomplete set.
    pub(super) fn waits_for_members(&self) -> bool {
        let owed = &self.own().owed;
        self.subscription().wildcard
            && !(owed.names.is_empty() && owed.gone.is_empty())
            && self.membership.role() == Role::Client
            && self.membership.of().snapshot().completeness() < Completeness::Complete
    }

    /// When later types need no longer wait for the rest of this type's collections, though these
    /// may be incomplete: nothing was new for longer than two parts are apart on most links.
    /// `None` if something else is unknown, no member of a collection has come, or nothing was sent
    /// to the client. Single endpoints come one by one in any case.
    pub(in crate::subscription) fn collections_settle_at(&self) -> Option<Instant> {
        const APART: Duration = Duration::from_secs(1);
        let subscription = self.subscription();
        if !subscription.has_collections() || self.is_full_state() || self.own().resumed.is_some() {
            return None;
        }
        let snapshot = self.membership.of().snapshot();
        let has_begun = |name: &Name| snapshot.members_of(name).next().is_some();
        let mut unknown = subscription
            .names()
            .iter()
            .filter(|name| matches!(snapshot.by_name(name.as_str()), VisibleState::Unknown));
        if (subscription.wildcard && !snapshot.wildcard_known()) || !unknown.all(has_begun) {
            return None;
        }
        if self.kind == Kind::LocalityEndpoint {
            return Some(self.asked);
        }
        snapshot.changed_at().map(|changed| changed + APART)
    }

    /// Whether this stream has sent a response of the type.
    pub(in crate::subscription) const fn was_answered(&self) -> bool {
        self.newest_nonce.is_some()
    }

    /// Whether the client has clusters from an earlier stream and got none on this one.
    pub(in crate::subscription) fn has_clusters_from_before(&self) -> bool {
        self.kind == Kind::Cluster && (self.may_hold || self.own().resumed.is_some())
    }

    /// How complete the wildcard set must be before it is answered as a whole.
    pub(super) fn needed(&self) -> Completeness {
        match self.may_hold {
            true => Completeness::Complete,
            // A client that was sent the set sees removals from it.
            false if self.is_full_state() && self.position.is_start() => Completeness::Presumed,
            false => Completeness::Settled,
        }
    }

    /// When unanswered names of the newest subscription count as absent; `None` while the origin
    /// does not answer for the type. The time counts from the origin's first answer on this
    /// connection, as silence before it means nothing.
    pub(in crate::subscription) fn patience(
        &self,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Option<Instant> {
        let unanswered_from = self.membership.of().unanswered_from(self.asked, rules.longest_silence());
        unanswered_from.filter(|_| moment.upstream == Upstream::Answering)
    }

    /// End of the current wait, whatever was asked for since; `None` while the origin does not
    /// answer for the type.
    pub(in crate::subscription) fn waits_until(&self, rules: &SessionConfig) -> Option<Instant> {
        let longest = rules.longest_silence();
        let since = self.membership.of().answering_since()?.max(self.ongoing(self.waits, longest)?);
        Some(since + longest)
    }

    /// Start of a wait of at most `longest`; `None` if the client asked for something new long
    /// after its end.
    pub(super) fn ongoing(&self, since: Option<Instant>, longest: Duration) -> Option<Instant> {
        since.filter(|since| self.asked < *since + 2 * longest)
    }

    pub(super) fn is_patient(&self, rules: &SessionConfig, moment: EvaluationInput) -> bool {
        let end = self.patience(rules, moment);
        end.is_none_or(|end| moment.now < self.waits_until(rules).map_or(end, |until| end.min(until)))
    }
}

impl StreamType {
    /// Notes which names of a full state this client may not see (R-Err-06). Positions do not tell
    /// which clients held a resource that became denied.
    pub(in crate::subscription) fn note_denied(&mut self) {
        let own = self.own();
        if !self.position.is_start() && own.answering.is_empty() && own.owed.refused.is_empty() {
            return;
        }
        let snapshot = self.membership.of().snapshot();
        let mut refused = self.own().owed.refused.clone();
        refused.retain(|name, since| snapshot.denied(name.as_str()) == Some(*since));
        let subscription = self.subscription();
        if self.position.is_start() {
            refused.extend(snapshot.denied_of(subscription).map(|(name, since)| (name.clone(), since)));
        } else {
            let asked = self.own().answering.iter();
            refused.extend(asked.filter_map(|name| Some((name.clone(), snapshot.denied(name.as_str())?))));
        }
        refused.retain(|name, _| subscription.contains(name.as_str()) || subscription.covers(name.as_str()));
        if refused != self.own().owed.refused {
            self.own_mut().owed.refused = refused;
            self.trim();
        }
    }

    /// The errors of these names follow the full state that answered them.
    pub(in crate::subscription) fn owe_errors(&mut self, answered: &BTreeSet<Name>, update: &Update) {
        if answered.is_empty() {
            return;
        }
        let snapshot = self.membership.of().snapshot();
        let fails = |name: &Name| snapshot.get(name.as_str()).is_some_and(|entry| entry.failure().is_some());
        let owed = answered.iter().filter(|name| fails(name) && !update.has_error_of(name));
        let owed: Vec<Name> = owed.cloned().collect();
        if !owed.is_empty() {
            self.own_mut().owed.errors.extend(owed);
        }
    }
}
