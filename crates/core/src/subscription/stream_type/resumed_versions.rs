//! Versions that a client brought from an earlier stream (R-Delta-05 to R-Delta-07).

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashMap;

use super::super::per_stream_state::{PerStreamState, ResumedVersions};
use super::super::session_config::SessionConfig;
use super::{EvaluationInput, StreamType};
use crate::cache::{FellBehindError, Position, Snapshot, VisibleState};
use crate::resource::{Kind, Name, Resource};

/// Rough bytes of a name in a set, beside its text.
const NAME: usize = 64;

impl StreamType {
    /// Whether the client brought members of an unknown collection, which would be taken for gone.
    pub(super) fn resumes_unknown_collection(&self, snapshot: &Snapshot) -> bool {
        let Some(ResumedVersions::Versions(versions)) = &self.own().resumed else { return false };
        self.subscription().collections().any(|(name, collection)| {
            is_unresolved(snapshot, name) && versions.names().any(|version| collection.covers(version))
        })
    }

    /// Whether the client brought resources of a still unknown alias (R-Delta-21), which would be
    /// taken for gone.
    pub(super) fn resumes_unknown_alias(&self, snapshot: &Snapshot) -> bool {
        let Some(ResumedVersions::Versions(versions)) = &self.own().resumed else { return false };
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
        let mut own = self.own.take().unwrap_or_else(|| Box::new(PerStreamState::NONE));
        let (owed, mut names) = (&mut own.owed, BTreeSet::new());
        // By name: whether it is in the set, and the held version.
        let mut resumed: HashMap<&str, (bool, &str)> =
            versions.iter().map(|(name, version)| (name, (false, version))).collect();
        // When a held TTL was sent is unknown, so it is sent again (R-TTL-09).
        let is_timed = |name: &Name| self.membership.receives_ttls() && snapshot.is_leased(name.as_str());
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
