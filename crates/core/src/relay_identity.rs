//! Name of a relay process, and the chain of servers of a response (R-Relay-19, R-Relay-24).
//!
//! Owns the form of `control_plane.identifier` and the detection of a loop in it. Knows nothing of
//! responses.
//!
//! Example: the relay `edge-1` gets clusters from the relay `hub`, which has them from `istiod-7`.
//! Its clients get `edge-1/5f3a9c2e via hub/77aa0b1c via istiod-7`. If `hub` ever gets a response
//! with this identifier, it is asking itself.

use std::fmt;
use std::sync::Arc;

/// Separator of a chain; the nearer server comes first.
const VIA: &str = " via ";

/// Name of a relay process: its `node.id` and a random number, as replicas may share a `node.id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayIdentity(Arc<str>);

impl Default for RelayIdentity {
    /// No name: no identifier is sent, and no loop is detected.
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl RelayIdentity {
    /// Bytes of the longest chain; the rest is cut off. The nearest servers come first, so loops of
    /// up to some thirty relays are detected.
    pub(crate) const MAX_BYTES: usize = 1024;

    pub fn new(node_id: &str, instance: u32) -> Self {
        // A separator in the `node.id` would end the name.
        Self(format!("{}/{instance:08x}", node_id.replace(VIA, " ")).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Identifier for responses with content of no other server.
    pub(crate) fn own(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Identifier for responses with content of a server with this identifier, perhaps empty.
    pub(crate) fn via(&self, upstream: &str) -> Arc<str> {
        if self.0.is_empty() || upstream.is_empty() {
            return self.own();
        }
        let mut chain = format!("{self}{VIA}{upstream}");
        chain.truncate(chain.floor_char_boundary(Self::MAX_BYTES));
        chain.into()
    }

    /// Whether this process is part of a chain.
    pub(crate) fn is_in(&self, chain: &str) -> bool {
        !self.0.is_empty() && chain.split(VIA).any(|server| *server == *self.0)
    }
}

impl fmt::Display for RelayIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_the_nearest_server_first() {
        let [edge, hub] = [RelayIdentity::new("edge-1", 0x5f3a_9c2e), RelayIdentity::new("hub", 7)];
        assert_eq!(&*hub.via(""), "hub/00000007");
        let chain = edge.via(&hub.via("istiod-7"));
        assert_eq!(&*chain, "edge-1/5f3a9c2e via hub/00000007 via istiod-7");
        assert!(edge.is_in(&chain) && hub.is_in(&chain));
        assert!(
            !RelayIdentity::default().is_in(&chain) && RelayIdentity::default().via("istiod-7").is_empty()
        );
    }

    #[test]
    fn only_a_whole_name_is_this_relay() {
        let relay = RelayIdentity::new("a", 1);
        for other in ["", "a/000000011", "ba/00000001", "x viaa/00000001", "b via a/000000010 via c", "a"] {
            assert!(!relay.is_in(other), "{other}");
        }
        for chain in
            ["a/00000001", "b via a/00000001", "a/00000001 via b", "aa/00000001 via a/00000001 via b"]
        {
            assert!(relay.is_in(chain), "{chain}");
        }
        // A `node.id` is any text.
        let odd = RelayIdentity::new("x via y", 2);
        assert!(odd.is_in(&RelayIdentity::new("z", 3).via(&odd.via("cp"))));
    }

    #[test]
    fn an_endless_identifier_is_cut_off() {
        let relay = RelayIdentity::new("relay", 1);
        let chain = relay.via(&"ü".repeat(2000));
        assert!(chain.len() <= RelayIdentity::MAX_BYTES && relay.is_in(&chain));
    }
}
