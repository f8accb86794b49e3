//! Changes of a store, as the upstream reports them.
//!
//! Owns their meaning; their effect belongs to the [snapshot](super::Snapshot).

use std::sync::Arc;

use super::origin_error::OriginError;
use super::view_leases::Lease;
use super::view_leases::View;
use crate::resource::{Name, Resource, Scope};

crate::labelled! {
    /// How much of the origin's wildcard set has come (R-Relay-05).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Completeness {
        /// It may lack anything.
        #[default]
        Unknown = "unknown",
        /// The origin paused after its first parts. Enough for an incremental client that holds nothing.
        Settled = "settled",
        /// No evidence, but long silence, or an origin that cannot be asked. Enough for a state-of-the-world client
        /// that holds nothing: it cannot lose missing members.
        Presumed = "presumed",
        /// There is evidence that nothing more comes. Only now are clients that may hold members sent full states
        /// and removals.
        Complete = "complete",
    }
}

/// Why the origin sent a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// It answers our subscription; unchanged content is no news.
    Answer,
    /// The origin sent it by itself; unchanged content is meant for the clients (R-ADS-05, R-Relay-21).
    Unsolicited,
}

/// One thing that the upstream learned or decided; `view` is the subscription through which it came.
#[derive(Clone, Debug)]
pub enum Op {
    /// The resource exists in this version.
    Set {
        view: View,
        resource: Arc<Resource>,
        resend: Resend,
        /// How long to keep it, unless the origin says otherwise before; `None` for no limit.
        lease: Option<Lease>,
    },
    /// Keep the held resource for this time from now (R-TTL-02).
    Renew {
        view: View,
        name: Name,
        /// As in [`Set`](Self::Set).
        lease: Option<Lease>,
    },
    /// The origin says that it does not exist.
    Remove { view: View, name: Name },
    /// Unsubscribed by the relay: its state is unknown again.
    Forget { view: View, name: Name },
    /// It left its collection, and nobody asks for it by name.
    LeaveCollection { name: Name },
    /// All members of a collection have come (R-XT-03).
    Complete { name: Name },
    /// The origin sent an error in place of the resource (R-Err-01). "Does not exist" also
    /// [removes](Self::Remove) it.
    Fail {
        /// The name, subscribed to by itself or through a collection.
        name: Name,
        failure: Arc<OriginError>,
        /// It is a member of a collection, and nobody asks for it by name.
        listed: bool,
    },
    /// The name is an alias of this resource (R-Relay-20), or cannot be resolved, which this answer says
    /// (R-Delta-22).
    Alias { name: Name, resource: Arc<Resource>, resend: Resend },
    /// Its body is not to be kept (R-XT-09). Clients are sent nothing.
    Drop { name: Name },
    /// Send it to aggregated clients again, unchanged (R-ADS-05).
    ResendEndpoints { name: Name },
}

impl Op {
    /// Makes a held resource visible to more clients.
    pub const fn held(view: View, resource: Arc<Resource>, lease: Option<Lease>) -> Self {
        Self::Set { view, resource, resend: Resend::Answer, lease }
    }

    /// Subscription through which it was learned.
    pub(crate) const fn view(&self) -> View {
        match self {
            Self::Set { view, .. }
            | Self::Renew { view, .. }
            | Self::Remove { view, .. }
            | Self::Forget { view, .. } => *view,
            // Only names are aliases or collections, fail, or lack a body.
            _ => View::Named,
        }
    }

    /// Narrows the operation to what `scope` may see; `None` if nothing is left.
    pub(super) fn through(self, scope: &Scope) -> Option<Self> {
        if !scope.allows(self.name().as_str()) {
            return None;
        }
        match self {
            // A resource may have the name of a collection.
            Self::Set { resource, .. } if !scope.shows(resource.name().as_str()) => None,
            // Hidden resources must not be visible by an alias either.
            Self::Alias { name, resource, .. } if !scope.shows(resource.name().as_str()) => {
                Some(Self::Remove { view: View::Named, name })
            }
            op => Some(op),
        }
    }

    pub fn name(&self) -> &Name {
        match self {
            Self::Set { resource, .. } => resource.name(),
            Self::Renew { name, .. }
            | Self::Remove { name, .. }
            | Self::Forget { name, .. }
            | Self::LeaveCollection { name }
            | Self::Complete { name }
            | Self::Fail { name, .. }
            | Self::Alias { name, .. }
            | Self::Drop { name }
            | Self::ResendEndpoints { name } => name,
        }
    }
}

/// Effect of one response, applied as a whole (R-Up-12).
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// In order of effect.
    pub ops: Vec<Op>,
    /// New completeness of the wildcard set, if it changes (R-Relay-05).
    pub wildcard_known: Option<Completeness>,
    /// The origin's `system_version_info`, for debugging (R-Delta-20).
    pub system_version: Option<Arc<str>>,
    /// `control_plane.identifier` for clients (R-Relay-19): the servers on the way, this relay first. No news
    /// alone.
    pub control_plane: Option<Arc<str>>,
}

impl Change {
    pub const fn is_nothing(&self) -> bool {
        self.ops.is_empty() && self.wildcard_known.is_none() && self.system_version.is_none()
    }
}
