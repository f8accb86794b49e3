//! Node of one of a group's clients, shown to the control plane in the place of one that the relay makes.
//!
//! Owns which client that is. It is the one that came first; when the streams are opened anew and it is gone, the one that has
//! been there longest. While the streams stand, its node stays, whoever leaves: a stream has one node (R-Relay-02).
//!
//! The nodes of the oldest clients are kept, [`CANDIDATES`] at most, so that memory does not grow with the fleet. If all of these
//! have left and nobody came after them, the last node stays.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use crate::cache::Protocol;
use crate::resource::wire;

/// Clients of a group whose nodes are kept.
const CANDIDATES: usize = 4;

/// Node of one of a group's clients.
#[derive(Debug, Default)]
pub struct Representative(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By their number, the oldest first.
    candidates: VecDeque<(u64, Bytes)>,
    shown: Option<(u64, Bytes)>,
    arrived: u64,
}

impl Representative {
    /// Longest node that is taken, in bytes.
    pub const MAX_BYTES: usize = 64 << 10;

    /// Notes a client and its node, as it came. Returns the number under which it [leaves](Self::leave).
    pub fn arrive(&self, node: Bytes) -> u64 {
        let mut state = self.0.lock();
        state.arrived += 1;
        let number = state.arrived;
        if state.candidates.len() < CANDIDATES {
            state.candidates.push_back((number, node));
        }
        number
    }

    /// Notes that a client left.
    pub fn leave(&self, number: u64) {
        let mut state = self.0.lock();
        if let Ok(at) = state.candidates.binary_search_by_key(&number, |(number, _)| *number) {
            state.candidates.remove(at);
        }
    }

    /// Chooses the node for streams that are opened now. Returns whether it is another client's than before.
    pub fn choose(&self) -> bool {
        let mut state = self.0.lock();
        let shown = state.shown.as_ref().map(|(number, _)| *number);
        let is_there = |state: &State| state.candidates.iter().any(|(number, _)| Some(*number) == shown);
        if is_there(&state) {
            return false;
        }
        let Some(oldest) = state.candidates.front().cloned() else { return false };
        state.shown = Some(oldest);
        true
    }

    /// Puts the node that was chosen in the place of that of an encoded request, with all that the relay does not know of it. A
    /// request without a node stays as it is.
    pub fn lend(&self, message: Bytes, protocol: Protocol) -> Bytes {
        let number = protocol.node_field();
        let fields = || wire::fields(&message).map_while(Result::ok);
        if !fields().any(|field| field.number == u32::from(number)) {
            return message;
        }
        let node = self.node();
        let mut lent = BytesMut::with_capacity(message.len() + node.len());
        wire::put_field(&mut lent, number, &node);
        let others = fields().filter(|field| field.number != u32::from(number));
        others.for_each(|field| lent.extend_from_slice(field.raw));
        lent.freeze()
    }

    /// Node that was chosen, as its client sent it.
    pub fn node(&self) -> Bytes {
        self.0.lock().shown.as_ref().map(|(_, node)| node.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};

    fn node(number: usize) -> Bytes {
        number.to_string().into_bytes().into()
    }

    #[test]
    fn the_oldest_client_that_is_there_lends_its_node_to_new_streams() {
        let representative = Representative::default();
        let [first, second, third] = [1, 2, 3].map(|number| representative.arrive(node(number)));
        assert!(representative.choose() && !representative.choose());
        assert_eq!(representative.node(), node(1));
        representative.leave(second);
        representative.leave(first);
        assert_eq!(representative.node(), node(1), "the streams stand");
        assert!(representative.choose());
        assert_eq!(representative.node(), node(3));
        representative.leave(third);
        assert!(!representative.choose());
        assert_eq!(representative.node(), node(3), "nobody else is there");
        representative.arrive(node(4));
        assert!(representative.choose());
        assert_eq!(representative.node(), node(4));
    }

    #[test]
    fn a_request_shows_the_node_of_the_client_with_all_that_is_in_it() {
        let representative = Representative::default();
        // `id`, and a field that nobody knows.
        let sent = Bytes::from_static(&[10, 2, b'c', b'1', 0xfa, 7, 1, b'x']);
        representative.arrive(sent.clone());
        representative.choose();
        let own = Node { id: "relay".to_owned(), ..Node::default() };
        let type_url = "type".to_owned();
        let delta = DeltaDiscoveryRequest {
            node: Some(own.clone()),
            type_url: type_url.clone(),
            ..Default::default()
        };
        let sotw = DiscoveryRequest { node: Some(own), type_url, ..Default::default() };
        for (protocol, message, number) in
            [(Protocol::Delta, delta.encode_to_vec(), 1), (Protocol::Sotw, sotw.encode_to_vec(), 2)]
        {
            let lent = representative.lend(message.clone().into(), protocol);
            let mut expected = BytesMut::new();
            wire::put_field(&mut expected, number, &sent);
            let rest = wire::fields(&message).flatten().filter(|field| field.number != u32::from(number));
            rest.for_each(|field| expected.extend_from_slice(field.raw));
            assert_eq!(lent, expected, "{protocol:?}");
            let decoded = DeltaDiscoveryRequest::decode(lent.clone()).ok().filter(|_| number == 1);
            assert!(decoded.is_none_or(|request| request.node.is_some_and(|node| node.id == "c1")));
        }
        let ack = DeltaDiscoveryRequest { response_nonce: "1".to_owned(), ..Default::default() };
        let ack = Bytes::from(ack.encode_to_vec());
        assert_eq!(representative.lend(ack.clone(), Protocol::Delta), ack);
    }

    #[test]
    fn memory_does_not_grow_with_the_fleet() {
        let representative = Representative::default();
        let numbers: Vec<u64> = (0..1000).map(|number| representative.arrive(node(number))).collect();
        assert_eq!(representative.0.lock().candidates.len(), CANDIDATES);
        numbers.into_iter().for_each(|number| representative.leave(number));
        assert!(representative.0.lock().candidates.is_empty());
    }
}
