//! Which of several variants of a name is seen, where more than one is for the same parameters.
//!
//! A control plane must not publish such variants (R-DP-04). If it does, what is seen does not depend on the order in which they
//! came: the variant that is held stays for as long as it is for these parameters, and else the one whose constraints have the
//! lowest canonical encoding counts; none at all is lower than any.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::{Lease, Resend};
use crate::resource::{Constraints, Resource};

type Identity = Option<Constraints>;

/// No more variants are kept for the same parameters: those of the highest encodings are as if they had not come.
const RIVALS: usize = 32;

/// How a variant came, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receipt {
    pub(super) resend: Resend,
    pub(super) deadline: Option<Instant>,
    pub(super) lease: Option<Lease>,
    /// When it came, if it may not be kept (R-XT-09).
    pub(super) drop_from: Option<Instant>,
}

/// All variants of one name that are for one set of parameters.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    /// The one that is seen so far.
    held: Option<Identity>,
    variants: BTreeMap<Identity, (Arc<Resource>, Receipt, bool)>,
}

/// The variant that is seen from now on.
#[derive(Debug)]
pub(super) struct Chosen<'a> {
    pub(super) resource: &'a Arc<Resource>,
    pub(super) news: Receipt,
    /// Whether it has just come.
    pub(super) is_new: bool,
}

impl Candidates {
    /// Variants held so far: the one that is seen, and those that rival with it.
    pub(super) fn new(held: Option<&Arc<Resource>>, rivals: Option<&Self>) -> Self {
        let mut variants = rivals.map(|rivals| rivals.variants.clone()).unwrap_or_default();
        let identity = |resource: &Arc<Resource>| resource.constraints().cloned();
        let unsaid = Receipt { resend: Resend::Answer, deadline: None, lease: None, drop_from: None };
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

    /// Takes the chosen variant as the one that is held, and none as new.
    pub(super) fn settled(mut self) -> Self {
        self.held = self.choose().map(|chosen| chosen.resource.constraints().cloned());
        self.variants.values_mut().for_each(|(_, _, is_new)| *is_new = false);
        self
    }
}
