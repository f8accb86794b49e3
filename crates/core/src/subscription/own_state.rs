//! State of a client's own, beside its cohort and its place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::versions::{ByteCharge, Versions};
use crate::cache::{Generation, Nonce, OwedItems};
use crate::resource::Name;

/// Versions that the first request of a type brought along from an earlier stream.
#[derive(Debug)]
pub(super) enum ResumedVersions {
    /// Versions by name: `initial_resource_versions`.
    Versions(Versions),
    /// `version_info`: the digest of a whole set (R-SotW-10).
    Digest(String),
}

/// Response to a canary that it has not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unjudged {
    pub(super) nonce: Nonce,
    /// Generations from and to which it led.
    pub(super) from: Generation,
    pub(super) to: Generation,
    /// Whether it was the last part of an answer: the ACK of another part says nothing of the rest.
    pub(super) is_last: bool,
}

/// Data that a client has beside its cohort and its place: a stream in its usual state has none of it.
#[derive(Debug)]
pub(super) struct OwnState {
    pub(super) owed: OwedItems,
    /// Size in bytes of the names that it asked for or let go, as last weighed together and since then. Names that it was told
    /// meanwhile still count: it is more than is owed, never less.
    pub(super) weight: usize,
    pub(super) brought: Option<ResumedVersions>,
    /// The charge for names that the client brought and that are gone, until it was told of all of them.
    pub(super) gone: Option<Box<dyn ByteCharge>>,
    /// Names that the next full state answers for.
    pub(super) answering: BTreeSet<Name>,
    /// Names that it may hold, and that are not known with the parameters that it has asked for since then.
    pub(super) obscured: BTreeMap<Name, Instant>,
    /// How far it had been told of removals when it let go of the wildcard before it had answered.
    pub(super) let_go: Option<Generation>,
    /// Responses that are to be voted on, oldest first. All but the newest were not answered in time.
    pub(super) to_judge: Vec<Unjudged>,
    /// Names that are gone and that the newest response left out, where it said others that are gone still.
    pub(super) left_out: BTreeSet<Name>,
    /// It claimed the end mark, and is told that it is gone once all that it asked for is known (R-Up-23).
    pub(super) asks_end: bool,
    /// The response before the newest one, if that was sent without an answer to it and none has come since.
    pub(super) overtaken: Option<Nonce>,
}

impl OwnState {
    /// Nothing.
    pub(super) const NONE: Self = Self {
        owed: OwedItems::NONE,
        weight: 0,
        brought: None,
        gone: None,
        answering: BTreeSet::new(),
        obscured: BTreeMap::new(),
        let_go: None,
        to_judge: Vec::new(),
        left_out: BTreeSet::new(),
        asks_end: false,
        overtaken: None,
    };

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty()
            && self.owed.doubt == Generation::ZERO
            && self.owed.refused.is_empty()
            && self.brought.is_none()
            && self.answering.is_empty()
            && self.obscured.is_empty()
            && self.let_go.is_none()
            && self.to_judge.is_empty()
            && self.left_out.is_empty()
            && !self.asks_end
            && self.overtaken.is_none()
    }
}
