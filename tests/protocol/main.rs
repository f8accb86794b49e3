//! The rules of the protocol, one test or more for each, over the pure core: no sockets, and time is an argument.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ads;
mod aliases;
mod authorization;
mod bounds;
mod concurrency;
mod cost;
mod delta;
mod dp;
mod envelope;
mod ep;
mod errors;
mod limits;
mod observer;
mod parts;
mod relay;
mod rest;
mod resumption;
mod rollout;
mod sotw;
mod ttl;
mod xdstp;
