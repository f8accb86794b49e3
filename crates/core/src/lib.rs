//! Core of deltafan: xDS without sockets, tasks or clock.
//!
//! Owns resources, also as JSON, the cache, subscriptions of clients with permissions and limits,
//! and the relay's own subscriptions at its origin. Time is an argument, and nothing waits: the
//! program polls it and moves the bytes. `Cargo.toml` keeps it so: there is no tokio, tonic, hyper
//! or rustls in it.

pub mod cache;
pub mod descriptors;
mod fairness;
pub mod group_table;
pub mod identity;
pub mod json;
pub mod limit;
mod log_throttle;
pub mod node_field;
pub mod node_group;
pub mod pool;
pub mod proto;
mod relay_identity;
pub mod resource;
pub mod routes;
pub mod snapshot_content;
pub mod subscription;
pub mod upstream;

pub use log_throttle::LogThrottle;
pub use relay_identity::RelayIdentity;
