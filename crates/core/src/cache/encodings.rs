//! Members of a segment as they are sent.
//!
//! Owns their encodings, each made when it is first needed. Knows nothing of names or of caches.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};

use crate::resource::Resource;

/// Encodings of some resources, one after the other.
#[derive(Default)]
pub(super) struct Encodings {
    /// Resources that these are of, where caches share them; else empty.
    members: Box<[Arc<Resource>]>,
    delta: OnceLock<Bytes>,
    sotw: OnceLock<Bytes>,
}

impl fmt::Debug for Encodings {
    /// Without what is encoded: there may be a Secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encodings").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Encodings {
    /// Encodings that caches which hold these resources may share.
    pub(super) fn of(members: Box<[Arc<Resource>]>) -> Self {
        Self { members, ..Self::default() }
    }

    /// Resources that these are of, where caches share them; else none.
    pub(super) fn members(&self) -> &[Arc<Resource>] {
        &self.members
    }

    /// Elements of `DeltaDiscoveryResponse.resources`. The members are those of the one segment, or equal ones.
    pub(super) fn delta<'r>(&self, members: impl Iterator<Item = &'r Arc<Resource>> + Clone) -> &Bytes {
        self.delta.get_or_init(|| concat(members.map(|resource| &resource.delta_entry()[..])))
    }

    /// Length of [`delta`](Self::delta), if that was made.
    pub(super) fn delta_len(&self) -> Option<usize> {
        self.delta.get().map(Bytes::len)
    }

    /// Elements of `DiscoveryResponse.resources`, as [`delta`](Self::delta).
    pub(super) fn sotw<'r>(&self, members: impl Iterator<Item = &'r Arc<Resource>> + Clone) -> &Bytes {
        self.sotw.get_or_init(|| concat(members.map(|resource| resource.sotw_entry())))
    }
}

fn concat<'a>(parts: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let mut out = BytesMut::with_capacity(parts.clone().map(<[u8]>::len).sum());
    parts.for_each(|part| out.extend_from_slice(part));
    out.freeze()
}
