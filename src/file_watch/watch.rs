//! Kernel's watch on folders, by inotify.
//!
//! Owns the descriptor and the thread that reads its events.
//!
//! Invariants:
//! - An entry that does not count wakes nobody.
//! - Events are read at most once per [`PAUSE`], however many there are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::debounce::{Burst, Debounce};
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

/// Between two readings; well below the quiet time of a [`Debounce`].
const PAUSE: Duration = Duration::from_millis(20);

/// For more events than a pause brings: some 2000 with names of 16 bytes.
const BUFFER_BYTES: usize = 64 << 10;

type Watched = HashMap<i32, Entries>;

#[derive(Debug)]
pub(super) struct Watch {
    inotify: Arc<OwnedFd>,
    /// Entries by watch descriptor. Events of other descriptors are ignored.
    watched: Arc<Mutex<Watched>>,
    /// Ends the thread on drop.
    _stop: PipeWriter,
}

impl Watch {
    pub(super) fn start(debounce: Debounce, wake: impl Fn() + Send + 'static) -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        let watched = Arc::new(Mutex::new(Watched::new()));
        let (stopped, stop) = io::pipe()?;
        let (events, of) = (Arc::clone(&inotify), Arc::clone(&watched));
        thread::Builder::new()
            .name("file watcher".to_owned())
            .spawn(move || run(&events, &of, &stopped, debounce, &wake))?;
        Ok(Self { inotify, watched, _stop: stop })
    }

    /// Watches exactly these paths. Returns whether a folder is new. The error is a limit of the kernel.
    pub(super) fn renew(&self, paths: WatchedPaths) -> io::Result<bool> {
        // Held throughout: no event is judged before its entries are known.
        let mut watched = self.watched.lock();
        let mut now = Watched::new();
        let mut lack = None;
        for (folder, entries) in paths.into_folders() {
            // Returns the descriptor of a watched folder again.
            match inotify::add_watch(&*self.inotify, &folder, CHANGES) {
                Ok(descriptor) => now.entry(descriptor).or_default().extend(entries),
                Err(error @ (Errno::NOSPC | Errno::NOMEM)) => lack = Some(io::Error::from(error)),
                // It may be gone or unreadable. Another step on its way is watched, or polling finds it.
                Err(error) => tracing::debug!(%error, folder = %folder.display(), "not watched"),
            }
        }
        for descriptor in watched.keys().filter(|descriptor| !now.contains_key(descriptor)) {
            // It may be gone with its folder.
            _ = inotify::remove_watch(&*self.inotify, *descriptor);
        }
        let has_new = now.keys().any(|descriptor| !watched.contains_key(descriptor));
        *watched = now;
        lack.map_or(Ok(has_new), Err)
    }
}

fn run(
    inotify: &OwnedFd,
    watched: &Mutex<Watched>,
    stopped: &PipeReader,
    debounce: Debounce,
    wake: &impl Fn(),
) {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut burst = None;
    loop {
        let mut ready = [PollFd::new(inotify, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        let wait = burst.map(|burst: Burst| burst.due(debounce).saturating_duration_since(Instant::now()));
        let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
        // After a failure there is nothing to read, and the pause below prevents spinning.
        _ = poll(&mut ready, timeout.as_ref());
        if !ready[1].revents().is_empty() {
            return;
        }
        let counts = take_in(&mut reader, watched);
        let now = Instant::now();
        if counts {
            burst = Some(Burst::add(burst, now));
        }
        if burst.take_if(|burst| burst.due(debounce) <= now).is_some() {
            wake();
        }
        thread::sleep(PAUSE);
    }
}

/// Reads at most one buffer. Returns whether any event counts.
fn take_in(reader: &mut Reader<'_, &OwnedFd>, watched: &Mutex<Watched>) -> bool {
    let mut counts = false;
    loop {
        match reader.next() {
            Ok(event) => counts |= concerns(&event, &mut watched.lock()),
            Err(Errno::AGAIN | Errno::INTR) => return counts,
            // Events were lost: the user must look.
            Err(_) => return true,
        }
        if reader.is_buffer_empty() {
            return counts;
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
