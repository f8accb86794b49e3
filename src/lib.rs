//! deltafan, a caching xDS relay. `docs/architecture.md` has the map of the code and its invariants.

pub mod config;
pub mod proto;
