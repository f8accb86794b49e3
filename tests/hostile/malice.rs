//! Requests made to be dear to read: JSON, protobuf, compression.

use deltafan::proto::DeltaDiscoveryRequest;
use deltafan_test_support::client::CDS;
use prost::Message as _;
use prost::encoding::encode_varint;

use super::fixture::{Fixture, attack};
use super::peer::{DELTA_ADS, END_HEADERS, HEADERS, Target, call, call_block, field, frame, message};

/// Posts a body of JSON again and again, on connections that are kept for as long as the relay keeps them.
fn post(target: &Target, headers: &str, body: &str) {
    let length = body.len();
    let head = format!(
        "POST /v3/discovery:clusters HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n"
    );
    let request = [head.as_bytes(), body.as_bytes()].concat();
    while target.lasts() {
        let Some(mut peer) = target.peer() else { continue };
        while target.lasts() && peer.say(&request) && peer.listen() {}
    }
}

/// Two bytes short of what `downstream.max_request_bytes` allows.
const ROOM: usize = (4 << 20) - 2;

fn filled(start: &str, piece: &str, end: &str) -> String {
    [start, &piece.repeat((ROOM - start.len() - end.len()) / piece.len()), end].concat()
}

#[test]
fn json_that_is_dear_to_read() {
    const OUTLINE: &str = "max_request_bytes; depth of 100 across all forms, values counted before parsing";
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("JSON: 4 MiB of brackets", OUTLINE, |target| post(target, "", &filled("", "[", ""))),
        attack("JSON: 4 MiB of keys", OUTLINE, |target| {
            post(target, "", &filled("{\"node\":{\"metadata\":{", "\"a\":1,", "\"b\":1}}}"))
        }),
        attack("JSON: a number of 4 MiB", OUTLINE, |target| {
            post(target, "", &filled("{\"node\":{\"metadata\":{\"n\":", "7", "}}}"))
        }),
        attack("JSON: one field again and again", OUTLINE, |target| {
            post(target, "", &filled("{", "\"typeUrl\":\"\",", "\"typeUrl\":\"\"}"))
        }),
        attack("JSON: lists in lists in node.metadata, as wide as deep", OUTLINE, |target| {
            let deep = format!("{}{},", "[".repeat(90), "]".repeat(90));
            post(target, "", &filled("{\"node\":{\"metadata\":{\"n\":[", &deep, "1]}}}"));
        }),
        attack("JSON: escapes", OUTLINE, |target| {
            post(target, "", &filled("{\"node\":{\"id\":\"", "\\u0041", "\"}}"))
        }),
    ]);
}

fn nested(number: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    encode_varint(inner.len() as u64, &mut out);
    out.extend_from_slice(inner);
    out
}

/// A node whose metadata nests so deep: list in value in list.
fn deep_node(levels: usize) -> Vec<u8> {
    let value = (0..levels).fold(vec![0x08, 0], |inner, _| nested(6, &nested(1, &inner)));
    let entry = [nested(1, b"k"), nested(2, &value)].concat();
    nested(1, &nested(3, &nested(1, &entry)))
}

/// Opens calls that say `bytes` and end.
fn calls(target: &Target, bytes: &[u8]) {
    target.flood_streams(4, |id| [call(id, 0), message(id, 1, bytes)].concat());
}

#[test]
fn protobuf_that_is_dear_to_read() {
    const DEPTH: &str = "depth of 100 (prost); INVALID_ARGUMENT";
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("protobuf: node.metadata 2,000 levels deep", DEPTH, |target| calls(target, &deep_node(2000))),
        attack(
            "protobuf: node.metadata as deep as it may be, 600 times",
            "max_request_bytes; depth of 100",
            |target| calls(target, &deep_node(45).repeat(60_000 / deep_node(45).len())),
        ),
        attack("protobuf: lengths beyond the end, and of 2^64", "INVALID_ARGUMENT", |target| {
            let mut bytes = vec![0x1a];
            encode_varint(u64::MAX, &mut bytes);
            calls(target, &bytes);
        }),
        attack("protobuf: fields that nobody knows, 60 KiB", "max_request_bytes", |target| {
            calls(target, &[0xf8, 0x7f, 1].repeat(20_000))
        }),
        attack("protobuf: empty names, 30,000", "max_names", |target| {
            let start = DeltaDiscoveryRequest { type_url: CDS.to_owned(), ..Default::default() };
            calls(target, &[start.encode_to_vec(), [0x1a, 0].repeat(30_000)].concat());
        }),
        attack("compressed: gRPC's flag set", "UNIMPLEMENTED before anything is read", |target| {
            let block = [call_block(DELTA_ADS), field("grpc-encoding", "gzip")].concat();
            target.flood_streams(50, |id| {
                let head = frame(HEADERS, END_HEADERS, id, &block);
                [head, frame(0, 1, id, &[1, 0, 0x3f, 0xff, 0xff, 0x1f, 0x8b])].concat()
            });
        }),
        attack("compressed: content-encoding gzip over HTTP/1", "415 before anything is read", |target| {
            post(target, "content-encoding: gzip\r\n", &"\x1f".repeat(10_000))
        }),
    ]);
}
