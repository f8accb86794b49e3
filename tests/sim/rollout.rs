//! Histories of guarded changes: an origin that sends good and bad versions, a canary that rejects the bad ones, and clients that are
//! to be spared.
//!
//! No client but the canary is ever sent a bad version; the stable track shows at any moment the state of all
//! guarded types at one moment of the origin, where no change was discarded; and in the end all clients hold the last good state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Order, ParameterView, Protocol, RolloutSettings, Track};
use deltafan::resource::Parameters;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::{Client, Fixture, url};
use deltafan_test_support::wire::Told;

const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];
const ROUTES: [&str; 3] = ["r", "s", "t"];
const OTHERS: usize = 4;
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
    protocol: Protocol,
    held: Content,
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
        Self { client, protocol, held: Content::new() }
    }

    /// Takes in a response, or rejects it if it `judges` and the response has a bad version. Returns whether there was one.
    fn poll(&mut self, fixture: &Fixture, judges: bool) -> bool {
        let Some(told) = self.client.poll(fixture) else { return false };
        let short = told.type_url.kind().short();
        let bad: Vec<&String> =
            told.resources.iter().filter(|(_, version)| is_bad(version)).map(|(name, _)| name).collect();
        let names: &[&str] = if short == "rds" { &ROUTES } else { &[] };
        if judges && !bad.is_empty() {
            let text = format!("rejected: {bad:?}");
            self.client.nack_saying(fixture, &told, names, &text);
            return true;
        }
        assert!(judges || bad.is_empty(), "a client that is no canary is sent {told:?}");
        self.hold(short, &told);
        self.client.ack(fixture, &told, names);
        true
    }

    fn hold(&mut self, short: &'static str, told: &Told) {
        if self.protocol == Protocol::Sotw && short == "cds" {
            self.held.retain(|(of, _), _| *of != short);
        }
        for (name, version) in &told.resources {
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
    canary: Reader,
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
        // The canary is prompt: its verdict is there before any trial ends.
        self.judge();
    }

    fn judge(&mut self) {
        for _ in 0..50 {
            if !self.canary.poll(&self.fixture, true) {
                return;
            }
        }
        panic!("the canary is sent more and more");
    }

    fn version(&mut self, is_bad_one: bool) -> u64 {
        self.next_version += 3;
        if is_bad_one { self.next_version } else { self.next_version + 1 }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.fixture.now + time;
        while self.fixture.now < end {
            self.fixture.roll_out(Duration::from_millis(500));
            self.judge();
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
        let settings =
            RolloutSettings { types, share: 0.0, window: WINDOW, threshold: 0.0, counts: Arc::default() };
        let mut fixture = Fixture::guarded(settings);
        fixture.rules.unacked_timeout = Duration::from_secs(24 * 60 * 60);
        fixture.origin("cds a:1 b:1");
        fixture.known("cds");
        fixture.named("rds r:1 s:1 t:1");
        let first = [("cds", "a"), ("cds", "b"), ("rds", "r"), ("rds", "s"), ("rds", "t")];
        let origin: Content =
            first.map(|(short, name)| ((short, name.to_owned()), "1".to_owned())).into_iter().collect();
        let protocol = |rng: &mut StdRng| if rng.random_bool(0.5) { Protocol::Delta } else { Protocol::Sotw };
        let canary = Reader::new(&fixture, "canary", protocol(&mut rng));
        let others =
            (0..OTHERS).map(|at| Reader::new(&fixture, &format!("other-{at}"), protocol(&mut rng))).collect();
        let history = [origin.clone().into_iter().collect()].into_iter().collect();
        let discards = rng.random_bool(0.5);
        let mut world = Self {
            rng,
            fixture,
            origin,
            history,
            canary,
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
        match self.rng.random_range(0..12) {
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
                let protocol = self.canary.protocol;
                // The old stream ends first, or another client would be the first of all.
                self.canary = Reader::new(&self.fixture, "nobody", protocol);
                self.canary = Reader::new(&self.fixture, "canary", protocol);
                self.judge();
            }
            8 => {
                let at = self.rng.random_range(0..OTHERS);
                let protocol = self.others[at].protocol;
                self.others[at] = Reader::new(&self.fixture, &format!("other-{at}"), protocol);
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
        for _ in 0..3 {
            self.wait(LONG);
        }
        let mut others = std::mem::take(&mut self.others);
        for reader in others.iter_mut().chain([&mut self.canary]) {
            while reader.poll(&self.fixture, false) {}
            let node = reader.client.session.client().map(|client| client.node_id.clone());
            assert_eq!(reader.held, self.origin, "{node:?} {:?}", reader.protocol);
        }
        assert_eq!(self.stable(), self.origin);
    }
}

#[test]
fn no_bad_change_reaches_the_fleet_and_every_good_one_does_in_the_end() {
    harness::play::<World>();
}
