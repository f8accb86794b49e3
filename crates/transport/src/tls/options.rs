//! Options of a client of TLS: how to verify a server, and the own certificate.
//!
//! Owns names of servers. Opens no file.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use deltafan_core::identity::is_spiffe_id;
use rustls::pki_types::ServerName;

use crate::terminal::quoted;

/// Verification of a server, and the certificate that the client shows. Everything may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Authorities that the certificate must lead to; by default those of the system.
    pub ca_file: Option<PathBuf>,
    pub own: Option<CertificateFiles>,
    pub crl_file: Option<PathBuf>,
    /// Identity that the certificate must be for; by default the host of the URI.
    pub server_name: Option<ServerIdentity>,
}

/// Neither is of use alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, then those that lead to its authority.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
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
        if text.starts_with("spiffe://") {
            return if is_spiffe_id(text) {
                Ok(Self::Spiffe(text.to_owned()))
            } else {
                refuse("is no SPIFFE ID")
            };
        }
        match ServerName::try_from(text) {
            Ok(name) => Ok(Self::Name(name.to_owned())),
            Err(_) => refuse("names no server"),
        }
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
