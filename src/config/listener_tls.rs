//! `downstream.listeners[].tls`: files of a listener's certificate and of its clients' authorities.
//!
//! Owns the shape of the section. Files are read where they are served.

use std::path::PathBuf;

use super::mapping::Mapping;
use super::notation::{Beside, Optional, Text};
use super::schema::{Entries, Key, Section};
use super::section::section;

section! {
    /// TLS of a listener. All paths are absolute.
    #[derive(Eq)]
    pub struct ListenerTls {
        /// The listener's certificate, then those that lead to its authority.
        #[key(Text, required = "the file of its certificate (PEM)", example = "relay.pem")]
        pub cert_file: PathBuf,
        /// The private key of the certificate.
        #[key(Text, required = "the file of its key (PEM)", example = "relay.key")]
        pub key_file: PathBuf,
        /// Authorities that clients have to be certified by. Default: they need no certificate.
        #[key(Beside)]
        pub clients: Option<ClientAuthorities>,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthorities {
    pub ca_file: PathBuf,
    /// Default: none.
    pub crl_file: Option<PathBuf>,
}

section! {
    /// The keys of [`ClientAuthorities`].
    pub(super) struct ClientKeys {
        /// Clients must show a certificate of one of these authorities. Default: they need none.
        #[key(Optional<Text>, example = "clients.pem")]
        client_ca_file: Option<PathBuf>,
        /// Certificates that these authorities have revoked. Needs `client_ca_file`.
        #[key(Optional<Text>, example = "revoked.pem")]
        crl_file: Option<PathBuf>,
    }
}

impl Section for Option<ClientAuthorities> {
    const KEYS: &'static [Key] = ClientKeys::KEYS;

    fn read(mapping: &Mapping<'_>) -> Option<Self> {
        if mapping.has("crl_file") && !mapping.has("client_ca_file") {
            let problem = "is of no use without `client_ca_file`, which makes clients show certificates";
            mapping.wrong_here("crl_file", problem);
        }
        let ClientKeys { client_ca_file, crl_file } = ClientKeys::read(mapping)?;
        Some(client_ca_file.map(|ca_file| ClientAuthorities { ca_file, crl_file }))
    }

    fn print(&self, into: &mut Entries) {
        let (client_ca_file, crl_file) = self.clone().map(|of| (of.ca_file, of.crl_file)).unzip();
        ClientKeys { client_ca_file, crl_file: crl_file.flatten() }.print(into);
    }
}
