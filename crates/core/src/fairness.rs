//! Bounds on the work of one turn: then a lock, thread or stream goes to others.
//!
//! Smaller values mean more turns for large clients; larger ones, longer waits for all others. The
//! program has its own bounds for connections.
//!
//! Costs are lower bounds: an optimized build on one core of a small virtual machine, with unknown
//! names of 55 bytes.

/// Names in a slice of work on a subscription: those that enter or leave the index before its lock
/// is free for a moment, and those that the upstream takes or drops at once. A larger subscription,
/// or a larger change, goes upstream after all that fit into a slice.
///
/// Cost of 500 names: 0.05 ms to enter the index, 0.03 ms to leave it.
pub(crate) const NAMES_PER_SLICE: usize = 500;

/// Bytes of names in one request upstream, except the first request of a type with held resources.
/// A larger answer would hold up everything else from the origin. The cache hands out as many at
/// once, so that the others wait there, small subscriptions first.
///
/// With a [`request_interval`](crate::upstream::Settings::request_interval) of 10 ms this is the
/// pace of new names. Example: names of 55 bytes go upstream by 298, about 30,000 in a second.
pub(crate) const UPSTREAM_NAME_BYTES: usize = 16 << 10;

/// Most names by which a cohort of one client changes with the index locked. A subscription that
/// differs by more is entered anew, in slices.
///
/// Cost of 5,000 names: 0.6 ms to enter, 0.35 ms to leave.
pub(crate) const NAMES_ALTERED_IN_PLACE: usize = 5000;

/// Most names of a type that is evaluated only to order removals. A gated type counts as an
/// addition.
///
/// Cost of 1,000 names: 0.01 ms to evaluate, with each request and change, for each client.
pub(crate) const NAMES_EVALUATED_FREELY: usize = 1000;

/// ACKs sent upstream in a row while requests of clients are due. A fast origin, which needs an ACK
/// for each response, would hold up these for ever.
pub(crate) const ACKS_IN_A_ROW: u32 = 64;

/// Bytes of resources above which a JSON response is written on another thread.
pub(crate) const QUICK_JSON_BYTES: usize = 64 << 10;
