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
