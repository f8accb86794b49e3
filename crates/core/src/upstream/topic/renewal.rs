//! Reasons to open a stream anew, and for how long they hold.

use std::time::{Duration, Instant};

use super::super::arrival::Growth;
use crate::cache::View;

/// After so many streams on which nothing at all came of a view, its silence is a reason to open one more and no other. By then
/// each version that fits into a request was told once, and one was kept back in vain; on the last stream all are told.
const SILENT_STREAMS: u32 = 3;

/// A late answer counts as no later than this: after hours of silence it is a change.
const LATEST: Duration = Duration::from_secs(120);

/// Streams in a row, by view, on which nothing at all came.
#[derive(Debug, Default)]
pub(in crate::upstream) struct SilentStreams {
    count: [u32; 2],
    /// Longest wait for an answer that came after it had been given up.
    waited: [Duration; 2],
}

impl SilentStreams {
    /// Whether another one is a reason to open the stream anew.
    pub(super) const fn may_renew(&self, view: View) -> bool {
        self.count[view as usize] <= SILENT_STREAMS
    }

    /// Whether the stream that is to be opened is the last for this reason.
    pub(in crate::upstream) const fn are_over(&self, view: View) -> bool {
        self.count[view as usize] >= SILENT_STREAMS
    }

    pub(super) const fn add(&mut self, view: View) {
        self.count[view as usize] += 1;
    }

    /// Something came, after this time if it had been given up.
    pub(super) fn end(&mut self, view: View, waited: Option<Duration>) {
        let longest = &mut self.waited[view as usize];
        *longest = waited.map_or(*longest, |waited| waited.min(LATEST).max(*longest));
        self.count[view as usize] = 0;
    }

    /// How long nothing has to come until a stream counts as silent: `usual`, or twice the wait for an answer that was late. An
    /// origin that took 22 s for a first part, behind a long answer for another type, is given 44 s on the next stream. Else each
    /// stream would be given up, or cast doubt on what its answer brings, and no sweep would come to its end.
    pub(super) fn patience(&self, view: View, usual: Duration) -> Duration {
        usual.max(2 * self.waited[view as usize])
    }
}

/// Clients that hold nothing are shown such a set after this, as it is: well before the 15 s that Envoy and gRPC wait.
const SHOWN: Duration = Duration::from_secs(5);

/// A wildcard set that streams were opened anew to prove complete.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct Unproven {
    since: Instant,
    growth: Growth,
    is_shown: bool,
}

impl Unproven {
    /// The first stream is opened now, with so many members.
    pub(super) const fn starting(now: Instant, members: usize) -> Self {
        Self { since: now, growth: Growth::starting(now, members), is_shown: false }
    }

    /// Whether the set with so many members counts as complete by now without proof: an origin where something changes all the
    /// time proves nothing.
    pub(super) fn is_over(&mut self, now: Instant, members: usize) -> bool {
        self.growth.reach(now, members);
        self.growth.bound() <= now
    }

    /// Whether clients that hold nothing are shown it by now.
    pub(super) fn is_shown(&mut self, now: Instant) -> bool {
        self.is_shown |= self.since + SHOWN <= now;
        self.is_shown
    }

    /// When one of both is next due.
    pub(super) fn deadline(self) -> Instant {
        if self.is_shown { self.growth.bound() } else { self.since + SHOWN }
    }

    /// Time in which this process did not run is none in which it was not proven.
    #[must_use]
    pub(super) fn shifted(self, pause: Duration, now: Instant) -> Self {
        let later = |at: Instant| (at + pause).min(now);
        Self { since: later(self.since), growth: self.growth.shifted(later), ..self }
    }
}

/// Reason to open a stream anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::upstream) enum Renewal {
    /// Something may be gone, or is for others too: nobody lacks anything meanwhile.
    Doubt,
    /// A client waits for proof that a wildcard set is complete.
    Proof,
    /// The origin leaves unanswered what it takes for delivered: clients wait for it.
    Unanswered,
    /// An operator wants a resource anew.
    Ordered,
    /// The client whose node the control plane is shown is gone.
    Node,
}

impl Renewal {
    /// How many there are.
    pub(in crate::upstream) const COUNT: usize = 5;
}
