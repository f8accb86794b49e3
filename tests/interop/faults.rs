//! Fault matrix: faults of the control plane, of the link to it, of the relay and of its disk, and the resources that clients
//! hold meanwhile and in the end. docs/failover.md names them.
//!
//! Each test has a real control plane and clients of four transports that stay. While the fault lasts they lose nothing, and
//! clients that come anew are served. Afterwards all hold what the control plane has, and nothing was taken from anyone but what
//! is gone.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    thread,
    time::Duration,
};

use deltafan_test_support::{process::Process, slow_link::SlowLink, small_disk::SmallDisk};
use tokio::runtime::Runtime;

use crate::{
    fixture::{
        ControlPlane, Fixture, PATIENCE, Transport, always, eventually, require_relay,
        resources::{CLUSTER, ENDPOINTS},
    },
    fleet::{
        client::{Client, Held},
        world::{Guest, World, subscriptions},
    },
};

/// A connection that went dead is noticed within 2 s.
const KEYS: &str = "failover: {after: 1s}, keepalive: {interval: 1s, timeout: 1s}, connect_timeout: 1s";
const SNAPSHOT: &str = "snapshot: {path: ./snapshot}\n";
const LINEAR: ControlPlane = ControlPlane::USUAL;
/// A SnapshotCache, whose versions over state of the world are a counter that begins anew with each start.
const COUNTING: ControlPlane = ControlPlane::Go("v0.14.0", &["--cache", "snapshot"]);

/// Long enough for clients to lose something that they should not.
const WHILE: Duration = Duration::from_millis(700);
/// Time in which a relay gives up a control plane that is silent.
const SILENCE: Duration = Duration::from_millis(2_500);

struct Bed {
    fixture: Fixture,
    link: SlowLink,
    relay: Option<Process>,
    guests: Vec<Guest>,
    /// Resources that all should hold.
    world: World,
    runtime: Runtime,
}

/// Clusters `a`, `b`, `c` and the endpoints of `a` and `c`, held by clients of four transports; `fault`; and what is
/// held in the end.
fn row(control_plane: ControlPlane, server: &'static str, fault: impl FnOnce(&mut Bed)) {
    row_with(control_plane, server, SNAPSHOT, fault);
}

fn row_with(
    control_plane: ControlPlane,
    server: &'static str,
    keys: &'static str,
    fault: impl FnOnce(&mut Bed),
) {
    let Some(()) = require_relay() else { return };
    let Some(fixture) = Fixture::start_relays(control_plane, 0, "auto", "") else { return };
    let mut world = World::default();
    for name in ["a", "b", "c"] {
        world.set(&fixture.origin, CLUSTER, name);
    }
    for name in ["a", "c"] {
        world.set(&fixture.origin, ENDPOINTS, name);
    }
    let runtime = Runtime::new().unwrap();
    let origin = SocketAddr::from(([127, 0, 0, 1], fixture.origin.port()));
    let link = runtime.block_on(SlowLink::to(origin, Duration::ZERO));
    let relay = Some(Process::behind_keys(&link.uri(), server, KEYS, keys));
    let mut bed = Bed { fixture, link, relay, guests: Vec::new(), world, runtime };
    for transport in Transport::ALL {
        bed.enter(format!("stayed, {transport:?}"), transport, Held::default());
    }
    bed.wait_until_all_hold("all hold what there is");
    fault(&mut bed);
    bed.wait_until_all_hold("all hold what there is in the end");
    // Nothing comes back.
    let world = bed.world.clone();
    always(WHILE, "they hold it", || bed.complaint(&world));
    for guest in &bed.guests {
        let lost = guest.client.lost(CLUSTER);
        assert!(lost.iter().all(|name| name == "b"), "{}: was told that {lost:?} are gone", guest.who);
        assert!(guest.client.lost(ENDPOINTS).is_empty(), "{}: lost endpoints", guest.who);
    }
}

impl Bed {
    fn relay(&self) -> &Process {
        self.relay.as_ref().expect("the relay runs")
    }

    fn enter(&mut self, who: String, transport: Transport, held: Held) {
        let asked = subscriptions(&[(CLUSTER, &[]), (ENDPOINTS, &["a", "c"])]);
        let server = self.relay().listener;
        let client = Client::come_back(self.runtime.handle(), server, transport, &asked, held);
        self.guests.push(Guest { client, who, asked });
    }

    /// New clients come.
    fn welcome(&mut self, when: &str) {
        for transport in [Transport::DeltaAds, Transport::SotwAds] {
            self.enter(format!("came {when}, {transport:?}"), transport, Held::default());
        }
    }

    fn complaint(&self, world: &World) -> Result<(), String> {
        self.guests.iter().find_map(|guest| guest.complaint(world)).map_or(Ok(()), Err)
    }

    fn wait_until_all_hold(&self, what: &str) {
        eventually(PATIENCE, what, || self.complaint(&self.world));
    }

    /// All go on holding what they hold, and new clients are served.
    fn serves(&mut self) {
        let world = self.world.clone();
        always(WHILE, "all go on", || self.complaint(&world));
        self.welcome("meanwhile");
        self.wait_until_all_hold("new clients are served");
        always(WHILE, "all go on", || self.complaint(&world));
    }

    /// One cluster is changed, one goes and one comes, and endpoints change.
    fn change(&mut self) {
        let Self { world, fixture, .. } = self;
        world.set(&fixture.origin, CLUSTER, "a");
        world.set(&fixture.origin, ENDPOINTS, "a");
        world.remove(&fixture.origin, CLUSTER, "b");
        world.set(&fixture.origin, CLUSTER, "d");
    }

    /// Changes that leave names as they are.
    fn touch(&mut self) {
        self.world.set(&self.fixture.origin, CLUSTER, "c");
        self.world.set(&self.fixture.origin, ENDPOINTS, "c");
    }

    /// Kills the relay, has `between` do something to its folder, and starts it again. Clients come back with what they hold.
    fn kill_relay(&mut self, between: impl FnOnce(&Path)) {
        let relay = self.relay.take().expect("the relay runs");
        self.relay = Some(relay.killed_and_restarted(between));
        let came: Vec<_> = self.guests.drain(..).map(|guest| (guest.who, guest.client)).collect();
        for (who, client) in came {
            self.enter(who, client.transport(), client.held());
        }
    }

    /// Waits until everything so far is on disk.
    fn wait_until_written(&self) {
        self.relay().wait_for_snapshot(Duration::from_millis(2_500));
    }
}

#[test]
fn control_plane_is_killed_and_comes_back_with_other_resources() {
    row(LINEAR, "", |bed| {
        bed.fixture.origin.kill();
        bed.serves();
        bed.fixture.origin.start_again();
        bed.change();
    });
}

#[test]
fn control_plane_is_killed_and_has_changed_when_it_comes_back() {
    row(LINEAR, "", |bed| {
        bed.fixture.origin.kill();
        let before = bed.world.clone();
        bed.change();
        let after = std::mem::replace(&mut bed.world, before);
        bed.serves();
        bed.world = after;
        bed.fixture.origin.start_again();
    });
}

#[test]
fn control_plane_hangs() {
    row(LINEAR, "", |bed| {
        bed.fixture.origin.signal("STOP");
        thread::sleep(SILENCE);
        bed.serves();
        bed.fixture.origin.signal("CONT");
        bed.change();
    });
}

/// Servers of gRPC end a connection that is pinged more than once in five minutes while they send nothing, after a third such PING:
/// every 30 s it would be lost after two minutes.
#[test]
fn control_plane_is_silent() {
    let Some(()) = require_relay() else { return };
    let Some(fixture) = Fixture::start_relays(LINEAR, 0, "auto", "") else { return };
    let mut world = World::default();
    world.set(&fixture.origin, CLUSTER, "a");
    world.set(&fixture.origin, ENDPOINTS, "a");
    let server = format!("http://127.0.0.1:{}", fixture.origin.port());
    let relay = Process::behind_keys(&server, "", "", "");
    let runtime = Runtime::new().unwrap();
    let asked = subscriptions(&[(CLUSTER, &[]), (ENDPOINTS, &["a"])]);
    let client =
        Client::come_back(runtime.handle(), relay.listener, Transport::DeltaAds, &asked, Held::default());
    let guest = Guest { client, who: "client".to_owned(), asked };
    eventually(PATIENCE, "it holds what there is", || guest.complaint(&world).map_or(Ok(()), Err));
    always(Duration::from_secs(135), "it goes on", || guest.complaint(&world).map_or(Ok(()), Err));
    assert_eq!(relay.metric("deltafan_upstream_events_total{event=\"connect\"}"), 1.0);
}

#[test]
fn control_plane_pauses_for_less_than_is_noticed() {
    row(LINEAR, "", |bed| {
        for _ in 0..3 {
            bed.fixture.origin.signal("STOP");
            thread::sleep(WHILE);
            bed.fixture.origin.signal("CONT");
            bed.touch();
        }
        bed.change();
    });
}

#[test]
fn control_plane_refuses_connections() {
    row(LINEAR, "", |bed| {
        // Nobody listens there any more.
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        leads_astray(bed, nobody);
    });
}

#[test]
fn control_plane_refuses_streams() {
    row(LINEAR, "", |bed| {
        let refuses = Process::start(&[], "authorization: {default: deny}\n");
        leads_astray(bed, refuses.listener);
    });
}

#[test]
fn another_server_has_the_address_of_the_control_plane() {
    row(LINEAR, "", |bed| {
        let other = Process::start(&[], "");
        // The port of operators: HTTP/1.1.
        leads_astray(bed, other.admin);
    });
}

/// The link leads to another server for a time, while the control plane changes.
fn leads_astray(bed: &mut Bed, to: SocketAddr) {
    bed.link.lead_to(to);
    bed.link.break_connections();
    bed.serves();
    bed.change();
    bed.link.lead_to(SocketAddr::from(([127, 0, 0, 1], bed.fixture.origin.port())));
}

#[test]
fn control_plane_resets_connections() {
    row(LINEAR, "", |bed| {
        for round in 0..8 {
            if round == 4 {
                bed.change();
            }
            bed.link.break_connections();
            bed.touch();
            thread::sleep(Duration::from_millis(50 * round));
        }
        bed.welcome("meanwhile");
    });
}

#[test]
fn control_plane_counts_versions_anew() {
    row(COUNTING, "protocol: sotw", |bed| {
        bed.fixture.origin.kill();
        bed.serves();
        bed.touch();
        bed.change();
        bed.touch();
        bed.fixture.origin.start_again();
    });
}

/// As many changes as before: the version of all is one that the relay holds, with other content.
#[test]
fn control_plane_gives_old_versions_to_new_content() {
    row(COUNTING, "protocol: sotw", |bed| {
        bed.fixture.origin.kill();
        bed.serves();
        bed.world.set(&bed.fixture.origin, CLUSTER, "a");
        bed.world.set(&bed.fixture.origin, ENDPOINTS, "c");
        bed.fixture.origin.start_again();
    });
}

#[test]
fn link_is_slow() {
    row(LINEAR, "", |bed| {
        bed.link.delay(Duration::from_millis(250));
        bed.touch();
        bed.welcome("meanwhile");
        bed.change();
        bed.wait_until_all_hold("they follow");
        bed.link.break_connections();
        bed.touch();
    });
}

#[test]
fn link_is_narrow() {
    row(LINEAR, "", |bed| {
        bed.link.narrow(2_000);
        bed.link.break_connections();
        bed.touch();
        bed.welcome("meanwhile");
        bed.change();
    });
}

#[test]
fn link_loses_packets() {
    row(LINEAR, "", |bed| {
        bed.link.delay(Duration::from_millis(50));
        for round in 0..8 {
            bed.link.stall();
            bed.touch();
            if round == 4 {
                bed.change();
                bed.welcome("meanwhile");
            }
            thread::sleep(Duration::from_millis(400));
            bed.link.go_on();
            thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn link_is_dead_without_a_word() {
    row(LINEAR, "", |bed| {
        bed.link.stall();
        thread::sleep(SILENCE);
        bed.serves();
        bed.change();
        bed.link.go_on();
    });
}

#[test]
fn relay_is_killed_while_the_control_plane_is_away() {
    row(LINEAR, "", |bed| {
        bed.wait_until_written();
        bed.fixture.origin.kill();
        bed.kill_relay(|_| {});
        bed.serves();
        bed.fixture.origin.start_again();
        bed.change();
    });
}

#[test]
fn relay_is_killed_before_a_change_is_on_disk() {
    row(LINEAR, "", |bed| {
        bed.wait_until_written();
        bed.change();
        bed.wait_until_all_hold("they follow");
        bed.fixture.origin.kill();
        bed.kill_relay(|_| {});
        bed.welcome("meanwhile");
        thread::sleep(WHILE);
        bed.fixture.origin.start_again();
    });
}

#[test]
fn relay_is_killed_at_any_moment() {
    row(LINEAR, "", |bed| {
        for round in 0..6 {
            bed.touch();
            if round == 3 {
                bed.change();
            }
            thread::sleep(Duration::from_millis(170 * round));
            bed.kill_relay(|_| {});
        }
        bed.welcome("in the end");
    });
}

#[test]
fn relay_is_killed_when_the_control_plane_is_back() {
    row(LINEAR, "", |bed| {
        bed.wait_until_written();
        bed.fixture.origin.kill();
        bed.kill_relay(|_| {});
        bed.change();
        bed.fixture.origin.start_again();
        for _ in 0..3 {
            bed.kill_relay(|_| {});
        }
    });
}

#[test]
fn relay_is_paused() {
    row(LINEAR, "", |bed| {
        bed.relay().signal("STOP");
        bed.change();
        thread::sleep(SILENCE);
        bed.relay().signal("CONT");
        bed.welcome("afterwards");
    });
}

#[test]
fn relay_is_paused_while_the_control_plane_goes_and_comes() {
    row(LINEAR, "", |bed| {
        bed.relay().signal("STOP");
        bed.fixture.origin.kill();
        bed.change();
        bed.fixture.origin.start_again();
        thread::sleep(SILENCE);
        bed.relay().signal("CONT");
        bed.welcome("afterwards");
    });
}

#[test]
fn disk_has_half_a_file() {
    row(LINEAR, "", |bed| {
        bed.wait_until_written();
        bed.change();
        bed.wait_until_all_hold("they follow");
        bed.kill_relay(|home| {
            let file = home.join("snapshot/cache.redb");
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        });
        bed.welcome("afterwards");
    });
}

#[test]
fn disk_is_full() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(home.path(), "size=4m") else { return };
    let keys: &'static str =
        Box::leak(format!("snapshot: {{path: \"{}\"}}\n", home.path().join("snapshot").display()).into());
    row_with(LINEAR, "", keys, |bed| {
        bed.wait_until_written();
        // As much as fits.
        let fill = std::process::Command::new("dd")
            .args(["if=/dev/zero", "bs=4096", "status=none"])
            .arg(format!("of={}", home.path().join("rest").display()))
            .status();
        assert!(!fill.unwrap().success());
        bed.change();
        bed.wait_until_all_hold("they follow");
        bed.kill_relay(|_| {});
        bed.welcome("afterwards");
    });
    drop(disk);
}
