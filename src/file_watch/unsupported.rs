//! Replacement for the kernel's watch where there is no inotify: users find changes by polling.

use std::io;

use super::debounce::Debounce;
use super::paths::WatchedPaths;

/// Watch that cannot be created.
#[derive(Debug)]
pub(super) enum Watch {}

impl Watch {
    pub(super) fn start(_: Debounce, _: impl Fn() + Send + 'static) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn renew(&self, _: WatchedPaths) -> io::Result<bool> {
        match *self {}
    }
}
