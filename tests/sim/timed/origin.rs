//! An origin: streams, each with what the control plane keeps of it.
//!
//! Owns the subscriptions of each stream, and the encoding of responses. The rules are those of its [`Flavor`]. Knows nothing of
//! links; it is told what arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse};
use prost::Message as _;

use super::flavor::{Flavor, Subscription};
use super::relay::Request;
use super::sotw::SotwSubscription;
use super::truth::{TYPES, Truth, at_of, encode};
use crate::common::any;
use deltafan_test_support::origin::wrapped;
use deltafan_test_support::wire::type_url;

/// End of a name of several spellings in its normal form, and as the origin spells it.
const SPELLINGS: [&str; 2] = ["?a=1&b=2", "?b=2&a=1"];
/// Marks a name in the normal form, which is another one for an origin that spells it otherwise.
const OTHER: &str = " in another spelling";

/// A name as the origin says it.
fn spelled(name: &str) -> String {
    let other = name.strip_suffix(OTHER).map(str::to_owned);
    other.unwrap_or_else(|| name.replace(SPELLINGS[0], SPELLINGS[1]))
}

/// A request by an origin that compares names byte by byte (O9).
fn as_compared(mut request: DeltaDiscoveryRequest) -> DeltaDiscoveryRequest {
    let read = |name: &mut String| {
        *name = match name.ends_with(SPELLINGS[0]) {
            true => format!("{name}{OTHER}"),
            false => name.replace(SPELLINGS[1], SPELLINGS[0]),
        };
    };
    request.resource_names_subscribe.iter_mut().for_each(read);
    request.resource_names_unsubscribe.iter_mut().for_each(read);
    let versions = request.initial_resource_versions.into_iter();
    request.initial_resource_versions = versions
        .map(|(mut name, version)| {
            read(&mut name);
            (name, version)
        })
        .collect();
    request
}

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
    sotw: BTreeMap<u32, BTreeMap<usize, SotwSubscription>>,
    nonce: u64,
    /// Names that it forgot it had sent before it could say that they are gone: istiod, asked for one more name of a type of
    /// which it sends everything, takes what its answer holds for all that it ever sent.
    pub(crate) forgotten: BTreeSet<(usize, String)>,
}

impl Origin {
    pub(crate) const fn new(flavor: Flavor, ttl: Option<Duration>) -> Self {
        Self {
            flavor,
            ttl,
            streams: BTreeMap::new(),
            sotw: BTreeMap::new(),
            nonce: 0,
            forgotten: BTreeSet::new(),
        }
    }

    /// It starts anew: nobody is known.
    pub(crate) fn restart(&mut self) {
        self.streams.clear();
        self.sotw.clear();
    }

    /// Names of a type in the lists that it was asked for by state of the world.
    pub(crate) fn listed(&self, at: usize) -> impl Iterator<Item = &String> {
        self.sotw.values().filter_map(move |types| types.get(&at)).flat_map(SotwSubscription::names)
    }

    /// Streams on which anything was asked for.
    pub(crate) fn streams(&self) -> Vec<u32> {
        self.streams.keys().chain(self.sotw.keys()).copied().collect()
    }

    pub(crate) fn gone(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.sotw.remove(&stream);
    }

    pub(crate) fn hear(&mut self, stream: u32, request: &Request, truth: &Truth) -> Vec<Said> {
        match request {
            Request::Delta(request) => self.hear_delta(stream, request, truth),
            Request::Sotw(request) => self.hear_sotw(stream, request, truth),
        }
    }

    /// Answers a census: everything that there is of a type, by state of the world. `None` if it speaks delta only.
    pub(crate) fn census(&mut self, stream: u32, request: &Request, truth: &Truth) -> Option<Said> {
        let at = at_of(request.type_url());
        if !self.flavor.answers_census() {
            return None;
        }
        let names: Vec<String> = truth.present(at).map(|(name, _)| name.clone()).collect();
        let nonce = format!("n{}", self.nonce);
        self.nonce += 1;
        Some(self.state(stream, at, &names, truth, (nonce.clone(), nonce), false))
    }

    fn hear_sotw(&mut self, stream: u32, request: &DiscoveryRequest, truth: &Truth) -> Vec<Said> {
        let at = at_of(&request.type_url);
        assert!(request.error_detail.is_none(), "a NACK: {:?}", request.error_detail);
        let Flavor::Sotw(habits) = self.flavor else { unreachable!("a delta origin is asked for a state") };
        let subscription = self.sotw.entry(stream).or_default().entry(at).or_default();
        if subscription.hear(habits, request) { self.say_state(stream, at, truth) } else { Vec::new() }
    }

    fn say_state(&mut self, stream: u32, at: usize, truth: &Truth) -> Vec<Said> {
        let Flavor::Sotw(habits) = self.flavor else { return Vec::new() };
        let nonce = format!("n{}", self.nonce);
        let subscription = self.sotw.get_mut(&stream).and_then(|types| types.get_mut(&at));
        let Some(subscription) = subscription.filter(|subscription| !subscription.is_waiting()) else {
            return Vec::new();
        };
        let Some(names) = subscription.answer(habits, at, truth, &nonce) else { return Vec::new() };
        self.nonce += 1;
        let version = subscription.version.clone();
        vec![self.state(stream, at, &names, truth, (nonce, version), false)]
    }

    fn state(
        &self,
        stream: u32,
        at: usize,
        names: &[String],
        truth: &Truth,
        (nonce, version_info): (String, String),
        heartbeat: bool,
    ) -> Said {
        let what = if heartbeat { "heartbeat" } else { "state" };
        let text = format!("#{nonce} {} {what} {names:?}", TYPES[at]);
        let element = |name: &String| {
            let body = truth.get(at, name)?;
            Some(match self.ttl {
                None => any(TYPES[at], &spelled(name), &body.text).freeze(),
                Some(_) => wrapped(&encode(at, &spelled(name), body, self.ttl, heartbeat)),
            })
        };
        let response = DiscoveryResponse {
            version_info,
            resources: names.iter().filter_map(element).collect(),
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            nonce,
            ..DiscoveryResponse::default()
        };
        Said { stream, bytes: response.encode_to_vec().into(), text }
    }

    fn hear_delta(&mut self, stream: u32, request: &DeltaDiscoveryRequest, truth: &Truth) -> Vec<Said> {
        let at = at_of(&request.type_url);
        assert!(request.error_detail.is_none(), "a NACK: {:?}", request.error_detail);
        let request = &as_compared(request.clone());
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
        let mut said: Vec<Said> =
            streams.into_iter().flat_map(|stream| self.say(stream, at, truth)).collect();
        let streams: Vec<u32> = self.sotw.keys().copied().collect();
        said.extend(streams.into_iter().flat_map(|stream| self.say_state(stream, at, truth)));
        said
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
        let sent =
            sent.filter_map(|name| Some(encode(at, &spelled(name), truth.get(at, name)?, self.ttl, false)));
        let text = format!("#{nonce} {} +{:?} -{:?}", TYPES[at], answer.resources, answer.removed);
        let response = DeltaDiscoveryResponse {
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resources: sent.collect(),
            removed_resources: answer.removed.iter().map(|name| spelled(name)).collect(),
            nonce,
            ..DeltaDiscoveryResponse::default()
        };
        vec![Said { stream, bytes: response.encode_to_vec().into(), text }]
    }

    /// Says of everything that it is still there (R-TTL-02).
    pub(crate) fn heartbeat(&mut self, truth: &Truth) -> Vec<Said> {
        let mut said = self.renew_states(truth);
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
                    is_held.then(|| encode(*at, &spelled(name), body, self.ttl, true))
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

    /// Says so of states of the world, at the version that was sent last.
    fn renew_states(&mut self, truth: &Truth) -> Vec<Said> {
        let mut said = Vec::new();
        for (stream, types) in &self.sotw {
            for (at, subscription) in types {
                let is_current = |(name, text): &(&String, &String)| {
                    truth.get(*at, name).is_some_and(|body| body.text == **text)
                };
                let names: Vec<String> =
                    subscription.sent.iter().filter(is_current).map(|(name, _)| name.clone()).collect();
                if names.is_empty() || subscription.version.is_empty() || !subscription.may_beat() {
                    continue;
                }
                let nonce = format!("h{}", self.nonce + said.len() as u64);
                let version = subscription.version.clone();
                said.push((
                    *at,
                    self.state(*stream, *at, &names, truth, (nonce.clone(), version), true),
                    nonce,
                ));
            }
        }
        self.nonce += said.len() as u64;
        let subscriptions = &mut self.sotw;
        let note = |(at, said, nonce): (usize, Said, String)| {
            if let Some(subscription) =
                subscriptions.get_mut(&said.stream).and_then(|types| types.get_mut(&at))
            {
                subscription.beat(nonce);
            }
            said
        };
        said.into_iter().map(note).collect()
    }
}
