//! How many polls each address holds open.

use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::identity::Source;

/// Counts what is held for each peer. A peer without anything costs nothing.
#[derive(Debug)]
pub(super) struct Peers {
    held: Mutex<HashMap<Source, usize>>,
    limit: usize,
}

impl Peers {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { held: Mutex::default(), limit })
    }

    /// Takes a place, until that is dropped; `None` where the peer has as many as it may.
    pub(super) fn hold(self: &Arc<Self>, peer: Source) -> Option<Held> {
        let mut held = self.held.lock();
        let count = held.entry(peer).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        drop(held);
        Some(Held { of: Arc::clone(self), peer })
    }
}

/// A place of a peer's.
#[derive(Debug)]
pub(super) struct Held {
    of: Arc<Peers>,
    peer: Source,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        if let Some(count) = held.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_peer_has_so_many_places_and_leaves_nothing_behind() {
        let peers = Peers::new(2);
        let [a, b] = [1, 2].map(|last| Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))));
        let held = [peers.hold(a), peers.hold(a)];
        assert!(held.iter().all(Option::is_some));
        assert!(peers.hold(a).is_none());
        let other = peers.hold(b);
        assert!(other.is_some(), "one peer's polls are not another's");
        drop(held);
        assert!(peers.hold(a).is_some());
        drop(other);
        assert!(peers.held.lock().is_empty());
    }
}
