//! Random histories of the rollout guard with go-control-plane as it is, and clients of all transports that ask for everything, by
//! name, or both. Content that the canaries reject reaches nobody else, and what they accept reaches all.
//!
//! `make soak` runs a thousand, `HISTORIES=60 cargo test --test interop rollout::` sixty, and `SEED=7` one.

use std::{
    collections::BTreeSet,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use deltafan::descriptors;
use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::runtime::{Handle, Runtime};

use crate::{
    fixture::{
        ControlPlane, Fixture, Transport, eventually, require_relay,
        resources::{CLUSTER, ENDPOINTS},
    },
    fleet::{
        client::{Client, Habits, Subscription},
        local,
        world::{Guest, World},
    },
};

const CACHES: [&[&str]; 3] = [&["--cache", "linear"], &["--cache", "mux"], &["--cache", "snapshot"]];
const VERSIONS: [&str; 3] = ["v0.12.0", "v0.13.4", "v0.14.0"];
const PROTOCOLS: [&str; 2] = ["delta", "sotw"];
/// Each cache over each protocol.
const KINDS: u64 = 6;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Numbers in resources from here on are bad.
const BAD: u16 = 30_000;
const STEPS: usize = 10;
const CANARIES: usize = 2;
const CLIENTS: usize = 7;
/// Longer than it takes to name each of ten bad changes by trials of half a second, and to connect again.
const BOUND: Duration = Duration::from_secs(60);
/// Longer than between two writes of the snapshot.
const SNAPSHOT: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 12;

#[test]
fn rejected_content_reaches_no_other_client_and_accepted_changes_reach_all() {
    let Some(()) = require_relay() else { return };
    let number = |name: &str| env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let (first, end) = match number("SEED") {
        Some(seed) => (seed, seed + 1),
        None => (0, number("HISTORIES").unwrap_or(KINDS)),
    };
    let (next, failed) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| History::run(seed))).is_err() {
                failed.lock().push(seed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "histories {failed:?} of {first}..{end}");
}

struct History {
    rng: StdRng,
    types: &'static [&'static str],
    world: World,
    changes: u16,
    // The clients end before their relay.
    canaries: Vec<Guest>,
    others: Vec<Guest>,
    fixture: Fixture,
    _snapshot: tempfile::TempDir,
}

impl History {
    fn run(seed: u64) {
        let runtime = Runtime::new().unwrap();
        let Some(mut history) = Self::start(seed, runtime.handle()) else { return };
        history.settle(seed);
        // A relay that is killed can guard only content that is in its snapshot.
        thread::sleep(SNAPSHOT);
        for _ in 0..STEPS {
            history.step(runtime.handle());
            history.check(seed);
            let pause = history.rng.random_range(0..1_500);
            thread::sleep(Duration::from_millis(pause));
        }
        history.check(seed);
        history.correct();
        history.settle(seed);
        history.check(seed);
    }

    fn start(seed: u64, runtime: &Handle) -> Option<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let at = |count: usize| usize::try_from(seed).unwrap() % count;
        let (cache, protocol) = (CACHES[at(CACHES.len())], PROTOCOLS[at(6) / CACHES.len()]);
        let plane = ControlPlane::Go(VERSIONS.choose(&mut rng).unwrap(), cache);
        let snapshot = tempfile::tempdir().unwrap();
        let further = format!(
            "snapshot: {{path: {}}}\n\
             rollout: {{types: [cds, eds], canaries: {{match: {{node.id: \"canary-.*\"}}}}, share: 0%, window: 500ms}}\n",
            snapshot.path().display()
        );
        let fixture = Fixture::start_relays(plane, 1, protocol, &further)?;
        let types: &[_] = if plane.serves_clusters_only() { &[CLUSTER] } else { &[CLUSTER, ENDPOINTS] };
        let mut history = Self {
            rng,
            types,
            world: World::default(),
            changes: 0,
            canaries: Vec::new(),
            others: Vec::new(),
            fixture,
            _snapshot: snapshot,
        };
        for type_url in types {
            NAMES.iter().for_each(|name| history.put(type_url, name, false));
        }
        for index in 0..CLIENTS {
            history.admit(index, runtime);
        }
        Some(history)
    }

    /// The first clients are canaries, and the first of them asks for everything.
    fn admit(&mut self, index: usize, runtime: &Handle) {
        let is_canary = index < CANARIES;
        let who = format!("{}-{index}", if is_canary { "canary" } else { "client" });
        let transport = *Transport::ALL.choose(&mut self.rng).unwrap();
        let asked: Vec<_> =
            self.types.iter().map(|type_url| self.subscription(type_url, index == 0)).collect();
        let habits = Habits { node_id: who.clone(), rejects: is_bad, reconnects: true };
        let port = local(self.fixture.port(0));
        let client = Client::start_with(runtime, port, transport, &asked, habits);
        let guest = Guest { client, who: format!("{who}, {transport:?}"), asked };
        if is_canary { self.canaries.push(guest) } else { self.others.push(guest) }
    }

    fn subscription(&mut self, type_url: &'static str, all: bool) -> Subscription {
        let some = |rng: &mut StdRng| NAMES.choose_multiple(rng, 3).map(|name| (*name).to_owned());
        let names: BTreeSet<_> = match (type_url, all) {
            (CLUSTER, true) => BTreeSet::new(),
            (_, true) => NAMES.map(str::to_owned).into(),
            (CLUSTER, false) => match self.rng.random_range(0..3) {
                0 => BTreeSet::new(),
                1 => some(&mut self.rng).collect(),
                _ => some(&mut self.rng).chain(["*".to_owned()]).collect(),
            },
            _ => some(&mut self.rng).collect(),
        };
        Subscription { type_url, names }
    }

    fn step(&mut self, runtime: &Handle) {
        match self.rng.random_range(0..20) {
            0 => self.fixture.origin.cut(),
            1 => {
                self.fixture.origin.kill();
                self.fixture.origin.start_again();
            }
            2 => {
                self.fixture.kill_relay();
                self.fixture.start_relay_again();
            }
            3 => {
                let index = CANARIES + self.others.len();
                self.others.swap_remove(0);
                self.admit(index, runtime);
            }
            4..7 => {
                let name = NAMES.choose(&mut self.rng).unwrap();
                self.world.toggle(&self.fixture.origin, CLUSTER, name);
            }
            _ => {
                for _ in 0..self.rng.random_range(1..=4) {
                    let type_url = *self.types.choose(&mut self.rng).unwrap();
                    let name = NAMES.choose(&mut self.rng).unwrap();
                    let bad = self.rng.random_bool(0.4) && self.is_held(type_url, name);
                    self.put(type_url, name, bad);
                }
            }
        }
    }

    /// Whether all who ask for a resource have it. What did not exist is answered at once, as clients have nothing better.
    fn is_held(&self, type_url: &str, name: &str) -> bool {
        let has = |guest: &Guest| {
            let mut asked = guest.asked.iter().filter(|asked| asked.type_url == type_url);
            asked.all(|asked| !asked.is_for(name) || guest.client.resource(type_url, name).is_some())
        };
        self.world.names(type_url).any(|other| other == name) && self.others.iter().all(has)
    }

    fn put(&mut self, type_url: &'static str, name: &'static str, bad: bool) {
        self.changes += 1;
        let number = if bad { BAD + self.changes } else { self.changes };
        self.world.set_to(&self.fixture.origin, type_url, name, number);
    }

    /// The control plane makes everything good.
    fn correct(&mut self) {
        for type_url in self.types {
            let names: Vec<_> = self.world.names(type_url).collect();
            for name in names {
                if self.world.number(type_url, name) >= BAD {
                    self.put(type_url, name, false);
                }
            }
        }
    }

    /// Waits until each client holds what it asked for.
    fn settle(&self, seed: u64) {
        eventually(BOUND, &format!("history {seed}: all hold what the control plane has"), || {
            let guests = self.canaries.iter().chain(&self.others);
            guests.filter_map(|guest| guest.complaint(&self.world)).next().map_or(Ok(()), Err)
        });
    }

    fn check(&self, seed: u64) {
        for guest in &self.others {
            assert_eq!(
                guest.client.rejections(),
                0,
                "history {seed}: {} was sent rejected content",
                guest.who
            );
        }
    }
}

/// Whether there is a number in a resource that is bad.
fn is_bad(any: &[u8]) -> bool {
    let text = descriptors::any_to_json(any).unwrap().to_string();
    text.split(|byte: char| !byte.is_ascii_digit())
        .any(|number| number.parse().is_ok_and(|number: u16| number >= BAD))
}
