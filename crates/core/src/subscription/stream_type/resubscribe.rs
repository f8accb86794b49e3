//! Change of a subscription, or of the parameters through which it is seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::super::initial_versions::Versions;
use super::super::per_stream_state::ResumedVersions;
use super::StreamType;
use crate::cache::{
    FellBehindError, Position, Protocol, Snapshot, StreamProfile, Subscription, TypeCache, VisibleState,
};
use crate::resource::{Constraints, Name, Resource};

struct Move<'n> {
    old: Arc<Snapshot>,
    old_names: Subscription,
    old_profile: StreamProfile,
    sent: Position,
    new: Arc<Snapshot>,
    names: &'n Subscription,
}

impl Move<'_> {
    fn was_sent(&self, name: &str) -> bool {
        self.old.was_sent(name, &self.old_names, self.old_profile, &self.sent)
    }

    /// Whether a name has a locator before and after, or neither.
    fn is_spelled_alike(&self, name: &str) -> bool {
        self.old_names.locates(name) == self.names.locates(name)
    }

    /// Whether the client was sent what it sees now.
    fn is_held(&self, name: &str) -> bool {
        self.was_sent(name)
            && self.is_spelled_alike(name)
            && match (self.old.seen_by(&self.old_names, name), self.new.seen_by(self.names, name)) {
                (Some(sent), Some(seen)) => sent.same_content(seen),
                _ => false,
            }
    }

    fn is_set(&self) -> bool {
        self.names.wildcard || self.old_names.wildcard || self.old_names.has_collections()
    }

    /// Sent variants of names of which a client with locators now sees others.
    fn past_variants(&self) -> Vec<(Name, Vec<Option<Constraints>>)> {
        let names = self.old_names.names().iter();
        let seen = self.old.entries().map(|entry| entry.name()).filter(|_| self.is_set());
        let sent = names.chain(seen).filter(|name| self.old_names.locates(name.as_str()));
        let changed = sent.filter(|name| !self.is_held(name.as_str()));
        let past = |name: &Name| {
            let past: Vec<_> = self.old.variants(name.as_str()).collect();
            // Without a memory of it, the removed resource had no constraints.
            if past.is_empty() { vec![None] } else { past }
        };
        changed.map(|name| (name.clone(), past(name))).collect()
    }
}

impl StreamType {
    /// Changes the subscription, and the store with new parameters.
    pub(in crate::subscription) fn resubscribe(
        &mut self,
        of: Arc<TypeCache>,
        subscription: Subscription,
        profile: StreamProfile,
        now: Instant,
    ) -> Result<(), FellBehindError> {
        self.asked = now;
        if !Arc::ptr_eq(&of, self.membership.of()) {
            return self.change_store_of(of, subscription, profile);
        }
        if subscription == *self.subscription() {
            return Ok(());
        }
        if self.subscription().wildcard && !subscription.wildcard {
            let sent = self.is_unanswered().then_some(self.position.removed);
            let own = self.own_mut();
            own.wildcard_left = own.wildcard_left.or(sent);
            // The client drops wildcard members by itself (R-Delta-10).
            own.owed.gone.clear();
            self.trim();
        }
        if subscription.wildcard && !self.subscription().wildcard {
            if profile.protocol == Protocol::Delta && self.is_unanswered() {
                self.resume_unanswered(&subscription)?;
            }
            self.position = Position::default();
            self.must_answer = true;
            // A resource sent by name may be a member that has not come yet.
            self.may_hold |= self.newest_nonce.is_some();
            self.waits = None;
        } else if !self.position.is_start() && !self.position.is_in_parts() && !self.is_gated() {
            // Move up to now if all was sent. Else new names, which are owed, would be sent twice.
            let (of, cohort) = (self.membership.of(), self.membership.cohort());
            let update = of.update(cohort, &self.position, now)?;
            if !update.has_additions() && !update.has_removals() {
                update.settle(&mut self.position);
            }
        }
        self.membership.change(subscription);
        self.unknown = None;
        Ok(())
    }

    /// Counts unanswered resources as brought by a client that asks for the wildcard again, as it
    /// may read them after its request.
    fn resume_unanswered(&mut self, subscription: &Subscription) -> Result<(), FellBehindError> {
        let snapshot = self.membership.of().snapshot();
        let removed = self
            .own()
            .wildcard_left
            .map_or(self.position.removed, |wildcard_left| wildcard_left.min(self.position.removed));
        if !snapshot.remembers(removed) {
            return Err(FellBehindError);
        }
        let mut sent = self.position.clone();
        sent.removed = removed;
        let unanswered = snapshot.held_by(subscription, &sent).map(|(name, _)| name.as_str());
        let mut versions = match self.take_resumed() {
            Some(ResumedVersions::Versions(versions)) => versions,
            Some(ResumedVersions::Digest(_)) | None => Versions::default(),
        };
        // The held version is unknown.
        versions.extend(unanswered.map(|name| (name, "")));
        if versions.is_over() {
            return Err(FellBehindError);
        }
        let own = self.own_mut();
        (own.resumed, own.wildcard_left) = (Some(ResumedVersions::Versions(versions)), None);
        Ok(())
    }

    /// Moves to the store of other parameters (R-DP-12). Resources are sent again only as another
    /// variant, or if gone.
    fn change_store_of(
        &mut self,
        of: Arc<TypeCache>,
        subscription: Subscription,
        profile: StreamProfile,
    ) -> Result<(), FellBehindError> {
        self.reevaluate();
        let moved = Move {
            old: self.membership.of().snapshot(),
            old_names: self.subscription().clone(),
            old_profile: self.membership.profile(),
            sent: self.position.clone(),
            new: of.snapshot(),
            names: &subscription,
        };
        let is_delta = profile.protocol == Protocol::Delta;
        // With the wildcard the position starts anew.
        if is_delta && self.newest_nonce.is_some() && moved.old_names.locators().is_some() {
            let past = moved.past_variants();
            if !past.is_empty() {
                let own = self.own_mut();
                past.into_iter().for_each(|(name, past)| own.owed.remember(name, past));
            }
        }
        if self.position.is_start() {
            // Nothing was sent, so nothing must be taken back.
        } else if moved.is_set() && is_delta {
            self.resume_held(&moved)?;
            self.position = Position::default();
        } else if moved.is_set() || profile.is_full_state(self.kind) {
            self.position = Position::default();
            self.must_answer = true;
        } else {
            self.owe_others(&moved);
            self.position = Position::up_to(moved.new.generation());
        }
        self.must_answer |= subscription.wildcard;
        self.may_hold = true;
        if profile.is_full_state(self.kind) {
            self.note_obscured(&moved.old, &moved.new, &subscription);
        } else {
            // The wait for held names begins anew.
            self.waits = None;
        }
        self.membership.change_store(of, subscription);
        self.unknown = None;
        Ok(())
    }

    /// Counts sent resources as brought. Other variants have no version to compare (R-DP-14).
    fn resume_held(&mut self, moved: &Move<'_>) -> Result<(), FellBehindError> {
        let mut held = match self.take_resumed() {
            Some(ResumedVersions::Versions(resumed)) => resumed,
            Some(ResumedVersions::Digest(_)) | None => Versions::default(),
        };
        held.forget_versions();
        held.extend(moved.old.held_by(&moved.old_names, &moved.sent).map(|(name, held)| {
            let held = held.filter(|held| moved.is_held(held.name().as_str()));
            (name.as_str(), held.map(Resource::version).unwrap_or_default())
        }));
        if held.is_over() {
            return Err(FellBehindError);
        }
        self.own_mut().resumed = Some(ResumedVersions::Versions(held));
        Ok(())
    }

    /// Owes every name whose current resource the client lacks. The held resource of an unknown
    /// name is remembered: unchanged content is no news.
    fn owe_others(&mut self, moved: &Move<'_>) {
        let owed = &mut self.own_mut().owed;
        let mut held = std::mem::take(&mut owed.held);
        for name in moved.names.names().iter().filter(|name| !moved.is_held(name.as_str())) {
            let seen = moved.old.by_name(name.as_str()).present();
            let seen = seen.filter(|_| moved.was_sent(name.as_str())).cloned();
            let held = held.remove(name).or(seen).filter(|_| {
                moved.is_spelled_alike(name.as_str())
                    && matches!(moved.new.by_name(name.as_str()), VisibleState::Unknown)
            });
            match held.filter(|_| !owed.names.contains(name)) {
                Some(held) => drop(owed.held.insert(name.clone(), held)),
                None => drop(owed.names.insert(name.clone())),
            }
        }
        self.trim();
    }

    /// Notes names for which the next full state waits: shown before, unknown to the new store.
    /// Each has its own start, so that a client that keeps asking for new names still gets the
    /// others.
    fn note_obscured(&mut self, old: &Snapshot, new: &Snapshot, subscription: &Subscription) {
        let before = self.own.as_mut().map(|own| std::mem::take(&mut own.obscured)).unwrap_or_default();
        let was_shown = |name: &Name| old.seen_by(self.subscription(), name.as_str()).is_some();
        let is_unknown = |name: &&Name| matches!(new.by_name(name.as_str()), VisibleState::Unknown);
        let since = |name: &Name| was_shown(name).then_some(self.asked).or_else(|| before.get(name).copied());
        let unknown = subscription.names().iter().filter(is_unknown);
        let obscured: BTreeMap<_, _> =
            unknown.filter_map(|name| Some((name.clone(), since(name)?))).collect();
        if !obscured.is_empty() {
            self.own_mut().obscured = obscured;
        }
        self.trim();
    }
}
