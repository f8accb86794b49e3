//! By which rules a connection is served.
//!
//! Owns the choice, from who the peer is. Knows nothing of what the rules say: the session follows them.
//!
//! Invariant: the first rule that is about a peer decides, alone.

use std::sync::Arc;

use crate::identity::{Peer, PeerPattern};
use crate::subscription::{Grant, Rules};

/// The rules of every kind of peer.
#[derive(Debug)]
pub struct Access {
    rules: Vec<(Vec<PeerPattern>, Chosen)>,
    default: Chosen,
}

/// The same for those who may have Secrets and those who may not.
#[derive(Debug)]
struct Chosen {
    trusted: Arc<Rules>,
    others: Arc<Rules>,
}

impl Chosen {
    fn new(base: &Rules, grant: Grant) -> Self {
        let others = Rules { grant, ..base.clone() };
        Self { trusted: Arc::new(Rules { serve_secrets: true, ..others.clone() }), others: Arc::new(others) }
    }
}

impl Access {
    /// What holds for all, with what is granted to some, and to the rest.
    pub fn new(base: &Rules, granted: Vec<(Vec<PeerPattern>, Grant)>, rest: Grant) -> Self {
        let rules = granted.into_iter().map(|(peers, grant)| (peers, Chosen::new(base, grant)));
        Self { rules: rules.collect(), default: Chosen::new(base, rest) }
    }

    /// The rules for a peer. One that has authenticated itself, or that is on this machine, is trusted with Secrets.
    pub(super) fn rules_for(&self, peer: &Peer, trusted: bool) -> &Arc<Rules> {
        let is_about = |peers: &[PeerPattern]| peers.iter().any(|pattern| pattern.matches(peer));
        let found = self.rules.iter().find(|(peers, _)| is_about(peers));
        let chosen = found.map_or(&self.default, |(_, chosen)| chosen);
        if trusted { &chosen.trusted } else { &chosen.others }
    }
}
