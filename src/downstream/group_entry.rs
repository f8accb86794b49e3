//! Entry of a client into its node group, which its first request decides.
//!
//! Owns the order of the checks: a peer that may not claim its node makes no group. Knows nothing of a
//! group's contents.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::connection::Connection;
use super::server_state::ServerState;
use crate::cache::Protocol;
use crate::groups::{GroupSeat, Newcomer};
use crate::identity::Peer;
use crate::proto::Node;
use crate::resource::wire::{self, Value};
use crate::subscription::{Session, SessionConfig, SessionError, observes};
use crate::upstream::Stay;

/// Takes a place in the group of a client. `stay` distinguishes a stream from one answer; `raw` is the node
/// as sent.
pub(super) fn enter(
    server: &ServerState,
    rules: &SessionConfig,
    peer: &Peer,
    connection: &Connection,
    (node, stay): (&Node, Stay),
    raw: impl FnOnce() -> Bytes,
) -> Result<GroupSeat, SessionError> {
    if server.groups.is_trivial() {
        return Ok(server.groups.own());
    }
    rules.check_node(node)?;
    let stay = if observes(node) { Stay::Visit } else { stay };
    let (certificate, tenant) = (peer.certificate.as_deref(), connection.tenant());
    let newcomer = Newcomer { node, certificate, tenant, stay };
    server.groups.enter(newcomer, raw)
}

/// Node of an encoded request, as sent. Parts of a repeated field are joined, as a decoder does.
pub(super) fn raw_node(protocol: Protocol, message: &[u8]) -> Bytes {
    let mut node = BytesMut::new();
    for field in wire::fields(message).map_while(Result::ok) {
        if let Value::Bytes(bytes) = field.value
            && field.number == u32::from(protocol.node_field())
        {
            // Copied: a few bytes could keep a whole request alive.
            node.extend_from_slice(bytes);
        }
    }
    node.freeze()
}

/// Node ID that an encoded request claims; empty without one.
pub(super) fn claimed_node_id(protocol: Protocol, message: &[u8]) -> String {
    Node::decode(raw_node(protocol, message)).unwrap_or_default().id
}

/// Place of a stream in its group.
#[derive(Debug)]
pub(super) struct StreamSeat {
    seat: GroupSeat,
    /// Whether a change of the client's node was logged.
    is_change_said: bool,
}

impl StreamSeat {
    /// Place in the own group, for a stream without a request.
    pub(super) fn new(server: &ServerState) -> Self {
        Self { seat: server.groups.own(), is_change_said: false }
    }

    pub(super) fn seat(&self) -> &GroupSeat {
        &self.seat
    }

    /// Enters the group of the first node. Later nodes are ignored (R-EP-05).
    pub(super) fn meet(
        &mut self,
        session: &mut Session,
        (server, peer, connection): (&ServerState, &Peer, &Connection),
        node: Option<&Node>,
        message: &[u8],
    ) -> Result<(), SessionError> {
        let Some(node) = node.filter(|_| !server.groups.is_trivial()) else { return Ok(()) };
        let Some(client) = session.client() else {
            let raw = || raw_node(session.protocol(), message);
            self.seat = enter(server, session.rules(), peer, connection, (node, Stay::Stream), raw)?;
            session.enter(Arc::clone(self.seat.group().cache()));
            return Ok(());
        };
        // Compared only if it is logged: each request may carry a node.
        if !self.is_change_said
            && tracing::enabled!(tracing::Level::DEBUG)
            && self.seat.differs(&server.groups, node, peer.certificate.as_deref())
        {
            self.is_change_said = true;
            let (was, is) = (client.node_id.as_str(), node.id.as_str());
            tracing::debug!(%peer, was, is, "a client changed its node; its stream stays in its node group");
        }
        Ok(())
    }
}
