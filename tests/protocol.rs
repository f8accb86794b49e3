//! The rules of the protocol, one test or more for each, over the pure core: no sockets, and time is an argument.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "what other tests send or read")]
mod wire;

#[path = "protocol/ads.rs"]
mod ads;
#[path = "protocol/aliases.rs"]
mod aliases;
#[path = "protocol/authorization.rs"]
mod authorization;
#[path = "protocol/cost.rs"]
mod cost;
#[path = "protocol/delta.rs"]
mod delta;
#[path = "protocol/dp.rs"]
mod dp;
#[path = "protocol/envelope.rs"]
mod envelope;
#[path = "protocol/ep.rs"]
mod ep;
#[path = "protocol/errors.rs"]
mod errors;
#[path = "protocol/limits.rs"]
mod limits;
#[path = "protocol/observer.rs"]
mod observer;
#[path = "protocol/parts.rs"]
mod parts;
#[path = "protocol/relay.rs"]
mod relay;
#[path = "protocol/rest.rs"]
mod rest;
#[path = "protocol/sotw.rs"]
mod sotw;
#[path = "protocol/support.rs"]
mod support;
#[path = "protocol/ttl.rs"]
mod ttl;
#[path = "protocol/whole.rs"]
mod whole;
#[path = "protocol/xdstp.rs"]
mod xdstp;
