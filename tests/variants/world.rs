//! One history.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::cache::{Cache, Limits, ParameterView};
use deltafan::resource::Constraints;
use deltafan::subscription::{
    NextStep, NodeField, NodeParameterRules, PollHistory, Rule, SessionConfig, Upstream,
};
use deltafan::upstream::{Mux, Reconcile, Settings, StreamId};
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::client::Client;
use crate::origin::{Asked, Manner, Origin, Peer, TYPES};
use crate::poller::Poller;
use crate::rule::PollKey;
use crate::wire;

const CLIENTS: usize = 12;
const POLLERS: usize = 3;
const LINGER: Duration = Duration::from_secs(3);
/// Longer than what waits longest: a doubt is settled on a new stream, which is opened within 64 s, and by a complete
/// answer there.
const SETTLING: Duration = Duration::from_secs(80);

/// Says where a history stood when it failed.
struct Place {
    seed: u64,
    step: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, step } = self;
            eprintln!("failed at step {step}: DELTAFAN_SEED={seed} DELTAFAN_STEPS={}", *step + 1);
        }
    }
}

pub(crate) struct World {
    rng: StdRng,
    place: Place,
    trace: bool,
    cache: Arc<Cache>,
    mux: Mux,
    rules: Arc<SessionConfig>,
    now: Instant,
    origin: Origin,
    clients: Vec<Client>,
    memory: PollHistory,
    pollers: Vec<Poller>,
    /// Whether clients come back with what they hold.
    resumes: bool,
    /// For how many steps the origin stays away.
    away: u64,
}

fn given(rng: &mut StdRng) -> NodeParameterRules {
    if rng.random_bool(0.4) {
        return NodeParameterRules::default();
    }
    let rule = |key: &str, from| Rule { key: key.into(), from, pattern: None, default: None };
    NodeParameterRules::new(vec![rule("env", NodeField::Cluster), rule("v", NodeField::UserAgentName)], 100)
}

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let limits = Limits {
            response_bytes: [1, 300, 1 << 20, 1 << 20][rng.random_range(0..4)],
            ..Limits::default()
        };
        let (cache, writer) = Cache::new(limits);
        let reconcile = if rng.random_bool(0.3) { Reconcile::Sweep } else { Reconcile::Trust };
        let origin = Origin::new(&mut rng, trace);
        if trace {
            let Origin { manner, ambiguous, shares_versions, .. } = &origin;
            eprintln!(
                "origin {manner:?}, ambiguous: {ambiguous}, shares versions: {shares_versions}; {reconcile:?}"
            );
        }
        // One that is silent would be taken for one that does not read locators.
        let locators = if origin.manner == Manner::IsSilent { 1_000_000 } else { 5 };
        let locator_timeout = Duration::from_secs(locators);
        let settings = Settings { reconcile, linger: LINGER, locator_timeout, ..Settings::default() };
        let mux = Mux::new(writer, settings);
        let rules = Arc::new(SessionConfig {
            trust_initial_versions: rng.random_bool(0.25),
            given: given(&mut rng),
            ..SessionConfig::default()
        });
        let now = Instant::now();
        let clients = (0..CLIENTS).map(|_| Client::new(&mut rng, &cache, &rules, now)).collect();
        let pollers = (0..POLLERS).map(|id| Poller::new(&mut rng, id, &rules)).collect();
        Self {
            place: Place { seed, step: 0 },
            trace,
            cache,
            mux,
            rules,
            now,
            clients,
            memory: PollHistory::default(),
            pollers,
            resumes: !origin.shares_versions,
            away: 0,
            origin,
            rng,
        }
    }

    pub(crate) fn run(mut self, steps: u64) {
        self.connect();
        for step in 0..steps {
            self.place.step = step;
            self.step();
        }
        self.settle();
        self.clients.clear();
        self.pollers.clear();
        // A wildcard stays for as long as its stream does, which is ten times longer than it is wanted, or 64 s.
        for _ in 0..40 {
            self.connect();
            self.pass(LINGER);
        }
        for peer in self.origin.peers.iter().flatten() {
            assert!(
                peer.topics.values().all(|topic| topic.asked.is_empty()),
                "nobody wants {:?}",
                peer.topics
            );
        }
        // They are dropped with the topics that filled them, and else when there is need of room.
        self.cache.drop_unused();
        for of in self.cache.types() {
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

    fn step(&mut self) {
        let client = self.rng.random_range(0..CLIENTS);
        match self.rng.random_range(0..1000) {
            0..180 => self.origin.change(&mut self.rng, self.now),
            180..200 => self.origin.chatter(&mut self.rng, self.now),
            200..320 => {
                self.clients[client].ask(&mut self.rng, self.now);
                if self.trace {
                    let which = client;
                    let client = &self.clients[client];
                    let asks: Vec<_> = client.types.iter().map(|state| &state.asks).collect();
                    eprintln!(
                        "{} client {which} {:?} given {:?} asks {asks:?}",
                        self.place.step, client.protocol, client.given
                    );
                }
            }
            320..600 => drop(self.poll(client)),
            600..680 => self.clients[client].take(self.now),
            680..800 => {
                let at = self.rng.random_range(0..TYPES.len());
                if !self.clients[client].untaken {
                    self.clients[client].answer(&mut self.rng, at, self.now);
                }
            }
            800..815 => {
                let keeps = self.resumes && self.rng.random_bool(0.5);
                if self.trace {
                    eprintln!("{} client {client} reconnects, keeps: {keeps}", self.place.step);
                }
                self.clients[client].reconnect(keeps, &self.cache, &self.rules, self.now);
            }
            815..820 => {
                self.lose(StreamId::Primary);
                self.away = [0, 0, 20, 200][self.rng.random_range(0..4)];
            }
            820..823 if self.origin.peers[1].is_some() => self.lose(StreamId::Secondary),
            823..840 => {
                let which = self.rng.random_range(0..POLLERS);
                self.pollers[which].step(&mut self.rng, &self.cache, &self.rules, &self.memory, self.now);
                if self.trace {
                    let Poller { at, asks, given, .. } = &self.pollers[which];
                    eprintln!(
                        "{} poll {which} of {} given {given:?} asks {asks:?}",
                        self.place.step, TYPES[*at]
                    );
                }
            }
            840..940 => self.pass_up_to(100),
            940..985 => self.pass_up_to(1_500),
            985..995 => self.pass_up_to(6_000),
            995..998 => self.settle(),
            _ => {}
        }
        if self.rng.random_bool(0.8) {
            self.connect();
            self.look();
        }
        let upstream = self.upstream();
        for poller in &mut self.pollers {
            poller.look(&self.memory, upstream, self.now);
        }
    }

    fn upstream(&self) -> Upstream {
        if self.origin.peers[0].is_some() { Upstream::Answering } else { Upstream::Away }
    }

    fn connect(&mut self) {
        if self.away > 0 {
            self.away -= 1;
        } else if self.origin.peers[0].is_none() {
            self.mux.connected();
            self.open(StreamId::Primary);
        } else if self.mux.wants_secondary() && self.origin.peers[1].is_none() {
            self.open(StreamId::Secondary);
        } else if !self.mux.wants_secondary() && self.origin.peers[1].is_some() {
            self.lose(StreamId::Secondary);
        }
    }

    fn open(&mut self, stream: StreamId) {
        if self.trace {
            eprintln!("{} {stream:?} opens", self.place.step);
        }
        self.origin.peers[stream as usize] = Some(Peer::default());
        self.mux.opened(stream, self.now);
    }

    fn lose(&mut self, stream: StreamId) {
        if self.trace {
            eprintln!("{} {stream:?} is lost", self.place.step);
        }
        self.origin.peers[stream as usize] = None;
        if stream == StreamId::Primary {
            self.origin.peers[1] = None;
        }
        self.mux.closed(stream);
    }

    /// The upstream side learns what the clients want.
    fn look(&mut self) {
        let wanted = self.cache.take_interest();
        if self.trace {
            for of in &wanted {
                eprintln!("  wanted: {} {} {:?}", of.type_url, of.parameters, of.interest);
            }
        }
        if !wanted.is_empty() {
            self.mux.interest(wanted, self.now);
        }
        self.pump();
    }

    /// Both sides read and write what is due.
    fn pump(&mut self) {
        for stream in StreamId::ALL {
            let on = stream as usize;
            let mut requests = 0;
            while self.mux.has_request(stream) {
                if let Some(request) = self.mux.next_request(stream, self.now) {
                    self.origin.send(&mut self.rng, on, request, self.now);
                }
                requests += 1;
                assert!(requests < 1000, "it has always something more to say");
            }
            while let Some(peer) = &mut self.origin.peers[on]
                && let Some((_, request)) = pop_due(&mut peer.to_origin, self.now)
            {
                self.origin.read(&mut self.rng, on, &request, self.now);
            }
            while let Some(peer) = &mut self.origin.peers[on]
                && let Some((_, response)) = pop_due(&mut peer.to_relay, self.now)
            {
                if self.trace {
                    eprintln!("  relay: hears #{}", response.nonce);
                }
                let message = Bytes::from(response.encode_to_vec());
                self.mux.on_message(stream, message, self.now).expect("a response");
            }
        }
    }

    fn pass_up_to(&mut self, millis: u64) {
        let time = Duration::from_millis(self.rng.random_range(1..millis));
        self.pass(time);
    }

    /// Lets time pass, by everything that is due on the way.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.look();
        for turns in 0.. {
            assert!(turns < 10_000, "a deadline that never passes");
            while let Some(stream) = self.mux.renewal_due(self.now) {
                self.lose(stream);
                if stream == StreamId::Primary || self.mux.wants_secondary() {
                    self.open(stream);
                }
                self.connect();
                self.pump();
            }
            let mut next = self.mux.next_deadline();
            for peer in self.origin.peers.iter().flatten() {
                let due =
                    [peer.to_origin.front().map(|(at, _)| *at), peer.to_relay.front().map(|(at, _)| *at)];
                next = next.into_iter().chain(due.into_iter().flatten()).min();
            }
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            self.mux.on_deadline(self.now);
            self.pump();
        }
        self.now = end;
        self.mux.on_deadline(end);
        self.pump();
    }

    /// Whether it had something to say.
    fn poll(&mut self, at: usize) -> bool {
        let upstream = self.upstream();
        let client = &mut self.clients[at];
        if client.untaken {
            return false;
        }
        match client.session.next(self.now, upstream) {
            NextStep::Say(outgoing) => {
                let told = wire::read(client.protocol, &outgoing.frame);
                if self.trace {
                    eprintln!("{} client {at} is told {told:?}", self.place.step);
                }
                client.hear(told, &self.origin);
                if self.rng.random_bool(0.7) {
                    client.take(self.now);
                }
                true
            }
            NextStep::Wait(until) => {
                assert!(until.is_none_or(|until| until > self.now), "it would spin");
                false
            }
            NextStep::Close(refusal) => {
                assert_eq!(upstream, Upstream::Away, "closed: {refusal:?}");
                client.reconnect(false, &self.cache, &self.rules, self.now);
                false
            }
        }
    }

    /// The origin is quiet, everything is answered and all times pass: then all have what is theirs.
    fn settle(&mut self) {
        self.away = 0;
        self.connect();
        self.pass(SETTLING);
        // A name that the origin leaves unanswered counts as absent after 30 s. Polls begin only now: what they ask for may
        // be in doubt, and is settled as all else.
        for _ in 0..80 {
            self.connect();
            self.pass(Duration::from_millis(1_500));
            for round in 0.. {
                assert!(round < 1_000, "it goes on and on");
                let mut said = false;
                for at in 0..CLIENTS {
                    let now = self.now;
                    let client = &mut self.clients[at];
                    client.take(now);
                    (0..TYPES.len()).for_each(|at| client.acknowledge(at, false, now));
                    said |= self.poll(at);
                }
                for poller in &mut self.pollers {
                    poller.begin(&self.cache, &self.rules, &self.memory, self.now);
                    said |= poller.look(&self.memory, Upstream::Answering, self.now);
                }
                if !said {
                    break;
                }
            }
        }
        if self.trace {
            eprintln!("{} settled", self.place.step);
        }
        if self.trace {
            for poller in &self.pollers {
                eprintln!("poll {poller:?}");
            }
            self.show_stores();
        }
        self.check_subscriptions();
        self.clients.iter().for_each(|client| client.check_settled(&self.origin));
        self.pollers.iter().for_each(|poller| poller.check_settled(&self.origin));
    }

    /// Prints each store as clients see it.
    fn show_stores(&self) {
        for of in self.cache.types() {
            eprintln!("store {} {:?}", of.type_url(), of.parameter_view());
            for entry in of.snapshot().entries() {
                let (name, member, named) = (entry.name(), entry.as_member(), entry.named());
                let variants: Vec<_> = of.snapshot().variants(name.as_str()).map(shown).collect();
                eprintln!("  {name}: member {member:?}, named {named:?}, of {variants:?}");
            }
        }
        for (at, client) in self.clients.iter().enumerate() {
            eprintln!("client {at} {:?} given {:?} {:?}", client.protocol, client.given, client.types);
        }
    }

    /// What the origin is asked for is wanted, and brings what is.
    fn check_subscriptions(&self) {
        for (at, type_url) in TYPES.iter().enumerate() {
            let asks = self.clients.iter().map(|client| (&client.types[at].asks, client.given));
            let polls = self.pollers.iter().filter(|poller| poller.at == at);
            let asks = asks.chain(polls.map(|poller| (&poller.asks, poller.given)));
            let wanted: BTreeSet<Asked> = asks
                .flat_map(|(asks, given)| asks.iter().map(move |(name, asked)| (name, asked, given)))
                .map(|(name, asked, given)| {
                    (name.clone(), asked.filter(|who| !who.pairs().is_empty()).unwrap_or(given))
                })
                .collect();
            let topics = self.origin.peers.iter().flatten().filter_map(|peer| peer.topics.get(&at));
            let subscribed: BTreeSet<&Asked> = topics.flat_map(|topic| &topic.asked).collect();
            let kept = ("*".to_owned(), PollKey::default());
            for asked in subscribed.iter().filter(|asked| ***asked != kept) {
                // By plain names it is asked for whatever the parameters are.
                let is_plain = |(name, _): &Asked| asked.0 == *name && asked.1 == PollKey::default();
                let is_wanted = self.origin.manner == Manner::Ignores && wanted.iter().any(is_plain);
                assert!(is_wanted || wanted.contains(*asked), "{asked:?} of {type_url} is not wanted");
            }
            for (name, who) in &wanted {
                let texts = self.origin.texts(at, name, *who);
                let brings = |other: &&Asked| {
                    let others = self.origin.texts(at, name, other.1);
                    *name == other.0 && texts.iter().any(|text| others.contains(text))
                };
                // What nobody has heard is gone may be lent on, and a plain name is asked for with no parameters.
                let is_silent = self.origin.manner == Manner::IsSilent && texts.is_empty();
                let is_plain =
                    |other: &Asked| self.origin.manner == Manner::Ignores && other.1 == PollKey::default();
                let lends = |other: &&Asked| *name == other.0 && (is_silent || is_plain(other));
                let covered = subscribed.contains(&(name.clone(), *who))
                    || subscribed.iter().any(|other| brings(other) || lends(other));
                assert!(covered, "nothing brings {name} of {type_url} for {who:?}: {subscribed:?}");
            }
        }
    }
}

fn shown(constraints: Option<Constraints>) -> String {
    constraints.map(|constraints| constraints.to_string()).unwrap_or_default()
}

/// What has arrived by now.
fn pop_due<T>(on_their_way: &mut VecDeque<(Instant, T)>, now: Instant) -> Option<(Instant, T)> {
    let is_due = on_their_way.front().is_some_and(|(at, _)| *at <= now);
    if is_due { on_their_way.pop_front() } else { None }
}
