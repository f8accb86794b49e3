//! `downstream.listeners[].tls` and `upstream.servers[].tls`: certificates, and whom they are checked against.
//!
//! Owns which keys belong together. Opens no file: serving and connecting do that.

use std::path::{Path, PathBuf};

use deltafan_transport::tls::options::{CertificateFiles, ServerIdentity, TlsOptions};

use super::notation::{Optional, Text, Written};
use super::place::Place;
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
        /// Clients must show a certificate from one of these authorities. Default: they need none.
        #[key(Optional<Text>, example = "clients.pem")]
        pub client_ca_file: Option<PathBuf>,
        /// Certificate revocation lists (CRLs) of these authorities. Needs `client_ca_file`.
        #[key(Optional<Text>, example = "revoked.pem")]
        pub crl_file: Option<PathBuf>,
    }
}

fn check_listener(tls: &ListenerTls, place: &Place<'_>) {
    if tls.crl_file.is_some() && tls.client_ca_file.is_none() {
        let problem = "is of no use without `client_ca_file`, which makes clients show certificates";
        place.at("crl_file").wrong(problem);
    }
}

section! {
    /// TLS with a control plane.
    #[derive(Eq)]
    #[check(check_server)]
    pub struct ServerTls {
        /// CA certificates that the control plane's certificate must chain to. Default: those of the system.
        #[key(Optional<Text>, example = "ca.pem")]
        pub ca_file: Option<PathBuf>,
        /// Client certificate of the relay, sent on request, followed by its intermediates. Needs `key_file`.
        #[key(Optional<Text>, example = "relay.pem")]
        pub cert_file: Option<PathBuf>,
        /// Private key of the certificate. Needs `cert_file`.
        #[key(Optional<Text>, example = "relay.key")]
        pub key_file: Option<PathBuf>,
        /// Certificate revocation lists (CRLs) of the authorities.
        #[key(Optional<Text>, example = "revoked.pem")]
        pub crl_file: Option<PathBuf>,
        /// Identity that a subject alternative name of the certificate must match: a DNS name, an IP address, or a
        /// SPIFFE ID (`spiffe://TRUST_DOMAIN/PATH`). Default: the host of the URI.
        #[key(Optional<Text>, example = "control-plane")]
        pub server_name: Option<ServerIdentity>,
    }
}

fn check_server(tls: &ServerTls, place: &Place<'_>) {
    let (one, other) = match (&tls.cert_file, &tls.key_file) {
        (Some(_), None) => ("cert_file", "key_file"),
        (None, Some(_)) => ("key_file", "cert_file"),
        _ => return,
    };
    place.at(one).wrong(&format!("is of no use without `{other}`; write both or none"));
}

impl ServerTls {
    pub fn options(self) -> TlsOptions {
        let Self { ca_file, cert_file, key_file, crl_file, server_name } = self;
        let own = cert_file.zip(key_file);
        let own = own.map(|(cert_file, key_file)| CertificateFiles { cert_file, key_file });
        TlsOptions { ca_file, own, crl_file, server_name }
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
