//! Faults of a TLS connection to a server, in words that an operator can act on.
//!
//! Owns whose fault an error is, the expectation and the remedy. Knows a client's files by name only. Escapes
//! and bounds data from the server.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::SystemTime;

use rustls::{AlertDescription, CertificateError, Error};

use super::options::{ServerIdentity, TlsOptions};
use crate::terminal::printable;

/// Version of HTTP that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub authorities: &'static str,
    pub certificate: &'static str,
    pub key: &'static str,
    pub name: &'static str,
}

impl Settings {
    pub const KEYS: Self =
        Self { authorities: "ca_file", certificate: "cert_file", key: "key_file", name: "server_name" };
    pub const FLAGS: Self = Self {
        authorities: "--ca-file",
        certificate: "--cert-file",
        key: "--key-file",
        name: "--server-name",
    };
}

/// Facts for messages.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    settings: Settings,
    authorities: String,
    own: Option<Own>,
    expected: String,
}

#[derive(Clone, Debug)]
pub(super) struct Own {
    file: String,
    /// Seconds since 1970.
    expires: i64,
}

impl Own {
    pub(super) fn new(file: &Path, expires: i64) -> Self {
        Self { file: file.display().to_string(), expires }
    }

    /// Servers seldom say that a certificate expired.
    fn has_expired(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(now.as_secs()).is_ok_and(|now| now >= self.expires)
    }

    fn refusal(&self, alert: AlertDescription) -> &'static str {
        match alert {
            AlertDescription::CertificateRevoked => "it has been revoked",
            AlertDescription::UnknownCA => "the server does not trust its authority",
            AlertDescription::UnsupportedCertificate => "it is of a kind that the server does not take",
            AlertDescription::AccessDenied => "its holder is not allowed in",
            AlertDescription::DecryptError => "its authority's signature is not what the server expects",
            AlertDescription::CertificateExpired => "it has expired",
            _ if self.has_expired() => "it has expired",
            _ => "it did not say why; its own log may",
        }
    }
}

impl Diagnosis {
    pub(super) fn new(
        files: &TlsOptions,
        own: Option<Own>,
        expected: &ServerIdentity,
        settings: Settings,
    ) -> Self {
        let authorities = match &files.ca_file {
            Some(path) => format!("those in {}", path.display()),
            None => format!("those of this system; set {} if it is not one of them", settings.authorities),
        };
        Self { settings, authorities, own, expected: expected.to_string() }
    }

    /// Why a handshake failed, or a connection ended before the server's first bytes: with TLS 1.3 a server
    /// judges the client's certificate after the client's handshake.
    pub fn of(&self, error: &io::Error, http: Http) -> String {
        match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol)) if http == Http::One => {
                "the server does not offer HTTP/1.1: expected `http/1.1` by ALPN; is this the port of REST-JSON?"
                    .to_owned()
            }
            Some(Error::InvalidCertificate(fault)) => self.certificate(fault),
            Some(Error::AlertReceived(alert)) => self.alert(*alert),
            Some(Error::InvalidMessage(_)) => {
                "the server does not answer in TLS; if it speaks cleartext, write http://".to_owned()
            }
            Some(other) => format!("TLS with the server failed: {other}"),
            None if ends(error.kind()) => self.closed(),
            None => format!("TLS with the server failed: {error}"),
        }
    }

    pub fn closed(&self) -> String {
        let Settings { certificate, key, .. } = self.settings;
        let hint = match &self.own {
            Some(own) if own.has_expired() => format!("the client certificate of {} has expired", own.file),
            Some(_) => "it may not like the client certificate, or not speak TLS".to_owned(),
            None => format!("it may ask for a client certificate ({certificate}, {key}), or not speak TLS"),
        };
        format!("the server closed the TLS connection before it said anything: {hint}")
    }

    /// The handshake succeeded without agreement on HTTP/2.
    pub(super) fn no_http2(&self) -> String {
        "the server does not offer HTTP/2: expected `h2` by ALPN; is this the port of gRPC?".to_owned()
    }

    fn certificate(&self, fault: &CertificateError) -> String {
        use CertificateError as Fault;
        let (whose, name) = ("the server's certificate", self.settings.name);
        match fault {
            Fault::Expired | Fault::ExpiredContext { .. } => {
                format!("{whose} has expired, or one that it leads over; compare the clocks: {fault}")
            }
            Fault::NotValidYet | Fault::NotValidYetContext { .. } => {
                format!("{whose} is not valid yet; compare the clocks: {fault}")
            }
            Fault::UnknownIssuer | Fault::BadSignature => {
                format!("{whose} leads to no trusted authority; trusted are {}", self.authorities)
            }
            Fault::Revoked => format!("{whose} has been revoked, as crl_file says"),
            Fault::NotValidForNameContext { presented, .. } => {
                let expected = &self.expected;
                let presented: Vec<String> = presented.iter().map(|name| bare(name).to_owned()).collect();
                format!(
                    "{whose} is not for {expected} but for {}; set {name} if that is right",
                    list(&presented)
                )
            }
            Fault::NotValidForName => format!("{whose} is not for {}; set {name}", self.expected),
            Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => {
                format!("{whose} is not one for servers: {fault}")
            }
            Fault::Other(other) if other.0.is::<IdentityError>() => {
                format!("{whose}: {}; set {name} if that is right", other.0)
            }
            other => format!("{whose} cannot be accepted: {other}"),
        }
    }

    fn alert(&self, alert: AlertDescription) -> String {
        use AlertDescription as Alert;
        let Settings { certificate, key, name, .. } = self.settings;
        match (alert, &self.own) {
            (Alert::CertificateRequired, _)
            | (Alert::BadCertificate | Alert::CertificateUnknown | Alert::NoCertificate, None) => {
                format!("the server asks for a client certificate; set {certificate} and {key}")
            }
            (Alert::HandshakeFailure, None) => format!(
                "the server refused the handshake: it may ask for a client certificate ({certificate}, {key}), or know \
                 no cipher of ours"
            ),
            (
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::DecryptError
                | Alert::HandshakeFailure,
                Some(own),
            ) => {
                format!("the server refused the client certificate of {}: {}", own.file, own.refusal(alert))
            }
            (Alert::NoApplicationProtocol, _) => self.no_http2(),
            (Alert::UnrecognisedName, _) => {
                format!("the server does not answer to the name {}; set {name}", self.expected)
            }
            (Alert::ProtocolVersion, _) => "the server speaks neither TLS 1.2 nor TLS 1.3".to_owned(),
            (other, _) => format!("the server ended the TLS connection: {other:?}"),
        }
    }
}

fn ends(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
    )
}

#[derive(Debug, thiserror::Error)]
#[error("it is for {}, not for {expected}", list(presented))]
pub(super) struct IdentityError {
    pub(super) expected: String,
    pub(super) presented: Vec<String>,
}

/// Name without its kind: `a.example` of `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// Names of a certificate for messages: escaped, five at most.
fn list(names: &[String]) -> String {
    const MANY: usize = 5;
    if names.is_empty() {
        return "nobody by such a name".to_owned();
    }
    let mut text = names.iter().take(MANY).map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    if names.len() > MANY {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_without_their_kinds() {
        for (name, told) in
            [("DnsName(\"a.example\")", "a.example"), ("IpAddress(::1)", "::1"), ("odd", "odd")]
        {
            assert_eq!(bare(name), told);
        }
    }

    #[test]
    fn a_server_that_does_not_say_why_refuses_an_expired_certificate_for_that() {
        let expected = ServerIdentity::of_host(&http::Uri::from_static("https://control.example")).unwrap();
        let files = TlsOptions::default();
        for (expires, reason) in [(1, "has expired"), (i64::MAX, "may not like")] {
            let own = Own::new(Path::new("relay.pem"), expires);
            let diagnosis = Diagnosis::new(&files, Some(own), &expected, Settings::KEYS);
            assert!(diagnosis.closed().contains(reason), "{}", diagnosis.closed());
            let refused = diagnosis.alert(AlertDescription::BadCertificate);
            assert_eq!(refused.contains("it has expired"), expires == 1, "{refused}");
        }
    }
}
