//! Metrics of long polls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;

use super::catalog::{HELD_POLLS, POLLS, PROPAGATION, RESPONSE_BYTES, RESPONSES};

const REST: &str = "rest";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollOutcome {
    Answered,
    /// Nothing changed while it was held.
    NotModified,
    /// A resource was still unknown at the end of the hold.
    Unknown,
    Refused,
    TooMany,
    /// The descriptors lack the type of a resource.
    UnknownType,
    /// A resource cannot be written as JSON for another reason.
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

#[derive(Debug)]
pub struct PollGauge {
    counters: Arc<PollCounters>,
    outcome: PollOutcome,
    parked: bool,
}

impl PollGauge {
    pub fn open(kind: &'static str) -> Self {
        // A poll that is dropped without another end was abandoned.
        Self { counters: PollCounters::of(kind), outcome: PollOutcome::Abandoned, parked: false }
    }

    pub fn parked(&mut self) {
        self.parked = true;
        self.counters.held.increment(1.0);
    }

    /// Ends it with an answer of `bytes`; `waited` is the time since the newest change in it.
    pub fn answered(&mut self, bytes: usize, waited: Option<Duration>) {
        self.counters.responses.increment(1);
        self.counters.response_bytes.increment(bytes as u64);
        if let Some(waited) = waited {
            self.counters.propagation.record(waited);
        }
        self.ended(PollOutcome::Answered);
    }

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

#[derive(Debug)]
struct PollCounters {
    held: Gauge,
    outcomes: [Counter; 8],
    responses: Counter,
    response_bytes: Counter,
    propagation: Histogram,
}

impl PollCounters {
    /// All polls of a type share them.
    fn of(kind: &'static str) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<&str, Arc<PollCounters>>> = Mutex::new(BTreeMap::new());
        let outcome = |outcome| counter!(POLLS, "type" => kind, "outcome" => outcome);
        let make = || {
            Arc::new(Self {
                held: gauge!(HELD_POLLS, "type" => kind),
                outcomes: PollOutcome::LABELS.map(outcome),
                responses: counter!(RESPONSES, "type" => kind, "transport" => REST),
                response_bytes: counter!(RESPONSE_BYTES, "type" => kind, "transport" => REST),
                propagation: histogram!(PROPAGATION, "type" => kind, "transport" => REST),
            })
        };
        Arc::clone(ALL.lock().entry(kind).or_insert_with(make))
    }
}
