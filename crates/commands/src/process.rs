//! Process of a command: its output, its signals and its runtime.

use std::fmt::Display;
use std::io::Write as _;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Writes a line to stderr. One that cannot be written in time is lost, without effect on the exit or its
/// status.
pub fn complain(line: impl Display) {
    let line = format!("{line}\n");
    within_a_second(move || _ = std::io::stderr().write_all(line.as_bytes()));
}

/// For work that may hang with the reader of an output.
pub fn within_a_second(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let work = move || {
        work();
        _ = done.send(());
    };
    // Without a thread the output is lost.
    if std::thread::Builder::new().spawn(work).is_ok() {
        _ = is_done.recv_timeout(Duration::from_secs(1));
    }
}

/// Writes to stdout.
///
/// # Errors
///
/// Output that cannot be written.
pub fn print(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_ref()).map_err(anyhow::Error::from).or_else(unless_unread)
}

/// A reader that closes early (`| head`) is no fault.
pub(crate) fn unless_unread(error: anyhow::Error) -> anyhow::Result<()> {
    match error.downcast_ref::<std::io::Error>() {
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }
}

/// Raises the limit as far as allowed: every client takes a descriptor, and shells start programs with few.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = ?limit.current, "could not raise the limit of open descriptors");
    }
}

/// Polls sockets often, and few at a time: ready ones enter a queue of 256 per thread, whose overflow waits
/// behind everything later.
///
/// # Errors
///
/// The system allows no further thread.
pub fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .enable_all()
        .event_interval(16)
        .max_io_events_per_tick(128)
        .max_io_events_per_busy_tick(16)
        .build()
}

/// Signals with a meaning; none ends the process by itself now. One without a waiter, as SIGHUP during a
/// drain, does nothing.
#[derive(Debug)]
pub struct Signals {
    pub stop: Stop,
    pub hangups: Signal,
}

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Stop([Signal; 2]);

impl Signals {
    /// Takes the signals from now on.
    ///
    /// # Errors
    ///
    /// The system allows no handler.
    pub fn new() -> std::io::Result<Self> {
        let stop = Stop([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]);
        Ok(Self { stop, hangups: signal(SignalKind::hangup())? })
    }
}

impl Stop {
    /// Waits for the next one.
    pub async fn asked(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

pub(crate) fn small_runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
