//! Authorization: chooses the rules of a connection by its peer. Knows nothing of their content.
//!
//! Invariant: the first rule that matches a peer decides alone.

use std::sync::Arc;
use std::time::Duration;

use crate::identity::{Peer, PeerPattern, Source};
use crate::subscription::{Permissions, SessionConfig};

/// Rules of all kinds of peers.
#[derive(Debug)]
pub struct AuthzPolicy {
    rules: Vec<(Vec<PeerPattern>, RulesByTrust)>,
    default: RulesByTrust,
    /// Whether loopback peers may have Secrets. False where a proxy on this machine may stand for anybody.
    trust_loopback: bool,
}

/// Rules with and without access to Secrets.
#[derive(Debug)]
struct RulesByTrust {
    trusted: Arc<SessionConfig>,
    others: Arc<SessionConfig>,
}

impl RulesByTrust {
    fn new(base: &SessionConfig, permissions: Permissions) -> Self {
        let others = SessionConfig { permissions, ..base.clone() };
        Self {
            trusted: Arc::new(SessionConfig { serve_secrets: true, ..others.clone() }),
            others: Arc::new(others),
        }
    }
}

impl AuthzPolicy {
    /// Creates the policy from `base`: a grant for peers that a rule matches, and `rest` for the others.
    pub fn new(
        base: &SessionConfig,
        granted: Vec<(Vec<PeerPattern>, Permissions)>,
        rest: Permissions,
    ) -> Self {
        let rules =
            granted.into_iter().map(|(peers, permissions)| (peers, RulesByTrust::new(base, permissions)));
        Self { rules: rules.collect(), default: RulesByTrust::new(base, rest), trust_loopback: true }
    }

    /// Sets whether loopback is trusted with Secrets.
    pub fn trusting_loopback(self, trust_loopback: bool) -> Self {
        Self { trust_loopback, ..self }
    }

    /// Time within which every client must answer a response.
    pub(super) fn unacked_timeout(&self) -> Duration {
        self.default.others.unacked_timeout
    }

    /// Rules for a peer. Secrets need a verified certificate, a Unix socket, or trusted loopback.
    pub(super) fn rules_for(&self, peer: &Peer) -> &Arc<SessionConfig> {
        let local = match peer.source {
            Source::Ip(address) => self.trust_loopback && address.is_loopback(),
            Source::Unix => true,
        };
        let trusted = local || peer.certificate.is_some();
        let is_about = |peers: &[PeerPattern]| peers.iter().any(|pattern| pattern.matches(peer));
        let found = self.rules.iter().find(|(peers, _)| is_about(peers));
        let chosen = found.map_or(&self.default, |(_, chosen)| chosen);
        if trusted { &chosen.trusted } else { &chosen.others }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn from(last: u8) -> Peer {
        Peer::unproven(Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))))
    }

    #[test]
    fn secrets_are_for_peers_that_are_known_or_on_this_machine() {
        let authz = AuthzPolicy::new(&SessionConfig::default(), Vec::new(), Permissions::default());
        let serves = |peer: &Peer| authz.rules_for(peer).serve_secrets;
        let mut peer = from(1);
        assert!(!serves(&peer), "over the network, without a certificate");
        peer.certificate = Some(Arc::default());
        assert!(serves(&peer));
        assert!(serves(&Peer::unproven(Source::Unix)));
        let mut loopback = Peer::unproven(Source::of([127, 0, 0, 1].into()));
        assert!(serves(&loopback));
        let authz = authz.trusting_loopback(false);
        let serves = |peer: &Peer| authz.rules_for(peer).serve_secrets;
        assert!(!serves(&loopback), "a proxy may be there");
        assert!(serves(&Peer::unproven(Source::Unix)), "its file says who may connect");
        loopback.certificate = Some(Arc::default());
        assert!(serves(&loopback));
    }

    #[test]
    fn the_first_rule_about_a_peer_decides_alone() {
        let network = |text: &str| vec![PeerPattern::Network(text.parse().unwrap())];
        let some = Permissions { types: Some(std::collections::BTreeSet::new()), ..Permissions::default() };
        let rules =
            vec![(network("10.0.0.1/32"), some.clone()), (network("10.0.0.0/8"), Permissions::default())];
        let authz = AuthzPolicy::new(&SessionConfig::default(), rules, Permissions::nothing());
        let permissions = |peer: &Peer| authz.rules_for(peer).permissions.clone();
        assert_eq!(permissions(&from(1)), some);
        assert_eq!(permissions(&from(2)), Permissions::default());
        assert_eq!(permissions(&Peer::unproven(Source::Unix)), Permissions::nothing());
    }
}
