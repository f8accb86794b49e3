//! Identity of a server.
//!
//! Versions belong to the server that gave them (R-Up-04): "7" of one says nothing of "7" of
//! another. A returning client must not count as current because another server gave its version to
//! other content. So clients receive versions of the first server in the list unchanged, and those
//! of others with a mark.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3;

/// Identity of a server: its URI as configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

impl ServerId {
    /// The URI.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Suffix of versions of this server: `~` and 8 hexadecimal digits, a hash of the URI. It is
    /// equal in all relays, and after a restart.
    pub(super) fn mark(&self) -> String {
        format!("~{:08x}", xxh3::xxh3_64(self.0.as_bytes()) as u32)
    }
}

impl From<&str> for ServerId {
    fn from(uri: &str) -> Self {
        Self(uri.into())
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
