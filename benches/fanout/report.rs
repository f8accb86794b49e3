//! Reports of the load client to the bench, as JSON on its stdout.

use serde::{Deserialize, Serialize};

/// Traffic in and out over some time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    /// Elements of the field `resources`.
    pub(crate) resources: u64,
    /// Everything read from the sockets.
    pub(crate) bytes: u64,
    /// Everything written to them.
    pub(crate) sent: u64,
    /// How old changes were when they came, in nanoseconds: of delta resources whose version is the time of change.
    pub(crate) p50_age: u64,
    pub(crate) p99_age: u64,
    pub(crate) max_age: u64,
}

/// How a fleet came up.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Joined {
    /// From the first connect to the last first state.
    pub(crate) nanos: u64,
    pub(crate) tally: Tally,
}

/// How a fleet came up that came all at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stormed {
    /// Times from the beginning to the first answers, in nanoseconds: of clients that resume, and of those that hold nothing.
    pub(crate) resuming: Quantiles,
    pub(crate) cold: Quantiles,
    /// Connections and streams that the server ended.
    pub(crate) refused: u64,
    /// Connections that clients gave up because they did not stand in time.
    pub(crate) given_up: u64,
    /// First answers that came later than clients wait for them.
    pub(crate) late: u64,
}

/// Quantiles of a time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// When the responses to a change came, on the machine's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Arrivals {
    pub(crate) median: u64,
    pub(crate) p99: u64,
    pub(crate) last: u64,
    pub(crate) tally: Tally,
}
