//! The last answer to the question whether endpoints that are not known hold back routes.

use crate::cache::Generation;

/// A store, a cohort in it, and how far that had been marked when it was looked at.
pub(super) type Mark = (u32, u64, Generation);

/// The last answer. It stands for as long as both marks do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) endpoints: Mark,
    pub(super) clusters: Mark,
    pub(super) protects: bool,
}
