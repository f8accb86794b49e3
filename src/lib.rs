//! deltafan, a caching xDS relay. `docs/architecture.md` has the map of the code and its invariants.

pub mod admin;
pub mod cache;
pub mod client;
pub mod config;
pub mod descriptors;
pub mod directory;
pub mod downstream;
pub mod grpc;
pub use deltafan_http2 as http2;
pub mod identity;
pub mod lookout;
pub mod pool;
pub mod preview;
pub mod proto;
pub mod relay;
pub mod reload;
pub mod resource;
pub mod rest;
pub mod subscription;
pub mod telemetry;
pub mod tls;
pub mod upstream;
