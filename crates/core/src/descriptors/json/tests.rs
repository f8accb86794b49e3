use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::DynamicMessage;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use super::super::{message, pool, read_any};
use super::*;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn any(type_url: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, type_url.as_bytes());
    put_bytes(&mut out, 2, value);
    out
}

fn written(any: &[u8]) -> Result<serde_json::Value> {
    let mut out = Vec::new();
    write_any(pool(), any, 1 << 24, &mut out)?;
    Ok(serde_json::from_slice(&out)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out))))
}

/// The JSON that the library makes, which builds a tree.
fn by_library(any: &[u8]) -> Option<serde_json::Value> {
    let text = serde_json::to_string(&read_any(pool(), any).ok()?).ok()?;
    // It gives Empty a `value`.
    let text = text.replace(r#"google.protobuf.Empty","value":{}"#, r#"google.protobuf.Empty""#);
    Some(serde_json::from_str(&text).unwrap())
}

/// Appends a random value of a kind, which is no message, as it stands behind its tag or in a packed list.
fn put_scalar(rng: &mut StdRng, kind: &Kind, out: &mut Vec<u8>) {
    let number = *[0, 1, 2, 5, 127, u64::MAX, 1 << 31, rng.random()].choose(rng).unwrap();
    match kind {
        Kind::Fixed32 | Kind::Sfixed32 => out.extend((number as u32).to_le_bytes()),
        Kind::Fixed64 | Kind::Sfixed64 => out.extend(number.to_le_bytes()),
        Kind::Float => {
            out.extend([0.0, -0.0, 0.1, 1e30, f32::NAN, f32::NEG_INFINITY].choose(rng).unwrap().to_le_bytes())
        }
        Kind::Double => {
            out.extend([0.0, -0.0, 0.1, 1e300, f64::NAN, f64::INFINITY].choose(rng).unwrap().to_le_bytes())
        }
        Kind::String | Kind::Bytes => {
            let texts: [&[u8]; 5] = [b"", b"a", "\u{e9}\u{1}\"\\".as_bytes(), b"a.b_c", b"\xff"];
            // Seldom, because a text that is none spoils the whole.
            let text = if rng.random_ratio(1, 100) { texts[4] } else { texts[rng.random_range(0..4)] };
            encode_varint(text.len() as u64, out);
            out.extend_from_slice(text);
        }
        _ => encode_varint(number, out),
    }
}

fn random(rng: &mut StdRng, message: &MessageDescriptor, depth: usize) -> Vec<u8> {
    let mut out = Vec::new();
    if message.full_name() == ANY {
        let types = [
            CLUSTER,
            "t/google.protobuf.Empty",
            "t/google.protobuf.DoubleValue",
            "t/xds.type.v3.TypedStruct",
            "t/google.protobuf.Duration",
            "t/no.such.Type",
        ];
        let url = if rng.random_ratio(1, 50) { types[5] } else { types[rng.random_range(0..5)] };
        let inner = message.parent_pool().get_message_by_name(message_name(url).unwrap());
        return any(url, &inner.map(|inner| random(rng, &inner, depth + 1)).unwrap_or_default());
    }
    let fields: Vec<_> = message.fields().collect();
    for _ in 0..rng.random_range(0..6) {
        let Some(field) = fields.choose(rng) else { break };
        let (kind, number) = (field.kind(), field.number());
        let wire_type = match &kind {
            Kind::Message(inner) => {
                if depth < 6 {
                    let inner = random(rng, inner, depth + 1);
                    put_bytes(&mut out, number, &inner);
                }
                continue;
            }
            Kind::String | Kind::Bytes => WireType::LengthDelimited,
            Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => WireType::ThirtyTwoBit,
            Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => WireType::SixtyFourBit,
            _ => WireType::Varint,
        };
        if field.is_list() && wire_type != WireType::LengthDelimited && rng.random() {
            let mut packed = Vec::new();
            (0..rng.random_range(0..4)).for_each(|_| put_scalar(rng, &kind, &mut packed));
            put_bytes(&mut out, number, &packed);
        } else {
            encode_key(number, wire_type, &mut out);
            put_scalar(rng, &kind, &mut out);
        }
    }
    if rng.random_ratio(1, 20) {
        put_bytes(&mut out, 99_999, b"newer");
    }
    out
}

#[test]
fn it_writes_what_the_library_writes() {
    let names = [
        "envoy.config.cluster.v3.Cluster",
        "envoy.config.route.v3.RouteConfiguration",
        "envoy.config.listener.v3.Listener",
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
        "envoy.extensions.transport_sockets.tls.v3.Secret",
        "google.protobuf.Struct",
        "google.protobuf.ListValue",
        "google.protobuf.Value",
        "google.protobuf.FieldMask",
        "google.protobuf.Int64Value",
        "google.protobuf.BytesValue",
        // proto2, with each kind of number, and extensions.
        "google.protobuf.FileDescriptorProto",
        "google.protobuf.UninterpretedOption",
        "google.protobuf.FieldOptions",
    ];
    let mut shown = 0;
    for seed in 0..6_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        let name = names.choose(&mut rng).unwrap();
        let value = random(&mut rng, &message(name).unwrap(), 0);
        let any = any(&format!("type.googleapis.com/{name}"), &value);
        let ours = written(&any);
        // It also refuses a fault in what does not count, as in a text that is there again.
        let Some(theirs) = by_library(&any) else { continue };
        shown += 1;
        assert_eq!(ours, Ok(theirs), "seed {seed}, {name}");
    }
    assert!(shown > 3_000, "{shown}");
}

#[test]
fn a_message_in_pieces_is_put_together() {
    let piece = |text: &str| {
        DynamicMessage::parse_text_format(message("envoy.config.cluster.v3.Cluster").unwrap(), text)
            .unwrap()
            .encode_to_vec()
    };
    let pieces = [
        piece("name: 'a' upstream_bind_config { source_address { address: 'x' } }"),
        piece("name: 'b' upstream_bind_config { source_address { port_value: 7 } }"),
    ];
    let json = written(&any(CLUSTER, &pieces.concat())).unwrap();
    assert_eq!(json["name"], "b");
    assert_eq!(json["upstreamBindConfig"]["sourceAddress"], json!({"address": "x", "portValue": 7}));

    let mut large = Vec::new();
    (0..WHOLE).for_each(|_| put_bytes(&mut large, 27, b""));
    assert!(matches!(written(&any(CLUSTER, &large)), Err(DescriptorError::NotShowable { .. })));
}

#[test]
fn depth_and_length_are_bounded() {
    let mut inner = any("t/google.protobuf.Empty", b"");
    (0..MAX_DEPTH * 20).for_each(|_| inner = any("t/google.protobuf.Any", &inner));
    assert_eq!(written(&inner), Err(DescriptorError::TooDeep));

    // `clusters: 0`, over and over.
    let mut list = Vec::new();
    (0..100_000).for_each(|_| put_bytes(&mut list, 2, b""));
    let any = any("t/envoy.config.endpoint.v3.ClusterLoadAssignment", &list);
    let mut out = Vec::new();
    assert_eq!(write_any(pool(), &any, 1_000, &mut out), Err(DescriptorError::TooLong));
    assert!(out.len() < 1_100, "{}", out.len());
    assert_eq!(write_any(pool(), &any, 1 << 20, &mut out), Ok(()));
}
