//! Peers that take time: to say something, to read, to acknowledge, to leave.

use std::time::Duration;

use deltafan::proto::{DeltaDiscoveryRequest, Node};
use deltafan_test_support::client::{CDS, EDS};
use prost::Message as _;

use super::fixture::{Fixture, attack};
use super::peer::{
    DATA, DELTA_ADS, HEADERS, Peer, Target, call, call_block, frame, message, preface, stream,
};

const TIMEOUT: &str = "first_request_timeout";

/// A subscription to everything of a type.
fn everything(type_url: &str) -> Vec<u8> {
    let node = Some(Node { id: "slow".to_owned(), ..Node::default() });
    let (type_url, names) = (type_url.to_owned(), vec!["*".to_owned()]);
    DeltaDiscoveryRequest { node, type_url, resource_names_subscribe: names, ..Default::default() }
        .encode_to_vec()
}

/// Says `trickle` to each, byte after byte, until the end.
pub(crate) fn drip(target: &Target, mut peers: Vec<Peer>, trickle: &[u8]) {
    for byte in trickle.iter().cycle() {
        if !target.lasts() {
            break;
        }
        peers.retain_mut(|peer| peer.say(&[*byte]));
        std::thread::sleep(Duration::from_millis(20));
    }
    peers.into_iter().for_each(Peer::vanish);
}

#[test]
fn peers_that_are_slow_to_speak() {
    const EACH: usize = 500;
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("slow first bytes", TIMEOUT, |target| drip(target, target.peers(EACH, b"P"), b"R")),
        attack("slow heads over HTTP/1", "rest.idle_timeout, 8 KiB–400 KiB of head (hyper)", |target| {
            drip(target, target.peers(EACH, b"POST /v3/discovery:clusters HTTP/1.1\r\nx: "), b"y")
        }),
        attack("slow heads over HTTP/2", TIMEOUT, |target| {
            let start = [preface(0), frame(HEADERS, 0, 1, &call_block(DELTA_ADS))].concat();
            drip(target, target.peers(EACH, &start), &frame(9, 0, 1, &[0, 1, b'a', 0]));
        }),
        attack("slow bodies over HTTP/1", TIMEOUT, |target| {
            let head =
                b"POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n{\"";
            drip(target, target.peers(EACH, head), b"x");
        }),
        attack(
            "slow bodies over HTTP/2, 100 streams each",
            "stall_timeout; window of 64 KiB for what is not read",
            |target| {
                let calls: Vec<u8> = (0..100)
                    .flat_map(|n| {
                        [call(stream(n), 0), frame(DATA, 0, stream(n), &[0, 0, 0x3f, 0xff, 0xff])].concat()
                    })
                    .collect();
                let start = [preface(0), calls].concat();
                drip(target, target.peers(20, &start), &frame(DATA, 0, 1, b"x"));
            },
        ),
        attack("half-open connections, thousands, then reset", TIMEOUT, |target| {
            target.hold_peers(2000, b"");
        }),
        attack("a storm of connections", "accepting costs what it costs; 4096 in the backlog", |target| {
            while target.lasts() {
                target.peers(20, &preface(0)).into_iter().for_each(Peer::vanish);
            }
        })
        .by(4),
    ]);
}

#[test]
fn peers_that_are_slow_to_read() {
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack(
            "windows of zero, 2 MiB pending for each of 400 streams",
            "stall_timeout; bytes are shared",
            |target| {
                let calls: Vec<u8> = (0..20)
                    .flat_map(|n| [call(stream(n), 0), message(stream(n), 0, &everything(EDS))].concat())
                    .collect();
                target.hold_peers(10, &[preface(0), calls].concat());
            },
        ),
        attack(
            "readers that stop, 2 MiB pending for each of 80",
            "stall_timeout; one batch (1 MiB, of which 64 KiB copied), shared",
            |target| {
                let start = [preface(0x7fff_ffff), call(1, 0), message(1, 0, &everything(EDS))].concat();
                target.hold_peers(40, &start);
            },
        ),
        attack("readers of one byte at a time (windows)", "budget of useless frames", |target| {
            let start = [call(1, 0), message(1, 0, &everything(EDS)), super::peer::setting(4, 0)].concat();
            let opens = frame(8, 0, 1, &1_u32.to_be_bytes()).repeat(200);
            target.flood(&start, |_| opens.clone());
        }),
        attack(
            "who never acknowledges, 1000 streams under churn",
            "one response per type until ack_timeout; nothing is queued",
            |target| {
                let calls: Vec<u8> = (0..100)
                    .flat_map(|n| [call(stream(n), 0), message(stream(n), 0, &everything(CDS))].concat())
                    .collect();
                let mut peers = target.peers(5, &[preface(0x7fff_ffff), calls].concat());
                while target.lasts() {
                    peers.retain_mut(Peer::listen);
                    std::thread::sleep(Duration::from_millis(5));
                }
                peers.into_iter().for_each(Peer::vanish);
            },
        ),
    ]);
}
