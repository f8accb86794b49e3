//! Histories of the upstream side alone: interest, changes, delays and losses, and an origin that follows the protocol. In the end
//! the cache holds what the origin has of the names that are wanted, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use deltafan::cache::{
    Cache, Limits, Membership, Named, Protocol, Seen, StreamProfile, Subscription, TtlSupport, WakeHandle,
};
use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use deltafan::upstream::{Reconcile, Settings, StreamId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::any;
use crate::connection::{Connection, Origin, Streams};
use crate::harness::{self, Scenario};
use crate::wire::{put, type_url};

const CDS: &str = "cds";
/// Names that begin with `m` are members of the wildcard set, others exist only for clients that ask for them.
const NAMES: [&str; 8] = ["m-stable", "m1", "m2", "m3", "o-stable", "o1", "o2", "o3"];
/// Names that are always there.
const STABLE: [&str; 2] = ["m-stable", "o-stable"];
const CLIENTS: usize = 3;

fn is_member(name: &str) -> bool {
    name.starts_with('m')
}

/// Knowledge of the origin about one stream.
#[derive(Default)]
struct Peer {
    started: bool,
    wildcard: bool,
    names: BTreeSet<String>,
}

#[derive(Default)]
struct World {
    /// Versions, by name.
    resources: BTreeMap<String, u32>,
    version: u32,
    nonce: u32,
    streams: Streams<Peer>,
    /// Stable names that the cache has held since they have been wanted.
    seen: BTreeSet<&'static str>,
    /// The wildcard set is wanted and known.
    known: bool,
}

impl World {
    fn response(&mut self) -> DeltaDiscoveryResponse {
        self.nonce += 1;
        let (type_url, nonce) = (type_url(CDS).as_str().to_owned(), self.nonce.to_string());
        DeltaDiscoveryResponse { type_url, nonce, ..DeltaDiscoveryResponse::default() }
    }

    /// Adds the state of a name to a response.
    fn tell(&self, name: &str, response: &mut DeltaDiscoveryResponse) {
        let Some(version) = self.resources.get(name).map(u32::to_string) else {
            return response.removed_resources.push(name.to_owned());
        };
        let mut sent = BytesMut::new();
        put(&mut sent, 1, version.as_bytes());
        put(&mut sent, 2, &any(CDS, name, &version));
        put(&mut sent, 3, name.as_bytes());
        response.resources.push(sent.freeze());
    }

    fn send(&mut self, rng: &mut StdRng, stream: usize, response: DeltaDiscoveryResponse, now: Instant) {
        if let Some(stream) = &mut self.streams[stream] {
            stream.to_relay.send(rng, response, now);
        }
    }

    /// A name changes, or the origin repeats itself.
    fn change(&mut self, rng: &mut StdRng, now: Instant) {
        let name = NAMES[rng.random_range(0..NAMES.len())];
        if rng.random_bool(0.4) && !STABLE.contains(&name) {
            self.resources.remove(name);
        } else if rng.random_bool(0.7) {
            self.version += 1;
            self.resources.insert(name.to_owned(), self.version);
        }
        for stream in 0..2 {
            let covers = |peer: &Peer| peer.names.contains(name) || (peer.wildcard && is_member(name));
            if self.streams[stream].as_ref().is_some_and(|stream| covers(&stream.state)) {
                let mut response = self.response();
                self.tell(name, &mut response);
                self.send(rng, stream, response, now);
            }
        }
    }
}

impl Origin for World {
    type State = Peer;

    fn streams(&mut self) -> &mut Streams<Peer> {
        &mut self.streams
    }

    /// Answers, perhaps in pieces.
    fn read(&mut self, rng: &mut StdRng, stream: usize, request: &DeltaDiscoveryRequest, now: Instant) {
        let Some(open) = &mut self.streams[stream] else { return };
        let peer = &mut open.state;
        let is_first = !std::mem::replace(&mut peer.started, true);
        let is_legacy = is_first && request.resource_names_subscribe.is_empty();
        assert!(!is_legacy || request.response_nonce.is_empty(), "an ACK is no first request");
        assert!(!is_first || request.resource_names_unsubscribe.is_empty());
        assert!(is_first || request.initial_resource_versions.is_empty());
        assert_eq!(request.error_detail, None);
        for name in &request.resource_names_unsubscribe {
            peer.wildcard &= name != "*";
            peer.names.remove(name);
        }
        let versions = &request.initial_resource_versions;
        let mut tell: BTreeSet<String> = versions.keys().cloned().collect();
        let mut must_answer = is_legacy;
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
            tell.extend(self.resources.keys().filter(|name| is_member(name)).cloned());
        }
        assert!(!peer.wildcard || peer.names.is_empty(), "wildcard and names on one stream");
        let is_known = |name: &String| {
            let version = self.resources.get(name).map(u32::to_string);
            version.is_some() && versions.get(name) == version.as_ref()
        };
        tell.retain(|name| !is_known(name));
        let mut response = self.response();
        for name in tell {
            self.tell(&name, &mut response);
            if rng.random_bool(0.2) {
                let next = self.response();
                self.send(rng, stream, std::mem::replace(&mut response, next), now);
            }
        }
        let is_empty = response.resources.is_empty() && response.removed_resources.is_empty();
        if must_answer || !is_empty {
            self.send(rng, stream, response, now);
        }
    }

    fn check(&mut self, cache: &Cache) {
        let of = cache.of(&type_url(CDS)).expect("few types");
        let snapshot = of.snapshot();
        assert!(snapshot.members().all(|member| is_member(member.name().as_str())), "a leak");
        for name in STABLE {
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
}

/// One history.
struct History {
    relay: Connection<World>,
    clients: [Option<Membership>; CLIENTS],
}

impl Scenario for History {
    const NAME: &'static str = "upstream";
    const LENGTH: u64 = 150;
    const STEPS: u64 = 100 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let reconcile = if rng.random_bool(0.3) { Reconcile::Sweep } else { Reconcile::Trust };
        let linger = Duration::from_millis(if rng.random_bool(0.5) { 300 } else { 5000 });
        let settings = Settings { reconcile, linger, ..Settings::default() };
        let resources = STABLE.map(|name| (name.to_owned(), 1)).into();
        let world = World { resources, version: 1, ..World::default() };
        Self {
            relay: Connection::new(world, rng, Limits::default(), settings, trace),
            clients: Default::default(),
        }
    }

    fn step(&mut self, step: u64) {
        let Connection { origin, rng, now, trace, .. } = &mut self.relay;
        match rng.random_range(0..20) {
            0..5 => {
                origin.change(rng, *now);
                if *trace {
                    eprintln!("{step} origin {:?}", origin.resources);
                }
            }
            5..9 => self.ask(),
            9 if rng.random_bool(0.2) => self.relay.lose(StreamId::Primary),
            10 if rng.random_bool(0.2) && self.relay.has(StreamId::Secondary) => {
                self.relay.lose(StreamId::Secondary);
            }
            11 => self.pass(2_000),
            12..15 => self.pass(200),
            _ => {}
        }
        self.pass(10);
    }

    fn finish(mut self) {
        for _ in 0..10 {
            self.pass(1_500);
        }
        let has_secondary = self.relay.has(StreamId::Secondary);
        let (resources, of) =
            (&self.relay.origin.resources, self.relay.cache.of(&type_url(CDS)).expect("few types"));
        let snapshot = of.snapshot();
        for name in NAMES {
            let held = match snapshot.get(name).map_or(&Named::Unknown, |entry| entry.named()) {
                Named::Present(resource) => resource.version().to_owned(),
                other => format!("{other:?}"),
            };
            let version = || resources.get(name).map_or_else(|| "Absent".to_owned(), u32::to_string);
            let expected = if of.wants(name) { version() } else { "Unknown".to_owned() };
            assert_eq!(held, expected, "{name}");
        }
        let is_wild = of.wants_wildcard();
        assert!(snapshot.wildcard_known() || !is_wild);
        let members =
            snapshot.members().map(|member| (member.name().to_string(), member.version().to_owned()));
        let members: BTreeMap<String, String> = members.collect();
        let expected = resources.iter().filter(|(name, _)| is_member(name));
        let expected = expected.map(|(name, version)| (name.clone(), version.to_string()));
        let is_let_go = !is_wild && members.is_empty();
        assert!(is_let_go || members == expected.collect::<BTreeMap<_, _>>());
        let is_mixed = is_wild && NAMES.into_iter().any(|name| of.wants(name));
        assert!(has_secondary || !is_mixed, "the secondary exists while the type is mixed");
    }
}

impl History {
    /// A client takes, or changes, its subscription.
    fn ask(&mut self) {
        let Connection { cache, rng, trace, .. } = &mut self.relay;
        let client = rng.random_range(0..CLIENTS);
        let names: Vec<&str> = NAMES.into_iter().filter(|_| rng.random_bool(0.3)).collect();
        let names = if rng.random_bool(0.5) { Vec::new() } else { names };
        let wildcard = rng.random_bool(0.4);
        if *trace {
            eprintln!("client {client} asks for {names:?}, wildcard {wildcard}");
        }
        let subscription = Subscription::new(wildcard, names.into_iter().map(Into::into));
        let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Untold };
        let of = cache.of(&type_url(CDS)).expect("few types");
        self.clients[client] = Some(of.join(subscription, profile, &Arc::new(WakeHandle::default())));
        self.relay.look();
    }

    fn pass(&mut self, millis: u64) {
        self.relay.connect();
        self.relay.pass(Duration::from_millis(millis));
        let Connection { origin, cache, .. } = &mut self.relay;
        origin.check(cache);
    }
}

#[test]
fn whatever_happened_the_cache_agrees_with_the_origin_in_the_end() {
    harness::play::<History>();
}
