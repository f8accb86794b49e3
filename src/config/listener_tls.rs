//! `downstream.listeners[].tls`: which files a listener proves itself with, and whom it lets in.
//!
//! Owns the shape of the section. The files themselves are read by whoever serves.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::section::Section;
use super::values;

/// TLS of a listener. All paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListenerTls {
    /// The listener's certificate, then those that lead to its authority.
    #[serde(serialize_with = "values::serialize_path")]
    pub cert_file: PathBuf,
    /// The key of that certificate.
    #[serde(serialize_with = "values::serialize_path")]
    pub key_file: PathBuf,
    /// Whom clients have to be certified by. Default: they need no certificate.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub clients: Option<ClientAuthorities>,
}

/// Whose certificates clients have to show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientAuthorities {
    /// The certificates of the authorities.
    #[serde(rename = "client_ca_file", serialize_with = "values::serialize_path")]
    pub ca_file: PathBuf,
    /// Lists of what they have revoked. Default: none.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "values::serialize_optional_path")]
    pub crl_file: Option<PathBuf>,
}

/// Reads the section of a listener. `None` where it is wrong, which was reported then.
pub(super) fn read(section: &Section<'_>, base: &Path) -> Option<ListenerTls> {
    let path = |name: &str| section.parsed(name, |text| values::parse_path(text, base));
    for (name, what) in [("cert_file", "the file of its certificate"), ("key_file", "the file of its key")] {
        if !section.has(name) && !section.was_refused() {
            section.wrong(name, section.line(), &format!("is missing; write {what} (PEM)"));
        }
    }
    if section.has("crl_file") && !section.has("client_ca_file") {
        let line = section.line_of("crl_file");
        section.wrong(
            "crl_file",
            line,
            "is of no use without `client_ca_file`, which makes clients show certificates",
        );
    }
    let clients =
        path("client_ca_file").map(|ca_file| ClientAuthorities { ca_file, crl_file: path("crl_file") });
    Some(ListenerTls { cert_file: path("cert_file")?, key_file: path("key_file")?, clients })
}
