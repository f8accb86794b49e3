//! Bounds on the work of one turn: then a task yields its thread, or a thread its core.
//!
//! A smaller value means more turns for expensive peers; a larger one, longer waits for all others. The core
//! has its own bounds for names.
//!
//! Costs are lower bounds: optimized build, one core of a small virtual machine, names of 55 bytes, nothing
//! held yet.

use std::time::Duration;

// Threads: the budget of each connection, see `downstream::scheduler`.

/// Share of a thread that a connection earns: one 128th, 7.8 ms per second.
pub(crate) const REFILL_DIVISOR: u32 = 128;
/// Largest saved budget: 5 polls of 1 ms.
pub(crate) const MAX_BUDGET: Duration = Duration::from_millis(5);
/// Largest debt: the machine may have taken the time, not the connection.
pub(crate) const MAX_DEBT: Duration = Duration::from_millis(100);
/// Below this budget a poll needs a permit: about the time of one poll.
pub(crate) const MIN_BUDGET: Duration = Duration::from_millis(1);
/// After this, time taken counts at most half.
pub(crate) const DECAY_SECONDS: f32 = 1.0;
/// Assumed time of a new connection, in seconds: its cost is unknown.
pub(crate) const NEWCOMER_SECONDS: f32 = 0.02;
/// Seconds for which others go first, per second that a connection took lately.
pub(crate) const HANDICAP: f32 = 10.0;
/// Longest time for which others go first.
pub(crate) const MAX_HANDICAP: Duration = Duration::from_secs(1);

// Long work, moved off the worker threads.

/// Names above which a subscription is evaluated or dropped off the worker.
///
/// Cost of 20,000 names: 2.2 ms to subscribe to, 0.2 ms to evaluate, 1.5 ms to drop.
pub(crate) const MANY_NAMES: usize = 20_000;
/// Bytes above which a request is decoded off the worker.
///
/// Cost of 57,000 bytes with 1,000 names: 0.02 ms to decode, 0.09 ms to subscribe to.
pub(crate) const LARGE_REQUEST: usize = 64 << 10;
/// Delay of long work that found no free thread.
pub(crate) const RETRY: Duration = Duration::from_millis(2);
/// Values waiting to be dropped: no limit counts their memory any more.
pub(crate) const RECLAIM_QUEUE_LEN: usize = 8;

// Sockets and streams: consecutive work for one peer.

/// Longest wait of a TLS handshake for its first turn. Envoy gives up after 5 s by default, handshake
/// included, and reconnects. Serving in order of arrival, a relay would serve peers about to leave, and its
/// queue would never shrink. The rest of the 5 s is for the handshake.
pub(crate) const LONGEST_HANDSHAKE_WAIT: Duration = Duration::from_secs(3);
/// Polls for which a TLS handshake keeps its place. Enough for a peer that sends its two flights in a few
/// segments each.
pub(crate) const PLACED_HANDSHAKE_POLLS: u8 = 8;

/// Time for which resuming clients and relays go before an earlier client that holds nothing.
pub(crate) const COLD_HANDICAP: Duration = Duration::from_secs(4);
/// Longest wait for a stream's first answer under overload. Envoy and gRPC give up an initial resource after
/// 15 s, and an answer takes time to arrive. After an earlier refusal gRPC reports an unavailable server;
/// after silence, missing resources. Longer than the default of `downstream.cold_deadline`: clients whose
/// resources arrive just within that are still answered.
pub(crate) const LONGEST_FIRST_ANSWER_WAIT: Duration = Duration::from_secs(12);

/// Connections accepted in a row before waiting ones are served; the rest stays in the kernel.
pub(crate) const ACCEPTED_IN_A_ROW: usize = 16;
/// Longest pause in between, so that accepting does not starve behind expensive connections.
pub(crate) const LONGEST_ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Of one stream.
pub(crate) const REQUESTS_IN_A_ROW: usize = 32;
/// Longest time for that: a short request can take long. HTTP/2 gives a whole connection as long.
pub(crate) const REQUEST_SLICE: Duration = Duration::from_millis(1);
/// For reading a long poll's body in a row, however fast it arrives.
pub(crate) const BODY_SLICE: Duration = Duration::from_micros(500);
/// Messages of the control plane read in a row before requests, clients and timers get a turn.
pub(crate) const MESSAGES_IN_A_ROW: u32 = 32;

/// Lets all other threads go first, on Linux; elsewhere, or on failure, nothing changes. A low-priority
/// thread must take no lock that others wait for.
pub(crate) fn lower_thread_priority() {
    if cfg!(target_os = "linux") {
        _ = rustix::process::setpriority_process(None, 10);
    }
}
