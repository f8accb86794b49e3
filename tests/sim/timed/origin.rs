//! An origin: streams, each with what the control plane keeps of it.
//!
//! Owns the subscriptions of each stream, and the encoding of responses. The rules are those of its [`Flavor`]. Knows nothing of
//! links; it is told what arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use prost::Message as _;

use super::flavor::{Flavor, Subscription};
use super::truth::{TYPES, Truth, at_of, encode};
use deltafan_test_support::wire::type_url;

/// A response on its way.
pub(crate) struct Said {
    pub(crate) stream: u32,
    pub(crate) bytes: Bytes,
    pub(crate) text: String,
}

#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) flavor: Flavor,
    pub(crate) ttl: Option<Duration>,
    streams: BTreeMap<u32, BTreeMap<usize, Subscription>>,
    nonce: u64,
    /// Names that it forgot it had sent before it could say that they are gone: istiod, asked for one more name of a type of
    /// which it sends everything, takes what its answer holds for all that it ever sent.
    pub(crate) forgotten: BTreeSet<(usize, String)>,
}

impl Origin {
    pub(crate) const fn new(flavor: Flavor, ttl: Option<Duration>) -> Self {
        Self { flavor, ttl, streams: BTreeMap::new(), nonce: 0, forgotten: BTreeSet::new() }
    }

    /// It starts anew: nobody is known.
    pub(crate) fn restart(&mut self) {
        self.streams.clear();
    }

    pub(crate) fn gone(&mut self, stream: u32) {
        self.streams.remove(&stream);
    }

    pub(crate) fn hear(&mut self, stream: u32, request: &DeltaDiscoveryRequest, truth: &Truth) -> Vec<Said> {
        let at = at_of(&request.type_url);
        assert!(request.error_detail.is_none(), "a NACK: {:?}", request.error_detail);
        let types = self.streams.entry(stream).or_default();
        let first = !types.contains_key(&at);
        let subscription = types.entry(at).or_default();
        let unsaid = subscription.returned.keys().filter(|name| truth.get(at, name).is_none());
        let unsaid: Vec<String> = unsaid.filter(|_| self.flavor == Flavor::Istiod).cloned().collect();
        let answers = subscription.hear(self.flavor, at, first, request);
        let is_forgotten = |name: &String| !subscription.returned.contains_key(name);
        self.forgotten.extend(unsaid.into_iter().filter(is_forgotten).map(|name| (at, name)));
        if answers { self.say(stream, at, truth) } else { Vec::new() }
    }

    /// Something of a type changed.
    pub(crate) fn changed(&mut self, at: usize, truth: &Truth) -> Vec<Said> {
        let streams: Vec<u32> = self.streams.keys().copied().collect();
        streams.into_iter().flat_map(|stream| self.say(stream, at, truth)).collect()
    }

    fn say(&mut self, stream: u32, at: usize, truth: &Truth) -> Vec<Said> {
        let nonce = format!("n{}", self.nonce);
        let subscription = self.streams.get_mut(&stream).and_then(|types| types.get_mut(&at));
        let Some(subscription) = subscription.filter(|subscription| !subscription.is_waiting()) else {
            return Vec::new();
        };
        let Some(answer) = subscription.answer(self.flavor, at, truth, &nonce) else { return Vec::new() };
        self.nonce += 1;
        let sent = answer.resources.iter();
        let sent = sent.filter_map(|name| Some(encode(at, name, truth.get(at, name)?, self.ttl, false)));
        let text = format!("#{nonce} {} +{:?} -{:?}", TYPES[at], answer.resources, answer.removed);
        let response = DeltaDiscoveryResponse {
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resources: sent.collect(),
            removed_resources: answer.removed.clone(),
            nonce,
            ..DeltaDiscoveryResponse::default()
        };
        vec![Said { stream, bytes: response.encode_to_vec().into(), text }]
    }

    /// Says of everything that it is still there (R-TTL-02).
    pub(crate) fn heartbeat(&mut self, truth: &Truth) -> Vec<Said> {
        let mut said = Vec::new();
        for (stream, types) in &self.streams {
            for (at, subscription) in types {
                let is_current = |name: &&String| truth.get(*at, name).is_some();
                let names: Vec<&String> = subscription.returned.keys().filter(is_current).collect();
                if names.is_empty() {
                    continue;
                }
                let sent = names.iter().filter_map(|name| {
                    let body = truth.get(*at, name)?;
                    // Only what the other end was sent in this version can be renewed.
                    let is_held =
                        subscription.returned.get(*name).is_some_and(|held| **held == *body.version);
                    is_held.then(|| encode(*at, name, body, self.ttl, true))
                });
                let nonce = format!("h{}", self.nonce);
                self.nonce += 1;
                let text = format!("#{nonce} {} heartbeat {names:?}", TYPES[*at]);
                let response = DeltaDiscoveryResponse {
                    type_url: type_url(TYPES[*at]).as_str().to_owned(),
                    resources: sent.collect(),
                    nonce,
                    ..DeltaDiscoveryResponse::default()
                };
                said.push(Said { stream: *stream, bytes: response.encode_to_vec().into(), text });
            }
        }
        said
    }
}
