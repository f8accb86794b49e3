//! Progress of the answer to a first request, and the conclusions from a whole one.

use super::quiet_clock::QuietInstant;
use super::response;
use super::target::Target;
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::Name;

/// End mark of the answer to the first request (R-Up-22).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EndMark {
    #[default]
    Unasked,
    Asked,
    /// The response that answers it is being read.
    Answered,
    /// The answer is whole.
    Over,
}

impl EndMark {
    /// Asks for the end mark in a first request, unless the control plane speaks SotW. `by_name`:
    /// the request is for names.
    pub(super) fn ask(&mut self, target: &Target<'_>, by_name: bool, request: &mut DeltaDiscoveryRequest) {
        if target.speaks_sotw || !target.is_first {
            return;
        }
        *self = Self::Asked;
        if !target.claimed.contains_key(Name::END_MARK) {
            response::ask_for_end(request, by_name);
        }
    }
}

/// Conclusions from a whole answer: anything that was asked for and is missing does not exist
/// (R-Up-22).
#[derive(Debug)]
pub(super) struct Whole {
    /// Members, names and members of collections that do not exist.
    pub(super) absent: Vec<Name>,
    /// Collections that have no further members.
    pub(super) collections: Vec<Name>,
}

/// Unanswered subscriptions of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// Number of names, with the wildcard counted as one.
    pub(super) count: usize,
    /// Time of the oldest question.
    pub(super) since: Option<QuietInstant>,
    /// Whether anything else of the type was answered.
    pub(super) answered: bool,
}

impl Silence {
    /// Adds a subscription that has been unanswered since this moment.
    pub(super) fn add(&mut self, since: QuietInstant) {
        self.count += 1;
        self.since = self.since.into_iter().chain([since]).min();
    }

    /// Returns the sum of both.
    #[must_use]
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            since: self.since.into_iter().chain(other.since).min(),
            answered: self.answered || other.answered,
        }
    }
}
