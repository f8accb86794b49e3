//! Node groups against a server of HTTP/2 that shows the bytes of their streams.

use bytes::BytesMut;
use deltafan::grpc::BytesCodec;
use deltafan::resource::wire;
use futures_util::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tonic::transport::Channel;

use crate::groups::{BORROWED, FLEETS, client};
use crate::prelude::*;

/// Longest wait for something that has to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stream of a client that sends these bytes, and what comes back.
async fn send_raw(channel: &Channel, message: Bytes) -> tonic::Streaming<Bytes> {
    let requests = stream::iter([message]).chain(stream::pending());
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static(DELTA_ADS);
    grpc.streaming(tonic::Request::new(requests), path, BytesCodec).await.unwrap().into_inner()
}

/// A request of a node with a field that nobody knows.
fn odd_request(node: &[u8]) -> Bytes {
    let mut message = BytesMut::new();
    wire::put_field(&mut message, 1, node);
    let request = DeltaDiscoveryRequest {
        type_url: CDS.to_owned(),
        resource_names_subscribe: vec!["*".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    message.extend_from_slice(&request.encode_to_vec());
    message.freeze()
}

fn odd_node(id: &str) -> Vec<u8> {
    let known = Node { id: id.to_owned(), ..Node::default() };
    // Field 12 is `listening_addresses`, which the relay does not read; field 200 is nobody's.
    [known.encode_to_vec(), vec![0x62, 2, 0x12, 0], vec![0xc2, 0x0c, 3, b'o', b'd', b'd']].concat()
}

/// First message of each stream that a client of HTTP/2 opens on any connection, with the number of the connection. No more
/// connections than `connections` are accepted.
fn first_messages(
    listener: TcpListener,
    max_streams: u32,
    connections: usize,
) -> UnboundedReceiver<(usize, Bytes)> {
    let (tell, told) = unbounded_channel();
    tokio::spawn(async move {
        for number in 0..connections {
            let (socket, _) = listener.accept().await.unwrap();
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut server = h2::server::Builder::new();
                let mut connection =
                    server.max_concurrent_streams(max_streams).handshake::<_, Bytes>(socket).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let tell = tell.clone();
                    tokio::spawn(async move {
                        let mut body = request.into_body();
                        let mut read = BytesMut::new();
                        while let Some(Ok(data)) = body.data().await {
                            read.extend_from_slice(&data);
                            _ = body.flow_control().release_capacity(data.len());
                            if read.len() > 5 {
                                _ = tell.send((number, read.split().freeze().slice(5..)));
                            }
                        }
                        drop(respond);
                    });
                }
            });
        }
    });
    told
}

/// A relay behind a server that accepts so many streams on a connection, and so many connections.
async fn behind(
    max_streams: u32,
    connections: usize,
    upstream: &str,
    further: &str,
) -> (Process, UnboundedReceiver<(usize, Bytes)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let told = first_messages(listener, max_streams, connections);
    (Process::behind_keys(&uri, "", upstream, further), told)
}

/// Group of a first message.
fn group_of(message: Bytes) -> String {
    DeltaDiscoveryRequest::decode(message).unwrap().node.expect("a node").id
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_a_client_goes_upstream_verbatim() {
    let (relay, mut told) = behind(100, usize::MAX, "", BORROWED).await;
    let _first = send_raw(&connect(&relay.uri()).await, odd_request(&odd_node("odd-1"))).await;
    let (_, message) = told.recv().await.unwrap();
    let shown = wire::fields(&message).flatten().next().expect("a field");
    assert_eq!(shown.number, 1);
    let mut expected = BytesMut::new();
    wire::put_field(&mut expected, 1, &odd_node("odd-1"));
    assert_eq!(shown.raw, &expected[..], "the bytes of the client, unknown fields and all");
    let listed = relay.admin_json("/upstreams?group=*");
    let listed = listed["groups"]["listed"].as_array().expect("groups").iter();
    assert!(listed.clone().any(|group| group["node"]["id"] == "odd-1"), "{listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_allows_few_streams_is_given_more_connections() {
    // Two groups on each connection: with the own one these are three connections.
    let (relay, mut told) = behind(6, usize::MAX, "", FLEETS).await;
    let mut clients = Vec::new();
    for fleet in ["a", "b", "c", "d"] {
        clients.push(client(&relay, &format!("{fleet}-1")).await);
    }
    let mut on = BTreeMap::<usize, usize>::new();
    for _ in 0..4 {
        let (connection, message) = told.recv().await.unwrap();
        assert!(group_of(message).starts_with("fleet-"));
        *on.entry(connection).or_default() += 1;
    }
    assert!(on.values().all(|groups| *groups <= 2), "{on:?}");
    assert_eq!(relay.metric("deltafan_upstream_connections"), 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_takes_room_that_comes_free_though_a_further_connection_fails() {
    // The own group and one more have room on the connection, and there is no other.
    let upstream = "unsubscribe_linger: 1s, backoff: {initial: 5m, max: 5m}";
    let (relay, mut told) = behind(6, 1, upstream, FLEETS).await;
    let first = client(&relay, "a-1").await;
    assert_eq!(group_of(told.recv().await.unwrap().1), "fleet-a");
    let _second = client(&relay, "b-1").await;
    relay.wait_for_message("control plane unreachable; nothing is cached yet");
    drop(first);
    let (connection, message) =
        tokio::time::timeout(PATIENCE, told.recv()).await.expect("room is taken").unwrap();
    assert_eq!((connection, group_of(message).as_str()), (0, "fleet-b"));
}
