//! Reasons to open a stream anew.

/// Reason to open a stream anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::upstream) enum Renewal {
    /// Something may be gone, or is for others too: nobody lacks anything meanwhile.
    Doubt,
    /// The origin does not read the locators that it was asked by: clients wait for what it is asked plainly.
    Unanswered,
    /// An operator wants a resource anew.
    Ordered,
    /// The client whose node the control plane is shown is gone.
    Node,
}

impl Renewal {
    /// How many there are.
    pub(in crate::upstream) const COUNT: usize = 4;
}
