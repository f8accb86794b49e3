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

mod read_response;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use prost::Message as _;
use smallvec::SmallVec;

pub(super) use read_response::{Reading, decode};

use crate::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};
use crate::resource::{Collection, Constraints, Name, NameMap, TypeUrl, take_out};

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

impl TypeState {
    /// Returns the requests for this change: none or one, one more for a name that is requested
    /// again, and one more for an overtaken NACK. A name is requested again by leaving the list and
    /// coming back (R-SotW-17).
    pub(super) fn ask(&mut self, request: DeltaDiscoveryRequest) -> Vec<DiscoveryRequest> {
        // Without nonces (Envoy answers all the same) the next request is the answer.
        let has_no_nonce = self.owes_answer && self.asked && self.nonce.is_empty();
        let answers = has_no_nonce || !request.response_nonce.is_empty();
        let is_newest = answers && request.response_nonce == self.nonce;
        let refuses = request.error_detail.is_some();
        let is_report = refuses && is_newest && !self.owes_answer;
        let next = self.responses + if is_newest && self.owes_answer { 1 } else { 2 };
        let reflected_in = if self.asked { next } else { 1 };
        self.owes_answer &= !is_newest;

        let was_wildcard = self.wildcard;
        let starts_wildcard = !self.asked
            && !answers
            && request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty();
        self.wildcard |= starts_wildcard;
        let (mut has_left, mut has_joined) = (false, false);
        // A wildcard stays, as an empty list cannot end it. Its resources are ignored.
        for name in request.resource_names_unsubscribe {
            let name = Name::from(name.as_str());
            has_left |= take_out(&mut self.names, &name).is_some();
            take_out(&mut self.delivered, &name);
        }
        let mut again = BTreeSet::new();
        for name in request.resource_names_subscribe {
            if name == Name::WILDCARD {
                self.wildcard = true;
                continue;
            }
            let name = Name::from(name.as_str());
            // Any further copy is an answer. A control plane that sees no change of the list
            // believes that it has sent it.
            for delivered in self.delivered.get_mut(&name).into_iter().flatten() {
                delivered.is_retold = true;
            }
            if let Some(listed) = self.names.get_mut(&name) {
                listed.is_absent = false;
                again.insert(name);
            } else {
                has_joined = true;
                self.names.insert(name, Listed { reflected_in, is_absent: false });
            }
        }
        self.has_listed |= !self.names.is_empty();
        let is_changed = has_left || has_joined || was_wildcard != self.wildcard;
        // A full-state response that crosses a list without the name would seem to remove it.
        let repeats = !again.is_empty() && !self.full_state;
        let accepts = is_newest && (!refuses || is_report);
        let may_be_unread = accepts && self.names.values().any(|listed| listed.reflected_in > self.responses);
        // Without a nonce a repeated ACK would be a request, and never end.
        let repeats_ack = has_no_nonce && self.told_version.as_ref() == Some(&self.version);
        if !(is_changed || repeats || refuses || (is_newest && !repeats_ack)) {
            // An ACK that a newer response has overtaken is not sent.
            return Vec::new();
        }
        self.told_version =
            (accepts && !(has_joined || repeats || may_be_unread)).then(|| self.version.clone());
        self.asked = true;
        let build = |resource_names: Vec<String>, adds: bool| DiscoveryRequest {
            version_info: if adds { String::new() } else { self.version.clone() },
            type_url: request.type_url.clone(),
            response_nonce: self.nonce.clone(),
            resource_names,
            ..DiscoveryRequest::default()
        };
        let mut requests = Vec::with_capacity(2);
        let is_overtaken = refuses && !is_newest;
        if is_overtaken {
            let response_nonce = request.response_nonce;
            requests.push(DiscoveryRequest { response_nonce, ..build(self.list(|_| true), has_joined) });
        }
        if repeats {
            requests.push(build(self.list(|name| !again.contains(name)), has_joined || may_be_unread));
        }
        if is_changed || repeats || !is_overtaken {
            requests.push(build(self.list(|_| true), has_joined || repeats || may_be_unread));
        }
        requests[0].error_detail = request.error_detail;
        requests
    }

    fn list(&self, is_listed: impl Fn(&Name) -> bool) -> Vec<String> {
        let wildcard = (self.wildcard && self.has_listed).then(|| Name::WILDCARD.to_owned());
        let names = self.names.keys().filter(|name| is_listed(name)).map(|name| name.as_str().to_owned());
        wildcard.into_iter().chain(names).collect()
    }
}
