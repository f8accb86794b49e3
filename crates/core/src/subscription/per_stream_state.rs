//! State of one type on one stream that its cohort and position do not hold. Most streams have none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::initial_versions::{ByteCharge, Versions};
use crate::cache::{Class, Generation, Nonce, OwedItems, Update};
use crate::resource::Name;

/// Versions that the first request of a type brought.
#[derive(Debug)]
pub(super) enum ResumedVersions {
    /// `initial_resource_versions`.
    Versions(Versions),
    /// `version_info`: the digest of a whole set (R-SotW-10).
    Digest(String),
}

/// Response that a canary has not answered.
#[derive(Clone, Debug)]
pub(super) struct Unjudged {
    pub(super) nonce: Nonce,
    pub(super) update: Arc<Update>,
    pub(super) class: Class,
}

/// State of one type on one stream beside its cohort and position. Usually there is none.
#[derive(Debug)]
pub(super) struct PerStreamState {
    pub(super) owed: OwedItems,
    /// Bytes of subscribed and unsubscribed names: the last count, plus all since. An upper bound:
    /// names answered meanwhile still count.
    pub(super) weight: usize,
    pub(super) resumed: Option<ResumedVersions>,
    /// Charge for brought names that are gone, until all removals are sent.
    pub(super) gone: Option<Box<dyn ByteCharge>>,
    pub(super) answering: BTreeSet<Name>,
    /// Names that the client may hold and that its new parameters have not resolved, with the time
    /// of the change.
    pub(super) obscured: BTreeMap<Name, Instant>,
    /// Position of removals when the client left the wildcard with a response unanswered.
    pub(super) wildcard_left: Option<Generation>,
    /// Responses to vote on, oldest first.
    pub(super) to_judge: Vec<Unjudged>,
    /// Removed names that the newest response left out although it mentioned others.
    pub(super) left_out: BTreeSet<Name>,
    /// The client claimed the end mark. Its removal is due once all that the client asked for is
    /// known (R-Up-23).
    pub(super) asks_end: bool,
    /// Response before the newest, if both are unanswered.
    pub(super) overtaken: Option<Nonce>,
}

impl PerStreamState {
    pub(super) const NONE: Self = Self {
        owed: OwedItems::NONE,
        weight: 0,
        resumed: None,
        gone: None,
        answering: BTreeSet::new(),
        obscured: BTreeMap::new(),
        wildcard_left: None,
        to_judge: Vec::new(),
        left_out: BTreeSet::new(),
        asks_end: false,
        overtaken: None,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty()
            && self.owed.doubt == Generation::ZERO
            && self.owed.refused.is_empty()
            && self.resumed.is_none()
            && self.answering.is_empty()
            && self.obscured.is_empty()
            && self.wildcard_left.is_none()
            && self.to_judge.is_empty()
            && self.left_out.is_empty()
            && !self.asks_end
            && self.overtaken.is_none()
    }
}

/// Store, cohort, and the cohort's mark before the data was read.
pub(super) type Mark = (u32, u64, Generation);

/// Whether unknown endpoints hold back routes. Valid while both marks stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) endpoints: Mark,
    pub(super) clusters: Mark,
    pub(super) protects: bool,
}
