//! Waits of clients for what a control plane can be asked: which names exist, and whether a set is complete. No clock decides it, so
//! a client waits for a few round trips. Each test measures, and prints, what clients of the relay waited for in a situation that
//! once took seconds. Real Envoys and gRPC clients are in [`clients`].

mod clients;

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use deltafan::{descriptors, proto::DiscoveryRequest};
use deltafan_test_support::{
    client::{SOTW_ADS, Sotw, connect, node},
    http1::Http1,
    process::Process,
    slow_link::SlowLink,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    fixture::{
        ControlPlane, Fixture, Origin, PATIENCE, Transport, eventually, require_relay,
        resources::{CLUSTER, ENDPOINTS},
    },
    fleet::{
        client::{Client, Held},
        local,
        world::{Guest, World, subscriptions},
    },
};

/// A few round trips on a busy machine.
const BOUND: Duration = Duration::from_millis(1_500);
/// Clusters beside those that change: none, or those of a large fleet.
const OTHERS: [usize; 2] = [0, 1_998];
/// Longer than any clock of the relay: a wait that ends with one is measured, too.
const LONGEST: Duration = Duration::from_secs(100);
/// There and back on a long link.
const LONG: Duration = Duration::from_millis(300);

/// It serves clusters only.
const LINEAR: ControlPlane = ControlPlane::Go("v0.14.0", &["--cache", "linear"]);
/// A LinearCache for each type.
const MUX: ControlPlane = ControlPlane::Go("v0.14.0", &["--cache", "mux"]);
const SNAPSHOT: ControlPlane = ControlPlane::Go("v0.14.0", &["--cache", "snapshot"]);
const JAVA: ControlPlane = ControlPlane::Java("v1.0.49");

const ADS: [Transport; 2] = [Transport::DeltaAds, Transport::SotwAds];
const ALL: &[(&str, &[&str])] = &[(CLUSTER, &[])];
const NOWHERE: &str = "nowhere";
const CONNECTED: &str = "deltafan_upstream_connected";

/// Times that clients waited in a test.
struct Waits {
    bound: Duration,
    late: Vec<String>,
}

impl Waits {
    /// Those over a link that takes so long there and back: three times may be needed.
    fn over(round_trip: Duration) -> Self {
        Self { bound: BOUND + 3 * round_trip, late: Vec::new() }
    }

    /// Waits until an attempt succeeds, and notes the time since then.
    fn measure(&mut self, what: &str, since: Instant, attempt: impl FnMut() -> Result<(), String>) {
        eventually(LONGEST, what, attempt);
        self.note(what, since.elapsed());
    }

    fn note(&mut self, what: &str, took: Duration) {
        self.note_beside(what, took, Duration::ZERO);
    }

    /// Notes a time of which a part is wanted.
    fn note_beside(&mut self, what: &str, took: Duration, wanted: Duration) {
        let line = format!("{what}: {} ms", took.as_millis());
        println!("{line}");
        if took > self.bound + wanted {
            self.late.push(line);
        }
    }

    fn check(self) {
        assert!(self.late.is_empty(), "longer than {:?}:\n{}", self.bound, self.late.join("\n"));
    }
}

/// A control plane, the link to it, and a relay.
struct Bed {
    fixture: Fixture,
    link: SlowLink,
    relay: Option<Process>,
    world: World,
    runtime: Runtime,
}

impl Bed {
    /// Starts them over a link that takes so long there and back.
    fn start(control_plane: ControlPlane, round_trip: Duration) -> Option<Self> {
        Self::start_on("OWN:0", control_plane, round_trip)
    }

    /// Starts them; the relay listens at this address.
    fn start_on(address: &str, control_plane: ControlPlane, round_trip: Duration) -> Option<Self> {
        require_relay()?;
        let fixture = Fixture::start_relays(control_plane, 0, "auto", "")?;
        let runtime = Runtime::new().unwrap();
        let link = runtime.block_on(SlowLink::to(local(fixture.origin.port()), round_trip / 2));
        let listeners = format!("[{{address: \"{address}\"}}]");
        let relay = Some(Process::behind_with(&link.uri(), &listeners, ""));
        Some(Self { fixture, link, relay, world: World::default(), runtime })
    }

    fn relay(&self) -> &Process {
        self.relay.as_ref().expect("the relay runs")
    }

    fn event(&self, event: &str) -> f64 {
        self.relay().metric(&format!("deltafan_upstream_events_total{{event=\"{event}\"}}"))
    }

    fn set(&mut self, type_url: &'static str, names: &[&'static str]) {
        names.iter().for_each(|name| self.world.set(&self.fixture.origin, type_url, name));
    }

    /// Sets so many clusters that stay as they are.
    fn set_others(&mut self, count: usize) {
        (0..count).for_each(|number| self.set(CLUSTER, &[format!("other-{number}").leak()]));
    }

    /// Kills the relay, and starts it again without anything that it knew. Returns once it is connected.
    fn restart_relay(&mut self, meanwhile: impl FnOnce(&mut World, &Origin)) {
        let relay = self.relay.take().expect("the relay runs");
        let relay = relay.killed_and_restarted(|_| meanwhile(&mut self.world, &self.fixture.origin));
        relay.wait_for("readiness", || relay.admin_get("/ready").0 == 200);
        self.relay = Some(relay);
    }

    fn enter(&self, transport: Transport, asked: &[(&'static str, &[&str])], held: Held) -> Guest {
        enter(&self.runtime, self.relay().listener, transport, asked, held)
    }

    fn wait_until_all_hold(&self, guests: &[Guest]) {
        eventually(LONGEST, "all hold what there is", || {
            guests.iter().try_for_each(|guest| holds(guest, &self.world))
        });
    }
}

fn enter(
    runtime: &Runtime,
    server: SocketAddr,
    transport: Transport,
    asked: &[(&'static str, &[&str])],
    held: Held,
) -> Guest {
    let asked = subscriptions(asked);
    let client = Client::come_back(runtime.handle(), server, transport, &asked, held);
    Guest { client, who: format!("{transport:?}"), asked }
}

fn holds(guest: &Guest, world: &World) -> Result<(), String> {
    guest.complaint(world).map_or(Ok(()), Err)
}

fn wait_for_metric(relay: &Process, name: &str, expected: f64) {
    eventually(PATIENCE, name, || match relay.metric(name) {
        value if value == expected => Ok(()),
        value => Err(format!("{value}")),
    });
}

/// The control plane with its cache, in a word.
fn word(control_plane: ControlPlane) -> &'static str {
    match control_plane {
        ControlPlane::Go(_, flags) => flags[1],
        ControlPlane::Java(_) => "java",
    }
}

#[test]
fn changes_reach_a_client_that_lists_ever_new_names_that_do_not_exist() {
    const CHANGES: usize = 12;
    let mut waits = Waits::over(Duration::ZERO);
    for (control_plane, others) in
        [LINEAR, SNAPSHOT].into_iter().flat_map(|plane| OTHERS.map(|of| (plane, of)))
    {
        let Some(mut bed) = Bed::start(control_plane, Duration::ZERO) else { return };
        bed.set_others(others);
        bed.set(CLUSTER, &["a"]);
        let arrivals = Arc::default();
        let task = bed.runtime.spawn(list_ever_new_names(bed.relay().uri(), Arc::clone(&arrivals)));
        let arrival_of = |number: u64| {
            let arrivals = arrivals.lock();
            arrivals.iter().find(|(_, has)| *has >= number).map(|(at, _)| *at).ok_or_else(String::new)
        };
        eventually(LONGEST, "the cluster arrives", || arrival_of(1));
        let mut changes = Vec::new();
        for _ in 0..CHANGES {
            let since = Instant::now();
            bed.set(CLUSTER, &["a"]);
            changes.push((since, number(&bed.world.body(CLUSTER, "a"))));
            thread::sleep(Duration::from_secs(1).saturating_sub(since.elapsed()));
        }
        for (at, (since, number)) in changes.into_iter().enumerate() {
            let arrived = eventually(LONGEST, "the change arrives", || arrival_of(number));
            let what = format!("row 1, {}, {others} others: change {at}", word(control_plane));
            waits.note(&what, arrived.duration_since(since));
        }
        assert!(!task.is_finished(), "the client goes on");
        task.abort();
    }
    waits.check();
}

/// Lists `*`, and one more name that does not exist every 2 s. Notes the number in the cluster that arrives.
async fn list_ever_new_names(server: String, arrivals: Arc<Mutex<Vec<(Instant, u64)>>>) {
    let mut stream = Sotw::open(&connect(&server).await, SOTW_ADS).await;
    let mut more = tokio::time::interval(Duration::from_secs(2));
    let mut request =
        DiscoveryRequest { node: Some(node("lists")), type_url: CLUSTER.to_owned(), ..Default::default() };
    request.resource_names.push("*".to_owned());
    loop {
        tokio::select! {
            _ = more.tick() => request.resource_names.push(format!("{NOWHERE}-{}", request.resource_names.len())),
            response = stream.response() => {
                let numbers = response.resources.iter().map(|any| number(&descriptors::any_to_json(any).unwrap()));
                arrivals.lock().extend(numbers.map(|number| (Instant::now(), number)));
                request.version_info = response.version_info;
                request.response_nonce = response.nonce;
            }
        }
        stream.send(request.clone()).await;
    }
}

/// The number in the JSON of a numbered cluster.
fn number(cluster: &Value) -> u64 {
    cluster["connectTimeout"].as_str().unwrap().trim_end_matches('s').parse().unwrap()
}

/// Changes of the control plane, whose clusters were `a` and `b`.
type Changes = fn(&mut World, &Origin);

const NOTHING_IS_LEFT: Changes = |world, origin| {
    world.remove(origin, CLUSTER, "a");
    world.remove(origin, CLUSTER, "b");
};
const ONE_IS_LEFT_AND_CHANGED: Changes = |world, origin| {
    world.remove(origin, CLUSTER, "b");
    world.set(origin, CLUSTER, "a");
};
const ONE_OF_TWO_GOES: Changes = |world, origin| world.remove(origin, CLUSTER, "b");

/// Clients hold `a` and `b`; the relay is killed, and what there is changes. A client of each protocol comes back, each to a relay that
/// has just started.
fn come_back(
    row: &str,
    (control_plane, others): (ControlPlane, usize),
    round_trip: Duration,
    changes: &[(&str, Changes)],
) {
    let mut waits = Waits::over(round_trip);
    for (has, change) in changes {
        let Some(mut bed) = Bed::start(control_plane, round_trip) else { return };
        bed.set_others(others);
        bed.set(CLUSTER, &["a", "b"]);
        let guests = ADS.map(|transport| bed.enter(transport, ALL, Held::default()));
        bed.wait_until_all_hold(&guests);
        let (polled, _) = poll(bed.relay(), "");
        let mut change = Some(change);
        let taken = guests.map(|guest| (guest.client.transport(), guest.client.held()));
        for (transport, held) in taken.into_iter().chain([(Transport::Rest, Held::default())]) {
            bed.restart_relay(|world, origin| {
                change.take().into_iter().for_each(|change| change(world, origin))
            });
            let what = format!(
                "{row}, {}, {others} others, {round_trip:?}, {has}: {transport:?}",
                word(control_plane)
            );
            let since = Instant::now();
            if transport == Transport::Rest {
                let (_, names) = poll(bed.relay(), &polled);
                waits.note(&what, since.elapsed());
                let expected: BTreeSet<String> = bed.world.names(CLUSTER).map(str::to_owned).collect();
                assert_eq!(names, expected, "{what}");
            } else {
                let guest = bed.enter(transport, ALL, held);
                waits.measure(&what, since, || holds(&guest, &bed.world));
            }
        }
    }
    waits.check();
}

/// Polls for all clusters with a version until there is an answer; returns the version and names in it.
fn poll(relay: &Process, version: &str) -> (String, BTreeSet<String>) {
    let mut client = Http1::connect(relay.listener);
    let request = json!({"node": {"id": "polls"}, "version_info": version}).to_string();
    let answer = eventually(LONGEST, "the poll is answered", || match client.poll("clusters", &request) {
        answer if answer.status == 200 => Ok(answer),
        answer => Err(format!("{answer:?}")),
    });
    let json = answer.json();
    let name = |resource: &Value| resource["name"].as_str().unwrap().to_owned();
    (answer.version(), json["resources"].as_array().unwrap().iter().map(name).collect())
}

const COLD: [(&str, Changes); 2] = [("0 clusters", NOTHING_IS_LEFT), ("1 cluster", ONE_IS_LEFT_AND_CHANGED)];
const KILLED: [(&str, Changes); 1] = [("b is deleted", ONE_OF_TWO_GOES)];

#[test]
fn clients_that_come_back_to_a_cold_relay_are_answered() {
    for (plane, round_trip) in over_both_links([LINEAR, SNAPSHOT]) {
        come_back("row 2", (plane, 0), round_trip, &COLD);
    }
}

#[test]
fn a_cluster_that_was_deleted_while_the_relay_was_dead_goes() {
    for (plane, round_trip) in over_both_links([LINEAR, SNAPSHOT]) {
        OTHERS.into_iter().for_each(|others| come_back("row 3", (plane, others), round_trip, &KILLED));
    }
}

fn over_both_links(planes: [ControlPlane; 2]) -> impl Iterator<Item = (ControlPlane, Duration)> {
    planes.into_iter().flat_map(|plane| [(plane, Duration::ZERO), (plane, LONG)])
}

/// Asks by census.
#[test]
fn clients_that_come_back_to_a_cold_relay_are_answered_behind_java() {
    come_back("java", (JAVA, 0), Duration::ZERO, &[COLD[1], KILLED[0]]);
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    /// The link to the control plane leads nowhere.
    Link,
    /// The control plane is killed.
    Killed,
    /// The connection is reset, and made again at once. The member goes so many milliseconds later.
    Reset(u64),
}

const OUTAGES: [Outage; 10] = [
    Outage::Link,
    Outage::Killed,
    Outage::Reset(0),
    Outage::Reset(20),
    Outage::Reset(40),
    Outage::Reset(50),
    Outage::Reset(60),
    Outage::Reset(80),
    Outage::Link,
    Outage::Killed,
];

#[test]
fn a_member_that_is_deleted_while_the_control_plane_is_away_goes() {
    let mut waits = Waits::over(Duration::ZERO);
    [LINEAR, SNAPSHOT].into_iter().for_each(|plane| member_goes("row 6", plane, &OUTAGES, &mut waits));
    waits.check();
}

/// A JVM that has just started takes longer: it is not killed.
#[test]
fn a_member_that_is_deleted_while_java_is_away_goes() {
    let mut waits = Waits::over(Duration::ZERO);
    member_goes("java", JAVA, &[Outage::Link; 3], &mut waits);
    waits.check();
}

fn member_goes(row: &str, control_plane: ControlPlane, outages: &[Outage], waits: &mut Waits) {
    let Some(mut bed) = Bed::start(control_plane, Duration::ZERO) else { return };
    bed.set(CLUSTER, &["a", "b"]);
    let guests = ADS.map(|transport| bed.enter(transport, ALL, Held::default()));
    bed.wait_until_all_hold(&guests);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for outage in outages {
        match outage {
            Outage::Link => {
                bed.link.lead_to(nobody);
                bed.link.break_connections();
                wait_for_metric(bed.relay(), CONNECTED, 0.0);
            }
            Outage::Killed => {
                bed.fixture.origin.kill();
                wait_for_metric(bed.relay(), CONNECTED, 0.0);
            }
            Outage::Reset(pause) => {
                bed.link.break_connections();
                thread::sleep(Duration::from_millis(*pause));
            }
        }
        bed.world.remove(&bed.fixture.origin, CLUSTER, "b");
        match outage {
            Outage::Link => bed.link.lead_to(local(bed.fixture.origin.port())),
            Outage::Killed => bed.fixture.origin.start_again(),
            Outage::Reset(_) => {}
        }
        wait_for_metric(bed.relay(), CONNECTED, 1.0);
        let since = Instant::now();
        for guest in &guests {
            let what = format!("{row}, {}, {outage:?}: {}", word(control_plane), guest.who);
            waits.measure(&what, since, || holds(guest, &bed.world));
        }
        bed.set(CLUSTER, &["b"]);
        bed.wait_until_all_hold(&guests);
    }
}

#[test]
fn a_member_that_is_deleted_during_a_failover_goes() {
    const KEYS: &str = "failover: {after: 1s, return_after: 1s}, connect_timeout: 1s, \
                        backoff: {initial: 50ms, max: 500ms}";
    const ACTIVE: &str = "deltafan_upstream_active_server";
    let Some(()) = require_relay() else { return };
    let mut waits = Waits::over(Duration::ZERO);
    for control_plane in [LINEAR, SNAPSHOT] {
        let Some(first) = Fixture::start_relays(control_plane, 0, "auto", "") else { return };
        let Some(second) = Fixture::start_relays(control_plane, 0, "auto", "") else { return };
        let mut worlds = [(World::default(), &first.origin), (World::default(), &second.origin)];
        for (world, origin) in &mut worlds {
            ["a", "b"].into_iter().for_each(|name| world.set(origin, CLUSTER, name));
        }
        let servers = worlds.each_ref().map(|(_, origin)| format!("http://127.0.0.1:{}", origin.port()));
        let relay = Process::behind_several(&servers, KEYS, "");
        let runtime = Runtime::new().unwrap();
        let guests = ADS.map(|transport| enter(&runtime, relay.listener, transport, ALL, Held::default()));
        let [(first_world, first), (second_world, second)] = &mut worlds;
        for moment in ["before", "during", "at the end of"] {
            eventually(LONGEST, "all hold what there is", || {
                guests.iter().try_for_each(|guest| holds(guest, first_world))
            });
            if moment == "before" {
                second_world.remove(second, CLUSTER, "b");
            }
            first.kill();
            first_world.remove(first, CLUSTER, "b");
            if moment == "during" {
                second_world.remove(second, CLUSTER, "b");
            }
            wait_for_metric(&relay, ACTIVE, 1.0);
            if moment == "at the end of" {
                second_world.remove(second, CLUSTER, "b");
            }
            wait_for_metric(&relay, CONNECTED, 1.0);
            let since = Instant::now();
            for guest in &guests {
                let what = format!("row 6, {}, {moment} a failover: {}", word(control_plane), guest.who);
                waits.measure(&what, since, || holds(guest, second_world));
            }
            first_world.set(first, CLUSTER, "b");
            second_world.set(second, CLUSTER, "b");
            first.start_again();
            wait_for_metric(&relay, ACTIVE, 0.0);
        }
    }
    waits.check();
}

/// Asks once, with the end mark: neither a cold start nor a reconnect opens another stream.
#[test]
fn a_cold_start_and_a_reconnect_cost_no_further_stream() {
    /// Longer than the relay waits for an answer before it asks again.
    const OVERDUE: Duration = Duration::from_secs(4);
    for control_plane in [LINEAR, MUX, SNAPSHOT] {
        let Some(mut bed) = Bed::start(control_plane, Duration::ZERO) else { return };
        bed.set(CLUSTER, &["a", "b"]);
        let mut asked = ALL.to_vec();
        if control_plane.serves(ENDPOINTS) {
            bed.set(ENDPOINTS, &["a"]);
            asked.push((ENDPOINTS, &["a", NOWHERE]));
        }
        let guests = ADS.map(|transport| bed.enter(transport, &asked, Held::default()));
        let check = |bed: &Bed, when: &str| {
            bed.wait_until_all_hold(&guests);
            thread::sleep(OVERDUE);
            let (_, metrics) = bed.relay().admin_get("/metrics");
            assert!(metrics.contains("event=\"inquiry\""), "inquiries are counted");
            let events = ["inquiry", "renewal"].map(|event| bed.event(event));
            let open = bed.fixture.origin.stats().open_streams;
            println!(
                "quiet, {}, {when}: inquiries and renewals {events:?}, {open} streams",
                word(control_plane)
            );
            assert_eq!((events, open), ([0.0; 2], 1), "{control_plane:?}, {when}");
        };
        check(&bed, "after a cold start");
        bed.link.break_connections();
        bed.world.remove(&bed.fixture.origin, CLUSTER, "b");
        check(&bed, "after a reconnect");
        bed.fixture.origin.kill();
        bed.set(CLUSTER, &["a"]);
        bed.fixture.origin.start_again();
        check(&bed, "after a restart of the control plane");
    }
}
