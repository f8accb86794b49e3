//! One history: the clock, the events, and everybody in it.
//!
//! Owns time. Events happen in their order; a process that is paused finds later what arrived meanwhile. What somebody wants
//! sent is put on its link here, and what arrives is handed over. Decides nothing of what is right.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::cache::{Cache, Generation};
use deltafan::subscription::SessionConfig;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::Client;
use super::disk::Disk;
use super::flavor::Flavor;
use super::groups::Host;
use super::judge::{Repeats, Seen};
use super::net::{Consumer, Net, Server};
use super::origin::Origin;
use super::plan::{FAILOVER, GROUPS, PECULIAR, Plan, SOTW, THIN, WARM, WARM_FAILOVER};
use super::queue::Queue;
use super::relay::{Relay, Request};
use super::servers::Elsewhere;
use super::truth::Truth;
use crate::harness::Scenario;

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request arrives.
    Up {
        stream: u32,
        only: Option<usize>,
        request: Box<Request>,
    },
    /// A response arrives.
    Down(Arrival),
    /// The server ended a stream.
    End {
        stream: u32,
        reason: String,
    },
    /// The consumer closed a stream.
    Gone {
        stream: u32,
    },
    /// A connection that was half open is lost, if it is not already; with everything on it.
    Lost {
        link: usize,
    },
    Connected {
        relay: usize,
        ok: bool,
        attempt: u64,
    },
    /// The answer to a relay that asks whether the one before it is answered by its control plane.
    Watches {
        relay: usize,
        attempt: u64,
    },
    /// That word whenever it changes.
    Serves {
        relay: usize,
        attempt: u64,
        serves: bool,
    },
    Taken {
        relay: usize,
        stream: u32,
    },
    Ack {
        client: usize,
        stream: u32,
        at: usize,
        nonce: String,
    },
    Back {
        client: usize,
        attempt: u64,
    },
    Reads {
        client: usize,
    },
    OriginWakes,
    Heartbeat,
}

/// A response on its way, which was made at that moment, when so many requests had been heard.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: u32,
    pub(crate) bytes: Bytes,
    pub(crate) heard: u64,
    pub(crate) made: Instant,
}

/// The control plane as one node sees it.
pub(crate) struct Site {
    pub(crate) truth: Truth,
    pub(crate) origin: Origin,
    pub(crate) contents: u64,
}

impl Site {
    fn new(plan: &Plan) -> Self {
        Self { truth: Truth::default(), origin: Origin::new(plan.flavor, plan.ttl), contents: 0 }
    }
}

pub(crate) struct World {
    pub(crate) trace: bool,
    pub(crate) rng: StdRng,
    pub(crate) plan: Plan,
    pub(crate) base: Instant,
    pub(crate) now: Instant,
    pub(crate) queue: Queue<Event>,
    pub(crate) net: Net,
    /// One for each node that the origin tells apart.
    pub(crate) sites: Vec<Site>,
    /// The control plane that the relay is not connected to, if there are two; the number of the present one, and since when it is that.
    pub(crate) elsewhere: Option<Elsewhere>,
    pub(crate) present: usize,
    pub(crate) moved: Option<Instant>,
    /// Until when the origin does not run, and what arrived meanwhile.
    pub(crate) origin_paused: Option<Instant>,
    pub(crate) origin_backlog: VecDeque<(u32, Request)>,
    /// Until when the link upstream stalls or the origin does not run.
    pub(crate) hushed_until: Instant,
    /// Whether the relay opened a stream anew, on the connection that stands, because nothing came for that reason: what comes then
    /// may look as if the origin had kept it to itself.
    pub(crate) is_misled: bool,
    /// Since when that connection stands.
    pub(crate) connected: Instant,
    /// Relays, or the node groups of one.
    pub(crate) relays: Vec<Relay>,
    /// Parts of a relay that its groups share.
    pub(crate) host: Option<Host>,
    /// Number of the node that the origin was shown on each stream upstream.
    pub(crate) nodes: BTreeMap<u32, usize>,
    pub(crate) seen: Vec<Seen>,
    /// When the oldest state may have come that each relay knows: from those before it, which may have been restarted since.
    pub(crate) known_since: Vec<Instant>,
    /// Content that each relay keeps on disk.
    pub(crate) disks: Vec<Disk>,
    /// On which streams upstream the wildcard of a type was asked for last.
    pub(crate) wildcards: BTreeMap<(u32, usize), bool>,
    /// Newest change in each store of each relay, by type, when it was last looked at.
    pub(crate) looked: BTreeMap<(usize, usize), Generation>,
    /// Last list of names of each type on each state-of-the-world stream upstream.
    pub(crate) lists: BTreeMap<(u32, usize), BTreeSet<String>>,
    /// When each stream upstream was opened.
    pub(crate) opened: BTreeMap<u32, Instant>,
    /// Which attempt to connect each relay is at: an answer to an older one is nobody's.
    pub(crate) attempts: Vec<u64>,
    pub(crate) clients: Vec<Client>,
    /// Arrivals at clients that do not read.
    pub(crate) unread: Vec<VecDeque<Arrival>>,
    /// Streams on which a relay has said more than such a client's transport takes.
    pub(crate) stuffed: Vec<Vec<(u32, bool)>>,
    /// Kinds of control planes that there were so far, the present one last.
    pub(crate) flavors: Vec<Flavor>,
    pub(crate) rules: Arc<SessionConfig>,
    pub(crate) repeats: Repeats,
    /// Count of events that may cause a response.
    pub(crate) causes: u64,
}

/// After so many steps everybody must have what is theirs.
const QUIET: u64 = 20;

impl Scenario for World {
    const NAME: &'static str = "timed";
    const LENGTH: u64 = 60;
    const STEPS: u64 = 9_000;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let plan = Plan::new(seed, &mut rng);
        let (now, rules) = (Instant::now(), Arc::new(SessionConfig::default()));
        let host = plan.groups.map(|groups| Host::new(&plan, groups));
        let count = if plan.chain { 2 } else { plan.group_count() };
        let relays: Vec<Relay> =
            (0..count).map(|at| Self::new_relay(&plan, host.as_ref(), at, &rules, now)).collect();
        let mut net = Net::default();
        // A link upstream for each relay comes first, by the relay's number. Groups share one.
        let links = if plan.chain { 2 } else { 1 };
        net.links.extend((0..links).map(|_| plan.upstream_link(&mut rng)));
        let mut clients = Vec::new();
        for id in 0..plan.clients {
            net.links.push(Plan::client_link(&mut rng));
            clients.push(plan.client(&mut rng, id, net.links.len() - 1));
        }
        let mut world = Self {
            trace,
            base: now,
            now,
            queue: Queue::new(),
            net,
            sites: (0..plan.group_count()).map(|_| Site::new(&plan)).collect(),
            flavors: vec![plan.flavor],
            elsewhere: None,
            present: 0,
            moved: None,
            origin_paused: None,
            origin_backlog: VecDeque::new(),
            hushed_until: now,
            is_misled: false,
            connected: now,
            seen: relays.iter().map(|_| Seen::default()).collect(),
            known_since: vec![now; relays.len()],
            disks: relays.iter().map(|_| Disk::default()).collect(),
            wildcards: BTreeMap::new(),
            looked: BTreeMap::new(),
            lists: BTreeMap::new(),
            opened: BTreeMap::new(),
            attempts: vec![0; relays.len()],
            relays,
            host,
            nodes: BTreeMap::new(),
            unread: clients.iter().map(|_| VecDeque::new()).collect(),
            stuffed: clients.iter().map(|_| Vec::new()).collect(),
            clients,
            rules,
            repeats: Repeats::default(),
            causes: 0,
            plan,
            rng,
        };
        world.say(|world| format!("{:?} {:?}", world.plan, world.net.links));
        world.begin();
        world
    }

    fn step(&mut self, step: u64) {
        self.trouble();
        if (step + 1).is_multiple_of(QUIET) {
            self.quiet();
        }
    }

    fn finish(mut self) {
        self.calm();
    }

    fn parameters(&self) -> String {
        format!("{:?}", self.plan)
    }
}

/// History of another kind: those from this seed on are, however small the seed that is asked for.
pub(crate) struct KindOfWorld<const FIRST: u64, const STEPS: u64>(World);

/// The origin speaks state of the world.
pub(crate) type SotwWorld = KindOfWorld<SOTW, 3_000>;
/// The relay has node groups.
pub(crate) type GroupsWorld = KindOfWorld<GROUPS, 3_000>;
/// The link upstream is thin.
pub(crate) type ThinWorld = KindOfWorld<THIN, 2_400>;
/// There are two control planes.
pub(crate) type FailoverWorld = KindOfWorld<FAILOVER, 4_200>;
/// Relays keep what they hold on disk, and are killed.
pub(crate) type WarmWorld = KindOfWorld<WARM, 4_200>;
/// They also move between two control planes.
pub(crate) type WarmFailoverWorld = KindOfWorld<WARM_FAILOVER, 3_000>;
/// The control plane is peculiar.
pub(crate) type PeculiarWorld = KindOfWorld<PECULIAR, 3_000>;

impl<const FIRST: u64, const STEPS: u64> Scenario for KindOfWorld<FIRST, STEPS> {
    const NAME: &'static str = World::NAME;
    const LENGTH: u64 = World::LENGTH;
    const STEPS: u64 = STEPS;

    fn new(seed: u64, trace: bool) -> Self {
        Self(World::new(if seed < FIRST { FIRST + seed } else { seed }, trace))
    }

    fn step(&mut self, step: u64) {
        self.0.step(step);
    }

    fn finish(self) {
        self.0.finish();
    }

    fn parameters(&self) -> String {
        self.0.parameters()
    }
}

impl World {
    fn begin(&mut self) {
        for (site, at) in (0..self.sites.len()).flat_map(|site| (0..4).map(move |at| (site, at))) {
            let chance = if self.rng.random_bool(0.15) { 0.0 } else { 0.7 };
            for name in self.plan.all_names(at) {
                let is_there = self.rng.random_bool(chance);
                self.publish(site, at, &name, is_there);
            }
        }
        if self.plan.failover {
            self.begin_elsewhere();
        }
        for client in 0..self.clients.len() {
            let wait = Duration::from_millis(self.rng.random_range(0..2_000));
            let attempt = self.clients[client].attempt;
            self.queue.put(self.now + wait, Event::Back { client, attempt });
        }
        if let Some(ttl) = self.plan.ttl {
            self.queue.put(self.now + ttl / 3, Event::Heartbeat);
        }
    }

    /// Prints a line of the trace.
    pub(crate) fn say(&self, text: impl FnOnce(&Self) -> String) {
        if self.trace {
            let text = text(self);
            let clipped: String = text.chars().take(1_500).collect();
            eprintln!("{:>10.3} {clipped}", (self.now - self.base).as_secs_f64());
        }
    }

    /// Lets time pass, and everything happen that is due on the way.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        let mut turns = 0;
        loop {
            while let Some(event) = self.queue.take(self.now) {
                self.happen(event);
            }
            // Input before deadlines: all that has arrived by now was handed over.
            let mut busy = false;
            for relay in 0..self.relays.len() {
                self.seat(relay);
                if self.relays[relay].next(self.now).is_some_and(|at| at <= self.now) {
                    busy = true;
                    let link = self.link_of(relay);
                    let received = self.net.links[link].received(self.now);
                    let out = self.relays[relay].turn(received, self.now, &mut self.rng, &mut self.net.next);
                    out.into_iter().for_each(|output| self.route(relay, output));
                    self.check_stores(relay);
                    self.write(relay);
                    self.unseat(relay);
                }
            }
            self.release_unused();
            if busy {
                turns += 1;
                assert!(turns < 5_000, "SPIN: it has always something to do: {}", self.busy());
                continue;
            }
            let relays = self.relays.iter().filter_map(|relay| relay.next(self.now));
            let next = relays.chain(self.queue.next()).chain(self.next_release()).min();
            match next.filter(|at| *at <= end) {
                Some(at) => {
                    turns = if at > self.now { 0 } else { turns + 1 };
                    assert!(turns < 5_000, "SPIN: nothing makes time go on");
                    self.now = self.now.max(at);
                }
                None => break,
            }
        }
        self.now = end;
    }

    fn busy(&self) -> String {
        let busy = self.relays.iter().map(|relay| relay.busy(self.now));
        busy.collect::<Vec<_>>().join("; ")
    }

    /// A relay as it starts, or one of its groups. Those that clients make begin with the first of them.
    pub(crate) fn new_relay(
        plan: &Plan,
        host: Option<&Host>,
        at: usize,
        rules: &Arc<SessionConfig>,
        now: Instant,
    ) -> Relay {
        let neighbours = (plan.chain && at > 0, at == 0 && plan.chain);
        let store = match host {
            Some(host) if at == 0 => host.store(plan),
            Some(_) | None => Cache::new(plan.limits()),
        };
        let settings = plan.settings();
        let settings = match host {
            Some(host) => host.settings(plan, settings.node),
            None => settings,
        };
        let mut relay = Relay::new(settings, store, rules, neighbours, now);
        if plan.ends_stream && (at == 0 || !plan.chain) {
            relay.ask_for_ending();
        }
        if host.is_some() && at > 0 { relay.unused() } else { relay }
    }

    /// The relay, or all groups of the process that this one is in.
    pub(crate) const fn parts(&self, relay: usize) -> std::ops::Range<usize> {
        if self.host.is_some() { 0..self.sites.len() } else { relay..relay + 1 }
    }

    /// Where a relay's streams lead.
    pub(crate) const fn server_of(plan: &Plan, relay: usize) -> Server {
        if relay == 0 || !plan.chain { Server::Origin } else { Server::Relay(relay - 1) }
    }

    /// The relays between the origin and the clients of this one.
    pub(crate) fn way(&self, relay: usize) -> std::ops::RangeInclusive<usize> {
        if self.plan.chain { 0..=relay } else { relay..=relay }
    }

    /// Number of the link upstream.
    pub(crate) const fn link_of(&self, relay: usize) -> usize {
        if self.plan.chain { relay } else { 0 }
    }

    /// Number of the node as which the origin sees a relay.
    pub(crate) const fn site_of(&self, relay: usize) -> usize {
        if self.plan.chain { 0 } else { relay }
    }

    pub(crate) fn truth(&self, relay: usize) -> &Truth {
        &self.sites[self.site_of(relay)].truth
    }

    /// Kind of the control plane, which is the same for all nodes.
    pub(crate) fn flavor(&self) -> Flavor {
        self.sites[0].origin.flavor
    }

    /// Clients that see what this one sees.
    pub(crate) fn neighbours(&self, of: &Client) -> impl Iterator<Item = &Client> {
        let site = self.site_of(of.relay);
        self.clients.iter().filter(move |other| self.site_of(other.relay) == site)
    }

    pub(crate) fn consumer(&self, stream: u32) -> Option<Consumer> {
        self.net.streams.get(&stream).map(|stream| stream.consumer)
    }
}
