//! The state of the origin, as far as sessions and polls depend on it.

/// State of the origin, as a session has to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    /// It cannot be reached.
    #[default]
    Away,
    /// It is connected, and has answered nothing on this connection yet.
    Silent,
    /// It has answered on the connection that stands.
    Answering,
}

impl Upstream {
    /// Why a client to which nothing could be said is to try another server; `None` where it is to wait.
    pub(super) const fn excuse(self) -> Option<&'static str> {
        match self {
            Self::Away => Some("the control plane cannot be reached"),
            Self::Silent => Some("the control plane is connected and answers nothing"),
            Self::Answering => None,
        }
    }
}
