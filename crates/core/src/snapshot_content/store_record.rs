//! One name of a store, as it is kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{Entry, Lease, Named, Snapshot, View, VisibleState};
use crate::resource::{Name, Parameters, Resource, TypeUrl};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Whether Secrets are kept.
    pub secrets: bool,
}

impl Selection {
    /// Whether resources of a type are kept.
    pub fn has(self, type_url: &TypeUrl) -> bool {
        self.secrets || !type_url.is_secret()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Subscription through which it was held.
    pub view: View,
    pub kept: Kept,
    /// TTL, and its end since 1970.
    pub lease: Option<(Duration, Duration)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A resource; under an alias, that of another name.
    Resource(Arc<Resource>),
    /// A name that was subscribed to as a collection.
    Collection,
}

/// Record of a name in a snapshot; `None` if nothing of it is kept.
pub fn record_of(
    type_url: &TypeUrl,
    snapshot: &Snapshot,
    name: &str,
    selection: Selection,
    clock: Clock,
) -> Option<Record> {
    let entry = snapshot.get(name).filter(|_| selection.has(type_url))?;
    let (view, resource) = match (entry.as_member(), entry.by_name()) {
        (VisibleState::Present(member), _) => (View::Wildcard, member),
        (_, VisibleState::Present(resource)) => (View::Named, resource),
        _ => {
            let collection = Record { view: View::Named, kept: Kept::Collection, lease: None };
            return is_collection(entry).then_some(collection);
        }
    };
    if !resource.may_be_kept(type_url) {
        return None;
    }
    // Aliases are sent without a TTL.
    let lease = snapshot.lease(view, name).filter(|_| resource.name().as_str() == name);
    let lease = lease.map(|lease| (lease.ttl(), clock.to_unix(lease.until())));
    Some(Record { view, kept: Kept::Resource(Arc::clone(resource)), lease })
}

const fn is_collection(entry: &Entry) -> bool {
    matches!(entry.named(), Named::Collection { .. })
}

impl Record {
    /// The lease at this moment, if any; `None` if it has ended (R-TTL-10). At most the TTL, even if
    /// the clock was set back.
    pub(crate) fn lease_at(&self, clock: Clock) -> Option<Option<Lease>> {
        let Some((ttl, deadline)) = self.lease else { return Some(None) };
        let left = clock.left_until(deadline)?.min(ttl);
        Some(Lease::ending(ttl, clock.now + left))
    }
}

/// Whether the resource has this name, which is then no alias.
pub(super) fn is_own(name: &Name, resource: &Resource) -> bool {
    name == resource.name()
}

/// One moment on the clock of this process and on the wall clock, by which times outlive the
/// process (R-TTL-10).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub now: Instant,
    /// Since 1970.
    pub unix: Duration,
}

impl Clock {
    /// Wall time of a moment.
    pub fn to_unix(self, at: Instant) -> Duration {
        match at.checked_duration_since(self.now) {
            Some(ahead) => self.unix.saturating_add(ahead),
            None => self.unix.saturating_sub(self.now.saturating_duration_since(at)),
        }
    }

    /// Time left until a wall time; `None` if it has passed.
    pub fn left_until(self, unix: Duration) -> Option<Duration> {
        unix.checked_sub(self.unix).filter(|left| !left.is_zero())
    }

    /// Time since a wall time; zero if that lies ahead.
    pub fn age_of(self, unix: Duration) -> Duration {
        self.unix.saturating_sub(unix)
    }
}

/// Identity of a store in a node group: a type and one set of parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId {
    pub type_url: TypeUrl,
    pub parameters: Parameters,
}
