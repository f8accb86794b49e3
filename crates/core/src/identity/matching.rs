//! Patterns of peers.

use ipnet::IpNet;

use super::{Peer, Source};
use crate::resource::Pattern;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPattern {
    SpiffeId(Pattern),
    DnsName(Pattern),
    Subject(Pattern),
    Network(IpNet),
    Unix,
}

impl PeerPattern {
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
