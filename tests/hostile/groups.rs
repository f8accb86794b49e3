//! Nodes that clients make up, each of which would have a node group of its own.

use deltafan_test_support::PATIENCE;
use deltafan_test_support::client::{CDS, subscription};
use deltafan_test_support::http1::Http1;
use prost::Message as _;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::fixture::{Fixture, mib, resident};
use super::peer::{
    END_STREAM, HEADERS, RST_STREAM, SETTINGS, call, frame, message, preface, read_frame, stream,
};

const GROUPS: &str = "groups:
  max: 64
  rules:
    - name: made-up
      match: {node.id: \"made-up-(?P<number>.*)\"}
      key: \"${number}\"
      node: {id: \"${number}\"}
";
/// A build that is not optimized takes many times as long for each.
const NODES: u32 = if cfg!(debug_assertions) { 4_000 } else { 1_000_000 };
const CONNECTIONS: u32 = 4;
/// Streams of one connection at a time, and one after the other.
const AT_A_TIME: u32 = 50;
const IN_A_ROW: u32 = 5_000;
/// Groups of one address: half of those that there may be.
const SHARE: f64 = 32.0;
const MEMORY: u64 = 64 << 20;
const ACK: u8 = 1;

/// Opens a stream for each of these nodes, and waits for the end of all.
fn come_and_go(relay: SocketAddr, numbers: std::ops::Range<u32>) {
    let mut socket = TcpStream::connect(relay).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.write_all(&[preface(0xffff), frame(SETTINGS, ACK, 0, &[])].concat()).unwrap();
    let mut from = BufReader::new(socket.try_clone().unwrap());
    let mut begun = 0;
    let numbers: Vec<u32> = numbers.collect();
    for some in numbers.chunks(AT_A_TIME as usize) {
        let mut said = Vec::new();
        for number in some {
            let request = subscription(&format!("made-up-{number}"), CDS, &["*"]);
            said.extend(call(stream(begun), 0));
            said.extend(message(stream(begun), END_STREAM, &request.encode_to_vec()));
            begun += 1;
        }
        socket.write_all(&said).unwrap();
        let mut ended = 0;
        while ended < some.len() {
            let (kind, flags, ..) = read_frame(&mut from).expect("the streams end in time");
            ended += usize::from((kind == HEADERS && flags & END_STREAM != 0) || kind == RST_STREAM);
        }
    }
}

#[test]
fn made_up_nodes_over_a_few_connections() {
    let fixture = Fixture::start(GROUPS);
    let relay = fixture.relay();
    let (before, lines, address) = (resident(relay), relay.log_lines(), relay.listener);
    std::thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            scope.spawn(move || {
                let each = NODES / CONNECTIONS;
                for from in (0..each).step_by(IN_A_ROW as usize) {
                    let from = connection * each + from;
                    come_and_go(address, from..(from + IN_A_ROW).min((connection + 1) * each));
                }
            });
        }
    });
    relay.wait_for("the end of all streams", || {
        relay.metric("deltafan_group_clients{group=\"made-up\"}") == 0.0
    });
    let groups = relay.metric("deltafan_groups{group=\"made-up\"}");
    let refused = relay.metric("deltafan_refused_total{reason=\"groups_max\"}");
    let grown = resident(relay).saturating_sub(before);
    let said = relay.log_lines() - lines;
    println!(
        "{NODES} nodes: {groups} groups, {refused} refused, {:.1} MiB more, {said} log lines",
        mib(grown)
    );
    assert!(groups <= SHARE, "{groups} groups");
    // A group that is released while others come makes room for one more.
    assert!(refused >= f64::from(NODES) * 0.9, "{refused} refused");
    assert!(grown <= MEMORY, "{:.1} MiB", mib(grown));
    assert!(said < 1_000, "{said} lines");
    // The relay is young: a poll is refused while it does not know whether it has all clusters (R-REST-09).
    let poll = || Http1::connect(address).poll("clusters", r#"{"node": {"id": "new"}}"#).status;
    relay.wait_for("the set of clusters", || poll() == 200);
    // Those that mean well are served, a newcomer is let in, and memory comes back.
    fixture.suffer(&[]);
}
