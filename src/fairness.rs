//! Bounds on the work of one turn: after so much, a task gives its thread to others, or a thread its core.
//!
//! A smaller value means more turns for expensive peers; a larger one, longer waits for all others. The core has such
//! bounds of its own for names.
//!
//! Costs are of an optimized build on one core of a small virtual machine, with names of 55 bytes of which nothing is held
//! yet: lower bounds.

use std::time::Duration;

// Threads: the budget of each connection, see `downstream::scheduler`.

/// Part of a thread's time that a connection earns: one 128th, 7.8 ms per second.
pub(crate) const REFILL_DIVISOR: u32 = 128;
/// Largest budget that a connection saves up: 5 polls of 1 ms.
pub(crate) const MAX_BUDGET: Duration = Duration::from_millis(5);
/// Largest debt: the machine may have taken the time, and not the connection.
pub(crate) const MAX_DEBT: Duration = Duration::from_millis(100);
/// Budget below which a poll needs a permit: about the time of one poll.
pub(crate) const MIN_BUDGET: Duration = Duration::from_millis(1);
/// Seconds after which time taken counts at most half.
pub(crate) const DECAY_SECONDS: f32 = 1.0;
/// Seconds of a thread that a new connection is assumed to have taken: its cost is not known yet.
pub(crate) const NEWCOMER_SECONDS: f32 = 0.02;
/// Seconds for which others go first, for each second that a connection took lately.
pub(crate) const HANDICAP: f32 = 10.0;
/// Longest time for which others go first.
pub(crate) const MAX_HANDICAP: Duration = Duration::from_secs(1);

// Long work: what is moved off the worker threads.

/// Names above which evaluating or dropping a subscription is moved off the worker.
///
/// Cost of 20,000 names: 2.2 ms to subscribe to, 0.2 ms to evaluate, 1.5 ms to drop.
pub(crate) const MANY_NAMES: usize = 20_000;
/// Bytes above which decoding a request is moved off the worker.
///
/// Cost of 57,000 bytes with 1,000 names: 0.02 ms to decode, 0.09 ms to subscribe to.
pub(crate) const LARGE_REQUEST: usize = 64 << 10;
/// Time after which long work is tried again when no thread was free for it.
pub(crate) const RETRY: Duration = Duration::from_millis(2);
/// Values that may wait to be dropped: no limit counts their memory any more.
pub(crate) const RECLAIM_QUEUE_LEN: usize = 8;

// Sockets and streams: what one peer is given in a row.

/// Longest wait of a TLS handshake for its first turn. Envoy gives a connection up after 5 s by default, its handshake included, and
/// comes again: a relay that shakes hands with peers in the order in which they came would serve those that are about to leave, and
/// the queue would never get shorter. The rest of the 5 s is for the handshake itself.
pub(crate) const LONGEST_HANDSHAKE_WAIT: Duration = Duration::from_secs(3);
/// Number of polls for which a TLS handshake keeps the place that it came at. A peer that sends each of its two flights in a few
/// segments needs no more.
pub(crate) const PLACED_HANDSHAKE_POLLS: u8 = 8;

/// Time for which clients that resume go before a relay that holds nothing and came earlier.
pub(crate) const RELAY_HANDICAP: Duration = Duration::from_secs(2);
/// Time for which clients that resume go before a client that holds nothing and came earlier.
pub(crate) const COLD_HANDICAP: Duration = Duration::from_secs(4);
/// Longest time from the first request of a stream to its first answer, while the relay is overloaded. Envoy and gRPC give an
/// initial resource up after 15 s, and an answer takes time to arrive. A refusal before that lets gRPC report the server as
/// unavailable, where silence would make it report that the resources do not exist. Longer than the default of
/// `downstream.cold_deadline`, so that clients whose resources arrive just within that are still answered.
pub(crate) const LONGEST_FIRST_ANSWER_WAIT: Duration = Duration::from_secs(12);

/// Connections accepted in a row before waiting new ones are served; the rest stays in the kernel.
pub(crate) const ACCEPTED_IN_A_ROW: usize = 16;
/// Longest pause in between: accepting must not starve behind expensive connections.
pub(crate) const LONGEST_ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Reads in a row from a socket. TLS reads 4 KiB at a time: 8 reads are some hundred of the smallest records,
/// and more than the largest one.
pub(crate) const READS_IN_A_ROW: u8 = 8;
/// Requests of a stream read in a row.
pub(crate) const REQUESTS_IN_A_ROW: usize = 32;
/// Longest time for that: a short request can be long to handle. HTTP/2 gives a whole connection as long.
pub(crate) const REQUEST_SLICE: Duration = Duration::from_millis(1);
/// Time for which the body of a long poll is read in a row, however fast it arrives.
pub(crate) const BODY_SLICE: Duration = Duration::from_micros(500);
/// Messages of the control plane read in a row before requests, clients and timers get a turn.
pub(crate) const MESSAGES_IN_A_ROW: u32 = 32;

/// Lets all other threads go first, on Linux. Elsewhere, and if it fails, the priority stays normal. A thread of low priority must
/// take no lock that others wait for.
pub(crate) fn lower_thread_priority() {
    if cfg!(target_os = "linux") {
        _ = rustix::process::setpriority_process(None, 10);
    }
}
