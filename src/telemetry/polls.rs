//! Metrics of long polls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;

use super::{HELD_POLLS, POLLS, PROPAGATION, RESPONSE_BYTES, RESPONSES};

/// How a poll ended, beside those that were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    /// With what it asked for.
    Answered,
    /// There was nothing new until it could wait no longer.
    NotModified,
    /// What it asked for was not known until then.
    Unknown,
    /// The request was at fault.
    Refused,
    /// Its peer has too many already.
    TooMany,
    /// A resource in the answer has a type that the descriptors lack.
    UnknownType,
    /// A resource in the answer cannot be written as JSON for another reason.
    Unwritable,
    /// The client hung up.
    Abandoned,
}

impl PollOutcome {
    const LABELS: [&'static str; 8] = [
        "answered",
        "not_modified",
        "unknown",
        "refused",
        "too_many",
        "unknown_type",
        "unwritable",
        "abandoned",
    ];
}

/// Counts one poll.
#[derive(Debug)]
pub struct PollGauge {
    counters: Arc<PollCounters>,
    outcome: PollOutcome,
    parked: bool,
}

impl PollGauge {
    /// A poll for this type began.
    pub fn open(kind: &'static str) -> Self {
        // Until it has ended in another way, dropping it means that the client has gone.
        Self { counters: PollCounters::of(kind), outcome: PollOutcome::Abandoned, parked: false }
    }

    /// It has to wait.
    pub fn parked(&mut self) {
        self.parked = true;
        self.counters.held.increment(1.0);
    }

    /// It was given so many bytes; `waited` since the newest change in them arrived, where it was waiting for that.
    pub fn answered(&mut self, bytes: usize, waited: Option<Duration>) {
        self.counters.responses.increment(1);
        self.counters.response_bytes.increment(bytes as u64);
        if let Some(waited) = waited {
            self.counters.propagation.record(waited);
        }
        self.ended(PollOutcome::Answered);
    }

    /// It ended in this way.
    pub const fn ended(&mut self, outcome: PollOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for PollGauge {
    fn drop(&mut self) {
        self.counters.outcomes[self.outcome as usize].increment(1);
        if self.parked {
            self.counters.held.decrement(1.0);
        }
    }
}

/// The counters of the polls of one type.
#[derive(Debug)]
struct PollCounters {
    held: Gauge,
    outcomes: [Counter; 8],
    responses: Counter,
    response_bytes: Counter,
    propagation: Histogram,
}

impl PollCounters {
    /// Those of a type, shared by all polls.
    fn of(kind: &'static str) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<&str, Arc<PollCounters>>> = Mutex::new(BTreeMap::new());
        const TRANSPORT: &str = "rest";
        let outcome = |outcome| counter!(POLLS, "type" => kind, "outcome" => outcome);
        let make = || {
            Arc::new(Self {
                held: gauge!(HELD_POLLS, "type" => kind),
                outcomes: PollOutcome::LABELS.map(outcome),
                responses: counter!(RESPONSES, "type" => kind, "transport" => TRANSPORT),
                response_bytes: counter!(RESPONSE_BYTES, "type" => kind, "transport" => TRANSPORT),
                propagation: histogram!(PROPAGATION, "type" => kind, "transport" => TRANSPORT),
            })
        };
        Arc::clone(ALL.lock().entry(kind).or_insert_with(make))
    }
}
