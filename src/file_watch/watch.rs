//! The kernel's watch on folders, by inotify.
//!
//! Owns the descriptor and the thread that takes in its events. Invariants: nobody is woken by an entry that does not
//! count · events are taken in at most once per [`PAUSE`], however many there are.

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
use super::paths::{Entries, WatchedPaths};

/// Not `MODIFY`: a program that appends to its log is to cost nothing. A file that is written in place counts once it is
/// closed.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Well below the time for which whoever is woken waits for a burst to end.
const PAUSE: Duration = Duration::from_millis(20);

/// For more events than a pause brings: some 2,000 with names of 16 bytes.
const BUFFER_BYTES: usize = 64 << 10;

type Watched = HashMap<i32, Entries>;

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Arc<OwnedFd>,
    /// By watch descriptor. One that is not here was let go.
    watched: Arc<Mutex<Watched>>,
    /// The thread ends when this is closed.
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

    /// Watches these paths, and no others.
    pub(super) fn renew(&self, paths: WatchedPaths) -> io::Result<bool> {
        // Held throughout: no event of a folder is judged before it is known what counts there.
        let mut watched = self.watched.lock();
        let mut now = Watched::new();
        let mut lack = None;
        for (folder, entries) in paths.into_folders() {
            // For a folder that is watched already this returns the descriptor that it has.
            match inotify::add_watch(&*self.inotify, &folder, CHANGES) {
                Ok(descriptor) => now.entry(descriptor).or_default().extend(entries),
                Err(error @ (Errno::NOSPC | Errno::NOMEM)) => lack = Some(io::Error::from(error)),
                // It may be gone since or out of bounds. Another step on the way to it is watched, or a look finds out.
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
        // Where it fails there is nothing to read, and the pause below keeps it from being asked again at once.
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

/// Takes in what is there, one buffer at most. Says whether any of it counts.
fn take_in(reader: &mut Reader<'_, &OwnedFd>, watched: &Mutex<Watched>) -> bool {
    let mut counts = false;
    loop {
        match reader.next() {
            Ok(event) => counts |= concerns(&event, &mut watched.lock()),
            Err(Errno::AGAIN | Errno::INTR) => return counts,
            // What was missed is for a look to find.
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
        // The folder is gone, and its watch. What stands in its place gets another with the next look.
        watched.remove(&event.wd());
        return true;
    }
    // Without a name it is about the folder itself.
    event.file_name().is_none_or(|name| entries.include(OsStr::from_bytes(name.to_bytes())))
}
