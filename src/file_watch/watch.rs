//! Kernel's watch on folders, by inotify.
//!
//! Invariants:
//! - An entry that does not count is no change.
//! - Events are read by one buffer, however many there are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::watched_paths::{Entries, WatchedPaths};

/// Not `MODIFY`: a program that appends to its log must cost nothing. A file written in place counts once it
/// is closed.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// For more events than a pause brings: some 2000 with names of 16 bytes.
const BUFFER_BYTES: usize = 64 << 10;

type Watched = HashMap<i32, Entries>;

#[derive(Debug)]
pub(super) struct Watch {
    inotify: OwnedFd,
    /// Entries by watch descriptor. Events of other descriptors are ignored.
    watched: Watched,
}

impl Watch {
    pub(super) fn start() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, watched: Watched::new() })
    }

    /// Is readable when there are events.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Watches exactly these paths. Returns whether a folder is new. The error is a limit of the kernel.
    pub(super) fn renew(&mut self, paths: WatchedPaths) -> io::Result<bool> {
        let mut now = Watched::new();
        let mut lack = None;
        for (folder, entries) in paths.into_folders() {
            // Returns the descriptor of a watched folder again.
            match inotify::add_watch(&self.inotify, &folder, CHANGES) {
                Ok(descriptor) => now.entry(descriptor).or_default().extend(entries),
                Err(error @ (Errno::NOSPC | Errno::NOMEM)) => lack = Some(io::Error::from(error)),
                // It may be gone or unreadable. Another step on its way is watched, or polling finds it.
                Err(error) => tracing::debug!(%error, folder = %folder.display(), "not watched"),
            }
        }
        for descriptor in self.watched.keys().filter(|descriptor| !now.contains_key(descriptor)) {
            // It may be gone with its folder.
            _ = inotify::remove_watch(&self.inotify, *descriptor);
        }
        let has_new = now.keys().any(|descriptor| !self.watched.contains_key(descriptor));
        self.watched = now;
        lack.map_or(Ok(has_new), Err)
    }

    /// Reads at most one buffer of events. Returns whether any counts.
    pub(super) fn has_changes(&mut self) -> bool {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut counts = false;
        loop {
            match reader.next() {
                Ok(event) => counts |= concerns(&event, &mut self.watched),
                Err(Errno::AGAIN | Errno::INTR) => return counts,
                // Events were lost: the user must look.
                Err(_) => return true,
            }
            if reader.is_buffer_empty() {
                return counts;
            }
        }
    }
}

fn concerns(event: &Event<'_>, watched: &mut Watched) -> bool {
    if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
        return true;
    }
    let Some(entries) = watched.get(&event.wd()) else { return false };
    if event.events().contains(ReadFlags::IGNORED) {
        // The folder is gone with its watch. The next `renew` watches its replacement.
        watched.remove(&event.wd());
        return true;
    }
    // An event without a name is about the folder itself.
    event.file_name().is_none_or(|name| entries.include(OsStr::from_bytes(name.to_bytes())))
}
