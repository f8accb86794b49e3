//! Transport security of both sides: reading and reloading of its files.
//!
//! Owns certificates, keys, authorities and revocation lists of listeners, and values that follow their files.
//! The client's side is that of `deltafan_transport`. Knows nothing of xDS, and of a peer only its certificate.

pub mod reload;
pub mod server;

pub use deltafan_transport::tls::{client, diagnosis, files, options};
