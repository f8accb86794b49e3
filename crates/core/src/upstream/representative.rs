//! Node of one client of a group, shown to the control plane in place of the relay's own.
//!
//! Owns the choice. The first client is chosen; for new streams after it left, the oldest one. A
//! stream keeps its node (R-Relay-02). If its client is gone, and a client with a different node
//! stays, the streams are [outdated](Representative::is_outdated): a restarted proxy may have
//! another configuration by its metadata. Pollers and observers lend their node until a client with
//! a stream comes.
//!
//! At most [`CANDIDATES`] nodes are kept, of the oldest clients and the newest, so that memory does
//! not grow with the fleet. If all of these have left, the last node stays. If they left before the
//! first stream, that shows the node of the last of them: a lingering group needs a node.
//!
//! Nodes are charged to the peers that lent them ([`NodeBudget`]). A node without room is not kept,
//! but its client joins. Only the first client of a group is refused, as there is nothing else to
//! show; half of the room is for these.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message as _;

use crate::cache::Protocol;
use crate::node_field::are_same_nodes;
use crate::pool::{Pool, Share, Tenant};
use crate::proto::Node;
use crate::resource::wire;

/// Most nodes kept for a group.
const CANDIDATES: usize = 4;

/// Memory for the nodes that clients lend to all groups, with a share for each peer.
#[derive(Debug)]
pub struct NodeBudget {
    pool: Arc<Pool>,
    limit: usize,
}

/// Refusal of the first client of a group, whose node finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the nodes that this client, or all of them, lend to node groups are too large; all peers may lend {limit} bytes, which grow with groups.max, and one of them a part of it"
)]
pub struct NodeBudgetError {
    /// Bytes that all peers may lend.
    pub limit: usize,
}

/// Node of a client, charged to its peer until it is dropped.
#[derive(Debug)]
struct Lent {
    node: Bytes,
    _share: Share,
}

impl NodeBudget {
    /// Bytes for each possible group. The node of an Envoy 1.40 has 60 KiB: it lists 516
    /// extensions.
    const PER_GROUP: usize = 128 << 10;
    /// Least bytes, so that the share of one connection has room for a node.
    const LEAST: usize = 4 << 20;

    pub fn new(groups: usize) -> Self {
        Self { pool: Arc::default(), limit: groups.saturating_mul(Self::PER_GROUP).max(Self::LEAST) }
    }

    /// Takes room for a node. A spare one may use only half of the room; the rest is for first
    /// clients.
    fn lend(&self, node: Bytes, tenant: Option<&Tenant>, is_spare: bool) -> Option<Arc<Lent>> {
        let limit = if is_spare { self.limit / 2 } else { self.limit };
        let share = self.pool.take(tenant, node.len(), limit)?;
        Some(Arc::new(Lent { node, _share: share }))
    }
}

/// Node of one client of a group.
#[derive(Debug)]
pub struct Representative {
    state: Mutex<State>,
    budget: Arc<NodeBudget>,
}

#[derive(Debug, Default)]
struct State {
    /// By number, the oldest first.
    candidates: VecDeque<Candidate>,
    /// The chosen one, and when.
    shown: Option<(Candidate, Instant)>,
    /// Last client to leave, while no node was shown.
    departed: Option<Candidate>,
    arrived: u64,
}

#[derive(Clone, Debug)]
struct Candidate {
    number: u64,
    lent: Arc<Lent>,
    stay: Stay,
}

/// Whether a client is in its group to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// It has a stream, and is configured by it.
    Stream,
    /// It polls once, or observes.
    Visit,
}

impl State {
    /// Client to show next; `None` if it is shown already, or there is none.
    fn next(&self) -> Option<&Candidate> {
        let is_there = |shown: &Candidate| self.candidates.iter().find(|one| one.number == shown.number);
        let shown = self.shown.as_ref().and_then(|(shown, _)| is_there(shown));
        let mut staying = self.candidates.iter().filter(|one| one.stay == Stay::Stream);
        match shown.map(|shown| shown.stay) {
            Some(Stay::Stream) => None,
            Some(Stay::Visit) => staying.next(),
            None => staying.next().or_else(|| self.candidates.front()),
        }
    }
}

impl Representative {
    /// Longest node that is accepted, in bytes.
    pub const MAX_BYTES: usize = 256 << 10;

    pub fn new(budget: Arc<NodeBudget>) -> Self {
        Self { state: Mutex::default(), budget }
    }

    /// Adds a client and its node. Returns the number under which it [leaves](Self::leave).
    ///
    /// # Errors
    /// [`NodeBudgetError`] if there is no other node to show, and no room for this one.
    pub fn arrive(&self, node: Bytes, tenant: Option<&Tenant>, stay: Stay) -> Result<u64, NodeBudgetError> {
        let mut state = self.state.lock();
        let number = state.arrived + 1;
        if stay == Stay::Stream && state.candidates.len() == CANDIDATES {
            // The newest is always kept, as it may be the only one that stays.
            let visit = state.candidates.iter().rposition(|one| one.stay == Stay::Visit);
            state.candidates.remove(visit.unwrap_or(CANDIDATES - 1));
        }
        if state.candidates.len() < CANDIDATES {
            // A returning client usually has the node that is shown, which needs no room.
            let shown = state.shown.as_ref().filter(|_| state.candidates.is_empty());
            let same = shown.filter(|(shown, _)| are_same_nodes(&shown.lent.node, &node));
            let is_spare = !state.candidates.is_empty() || state.departed.is_some();
            let lent = match same {
                Some((shown, _)) => Some(Arc::clone(&shown.lent)),
                None => self.budget.lend(node, tenant, is_spare),
            };
            match lent {
                Some(lent) => state.candidates.push_back(Candidate { number, lent, stay }),
                None if !is_spare && state.shown.is_none() => {
                    return Err(NodeBudgetError { limit: self.budget.limit });
                }
                None => {}
            }
        }
        state.arrived = number;
        Ok(number)
    }

    /// Removes a client.
    pub fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        if let Ok(at) = state.candidates.binary_search_by_key(&number, |one| one.number) {
            let left = state.candidates.remove(at);
            if state.shown.is_none() && state.candidates.is_empty() {
                state.departed = left;
            }
        }
    }

    /// Chooses the node for streams that are opened now. Returns whether it changed.
    pub fn choose(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let departed = state.departed.take();
        let Some(chosen) = state.next().cloned().or(departed) else { return false };
        state.shown = Some((chosen, now));
        true
    }

    /// Whether the streams are to be opened anew, because the shown client is gone and another one
    /// has a different node. That client must have a stream, or be the same visitor with a changed
    /// node.
    pub fn is_outdated(&self) -> bool {
        let mut state = self.state.lock();
        let (Some((shown, since)), Some(next)) = (&state.shown, state.next()) else { return false };
        if are_same_nodes(&shown.lent.node, &next.lent.node) {
            let stay = if next.stay == Stay::Stream { next.stay } else { shown.stay };
            state.shown = Some((Candidate { stay, ..next.clone() }, *since));
            return false;
        }
        let id = |lent: &Lent| Node::decode(lent.node.clone()).map(|node| node.id).ok();
        let is_same_visitor = || shown.stay == Stay::Visit && id(&shown.lent) == id(&next.lent);
        next.stay == Stay::Stream || is_same_visitor()
    }

    /// Replaces the node of an encoded request by the chosen one, with its unknown fields. A
    /// request without a node is unchanged.
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

    /// Chosen node, as its client sent it.
    pub fn node(&self) -> Bytes {
        self.shown().map(|(node, _)| node).unwrap_or_default()
    }

    /// Chosen node, and when it was chosen; `None` before the first stream.
    pub fn shown(&self) -> Option<(Bytes, Instant)> {
        self.state.lock().shown.as_ref().map(|(shown, since)| (shown.lent.node.clone(), *since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Peer, Source};
    use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest};

    fn node(number: usize) -> Bytes {
        number.to_string().into_bytes().into()
    }

    fn representative() -> Representative {
        Representative::new(Arc::new(NodeBudget::new(1)))
    }

    fn tenant(address: u8) -> Tenant {
        Tenant::new(&Peer::unproven(Source::of([10, 0, 0, address].into())), address.into())
    }

    #[test]
    fn a_peer_that_lends_large_nodes_to_many_groups_leaves_room_for_others() {
        let budget = Arc::new(NodeBudget::new(1));
        let large = || Bytes::from(vec![b'x'; Representative::MAX_BYTES]);
        let hog = tenant(1);
        let group = || Representative::new(Arc::clone(&budget));
        let made: Vec<Representative> = std::iter::repeat_with(group)
            .take_while(|group| group.arrive(large(), Some(&hog), Stay::Stream).is_ok())
            .collect();
        assert_eq!(made.len(), 4, "a quarter over one connection");
        assert_eq!(
            group().arrive(large(), Some(&hog), Stay::Stream),
            Err(NodeBudgetError { limit: NodeBudget::LEAST })
        );
        // Where a node is shown already, a client does without lending its own.
        assert_eq!(made[0].arrive(large(), Some(&hog), Stay::Stream), Ok(2));
        assert!(made[0].choose(Instant::now()));
        made[0].leave(1);
        assert_eq!(
            made[0].arrive(large(), Some(&hog), Stay::Stream),
            Ok(3),
            "the node that is shown is still kept"
        );
        assert_eq!(made[0].state.lock().candidates.len(), 1, "it is the same node");
        let other = group();
        assert_eq!(other.arrive(large(), Some(&tenant(2)), Stay::Stream), Ok(1));
        assert_eq!(budget.pool.taken(), 5 * Representative::MAX_BYTES);
        drop((made, other));
        assert_eq!(budget.pool.taken(), 0);
    }

    #[test]
    fn the_oldest_client_that_is_there_lends_its_node_to_new_streams() {
        let representative = representative();
        let [first, second, third] =
            [1, 2, 3].map(|number| representative.arrive(node(number), None, Stay::Stream).expect("room"));
        let (start, later) = (Instant::now(), Instant::now() + std::time::Duration::from_secs(9));
        assert!(representative.shown().is_none());
        assert!(representative.choose(start) && !representative.choose(later));
        assert_eq!(representative.shown(), Some((node(1), start)), "since it was chosen");
        representative.leave(second);
        representative.leave(first);
        assert_eq!(representative.node(), node(1), "the streams stand");
        assert!(representative.choose(Instant::now()));
        assert_eq!(representative.node(), node(3));
        representative.leave(third);
        assert!(!representative.choose(Instant::now()));
        assert_eq!(representative.node(), node(3), "nobody else is there");
        representative.arrive(node(4), None, Stay::Stream).expect("room");
        assert!(representative.choose(Instant::now()));
        assert_eq!(representative.node(), node(4));
    }

    /// Node of this id that says this of itself.
    fn saying(id: &str, build: &str) -> Bytes {
        let node = Node { id: id.to_owned(), user_agent_version: build.to_owned(), ..Node::default() };
        node.encode_to_vec().into()
    }

    #[test]
    fn a_poll_that_says_something_else_by_now_is_shown_so_in_a_group_of_polls() {
        let representative = representative();
        let arrive = |node: &Bytes| representative.arrive(node.clone(), None, Stay::Visit).expect("room");
        let first = arrive(&saying("n", "1"));
        representative.choose(Instant::now());
        representative.leave(first);
        let other = arrive(&saying("other", "2"));
        assert!(!representative.is_outdated(), "another client, for a moment");
        representative.leave(other);
        arrive(&saying("n", "2"));
        assert!(representative.is_outdated());
        // A client with a stream came in its place, and will be back.
        let stays = representative.arrive(saying("n", "1"), None, Stay::Stream).expect("room");
        assert!(!representative.is_outdated());
        representative.leave(stays);
        assert!(!representative.is_outdated());
    }

    #[test]
    fn the_newest_of_many_clients_is_shown_once_all_before_it_are_gone() {
        let representative = representative();
        let arrive = |build: usize| {
            representative.arrive(saying("n", &build.to_string()), None, Stay::Stream).expect("room")
        };
        let old: Vec<u64> = (0..10).map(|_| arrive(1)).collect();
        representative.choose(Instant::now());
        for _ in 0..10 {
            arrive(2);
        }
        old.into_iter().for_each(|number| representative.leave(number));
        assert!(representative.is_outdated() && representative.choose(Instant::now()));
        assert_eq!(representative.node(), saying("n", "2"));
    }

    /// The node of each group takes its room.
    #[test]
    fn a_client_that_comes_back_finds_room_where_there_is_none_for_spare_nodes() {
        let budget = Arc::new(NodeBudget::new(1));
        let other = Representative::new(Arc::clone(&budget));
        let filler = vec![b'x'; NodeBudget::LEAST * 3 / 4];
        other.arrive(filler.into(), None, Stay::Stream).expect("room");
        let representative = Representative::new(budget);
        for build in ["1", "1", "2"] {
            let number = representative.arrive(saying("n", build), None, Stay::Stream).expect("room");
            if representative.shown().is_none() || representative.is_outdated() {
                representative.choose(Instant::now());
            }
            assert_eq!(representative.node(), saying("n", build));
            representative.leave(number);
        }
    }

    #[test]
    fn a_client_that_looks_on_is_shown_until_another_comes() {
        let representative = representative();
        let arrive = |node: &Bytes, stay| representative.arrive(node.clone(), None, stay).expect("room");
        for _ in 0..CANDIDATES {
            arrive(&saying("n", ""), Stay::Visit);
        }
        representative.choose(Instant::now());
        assert!(!representative.is_outdated());
        arrive(&saying("n", "1"), Stay::Stream);
        assert!(representative.is_outdated());
        assert!(representative.choose(Instant::now()));
        assert_eq!(representative.node(), saying("n", "1"));
        arrive(&saying("n", "2"), Stay::Visit);
        assert!(!representative.is_outdated() && !representative.choose(Instant::now()));
    }

    #[test]
    fn spare_nodes_of_groups_leave_room_for_the_first_ones_of_others() {
        const GROUPS: usize = 1024;
        let budget = Arc::new(NodeBudget::new(GROUPS));
        let mut peer = 0_u32;
        let mut groups = Vec::new();
        for _ in 0..GROUPS {
            let group = Representative::new(Arc::clone(&budget));
            for _ in 0..CANDIDATES {
                peer += 1;
                let source = Source::of(std::net::IpAddr::from(peer.to_be_bytes()));
                let tenant = Tenant::new(&Peer::unproven(source), peer.into());
                group
                    .arrive(vec![b'x'; NodeBudget::PER_GROUP / 2].into(), Some(&tenant), Stay::Stream)
                    .expect("room");
            }
            groups.push(group);
        }
    }

    #[test]
    fn a_group_that_is_empty_before_its_first_stream_shows_the_node_of_its_last_client() {
        let representative = representative();
        let [first, second] =
            [1, 2].map(|number| representative.arrive(node(number), None, Stay::Stream).expect("room"));
        representative.leave(first);
        representative.leave(second);
        assert!(representative.choose(Instant::now()));
        assert_eq!(
            representative.node(),
            node(2),
            "a stream without a node is refused, or answered for another one"
        );
        representative.arrive(node(3), None, Stay::Stream).expect("room");
        assert!(representative.choose(Instant::now()));
        assert_eq!(representative.node(), node(3));
    }

    #[test]
    fn a_request_shows_the_node_of_the_client_with_all_that_is_in_it() {
        let representative = representative();
        // `id`, and a field that nobody knows.
        let sent = Bytes::from_static(&[10, 2, b'c', b'1', 0xfa, 7, 1, b'x']);
        representative.arrive(sent.clone(), None, Stay::Stream).expect("room");
        representative.choose(Instant::now());
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
        let representative = representative();
        let numbers: Vec<u64> = (0..1000)
            .map(|number| representative.arrive(node(number), None, Stay::Stream).expect("room"))
            .collect();
        assert_eq!(representative.state.lock().candidates.len(), CANDIDATES);
        numbers.into_iter().for_each(|number| representative.leave(number));
        assert!(representative.state.lock().candidates.is_empty());
    }
}
