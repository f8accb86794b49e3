//! Choice among several variants of a name for the same parameters.
//!
//! A control plane must not publish such variants (R-DP-04). If it does, the choice does not depend
//! on their order: the held variant stays while it matches. Otherwise the one with the lowest
//! canonical encoding of constraints wins; no constraints are lowest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::{Lease, Resend};
use crate::resource::{Constraints, Resource};

type Identity = Option<Constraints>;

/// Most variants kept for the same parameters; the highest encodings are dropped.
const RIVALS: usize = 32;

/// AnswerProgress and lifetime of a variant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    pub(super) resend: Resend,
    pub(super) lease: Option<Lease>,
    /// Time of progress, if it may not be cached (R-XT-09).
    pub(super) drop_from: Option<Instant>,
}

/// All variants of one name for one set of parameters.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    /// The one shown so far.
    held: Option<Identity>,
    variants: BTreeMap<Identity, (Arc<Resource>, Receipt, bool)>,
}

/// The variant to show.
#[derive(Debug)]
pub(super) struct Chosen<'a> {
    pub(super) resource: &'a Arc<Resource>,
    pub(super) news: Receipt,
    /// Whether it has just come.
    pub(super) is_new: bool,
}

impl Candidates {
    /// Creates it from the variant shown so far, and its rivals.
    pub(super) fn new(held: Option<&Arc<Resource>>, rivals: Option<&Self>) -> Self {
        let mut variants = rivals.map(|rivals| rivals.variants.clone()).unwrap_or_default();
        let identity = |resource: &Arc<Resource>| resource.constraints().cloned();
        let unsaid = Receipt { resend: Resend::Answer, lease: None, drop_from: None };
        if let Some(held) = held {
            variants.entry(identity(held)).or_insert_with(|| (Arc::clone(held), unsaid, false));
        }
        Self { held: held.map(identity), variants }
    }

    pub(super) fn set(&mut self, resource: Arc<Resource>, news: Receipt) {
        self.variants.insert(resource.constraints().cloned(), (resource, news, true));
        if self.variants.len() > RIVALS {
            self.variants.pop_last();
        }
    }

    pub(super) fn remove(&mut self, constraints: Option<&Constraints>) {
        self.variants.remove(&constraints.cloned());
    }

    pub(super) fn choose(&self) -> Option<Chosen<'_>> {
        let kept = self.held.as_ref().and_then(|held| self.variants.get(held));
        let (resource, news, is_new) = kept.or_else(|| self.variants.values().next())?;
        Some(Chosen { resource, news: *news, is_new: *is_new })
    }

    pub(super) fn is_held(&self, resource: &Resource) -> bool {
        self.held.as_ref().is_some_and(|held| held.as_ref() == resource.constraints())
    }

    pub(super) fn are_ambiguous(&self) -> bool {
        self.variants.len() > 1
    }

    /// Makes the chosen variant the held one, and none new.
    pub(super) fn settled(mut self) -> Self {
        self.held = self.choose().map(|chosen| chosen.resource.constraints().cloned());
        self.variants.values_mut().for_each(|(_, _, is_new)| *is_new = false);
        self
    }
}
