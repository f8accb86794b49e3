//! Last answer about unknown endpoints.

use crate::cache::Generation;

/// Store, cohort, and the cohort's mark before the data was read.
pub(super) type Mark = (u32, u64, Generation);

/// Whether unknown endpoints hold back routes. Valid while both marks stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) endpoints: Mark,
    pub(super) clusters: Mark,
    pub(super) protects: bool,
}
