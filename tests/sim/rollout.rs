//! Histories of guarded changes: an origin that sends good and bad versions and repeats itself, canaries that reject the bad ones, at
//! once or late, and clients that are to be spared. All come and go.
//!
//! No client but a canary is ever sent a bad version; the stable track shows at any moment the state of all
//! guarded types at one moment of the origin, where no change was discarded; and in the end all clients hold the last good state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{
    Change, Completeness, Op, Order, ParameterView, Phase, Protocol, RolloutSettings, Track, View,
};
use deltafan::resource::Parameters;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::{Client, Fixture, url};
use deltafan_test_support::wire::Told;

const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];
const ROUTES: [&str; 3] = ["r", "s", "t"];
const CANARIES: usize = 3;
const OTHERS: usize = 4;
/// Longest time for which a slow canary does nothing, in half seconds.
const IDLE: u32 = 10;
const WINDOW: Duration = Duration::from_secs(30);
/// Longer than any trial.
const LONG: Duration = Duration::from_secs(40);

fn is_bad(version: &str) -> bool {
    version.parse::<u64>().unwrap() % 3 == 0
}

/// Content of the guarded types: versions by type and name.
type Content = BTreeMap<(&'static str, String), String>;

struct Reader {
    client: Client,
    id: String,
    protocol: Protocol,
    held: Content,
    /// Responses that it has read and not answered.
    unanswered: VecDeque<Told>,
    idle: u32,
}

impl Reader {
    fn new(fixture: &Fixture, id: &str, protocol: Protocol) -> Self {
        let mut client = fixture.client_named(id, protocol);
        match protocol {
            Protocol::Delta => {
                client.change(fixture, "cds", "*");
                client.change(fixture, "rds", &ROUTES.join(" "));
            }
            Protocol::Sotw => {
                client.ask(fixture, "cds", &[]);
                client.ask(fixture, "rds", &ROUTES);
            }
        }
        let held = Content::new();
        Self { client, id: id.to_owned(), protocol, held, unanswered: VecDeque::new(), idle: 0 }
    }

    /// Clients that are canaries, or not, by the hashes of their node IDs.
    fn all(fixture: &Fixture, rng: &mut StdRng, count: usize, canaries: bool) -> Vec<Self> {
        let seats = || fixture.cache.rollout().unwrap().status(fixture.now).canaries;
        let mut found = Vec::new();
        for at in 0.. {
            let protocol = if rng.random_bool(0.5) { Protocol::Delta } else { Protocol::Sotw };
            let before = seats();
            let reader = Self::new(fixture, &format!("node-{at}"), protocol);
            if (seats() > before) == canaries {
                found.push(reader);
            }
            if found.len() == count {
                break;
            }
        }
        found
    }

    /// Comes again.
    fn reconnect(&mut self, fixture: &Fixture) {
        *self = Self::new(fixture, &self.id, self.protocol);
    }

    /// Reads a response and answers it at once. Returns whether there was one.
    fn poll(&mut self, fixture: &Fixture, judges: bool) -> bool {
        self.read(fixture, judges) && self.answer(fixture)
    }

    fn read(&mut self, fixture: &Fixture, judges: bool) -> bool {
        let Some(told) = self.client.poll(fixture) else { return false };
        let is_good = told.resources.iter().all(|(_, version)| !is_bad(version));
        assert!(judges || is_good, "{}, which is no canary, is sent {told:?}", self.id);
        self.unanswered.push_back(told);
        true
    }

    /// Takes in a response, and rejects it if it has a bad version. As Envoy does, it takes the good ones then.
    fn answer(&mut self, fixture: &Fixture) -> bool {
        let Some(told) = self.unanswered.pop_front() else { return false };
        let short = told.type_url.kind().short();
        let names: &[&str] = if short == "rds" { &ROUTES } else { &[] };
        let bad: Vec<&String> =
            told.resources.iter().filter(|(_, version)| is_bad(version)).map(|(name, _)| name).collect();
        self.hold(short, &told);
        if bad.is_empty() {
            self.client.ack(fixture, &told, names);
        } else {
            self.client.nack_saying(fixture, &told, names, &format!("rejected: {bad:?}"));
        }
        true
    }

    /// Does something or other, as a slow client does.
    fn act(&mut self, fixture: &Fixture, rng: &mut StdRng) {
        self.idle += 1;
        if self.idle < IDLE && rng.random_bool(0.8) {
            return;
        }
        self.idle = 0;
        while self.read(fixture, true) {}
        if rng.random_bool(0.7) {
            while self.answer(fixture) {}
        }
    }

    fn hold(&mut self, short: &'static str, told: &Told) {
        if self.protocol == Protocol::Sotw && short == "cds" {
            let is_told = |name: &String| told.resources.iter().any(|(other, _)| other == name);
            self.held.retain(|(of, name), _| *of != short || is_told(name));
        }
        for (name, version) in told.resources.iter().filter(|(_, version)| !is_bad(version)) {
            self.held.insert((short, name.clone()), version.clone());
        }
        for name in &told.removed {
            self.held.remove(&(short, name.clone()));
        }
    }
}

struct World {
    rng: StdRng,
    fixture: Fixture,
    origin: Content,
    /// All states of the origin so far.
    history: BTreeSet<Vec<((&'static str, String), String)>>,
    canaries: Vec<Reader>,
    are_slow: bool,
    others: Vec<Reader>,
    next_version: u64,
    discards: bool,
    has_discarded: bool,
    trace: bool,
}

impl World {
    fn say(&mut self, short: &'static str, name: &str, version: Option<u64>) {
        let place = (short, name.to_owned());
        let text = match version {
            Some(version) => {
                self.origin.insert(place, version.to_string());
                format!("{short} {name}:{version}")
            }
            None => {
                self.origin.remove(&place);
                format!("{short} -{name}")
            }
        };
        if self.trace {
            eprintln!("{:?} {text}", self.fixture.now);
        }
        if short == "cds" {
            self.fixture.origin(&text)
        } else {
            self.fixture.named(&text)
        }
        self.history.insert(self.origin.clone().into_iter().collect());
        if !self.are_slow {
            // The verdict is there before any trial ends.
            self.judge();
        }
    }

    /// The control plane says again all that it has, as it does after a reconnect.
    fn repeat(&mut self) {
        let all = |short| {
            let of = self.origin.iter().filter(|((of, _), _)| *of == short);
            of.map(|((_, name), version)| format!(" {name}:{version}")).collect::<String>()
        };
        for (short, view) in [("cds", View::Wildcard), ("rds", View::Named)] {
            let text = format!("{short}{}", all(short));
            if self.trace {
                eprintln!("{:?} again {text}", self.fixture.now);
            }
            if text.len() > short.len() {
                self.fixture.answer(view, &text);
            }
        }
    }

    /// All clients leave, and the relay lets go of all that they asked for; then they come back.
    fn restart_all(&mut self) {
        if self.trace {
            eprintln!("{:?} all leave and come back", self.fixture.now);
        }
        let leavers =
            self.canaries.iter().chain(&self.others).map(|reader| (reader.id.clone(), reader.protocol));
        let leavers: Vec<_> = leavers.collect();
        self.canaries.clear();
        self.others.clear();
        let time = [0, 2_000, 20_000, 70_000][self.rng.random_range(0..4)];
        self.fixture.roll_out(Duration::from_millis(time));
        let forget = |view, name: &str| Op::Forget { view, name: name.into() };
        let ops = CLUSTERS.map(|name| forget(View::Wildcard, name)).to_vec();
        let wildcard_known = Some(Completeness::Unknown);
        self.fixture.apply("cds", Change { ops, wildcard_known, ..Change::default() });
        self.fixture.ops("rds", ROUTES.map(|name| forget(View::Named, name)).to_vec());
        for (at, (id, protocol)) in leavers.iter().enumerate() {
            let reader = Reader::new(&self.fixture, id, *protocol);
            if at < CANARIES { self.canaries.push(reader) } else { self.others.push(reader) }
        }
        self.repeat();
        self.fixture.known("cds");
        self.judge();
    }

    fn judge(&mut self) {
        for canary in &mut self.canaries {
            canary.idle = 0;
            let mut polls = 0;
            while canary.answer(&self.fixture) || canary.poll(&self.fixture, true) {
                polls += 1;
                assert!(polls < 50, "{} is sent more and more", canary.id);
            }
        }
    }

    fn version(&mut self, is_bad_one: bool) -> u64 {
        self.next_version += 3;
        if is_bad_one { self.next_version } else { self.next_version + 1 }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.fixture.now + time;
        while self.fixture.now < end {
            self.fixture.roll_out(Duration::from_millis(500));
            if self.are_slow {
                self.canaries.iter_mut().for_each(|canary| canary.act(&self.fixture, &mut self.rng));
            } else {
                self.judge();
            }
        }
    }

    /// Content of the stable track.
    fn stable(&self) -> Content {
        let mut content = Content::new();
        for (short, names) in [("cds", &CLUSTERS[..]), ("rds", &ROUTES[..])] {
            let view = ParameterView::uniform(Parameters::NONE).on(Track::Stable);
            let snapshot = self.fixture.cache.find(&url(short), &view).unwrap().snapshot();
            for name in names {
                if let Some(resource) = snapshot.by_name(name).present() {
                    content.insert((short, (*name).to_owned()), resource.version().to_owned());
                }
            }
        }
        content
    }
}

impl Scenario for World {
    const NAME: &'static str = "rollout";
    const LENGTH: u64 = 80;
    const STEPS: u64 = 150 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let types = ["cds", "rds"].map(url).into_iter().collect();
        let settings = RolloutSettings {
            types,
            share: 0.3,
            window: WINDOW,
            threshold: 0.0,
            reports: false,
            counts: Arc::default(),
        };
        let mut fixture = Fixture::guarded(settings);
        fixture.rules.unacked_timeout = Duration::from_secs(24 * 60 * 60);
        fixture.origin("cds a:1 b:1");
        fixture.known("cds");
        fixture.named("rds r:1 s:1 t:1");
        let first = [("cds", "a"), ("cds", "b"), ("rds", "r"), ("rds", "s"), ("rds", "t")];
        let origin: Content =
            first.map(|(short, name)| ((short, name.to_owned()), "1".to_owned())).into_iter().collect();
        let canaries = Reader::all(&fixture, &mut rng, CANARIES, true);
        let others = Reader::all(&fixture, &mut rng, OTHERS, false);
        let are_slow = rng.random_bool(0.5);
        let history = [origin.clone().into_iter().collect()].into_iter().collect();
        let discards = rng.random_bool(0.5);
        let mut world = Self {
            rng,
            fixture,
            origin,
            history,
            canaries,
            are_slow,
            others,
            next_version: 3,
            discards,
            has_discarded: false,
            trace,
        };
        world.judge();
        world
    }

    fn step(&mut self, _: u64) {
        match self.rng.random_range(0..14) {
            0..3 => {
                let name = CLUSTERS[self.rng.random_range(0..CLUSTERS.len())];
                let is_bad_one = self.rng.random_bool(0.15);
                let version = self.version(is_bad_one);
                let removes = self.rng.random_bool(0.2);
                self.say("cds", name, (!removes).then_some(version));
            }
            3..5 => {
                let name = ROUTES[self.rng.random_range(0..ROUTES.len())];
                let is_bad_one = self.rng.random_bool(0.15);
                let version = self.version(is_bad_one);
                self.say("rds", name, Some(version));
            }
            5..7 => {
                let time = [100, 900, 3_000, 12_000, 35_000][self.rng.random_range(0..5)];
                self.wait(Duration::from_millis(time));
            }
            7 if self.discards => {
                let ordered = self.fixture.cache.rollout().unwrap().order(Order::Discard);
                self.has_discarded |= ordered;
                if ordered && self.trace {
                    eprintln!("discard");
                }
            }
            8 if self.rng.random_bool(0.3) => {
                let at = self.rng.random_range(0..CANARIES);
                self.canaries[at].reconnect(&self.fixture);
            }
            8 => {
                let at = self.rng.random_range(0..OTHERS);
                self.others[at].reconnect(&self.fixture);
            }
            9 => self.repeat(),
            // Then there is nothing but the newest content, good or bad.
            10 if self.rng.random_bool(0.3) && !self.origin.values().any(|version| is_bad(version)) => {
                self.restart_all();
            }
            _ => {
                let at = self.rng.random_range(0..OTHERS);
                self.others[at].poll(&self.fixture, false);
            }
        }
        if !self.has_discarded {
            let stable = self.stable();
            let key: Vec<_> = stable.clone().into_iter().collect();
            assert!(self.history.contains(&key), "{stable:?} was never the state of the origin");
        }
    }

    fn finish(mut self) {
        for (short, names) in [("cds", &CLUSTERS[..]), ("rds", &ROUTES[..])] {
            for name in names {
                let version = self.version(false);
                self.say(short, name, Some(version));
            }
        }
        for _ in 0..10 {
            self.wait(LONG);
            if self.fixture.cache.rollout().unwrap().status(self.fixture.now).phase == Phase::Idle {
                break;
            }
        }
        self.judge();
        let mut others = std::mem::take(&mut self.others);
        for reader in others.iter_mut().chain(&mut self.canaries) {
            while reader.poll(&self.fixture, false) {}
            assert_eq!(reader.held, self.origin, "{} {:?}", reader.id, reader.protocol);
        }
        assert_eq!(self.stable(), self.origin);
    }
}

#[test]
fn no_bad_change_reaches_the_fleet_and_every_good_one_does_in_the_end() {
    harness::play::<World>();
}
