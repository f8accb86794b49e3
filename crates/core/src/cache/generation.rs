//! Generations: the cache's only notion of time.

use std::fmt;

/// A point in the history of a group's cache. Every change of one resource gets a generation of its own, and
/// generations of all types of a group come from one counter, so that they order everything that happened.
///
/// Example: the control plane sends clusters `a` and `b`, then endpoints of `a`. The clusters get 1 and 2, the endpoints 3.
/// A client at 1 has been told `a` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    /// Moment before the first change.
    pub const ZERO: Self = Self(0);

    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns it as a number, for nonces and metrics.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Generation {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
