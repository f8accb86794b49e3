//! Clients that leave for longer than `unsubscribe_linger` and come back, behind control planes as they are: some say
//! nothing, or something shorter, to what they believe to have said already on the same stream.
//!
//! `INTEROP=direct` fails with java-control-plane, which does not answer a list of names of which it lacks one.

use std::{
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime::{Handle, Runtime};

use crate::{
    fixture::{
        ControlPlane, Fixture, Transport, get,
        resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES},
    },
    fleet::{
        client::{Client, Held},
        local,
        world::{Guest, World, subscriptions},
    },
};

/// Longer than the linger of the relays, which is a second: they have let go of everything.
const AWAY: Duration = Duration::from_millis(1_600);
/// How long a client may wait that has come back.
const BOUND: Duration = Duration::from_secs(8);
/// For how long nothing may change once a client has all.
const QUIET: Duration = Duration::from_millis(300);
const RETURNS: usize = 3;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// A name that no control plane here knows.
const NOWHERE: &str = "nowhere";
const TYPES: [&str; 4] = [CLUSTER, ENDPOINTS, LISTENER, ROUTES];
const ADS: [Transport; 2] = [Transport::DeltaAds, Transport::SotwAds];

macro_rules! each_control_plane {
    ($($test:ident: $control_plane:expr;)*) => {
        $(#[test]
        fn $test() {
            clients_come_back($control_plane, "delta");
        })*

        /// The relay asks by state of the world. java-control-plane leaves a list unanswered of which it lacks one name
        /// (docs/origins.md): no client could do without it.
        mod by_state_of_the_world {
            use super::{ControlPlane, clients_come_back};

            $(#[test]
            fn $test() {
                if !matches!($control_plane, ControlPlane::Java(_)) {
                    clients_come_back($control_plane, "sotw");
                }
            })*
        }
    };
}

crate::fixture::with_each_control_plane!(each_control_plane);

/// A way to come and go; each has a relay of its own.
struct Case {
    what: &'static str,
    /// Names that the clients that come and go ask for; none: all.
    asked: &'static [(&'static str, &'static [&'static str])],
    /// Names that one client asks for that stays.
    kept: &'static [(&'static str, &'static [&'static str])],
    /// Whether somebody looks at all listeners before the others stay away.
    looked_at: bool,
}

const ALL: &[&str] = &[];
const ANY: &[&str] = &["a", "b", "c", "d", NOWHERE];

const CASES: [Case; 10] = [
    Case::of("all clusters", &[(CLUSTER, ALL)]),
    Case::of("clusters by name", &[(CLUSTER, ANY)]),
    Case::of("all listeners", &[(LISTENER, ALL)]),
    Case::of("all clusters and listeners", &[(CLUSTER, ALL), (LISTENER, ALL)]),
    Case::of("endpoints by name", &[(ENDPOINTS, ANY)]),
    Case::of("routes by name", &[(ROUTES, ANY)]),
    // All of the endpoints exist: one that is not answered holds routes back for a time (R-ADS-03).
    Case::of("endpoints and routes by name", &[(ENDPOINTS, &["a", "c"]), (ROUTES, ANY)]),
    Case {
        kept: &[(ENDPOINTS, &["a"]), (ROUTES, &["c"])],
        ..Case::of("endpoints by name while others stay", &[(ENDPOINTS, ANY)])
    },
    Case {
        // None that goes and comes back: java-control-plane does not say that it is back (docs/origins.md).
        kept: &[(ENDPOINTS, &["a"]), (CLUSTER, &["a"])],
        ..Case::of("all clusters and listeners while names stay", &[(CLUSTER, ALL), (LISTENER, ALL)])
    },
    Case { looked_at: true, ..Case::of("listeners by name after a look at all", &[(LISTENER, ANY)]) },
];

impl Case {
    const fn of(what: &'static str, asked: &'static [(&'static str, &'static [&'static str])]) -> Self {
        Self { what, asked, kept: &[], looked_at: false }
    }

    fn types(&self) -> impl Iterator<Item = &'static str> {
        self.asked.iter().chain(self.kept).map(|(type_url, _)| *type_url)
    }

    fn is_wildcard(&self) -> bool {
        self.asked.iter().all(|(_, names)| names.is_empty())
    }
}

fn clients_come_back(control_plane: ControlPlane, protocol: &str) {
    let served = if control_plane.serves_clusters_only() { &TYPES[..1] } else { &TYPES[..] };
    let cases: Vec<_> = CASES.iter().filter(|case| case.types().all(|each| served.contains(&each))).collect();
    let relays = cases.len();
    let Some(fixture) = Fixture::start_relays(control_plane, relays, protocol, "") else { return };
    let mut world = World::default();
    for type_url in served {
        NAMES[..3].iter().for_each(|name| world.set(&fixture.origin, type_url, name));
    }

    let runtime = Runtime::new().unwrap();
    let mut places: Vec<_> = cases
        .into_iter()
        .enumerate()
        .map(|(at, case)| Place::new(case, fixture.port(at), runtime.handle()))
        .collect();
    for visit in 0..=RETURNS {
        places.iter_mut().for_each(|place| place.enter(runtime.handle(), visit));
        check(&places, &world, visit);
        places.iter_mut().for_each(Place::leave);
        if visit == RETURNS {
            break;
        }
        places.iter_mut().filter(|place| place.case.looked_at).for_each(|place| place.look(runtime.handle()));
        check(&places, &world, visit);
        places.iter_mut().for_each(Place::leave);
        thread::sleep(AWAY);
        // One changes, one goes or comes back, and another one the other way round.
        for type_url in served {
            world.set(&fixture.origin, type_url, NAMES[2 * (visit % 2)]);
            world.toggle(&fixture.origin, type_url, NAMES[1]);
            world.toggle(&fixture.origin, type_url, NAMES[3]);
        }
        // A resource that is still subscribed for somebody reaches the relay, as over state of the world nobody is told that an
        // endpoint or a route has gone.
        thread::sleep(QUIET);
    }
}

/// Waits until all hold what they should, and no more; then nothing changes any more.
fn check(places: &[Place], world: &World, visit: usize) {
    let began = Instant::now();
    let complaints = || -> Vec<_> { places.iter().flat_map(|place| place.complaints(world)).collect() };
    let mut found = complaints();
    while !found.is_empty() && began.elapsed() < BOUND {
        thread::sleep(Duration::from_millis(20));
        found = complaints();
    }
    if found.is_empty() {
        thread::sleep(QUIET);
        found = complaints();
    }
    let mut report = String::new();
    found.iter().for_each(|complaint| writeln!(report, "  {complaint}").unwrap());
    assert!(found.is_empty(), "return {visit}, after {:?}:\n{report}", began.elapsed());
}

/// A relay and its clients.
struct Place {
    case: &'static Case,
    port: u16,
    staying: Option<Guest>,
    guests: Vec<Guest>,
    /// Resources that the first clients took with them, by transport.
    taken: Vec<(Transport, Held)>,
}

impl Place {
    fn new(case: &'static Case, port: u16, runtime: &Handle) -> Self {
        let asked = subscriptions(case.kept);
        let staying = (!asked.is_empty()).then(|| Guest {
            client: Client::start(runtime, local(port), Transport::DeltaAds, &asked),
            who: "stayed".to_owned(),
            asked,
        });
        Self { case, port, staying, guests: Vec::new(), taken: Vec::new() }
    }

    fn enter(&mut self, runtime: &Handle, visit: usize) {
        let asked = subscriptions(self.case.asked);
        let mut let_in = |who: String, transport, held| {
            let client = Client::come_back(runtime, local(self.port), transport, &asked, held);
            self.guests.push(Guest { client, who, asked: asked.clone() });
        };
        // In turn one transport, the other and both, so that neither depends on the other.
        for transport in
            ADS.into_iter().enumerate().filter(|(at, _)| visit % 3 != at + 1).map(|(_, each)| each)
        {
            let_in(format!("new, {transport:?}"), transport, Held::default());
        }
        // An origin need not say of a name that it is gone, so only those who ask for all come back with what they held.
        if self.case.is_wildcard() {
            for (transport, held) in self.taken.drain(..) {
                let_in(format!("returned, {transport:?}"), transport, held);
            }
        }
    }

    /// Somebody asks for all, both as `deltafan get` and as a client.
    fn look(&mut self, runtime: &Handle) {
        get(self.port, "lds");
        let asked = subscriptions(&[(LISTENER, ALL)]);
        let client = Client::start(runtime, local(self.port), Transport::DeltaAds, &asked);
        self.guests.push(Guest { client, who: "looked".to_owned(), asked });
    }

    fn leave(&mut self) {
        if self.guests.is_empty() {
            return;
        }
        let guests = self.guests.drain(..).map(|guest| (guest.client.transport(), guest.client.held()));
        self.taken = guests.take(2).collect();
    }

    fn complaints(&self, world: &World) -> Vec<String> {
        let guests = self.staying.iter().chain(&self.guests);
        let complaint =
            |guest: &Guest| guest.complaint(world).map(|why| format!("{}: {why}", self.case.what));
        guests.filter_map(complaint).collect()
    }
}
