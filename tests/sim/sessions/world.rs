//! One history.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Change, Limits, Wanted, Writer};
use deltafan::subscription::{Code, NextStep, SessionConfig, Upstream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::{Client, Manner};
use super::origin::{LDS, NAMES, Origin, RDS, ROUTE, TYPES, name_of};
use crate::harness::Scenario;
use deltafan_test_support::fixture::next_step;
use deltafan_test_support::wire::{self, type_url};

const CLIENTS: usize = 12;
/// For so many steps the origin has nothing to say of listeners.
const MUTE: u64 = 100;

pub(crate) struct World {
    rng: StdRng,
    step: u64,
    trace: bool,
    cache: Arc<Cache>,
    writer: Writer,
    rules: Arc<SessionConfig>,
    limits: Limits,
    now: Instant,
    origin: Origin,
    clients: Vec<Client>,
    /// Names that the relay would be subscribed to upstream.
    wanted: [BTreeSet<String>; TYPES.len()],
    wanted_wildcard: [bool; TYPES.len()],
    /// Resources that each `version_info` stands for.
    digests: HashMap<(usize, String), BTreeMap<String, String>>,
}

impl Scenario for World {
    const NAME: &'static str = "sessions";
    /// Longer ones find no more; more of them do.
    const LENGTH: u64 = 2_000;
    const STEPS: u64 = 1_000_000;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let limits = Limits {
            encoded_bytes: [0, 2_000, 256 << 20][rng.random_range(0..3)],
            tombstones: [4, 20, 10_000, 10_000][rng.random_range(0..4)],
            response_bytes: [1, 300, 1_500, 1 << 20, 1 << 20][rng.random_range(0..5)],
            ..Limits::default()
        };
        let (cache, writer) = Cache::new(limits);
        // Mostly what is unknown stays so until the origin says more, so that it can be told apart from what is absent.
        let timed = rng.random_bool(0.2);
        let never = Duration::from_secs(1 << 30);
        let usual = SessionConfig::default();
        let rules = Arc::new(SessionConfig {
            cold_deadline: if timed { usual.cold_deadline } else { never },
            settle: if timed { usual.settle } else { never },
            serve_secrets: true,
            trust_initial_versions: rng.random_bool(0.25),
            ..usual
        });
        let now = Instant::now();
        // It answers for every type, if with nothing.
        for type_url in TYPES.map(type_url) {
            cache.of(&type_url).unwrap();
            writer.record_answer(&type_url, now);
        }
        let in_one_piece = limits.response_bytes == 1 << 20;
        let clients =
            (0..CLIENTS).map(|_| Client::new(&mut rng, &cache, &rules, in_one_piece, now)).collect();
        let mut world = Self {
            step: 0,
            trace,
            cache,
            writer,
            rules,
            limits,
            now,
            clients,
            wanted: Default::default(),
            wanted_wildcard: Default::default(),
            digests: HashMap::new(),
            rng,
            origin: Origin::default(),
        };
        for _ in 0..2 {
            let (at, change) = world.origin.move_route();
            world.apply(at, change);
        }
        world
    }

    fn step(&mut self, step: u64) {
        self.step = step;
        self.happen();
        if step == MUTE {
            self.exhaust();
        }
    }

    fn finish(mut self) {
        self.settle();
        self.clients.clear();
        for short in TYPES {
            assert_eq!(self.cache.of(&type_url(short)).unwrap().cohorts(), 0);
        }
        self.check_interest();
    }
}

impl World {
    fn happen(&mut self) {
        let client = self.rng.random_range(0..CLIENTS);
        match self.rng.random_range(0..1000) {
            0..200 => self.speak(),
            200..280 => {
                self.clients[client].ask(&mut self.rng, self.now, self.origin.clock);
                if self.trace {
                    let client_types =
                        self.clients[client].types.iter().map(|t| &t.subscribed).collect::<Vec<_>>();
                    eprintln!("{} client {client} asks {client_types:?}", self.step);
                }
            }
            280..700 => {
                let slow = matches!(self.clients[client].manner, Manner::Slow);
                if !slow || self.rng.random_bool(0.1) {
                    self.poll(client);
                }
            }
            700..800 => self.clients[client].take(self.now),
            800..960 => self.answer(client),
            960..970 => {
                self.clients[client].reconnect(&self.cache, &self.rules, self.now);
            }
            970..985 => self.now += Duration::from_millis(self.rng.random_range(1..6000)),
            985..998 => self.check_interest(),
            998 => self.exhaust(),
            _ => self.settle(),
        }
    }

    fn apply(&mut self, at: usize, change: Change) {
        self.origin.clock += 1;
        self.origin.said[at].spoken += 1;
        for op in &change.ops {
            self.origin.said[at].mentioned.insert(op.name().to_string(), self.origin.clock);
        }
        if self.trace {
            let step = self.step;
            eprintln!("{step} origin {} known {:?} {:?}", TYPES[at], change.wildcard_known, change.ops);
        }
        self.writer.apply(&type_url(TYPES[at]), change, self.now).unwrap();
    }

    fn speak(&mut self) {
        let (at, change) = if self.rng.random_bool(0.2) {
            self.origin.move_route()
        } else {
            let at = self.rng.random_range(0..TYPES.len());
            if at == LDS && self.step < MUTE {
                return;
            }
            (at, self.origin.speak(&mut self.rng, at))
        };
        self.apply(at, change);
    }

    fn answer(&mut self, client: usize) {
        let client = &mut self.clients[client];
        let at = self.rng.random_range(0..TYPES.len());
        // A response that the transport has not delivered cannot be answered.
        if client.untaken == Some(at) || client.manner == Manner::NeverAnswers {
            return;
        }
        let refuse = client.manner == Manner::Refuses && self.rng.random_bool(0.8);
        client.answer(at, refuse, self.now);
    }

    /// Whether it had something to say.
    fn poll(&mut self, at: usize) -> bool {
        let client = &mut self.clients[at];
        if client.refused.is_some() {
            return self.reopen(at);
        }
        if client.untaken.is_some() {
            return false;
        }
        let rang = client.bell.take() > 0;
        let asleep = client.asleep.take().filter(|until| !rang && until.is_none_or(|until| self.now < until));
        client.session.wake_handle().register(&client.bell.waker());
        match next_step(&mut client.session, self.now, Upstream::Answering) {
            NextStep::Send(outgoing) => {
                let told = wire::read(client.protocol, &outgoing.frame);
                if self.trace {
                    eprintln!("{} client {at} is told {told:?}", self.step);
                }
                assert!(asleep.is_none(), "nobody woke it for {told:?}");
                let gone: usize = told.removed.iter().skip(1).map(String::len).sum();
                let limit = self.limits.response_bytes + 2 * told.removed.len();
                assert!(gone < limit, "R-Up-23: {} names are told to be gone at once", told.removed.len());
                let full = (0..TYPES.len())
                    .find(|at| type_url(TYPES[*at]) == told.type_url)
                    .filter(|at| client.is_full_state(*at));
                if let Some(at) = full {
                    let held: BTreeMap<_, _> = told.resources.iter().cloned().collect();
                    let known =
                        self.digests.entry((at, told.version.clone())).or_insert_with(|| held.clone());
                    assert_eq!(*known, held, "one version_info for two sets");
                }
                client.hear(told, &self.origin, self.now, self.rules.ack_timeout);
                if self.rng.random_bool(0.7) {
                    client.take(self.now);
                }
                true
            }
            NextStep::Wait(until) => {
                assert!(until.is_none_or(|until| until > self.now), "it would spin");
                client.asleep = Some(until);
                false
            }
            NextStep::Close(refusal) => {
                client.refused = Some(refusal);
                self.reopen(at)
            }
        }
    }

    /// A stream is closed only where removals were forgotten; then it comes again.
    fn reopen(&mut self, at: usize) -> bool {
        let client = &mut self.clients[at];
        assert!(self.limits.tombstones < 1000, "closed: {:?}", client.refused);
        assert_eq!(client.refused.take().map(|refusal| refusal.code), Some(Code::Unavailable));
        client.reconnect(&self.cache, &self.rules, self.now);
        true
    }

    /// The origin answers everything and all is delivered: then all views have to be right.
    fn settle(&mut self) {
        for at in 0..TYPES.len() {
            let names = self.clients.iter().flat_map(|client| client.types[at].subscribed.names.iter());
            let wanted: BTreeSet<String> = names.cloned().collect();
            let change = self.origin.settle(&mut self.rng, at, &wanted);
            self.apply(at, change);
        }
        self.exhaust();
        self.clients.iter().for_each(|client| client.check_settled(&self.origin));
    }

    /// All is delivered and answered until nobody has anything more to say, which has an end.
    fn exhaust(&mut self) {
        let mut silent = 0;
        for round in 0.. {
            assert!(round < 5_000, "it goes on and on");
            let mut said = false;
            for at in 0..CLIENTS {
                let client = &mut self.clients[at];
                client.take(self.now);
                if client.manner != Manner::NeverAnswers {
                    (0..TYPES.len()).for_each(|at| client.answer(at, false, self.now));
                }
                said |= self.poll(at);
            }
            silent = if said { 0 } else { silent + 1 };
            if silent == 3 {
                break;
            }
            if !said {
                self.now += self.rules.ack_timeout;
            }
        }
    }

    /// Checks that the names wanted upstream are the union of the subscriptions.
    fn check_interest(&mut self) {
        for at in 0..self.clients.len() {
            if self.clients[at].refused.is_some() {
                self.reopen(at);
            }
        }
        for Wanted { type_url, interest, .. } in self.cache.take_interest() {
            let at = TYPES.iter().position(|short| wire::type_url(short) == type_url).unwrap();
            self.wanted_wildcard[at] = interest.wildcard;
            for (name, wanted) in interest.names {
                if wanted {
                    self.wanted[at].insert(name.to_string());
                } else {
                    self.wanted[at].remove(name.as_str());
                }
            }
        }
        for (at, short) in TYPES.iter().enumerate() {
            let all = || self.clients.iter().map(|client| &client.types[at].subscribed);
            let union: BTreeSet<String> =
                all().flat_map(|subscribed| subscribed.names.iter().cloned()).collect();
            assert_eq!(self.wanted[at], union);
            assert_eq!(self.wanted_wildcard[at], all().any(|subscribed| subscribed.wildcard));
            let of = self.cache.of(&type_url(short)).unwrap();
            let names = (0..NAMES).map(|number| name_of(at, number));
            for name in names.chain((at == RDS).then(|| ROUTE.to_owned())) {
                assert_eq!(of.wants(&name), union.contains(&name));
            }
        }
    }
}
