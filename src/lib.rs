//! deltafan, a caching xDS relay. `docs/architecture.md` has the map of the code and its invariants.

pub mod cache;
pub mod descriptors;
pub mod directory;
pub mod proto;
pub mod resource;
pub mod upstream;
