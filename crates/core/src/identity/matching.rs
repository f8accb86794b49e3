//! Which peers a rule is about.

use ipnet::IpNet;

use super::{Peer, Source};
use crate::resource::Pattern;

/// Some peers, by what they have proven to be or where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPattern {
    /// Those with such a SPIFFE ID.
    SpiffeId(Pattern),
    /// Those with at least one such DNS name.
    DnsName(Pattern),
    /// Those with such a subject.
    Subject(Pattern),
    /// Those that come from this network.
    Network(IpNet),
    /// Those that come over a Unix socket.
    Unix,
}

impl PeerPattern {
    /// Whether a peer is one of them.
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
