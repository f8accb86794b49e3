//! Totals over everything that a store holds, kept as it changes.

use super::Entry;
use crate::resource::TypeUrl;

/// Number and size of resources, and what tells two states apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Resources.
    pub resources: usize,
    /// Bytes of their encodings.
    pub bytes: usize,
    /// Sum of their [digests](crate::resource::Resource::digest), whatever their order: equal for two stores that hold equal resources.
    /// Of Secrets [without versions and bodies](crate::resource::Resource::identity_digest): operators are shown it.
    pub digest: u128,
}

impl Held {
    /// Resource of one entry. One that is held in both views counts once.
    fn of(entry: &Entry, type_url: &TypeUrl) -> Self {
        entry.held().map_or_else(Self::default, |resource| Self {
            resources: 1,
            bytes: resource.delta_entry().len(),
            digest: if type_url.is_secret() { resource.identity_digest() } else { resource.digest() },
        })
    }

    pub(super) fn put(&mut self, entry: &Entry, type_url: &TypeUrl) {
        *self = self.plus(Self::of(entry, type_url));
    }

    pub(super) fn take(&mut self, entry: &Entry, type_url: &TypeUrl) {
        let Self { resources, bytes, digest } = Self::of(entry, type_url);
        self.resources -= resources;
        self.bytes -= bytes;
        self.digest = self.digest.wrapping_sub(digest);
    }

    /// Totals of two stores.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            resources: self.resources + more.resources,
            bytes: self.bytes + more.bytes,
            digest: self.digest.wrapping_add(more.digest),
        }
    }
}
