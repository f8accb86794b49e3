//! Bounds on the work of one turn: after so much, a lock, a thread or a stream is given to others.
//!
//! A smaller value means more turns for large clients; a larger one, longer waits for all others. The program has such
//! bounds of its own for connections.
//!
//! Costs are of an optimized build on one core of a small virtual machine, with names of 55 bytes of which nothing is held
//! yet: lower bounds.

/// Names in a slice of work on a subscription: those that enter or leave the index before its lock is free for a moment,
/// those that the upstream takes at once, and those that it lets go at once. A subscription that has more, or changes by
/// more, goes upstream after all that fit into a slice.
///
/// Cost of 500 names: 0.05 ms to enter the index, 0.03 ms to leave it.
pub(crate) const NAMES_PER_SLICE: usize = 500;

/// Bytes of names in one request upstream, but for the first request of a type of which something is held: an answer to
/// more holds up everything else that the origin says. The cache hands out as many at once, so that the others wait there,
/// the small subscriptions first.
///
/// With a [`request_interval`](crate::upstream::Settings::request_interval) of 10 ms this is the pace at which new names
/// are asked for. Example: names of 55 bytes go upstream by 298, about 30,000 in a second.
pub(crate) const UPSTREAM_NAME_BYTES: usize = 16 << 10;

/// Names by which a cohort of one client changes in one go, with the index locked. A subscription that differs by more is
/// entered anew, in slices.
///
/// Cost of 5,000 names: 0.6 ms to enter, 0.35 ms to leave.
pub(crate) const NAMES_ALTERED_IN_PLACE: usize = 5000;

/// Names above which a type on a stream is not evaluated only to order removals: what is gated counts as an addition.
///
/// Cost of 1,000 names: 0.01 ms to evaluate. It comes with each request and each change, for each client.
pub(crate) const NAMES_EVALUATED_FREELY: usize = 1000;

/// ACKs sent upstream in a row while requests of clients are due. Each answers one response of the origin, so that a
/// fast origin would hold up the requests for ever.
pub(crate) const ACKS_IN_A_ROW: u32 = 64;

/// Bytes of resources above which a JSON response is to be written on another thread.
pub(crate) const QUICK_JSON_BYTES: usize = 64 << 10;
