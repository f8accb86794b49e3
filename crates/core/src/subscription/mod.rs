//! The xDS protocol towards one client, as a plain value.
//!
//! Owns what a stream or a poll has asked for, was sent and is owed: classification of requests,
//! wildcard rules, ACK gates, order across types. Knows nothing of sockets, frames on the wire or
//! tasks; reads the [cache](crate::cache). [`Session::next`] works out a response when it can be
//! sent. So there is no queue: a slow client costs a position, and always gets the newest state.
//!
//! Invariants:
//! - At most one response per type is un-ACKed, until `ack_timeout` after the transport took it
//!   (R-SotW-06).
//! - ACKs gate their own type only (V1).
//! - A removal is sent only when no addition waits on the stream (R-ADS-03).
//! - Nothing unknown is shown as missing (R-Relay-04).

mod client;
mod per_stream_state;
mod permissions;
mod poll;
mod progress;
mod session;
mod session_config;
mod stream_type;
mod subscription_edit;

pub use client::{Client, NodeParameterRules, OBSERVER, Rule, USER_AGENT, observes};
pub use per_stream_state::{ByteCharge, Versions};
pub use permissions::{Code, Denied, HiddenCounts, Permissions, SessionError};
pub use poll::{Poll, PollHistory, PollVerdict};
pub use progress::{Audience, ClientState, Delivery, REJECTION_TEXT, Rejection, ResourceState, TypeProgress};
pub use session::flush_order::NextStep;
pub use session::plain_ack::AckedType;
pub use session::route_guard::Deadline;
pub use session::{Outgoing, Overdue, RequestKind, Session};
pub use session_config::{SessionConfig, Upstream};
pub use stream_type::StreamType;
