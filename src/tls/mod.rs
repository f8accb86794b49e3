//! Transport security on both sides: what is read from files, and how it is kept up to date.
//!
//! Owns certificates, keys, authorities and revocation lists, from their files to the configurations of rustls. Knows
//! nothing of xDS, and of a peer no more than its certificate.

pub mod client;
pub mod diagnosis;
pub mod files;
pub mod pem;
pub mod reload;
pub mod server;
