//! One stream to an origin that speaks state of the world, as the delta stream that the [`Mux`](super::Mux) expects.
//!
//! Owns what was asked for and what came on the stream, by type: the union of all subscriptions, versions and nonces of
//! responses (R-SotW-03, R-SotW-12), and a hash of each resource that came, so that of a response only news go on. Knows neither
//! clients nor the cache nor time; its state begins and ends with the stream.
//!
//! Invariants:
//! - A request holds the whole list of the names of its type. The wildcard is the empty list; where names were listed before,
//!   it is `*`.
//! - A name counts as absent by a response of a full-state type only if the origin had read the name before it made the
//!   response. For other types nothing is absent because it is missing (R-SotW-19).
//! - What is kept of a response is bounded by what is subscribed to: on a stream of names, what nobody asked for passes by.

mod ask;
mod hear;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use prost::Message as _;
use smallvec::SmallVec;

pub(super) use hear::{Reading, decode};

use crate::proto::{DeltaDiscoveryRequest, Node};
use crate::resource::{Collection, Constraints, NameMap, TypeUrl};

/// State of one stream.
#[derive(Debug, Default)]
pub(super) struct SotwStream {
    types: BTreeMap<TypeUrl, TypeState>,
    /// To be sent with the first request (R-Up-01).
    node: Option<Node>,
    /// Encoded requests that wait for room.
    outbox: VecDeque<Bytes>,
    /// Bytes of the longest of the last requests.
    request_bytes: usize,
}

/// State of one type.
#[derive(Debug, Default)]
struct TypeState {
    full_state: bool,
    /// Whether a request of the type was sent.
    asked: bool,
    wildcard: bool,
    names: NameMap<Listed>,
    /// Whether any name was ever listed: from then on an empty list is no wildcard (R-SotW-13).
    has_listed: bool,
    /// `version_info` that was accepted last.
    version: String,
    /// Version in the last request, if that was an ACK with one.
    told_version: Option<String>,
    /// Nonce of the newest response.
    nonce: String,
    /// Number of responses but heartbeats.
    responses: u64,
    /// Whether the newest response has no ACK or NACK yet.
    owes_answer: bool,
    /// Resources that came on this stream and were accepted. Of names that are not subscribed to there are none.
    delivered: NameMap<Variants>,
}

/// Name in the list of a request.
#[derive(Clone, Copy, Debug)]
struct Listed {
    /// Number of the first response for which the origin had read this name.
    ///
    /// An origin that waits for the ACK of each response has read an ACK before it makes the next response. A request that is no
    /// ACK may cross a response, and only the one after that is sure to follow it. Example: responses 1 and 2 came, and a name is
    /// added. If that is said in the ACK of response 2, response 3 reflects it; if it is said later, response 4 does.
    reflected_in: u64,
    /// The subscriber knows that there is none.
    is_absent: bool,
}

/// Variants of one name.
type Variants = SmallVec<[Delivered; 1]>;

/// Resource that came.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Delivered {
    constraints: Option<Constraints>,
    hash: u128,
    /// Whether it would be told once more though it is unchanged: it has a TTL, which begins anew, or aliases, of which another
    /// one may be asked for by now; or it was asked for once more.
    is_retold: bool,
}

impl SotwStream {
    /// Takes in the next request of the mux: what the origin is to be told of it waits in the outbox.
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

    /// Next request.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.outbox.pop_front()
    }

    /// Whether a request waits.
    pub(super) fn has_next(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Bytes of the last request: each change of a subscription costs as much again.
    pub(super) const fn request_bytes(&self) -> usize {
        self.request_bytes
    }
}

impl TypeState {
    /// Whether what comes by this name is subscribed to, by itself, with its collection or with the wildcard.
    fn covers(&self, name: &str) -> bool {
        self.wildcard
            || self.names.contains_key(name)
            || Collection::covering(name).is_some_and(|covering| self.names.contains_key(covering.as_str()))
    }

    fn delivered(&self, name: &str, constraints: Option<&Constraints>) -> Option<&Delivered> {
        self.delivered.get(name)?.iter().find(|delivered| delivered.constraints.as_ref() == constraints)
    }
}
