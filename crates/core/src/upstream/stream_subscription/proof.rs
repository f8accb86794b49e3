//! Evidence that an answer is complete.
//!
//! Delta has no mark for the end of an answer (R-Up-22), and no silence is one: an origin may pause, or wait for the ACK of a
//! part (O4). So a question is asked on a new stream in which every resource that is held is claimed by its version, but one.
//! The origin has to send that one. A response that brings it and no other resource is the whole answer: an origin that
//! had more to say would have filled the response. One that may not put as many bytes into a response is not asked (`OriginHabits::fills`):
//! deltafan cuts its answers by bytes, so that the first part may be one resource. So no member of a wildcard is missing, and
//! a name that was asked for in the same request, and is not mentioned, does not exist. That is the only such evidence where
//! origins are silent about what does not exist (O2).
//!
//! Example: a and b are held, x is unknown. The relay subscribes to a, b and x, and claims a. A response with b alone proves
//! that there is no x; one with b and c proves nothing.
//!
//! A response that brings the one that was kept back and another that nobody asked for (java-control-plane answers names with
//! the whole set) proves nothing either. That an origin reads versions is proven only where some were told.
//!
//! Owns what was asked in such a question, and the verdict. Knows nothing of time.

use foldhash::HashSet;

use crate::resource::Name;

/// That an answer is complete.
#[derive(Debug)]
pub(in crate::upstream) struct Evidence<Names = HashSet<Name>> {
    /// Names that were asked for and not mentioned: they do not exist.
    pub(in crate::upstream) absent: Names,
    /// Resources that are held, were not claimed, and did not come: they are gone.
    pub(in crate::upstream) lacked: HashSet<Name>,
    /// Resources that were claimed were not sent again.
    pub(in crate::upstream) reads_versions: bool,
}

/// Question that may prove an answer complete, and its verdict.
#[derive(Debug)]
pub(super) enum Proof {
    /// The resource that was not claimed, names of the same request of which nothing is held, and whether others were
    /// claimed.
    Asked { kept_back: Name, open: HashSet<Name>, claims: bool },
    /// The answer is complete.
    Proven(Evidence),
    /// More came than this resource, which was kept back.
    Failed(Name),
}

impl Proof {
    pub(super) fn kept_back(&self) -> Option<&Name> {
        match self {
            Self::Asked { kept_back, .. } | Self::Failed(kept_back) => Some(kept_back),
            Self::Proven(_) => None,
        }
    }

    /// A response came: with the resource that was kept back alone, or with any other.
    pub(super) fn judge(&mut self, is_alone: bool) {
        if let Self::Asked { kept_back, open, claims } = self {
            *self = if is_alone {
                Self::Proven(Evidence {
                    absent: std::mem::take(open),
                    lacked: HashSet::default(),
                    reads_versions: *claims,
                })
            } else {
                Self::Failed(kept_back.clone())
            };
        }
    }
}
