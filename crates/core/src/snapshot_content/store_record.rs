//! One name of a store as bytes.
//!
//! Owns the layout: `1, flags, [ttl, deadline], [mark], [length, constraints], entry`. The first
//! byte is the layout's version. Numbers are varints, times milliseconds, the deadline since 1970.
//! The mark is the length of the version's mark. The entry is the encoding for clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::cache::{Entry, Lease, Named, Snapshot, View, VisibleState};
use crate::resource::{Constraints, Name, Parameters, Resource, TypeUrl, VersionForm, wire};

const LAYOUT: u8 = 1;

// Flags.
const MEMBER: u8 = 1;
const OWN_VERSION: u8 = 1 << 1;
const TIMED: u8 = 1 << 2;
const CONSTRAINED: u8 = 1 << 3;
const COLLECTION: u8 = 1 << 4;
const MARKED: u8 = 1 << 5;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A later release wrote it.
    #[error("a record has layout {0}; this version reads {LAYOUT}")]
    Newer(u8),
    #[error("a record cannot be read")]
    Malformed,
}

/// Record of a name in a snapshot; `None` if nothing of it is kept.
pub fn record_of(
    type_url: &TypeUrl,
    snapshot: &Snapshot,
    name: &str,
    selection: Selection,
    clock: Clock,
) -> Option<Bytes> {
    let entry = snapshot.get(name).filter(|_| selection.has(type_url))?;
    let (flag, view, resource) = match (entry.as_member(), entry.by_name()) {
        (VisibleState::Present(member), _) => (MEMBER, View::Wildcard, member),
        (_, VisibleState::Present(resource)) => (0, View::Named, resource),
        _ => return is_collection(entry).then(|| Bytes::from_static(&[LAYOUT, COLLECTION])),
    };
    if !resource.may_be_kept(type_url) {
        return None;
    }
    // Aliases are sent without a TTL.
    let lease = snapshot.lease(view, name).filter(|_| resource.name().as_str() == name);
    Some(write(flag, resource, lease.map(|lease| (lease.ttl(), clock.to_unix(lease.until())))))
}

const fn is_collection(entry: &Entry) -> bool {
    matches!(entry.named(), Named::Collection { .. })
}

fn write(flag: u8, resource: &Resource, lease: Option<(Duration, Duration)>) -> Bytes {
    let constraints = resource.constraints().map(|constraints| constraints.encoded());
    let VersionForm { is_own, mark_bytes } = resource.version_form();
    let mut flags = flag;
    flags |= if is_own { OWN_VERSION } else { 0 };
    flags |= if mark_bytes > 0 { MARKED } else { 0 };
    flags |= if lease.is_some() { TIMED } else { 0 };
    flags |= if constraints.is_some() { CONSTRAINED } else { 0 };
    let entry = resource.delta_entry();
    let mut out = BytesMut::with_capacity(32 + constraints.map_or(0, |bytes| bytes.len()) + entry.len());
    out.extend_from_slice(&[LAYOUT, flags]);
    if let Some((ttl, deadline)) = lease {
        wire::put_varint(&mut out, millis(ttl));
        wire::put_varint(&mut out, millis(deadline));
    }
    if mark_bytes > 0 {
        wire::put_varint(&mut out, mark_bytes as u64);
    }
    if let Some(constraints) = constraints {
        wire::put_varint(&mut out, constraints.len() as u64);
        out.extend_from_slice(constraints);
    }
    out.extend_from_slice(entry);
    out.freeze()
}

/// Milliseconds, rounded up so that a TTL never becomes zero.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl Record {
    /// Reads the record of a name.
    ///
    /// # Errors
    ///
    /// [`RecordError`] if this version did not write the bytes.
    pub fn read(type_url: &TypeUrl, bytes: &[u8]) -> Result<Self, RecordError> {
        let (&[layout, flags], mut rest) = bytes.split_first_chunk().ok_or(RecordError::Malformed)?;
        if layout != LAYOUT {
            return Err(RecordError::Newer(layout));
        }
        let view = if flags & MEMBER == 0 { View::Named } else { View::Wildcard };
        if flags & COLLECTION != 0 {
            return Ok(Self { view, kept: Kept::Collection, lease: None });
        }
        let mut number = || -> Result<u64, RecordError> {
            let (value, after) = wire::varint(rest).ok_or(RecordError::Malformed)?;
            rest = after;
            Ok(value)
        };
        let lease = match flags & TIMED {
            0 => None,
            _ => Some((Duration::from_millis(number()?), Duration::from_millis(number()?))),
        };
        let mark = if flags & MARKED == 0 { 0 } else { number()? };
        let constrained = if flags & CONSTRAINED == 0 { None } else { Some(number()?) };
        let constraints = match constrained {
            None => None,
            Some(len) => {
                let len = usize::try_from(len).map_err(|_| RecordError::Malformed)?;
                let (encoded, after) = rest.split_at_checked(len).ok_or(RecordError::Malformed)?;
                rest = after;
                Constraints::parse(encoded).map_err(|_| RecordError::Malformed)?
            }
        };
        let mark_bytes = usize::try_from(mark).map_err(|_| RecordError::Malformed)?;
        let form = VersionForm { is_own: flags & OWN_VERSION != 0, mark_bytes };
        let resource = Resource::from_entry(type_url, Bytes::copy_from_slice(rest), constraints, form);
        let resource = resource.map_err(|_| RecordError::Malformed)?;
        Ok(Self { view, kept: Kept::Resource(Arc::new(resource)), lease })
    }

    /// The lease at this moment; an error if it has ended (R-TTL-10). At most the TTL, even if the
    /// clock was set back.
    pub(crate) fn lease_at(&self, clock: Clock) -> Result<Option<Lease>, EndedError> {
        let Some((ttl, deadline)) = self.lease else { return Ok(None) };
        let left = clock.left_until(deadline).ok_or(EndedError)?.min(ttl);
        Ok(Lease::ending(ttl, clock.now + left))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedError;

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

impl StoreId {
    /// Unique bytes of a store: the type, then each key and value, as protobuf strings.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        let mut put = |text: &str| {
            wire::put_varint(&mut out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        };
        put(self.type_url.as_str());
        for (key, value) in self.parameters.iter() {
            put(key);
            put(value);
        }
        out.to_vec()
    }

    /// Reads back [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let (len, after) = wire::varint(rest)?;
            let (text, after) = after.split_at_checked(usize::try_from(len).ok()?)?;
            texts.push(std::str::from_utf8(text).ok()?);
            rest = after;
        }
        let (type_url, pairs) = texts.split_first()?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        let parameters = pairs.iter().map(|[key, value]| (*key, *value)).collect();
        odd.is_empty().then(|| Self { type_url: TypeUrl::from(*type_url), parameters })
    }
}
