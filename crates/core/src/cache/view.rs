//! The two subscriptions through which the relay holds a resource.

/// Through which of its two subscriptions the relay holds a resource (R-Relay-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// As a member of the origin's wildcard set.
    Wildcard,
    /// By its name.
    Named,
}

impl View {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Wildcard, Self::Named];
}
