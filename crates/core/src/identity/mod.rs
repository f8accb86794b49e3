//! Identity of a peer.
//!
//! Owns what is known of the other end of a connection: where it comes from, and what the certificate says that it
//! has proven to hold. Knows nothing of what a peer may do, nor of what it says of itself in a request: that is no
//! identity.

mod certificate;
mod matching;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

pub use matching::PeerPattern;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it comes from.
    pub source: Source,
    /// Identity that it has proven to have.
    pub certificate: Option<Box<Certificate>>,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An address. One of IPv4 is of that kind, also where the socket maps it to IPv6.
    Ip(IpAddr),
    /// A Unix socket of this machine.
    Unix,
}

/// Names that a certificate, which was verified, gives its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The SPIFFE ID: the only URI among its names, if that is one.
    pub spiffe_id: Option<Arc<str>>,
    /// The names of DNS, as they are written.
    pub dns_names: Vec<Box<str>>,
    /// The subject, as RFC 4514 writes it (`CN=envoy,O=example`).
    pub subject: Box<str>,
}

impl Certificate {
    /// Identity that its holder is counted as: the SPIFFE ID, else the subject.
    pub fn identity(&self) -> &str {
        self.spiffe_id.as_deref().unwrap_or(&self.subject)
    }

    /// Everything that tells its holder from others: the SPIFFE ID, else the subject, which may be empty, and the DNS names.
    pub fn names(&self) -> Cow<'_, str> {
        if let Some(id) = &self.spiffe_id {
            return Cow::Borrowed(id);
        }
        let names = std::iter::once(&self.subject).chain(&self.dns_names).map(|name| &**name);
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(",").into()
    }
}

impl Source {
    /// The source of a connection from this address.
    pub fn of(address: IpAddr) -> Self {
        Self::Ip(address.to_canonical())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Unix => f.write_str("a Unix socket"),
        }
    }
}

impl Peer {
    /// A peer that has proven nothing.
    pub const fn unproven(source: Source) -> Self {
        Self { source, certificate: None }
    }

    /// Its SPIFFE ID.
    pub fn spiffe_id(&self) -> Option<&str> {
        self.certificate.as_ref()?.spiffe_id.as_deref()
    }

    /// Bytes that its certificate takes.
    pub fn certificate_bytes(&self) -> usize {
        self.certificate.as_ref().map_or(0, |certificate| {
            let names = certificate.dns_names.iter().map(|name| size_of::<Box<str>>() + name.len());
            let id = certificate.spiffe_id.as_ref().map_or(0, |id| id.len());
            size_of::<Certificate>() + names.sum::<usize>() + id + certificate.subject.len()
        })
    }

    /// Its SPIFFE ID, for a caller that keeps it.
    pub fn proven(&self) -> Option<Arc<str>> {
        self.certificate.as_ref()?.spiffe_id.clone()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.certificate {
            Some(certificate) => match &certificate.spiffe_id {
                Some(id) => write!(f, "{id} ({})", self.source),
                None => write!(f, "{} ({})", certificate.subject, self.source),
            },
            None => write!(f, "{}", self.source),
        }
    }
}
