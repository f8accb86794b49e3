//! REST-JSON clients, each with one long poll at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::Cache;
use deltafan::identity::{Peer, Source};
use deltafan::proto::{self, ResourceLocator};
use deltafan::subscription::{Poll, PollHistory, PollVerdict, SessionConfig, Upstream};
use rand::Rng;
use rand::rngs::StdRng;

use super::client::{Asks, node, random_parameters, way};
use super::origin::{NAMES, Origin, TYPES};
use super::rule::ClientParameters;
use deltafan_test_support::wire::{body, type_url};

const HOLD: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Poller {
    id: String,
    pub(crate) at: usize,
    node: ClientParameters,
    pub(crate) given: ClientParameters,
    pub(crate) asks: Asks,
    version: String,
    held: BTreeMap<String, String>,
    open: Option<Poll>,
}

impl Poller {
    pub(crate) fn new(rng: &mut StdRng, id: usize, rules: &SessionConfig) -> Self {
        let node = random_parameters(rng);
        let given = if rules.given.is_empty() { ClientParameters::default() } else { node };
        let at = rng.random_range(0..TYPES.len());
        let asks = asks(rng);
        let (version, held) = Default::default();
        Self { id: id.to_string(), at, node, given, asks, version, held, open: None }
    }

    pub(crate) fn step(
        &mut self,
        rng: &mut StdRng,
        cache: &Arc<Cache>,
        rules: &Arc<SessionConfig>,
        memory: &PollHistory,
        now: Instant,
    ) {
        if rng.random_bool(0.2) {
            self.asks = asks(rng);
            self.open = None;
        }
        self.begin(cache, rules, memory, now);
    }

    pub(crate) fn begin(
        &mut self,
        cache: &Arc<Cache>,
        rules: &Arc<SessionConfig>,
        memory: &PollHistory,
        now: Instant,
    ) {
        if self.open.is_some() {
            return;
        }
        let asks = self.asks.iter();
        let locators = asks.clone().filter_map(|(name, asked)| Some((name.clone(), (*asked)?)));
        let locator = |(name, params): (String, ClientParameters)| ResourceLocator {
            name,
            dynamic_parameters: params.pairs(),
        };
        let request = proto::DiscoveryRequest {
            node: Some(node(self.node, &self.id)),
            resource_names: asks.filter(|(_, asked)| asked.is_none()).map(|(name, _)| name.clone()).collect(),
            resource_locators: locators.map(locator).collect(),
            version_info: self.version.clone(),
            ..proto::DiscoveryRequest::default()
        };
        let kind = type_url(TYPES[self.at]).kind();
        self.open = Some(
            Poll::new(cache, rules, memory, kind, request, (&Peer::unproven(Source::Unix), None), HOLD, now)
                .unwrap(),
        );
    }

    /// Looks whether it is answered; returns whether it was.
    pub(crate) fn look(&mut self, memory: &PollHistory, upstream: Upstream, now: Instant) -> bool {
        let Some(poll) = &self.open else { return false };
        let version = match poll.next(now, upstream) {
            PollVerdict::Wait(until) => {
                assert!(until > now);
                return false;
            }
            PollVerdict::NotModified | PollVerdict::Unknown => None,
            PollVerdict::Answer(version) => Some(version),
        };
        let poll = self.open.take().unwrap();
        if version.is_some() {
            let found = poll.found();
            self.held.clear();
            for resource in &found.resources {
                let (name, text) = body(resource.body(), &type_url(TYPES[self.at]));
                let way = way(&self.asks, self.given, &name).expect("what it asked for");
                let rule = text.split_once('/').unwrap().1;
                assert!(way.params.fits(rule), "{name} {text} is not for {way:?}");
                assert!(self.held.insert(name.clone(), text).is_none(), "two of {name}");
            }
            self.version = found.version.to_string();
            poll.end(Some(found.version), memory, now);
            return true;
        }
        poll.end(None, memory, now);
        false
    }

    pub(crate) fn check_settled(&self, origin: &Origin) {
        for name in NAMES {
            let way = way(&self.asks, self.given, name);
            let texts = way.map(|way| origin.texts(self.at, name, way.params)).unwrap_or_default();
            let held = self.held.get(name);
            // Between two polls it may be forgotten.
            let right = held.map_or(texts.is_empty(), |held| texts.contains(held));
            assert!(right, "{held:?} and not {texts:?} of {name} of {} by {:?}", TYPES[self.at], self.asks);
        }
    }
}

/// Subscription of a poll. It is never empty, which may be the legacy wildcard.
fn asks(rng: &mut StdRng) -> Asks {
    let one = random_parameters(rng);
    let mut asks = Asks::new();
    while asks.is_empty() {
        for name in NAMES.into_iter().chain(["*"]) {
            if rng.random_bool(0.3) {
                let params = if rng.random_bool(0.8) { one } else { random_parameters(rng) };
                asks.insert(name.to_owned(), rng.random_bool(0.6).then_some(params));
            }
        }
    }
    asks
}
