//! deltafan, a caching xDS relay. `docs/architecture.md` has the map of the code and its invariants.

pub mod admin;
pub mod config;
pub mod directory;
pub mod downstream;
mod fairness;
pub mod file_watch;
pub mod fleet;
pub mod groups;
pub mod preview;
pub mod relay;
pub mod reload;
pub mod snapshot;
pub mod telemetry;
pub mod tls;
pub mod upstream;

pub use deltafan_core::{
    RelayIdentity, cache, descriptors, group_table, identity, json, limit, node_field, node_group, pool,
    proto, resource, routes, snapshot_content, subscription,
};
pub use deltafan_http2 as http2;
pub use deltafan_transport::{grpc, terminal, units, utc};
