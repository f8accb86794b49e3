//! Habits of the origin.

/// Habits of the origin, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::upstream) struct OriginHabits {
    /// It is a relay like this one. It says of each name that does not exist that it does not, and may itself wait for an origin that is
    /// silent: its own silence proves nothing. It says that more of an answer follows.
    pub(in crate::upstream) is_relay: bool,
    /// It speaks state of the world. It reads no versions, and need not: what is missing from a state is gone, and of a type without
    /// states nothing is missing (R-SotW-18, R-SotW-19).
    pub(in crate::upstream) speaks_sotw: bool,
    /// It does not answer state of the world beside delta.
    pub(in crate::upstream) refuses_census: bool,
}
