//! Envoy and gRPC on a relay that lets in only clients with certificates, behind a control plane that does the same.
//! Everybody has a SPIFFE ID.

use deltafan_test_support::certificates::Authority;

use crate::fixture::{
    Implementation, PATIENCE, SecureFixture, Transport, eventually, http_backend, is_direct,
    resources::{api_listener, cluster, endpoints, listener, routes},
    skipped, wait_until_answers,
};

const BACKEND: &str = "backend";
const INGRESS: &str = "ingress";

fn start(envoys: usize, authority: &Authority) -> Option<SecureFixture> {
    if is_direct() {
        skipped("what is tested is the relay's TLS");
        return None;
    }
    SecureFixture::start(envoys, authority)
}

/// A listener whose route leads to a cluster.
fn put_world(fixture: &SecureFixture) {
    let source = Transport::DeltaAds.config_source();
    fixture.origin.put(&cluster(BACKEND, &source, "1s"));
    fixture.origin.put(&routes("ingress-routes", BACKEND));
    fixture.origin.put(&listener(INGRESS, &source, "ingress-routes"));
}

/// Authorities and certificates of everybody are replaced while an Envoy holds its stream and resources change.
#[test]
fn envoy_follows_through_a_rotation() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let Some(fixture) = start(2, &old) else { return };
    let (a, b) = (http_backend("a"), http_backend("b"));
    put_world(&fixture);
    fixture.origin.put(&endpoints(BACKEND, a));
    let envoy = fixture.start_envoy("envoy");
    envoy.wait_until_answered_by(INGRESS, "a");

    let mut reloads = fixture.relay.lock().process().metric("deltafan_tls_reloads_total");
    let ended = || fixture.relay.lock().process().metric("deltafan_streams_ended_total");
    for (authority, trusted) in [(&old, &[&old, &new][..]), (&new, &[&old, &new]), (&new, &[&new])] {
        assert_eq!(ended(), 0.0, "no stream is lost while the old authority is trusted");
        fixture.certify(authority, trusted);
        for (name, port) in [("b", b), ("a", a), ("b", b), ("a", a)] {
            fixture.origin.put(&endpoints(BACKEND, port));
            envoy.wait_until_answered_by(INGRESS, name);
        }
        // The listener's files and those upstream.
        reloads += 2.0;
        eventually(PATIENCE, "the relay has read both sets again", || {
            let so_far = fixture.relay.lock().process().metric("deltafan_tls_reloads_total");
            if so_far >= reloads { Ok(()) } else { Err(format!("{so_far} of {reloads}")) }
        });
    }
    assert_eq!(fixture.relay.lock().process().metric("deltafan_tls_reload_failures_total"), 0.0);
    // Its connection was let in by the old authority, which counts no longer.
    eventually(PATIENCE, "Envoy has come again, with its new certificate", || {
        match envoy.stat("cluster.deltafan.upstream_cx_total")? {
            2 => Ok(()),
            so_far => Err(format!("{so_far} connections")),
        }
    });
    assert_eq!(ended(), 1.0, "no other stream is lost");
    assert_eq!(fixture.origin.stats().connections.ever, 1, "nor did the relay");

    // A client that comes now needs the new ones.
    let refused = fixture.get_clusters(&old);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && told.contains("the server refused the client certificate"),
        "{told}"
    );
    let answered = fixture.get_clusters(&new);
    assert!(answered.status.success(), "{answered:?}");
    let newcomer = fixture.start_envoy("newcomer");
    newcomer.wait_until_answered_by(INGRESS, "a");

    // And so do those that have to come again: the relay to the control plane, the Envoys to the relay.
    fixture.origin.kill();
    fixture.origin.put(&endpoints(BACKEND, b));
    fixture.origin.start_again();
    envoy.wait_until_answered_by(INGRESS, "b");
    fixture.relay.lock().stop();
    fixture.relay.lock().start_again();
    fixture.origin.put(&endpoints(BACKEND, a));
    envoy.wait_until_answered_by(INGRESS, "a");
    newcomer.wait_until_answered_by(INGRESS, "a");
    assert!(envoy.stat("cluster.deltafan.upstream_cx_total").unwrap() > 1);
}

/// Each implementation whose bootstrap can name a certificate for the xDS server. grpc-js 1.14 knows no such credentials,
/// and grpc-java 1.85 reads nothing of their `config`.
#[test]
fn grpc_clients_follow_an_endpoint_change() {
    [Implementation::Core, Implementation::Go].into_iter().for_each(grpc_follows_an_endpoint_change);
}

fn grpc_follows_an_endpoint_change(clients: Implementation) {
    const TARGET: &str = "greeter.example";
    let authority = Authority::new("authority");
    if clients.require().is_none() {
        return;
    }
    let Some(fixture) = start(0, &authority) else { return };
    let backends = fixture.start_grpc_backends(&["a", "b"]);
    let source = Transport::SotwAds.config_source();
    fixture.origin.put(&api_listener(TARGET, &source, "greeter-routes"));
    fixture.origin.put(&routes("greeter-routes", BACKEND));
    fixture.origin.put(&cluster(BACKEND, &source, "1s"));
    fixture.origin.put(&endpoints(BACKEND, backends.port("a")));
    let client = fixture.start_grpc_client(clients, "grpc-client", TARGET);
    wait_until_answers(&client, "a");
    fixture.origin.put(&endpoints(BACKEND, backends.port("b")));
    wait_until_answers(&client, "b");
}
