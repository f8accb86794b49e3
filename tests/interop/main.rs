//! Real clients against a real control plane, through the relay: Envoy over each of its transports, gRPC's
//! own xDS clients, a proto3-JSON parser, h2spec, Prometheus' linter of metrics, and a fleet of light clients that shows what the control plane sees of them.
//! Light clients also come and go behind control planes of several makes and versions.
//!
//! `tests/interop/setup` installs what they need; without it they skip themselves, except in CI.
//! `INTEROP=direct cargo test --test interop` connects the clients to the control plane instead of the relay.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bodies;
mod client_status;
mod comeback;
mod envoy;
mod evidence;
mod facts;
mod fallback;
mod faults;
mod fixture;
mod fleet;
mod groups;
mod grpc;
mod h2spec;
mod json;
mod mtls;
mod origins;
mod promlint;
mod reports;
mod rollout;
mod swap;
mod ttl;
mod vhds;
