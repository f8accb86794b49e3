//! Changes of a store: the words in which the upstream tells the cache what it has learned.
//!
//! Owns their meaning, not their effect: that is for the [snapshot](super::Snapshot).

use std::sync::Arc;

use super::lease::Lease;
use super::origin_error::OriginError;
use super::view::View;
use crate::resource::{Name, Resource, Scope};

/// How much of the origin's wildcard set is known to have come (R-Relay-05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Completeness {
    /// It may lack anything.
    #[default]
    Unknown,
    /// The origin paused after its first parts. An incremental client that holds nothing needs no more: the rest follows.
    Settled,
    /// The origin does not say whether this is all, and cannot be asked, or was silent for long. A state-of-the-world client that
    /// holds nothing is shown the set: it cannot lose what has not come yet.
    Presumed,
    /// There is evidence that nothing more comes. A client that may hold a member is told a full state, and of removals,
    /// from here on only.
    Complete,
}

/// Why the origin sent a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// It answers a subscription of ours; unchanged content is no news.
    Answer,
    /// It came by itself; unchanged content is meant for the clients (R-ADS-05, R-Relay-21).
    Unsolicited,
}

/// One thing that the upstream learned or decided.
#[derive(Clone, Debug)]
pub enum Op {
    /// The resource exists in this version.
    Set {
        /// Where it was seen.
        view: View,
        /// The resource.
        resource: Arc<Resource>,
        /// Why it came.
        resend: Resend,
        /// For how long it is to be kept, unless the origin says otherwise before; `None` is without end.
        lease: Option<Lease>,
    },
    /// Keep the held resource for this time from now on (R-TTL-02).
    Renew {
        /// Where that was said.
        view: View,
        /// The name.
        name: Name,
        /// As in [`Set`](Self::Set).
        lease: Option<Lease>,
    },
    /// It does not exist, says the origin.
    Remove {
        /// Where that was said.
        view: View,
        /// The name.
        name: Name,
    },
    /// The relay no longer subscribes to it, so that nothing is known of it any more.
    Forget {
        /// The subscription that ended.
        view: View,
        /// The name.
        name: Name,
    },
    /// It is no member of its collection any more, and nobody asks for it by name.
    Withdraw {
        /// The name.
        name: Name,
    },
    /// All members of a collection have been heard (R-XT-03).
    Complete {
        /// The collection's name.
        name: Name,
    },
    /// The origin has an error to tell in place of the resource (R-Err-01); where that is that it does not exist, it
    /// is [removed](Self::Remove) too.
    Fail {
        /// The name, which is subscribed to by itself or through a collection.
        name: Name,
        /// The error.
        failure: Arc<OriginError>,
        /// Whether nobody asks for it by name: it is a member of a collection.
        listed: bool,
    },
    /// The name is one of the aliases of this resource (R-Relay-20); or the origin cannot say of what, and says it with this
    /// (R-Delta-22).
    Alias {
        /// The name that was asked for.
        name: Name,
        /// The resource.
        resource: Arc<Resource>,
        /// Why it came.
        resend: Resend,
    },
    /// Its body is not to be kept any longer (R-XT-09). Nobody is told.
    Drop {
        /// The name.
        name: Name,
    },
    /// Aggregated clients are to be sent it again though it did not change (R-ADS-05).
    Repush {
        /// The name.
        name: Name,
    },
}

impl Op {
    /// Operation that makes a resource already held visible to more clients.
    pub const fn held(view: View, resource: Arc<Resource>, lease: Option<Lease>) -> Self {
        Self::Set { view, resource, resend: Resend::Answer, lease }
    }

    /// Through which subscription it was learned.
    pub(crate) const fn view(&self) -> View {
        match self {
            Self::Set { view, .. }
            | Self::Renew { view, .. }
            | Self::Remove { view, .. }
            | Self::Forget { view, .. } => *view,
            Self::Withdraw { .. }
            | Self::Complete { .. }
            | Self::Fail { .. }
            | Self::Alias { .. }
            | Self::Drop { .. }
            | Self::Repush { .. } => View::Named,
        }
    }

    /// Narrows the operation to what `scope` may see; `None` if nothing is left.
    pub(super) fn through(self, scope: &Scope) -> Option<Self> {
        if !scope.allows(self.name().as_str()) {
            return None;
        }
        match self {
            // A resource may be called as a collection is.
            Self::Set { resource, .. } if !scope.shows(resource.name().as_str()) => None,
            // A resource that clients may not see must not be visible by another name either.
            Self::Alias { name, resource, .. } if !scope.shows(resource.name().as_str()) => {
                Some(Self::Remove { view: View::Named, name })
            }
            op => Some(op),
        }
    }

    /// The name it is about.
    pub fn name(&self) -> &Name {
        match self {
            Self::Set { resource, .. } => resource.name(),
            Self::Renew { name, .. }
            | Self::Remove { name, .. }
            | Self::Forget { name, .. }
            | Self::Withdraw { name }
            | Self::Complete { name }
            | Self::Fail { name, .. }
            | Self::Alias { name, .. }
            | Self::Drop { name }
            | Self::Repush { name } => name,
        }
    }
}

/// Effect of one response of the origin, applied as a whole (R-Up-12).
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// In the order in which they take effect.
    pub ops: Vec<Op>,
    /// How much of the wildcard set is known from now on (R-Relay-05), where that changes.
    pub wildcard_known: Option<Completeness>,
    /// The origin's `system_version_info`, for debugging only (R-Delta-20).
    pub system_version: Option<Arc<str>>,
    /// `control_plane.identifier` for clients (R-Relay-19): the servers through which it came, this relay first. No news by itself.
    pub control_plane: Option<Arc<str>>,
}

impl Change {
    /// Whether nothing comes of it.
    pub const fn is_nothing(&self) -> bool {
        self.ops.is_empty() && self.wildcard_known.is_none() && self.system_version.is_none()
    }
}
