//! Resources that a client holds from before: from another subscription or other parameters on this stream, or from an earlier
//! stream (R-Delta-05 to R-Delta-07).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashMap;

use super::super::per_stream_state::{ResumedVersions, Versions};
use super::super::session_config::SessionConfig;
use super::{EvaluationInput, StreamType};
use crate::cache::{
    FellBehindError, Position, Protocol, Snapshot, StreamProfile, Subscription, TypeCache, VisibleState,
};
use crate::resource::{Constraints, Kind, Name, Resource};

struct Move<'n> {
    old: Arc<Snapshot>,
    old_names: Subscription,
    profile: StreamProfile,
    sent: Position,
    new: Arc<Snapshot>,
    names: &'n Subscription,
}

impl Move<'_> {
    /// Whether the client was sent what it sees now, with or without a locator as now.
    fn is_held(&self, name: &str) -> bool {
        self.old.was_sent(name, &self.old_names, self.profile, &self.sent)
            && self.old_names.locates(name) == self.names.locates(name)
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
        now: Instant,
    ) -> Result<(), FellBehindError> {
        self.asked = now;
        if !Arc::ptr_eq(&of, self.membership.of()) {
            return self.change_store_of(of, subscription);
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
            if self.membership.profile().protocol == Protocol::Delta && self.is_unanswered() {
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
            if !update.additions && !update.removals {
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
        self.own_mut().wildcard_left = None;
        // The held version is unknown.
        self.bring(unanswered.map(|name| (name, "")))
    }

    /// Counts these versions as brought, with those that the client did bring.
    fn bring<'v>(&mut self, held: impl Iterator<Item = (&'v str, &'v str)>) -> Result<(), FellBehindError> {
        let resumed =
            self.own_mut().resumed.get_or_insert_with(|| ResumedVersions::Versions(Versions::default()));
        let ResumedVersions::Versions(versions) = resumed else { return Ok(()) };
        versions.extend(held);
        if versions.is_over() { Err(FellBehindError) } else { Ok(()) }
    }

    /// Moves to the store of other parameters (R-DP-12). Resources are sent again only as another
    /// variant, or if gone.
    fn change_store_of(
        &mut self,
        of: Arc<TypeCache>,
        subscription: Subscription,
    ) -> Result<(), FellBehindError> {
        self.reevaluate();
        let profile = self.membership.profile();
        let moved = Move {
            old: self.membership.of().snapshot(),
            old_names: self.subscription().clone(),
            profile,
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
            // A name that is unknown with the new parameters is sent once it is known.
            let lacked = moved.names.names().iter().filter(|name| !moved.is_held(name.as_str())).cloned();
            self.own_mut().owed.names.extend(lacked);
            self.trim();
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
        self.membership.change_store(&of, subscription);
        self.unknown = None;
        Ok(())
    }

    /// Counts sent resources as brought. Other variants have no version to compare (R-DP-14).
    fn resume_held(&mut self, moved: &Move<'_>) -> Result<(), FellBehindError> {
        if let Some(ResumedVersions::Versions(versions)) = &mut self.own_mut().resumed {
            versions.forget_versions();
        }
        self.bring(moved.old.held_by(&moved.old_names, &moved.sent).map(|(name, held)| {
            let held = held.filter(|held| moved.is_held(held.name().as_str()));
            (name.as_str(), held.map(Resource::version).unwrap_or_default())
        }))
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

/// Rough bytes of a name in a set, beside its text.
const NAME: usize = 64;

impl StreamType {
    /// Whether the client brought members of an unknown collection, which would be taken for gone.
    pub(super) fn resumes_unknown_collection(&self, versions: &Versions, snapshot: &Snapshot) -> bool {
        self.subscription().collections().any(|(name, collection)| {
            is_unresolved(snapshot, name) && versions.names().any(|version| collection.covers(version))
        })
    }

    /// Whether the client brought resources of a still unknown alias (R-Delta-21), which would be
    /// taken for gone.
    pub(super) fn resumes_unknown_alias(&self, versions: &Versions, snapshot: &Snapshot) -> bool {
        let subscription = self.subscription();
        let is_member = |name: &str| {
            let member = snapshot.get(name).filter(|_| subscription.wildcard);
            member.is_some_and(|entry| entry.as_member().present().is_some())
        };
        (self.kind == Kind::VirtualHost || snapshot.has_aliases())
            && subscription
                .names()
                .iter()
                .any(|name| matches!(snapshot.by_name(name.as_str()), VisibleState::Unknown))
            && versions.names().any(|name| {
                !subscription.contains(name)
                    && !is_member(name)
                    && !snapshot.is_seen_by_alias(subscription, name)
            })
    }

    /// Applies the versions that the client brought (R-Delta-05 to R-Delta-07).
    ///
    /// Their charge now pays for the names of removed resources, which take more. If that is too
    /// much, the versions are ignored; a client that was sent something must reconnect.
    pub(super) fn compare_versions(
        &mut self,
        snapshot: &Snapshot,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<(), FellBehindError> {
        let Some(ResumedVersions::Versions(mut versions)) = self.take_resumed() else { return Ok(()) };
        let charge = versions.take_charge();
        let subscription = self.membership.subscription().clone();
        let mut own = self.own.take().unwrap_or_default();
        let (owed, mut names) = (&mut own.owed, BTreeSet::new());
        // By name: whether it is in the set, and the held version.
        let mut resumed: HashMap<&str, (bool, &str)> =
            versions.iter().map(|(name, version)| (name, (false, version))).collect();
        // When a held TTL was sent is unknown, so it is sent again (R-TTL-09).
        let is_timed =
            |name: &Name| self.membership.profile().receives_ttls() && snapshot.is_leased(name.as_str());
        let current = |name: &Name| snapshot.by_name(name.as_str()).existing();
        let is_brought = |name: &Name| {
            resumed.contains_key(current(name).map_or(name, |resource| resource.name()).as_str())
        };
        // Some Envoys have forgotten what they claim; a relay has not.
        let is_trusted = rules.trust_initial_versions || moment.is_relay;
        let trusted = is_trusted && subscription.names().iter().any(is_brought);
        // Subscribed names are sent whatever the client holds.
        let is_set = subscription.wildcard || trusted || subscription.has_collections();
        if is_set {
            let members = snapshot.members().filter(|_| subscription.wildcard);
            let listed = subscription.collections().flat_map(|(name, _)| snapshot.members_of(name));
            for member in members.chain(listed) {
                owed.gone.remove(member.name());
                let is_held = resumed.get_mut(member.name().as_str()).is_some_and(|(is_there, held)| {
                    *is_there = true;
                    *held == member.version() && !is_timed(member.name())
                });
                if !is_held && !subscription.contains(member.name().as_str()) {
                    names.insert(member.name().clone());
                }
            }
            for name in subscription.names() {
                let is_held = |resource: &Arc<Resource>| {
                    let held = resumed.get(resource.name().as_str());
                    held.is_some_and(|(_, held)| *held == resource.version()) && !is_timed(resource.name())
                };
                if !(trusted && current(name).is_some_and(is_held)) {
                    names.insert(name.clone());
                }
            }
        }
        // Routes may still lead to a held name that is gone (R-ADS-03).
        let stays =
            |name| subscription.contains(name) && !matches!(snapshot.by_name(name), VisibleState::Absent);
        resumed.retain(|name, (is_there, _)| !*is_there && !stays(name));
        own.gone = charge.or_else(|| own.gone.take());
        let gone = resumed.keys().copied().chain(owed.gone.iter().map(Name::as_str));
        let bytes = gone.map(|name| NAME + name.len()).sum();
        let fits = own.gone.as_mut().is_none_or(|charge| charge.charge(bytes));
        if fits {
            owed.gone.extend(resumed.into_keys().map(Name::from));
            owed.names.append(&mut names);
        } else {
            owed.gone.clear();
        }
        self.own = Some(own);
        self.trim();
        if !fits {
            return if self.newest_nonce.is_some() { Err(FellBehindError) } else { Ok(()) };
        }
        if is_set {
            self.position = Position::up_to(snapshot.generation());
            self.must_answer |= subscription.wildcard;
        }
        Ok(())
    }
}

/// Whether nothing but, perhaps, an error is known.
fn is_unresolved(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(snapshot.by_name(name.as_str()), VisibleState::Unknown | VisibleState::Failed)
}
