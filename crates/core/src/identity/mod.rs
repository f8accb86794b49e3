//! Identity of a peer.
//!
//! Owns the source of a connection and the names in its certificate. Knows nothing of permissions,
//! nor of a peer's claims in requests, which are no identity.

mod certificate;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

pub use certificate::is_spiffe_id;

use crate::resource::Pattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub source: Source,
    pub certificate: Option<Arc<Certificate>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Address. IPv4 even if the socket maps it to IPv6.
    Ip(IpAddr),
    Unix,
}

/// Names in a verified certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// The only URI among its names, if that is a SPIFFE ID.
    pub spiffe_id: Option<Arc<str>>,
    pub dns_names: Vec<Box<str>>,
    /// As of RFC 4514 (`CN=envoy,O=example`).
    pub subject: Box<str>,
}

impl Certificate {
    /// For accounting: the SPIFFE ID, else the subject.
    pub fn identity(&self) -> &str {
        self.spiffe_id.as_deref().unwrap_or(&self.subject)
    }

    /// All names: the SPIFFE ID, else the subject, perhaps empty, and the DNS names.
    pub fn names(&self) -> Cow<'_, str> {
        if let Some(id) = &self.spiffe_id {
            return Cow::Borrowed(id);
        }
        let names = std::iter::once(&self.subject).chain(&self.dns_names).map(|name| &**name);
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(",").into()
    }
}

impl Source {
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
    pub const fn unproven(source: Source) -> Self {
        Self { source, certificate: None }
    }

    pub fn spiffe_id(&self) -> Option<&str> {
        self.certificate.as_ref()?.spiffe_id.as_deref()
    }

    pub fn certificate_bytes(&self) -> usize {
        self.certificate.as_ref().map_or(0, |certificate| {
            let names = certificate.dns_names.iter().map(|name| size_of::<Box<str>>() + name.len());
            let id = certificate.spiffe_id.as_ref().map_or(0, |id| id.len());
            size_of::<Certificate>() + names.sum::<usize>() + id + certificate.subject.len()
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.certificate {
            Some(certificate) => write!(f, "{} ({})", certificate.identity(), self.source),
            None => write!(f, "{}", self.source),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPattern {
    SpiffeId(Pattern),
    DnsName(Pattern),
    Subject(Pattern),
    Network(IpNet),
    Unix,
}

impl PeerPattern {
    /// Whether it is about the certificate of a peer.
    pub const fn is_proven(&self) -> bool {
        matches!(self, Self::SpiffeId(_) | Self::DnsName(_) | Self::Subject(_))
    }

    pub fn matches(&self, peer: &Peer) -> bool {
        let certificate = peer.certificate.as_ref();
        match self {
            Self::SpiffeId(pattern) => peer.spiffe_id().is_some_and(|id| pattern.matches(id)),
            Self::DnsName(pattern) => {
                certificate.is_some_and(|of| of.dns_names.iter().any(|name| pattern.matches(name)))
            }
            Self::Subject(pattern) => certificate.is_some_and(|of| pattern.matches(&of.subject)),
            Self::Network(network) => matches!(peer.source, Source::Ip(from) if network.contains(&from)),
            Self::Unix => peer.source == Source::Unix,
        }
    }
}
