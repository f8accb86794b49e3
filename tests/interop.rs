//! Real clients against a real control plane, through the relay: Envoy over each of its transports, gRPC's
//! own xDS clients, a proto3-JSON parser, h2spec, and a fleet of light clients that shows what the control plane sees of them.
//! Light clients also come and go behind control planes of several makes and versions.
//!
//! `tests/interop/setup` installs what they need; without it they skip themselves, except in CI.
//! `INTEROP=direct cargo test --test interop` connects the clients to the control plane instead of the relay.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "interop/bed/mod.rs"]
mod bed;
#[path = "interop/bodies.rs"]
mod bodies;
#[path = "interop/comeback.rs"]
mod comeback;
#[path = "interop/cut.rs"]
mod cut;
#[path = "interop/envoy.rs"]
mod envoy;
#[path = "interop/fleet/mod.rs"]
mod fleet;
#[path = "interop/grpc.rs"]
mod grpc;
#[path = "interop/h2spec.rs"]
mod h2spec;
#[path = "interop/json.rs"]
mod json;
#[path = "interop/mtls.rs"]
mod mtls;
#[path = "interop/origins.rs"]
mod origins;
mod support;
#[path = "interop/ttl.rs"]
mod ttl;
#[path = "interop/vhds.rs"]
mod vhds;
