//! What of this side may change while the relay runs.
//!
//! Owns the values that a reload replaces, as one that is never changed itself: a connection takes the one that is in
//! force when it is accepted and keeps to it, so that nothing changes under a stream and nothing has to be looked up
//! for an update. A poll is a request of its own and takes what is in force when it comes. Knows no file and no
//! connections.

use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::listener::Limits;
use crate::config::PollLimits;
use crate::http2;
use crate::identity::Peer;
use crate::subscription::Rules;

/// See the module.
#[derive(Debug)]
pub struct Policy {
    access: Access,
    pub(super) limits: Limits,
    pub(super) http2: Arc<http2::Limits>,
    pub(super) polls: PollLimits,
    drain: Duration,
}

impl Policy {
    /// Rules by peer, limits for all, and how long a drain may take.
    pub fn new(access: Access, limits: Limits, polls: PollLimits, drain: Duration) -> Self {
        let http2 = Arc::new(limits.http2());
        Self { access, limits, http2, polls, drain }
    }

    /// The rules for the streams of a peer.
    pub fn rules_for(&self, peer: &Peer) -> &Arc<Rules> {
        self.access.rules_for(peer)
    }

    /// Whether a peer may do the same under both. If not, its connections have to be closed: what it was refused, or was
    /// given, it was by rules that are no longer in force.
    pub fn gives_same_rights(&self, other: &Self, peer: &Peer) -> bool {
        let (one, other) = (self.rules_for(peer), other.rules_for(peer));
        one.serve_secrets == other.serve_secrets && one.grant == other.grant
    }

    /// How long a connection may take to close, and a client may leave an answer without its own.
    pub fn times(&self) -> (Duration, Duration) {
        (self.limits.stall_timeout, self.access.unacked_timeout())
    }

    /// Over how long connections close that reach `max_connection_age` together: as in a drain, and no later than a fifth
    /// of the age.
    pub fn retirement(&self) -> Duration {
        self.drain.min(self.limits.max_connection_age / 5)
    }

    /// The limits that are in force.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How long a drain may take; also how long clients are given to come again whose rights have changed.
    pub const fn drain(&self) -> Duration {
        self.drain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Source;
    use crate::subscription::Grant;

    fn policy(serve_secrets: bool) -> Policy {
        let rules = Rules { serve_secrets, ..Rules::default() };
        let second = Duration::from_secs(1);
        let polls = PollLimits { hold: second, idle_timeout: second, max_polls_per_peer: 1 };
        let access = Access::new(&rules, Vec::new(), Grant::default());
        Policy::new(access, Limits::default(), polls, second)
    }

    #[test]
    fn who_is_on_this_machine_may_have_secrets_and_loses_nothing_by_a_reload() {
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
