//! State that few names have.

use std::sync::Arc;

use super::super::Generation;
use super::super::lease::Leases;
use super::super::origin_error::ErrorRecord;
use crate::resource::{Constraints, Resource};

/// Last body of what is gone.
#[derive(Clone, Debug)]
pub(in crate::cache) struct Ghost {
    pub(in crate::cache) resource: Arc<Resource>,
    /// When its subscribers last had something to learn of it, before it went.
    pub(in crate::cache) changed: Generation,
}

/// State that few names have: an entry that has nothing of it has no room for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Rare {
    /// The last body of what is gone, for the union of old and new that make-before-break sends (R-ADS-03).
    pub(super) ghost: Option<Ghost>,
    /// Which variants, by their constraints, its subscribers may hold beside the one that they see (R-DP-06), oldest first. Where there never
    /// was more than one without constraints, nothing.
    pub(super) past: Option<Arc<Vec<Option<Constraints>>>>,
    /// When aggregated subscribers were last to be sent it again, unchanged (R-ADS-05).
    pub(super) repushed: Generation,
    /// For how long it is to be kept, where the origin said so (R-TTL-01).
    pub(super) leases: Option<Box<Leases>>,
    /// The last error of the name, since which the resource has not come (R-Err-01).
    pub(super) failed: Option<Box<ErrorRecord>>,
}

impl Rare {
    pub(super) fn is_nothing(&self) -> bool {
        self.ghost.is_none()
            && self.past.is_none()
            && self.repushed == Generation::ZERO
            && self.leases.is_none()
            && self.failed.is_none()
    }
}
