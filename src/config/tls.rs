//! `downstream.listeners[].tls` and `upstream.servers[].tls`: certificates, and whom they are checked against.
//!
//! Owns which keys belong together. Opens no file: serving and connecting do that.

use std::path::{Path, PathBuf};

use deltafan_transport::tls::options::{CertificateFiles, ServerIdentity, TlsOptions};

use super::mapping::Mapping;
use super::notation::{Optional, Text, Written};
use super::schema::{Entries, Key, Section};
use super::section::section;

section! {
    /// TLS of a listener. All paths are absolute.
    #[derive(Eq)]
    #[check(check_listener)]
    pub struct ListenerTls {
        /// The listener's certificate, followed by its intermediates.
        #[key(Text, required = "the file of its certificate (PEM)", example = "relay.pem")]
        pub cert_file: PathBuf,
        /// The private key of the certificate.
        #[key(Text, required = "the file of its key (PEM)", example = "relay.key")]
        pub key_file: PathBuf,
        /// Clients must show a certificate of one of these authorities. Default: they need none.
        #[key(Optional<Text>, example = "clients.pem")]
        pub client_ca_file: Option<PathBuf>,
        /// Certificates that these authorities have revoked. Needs `client_ca_file`.
        #[key(Optional<Text>, example = "revoked.pem")]
        pub crl_file: Option<PathBuf>,
    }
}

fn check_listener(_: &ListenerTls, mapping: &Mapping<'_>) {
    if mapping.has("crl_file") && !mapping.has("client_ca_file") {
        let problem = "is of no use without `client_ca_file`, which makes clients show certificates";
        mapping.wrong_here("crl_file", problem);
    }
}

section! {
    /// The keys of [`TlsOptions`].
    pub(super) struct TlsKeys {
        /// CA certificates that the control plane's certificate must chain to. Default: those of the system.
        #[key(Optional<Text>, example = "ca.pem")]
        ca_file: Option<PathBuf>,
        /// Client certificate of the relay, sent on request, followed by its intermediates. Needs `key_file`.
        #[key(Optional<Text>, example = "relay.pem")]
        cert_file: Option<PathBuf>,
        /// Private key of the certificate. Needs `cert_file`.
        #[key(Optional<Text>, example = "relay.key")]
        key_file: Option<PathBuf>,
        /// Revoked certificates: the revocation lists (CRLs) of their authorities.
        #[key(Optional<Text>, example = "revoked.pem")]
        crl_file: Option<PathBuf>,
        /// Identity that a subject alternative name of the certificate must match: a DNS name, an IP address, or a
        /// SPIFFE ID (`spiffe://TRUST_DOMAIN/PATH`). Default: the host of the URI.
        #[key(Optional<Text>, example = "control-plane")]
        server_name: Option<ServerIdentity>,
    }
}

impl Section for TlsOptions {
    const KEYS: &'static [Key] = TlsKeys::KEYS;

    fn read(mapping: &Mapping<'_>) -> Option<Self> {
        for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
            if mapping.has(one) && !mapping.has(other) {
                mapping.wrong_here(one, &format!("is of no use without `{other}`; write both or none"));
            }
        }
        let TlsKeys { ca_file, cert_file, key_file, crl_file, server_name } = TlsKeys::read(mapping)?;
        let own =
            cert_file.zip(key_file).map(|(cert_file, key_file)| CertificateFiles { cert_file, key_file });
        Some(Self { ca_file, own, crl_file, server_name })
    }

    fn print(&self, into: &mut Entries) {
        let Self { ca_file, own, crl_file, server_name } = self.clone();
        let (cert_file, key_file) = own.map(|own| (own.cert_file, own.key_file)).unzip();
        TlsKeys { ca_file, cert_file, key_file, crl_file, server_name }.print(into);
    }
}

impl Written for ServerIdentity {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        text.parse()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}
