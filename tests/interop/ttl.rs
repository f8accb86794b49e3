//! Envoys that are told for how long to keep a cluster.

use std::time::{Duration, Instant};

use deltafan::proto::DeltaDiscoveryResponse;
use deltafan::resource::{Kind, TypeUrl};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response, timed};
use deltafan_test_support::process::{Process, SHARED_LISTENER};

use crate::fixture::{AloneEnvoy, Transport, always, eventually};

const TTL: Duration = Duration::from_secs(3);
const TIMED: &str = "timed";
const LASTING: &str = "lasting";

/// A cluster without endpoints.
fn cluster(name: &str) -> Vec<u8> {
    let text = |tag: &[u8], payload: &[u8]| [tag, &[payload.len() as u8], payload].concat();
    let assignment = text(&[0x0a], name.as_bytes());
    [text(&[0x0a], name.as_bytes()), text(&[0x8a, 0x02], &assignment)].concat()
}

/// Answers what an Envoy asks for when it starts: two clusters, of which one ends, and no listeners. For a
/// state-of-the-world client the relay opens its stream anew, for proof that the set of clusters is complete.
async fn configure(origin: &mut Origin) -> OriginStream {
    let (cds, lds): (TypeUrl, TypeUrl) = (Kind::Cluster.into(), Kind::Listener.into());
    let mut stream = origin.accept().await;
    let mut asked = [false, false];
    while asked != [true, true] {
        let Some(request) = stream.next_request().await else {
            stream = origin.accept().await;
            continue;
        };
        if !request.response_nonce.is_empty() {
            assert_eq!(request.error_detail, None);
        } else if request.type_url == cds.as_str() {
            let held = |name: &str| request.initial_resource_versions.contains_key(name);
            let ends = (!held(TIMED)).then(|| timed(&cds, TIMED, "1", Some(&cluster(TIMED)), TTL));
            let lasts = (!held(LASTING)).then(|| resource(&cds, LASTING, "1", &cluster(LASTING)));
            let resources = ends.into_iter().chain(lasts).collect();
            stream.send(&DeltaDiscoveryResponse { resources, ..response(&cds, "clusters") });
            asked[0] = true;
        } else if request.type_url == lds.as_str() {
            stream.send(&response(&lds, "no listeners"));
            asked[1] = true;
        }
    }
    stream
}

/// Heartbeats keep the cluster for three times its TTL; then the origin falls silent.
fn keeps_a_cluster_while_heartbeats_come(transport: Transport) {
    if !AloneEnvoy::is_there() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut origin = runtime.block_on(Origin::start());
    let relay = Process::behind_with(&origin.uri(), SHARED_LISTENER, "");
    let features = ["xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"];
    let envoy = AloneEnvoy::start(transport, relay.listener.port(), &features);
    let stream = runtime.block_on(configure(&mut origin));

    let names = || Ok::<_, String>(envoy.dynamic_clusters()?.active.into_keys().collect::<Vec<_>>());
    let holds = |expected: &[&str]| match names()? {
        held if held == expected => Ok(()),
        held => Err(format!("{held:?}")),
    };
    eventually(Duration::from_secs(2), "both clusters are there", || holds(&[LASTING, TIMED]));
    let beats = TTL.as_secs() * 3;
    for beat in 0..beats {
        let cds: TypeUrl = Kind::Cluster.into();
        let resources = vec![timed(&cds, TIMED, "1", None, TTL)];
        stream.send(&DeltaDiscoveryResponse { resources, ..response(&cds, &format!("beat {beat}")) });
        always(Duration::from_secs(1), "both clusters stay", || holds(&[LASTING, TIMED]));
    }
    let silent = Instant::now();
    eventually(TTL, "what was not renewed is gone", || holds(&[LASTING]));
    assert!(silent.elapsed() > TTL - Duration::from_secs(2), "not before its time");
    always(Duration::from_secs(1), "what has no TTL stays", || holds(&[LASTING]));
    let (_, metrics) = relay.admin_get("/metrics");
    let answered = |how: &str| {
        let requests = metrics.lines().filter(|line| line.starts_with("deltafan_requests_total"));
        let values = requests.filter(|line| line.contains(how)).filter_map(|line| line.rsplit_once(' '));
        values.map(|(_, value)| value.parse::<f64>().unwrap()).sum::<f64>()
    };
    assert_eq!(answered("\"nack\""), 0.0);
    assert!(answered("\"ack\"") > beats as f64, "it took them all");
}

#[test]
fn v6_over_delta_envoy_keeps_a_cluster_while_heartbeats_come() {
    keeps_a_cluster_while_heartbeats_come(Transport::DeltaAds);
}

/// V5: no heartbeat, but the whole set each time.
#[test]
fn v5_over_state_of_the_world_envoy_keeps_a_cluster_while_heartbeats_come() {
    keeps_a_cluster_while_heartbeats_come(Transport::SotwAds);
}
