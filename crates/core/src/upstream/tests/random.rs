//! Random interest, changes, delays and losses, against an origin that follows the protocol. Whatever happened, once
//! everything has been said the cache holds what the origin has of what is wanted, and nothing else.
//!
//! A failure names its seed; `seeds` runs one alone.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const CDS: Kind = Kind::Cluster;
/// Names that begin with `m` are members of the wildcard set, others exist only for clients that ask for them.
const NAMES: [&str; 8] = ["m-stable", "m1", "m2", "m3", "o-stable", "o1", "o2", "o3"];
const WHO: [&str; 3] = ["a", "b", "c"];
/// How long a message is under way at most: below the settle time, as the turn of a stream presumes.
const DELAY: Duration = Duration::from_millis(100);

/// Knowledge of the origin about one stream.
#[derive(Default)]
struct Peer {
    started: bool,
    wildcard: bool,
    names: BTreeSet<String>,
    to_origin: VecDeque<(Instant, DeltaDiscoveryRequest)>,
    to_relay: VecDeque<(Instant, Answer)>,
}

impl Peer {
    fn covers(&self, name: &str) -> bool {
        self.names.contains(name) || (self.wildcard && name.starts_with('m'))
    }
}

struct Run {
    rig: Rig,
    rng: StdRng,
    world: BTreeMap<String, u32>,
    version: u32,
    nonce: u32,
    peers: [Option<Peer>; 2],
    /// Stable names that were seen and have been wanted since.
    seen: BTreeSet<&'static str>,
    known: bool,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let reconcile = if rng.random_bool(0.3) { Reconcile::Sweep } else { Reconcile::Trust };
        let linger = Duration::from_millis(if rng.random_bool(0.5) { 300 } else { 5000 });
        let rig = Rig::with(Settings { reconcile, linger, ..Settings::default() });
        let world = ["m-stable", "o-stable"].map(|name| (name.to_owned(), 1)).into();
        let peers = [None, None];
        Self { rig, rng, world, version: 1, nonce: 0, peers, seen: BTreeSet::new(), known: false }
    }

    fn say(&mut self, to: usize, answer: Answer) {
        let at = self.rig.now + self.rng.random_range(Duration::ZERO..DELAY);
        let Some(peer) = &mut self.peers[to] else { return };
        let at = peer.to_relay.back().map_or(at, |(last, _)| at.max(*last));
        peer.to_relay.push_back((at, answer));
    }

    fn answer(&mut self) -> Answer {
        self.nonce += 1;
        Answer::of(CDS, &self.nonce.to_string())
    }

    /// The origin reads a request and answers it, perhaps in pieces.
    fn read(&mut self, from: usize, request: &DeltaDiscoveryRequest) {
        let Some(peer) = &mut self.peers[from] else { return };
        let legacy = !peer.started && request.resource_names_subscribe.is_empty();
        assert!(!legacy || request.response_nonce.is_empty(), "an ACK is no first request");
        assert!(peer.started || request.resource_names_unsubscribe.is_empty());
        assert!(!peer.started || request.initial_resource_versions.is_empty());
        assert_eq!(request.error_detail, None);
        peer.started = true;
        for name in &request.resource_names_unsubscribe {
            peer.wildcard &= name != "*";
            peer.names.remove(name);
        }
        let mut tell: BTreeSet<String> = request.initial_resource_versions.keys().cloned().collect();
        let mut must_answer = legacy;
        for name in &request.resource_names_subscribe {
            if name == "*" {
                must_answer = true;
            } else {
                peer.names.insert(name.clone());
                tell.insert(name.clone());
            }
        }
        if must_answer {
            peer.wildcard = true;
            tell.extend(self.world.keys().filter(|name| name.starts_with('m')).cloned());
        }
        assert!(!peer.wildcard || peer.names.is_empty(), "wildcard and names on one stream");
        let mut answer = self.answer();
        for name in tell {
            match self.world.get(&name) {
                Some(version) => {
                    let version = version.to_string();
                    if request.initial_resource_versions.get(&name) != Some(&version) {
                        answer = answer.set(&name, &version);
                    }
                }
                None => answer = answer.remove(&name),
            }
            if self.rng.random_bool(0.2) {
                self.say(from, answer);
                answer = self.answer();
            }
        }
        if must_answer || answer.0 != self.answer_like(&answer) {
            self.say(from, answer);
        }
    }

    /// `answer` with nothing in it.
    fn answer_like(&self, answer: &Answer) -> DeltaDiscoveryResponse {
        DeltaDiscoveryResponse { resources: Vec::new(), removed_resources: Vec::new(), ..answer.0.clone() }
    }

    /// The world changes, or the origin repeats itself.
    fn churn(&mut self) {
        let name = NAMES[self.rng.random_range(0..NAMES.len())];
        let stable = name.ends_with("stable");
        if self.rng.random_bool(0.4) && !stable {
            self.world.remove(name);
        } else if self.rng.random_bool(0.7) {
            self.version += 1;
            self.world.insert(name.to_owned(), self.version);
        }
        for to in 0..2 {
            if self.peers[to].as_ref().is_some_and(|peer| peer.covers(name)) {
                let answer = self.answer();
                let answer = match self.world.get(name) {
                    Some(version) => answer.set(name, &version.to_string()),
                    None => answer.remove(name),
                };
                self.say(to, answer);
            }
        }
    }

    fn connect(&mut self) {
        if self.peers[0].is_none() {
            self.peers[0] = Some(Peer::default());
            self.rig.open(Primary);
        } else if self.rig.mux.wants_secondary() && self.peers[1].is_none() {
            self.peers[1] = Some(Peer::default());
            self.rig.open(Secondary);
        } else if !self.rig.mux.wants_secondary() && self.peers[1].is_some() {
            self.lose(Secondary);
        }
    }

    fn lose(&mut self, stream: StreamId) {
        self.peers[stream as usize] = None;
        if stream == Primary {
            self.peers[1] = None;
        }
        self.rig.mux.closed(stream);
    }

    /// Both sides read and write what is due.
    fn pump(&mut self) {
        for stream in StreamId::ALL {
            let from = stream as usize;
            for request in self.rig.requests(stream) {
                let at = self.rig.now + self.rng.random_range(Duration::ZERO..DELAY / 2);
                if let Some(peer) = &mut self.peers[from] {
                    let at = peer.to_origin.back().map_or(at, |(last, _)| at.max(*last));
                    peer.to_origin.push_back((at, request));
                }
            }
            let now = self.rig.now;
            while let Some(peer) = &mut self.peers[from]
                && let Some((_, request)) = peer.to_origin.pop_front_if(|(at, _)| *at <= now)
            {
                self.read(from, &request);
            }
            while let Some(peer) = &mut self.peers[from]
                && let Some((_, answer)) = peer.to_relay.pop_front_if(|(at, _)| *at <= now)
            {
                self.rig.mux.on_message(stream, answer.bytes(), now).expect("a response");
                self.check();
            }
        }
    }

    fn client(&mut self) {
        let who = WHO[self.rng.random_range(0..WHO.len())];
        let names: Vec<&str> = NAMES.into_iter().filter(|_| self.rng.random_bool(0.3)).collect();
        let names = if self.rng.random_bool(0.5) { Vec::new() } else { names };
        let wildcard = if self.rng.random_bool(0.4) { &["*"][..] } else { &[] };
        self.rig.client(who, CDS, &[wildcard, &names].concat());
    }

    /// Checks what holds at any moment.
    fn check(&mut self) {
        let snapshot = self.rig.snapshot(CDS);
        assert!(snapshot.members().all(|member| member.name().as_str().starts_with('m')), "a leak");
        let of = self.rig.cache.of(&CDS.into()).expect("few types");
        for name in ["m-stable", "o-stable"] {
            assert!(!matches!(snapshot.by_name(name), Seen::Absent), "{name} is shown as gone");
            let named = snapshot.get(name).map_or(&Named::Unknown, |entry| entry.named());
            let (present, wanted) = (matches!(named, Named::Present(_)), of.wants(name));
            assert!(present || !wanted || !self.seen.contains(name), "{name} went though nothing removed it");
            if wanted && present {
                self.seen.insert(name);
            } else {
                self.seen.remove(name);
            }
        }
        assert!(!snapshot.wildcard_known() || snapshot.members().any(|m| m.name().as_str() == "m-stable"));
        assert!(!self.known || snapshot.wildcard_known() || !of.wants_wildcard());
        self.known = of.wants_wildcard() && snapshot.wildcard_known();
    }

    fn step(&mut self) {
        match self.rng.random_range(0..20) {
            0..5 => self.churn(),
            5..9 => self.client(),
            9 if self.rng.random_bool(0.2) => self.lose(Primary),
            10 if self.rng.random_bool(0.2) && self.peers[1].is_some() => self.lose(Secondary),
            11 => self.pass(2000),
            12..15 => self.pass(200),
            _ => {}
        }
        self.check();
        self.connect();
        self.pass(10);
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 5 {
            self.rig.pass(5);
            for (_, stream) in std::mem::take(&mut self.rig.renewed) {
                // The origin sees the old stream end, and the secondary with its primary.
                self.peers[1] = None;
                if stream == Primary {
                    self.peers[0] = Some(Peer::default());
                } else if self.rig.mux.wants_secondary() {
                    self.peers[1] = Some(Peer::default());
                }
            }
            self.check();
            self.pump();
        }
    }

    /// Everything is said; then the cache agrees with the world.
    fn finish(&mut self) {
        for _ in 0..10 {
            self.connect();
            self.pass(1500);
        }
        let of = self.rig.cache.of(&CDS.into()).expect("few types");
        let held = |name: &str| self.world.get(name).map_or_else(|| "absent".to_owned(), u32::to_string);
        for name in NAMES {
            let expected = if of.wants(name) { held(name) } else { "unknown".to_owned() };
            assert_eq!(self.rig.named(CDS, name), expected, "{name}");
        }
        let wild = of.wants_wildcard();
        assert!(self.rig.snapshot(CDS).wildcard_known() || !wild);
        let member =
            |(name, version): (&String, &u32)| name.starts_with('m').then(|| format!("{name}@{version}"));
        let members = self.rig.members(CDS);
        let is_kept = !wild && members.is_empty();
        assert!(is_kept || members == self.world.iter().filter_map(member).collect());
        let mixed = wild && NAMES.into_iter().any(|name| of.wants(name));
        assert!(self.peers[1].is_some() || !mixed, "the secondary exists while the type is mixed");
    }
}

fn seeds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            for _ in 0..150 {
                run.step();
            }
            run.finish();
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

#[test]
fn whatever_happened_the_cache_agrees_with_the_origin_in_the_end() {
    seeds(0..100);
}
