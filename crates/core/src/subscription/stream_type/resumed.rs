//! Versions that a client brought along (R-Delta-05 to R-Delta-07).

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashMap;

use super::super::own_state::{OwnState, ResumedVersions};
use super::super::session_config::SessionConfig;
use super::{EvaluationInput, StreamType};
use crate::cache::{FellBehindError, Position, Seen, Snapshot};
use crate::resource::{Kind, Name, Resource};

/// The rough cost in bytes of a name in a set, beside its text.
const NAME: usize = 64;

impl StreamType {
    /// Whether it brought versions of members of a collection that is not complete: what it does not have (yet) would be
    /// taken for gone.
    pub(super) fn brought_of_unknown(&self, snapshot: &Snapshot) -> bool {
        let Some(ResumedVersions::Versions(versions)) = &self.own().brought else { return false };
        self.subscription().collections().any(|(name, collection)| {
            is_unheard(snapshot, name) && versions.names().any(|version| collection.covers(version))
        })
    }

    /// Whether it brought versions of what it may have asked for by an alias that is not known yet (R-Delta-21): taken for
    /// gone it would be deleted.
    pub(super) fn brought_by_alias(&self, snapshot: &Snapshot) -> bool {
        let Some(ResumedVersions::Versions(versions)) = &self.own().brought else { return false };
        let subscription = self.subscription();
        let is_member = |name: &str| {
            let member = snapshot.get(name).filter(|_| subscription.wildcard);
            member.is_some_and(|entry| entry.as_member().present().is_some())
        };
        (self.kind == Kind::VirtualHost || snapshot.has_aliases())
            && subscription
                .names()
                .iter()
                .any(|name| matches!(snapshot.by_name(name.as_str()), Seen::Unknown))
            && versions.names().any(|name| {
                !subscription.contains(name)
                    && !is_member(name)
                    && !snapshot.is_seen_by_alias(subscription, name)
            })
    }

    /// Takes up the versions that the client says it holds (R-Delta-05 to R-Delta-07). From here on their charge is
    /// for the names of those that are gone, which take more. Where that is too much it is as if there were no versions; a
    /// client that was told something on this stream has to come again.
    pub(super) fn compare_versions(
        &mut self,
        snapshot: &Snapshot,
        rules: &SessionConfig,
        moment: EvaluationInput,
    ) -> Result<(), FellBehindError> {
        let Some(ResumedVersions::Versions(mut versions)) = self.take_brought() else { return Ok(()) };
        let charge = versions.take_charge();
        let subscription = self.membership.subscription().clone();
        let mut own = self.own.take().unwrap_or_else(|| Box::new(OwnState::NONE));
        let (owed, mut names) = (&mut own.owed, BTreeSet::new());
        // For each name, whether it is in the set, and the version that the client holds.
        let mut brought: HashMap<&str, (bool, &str)> =
            versions.iter().map(|(name, version)| (name, (false, version))).collect();
        // When it was told the time of what it holds, it is not known: it is told once more (R-TTL-09).
        let is_timed = |name: &Name| self.membership.is_told_times() && snapshot.is_leased(name.as_str());
        let current = |name: &Name| snapshot.by_name(name.as_str()).existing();
        let is_brought = |name: &Name| {
            brought.contains_key(current(name).map_or(name, |resource| resource.name()).as_str())
        };
        // A relay has not forgotten what it claims, as some Envoys have.
        let is_trusted = rules.trust_initial_versions || moment.is_relay;
        let trusted = is_trusted && subscription.names().iter().any(is_brought);
        // Names that were asked for are sent whatever the client holds; its versions change nothing.
        let is_set = subscription.wildcard || trusted || subscription.has_collections();
        if is_set {
            let members = snapshot.members().filter(|_| subscription.wildcard);
            let listed = subscription.collections().flat_map(|(name, _)| snapshot.members_of(name));
            for member in members.chain(listed) {
                owed.gone.remove(member.name());
                let is_held = brought.get_mut(member.name().as_str()).is_some_and(|(is_there, held)| {
                    *is_there = true;
                    *held == member.version() && !is_timed(member.name())
                });
                if !is_held && !subscription.contains(member.name().as_str()) {
                    names.insert(member.name().clone());
                }
            }
            for name in subscription.names() {
                let is_held = |resource: &Arc<Resource>| {
                    let held = brought.get(resource.name().as_str());
                    held.is_some_and(|(_, held)| *held == resource.version()) && !is_timed(resource.name())
                };
                if !(trusted && current(name).is_some_and(is_held)) {
                    names.insert(name.clone());
                }
            }
        }
        // A name that it held is gone like a member: its routes may lead there still (R-ADS-03).
        let stays = |name| subscription.contains(name) && !matches!(snapshot.by_name(name), Seen::Absent);
        brought.retain(|name, (is_there, _)| !*is_there && !stays(name));
        own.gone = charge.or_else(|| own.gone.take());
        let gone = brought.keys().copied().chain(owed.gone.iter().map(Name::as_str));
        let bytes = gone.map(|name| NAME + name.len()).sum();
        let fits = own.gone.as_mut().is_none_or(|charge| charge.charge(bytes));
        if fits {
            owed.gone.extend(brought.into_keys().map(Name::from));
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

/// Whether nothing is known of a name but, at most, an error.
fn is_unheard(snapshot: &Snapshot, name: &Name) -> bool {
    matches!(snapshot.by_name(name.as_str()), Seen::Unknown | Seen::Failed)
}
