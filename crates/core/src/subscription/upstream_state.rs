//! State of the origin, as far as sessions and polls depend on it.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    #[default]
    Away,
    /// Connected, but no answer on this connection yet.
    Silent,
    Answering,
}

impl Upstream {
    /// Reason to try another server; `None` if the client should wait.
    pub(super) const fn excuse(self) -> Option<&'static str> {
        match self {
            Self::Away => Some("the control plane cannot be reached"),
            Self::Silent => Some("the control plane is connected and answers nothing"),
            Self::Answering => None,
        }
    }
}
