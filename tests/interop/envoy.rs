//! Envoy over each transport.

use std::time::Duration;

use deltafan_test_support::slow_link::SlowLink;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::fixture::{
    AloneEnvoy, ControlPlane, Envoy, Fixture, PATIENCE, Transport, always, eventually, free_port,
    http::{get_json, post},
    http_backend, is_direct, require_relay,
    resources::{CLUSTER, ENDPOINTS, cluster, endpoints, listener, routes},
    skipped,
};
use crate::fleet::local;

macro_rules! over_each_transport {
    ($($module:ident: $transport:ident { $($scenario:ident),* $(,)? })*) => {
        $(mod $module {
            $(#[test]
            fn $scenario() {
                super::$scenario(crate::fixture::Transport::$transport);
            })*
        })*
    };
}

over_each_transport! {
    delta_ads: DeltaAds {
        follows_changes,
        activates_a_changed_cluster,
        survives_a_relay_restart,
        comes_back_soon_after_a_long_outage,
        survives_a_dead_origin,
        survives_a_killed_relay_without_its_origin,
        is_spared_all_bad_changes_of_a_response_and_gets_the_good_ones,
        is_spared_a_control_plane_that_empties_itself,
        stays_where_an_operator_wants_it,
        goes_back_from_what_it_applied_of_a_rejected_update,
    }
    sotw_ads: SotwAds {
        follows_changes,
        activates_a_changed_cluster,
        survives_a_relay_restart,
        survives_a_dead_origin,
        survives_a_killed_relay_without_its_origin,
        is_spared_all_bad_changes_of_a_response_and_gets_the_good_ones,
        is_spared_a_control_plane_that_empties_itself,
        stays_where_an_operator_wants_it,
        goes_back_from_what_it_applied_of_a_rejected_update,
    }
    delta_per_type: DeltaPerType {
        follows_changes,
        survives_a_relay_restart,
        survives_a_dead_origin,
    }
    sotw_per_type: SotwPerType {
        follows_changes,
        survives_a_relay_restart,
        survives_a_dead_origin,
    }
    rest: Rest {
        follows_changes,
        survives_a_relay_restart,
        survives_a_dead_origin,
    }
}

const BACKEND: &str = "backend";
const INGRESS: &str = "ingress";

/// A fixture with one listener, whose route leads to a cluster with one of two backends, "a" at first.
struct World {
    fixture: Fixture,
    transport: Transport,
    a: u16,
    b: u16,
}

impl World {
    fn start(transport: Transport, envoys: usize) -> Option<Self> {
        Self::start_with(transport, envoys, "")
    }

    /// Starts one with further lines of the relay's configuration.
    fn start_with(transport: Transport, envoys: usize, further: &str) -> Option<Self> {
        if is_direct() && transport == Transport::Rest {
            skipped("the control plane speaks gRPC only");
            return None;
        }
        // A client that polls wants nothing between two polls, which may be seconds apart on a busy machine.
        let linger = if transport == Transport::Rest { "60s" } else { "1s" };
        let fixture = Fixture::start_asking(ControlPlane::USUAL, envoys, ["auto", linger, further])?;
        let world = Self { fixture, transport, a: http_backend("a"), b: http_backend("b") };
        let source = transport.config_source();
        world.put_cluster(BACKEND, "1s");
        world.lead_to(world.a);
        world.fixture.origin.put(&routes("ingress-routes", BACKEND));
        world.fixture.origin.put(&listener(INGRESS, &source, "ingress-routes"));
        Some(world)
    }

    fn envoy(&self, id: &str) -> Envoy {
        self.fixture.start_envoy(id, self.transport)
    }

    /// Puts a cluster that warms until its endpoints come, however long that takes.
    fn put_cluster(&self, name: &str, connect_timeout: &str) {
        let mut source = self.transport.config_source();
        source["initial_fetch_timeout"] = "0s".into();
        self.fixture.origin.put(&cluster(name, &source, connect_timeout));
    }

    /// State of the rollout guard.
    fn rollout(&self) -> Result<Value, String> {
        let page = get_json(&format!("http://127.0.0.1:{}/rollout", self.fixture.relay_admin_port()))?;
        Ok(page[0].clone())
    }

    fn wait_for_rollout(&self, phase: &str) -> Value {
        let mut found = Value::Null;
        eventually(PATIENCE, phase, || {
            found = self.rollout()?;
            if found["phase"] == phase { Ok(()) } else { Err(found.to_string()) }
        });
        found
    }

    fn order(&self, order: &str) {
        let url = format!("http://127.0.0.1:{}/rollout/{order}", self.fixture.relay_admin_port());
        post(&url).unwrap();
    }

    fn lead_to(&self, port: u16) {
        self.fixture.origin.put(&endpoints(BACKEND, port));
    }
}

/// Three of six clusters become bad at once: Envoy rejects them for their negative timeout, and names one of them, or some.
fn is_spared_all_bad_changes_of_a_response_and_gets_the_good_ones(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let guard = "rollout: {types: [cds, lds, rds], share: 0%, window: 1s}\n";
    let Some(world) = World::start_with(transport, 3, guard) else { return };
    let names: Vec<String> = (0..6).map(|at| format!("extra-{at}")).collect();
    for name in &names {
        world.fixture.origin.put(&endpoints(name, world.a));
    }
    let put = |good: &str, bad: &str| {
        for (at, name) in names.iter().enumerate() {
            world.put_cluster(name, if at % 2 == 0 { bad } else { good });
        }
    };
    put("1s", "1s");
    let envoys = ["canary", "other"].map(|id| {
        let envoy = world.envoy(id);
        envoy.wait_until_answered_by(INGRESS, "a");
        envoy
    });
    let have = |envoy: &Envoy, good: &str, bad: &str| {
        let clusters = envoy.dynamic_clusters()?;
        let is_one = |(at, name): (usize, &String)| {
            clusters
                .active
                .get(name)
                .is_some_and(|of| of["connect_timeout"] == if at % 2 == 0 { bad } else { good })
        };
        if names.iter().enumerate().all(is_one) { Ok(()) } else { Err(format!("{clusters:?}")) }
    };
    let held = || -> Result<Vec<String>, String> {
        let held = world.rollout()?["held"].as_array().cloned().unwrap_or_default();
        Ok(held.iter().map(|change| change["name"].as_str().unwrap_or_default().to_owned()).collect())
    };
    let [canary, other] = &envoys;
    envoys.iter().for_each(|envoy| eventually(PATIENCE, "all clusters arrive", || have(envoy, "1s", "1s")));
    let rejected = |envoy: &Envoy| envoy.stat("cluster_manager.cds.update_rejected");

    put("2s", "-1s");
    eventually(PATIENCE, "the bad ones are found", || match held()? {
        held if held == ["extra-0", "extra-2", "extra-4"] => have(canary, "2s", "1s"),
        held => Err(format!("held: {held:?}")),
    });
    let change = world.rollout().unwrap()["held"][0].clone();
    assert!(change["texts"][0].as_str().unwrap().contains("positive duration"), "{change}");
    assert!(rejected(canary).unwrap() > 0);
    assert_eq!(have(other, "1s", "1s"), Ok(()), "the others wait");
    let newcomer = world.envoy("newcomer");
    eventually(PATIENCE, "a newcomer has the last good state", || have(&newcomer, "1s", "1s"));

    // An operator corrects one: the others are as bad as before.
    world.put_cluster("extra-0", "3s");
    always(Duration::from_secs(4), "the others are spared", || {
        have(other, "1s", "1s")?;
        let count = rejected(other)? + rejected(&newcomer)?;
        if count == 0 { Ok(()) } else { Err(format!("{count} updates are rejected")) }
    });
    put("2s", "3s");
    for envoy in [canary, other, &newcomer] {
        eventually(PATIENCE, "the corrections arrive", || have(envoy, "2s", "3s"));
        assert_eq!(envoy.is_answered_by(INGRESS, "a"), Ok(()));
    }
    assert_eq!((rejected(other), rejected(&newcomer)), (Ok(0), Ok(0)));
}

fn is_spared_a_control_plane_that_empties_itself(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let guard = "rollout: {types: [cds], share: 0%, window: 1s, max_removed: 40%}\n";
    let Some(world) = World::start_with(transport, 2, guard) else { return };
    let names: Vec<String> = (0..6).map(|at| format!("extra-{at}")).collect();
    for name in &names {
        world.fixture.origin.put(&endpoints(name, world.a));
        world.put_cluster(name, "1s");
    }
    let envoys = ["canary", "other"].map(|id| world.envoy(id));
    let has_all = |envoy: &Envoy| {
        let clusters = envoy.dynamic_clusters()?;
        let has_all = names.iter().all(|name| clusters.active.contains_key(name));
        if has_all { envoy.is_answered_by(INGRESS, "a") } else { Err(format!("{clusters:?}")) }
    };
    envoys.iter().for_each(|envoy| eventually(PATIENCE, "all clusters arrive", || has_all(envoy)));
    world.wait_for_rollout("idle");

    for name in names.iter().map(String::as_str).chain([BACKEND]) {
        world.fixture.origin.delete(CLUSTER, name);
    }
    world.wait_for_rollout("held");
    always(Duration::from_secs(4), "no Envoy is emptied", || envoys.iter().try_for_each(has_all));

    for name in names.iter().map(String::as_str).chain([BACKEND]) {
        world.put_cluster(name, "1s");
    }
    world.wait_for_rollout("idle");
    envoys.iter().for_each(|envoy| assert_eq!(has_all(envoy), Ok(())));
}

/// A hold during a trial, earlier states of a cluster and of a type, and newcomers meanwhile. The canary is named.
fn stays_where_an_operator_wants_it(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let guard = "rollout: {types: [cds], canaries: {match: {node.id: canary}}, share: 0%, window: 3s}\n";
    let Some(world) = World::start_with(transport, 4, guard) else { return };
    let names = ["extra-0", "extra-1"];
    let put_all = |timeout: &str| names.iter().for_each(|name| world.put_cluster(name, timeout));
    names.iter().for_each(|name| world.fixture.origin.put(&endpoints(name, world.a)));
    put_all("1s");
    let [other, canary] = ["other", "canary"].map(|id| world.envoy(id));
    let have = |envoy: &Envoy, timeouts: [Option<&str>; 2]| {
        let clusters = envoy.dynamic_clusters()?;
        let timeout = |name: &str| {
            clusters.active.get(name).and_then(|of| of["connect_timeout"].as_str().map(str::to_owned))
        };
        let found = names.map(timeout);
        let is_so = found.each_ref().map(Option::as_deref) == timeouts;
        if is_so { envoy.is_answered_by(INGRESS, "a") } else { Err(format!("{found:?}")) }
    };
    let all_get = |what: &str, envoys: &[&Envoy], timeouts| {
        envoys.iter().for_each(|envoy| eventually(PATIENCE, what, || have(envoy, timeouts)));
    };
    let one = [Some("1s"), Some("1s")];
    all_get("all clusters arrive", &[&other, &canary], one);
    world.wait_for_rollout("idle");

    let two = [Some("2s"), Some("2s")];
    put_all("2s");
    all_get("the canary tries it", &[&canary], two);
    world.order("hold?type=cds&by=test");
    all_get("the canary is taken back", &[&canary], one);
    let newcomer = world.envoy("newcomer");
    all_get("a newcomer has the last good state", &[&newcomer], one);
    always(Duration::from_secs(4), "nobody is sent it", || {
        [&other, &canary, &newcomer].into_iter().try_for_each(|envoy| have(envoy, one))
    });
    let held = world.rollout().unwrap();
    assert_eq!(
        (&held["phase"], &held["orders"][0]["by"]),
        (&json!("held"), &json!("127.0.0.1 (test)")),
        "{held}"
    );
    world.order("release");
    all_get("all get it", &[&other, &canary, &newcomer], two);
    world.wait_for_rollout("idle");
    let then = prost_types::Timestamp::from(std::time::SystemTime::now());
    // Times are compared in whole seconds.
    std::thread::sleep(Duration::from_millis(1_100));

    // A cluster is restored, then removed clusters are.
    let version = |number: usize| {
        let path =
            format!("http://127.0.0.1:{}/history?type=cds&name=extra-0", world.fixture.relay_admin_port());
        get_json(&path).unwrap()["histories"][0]["changes"][number]["version"].as_str().unwrap().to_owned()
    };
    world.order(&format!("restore?type=cds&name=extra-0&version={}", version(1)));
    all_get("the version is back", &[&other, &canary, &newcomer], [Some("1s"), Some("2s")]);
    for name in names {
        world.fixture.origin.delete(CLUSTER, name);
    }
    all_get("they are removed", &[&other, &canary, &newcomer], [None, None]);
    world.wait_for_rollout("idle");
    world.order(&format!("restore?type=cds&at={then}"));
    let late = world.envoy("late");
    all_get("the earlier state is back", &[&other, &canary, &newcomer, &late], two);
    world.order("release");
    all_get("the control plane has the last word", &[&other, &canary, &newcomer, &late], [None, None]);
    let rejected = |envoy: &Envoy| envoy.stat("cluster_manager.cds.update_rejected");
    for envoy in [&other, &canary, &newcomer, &late] {
        assert_eq!(rejected(envoy), Ok(0));
    }
}

/// A changed cluster warms until its endpoints are sent again, and the origin does not send again what has not changed. The
/// relay has to (R-ADS-05).
fn activates_a_changed_cluster(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let Some(world) = World::start(transport, 1) else { return };
    let envoy = world.envoy("envoy");
    envoy.wait_until_answered_by(INGRESS, "a");

    world.put_cluster(BACKEND, "2s");
    let is_active = || {
        let clusters = envoy.dynamic_clusters()?;
        let connect_timeout = &clusters.active[BACKEND]["connect_timeout"];
        let active = connect_timeout == "2s" && clusters.warming.is_empty();
        if active { Ok(()) } else { Err(format!("{clusters:?}")) }
    };
    eventually(PATIENCE, "the changed cluster is active", is_active);
    assert_eq!(envoy.is_answered_by(INGRESS, "a"), Ok(()));
}

fn follows_changes(transport: Transport) {
    const SPARE: &str = "spare";
    let Some(world) = World::start(transport, 1) else { return };
    let envoy = world.envoy("envoy");
    envoy.wait_until_answered_by(INGRESS, "a");
    assert_eq!(envoy.clusters().unwrap()[BACKEND], [world.a]);
    let clusters = envoy.dynamic_clusters().unwrap();
    assert_eq!(clusters.active.keys().collect::<Vec<_>>(), [BACKEND]);
    assert!(clusters.warming.is_empty(), "{clusters:?}");

    world.lead_to(world.b);
    envoy.wait_until_answered_by(INGRESS, "b");
    assert_eq!(envoy.clusters().unwrap()[BACKEND], [world.b]);
    world.lead_to(world.a);
    envoy.wait_until_answered_by(INGRESS, "a");

    world.put_cluster(SPARE, "1s");
    world.fixture.origin.put(&endpoints(SPARE, world.b));
    eventually(PATIENCE, "the new cluster has its endpoints", || match envoy.clusters()?.get(SPARE) {
        Some(ports) if *ports == [world.b] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    world.fixture.origin.delete(CLUSTER, SPARE);
    world.fixture.origin.delete(ENDPOINTS, SPARE);
    eventually(PATIENCE, "the removed cluster is gone", || {
        let clusters = envoy.clusters()?;
        if clusters.contains_key(SPARE) { Err(format!("{clusters:?}")) } else { Ok(()) }
    });
    envoy.wait_until_answered_by(INGRESS, "a");
    assert_eq!(envoy.clusters().unwrap()[BACKEND], [world.a]);
}

fn survives_a_relay_restart(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let Some(world) = World::start(transport, 1) else { return };
    let envoy = world.envoy("envoy");
    envoy.wait_until_answered_by(INGRESS, "a");

    world.fixture.stop_relay();
    always(Duration::from_secs(1), "Envoy keeps its configuration", || envoy.is_answered_by(INGRESS, "a"));
    world.fixture.start_relay_again();
    always(Duration::from_secs(2), "Envoy keeps its configuration", || envoy.is_answered_by(INGRESS, "a"));
    world.lead_to(world.b);
    envoy.wait_until_answered_by(INGRESS, "b");

    // Not only the newly subscribed endpoints, but the clusters that it held before are still followed.
    world.put_cluster("late", "1s");
    world.fixture.origin.put(&endpoints("late", world.a));
    eventually(PATIENCE, "a new cluster arrives", || match envoy.clusters()?.get("late") {
        Some(ports) if *ports == [world.a] => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Envoy's back-off by default would have grown to 30 s, of which it waits a random part.
fn comes_back_soon_after_a_long_outage(transport: Transport) {
    const ENVOYS: usize = 3;
    let Some(()) = require_relay() else { return };
    let Some(world) = World::start(transport, ENVOYS) else { return };
    let envoys: Vec<_> = (0..ENVOYS).map(|at| world.envoy(&format!("envoy-{at}"))).collect();
    envoys.iter().for_each(|envoy| envoy.wait_until_answered_by(INGRESS, "a"));

    world.fixture.stop_relay();
    always(Duration::from_secs(40), "Envoy keeps its configuration", || {
        envoys[0].is_answered_by(INGRESS, "a")
    });
    world.fixture.start_relay_again();
    world.lead_to(world.b);
    // 5 s of back-off, and what a busy machine takes.
    for envoy in &envoys {
        eventually(Duration::from_secs(8), "the change arrives", || envoy.is_answered_by(INGRESS, "b"));
    }
}

fn survives_a_dead_origin(transport: Transport) {
    let Some(world) = World::start(transport, 2) else { return };
    let mut envoys = vec![world.envoy("envoy")];
    envoys[0].wait_until_answered_by(INGRESS, "a");

    world.fixture.origin.kill();
    always(Duration::from_secs(1), "Envoy keeps its configuration", || {
        envoys[0].is_answered_by(INGRESS, "a")
    });
    if !is_direct() {
        // Only a cache can configure it.
        envoys.push(world.envoy("newcomer"));
        envoys[1].wait_until_answered_by(INGRESS, "a");
    }

    world.lead_to(world.b);
    world.fixture.origin.start_again();
    for envoy in &envoys {
        envoy.wait_until_answered_by(INGRESS, "b");
        assert_eq!(envoy.clusters().unwrap()[BACKEND], [world.b]);
    }
}

/// The origin is gone, the relay is killed and starts again, and Envoy is bounced: all that it gets comes from the relay's disk.
fn survives_a_killed_relay_without_its_origin(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let Some(world) = World::start_with(transport, 2, "snapshot: {path: ./snapshot}\n") else { return };
    let envoy = world.envoy("envoy");
    envoy.wait_until_answered_by(INGRESS, "a");
    // Nothing is left to write.
    eventually(PATIENCE, "everything is on disk", || {
        let age = world.fixture.relay_metric("deltafan_snapshot_last_write_age_seconds");
        let has_written = world.fixture.relay_metric("deltafan_snapshot_writes_total") > 0.0;
        if has_written && age > 7.5 { Ok(()) } else { Err(format!("written {age} s ago")) }
    });

    world.fixture.origin.kill();
    world.fixture.kill_relay();
    world.fixture.start_relay_again();
    always(Duration::from_secs(2), "Envoy keeps its configuration", || envoy.is_answered_by(INGRESS, "a"));
    drop(envoy);
    let envoy = world.envoy("bounced");
    envoy.wait_until_answered_by(INGRESS, "a");

    world.lead_to(world.b);
    world.fixture.origin.start_again();
    envoy.wait_until_answered_by(INGRESS, "b");
}

/// Cluster with an endpoint of its own.
fn static_cluster(name: &str, address: &str, port: u16) -> Value {
    let mut cluster = cluster(name, &Value::Null, "1s");
    let fields = cluster.as_object_mut().unwrap();
    fields.remove("eds_cluster_config");
    fields.insert("type".to_owned(), "STATIC".into());
    let address = json!({"socket_address": {"address": address, "port_value": port}});
    let endpoints = json!([{"lb_endpoints": [{"endpoint": {"address": address}}]}]);
    fields.insert("load_assignment".to_owned(), json!({"cluster_name": name, "endpoints": endpoints}));
    cluster
}

/// Envoy applies the valid resources of a response that it rejects, and comes back with the version before: over state of the world
/// nothing that it says tells that it holds something else. Meanwhile the control plane has gone back to just that version.
fn goes_back_from_what_it_applied_of_a_rejected_update(transport: Transport) {
    let Some(()) = require_relay() else { return };
    let Some(world) = World::start(transport, 1) else { return };
    let origin = &world.fixture.origin;
    let put = |port, other| {
        origin.put(&static_cluster("other", other, 1));
        origin.put(&static_cluster(BACKEND, "127.0.0.1", port));
    };
    put(world.a, "127.0.0.1");
    let (runtime, relay) = (Runtime::new().unwrap(), local(world.fixture.xds_port()));
    let link = runtime.block_on(SlowLink::to(relay, Duration::ZERO));
    let envoy = AloneEnvoy::start(transport, link.port(), &[]);
    let stays = world.envoy("stays");
    envoy.wait_until_answered_by(INGRESS, "a");

    put(world.b, "no address");
    envoy.wait_until_answered_by(INGRESS, "b");
    eventually(PATIENCE, "it rejects the update", || {
        match envoy.stat("cluster_manager.cds.update_rejected")? {
            0 => Err("not yet".to_owned()),
            _ => Ok(()),
        }
    });
    stays.wait_until_answered_by(INGRESS, "b");
    link.lead_to(local(free_port()));
    link.break_connections();
    put(world.a, "127.0.0.1");
    stays.wait_until_answered_by(INGRESS, "a");
    link.lead_to(relay);
    envoy.wait_until_answered_by(INGRESS, "a");
}
