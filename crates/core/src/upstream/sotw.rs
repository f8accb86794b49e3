//! One SotW stream, presented as the delta stream that the [`Mux`](super::Mux) expects.
//!
//! Owns requests and responses on the stream by type: the union of all subscriptions, versions and
//! nonces (R-SotW-03, R-SotW-12), and a hash of each resource, so that only changes are passed on.
//! Knows neither clients nor the cache nor time. Its state lives as long as the stream.
//!
//! Invariants:
//! - A request holds the whole list of names of its type. The wildcard is the empty list, or `*`
//!   after names were listed.
//! - A name is absent by a full-state response only if the control plane had read the name before.
//!   Other types prove no absence (R-SotW-19).
//! - Memory is bounded by the subscription: unrequested names are not stored.

mod ask;
mod read_response;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use prost::Message as _;
use smallvec::SmallVec;

pub(super) use read_response::{Reading, decode};

use crate::proto::{DeltaDiscoveryRequest, Node};
use crate::resource::{Collection, Constraints, NameMap, TypeUrl};

#[derive(Debug, Default)]
pub(super) struct SotwStream {
    types: BTreeMap<TypeUrl, TypeState>,
    /// Node for the first request (R-Up-01).
    node: Option<Node>,
    /// Encoded requests that wait for room.
    outbox: VecDeque<Bytes>,
    /// Bytes of the longest of the last requests.
    request_bytes: usize,
}

#[derive(Debug, Default)]
struct TypeState {
    full_state: bool,
    /// Whether a request of the type was sent.
    asked: bool,
    wildcard: bool,
    names: NameMap<Listed>,
    /// Whether any name was ever listed: an empty list is then no wildcard (R-SotW-13).
    has_listed: bool,
    /// `version_info` of the last accepted response.
    version: String,
    /// Version in the last request, if that was an ACK with one.
    told_version: Option<String>,
    /// Nonce of the newest response.
    nonce: String,
    /// Number of responses without heartbeats.
    responses: u64,
    /// Whether the newest response has no ACK or NACK yet.
    owes_answer: bool,
    /// Accepted resources of this stream that are subscribed to.
    delivered: NameMap<Variants>,
}

/// Name in the list of a request.
#[derive(Clone, Copy, Debug)]
struct Listed {
    /// Number of the first response for which the control plane had surely read this name.
    ///
    /// A control plane that waits for each ACK has read it before it makes the next response. Any
    /// other request may cross a response. Example: responses 1 and 2 came, and a name is added. In
    /// the ACK of response 2 it is reflected in response 3; in a later request, in response 4.
    reflected_in: u64,
    /// Reported as absent.
    is_absent: bool,
}

/// Variants of one name.
type Variants = SmallVec<[Delivered; 1]>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Delivered {
    constraints: Option<Constraints>,
    hash: u128,
    /// Whether it is passed on again though unchanged: it has a TTL, or aliases of which another
    /// may be wanted by now, or was requested again.
    is_retold: bool,
}

impl SotwStream {
    /// Puts the requests for the next change of the mux into the outbox.
    pub(super) fn ask(&mut self, mut request: DeltaDiscoveryRequest) {
        self.node = request.node.take().or_else(|| self.node.take());
        let type_url = TypeUrl::from(request.type_url.as_str());
        let full_state = type_url.kind().full_state();
        let state =
            self.types.entry(type_url).or_insert_with(|| TypeState { full_state, ..TypeState::default() });
        self.request_bytes = 0;
        for mut request in state.ask(request) {
            request.node = self.node.take();
            let bytes = request.encode_to_vec();
            self.request_bytes = self.request_bytes.max(bytes.len());
            self.outbox.push_back(bytes.into());
        }
    }

    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.outbox.pop_front()
    }

    pub(super) fn has_next(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Bytes of the last request: each change of a subscription costs as much again.
    pub(super) const fn request_bytes(&self) -> usize {
        self.request_bytes
    }
}

impl TypeState {
    /// Whether a name is subscribed to, by itself, with its collection or with the wildcard.
    fn covers(&self, name: &str) -> bool {
        self.wildcard
            || self.names.contains_key(name)
            || Collection::covering(name).is_some_and(|covering| self.names.contains_key(covering.as_str()))
    }

    fn delivered(&self, name: &str, constraints: Option<&Constraints>) -> Option<&Delivered> {
        self.delivered.get(name)?.iter().find(|delivered| delivered.constraints.as_ref() == constraints)
    }
}
