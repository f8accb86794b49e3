//! Resources as an origin would send them, and frames as a client would read them.

use std::sync::Arc;

use bytes::BytesMut;
use deltafan::cache::{Frame, Protocol};
use deltafan::proto;
use deltafan::resource::{Envelope, Kind, Resource, TypeUrl, normal_form, wire};
use prost::Message as _;

/// The field in which the bodies of these tests carry what a client can check them by.
const TEXT: u32 = 15;

/// The type of a body that says where the resource is to be found.
pub(crate) const REDIRECT: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";

/// `cds`, `eds` and so on; `thing` is a type that the relay has no rules for.
pub(crate) fn type_url(short: &str) -> TypeUrl {
    TypeUrl::from_user(if short == "thing" { "example.v1.Thing" } else { short }).unwrap()
}

/// A resource whose body says its name and `text`, which is its version and whatever else is to differ in the body
/// (`7/b`). Clusters named `eds…` ask EDS for endpoints of their own name.
pub(crate) fn resource(type_url: &TypeUrl, name: &str, text: &str, padding: usize) -> Arc<Resource> {
    let field = |number: u8, payload: &[u8]| {
        let mut out = BytesMut::new();
        wire::put_field(&mut out, number, payload);
        out.to_vec()
    };
    let eds = type_url.kind() == Kind::Cluster && name.starts_with("eds");
    let kind: &[u8] = if eds { &[0x10, 3] } else { &[] };
    let padding = if padding == 0 { Vec::new() } else { field(14, &vec![b'x'; padding]) };
    let value = [&message(name, text), kind, &padding].concat();
    envelope(type_url, name, text.split('/').next().unwrap(), &value)
}

/// The message that such a resource has for its body.
pub(crate) fn message(name: &str, text: &str) -> BytesMut {
    let mut value = BytesMut::new();
    put(&mut value, 1, name.as_bytes());
    put(&mut value, TEXT as u8, text.as_bytes());
    value
}

/// A field of a message.
pub(crate) fn put(message: &mut BytesMut, number: u8, payload: &[u8]) {
    wire::put_field(message, number, payload);
}

/// A resource whose body is this message.
pub(crate) fn envelope(type_url: &TypeUrl, name: &str, version: &str, message: &[u8]) -> Arc<Resource> {
    let (mut any, mut sent) = (BytesMut::new(), BytesMut::new());
    put(&mut any, 1, type_url.as_str().as_bytes());
    put(&mut any, 2, message);
    put(&mut sent, 1, version.as_bytes());
    put(&mut sent, 2, &any);
    put(&mut sent, 3, name.as_bytes());
    Arc::new(Envelope::parse(&sent, type_url).unwrap().encode(type_url, name.into()).unwrap())
}

/// A response as a client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) type_url: TypeUrl,
    pub(crate) version: String,
    pub(crate) nonce: String,
    /// Name and text.
    pub(crate) resources: Vec<(String, String)>,
    pub(crate) removed: Vec<String>,
}

/// Reads a frame and checks what holds of every frame (R-SotW-21, R-SotW-22, R-Delta-14, R-Delta-15).
pub(crate) fn read(protocol: Protocol, frame: &Frame) -> Told {
    if frame.chunks().len() > 1 {
        assert!(frame.chunks().iter().all(|chunk| chunk.len() >= 256), "a tiny chunk");
    }
    let prefix: Vec<u8> = frame.chunks().concat()[..5].to_vec();
    assert_eq!(prefix, [&[0], &(frame.len() as u32 - 5).to_be_bytes()[..]].concat(), "the gRPC prefix");
    let told = match protocol {
        Protocol::Sotw => {
            let message = proto::DiscoveryResponse::decode(frame.message()).unwrap();
            let type_url = TypeUrl::from(message.type_url.as_str());
            Told {
                resources: message.resources.iter().map(|any| body(any, &type_url)).collect(),
                version: message.version_info,
                nonce: message.nonce,
                removed: Vec::new(),
                type_url,
            }
        }
        Protocol::Delta => {
            let message = proto::DeltaDiscoveryResponse::decode(frame.message()).unwrap();
            let type_url = TypeUrl::from(message.type_url.as_str());
            let unwrap = |bytes: &bytes::Bytes| {
                let envelope = Envelope::parse(bytes, &type_url).unwrap();
                if envelope.body.is_none() {
                    assert!(envelope.has_aliases, "no body, and no unresolved alias: {envelope:?}");
                    return (envelope.name.to_owned(), "unresolved".to_owned());
                }
                if envelope.body.is_some_and(is_redirect) {
                    return (envelope.name.to_owned(), "redirect".to_owned());
                }
                let (name, text) = body(envelope.body.unwrap(), &type_url);
                assert_eq!(normal_form(envelope.name), normal_form(&name));
                assert_eq!(envelope.version, text.split('/').next().unwrap());
                (envelope.name.to_owned(), text)
            };
            Told {
                resources: message.resources.iter().map(unwrap).collect(),
                version: message.system_version_info,
                nonce: message.nonce,
                removed: message.removed_resources,
                type_url,
            }
        }
    };
    let mut names: Vec<&str> = told.resources.iter().map(|(name, _)| name.as_str()).collect();
    names.extend(told.removed.iter().map(String::as_str));
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name twice in {told:?}");
    assert!(!told.nonce.is_empty());
    told
}

/// Whether a body says only where the resource is to be found.
fn is_redirect(any: &[u8]) -> bool {
    any.windows(REDIRECT.len()).any(|part| part == REDIRECT.as_bytes())
}

/// The name and the text in a body.
pub(crate) fn body(any: &[u8], expected: &TypeUrl) -> (String, String) {
    let text = |message, number| {
        let field = wire::fields(message).map(Result::unwrap).find(|field| field.number == number);
        field.unwrap().bytes().unwrap()
    };
    assert_eq!(text(any, 1), expected.as_str().as_bytes(), "every Any is of the response's type");
    let value = text(any, 2);
    let string = |number| String::from_utf8(text(value, number).to_vec()).unwrap();
    (string(1), string(TEXT))
}
