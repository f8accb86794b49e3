//! A control plane that is asked whether it is there.

use deltafan::upstream::{Backoff, LivenessTimes, Options, Transport};
use deltafan_test_support::slow_link::SlowLink;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::prelude::*;
use crate::upstream::{Relay, options};

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;

/// Relay that asks after this silence, and waits for a second.
fn relay(uri: &str, after: Duration) -> Relay {
    let endpoint = Transport::default().endpoint(uri).expect("a URI");
    let liveness = LivenessTimes { after, timeout: Duration::from_secs(1) };
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));
    Relay::at(Options { liveness, backoff, ..options(endpoint) })
}

fn send(stream: &OriginStream, kind: Kind, nonce: &str, name: &str, body: &[u8]) {
    let type_url = TypeUrl::from(kind);
    let mut message = response(&type_url, nonce);
    message.resources = vec![resource(&type_url, name, "1", body)];
    stream.send(&message);
}

/// Of a server that hangs the kernel answers TCP, and no PING is due for minutes.
#[tokio::test]
async fn r_up_09_a_server_that_hangs_is_noticed_when_something_is_asked_of_it() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let uri = format!("http://{}", listener.local_addr().expect("an address"));
    let relay = relay(&uri, Duration::from_millis(100));
    let client = relay.client(CDS, true, &[]);
    let accept = async || {
        let (mut socket, _) = timeout(PATIENCE, listener.accept()).await.expect("in time").expect("a socket");
        // SETTINGS without any, and then nothing.
        tokio::io::AsyncWriteExt::write_all(&mut socket, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.expect("room");
        socket
    };
    let first = accept().await;
    let _second = accept().await;
    let error = relay.state.borrow().last_error.clone().unwrap_or_default();
    assert!(error.contains("did not answer a health check within 1s"), "{error}");
    drop((client, first));
}

/// A control plane need not answer for what it does not have.
#[tokio::test]
async fn r_up_09_a_server_that_answers_health_checks_may_be_silent() {
    let mut origin = Origin::start().await;
    let relay = relay(&origin.uri(), Duration::from_millis(100));
    let _client = relay.client(CDS, true, &[]);
    let mut stream = origin.accept_asked().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(relay.state.borrow().connected);
    assert_eq!(relay.counters.connects.get(), 1);
    send(&stream, CDS, "1", "c", b"");
    stream.expect_ack("1").await;
}

/// A server with one thread answers nothing while it works, and the last request may be an hour ago.
#[tokio::test]
async fn r_up_09_a_server_has_time_for_a_request_after_a_long_silence() {
    let mut origin = Origin::start().await;
    let relay = relay(&origin.uri(), Duration::from_secs(4));
    let _client = relay.client(CDS, true, &[]);
    let mut stream = origin.accept_asked().await;
    send(&stream, CDS, "1", "c", b"");
    stream.expect_ack("1").await;
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    origin.leave_checks(true);
    let _other = relay.client(EDS, false, &["e"]);
    stream.expect_request().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    send(&stream, EDS, "2", "e", b"");
    relay.holds(EDS, "e", "1").await;
    assert_eq!(relay.counters.connects.get(), 1);
}

/// TCP is acknowledged, and no request is left unanswered.
#[tokio::test]
async fn r_up_09_a_server_that_hangs_in_the_middle_of_a_response_is_noticed() {
    let mut origin = Origin::start().await;
    let link = SlowLink::to(origin.address(), Duration::ZERO).await;
    let relay = relay(&link.uri(), Duration::from_millis(500));
    let _client = relay.client(CDS, true, &[]);
    let mut stream = origin.accept_asked().await;
    send(&stream, CDS, "1", "c", b"");
    stream.expect_ack("1").await;
    link.narrow(1 << 20);
    // An update that nobody asked for.
    send(&stream, CDS, "2", "c2", &vec![b'x'; 8 << 20]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(relay.state.borrow().connected, "it is on its way");
    link.stall();
    eventually("loss of the connection", async || !relay.state.borrow().connected).await;
    let error = relay.state.borrow().last_error.clone().unwrap_or_default();
    assert!(error.contains("did not answer a health check within 1s"), "{error}");
}
