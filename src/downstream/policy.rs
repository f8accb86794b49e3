//! Policy: everything downstream that a reload may change.
//!
//! Owns one immutable value. A connection takes the policy in force when its peer is known and keeps it, so
//! that its streams see no change. Each poll takes the policy in force. Knows neither files nor connections.

use std::sync::Arc;
use std::time::Duration;

use super::authz::AuthzPolicy;
use super::limits::TransportLimits;
use crate::config::PollLimits;
use crate::http2;
use crate::identity::Peer;
use crate::subscription::SessionConfig;

/// Rules and limits of new connections and polls.
#[derive(Debug)]
pub struct Policy {
    authz: AuthzPolicy,
    pub(super) limits: TransportLimits,
    pub(super) http2: Arc<http2::Limits>,
    pub(super) polls: PollLimits,
    drain: Duration,
}

impl Policy {
    /// Creates a policy. `drain` is the longest time of a drain.
    pub fn new(authz: AuthzPolicy, limits: TransportLimits, polls: PollLimits, drain: Duration) -> Self {
        let http2 = Arc::new(limits.http2());
        Self { authz, limits, http2, polls, drain }
    }

    pub fn rules_for(&self, peer: &Peer) -> &Arc<SessionConfig> {
        self.authz.rules_for(peer)
    }

    /// Whether both policies give a peer the same rights. If not, its connections must be closed: they follow
    /// rules no longer in force.
    pub fn gives_same_rights(&self, other: &Self, peer: &Peer) -> bool {
        let (one, other) = (self.rules_for(peer), other.rules_for(peer));
        one.serve_secrets == other.serve_secrets && one.permissions == other.permissions
    }

    /// Longest time to close a connection, and longest time without an ACK.
    pub fn times(&self) -> (Duration, Duration) {
        (self.limits.stall_timeout, self.authz.unacked_timeout())
    }

    /// Window to close connections that reach `max_connection_age` together: the drain window, but at most a
    /// fifth of the age.
    pub fn retirement(&self) -> Duration {
        self.drain.min(self.limits.max_connection_age / 5)
    }

    /// Longest time of a drain, and window to close connections whose rights changed.
    pub const fn drain(&self) -> Duration {
        self.drain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Source;
    use crate::subscription::Permissions;

    fn policy(serve_secrets: bool) -> Policy {
        let rules = SessionConfig { serve_secrets, ..SessionConfig::default() };
        let second = Duration::from_secs(1);
        let polls = PollLimits { hold: second, idle_timeout: second, max_polls_per_peer: 1 };
        let authz = AuthzPolicy::new(&rules, Vec::new(), Permissions::default());
        Policy::new(authz, TransportLimits::default(), polls, second)
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
