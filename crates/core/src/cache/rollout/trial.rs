//! Trial: the state of all guarded types that canaries try.
//!
//! Owns its names, and which of them are held. Knows nothing of later changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::super::snapshot::Snapshot;
use super::verdicts::Evidence;
use crate::resource::{Name, Parameters, TypeUrl};

/// Held changes that are logged per rollout.
const LOGGED: usize = 4;

/// Store of a type, by its parameters.
pub(in crate::cache) type StoreKey = (TypeUrl, Parameters);

pub(super) type Waiting = BTreeMap<StoreKey, BTreeMap<Name, Evidence>>;

pub(super) fn has(waiting: &Waiting, key: &StoreKey, name: &Name) -> bool {
    waiting.get(key).is_some_and(|names| names.contains_key(name))
}

/// Tried state: the whole content of stores with changes.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Trial {
    pub(super) names: Waiting,
    /// Content of the origin's stores at the cut.
    pub(in crate::cache) content: BTreeMap<StoreKey, Arc<Snapshot>>,
    pub(super) ends: Instant,
    /// Changes that too many canaries rejected. While there are any, the rollout is held.
    pub(super) held: BTreeSet<(StoreKey, Name)>,
}

impl Trial {
    pub(in crate::cache) fn names(&self, key: &StoreKey) -> impl Iterator<Item = &Name> {
        self.names.get(key).into_iter().flat_map(BTreeMap::keys)
    }

    fn all(&self) -> impl Iterator<Item = (&StoreKey, &Name, &Evidence)> {
        self.names.iter().flat_map(|(key, names)| names.iter().map(move |(name, of)| (key, name, of)))
    }

    /// Whether no canary answered though one could: it asks for a name of the trial, or did then and no canary
    /// is left.
    pub(super) fn is_unanswered(
        &self,
        has_canaries: bool,
        asks: &impl Fn(&StoreKey, &Name, &Snapshot) -> bool,
    ) -> bool {
        !self.all().any(|(.., evidence)| evidence.verdicts.are_any())
            && self.all().any(|(key, name, evidence)| match self.content.get(key) {
                Some(content) if has_canaries => asks(key, name, content),
                _ => evidence.is_asked,
            })
    }

    /// Whether a name changed again before any canary was sent it, so that nobody will answer.
    pub(super) fn is_overtaken(
        &self,
        fresh: &Waiting,
        asks: &impl Fn(&StoreKey, &Name, &Snapshot) -> bool,
    ) -> bool {
        let mut passed =
            self.all().filter(|(key, name, evidence)| !evidence.verdicts.are_any() && has(fresh, key, name));
        passed.any(|(key, name, _)| self.content.get(key).is_some_and(|content| asks(key, name, content)))
    }

    pub(super) fn log_held(&self) {
        for (key, name) in self.held.iter().take(LOGGED) {
            let Some(evidence) = self.names.get(key).and_then(|names| names.get(name)) else { continue };
            tracing::warn!(
                type_url = %key.0,
                %name,
                rejected = evidence.verdicts.rejected(),
                accepted = evidence.verdicts.accepted(),
                text = evidence.verdicts.texts().first().map_or("", |text| text),
                held = self.held.len(),
                "canaries reject a change, so the other clients keep the last good resources; correct it at the control plane, or \
                 POST /rollout/release or /rollout/discard to the admin address"
            );
        }
    }

    pub(super) fn log_unanswered(&self, canaries: usize) {
        let first =
            self.names.iter().find_map(|((type_url, _), names)| Some((type_url, names.keys().next()?)));
        let Some((type_url, name)) = first else { return };
        tracing::warn!(
            %type_url,
            %name,
            canaries,
            changes = self.names.values().map(BTreeMap::len).sum::<usize>(),
            "no canary answers a change, so the other clients keep the last good resources and the trial begins anew; see whether the \
             canaries are alive, or POST /rollout/release to the admin address"
        );
    }
}
