//! Envoys that are cut off for longer than `unsubscribe_linger`, and come back to what they had.
//!
//! `INTEROP=direct` fails with two of the control planes: go-control-plane 0.13.4 leaves a new cluster of an Envoy over
//! state of the world without endpoints, and java-control-plane does not say that a cluster has gone.

use std::{collections::BTreeSet, thread, time::Duration};

use crate::fixture::{
    ControlPlane, Envoy, ForeignFixture, Link, PATIENCE, Transport, eventually, http_backend,
    resources::{CLUSTER, ENDPOINTS, cluster, endpoints, listener, routes},
};

/// Longer than the linger of the relay, which is a second.
const CUT: Duration = Duration::from_secs(2);
/// How long an Envoy may wait that is connected again: clusters that are gone stay for some seconds, for routes (make before break).
const BOUND: Duration = Duration::from_secs(30);
const ROUNDS: usize = 2;

#[test]
fn envoys_come_back_behind_each_control_plane() {
    use ControlPlane::{Go, Java};
    [Go("v0.13.4", &[]), Go("v0.14.0", &[]), Java("v1.0.49")].into_iter().for_each(envoys_come_back);
}

const TRANSPORTS: [Transport; 4] =
    [Transport::DeltaAds, Transport::SotwAds, Transport::DeltaAds, Transport::SotwAds];
const BACKEND: &str = "backend";
const LISTENERS: [&str; 2] = ["ingress", "another"];
/// Clusters of which one is there at a time.
const SPARE: [&str; 2] = ["spare-0", "spare-1"];

fn envoys_come_back(control_plane: ControlPlane) {
    let Some(fixture) = ForeignFixture::start_for_envoys(control_plane, TRANSPORTS.len(), ["auto", "1s"])
    else {
        return;
    };
    // All of the transports are aggregated.
    let source = TRANSPORTS[0].config_source();
    let backends = [("a", http_backend("a")), ("b", http_backend("b"))];
    let put_cluster = |name: &str, port: u16| {
        fixture.origin.put(&endpoints(name, port));
        fixture.origin.put(&cluster(name, &source, "1s"));
    };
    put_cluster(BACKEND, backends[0].1);
    put_cluster(SPARE[0], backends[0].1);
    for name in LISTENERS {
        fixture.origin.put(&routes(&format!("{name}-routes"), BACKEND));
        fixture.origin.put(&listener(name, &source, &format!("{name}-routes")));
    }

    let link = Link::to(fixture.port(0));
    let start = |(at, transport): (usize, &Transport)| {
        fixture.start_envoy(&format!("envoy-{at}"), *transport, link.port())
    };
    let envoys: Vec<_> = TRANSPORTS.iter().enumerate().map(start).collect();
    for envoy in &envoys {
        eventually(PATIENCE, "Envoy is configured", || holds(envoy, "a", SPARE[0]));
    }
    for round in 1..=ROUNDS {
        link.cut();
        thread::sleep(CUT);
        let (backend, port) = backends[round % 2];
        let (new, old) = (SPARE[round % 2], SPARE[(round + 1) % 2]);
        put_cluster(new, port);
        fixture.origin.put(&endpoints(BACKEND, port));
        fixture.origin.delete(CLUSTER, old);
        fixture.origin.delete(ENDPOINTS, old);
        link.mend();
        wait_until_all_hold(&envoys, backend, new);
    }
}

/// Waits until all Envoys have what the control plane has. On their way there they serve all the time.
fn wait_until_all_hold(envoys: &[Envoy], backend: &str, spare: &str) {
    eventually(PATIENCE, "all are connected again", || {
        envoys.iter().try_for_each(|envoy| match envoy.stat("control_plane.connected_state")? {
            1 => Ok(()),
            _ => Err("one is not".to_owned()),
        })
    });
    eventually(BOUND, "all hold what the control plane has", || {
        envoys.iter().zip(TRANSPORTS).try_for_each(|(envoy, transport)| {
            for listener in LISTENERS {
                let lost = envoy.request(listener).err();
                assert_eq!(lost, None, "{transport:?} lost {listener}");
            }
            holds(envoy, backend, spare).map_err(|complaint| format!("{transport:?}: {complaint}"))
        })
    });
}

/// Whether an Envoy has both listeners, whose requests this backend answers, and of the spare clusters this one.
fn holds(envoy: &Envoy, backend: &str, spare: &str) -> Result<(), String> {
    for listener in LISTENERS {
        envoy.is_answered_by(listener, backend)?;
    }
    let clusters = envoy.dynamic_clusters()?;
    let active: BTreeSet<_> = clusters.active.keys().map(String::as_str).collect();
    let is_so = active == BTreeSet::from([BACKEND, spare]) && clusters.warming.is_empty();
    if is_so { Ok(()) } else { Err(format!("active: {active:?}; warming: {:?}", clusters.warming.keys())) }
}
