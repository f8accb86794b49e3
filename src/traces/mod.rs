//! OpenTelemetry traces of changes: one for each response of the control plane that changes resources, until
//! the last client's ACK.
//!
//! Off unless the environment names a collector. Owns the spans and their export. Reads progress from the
//! cache and the records of the [fleet](crate::fleet) while a trace is open. Notes nothing where responses
//! are sent, so traces do not slow down clients.
//!
//! Invariants:
//! - A trace has at most four spans, however many clients there are.
//! - Open traces are bounded in number and time; further changes are only counted.
//! - A slow or absent collector delays nothing but the export.

mod change_follower;
mod exporter;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;

use change_follower::Follower;

use crate::fleet::Fleet;
use crate::groups::Groups;
use crate::telemetry::{self, Needs, TraceEnd};
use crate::upstream::{ChangeSink, StoredChange};

const OPEN: usize = 64;
/// Interval of looks at the clients: delay until a trace's end is noticed. Its recorded times do not depend
/// on it.
const LOOK: Duration = Duration::from_millis(100);
/// Looks take at most one part in so many of a thread's time.
const LOOK_SHARE: u32 = 20;
/// Longest delay of the process's end by the last export.
const LAST_EXPORT: Duration = Duration::from_secs(1);

enum Event {
    Change(StoredChange),
    Stop,
}

/// Traces that have not begun.
#[derive(Debug)]
pub struct Traces {
    sink: ChangeSink,
    sender: Sender<Event>,
    receiver: Receiver<Event>,
    provider: SdkTracerProvider,
}

#[derive(Debug)]
pub struct TraceThread {
    sender: Sender<Event>,
    thread: JoinHandle<()>,
    provider: SdkTracerProvider,
}

impl Traces {
    /// Prepares traces if the environment asks for them, and logs a fault in it. Call it within the tokio
    /// runtime for the export.
    ///
    /// `has_changes` is whether the source of resources is a control plane.
    pub fn from_environment(has_changes: bool) -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let provider = match exporter::is_wanted(variable) {
            Ok(false) => return None,
            Ok(true) if !has_changes => {
                tracing::warn!("traces are of changes of a control plane: `upstream.directory` has none");
                return None;
            }
            Ok(true) => exporter::provider(variable),
            Err(reason) => Err(reason),
        };
        let provider = match provider {
            Ok(provider) => provider,
            Err(reason) => {
                tracing::error!(reason, "cannot send traces to an OpenTelemetry collector; serving without");
                return None;
            }
        };
        let (sender, receiver) = mpsc::channel();
        let events = sender.clone();
        // Nobody listens once the relay ends.
        let sink = ChangeSink::new(OPEN, move |change| drop(events.send(Event::Change(change))));
        telemetry::make_at_zero(Needs::Traces);
        Some(Self { sink, sender, receiver, provider })
    }

    pub const fn sink(&self) -> &ChangeSink {
        &self.sink
    }

    /// Follows changes to these clients, on a thread of its own.
    ///
    /// # Errors
    ///
    /// There can be no further thread.
    pub fn follow(self, fleet: Arc<Fleet>, groups: Arc<Groups>) -> std::io::Result<TraceThread> {
        let Self { sink: _, sender, receiver, provider } = self;
        let follower = Follower::new(provider.tracer("deltafan"));
        let run = move || run(follower, &receiver, &fleet, &groups);
        let thread = std::thread::Builder::new().name("traces".to_owned()).spawn(run)?;
        Ok(TraceThread { sender, thread, provider })
    }
}

impl TraceThread {
    /// Ends open traces and exports them, for a second at most. Blocks.
    pub fn finish(self) {
        drop(self.sender.send(Event::Stop));
        drop(self.thread.join());
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_EXPORT) {
            tracing::warn!(%error, "the last traces may be lost");
        }
    }
}

fn run(mut follower: Follower, events: &Receiver<Event>, fleet: &Fleet, groups: &Groups) {
    let mut next_look = None;
    loop {
        let now = Instant::now();
        let event = match next_look {
            Some(at) if at <= now => Err(RecvTimeoutError::Timeout),
            Some(at) => events.recv_timeout(at - now),
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Change(change)) => {
                let group = group_of(groups, &change);
                follower.begin(change, group);
                next_look = next_look.or_else(|| follower.is_following().then(|| now + LOOK));
            }
            Err(RecvTimeoutError::Timeout) => {
                follower.look(fleet, now);
                let wait = (now.elapsed() * LOOK_SHARE).max(LOOK);
                next_look = follower.is_following().then(|| Instant::now() + wait);
            }
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => {
                return follower.end_all(TraceEnd::Stopped, now);
            }
        }
    }
}

/// Rule of the change's node group; `None` for the relay's own node.
fn group_of(groups: &Groups, change: &StoredChange) -> Option<String> {
    let mut made = groups.made().into_iter();
    made.find(|(_, group, _)| group.cache().number() == change.cache).map(|(key, ..)| key.rule().to_owned())
}
