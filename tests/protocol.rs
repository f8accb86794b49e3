//! The rules of the protocol, one test or more for each, over the pure core: no sockets, and time is an argument.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod wire;

#[path = "protocol/ads.rs"]
mod ads;
#[path = "protocol/cost.rs"]
mod cost;
#[path = "protocol/delta.rs"]
mod delta;
#[path = "protocol/ep.rs"]
mod ep;
#[path = "protocol/parts.rs"]
mod parts;
#[path = "protocol/relay.rs"]
mod relay;
#[path = "protocol/sotw.rs"]
mod sotw;
#[path = "protocol/support.rs"]
mod support;
