//! One history.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Limits, ParameterView};
use deltafan::node_field::NodeField;
use deltafan::subscription::{NextStep, NodeParameterRules, PollHistory, Rule, SessionConfig, Upstream};
use deltafan::upstream::{Settings, StreamId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::Client;
use super::connection::Connection;
use super::origin::{Asked, Manner, Origin, TYPES};
use super::poller::Poller;
use super::rule::ClientParameters;
use crate::harness::Scenario;
use deltafan_test_support::fixture::next_step;
use deltafan_test_support::wire;

const CLIENTS: usize = 12;
const POLLERS: usize = 3;
const LINGER: Duration = Duration::from_secs(3);
/// Longer than the longest wait: a doubt is settled on a new stream, which is opened within 64 s, and by a complete
/// answer there.
const SETTLING: Duration = Duration::from_secs(80);

pub(crate) struct World {
    step: u64,
    relay: Connection,
    rules: Arc<SessionConfig>,
    clients: Vec<Client>,
    memory: PollHistory,
    pollers: Vec<Poller>,
    /// Whether clients come back with what they hold.
    resumes: bool,
}

fn given(rng: &mut StdRng) -> NodeParameterRules {
    if rng.random_bool(0.4) {
        return NodeParameterRules::default();
    }
    let rule = |key: &str, from| Rule { key: key.into(), from, pattern: None, default: None };
    NodeParameterRules::new(vec![rule("env", NodeField::Cluster), rule("v", NodeField::UserAgentName)], 100)
}

impl Scenario for World {
    const NAME: &'static str = "variants";
    /// Longer ones find no more; more of them do.
    const LENGTH: u64 = 1_000;
    const STEPS: u64 = 20_000;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let limits = Limits {
            response_bytes: [1, 300, 1 << 20, 1 << 20][rng.random_range(0..4)],
            ..Limits::default()
        };
        // It once chose a setting. Without it each kept seed would be another history.
        let _ = rng.random_bool(0.3);
        let origin = Origin::new(&mut rng, trace);
        if trace {
            let Origin { manner, ambiguous, shares_versions, .. } = &origin;
            eprintln!("origin {manner:?}, ambiguous: {ambiguous}, shares versions: {shares_versions}");
        }
        let settings = Settings { linger: LINGER, ..Settings::default() };
        let resumes = !origin.shares_versions;
        let mut relay = Connection::new(origin, rng, limits, settings, trace);
        let rules = Arc::new(SessionConfig {
            trust_initial_versions: relay.rng.random_bool(0.25),
            given: given(&mut relay.rng),
            ..SessionConfig::default()
        });
        let (rng, cache, now) = (&mut relay.rng, &relay.cache, relay.now);
        let clients = (0..CLIENTS).map(|_| Client::new(rng, cache, &rules, now)).collect();
        let pollers = (0..POLLERS).map(|id| Poller::new(rng, id, &rules)).collect();
        relay.connect();
        Self { step: 0, relay, rules, clients, memory: PollHistory::default(), pollers, resumes }
    }

    fn step(&mut self, step: u64) {
        self.step = step;
        self.happen();
    }

    fn finish(mut self) {
        self.settle();
        self.clients.clear();
        self.pollers.clear();
        // A wildcard stays for as long as its stream does, which is ten times longer than it is wanted, or 64 s.
        for _ in 0..40 {
            self.relay.connect();
            self.relay.pass(LINGER);
        }
        for stream in self.relay.origin.streams.iter().flatten() {
            assert!(
                stream.topics.values().all(|topic| topic.asked.is_empty()),
                "nobody wants {:?}",
                stream.topics
            );
        }
        // They are dropped with the topics that filled them, and else when there is need of room.
        self.relay.cache.drop_unused();
        for of in self.relay.cache.types() {
            assert_eq!(
                *of.parameter_view(),
                ParameterView::default(),
                "a store of {} is left: {:?}",
                of.type_url(),
                of.snapshot()
            );
            assert!(of.snapshot().entries().all(|entry| entry.by_name().present().is_none()), "still held");
        }
    }
}

impl World {
    fn happen(&mut self) {
        let client = self.relay.rng.random_range(0..CLIENTS);
        match self.relay.rng.random_range(0..1000) {
            0..180 => self.relay.origin.change(&mut self.relay.rng, self.relay.now),
            180..200 => self.relay.origin.chatter(&mut self.relay.rng, self.relay.now),
            200..320 => {
                self.clients[client].ask(&mut self.relay.rng, self.relay.now);
                if self.relay.trace {
                    let which = client;
                    let client = &self.clients[client];
                    let asks: Vec<_> = client.types.iter().map(|state| &state.asks).collect();
                    eprintln!(
                        "{} client {which} {:?} given {:?} asks {asks:?}",
                        self.step, client.protocol, client.given
                    );
                }
            }
            320..600 => drop(self.poll(client)),
            600..680 => self.clients[client].take(self.relay.now),
            680..800 => {
                let at = self.relay.rng.random_range(0..TYPES.len());
                if !self.clients[client].untaken {
                    self.clients[client].answer(&mut self.relay.rng, at, self.relay.now);
                }
            }
            800..815 => {
                let keeps = self.resumes && self.relay.rng.random_bool(0.5);
                if self.relay.trace {
                    eprintln!("{} client {client} reconnects, keeps: {keeps}", self.step);
                }
                self.clients[client].reconnect(keeps, &self.relay.cache, &self.rules, self.relay.now);
            }
            815..820 => {
                self.relay.lose(StreamId::Primary);
                self.relay.away = [0, 0, 20, 200][self.relay.rng.random_range(0..4)];
            }
            820..823 if self.relay.has(StreamId::Secondary) => self.relay.lose(StreamId::Secondary),
            823..840 => {
                let which = self.relay.rng.random_range(0..POLLERS);
                self.pollers[which].step(
                    &mut self.relay.rng,
                    &self.relay.cache,
                    &self.rules,
                    &self.memory,
                    self.relay.now,
                );
                if self.relay.trace {
                    let Poller { at, asks, given, .. } = &self.pollers[which];
                    eprintln!("{} poll {which} of {} given {given:?} asks {asks:?}", self.step, TYPES[*at]);
                }
            }
            840..940 => self.pass_up_to(100),
            940..985 => self.pass_up_to(1_500),
            985..995 => self.pass_up_to(6_000),
            995..998 => self.settle(),
            _ => {}
        }
        if self.relay.rng.random_bool(0.8) {
            self.relay.connect();
            self.relay.look();
        }
        let upstream = self.relay.upstream();
        for poller in &mut self.pollers {
            poller.look(&self.memory, upstream, self.relay.now);
        }
    }

    fn pass_up_to(&mut self, millis: u64) {
        let time = Duration::from_millis(self.relay.rng.random_range(1..millis));
        self.relay.pass(time);
    }

    /// Whether it had something to say.
    fn poll(&mut self, at: usize) -> bool {
        let upstream = self.relay.upstream();
        let client = &mut self.clients[at];
        if client.untaken {
            return false;
        }
        match next_step(&mut client.session, self.relay.now, upstream) {
            NextStep::Send(outgoing) => {
                let told = wire::read(client.protocol, &outgoing.frame);
                if self.relay.trace {
                    eprintln!("{} client {at} is told {told:?}", self.step);
                }
                client.hear(told, &self.relay.origin);
                if self.relay.rng.random_bool(0.7) {
                    client.take(self.relay.now);
                }
                true
            }
            NextStep::Wait(until) => {
                assert!(until.is_none_or(|until| until > self.relay.now), "it would spin");
                false
            }
            NextStep::Close(refusal) => {
                assert_eq!(upstream, Upstream::Away, "closed: {refusal:?}");
                client.reconnect(false, &self.relay.cache, &self.rules, self.relay.now);
                false
            }
        }
    }

    /// The origin is quiet, everything is answered and all times pass: then all have what is theirs.
    fn settle(&mut self) {
        self.relay.away = 0;
        self.relay.connect();
        self.relay.pass(SETTLING);
        // A name that the origin leaves unanswered counts as absent after 30 s. Polls begin only now: what they ask for may
        // be in doubt, and is settled as all else.
        for _ in 0..80 {
            self.relay.connect();
            self.relay.pass(Duration::from_millis(1_500));
            for round in 0.. {
                assert!(round < 1_000, "it goes on and on");
                let mut said = false;
                for at in 0..CLIENTS {
                    let now = self.relay.now;
                    let client = &mut self.clients[at];
                    client.take(now);
                    (0..TYPES.len()).for_each(|at| client.acknowledge(at, false, now));
                    said |= self.poll(at);
                }
                for poller in &mut self.pollers {
                    poller.begin(&self.relay.cache, &self.rules, &self.memory, self.relay.now);
                    said |= poller.look(&self.memory, Upstream::Answering, self.relay.now);
                }
                if !said {
                    break;
                }
            }
        }
        if self.relay.trace {
            eprintln!("{} settled", self.step);
        }
        self.check_subscriptions();
        self.clients.iter().for_each(|client| client.check_settled(&self.relay.origin));
        self.pollers.iter().for_each(|poller| poller.check_settled(&self.relay.origin));
    }

    /// Checks that each subscription upstream is wanted, and that each wanted name is brought by one.
    fn check_subscriptions(&self) {
        for (at, type_url) in TYPES.iter().enumerate() {
            let asks = self.clients.iter().map(|client| (&client.types[at].asks, client.given));
            let polls = self.pollers.iter().filter(|poller| poller.at == at);
            let asks = asks.chain(polls.map(|poller| (&poller.asks, poller.given)));
            let wanted: BTreeSet<Asked> = asks
                .flat_map(|(asks, given)| asks.iter().map(move |(name, asked)| (name, asked, given)))
                .map(|(name, asked, given)| {
                    (name.clone(), asked.filter(|params| !params.pairs().is_empty()).unwrap_or(given))
                })
                .collect();
            let topics =
                self.relay.origin.streams.iter().flatten().filter_map(|stream| stream.topics.get(&at));
            let subscribed: BTreeSet<&Asked> = topics.flat_map(|topic| &topic.asked).collect();
            let kept = ("*".to_owned(), ClientParameters::default());
            for asked in subscribed.iter().filter(|asked| ***asked != kept) {
                // By plain names it is asked for whatever the parameters are.
                let is_plain = |(name, _): &Asked| asked.0 == *name && asked.1 == ClientParameters::default();
                let is_wanted = self.relay.origin.manner == Manner::Ignores && wanted.iter().any(is_plain);
                assert!(is_wanted || wanted.contains(*asked), "{asked:?} of {type_url} is not wanted");
            }
            for (name, params) in &wanted {
                let texts = self.relay.origin.texts(at, name, *params);
                let brings = |other: &&Asked| {
                    let others = self.relay.origin.texts(at, name, other.1);
                    *name == other.0 && texts.iter().any(|text| others.contains(text))
                };
                // A plain name is asked for with no parameters.
                let is_plain = |other: &Asked| {
                    self.relay.origin.manner == Manner::Ignores && other.1 == ClientParameters::default()
                };
                let lends = |other: &&Asked| *name == other.0 && is_plain(other);
                let covered = subscribed.contains(&(name.clone(), *params))
                    || subscribed.iter().any(|other| brings(other) || lends(other));
                assert!(covered, "nothing brings {name} of {type_url} for {params:?}: {subscribed:?}");
            }
        }
    }
}
