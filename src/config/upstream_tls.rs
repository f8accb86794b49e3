//! `upstream.servers[].tls`: how a control plane is verified, and what the relay shows of itself.
//!
//! Owns which of its keys go together and what a server may be called. Opens no file: that is done where a connection
//! is made of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustls::pki_types::ServerName;
use serde::{Serialize, Serializer};

use super::errors::quoted;
use super::section::Section;
use super::values::{self, Server, ServerUri};

/// How a server is verified over TLS, and what the client shows of itself. Everything may be absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ClientTls {
    /// The authorities that the server's certificate must lead to. Absolute. Default: those of the system.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "values::serialize_optional_path")]
    pub ca_file: Option<PathBuf>,
    /// Default: nothing is shown.
    #[serde(flatten)]
    pub own: Option<CertificateFiles>,
    /// Certificates that their authorities have taken back. Absolute. Default: none are known.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "values::serialize_optional_path")]
    pub crl_file: Option<PathBuf>,
    /// Default: the host of the URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<ServerIdentity>,
}

/// A certificate with its chain, and its key; one is of no use without the other. Absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateFiles {
    /// The certificate, then those that lead to its authority.
    #[serde(serialize_with = "values::serialize_path")]
    pub cert_file: PathBuf,
    /// The private key of the first.
    #[serde(serialize_with = "values::serialize_path")]
    pub key_file: PathBuf,
}

/// Whom a server's certificate has to be for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerIdentity {
    /// A name of DNS or an address, among the certificate's subject alternative names.
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

impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(&name.to_str()),
            Self::Spiffe(id) => f.write_str(id),
        }
    }
}

impl Serialize for ServerIdentity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One control plane. `None` where its address is missing or wrong.
pub(super) fn server(section: &Section<'_>, base: &Path) -> Option<Server> {
    let uri = section.parsed("uri", str::parse::<ServerUri>);
    let own = section.section("tls");
    let tls = section.has("tls").then(|| client_tls(&own, base));
    let Some(uri) = uri else {
        if !section.has("uri") && !section.was_refused() {
            section.wrong("uri", section.line(), "is missing; write http://HOST:PORT or https://HOST:PORT");
        }
        return None;
    };
    if uri.is_tls() {
        let named = tls.as_ref().is_some_and(|tls| tls.server_name.is_some());
        if !named && let Err(problem) = ServerIdentity::of_host(uri.as_uri()) {
            section.wrong("uri", section.line_of("uri"), &problem);
        }
    } else if tls.is_some() {
        let problem = format!("does not go with `{uri}`, which is cleartext; write https:// or leave it out");
        section.wrong("tls", section.line_of("tls"), &problem);
    }
    Some(Server { uri, tls })
}

fn client_tls(section: &Section<'_>, base: &Path) -> ClientTls {
    let file = |name| section.parsed(name, |text| values::parse_path(text, base));
    let (ca_file, crl_file) = (file("ca_file"), file("crl_file"));
    let own = match (file("cert_file"), file("key_file")) {
        (Some(cert_file), Some(key_file)) => Some(CertificateFiles { cert_file, key_file }),
        _ => {
            for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
                if section.has(one) && !section.has(other) {
                    let problem = format!("is of no use without `{other}`; write both or none");
                    section.wrong(one, section.line_of(one), &problem);
                }
            }
            None
        }
    };
    ClientTls { ca_file, own, crl_file, server_name: section.parsed("server_name", str::parse) }
}

impl ServerIdentity {
    /// Who is expected at an address where nothing else is said.
    pub fn of_host(uri: &http::Uri) -> Result<Self, String> {
        let host = uri.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match ServerName::try_from(bare) {
            Ok(name) => Ok(Self::Name(name.to_owned())),
            Err(_) => Err(format!("no certificate can be for {}; set `tls.server_name`", quoted(host))),
        }
    }
}
