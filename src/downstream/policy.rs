//! Policy: everything downstream that a reload may change, as one immutable value.
//!
//! Owns limits on transports, and the choice of the rules of a connection by its peer. A connection takes the policy in force
//! when its peer is known and keeps it, so
//! that its streams see no change. Each poll takes the policy in force. Knows neither files nor connections.
//!
//! Invariant: the first rule that matches a peer decides alone.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Downstream, Rest};
use crate::http2;
use crate::identity::{Peer, PeerPattern, Source};
use crate::subscription::{Permissions, SessionConfig};

/// Largest head of an HTTP request in bytes: many times those of Envoy and gRPC.
pub(super) const MAX_HEAD_BYTES: usize = 16 << 10;

const fn http2_limits(of: &Downstream) -> http2::Limits {
    http2::Limits {
        max_streams: of.max_streams_per_connection,
        stream_window: 64 << 10,
        connection_window: 1 << 20,
        max_head_bytes: MAX_HEAD_BYTES,
        head_timeout: of.first_request_timeout,
        idle_timeout: of.idle_timeout,
        keepalive_interval: of.keepalive.interval,
        keepalive_timeout: of.keepalive.timeout,
        stall_timeout: of.stall_timeout,
    }
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

/// Rules and limits of new connections and polls.
#[derive(Debug)]
pub struct Policy {
    rules: Vec<(Vec<PeerPattern>, RulesByTrust)>,
    default: RulesByTrust,
    pub(super) limits: Downstream,
    pub(super) http2: Arc<http2::Limits>,
    pub(super) polls: Rest,
}

impl Policy {
    /// Creates a policy from `base`: a grant for peers that a rule matches, and `rest` for the others.
    pub fn new(
        base: &SessionConfig,
        granted: impl Iterator<Item = (Vec<PeerPattern>, Permissions)>,
        rest: Permissions,
        limits: Downstream,
        polls: Rest,
    ) -> Self {
        Self {
            rules: granted.map(|(peers, grant)| (peers, RulesByTrust::new(base, grant))).collect(),
            default: RulesByTrust::new(base, rest),
            http2: Arc::new(http2_limits(&limits)),
            limits,
            polls,
        }
    }

    /// Rules for a peer. Secrets need a verified certificate, a Unix socket, or trusted loopback.
    pub fn rules_for(&self, peer: &Peer) -> &Arc<SessionConfig> {
        let local = match peer.source {
            // A proxy on this machine may stand for anybody.
            Source::Ip(address) => self.limits.secrets_over_loopback && address.is_loopback(),
            Source::Unix => true,
        };
        let trusted = local || peer.certificate.is_some();
        let is_about = |peers: &[PeerPattern]| peers.iter().any(|pattern| pattern.matches(peer));
        let found = self.rules.iter().find(|(peers, _)| is_about(peers));
        let chosen = found.map_or(&self.default, |(_, chosen)| chosen);
        if trusted { &chosen.trusted } else { &chosen.others }
    }

    /// Whether both policies give a peer the same rights. If not, its connections must be closed: they follow
    /// rules no longer in force.
    pub fn gives_same_rights(&self, other: &Self, peer: &Peer) -> bool {
        let (one, other) = (self.rules_for(peer), other.rules_for(peer));
        one.serve_secrets == other.serve_secrets && one.permissions == other.permissions
    }

    /// Time within which every client must answer a response.
    pub(super) fn unacked_timeout(&self) -> Duration {
        self.default.others.unacked_timeout
    }

    /// Window to close connections that reach `max_connection_age` together: the drain window, but at most a
    /// fifth of the age.
    pub(super) fn retirement(&self) -> Duration {
        self.limits.drain.min(self.limits.max_connection_age / 5)
    }

    /// Longest time of a drain, and window to close connections whose rights changed.
    pub const fn drain(&self) -> Duration {
        self.limits.drain
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::config::Config;
    use crate::identity::Source;
    use crate::subscription::Permissions;

    fn from(last: u8) -> Peer {
        Peer::unproven(Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))))
    }

    #[test]
    fn secrets_are_for_peers_that_are_known_or_on_this_machine() {
        let policy = policy(false);
        let serves = |peer: &Peer| policy.rules_for(peer).serve_secrets;
        let mut peer = from(1);
        assert!(!serves(&peer), "over the network, without a certificate");
        peer.certificate = Some(Arc::default());
        assert!(serves(&peer));
        assert!(serves(&Peer::unproven(Source::Unix)));
        let mut loopback = Peer::unproven(Source::of([127, 0, 0, 1].into()));
        assert!(serves(&loopback));
        let mut policy = policy;
        policy.limits.secrets_over_loopback = false;
        let serves = |peer: &Peer| policy.rules_for(peer).serve_secrets;
        assert!(!serves(&loopback), "a proxy may be there");
        assert!(serves(&Peer::unproven(Source::Unix)), "its file says who may connect");
        loopback.certificate = Some(Arc::default());
        assert!(serves(&loopback));
    }

    #[test]
    fn the_first_rule_about_a_peer_decides_alone() {
        let network = |text: &str| vec![PeerPattern::Network(text.parse().unwrap())];
        let some = Permissions { types: Some(std::collections::BTreeSet::new()), ..Permissions::default() };
        let rules = [(network("10.0.0.1/32"), some.clone()), (network("10.0.0.0/8"), Permissions::default())];
        let policy = policy_of(&SessionConfig::default(), rules.into(), Permissions::nothing());
        let permissions = |peer: &Peer| policy.rules_for(peer).permissions.clone();
        assert_eq!(permissions(&from(1)), some);
        assert_eq!(permissions(&from(2)), Permissions::default());
        assert_eq!(permissions(&Peer::unproven(Source::Unix)), Permissions::nothing());
    }

    impl Policy {
        pub(in super::super) fn for_tests() -> Self {
            policy(false)
        }
    }

    fn policy_of(
        base: &SessionConfig,
        granted: Vec<(Vec<PeerPattern>, Permissions)>,
        rest: Permissions,
    ) -> Policy {
        let Config { downstream, rest: polls, .. } = Config::parse("upstream: {directory: d}", "f").unwrap();
        Policy::new(base, granted.into_iter(), rest, downstream, polls)
    }

    fn policy(serve_secrets: bool) -> Policy {
        let base = SessionConfig { serve_secrets, ..SessionConfig::default() };
        policy_of(&base, Vec::new(), Permissions::default())
    }

    #[test]
    fn a_peer_on_this_machine_may_have_secrets_and_loses_nothing_by_a_reload() {
        let peer = |address: &str| Peer::unproven(Source::of(address.parse().unwrap()));
        let (closed, open) = (policy(false), policy(true));
        for local in [peer("127.0.0.1"), peer("::1"), peer("::ffff:127.8.8.8"), Peer::unproven(Source::Unix)]
        {
            assert!(closed.rules_for(&local).serve_secrets, "{local}");
            assert!(closed.gives_same_rights(&open, &local), "{local}");
        }
        for remote in [peer("10.0.0.1"), peer("2001:db8::1")] {
            assert!(!closed.rules_for(&remote).serve_secrets, "{remote}");
            assert!(!closed.gives_same_rights(&open, &remote) && !open.gives_same_rights(&closed, &remote));
            assert!(open.gives_same_rights(&policy(true), &remote), "{remote}");
        }
    }
}
