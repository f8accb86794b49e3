//! State of all guarded types that is tried on canaries.
//!
//! Owns which names are in it, and which of them are held. Knows nothing of what comes after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::super::snapshot::Snapshot;
use super::verdicts::Evidence;
use crate::resource::{Name, Parameters, TypeUrl};

/// Changes of one rollout that are logged.
const LOGGED: usize = 4;

/// Store of a type, by its parameters.
pub(in crate::cache) type StoreKey = (TypeUrl, Parameters);

/// Names that wait, by their stores.
pub(super) type Waiting = BTreeMap<StoreKey, BTreeMap<Name, Evidence>>;

pub(super) fn has(waiting: &Waiting, key: &StoreKey, name: &Name) -> bool {
    waiting.get(key).is_some_and(|names| names.contains_key(name))
}

/// State that is tried: the whole content of the stores that have changes.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Trial {
    pub(super) names: Waiting,
    /// Content of the origin's stores at the cut.
    pub(in crate::cache) content: BTreeMap<StoreKey, Arc<Snapshot>>,
    pub(super) ends: Instant,
    /// Changes that too many have rejected; the rollout is held while there are any.
    pub(super) held: BTreeSet<(StoreKey, Name)>,
}

impl Trial {
    /// Names of a store in it.
    pub(in crate::cache) fn names(&self, key: &StoreKey) -> impl Iterator<Item = &Name> {
        self.names.get(key).into_iter().flat_map(BTreeMap::keys)
    }

    fn all(&self) -> impl Iterator<Item = (&StoreKey, &Name, &Evidence)> {
        self.names.iter().flat_map(|(key, names)| names.iter().map(move |(name, of)| (key, name, of)))
    }

    /// Whether no canary has answered anything, though there is one to answer: it asks for a name in it, or did when that changed and
    /// no canary is left.
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

    /// Whether a name in it changed again before any canary was sent it: nobody will answer any more.
    pub(super) fn is_overtaken(
        &self,
        fresh: &Waiting,
        asks: &impl Fn(&StoreKey, &Name, &Snapshot) -> bool,
    ) -> bool {
        let mut passed =
            self.all().filter(|(key, name, evidence)| !evidence.verdicts.are_any() && has(fresh, key, name));
        passed.any(|(key, name, _)| self.content.get(key).is_some_and(|content| asks(key, name, content)))
    }

    /// Tells the log of a rollout that is held.
    pub(super) fn complain(&self) {
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

    /// Tells the log of a trial that no canary has answered.
    pub(super) fn complain_of_silence(&self, canaries: usize) {
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
