//! Servers at several addresses, over sockets.

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;
use crate::stream::Transport;

/// Takes connections, says this, and keeps them.
async fn server(says: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            if socket.write_all(says).await.is_ok() {
                kept.push(socket);
            }
        }
    });
    address
}

/// Empty SETTINGS.
const HTTP2: &[u8] = &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];

/// Address at which nobody listens.
async fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address")
}

#[tokio::test]
async fn addresses_that_take_the_connection_and_say_nothing_or_refuse_do_not_hide_one_that_answers() {
    let addresses = [server(b"").await, closed().await, server(HTTP2).await];
    let endpoint = Transport::default().endpoint("http://control-plane:1").expect("a URI");
    let attempt = |address, share| dial_at(endpoint.clone(), Target::Cleartext, address, share);
    let limit = Duration::from_secs(20);
    let reached = try_each(&addresses, 0, limit, attempt).await.expect("the third");
    assert_eq!(reached.1, 2);
    assert!(!reached.0.1.is_closed());
    // Each with its reason.
    let unreached = try_each(&addresses[..2], 0, Duration::from_secs(2), attempt).await.expect_err("none");
    let reasons: Vec<&str> = unreached.why.split("; ").collect();
    let [silent, refused] = reasons[..] else { panic!("{reasons:?}") };
    assert!(
        silent.starts_with(&addresses[0].to_string()) && silent.contains("no HTTP/2 SETTINGS"),
        "{silent}"
    );
    assert!(refused.starts_with(&addresses[1].to_string()) && refused.contains("refused"), "{refused}");
}

fn addresses(count: u8) -> Vec<SocketAddr> {
    (1..=count).map(|last| SocketAddr::from(([10, 0, 0, last], 1))).collect()
}

fn failed(why: &str, is_refused: bool) -> Unreached {
    Unreached { why: why.to_owned(), tried: 1, is_refused }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_hangs_does_not_hide_the_others() {
    let attempt = |address: SocketAddr, share: Duration| async move {
        if address.ip().to_string() == "10.0.0.3" {
            return Ok("here");
        }
        if address.ip().to_string() == "10.0.0.2" {
            return Err(failed("refused", true));
        }
        tokio::time::sleep(share).await;
        Err(failed("silent", false))
    };
    let begun = Instant::now();
    let reached = try_each(&addresses(3), 0, Duration::from_secs(6), attempt).await.expect("the third");
    assert_eq!((reached.0, reached.1, begun.elapsed().as_secs()), ("here", 2, 2));
    let unreached = try_each(&addresses(2), 1, Duration::from_secs(6), attempt).await.expect_err("none");
    assert_eq!((&*unreached.why, unreached.tried), ("10.0.0.2:1: refused; 10.0.0.1:1: silent", 2));
    assert!(!unreached.is_refused, "the silent one may be busy");
}

#[tokio::test(start_paused = true)]
async fn many_addresses_that_hang_take_no_more_than_the_whole_time() {
    let attempt = |_: SocketAddr, share: Duration| async move {
        assert!(share >= Duration::from_millis(900), "{share:?}");
        tokio::time::sleep(share).await;
        Err::<(), _>(failed("silent", false))
    };
    let begun = Instant::now();
    let unreached = try_each(&addresses(50), 0, Duration::from_secs(5), attempt).await.expect_err("none");
    assert_eq!((unreached.tried, begun.elapsed()), (5, Duration::from_secs(5)));
}

#[tokio::test]
async fn an_address_is_not_looked_up() {
    for (uri, expected) in [
        ("http://127.0.0.1:9", "127.0.0.1:9"),
        ("https://[::1]", "[::1]:443"),
        ("http://[::1]:7/", "[::1]:7"),
    ] {
        let found = resolve(&uri.parse().expect("a URI")).await.expect("an address");
        assert_eq!(found, [expected.parse().expect("an address")]);
    }
}
