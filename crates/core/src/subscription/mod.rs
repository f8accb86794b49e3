//! The xDS protocol towards one client, as a plain value.
//!
//! Owns what a stream or a poll has asked for, what it has been told and what it owes: classification of requests, wildcard
//! rules, ACK gates, order across types. Knows nothing of sockets, frames on the wire or tasks; it reads the
//! [cache](crate::cache) and is given the time. [`Session::next`] works out what to say at the moment when it can
//! be said, so that there is no queue: a slow client costs a position, and always receives the newest state.
//!
//! Invariants:
//! - At most one response per type is un-ACKed, until `ack_timeout` after the transport took it (R-SotW-06).
//! - ACKs gate their own type only, never another (V1).
//! - A removal is said only once no addition waits to be said on the stream (R-ADS-03).
//! - Nothing unknown is shown as missing (R-Relay-04).

mod ack;
mod asks;
mod bounds;
mod delta;
mod failures;
mod features;
mod given;
mod grant;
mod guard;
mod memory;
mod metadata;
mod observer;
mod order;
mod own;
mod poll;
mod session;
mod sotw;
mod stream_type;
mod versions;

pub use bounds::Bound;
pub use features::OBSERVER;
pub use given::{Given, Missing, NodeField, Outcome, Rule};
pub use grant::{Denied, Grant, Hidden};
pub use memory::Memory;
pub use order::Next;
pub use poll::{Asker, Poll, Verdict};
pub use session::{Client, Code, Heard, Outgoing, Refusal, Rules, Session, USER_AGENT, Upstream};
pub use versions::{Quota, Versions};
