//! The relay's two subscriptions through which it holds resources.

/// Subscription through which the relay holds a resource (R-Relay-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// As a member of the wildcard set.
    Wildcard,
    Named,
}

impl View {
    pub const ALL: [Self; 2] = [Self::Wildcard, Self::Named];
}
