//! The origin: its variants, the subscriptions on each stream, and its responses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use bytes::BytesMut;
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, ResourceName};
use deltafan::resource::Name;
use rand::Rng;
use rand::rngs::StdRng;

use super::connection::arrival;
use super::rule::{ClientParameters, LAYOUTS, encode};
use crate::common::{Pipe, any};
use deltafan_test_support::wire::{put, type_url};

pub(crate) const TYPES: [&str; 3] = ["cds", "eds", "lds"];
/// Names that begin with `o` exist only for clients that ask for them.
pub(crate) const NAMES: [&str; 4] = ["eds0", "m1", "m2", "o1"];

pub(crate) fn at_of(url: &str) -> usize {
    TYPES.iter().position(|short| type_url(short).as_str() == url).expect("a type of these tests")
}

pub(crate) fn is_member(name: &str) -> bool {
    !name.starts_with('o')
}

/// The variants of a name with their versions.
type Variants = BTreeMap<&'static str, u64>;
/// A name or `*`, and the parameters.
pub(crate) type Asked = (String, ClientParameters);

/// Subscription to a type on a stream.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    pub(crate) asked: BTreeSet<Asked>,
    /// When each of these was read.
    read: BTreeMap<Asked, Instant>,
    /// Versions that were sent, by name and rule.
    told: BTreeMap<(String, &'static str), u64>,
    /// Variants that were sent without having been asked for.
    volunteered: BTreeSet<(String, &'static str)>,
}

/// One stream.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) topics: BTreeMap<usize, Topic>,
    nonces: BTreeSet<String>,
    pub(crate) to_origin: Pipe<DeltaDiscoveryRequest>,
    pub(crate) to_relay: Pipe<DeltaDiscoveryResponse>,
}

/// How it treats locators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As it should.
    Reads,
    /// It does not read them, and has no variants.
    Ignores,
}

#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) truth: [BTreeMap<&'static str, Variants>; TYPES.len()],
    /// Since when there has always been a variant for these parameters.
    since: HashMap<(usize, &'static str, ClientParameters), (u64, Instant)>,
    pub(crate) clock: u64,
    nonce: u64,
    pub(crate) streams: [Option<Peer>; 2],
    /// It publishes several variants for the same parameters.
    pub(crate) ambiguous: bool,
    /// Variants that come together have the same version.
    pub(crate) shares_versions: bool,
    pub(crate) manner: Manner,
    pub(crate) trace: bool,
}

/// Part of a response about one name.
#[derive(Debug, Default)]
struct Word {
    sent: BTreeMap<&'static str, u64>,
    gone: BTreeSet<&'static str>,
    /// There is no variant for some parameters that were asked for.
    absent: bool,
}

impl Origin {
    pub(crate) fn new(rng: &mut StdRng, trace: bool) -> Self {
        Self {
            truth: Default::default(),
            since: HashMap::new(),
            clock: 0,
            nonce: 0,
            streams: [None, None],
            ambiguous: rng.random_bool(0.2),
            shares_versions: rng.random_bool(0.3),
            manner: if rng.random_range(0..4) < 3 { Manner::Reads } else { Manner::Ignores },
            trace,
        }
    }

    /// All variants of a name that are for these parameters, as texts.
    pub(crate) fn texts(&self, at: usize, name: &str, params: ClientParameters) -> Vec<String> {
        self.fitting(at, name, params).map(|(rule, version)| format!("{version}/{rule}")).collect()
    }

    fn fitting(
        &self,
        at: usize,
        name: &str,
        params: ClientParameters,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let variants = self.truth[at].get(name).into_iter().flatten();
        variants.filter(move |(rule, _)| params.fits(rule)).map(|(rule, version)| (*rule, *version))
    }

    /// Since when there has always been something of this name for these parameters.
    pub(crate) fn since(&self, at: usize, name: &str, params: ClientParameters) -> Option<u64> {
        let name = NAMES.into_iter().find(|known| *known == name)?;
        self.since.get(&(at, name, params)).map(|(clock, _)| *clock)
    }

    /// That moment.
    pub(crate) fn there_since(
        &self,
        at: usize,
        name: &'static str,
        params: ClientParameters,
    ) -> Option<Instant> {
        self.since.get(&(at, name, params)).map(|(_, moment)| *moment)
    }

    /// Since when it has known that a name, or `*`, is asked for with these parameters.
    pub(crate) fn asked_since(&self, at: usize, asked: &Asked) -> Option<Instant> {
        let topics = self.streams.iter().flatten().filter_map(|peer| peer.topics.get(&at));
        topics.filter_map(|topic| topic.read.get(asked).copied()).min()
    }

    fn note_since(&mut self, at: usize, name: &'static str, now: Instant) {
        for params in ClientParameters::all() {
            if self.fitting(at, name, params).next().is_none() {
                self.since.remove(&(at, name, params));
            } else {
                self.since.entry((at, name, params)).or_insert((self.clock, now));
            }
        }
    }

    /// Some names change.
    pub(crate) fn change(&mut self, rng: &mut StdRng, now: Instant) {
        let at = rng.random_range(0..TYPES.len());
        for _ in 0..[1, 1, 2][rng.random_range(0..3)] {
            let name = NAMES[rng.random_range(0..NAMES.len())];
            self.clock += 1;
            let old = self.truth[at].remove(name).unwrap_or_default();
            let keeps = rng.random_bool(0.4);
            let same = LAYOUTS.into_iter().find(|layout| old.keys().all(|rule| layout.contains(rule)));
            let layout = match same.filter(|_| keeps && !old.is_empty()) {
                Some(layout) => layout.to_vec(),
                None if self.ambiguous && rng.random_bool(0.3) => {
                    (0..3).map(|_| LAYOUTS[rng.random_range(0..LAYOUTS.len())][0]).collect()
                }
                None => LAYOUTS[rng.random_range(0..LAYOUTS.len())].to_vec(),
            };
            let layout = if self.manner == Manner::Ignores { LAYOUTS[0].to_vec() } else { layout };
            let chance = [0.0, 0.6, 1.0, 1.0, 1.0][rng.random_range(0..5)];
            let mut new = Variants::new();
            for rule in layout {
                if !rng.random_bool(chance) {
                    continue;
                }
                match old.get(rule).filter(|_| rng.random_bool(0.5)) {
                    Some(version) => drop(new.insert(rule, *version)),
                    None => {
                        self.clock += u64::from(!self.shares_versions);
                        new.insert(rule, self.clock);
                    }
                }
            }
            if self.trace {
                eprintln!("  origin: {} {name} is {new:?}", TYPES[at]);
            }
            self.truth[at].insert(name, new);
            self.note_since(at, name, now);
        }
        for stream in 0..2 {
            self.tell(rng, stream, at, now);
        }
    }

    fn visible(&self, at: usize, asked: &BTreeSet<Asked>) -> BTreeMap<(String, &'static str), u64> {
        let mut visible = BTreeMap::new();
        for (asked, params) in asked.iter().filter(|(_, params)| reads(self.manner, *params)) {
            for name in NAMES.into_iter().filter(|name| covers(asked, name)) {
                visible.extend(
                    self.fitting(at, name, *params).map(|(rule, version)| ((name.to_owned(), rule), version)),
                );
            }
        }
        visible
    }

    /// Says on a stream what it has not said of what is seen there, all in one response (R-DP-13).
    fn tell(&mut self, rng: &mut StdRng, stream: usize, at: usize, now: Instant) {
        let Some(topic) = self.streams[stream].as_ref().and_then(|peer| peer.topics.get(&at)) else {
            return;
        };
        let visible = self.visible(at, &topic.asked);
        let mut words: BTreeMap<String, Word> = BTreeMap::new();
        for ((name, rule), version) in &visible {
            if topic.told.get(&(name.clone(), *rule)) != Some(version) {
                words.entry(name.clone()).or_default().sent.insert(rule, *version);
            }
        }
        for (name, rule) in topic.told.keys().chain(&topic.volunteered) {
            if self.truth[at].get(name.as_str()).is_none_or(|variants| !variants.contains_key(rule)) {
                words.entry(name.clone()).or_default().gone.insert(rule);
            }
        }
        let topic = self.streams[stream].as_mut().unwrap().topics.get_mut(&at).unwrap();
        topic.told = visible;
        for (name, word) in &words {
            topic.volunteered.retain(|(other, rule)| other != name || !word.gone.contains(rule));
        }
        if !words.is_empty() {
            self.say(rng, stream, at, words.into_iter().collect(), false, now);
        }
    }

    /// Says these words; `ends` tells whether they are the end of the answer to a first request.
    fn say(
        &mut self,
        rng: &mut StdRng,
        stream: usize,
        at: usize,
        words: Vec<(String, Word)>,
        ends: bool,
        now: Instant,
    ) {
        self.nonce += 1;
        let type_url = type_url(TYPES[at]);
        let mut response = DeltaDiscoveryResponse {
            type_url: type_url.as_str().to_owned(),
            nonce: self.nonce.to_string(),
            ..DeltaDiscoveryResponse::default()
        };
        for (name, word) in words {
            for (rule, version) in &word.sent {
                let by_name = self.manner == Manner::Ignores || rng.random_bool(0.5);
                response.resources.push(resource(by_name, at, &name, rule, *version).into());
            }
            let plainly = self.manner == Manner::Ignores || rng.random_bool(0.5);
            for rule in word.gone.iter().filter(|rule| !rule.is_empty() || !plainly) {
                response.removed_resource_names.push(ResourceName {
                    name: name.clone(),
                    dynamic_parameter_constraints: encode(rule).into(),
                });
            }
            let none_gone = word.gone.contains("") && plainly;
            if none_gone || (word.absent && !word.gone.contains("")) {
                response.removed_resources.push(name);
            }
        }
        response.removed_resources.extend(ends.then(|| Name::END_MARK.to_owned()));
        if self.trace {
            let sent: Vec<String> =
                response.resources.iter().map(|r| super::client::text_of(r, at)).collect();
            eprintln!(
                "  origin: stream {stream} {} #{} {sent:?} gone {:?} {:?}",
                TYPES[at],
                self.nonce,
                response.removed_resources,
                response.removed_resource_names.iter().map(|gone| &gone.name).collect::<Vec<_>>()
            );
        }
        let peer = self.streams[stream].as_mut().unwrap();
        peer.nonces.insert(response.nonce.clone());
        peer.to_relay.send(response, arrival(rng, now));
    }

    /// Says something that is no news, or that nobody asked for.
    pub(crate) fn chatter(&mut self, rng: &mut StdRng, now: Instant) {
        let (stream, at) = (rng.random_range(0..2), rng.random_range(0..TYPES.len()));
        let name = NAMES[rng.random_range(0..NAMES.len())];
        let Some(topic) = self.streams[stream].as_mut().and_then(|peer| peer.topics.get_mut(&at)) else {
            return;
        };
        let variants: Vec<_> = self.truth[at].get(name).into_iter().flatten().collect();
        // A resource that comes for the wildcard is a member.
        // Where nothing is asked for any more, it may cross the question.
        let has_star = topic.asked.is_empty() || topic.asked.iter().any(|(name, _)| name == "*");
        // One that reads none of the wildcards that it was asked for answers nothing: a part of an answer is no chatter.
        let is_deaf = |asked: &Asked| asked.0 == "*" && !reads(self.manner, asked.1);
        let is_deaf = !topic.asked.is_empty() && topic.asked.iter().all(is_deaf);
        if variants.is_empty() || is_deaf || (has_star && !is_member(name)) {
            return;
        }
        let (rule, version) = variants[rng.random_range(0..variants.len())];
        if !topic.told.contains_key(&(name.to_owned(), *rule)) {
            topic.volunteered.insert((name.to_owned(), rule));
        }
        let word = Word { sent: [(*rule, *version)].into(), ..Word::default() };
        self.say(rng, stream, at, vec![(name.to_owned(), word)], false, now);
    }
}

impl Origin {
    /// Reads a request and answers it, perhaps in parts; all of one name in one of them.
    pub(crate) fn read(
        &mut self,
        rng: &mut StdRng,
        stream: usize,
        request: &DeltaDiscoveryRequest,
        now: Instant,
    ) {
        let at = at_of(&request.type_url);
        let peer = self.streams[stream].as_mut().unwrap();
        assert_eq!(request.error_detail, None, "a NACK");
        let is_ack = !request.response_nonce.is_empty();
        assert!(!is_ack || peer.nonces.remove(&request.response_nonce), "an ACK of nothing");
        let plain = |name: &String| (name.clone(), ClientParameters::default());
        let is_name = |name: &&String| *name != Name::END_MARK;
        let ends = request.initial_resource_versions.contains_key(Name::END_MARK);
        let mut joined: Vec<Asked> =
            request.resource_names_subscribe.iter().filter(is_name).map(plain).collect();
        let located = request.resource_locators_subscribe.iter();
        joined.extend(
            located
                .map(|locator| (locator.name.clone(), ClientParameters::read(&locator.dynamic_parameters))),
        );
        let mut left: Vec<Asked> =
            request.resource_names_unsubscribe.iter().filter(is_name).map(plain).collect();
        let located = request.resource_locators_unsubscribe.iter();
        left.extend(
            located
                .map(|locator| (locator.name.clone(), ClientParameters::read(&locator.dynamic_parameters))),
        );
        if self.trace {
            eprintln!(
                "  relay: stream {stream} {} +{joined:?} -{left:?} {:?}",
                TYPES[at], request.initial_resource_versions
            );
        }
        if !peer.topics.contains_key(&at) {
            assert!(!is_ack && left.is_empty(), "nothing was asked for before");
            if joined.is_empty() {
                joined.push(("*".to_owned(), ClientParameters::default()));
            }
        } else {
            assert!(request.initial_resource_versions.is_empty());
        }
        let topic = peer.topics.entry(at).or_default();
        for asked in &left {
            assert!(topic.asked.remove(asked), "{asked:?} was not subscribed to");
            topic.read.remove(asked);
        }
        topic.asked.extend(joined.iter().cloned());
        for asked in &joined {
            topic.read.entry(asked.clone()).or_insert(now);
        }
        let stars = topic.asked.iter().filter(|(name, _)| name == "*").count();
        assert!(stars == 0 || stars == topic.asked.len(), "wildcard and names on one stream");
        let mut words: BTreeMap<String, Word> = BTreeMap::new();
        let versions = &request.initial_resource_versions;
        for (asked, params) in joined.iter().filter(|(_, params)| reads(self.manner, *params)) {
            for name in NAMES.into_iter().filter(|name| covers(asked, name)) {
                let fitting: Variants = self.fitting(at, name, *params).collect();
                if fitting.is_empty() && asked == "*" {
                    continue;
                }
                let word = words.entry(name.to_owned()).or_default();
                word.absent |= fitting.is_empty();
                word.sent.extend(fitting);
            }
        }
        for (name, version) in versions.iter().filter(|(name, _)| is_name(name)) {
            let word = words.entry(name.clone()).or_default();
            match self.truth[at].get(name.as_str()).and_then(|variants| variants.get("")) {
                Some(current) if current.to_string() == *version => drop(word.sent.remove("")),
                Some(_) => {}
                None => word.absent = true,
            }
        }
        words.retain(|_, word| !word.sent.is_empty() || word.absent);
        let asked = self.streams[stream].as_ref().unwrap().topics[&at].asked.clone();
        let visible = self.visible(at, &asked);
        let topic = self.streams[stream].as_mut().unwrap().topics.get_mut(&at).unwrap();
        topic.told = visible;
        let has_star = joined.iter().any(|(name, params)| name == "*" && reads(self.manner, *params));
        let must_answer = has_star && words.is_empty();
        let mut part = Vec::new();
        for word in words {
            part.push(word);
            if rng.random_bool(0.2) {
                self.say(rng, stream, at, std::mem::take(&mut part), false, now);
            }
        }
        if !part.is_empty() || must_answer || ends {
            self.say(rng, stream, at, part, ends, now);
        }
    }
}

/// Whether an origin takes notice of a subscription with these parameters.
fn reads(manner: Manner, params: ClientParameters) -> bool {
    manner != Manner::Ignores || params == ClientParameters::default()
}

pub(crate) fn covers(asked: &str, name: &str) -> bool {
    asked == name || (asked == "*" && is_member(name))
}

/// A resource on the wire. Its body says its name, version and rule.
fn resource(by_name: bool, at: usize, name: &str, rule: &str, version: u64) -> Vec<u8> {
    let mut sent = BytesMut::new();
    put(&mut sent, 1, version.to_string().as_bytes());
    put(&mut sent, 2, &any(TYPES[at], name, &format!("{version}/{rule}")));
    if rule.is_empty() && by_name {
        put(&mut sent, 3, name.as_bytes());
    } else {
        let mut named = BytesMut::new();
        put(&mut named, 1, name.as_bytes());
        if !rule.is_empty() {
            put(&mut named, 2, &encode(rule));
        }
        put(&mut sent, 8, &named);
    }
    sent.to_vec()
}
