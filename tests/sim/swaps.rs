//! Histories of routes that move between clusters, at modelled Envoys on aggregated streams of both protocols: each holds its ACK of
//! clusters until all of them are warm, which takes their endpoints. The origin says clusters before the routes that need them, or, as
//! after a restart, each type by itself; or, where it was not answered for the clusters before, routes first. Clusters go before they had endpoints. Clients come back, and messages take their time.
//!
//! At no time does an active route name a cluster that is not warm at its client, no response is sent without the ACK that it depends
//! on, and no stream asks to be woken in the past.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use deltafan::cache::Protocol;
use deltafan::proto;
use deltafan::subscription::NextStep;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::Pipe;
use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::{Client, Fixture, show, strings, url};
use deltafan_test_support::wire::Told;

const ROUTES: [&str; 3] = ["r", "s", "t"];
/// Longest time on the way to or from a client. Clusters get warm within the time for which routes wait, one after another.
const ON_THE_WAY: u64 = 250;
/// Longest time between clusters that a restarted origin tells of and their routes.
const BETWEEN_TYPES: u64 = 1_500;
/// Longest time from a word of the control plane on clusters to the next that waited for its ACK, and between clusters and routes that
/// changed together.
const ROUND_TRIP: Duration = Duration::from_millis(400);
const SLICE: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_secs(15);

enum Request {
    Sotw(proto::DiscoveryRequest),
    Delta(proto::DeltaDiscoveryRequest),
}

struct Cluster {
    version: String,
    is_active: bool,
    is_warming: bool,
}

/// When a message arrives that is sent now.
fn arrival(now: Instant, rng: &mut StdRng) -> Instant {
    now + Duration::from_millis(rng.random_range(0..ON_THE_WAY))
}

struct Envoy {
    number: usize,
    client: Client,
    protocol: Protocol,
    down: Pipe<Told>,
    up: Pipe<Request>,
    clusters: BTreeMap<String, Cluster>,
    routes: BTreeMap<String, String>,
    /// Clusters that are not ACKed before they are warm.
    held: Option<Told>,
    /// Whether it has come in this step: what it holds from before is not known, so that a cluster which was withdrawn stays for as long
    /// as routes wait.
    is_new: bool,
    /// Newest responses that it has read: version and nonce by type.
    read: BTreeMap<&'static str, (String, String)>,
}

impl Envoy {
    fn new(fixture: &Fixture, number: usize, protocol: Protocol) -> Self {
        let mut envoy = Self {
            number,
            client: fixture.client(protocol, None),
            protocol,
            down: Pipe::default(),
            up: Pipe::default(),
            clusters: BTreeMap::new(),
            routes: BTreeMap::new(),
            held: None,
            is_new: true,
            read: BTreeMap::new(),
        };
        envoy.connect(fixture);
        envoy
    }

    /// Opens a stream, on which a delta client says what it holds.
    fn connect(&mut self, fixture: &Fixture) {
        self.client = fixture.client(self.protocol, None);
        (self.down, self.up) = (Pipe::default(), Pipe::default());
        (self.held, self.read, self.is_new) = (None, BTreeMap::new(), true);
        if self.protocol == Protocol::Sotw {
            self.client.ask(fixture, "cds", &[]);
            self.client.ask(fixture, "rds", &ROUTES);
            return;
        }
        let held: Vec<(&str, &str)> =
            self.clusters.iter().map(|(name, cluster)| (name.as_str(), cluster.version.as_str())).collect();
        self.client.resume(fixture, "cds", &["*"], &held);
        let held: Vec<(&str, &str)> =
            self.routes.iter().map(|(name, version)| (name.as_str(), version.as_str())).collect();
        self.client.resume(fixture, "rds", &ROUTES, &held);
        if !self.clusters.is_empty() {
            let names: Vec<&str> = self.clusters.keys().map(String::as_str).collect();
            self.client.resume(fixture, "eds", &names, &[]);
        }
    }

    fn names(&self, short: &str) -> Vec<String> {
        match short {
            "rds" => strings(&ROUTES),
            "eds" => self.clusters.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    fn ack(&mut self, told: &Told) -> Request {
        let (short, type_url) = (told.type_url.kind().short(), told.type_url.as_str().to_owned());
        self.read.insert(short, (told.version.clone(), told.nonce.clone()));
        let response_nonce = told.nonce.clone();
        match self.protocol {
            Protocol::Sotw => Request::Sotw(proto::DiscoveryRequest {
                type_url,
                response_nonce,
                version_info: told.version.clone(),
                resource_names: self.names(short),
                ..proto::DiscoveryRequest::default()
            }),
            Protocol::Delta => Request::Delta(proto::DeltaDiscoveryRequest {
                type_url,
                response_nonce,
                ..proto::DeltaDiscoveryRequest::default()
            }),
        }
    }

    /// Asks for the endpoints of its clusters, where these changed.
    fn follow_endpoints(&self, before: &BTreeSet<String>) -> Option<Request> {
        let after: BTreeSet<String> = self.clusters.keys().cloned().collect();
        let type_url = url("eds").as_str().to_owned();
        if after == *before {
            return None;
        }
        Some(match self.protocol {
            Protocol::Sotw => {
                let (version_info, response_nonce) = self.read.get("eds").cloned().unwrap_or_default();
                Request::Sotw(proto::DiscoveryRequest {
                    type_url,
                    version_info,
                    response_nonce,
                    resource_names: after.into_iter().collect(),
                    ..proto::DiscoveryRequest::default()
                })
            }
            Protocol::Delta => Request::Delta(proto::DeltaDiscoveryRequest {
                type_url,
                resource_names_subscribe: after.difference(before).cloned().collect(),
                resource_names_unsubscribe: before.difference(&after).cloned().collect(),
                ..proto::DeltaDiscoveryRequest::default()
            }),
        })
    }

    /// Takes in a response. Returns what it has to say.
    fn take(&mut self, told: Told) -> Vec<Request> {
        match told.type_url.kind().short() {
            "cds" => {
                let before: BTreeSet<String> = self.clusters.keys().cloned().collect();
                let is_told = |name: &str| told.resources.iter().any(|(other, _)| other == name);
                let is_full = self.protocol == Protocol::Sotw;
                self.clusters.retain(|name, _| !told.removed.contains(name) && (!is_full || is_told(name)));
                for (name, version) in &told.resources {
                    let is_active = self.clusters.get(name).is_some_and(|cluster| cluster.is_active);
                    if self.clusters.get(name).is_none_or(|cluster| cluster.version != *version) {
                        let cluster = Cluster { version: version.clone(), is_active, is_warming: true };
                        self.clusters.insert(name.clone(), cluster);
                    }
                }
                self.held = Some(told);
                self.follow_endpoints(&before).into_iter().chain(self.ack_warm()).collect()
            }
            "eds" => {
                for (name, _) in &told.resources {
                    if let Some(cluster) = self.clusters.get_mut(name) {
                        (cluster.is_active, cluster.is_warming) = (true, false);
                    }
                }
                // One without endpoints is as warm as it gets. No request gets an answer from it.
                for name in &told.removed {
                    if let Some(cluster) = self.clusters.get_mut(name) {
                        cluster.is_warming = false;
                    }
                }
                let ack = self.ack(&told);
                [ack].into_iter().chain(self.ack_warm()).collect()
            }
            _ => {
                self.routes.extend(told.resources.iter().cloned());
                vec![self.ack(&told)]
            }
        }
    }

    fn ack_warm(&mut self) -> Option<Request> {
        if self.clusters.values().any(|cluster| cluster.is_warming) {
            return None;
        }
        let told = self.held.take()?;
        Some(self.ack(&told))
    }

    /// Everything that happens at this moment.
    fn run(&mut self, fixture: &Fixture, rng: &mut StdRng, trace: bool) {
        let now = fixture.now;
        while let Some(request) = self.up.take(now) {
            match request {
                Request::Sotw(request) => self.client.on_sotw_request(fixture, request).unwrap(),
                Request::Delta(request) => self.client.on_delta_request(fixture, request).unwrap(),
            };
        }
        while let Some(told) = self.client.poll(fixture) {
            if trace {
                eprintln!("{now:?} {} {:?} is sent {}", self.number, self.protocol, show(&told));
            }
            self.down.send(told, arrival(now, rng));
        }
        let overdue = &self.client.overdue;
        assert!(
            self.is_new || overdue.is_empty(),
            "{}: {overdue:?}: it answers, and is waited for",
            self.number
        );
        if let NextStep::Wait(Some(until)) = self.client.next(fixture) {
            assert!(until > now, "it asks to be woken in the past");
        }
        while let Some(told) = self.down.take(now) {
            if trace {
                eprintln!("{now:?} {} {:?} reads {}", self.number, self.protocol, show(&told));
            }
            for request in self.take(told) {
                self.up.send(request, arrival(now, rng));
            }
            self.check();
        }
    }

    fn check(&self) {
        for (route, cluster) in &self.routes {
            let is_warm = self.clusters.get(cluster).is_some_and(|cluster| cluster.is_active);
            assert!(is_warm, "{}: {route} leads to {cluster}, which is not warm", self.number);
        }
    }
}

/// Word of the origin that is on its way.
enum Late {
    /// Endpoints of a cluster come.
    Endpoints(String),
    /// They go.
    NoEndpoints(String),
    /// The newest state of a route.
    Route(&'static str),
}

struct World {
    rng: StdRng,
    fixture: Fixture,
    /// Clusters by route, and versions of clusters.
    routes: BTreeMap<&'static str, String>,
    versions: BTreeMap<String, u64>,
    /// Clusters that all clients know.
    known: BTreeSet<String>,
    late: Vec<(Instant, Late)>,
    envoys: Vec<Envoy>,
    next: u64,
    /// When the control plane last said anything of clusters: it may tell of routes to the next ones first.
    said_clusters: Instant,
    trace: bool,
}

impl World {
    fn say(&mut self, text: &str) {
        if self.trace {
            eprintln!("{:?} origin: {text}", self.fixture.now);
        }
        if text.starts_with("cds") {
            self.said_clusters = self.fixture.now;
        }
        if text.starts_with("cds") { self.fixture.origin(text) } else { self.fixture.named(text) }
    }

    fn later(&mut self, within: u64, what: Late) {
        let time = Duration::from_millis(self.rng.random_range(0..within));
        self.late.push((self.fixture.now + time, what));
    }

    fn say_what_is_due(&mut self) {
        let now = self.fixture.now;
        let (due, late) =
            std::mem::take(&mut self.late).into_iter().partition(|(due, _): &(Instant, Late)| *due <= now);
        self.late = late;
        for (_, what) in due {
            match what {
                // Of a cluster that is gone before it had any, nobody ever hears.
                Late::Endpoints(name) if self.versions.contains_key(&name) => {
                    self.say(&format!("eds {name}:1"))
                }
                Late::Endpoints(_) => {}
                Late::NoEndpoints(name) => self.say(&format!("eds -{name}")),
                Late::Route(route) => self.say_route(route),
            }
        }
    }

    fn say_route(&mut self, route: &'static str) {
        self.say(&format!("rds {route}:{}", self.routes[route]));
    }

    fn wait(&mut self, time: Duration) {
        let end = self.fixture.now + time;
        while self.fixture.now < end {
            self.say_what_is_due();
            for envoy in &mut self.envoys {
                envoy.run(&self.fixture, &mut self.rng, self.trace);
            }
            self.fixture.after(SLICE);
        }
    }

    fn pause(&mut self) {
        if self.rng.random_bool(0.5) {
            let time = self.rng.random_range(0..300);
            self.wait(Duration::from_millis(time));
        }
    }

    /// A route moves to a new cluster, and the old one goes unless another route leads to it.
    fn swap(&mut self, route: &'static str) {
        self.next += 1;
        let name = format!("eds{}", self.next);
        let old = self.routes.insert(route, name.clone());
        // A direct client fails too where a cluster comes, and goes before its routes do.
        let is_known = old.as_ref().is_none_or(|old| self.known.contains(old));
        let gone = old.filter(|old| !self.routes.values().any(|other| other == old));
        self.versions.insert(name.clone(), 1);
        if let Some(gone) = &gone {
            self.versions.remove(gone);
            let ends = self.fixture.now + QUIET;
            self.late.push((ends, Late::NoEndpoints(gone.clone())));
        }
        self.later(200, Late::Endpoints(name.clone()));
        let removal = gone.map_or_else(String::new, |gone| format!(" -{gone}"));
        if is_known && self.rng.random_bool(0.4) {
            self.say(&format!("cds {name}:1{removal}"));
            return self.later(BETWEEN_TYPES, Late::Route(route));
        }
        if self.fixture.now < self.said_clusters + ROUND_TRIP && self.rng.random_bool(0.3) {
            self.say_route(route);
            self.pause();
            self.say(&format!("cds {name}:1"));
        } else {
            self.say(&format!("cds {name}:1"));
            self.pause();
            self.say_route(route);
        }
        self.pause();
        if !removal.is_empty() {
            self.say(&format!("cds{removal}"));
        }
    }

    /// A cluster changes, or one that no route needs comes.
    fn change(&mut self) {
        let at = self.rng.random_range(0..self.versions.len());
        let (name, version) = self.versions.iter_mut().nth(at).unwrap();
        *version += 1;
        let text = format!("cds {name}:{version}");
        self.say(&text);
    }
}

impl Scenario for World {
    const NAME: &'static str = "swaps";
    const LENGTH: u64 = 20;
    const STEPS: u64 = 60 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let fixture = Fixture::knowing(&["cds"]);
        let fixture_now = fixture.now;
        let mut world = Self {
            rng: StdRng::seed_from_u64(seed),
            fixture,
            routes: BTreeMap::new(),
            versions: BTreeMap::new(),
            known: BTreeSet::new(),
            late: Vec::new(),
            envoys: Vec::new(),
            next: 0,
            said_clusters: fixture_now,
            trace,
        };
        ROUTES.into_iter().for_each(|route| world.swap(route));
        world.wait(QUIET);
        for (number, protocol) in
            [Protocol::Delta, Protocol::Sotw, Protocol::Delta, Protocol::Sotw].into_iter().enumerate()
        {
            world.envoys.push(Envoy::new(&world.fixture, number, protocol));
        }
        world.wait(QUIET);
        world
    }

    /// Some changes in a short time, after which there is time for all of them.
    fn step(&mut self, _: u64) {
        self.known = self.versions.keys().cloned().collect();
        self.envoys.iter_mut().for_each(|envoy| (envoy.is_new, envoy.client.overdue) = (false, Vec::new()));
        for _ in 0..self.rng.random_range(1..4) {
            match self.rng.random_range(0..8) {
                0..5 => {
                    let route = ROUTES[self.rng.random_range(0..ROUTES.len())];
                    self.swap(route);
                }
                5..7 => self.change(),
                // State of the world says nothing of what goes meanwhile.
                _ => {
                    let delta: Vec<&mut Envoy> =
                        self.envoys.iter_mut().filter(|envoy| envoy.protocol == Protocol::Delta).collect();
                    let at = self.rng.random_range(0..delta.len());
                    if let Some(envoy) = delta.into_iter().nth(at) {
                        envoy.connect(&self.fixture);
                    }
                }
            }
            self.pause();
        }
        self.wait(QUIET);
        let clusters: Vec<(&String, String)> =
            self.versions.iter().map(|(name, version)| (name, version.to_string())).collect();
        for envoy in &self.envoys {
            let held: Vec<(&String, String)> =
                envoy.clusters.iter().map(|(name, cluster)| (name, cluster.version.clone())).collect();
            assert_eq!(held, clusters, "{:?}", envoy.protocol);
            let routes: BTreeMap<&str, String> =
                envoy.routes.iter().map(|(name, cluster)| (name.as_str(), cluster.clone())).collect();
            assert_eq!(routes, self.routes, "{:?}", envoy.protocol);
        }
    }
}

#[test]
fn no_active_route_leads_to_a_cluster_that_is_not_warm() {
    harness::play::<World>();
}
