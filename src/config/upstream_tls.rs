//! `upstream.servers[].tls`: how to verify a control plane, and the relay's own certificate.
//!
//! Owns which keys belong together, and server names. Opens no file: connecting does that.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustls::pki_types::ServerName;

use super::errors::quoted;
use super::mapping::Mapping;
use super::notation::{Beside, Optional, Text, Written};
use super::schema::{Entries, Key, Section};
use super::section::section;

section! {
    /// How a server is verified over TLS, and the certificate that the client shows. Everything may be absent.
    #[derive(Eq, Default)]
    pub struct ClientTls {
        /// The authorities that the control plane's certificate must lead to. Default: those of the system.
        #[key(Optional<Text>, example = "ca.pem")]
        pub ca_file: Option<PathBuf>,
        /// Default: nothing is shown.
        #[key(Beside)]
        pub own: Option<CertificateFiles>,
        /// Certificates that are not accepted any more, as their authorities list them.
        #[key(Optional<Text>, example = "revoked.pem")]
        pub crl_file: Option<PathBuf>,
        /// Identity that the certificate must be for, among its subject alternative names: a name, an address, or a SPIFFE
        /// ID (`spiffe://TRUST_DOMAIN/PATH`). Default: the host of the URI.
        #[key(Optional<Text>, example = "control-plane")]
        pub server_name: Option<ServerIdentity>,
    }
}

/// Neither is of use alone. Absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, then those that lead to its authority.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

section! {
    /// The keys of [`CertificateFiles`].
    pub(super) struct CertificateKeys {
        /// Certificate that the relay shows when it is asked for one, then those that lead to its authority. Not without
        /// `key_file`.
        #[key(Optional<Text>, example = "relay.pem")]
        cert_file: Option<PathBuf>,
        /// The private key of the certificate. Not without `cert_file`.
        #[key(Optional<Text>, example = "relay.key")]
        key_file: Option<PathBuf>,
    }
}

impl Section for Option<CertificateFiles> {
    const KEYS: &'static [Key] = CertificateKeys::KEYS;

    fn read(mapping: &Mapping<'_>) -> Option<Self> {
        for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
            if mapping.has(one) && !mapping.has(other) {
                mapping.wrong_here(one, &format!("is of no use without `{other}`; write both or none"));
            }
        }
        let CertificateKeys { cert_file, key_file } = CertificateKeys::read(mapping)?;
        Some(cert_file.zip(key_file).map(|(cert_file, key_file)| CertificateFiles { cert_file, key_file }))
    }

    fn print(&self, into: &mut Entries) {
        let (cert_file, key_file) = self.clone().map(|files| (files.cert_file, files.key_file)).unzip();
        CertificateKeys { cert_file, key_file }.print(into);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerIdentity {
    Name(ServerName<'static>),
    /// A SPIFFE ID: the one URI among them.
    Spiffe(String),
}

impl FromStr for ServerIdentity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |what: &str| {
            Err(format!("{} {what}; write a name, an address or spiffe://TRUST_DOMAIN/PATH", quoted(text)))
        };
        if let Some(id) = text.strip_prefix("spiffe://") {
            let (domain, path) = id.split_once('/').unwrap_or((id, ""));
            let of_domain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
            let of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
            if domain.is_empty() || !domain.bytes().all(of_domain) || !path.bytes().all(of_path) {
                return refuse("is no SPIFFE ID");
            }
            return Ok(Self::Spiffe(text.to_owned()));
        }
        match ServerName::try_from(text) {
            Ok(name) => Ok(Self::Name(name.to_owned())),
            Err(_) => refuse("names no server"),
        }
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

impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(&name.to_str()),
            Self::Spiffe(id) => f.write_str(id),
        }
    }
}

impl ServerIdentity {
    /// Identity expected at an address by default.
    ///
    /// # Errors
    ///
    /// Words for the message of an address that no certificate can name.
    pub fn of_host(uri: &http::Uri) -> Result<Self, String> {
        let host = uri.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match ServerName::try_from(bare) {
            Ok(name) => Ok(Self::Name(name.to_owned())),
            Err(_) => Err(format!("no certificate can be for {}; set `tls.server_name`", quoted(host))),
        }
    }
}
