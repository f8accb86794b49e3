//! Transport security of both sides: reading and reloading of its files.
//!
//! Owns certificates, keys, authorities and revocation lists, from files to rustls configurations. Knows
//! nothing of xDS, and of a peer only its certificate.

pub mod client;
pub mod diagnosis;
pub mod files;
pub mod reload;
pub mod server;
