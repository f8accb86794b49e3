//! How far the origin's answer to a first request has come, and what follows once it is known to be whole.

use super::quiet_clock::QuietInstant;
use super::response;
use super::target::Target;
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::Name;

/// End mark of the answer to the first request (R-Up-22).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EndMark {
    /// Not asked for.
    #[default]
    Unasked,
    Asked,
    /// The response is being read that answers it.
    Answered,
    /// The answer is known to be whole.
    Over,
}

impl EndMark {
    /// Claims it in a first request, which asks for names if it is `by_name`.
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

/// Conclusions from an answer that is known to be whole: whatever was asked for and is missing does not exist (R-Up-22).
#[derive(Debug)]
pub(super) struct Whole {
    /// Members, names and members of collections that are gone, or never were.
    pub(super) absent: Vec<Name>,
    /// Collections that have no more members than came.
    pub(super) collections: Vec<Name>,
}

/// Subscriptions of one type that have not been answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// Subscriptions without an answer: names, and the wildcard as one.
    pub(super) count: usize,
    /// When the first of them was asked for.
    pub(super) since: Option<QuietInstant>,
    /// Whether anything else of the type was answered.
    pub(super) answered: bool,
}

impl Silence {
    /// One more subscription that has not been answered since this moment.
    pub(super) fn add(&mut self, since: QuietInstant) {
        self.count += 1;
        self.since = self.since.into_iter().chain([since]).min();
    }

    /// Both together.
    #[must_use]
    pub(super) fn with(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            since: self.since.into_iter().chain(other.since).min(),
            answered: self.answered || other.answered,
        }
    }
}
