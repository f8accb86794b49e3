//! Resources as an origin would send them, and frames as a client would read them.

use std::sync::Arc;

use bytes::BytesMut;
use deltafan::cache::{Frame, Protocol};
use deltafan::proto;
use deltafan::resource::{Constraints, Envelope, Kind, Parameters, Resource, TypeUrl, normal_form, wire};
use prost::Message as _;

/// The field in which the bodies of these tests carry what a client can check them by.
const TEXT: u32 = 15;

/// The type of a body that says where the resource is to be found.
pub const REDIRECT: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";

/// `cds`, `eds` and so on; `thing` is a type that the relay has no rules for.
pub fn type_url(short: &str) -> TypeUrl {
    TypeUrl::from_user(if short == "thing" { "example.v1.Thing" } else { short }).unwrap()
}

/// A resource whose body says its name and `text`, which is its version and whatever else is to differ in the body
/// (`7/b`). Clusters named `eds…` ask EDS for endpoints of their own name; routes whose text is `eds…` lead to the cluster of that name.
pub fn resource(type_url: &TypeUrl, name: &str, text: &str, padding: usize) -> Arc<Resource> {
    let field = |number: u8, payload: &[u8]| {
        let mut out = BytesMut::new();
        wire::put_field(&mut out, number, payload);
        out.to_vec()
    };
    let eds = type_url.kind() == Kind::Cluster && name.starts_with("eds");
    let kind: &[u8] = if eds { &[0x10, 3] } else { &[] };
    let padding = if padding == 0 { Vec::new() } else { field(14, &vec![b'x'; padding]) };
    let is_route = type_url.kind() == Kind::Route && text.starts_with("eds");
    let hosts = |cluster: &str| field(2, &field(3, &field(2, &field(1, cluster.as_bytes()))));
    let hosts = if is_route { hosts(text) } else { Vec::new() };
    let value = [&message(name, text), kind, &padding, &hosts].concat();
    envelope(type_url, name, text.split('/').next().unwrap(), &value)
}

/// The message that such a resource has for its body.
pub fn message(name: &str, text: &str) -> BytesMut {
    let mut value = BytesMut::new();
    put(&mut value, 1, name.as_bytes());
    put(&mut value, TEXT as u8, text.as_bytes());
    value
}

/// A field of a message.
pub fn put(message: &mut BytesMut, number: u8, payload: &[u8]) {
    wire::put_field(message, number, payload);
}

/// A resource whose body is this message.
pub fn envelope(type_url: &TypeUrl, name: &str, version: &str, message: &[u8]) -> Arc<Resource> {
    let mut named = BytesMut::new();
    put(&mut named, 3, name.as_bytes());
    encoded(type_url, name, version, message, &named)
}

fn encoded(type_url: &TypeUrl, name: &str, version: &str, message: &[u8], named: &[u8]) -> Arc<Resource> {
    let (mut any, mut sent) = (BytesMut::new(), BytesMut::new());
    put(&mut any, 1, type_url.as_str().as_bytes());
    put(&mut any, 2, message);
    put(&mut sent, 1, version.as_bytes());
    put(&mut sent, 2, &any);
    sent.extend_from_slice(named);
    Arc::new(Envelope::parse(&sent, type_url).unwrap().encode(type_url, name.into()).unwrap())
}

/// A variant of a resource; its body says its name and `text`. The constraints are written as for [`constraints`].
pub fn variant(type_url: &TypeUrl, name: &str, text: &str, rule: &str) -> Arc<Resource> {
    let (mut message, mut inner, mut named) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    put(&mut message, 1, name.as_bytes());
    put(&mut message, TEXT as u8, text.as_bytes());
    put(&mut inner, 1, name.as_bytes());
    put(&mut inner, 2, &constraints(rule));
    put(&mut named, 8, &inner);
    encoded(type_url, name, text, &message, &named)
}

/// Encoded constraints: `env=prod`, `canary` (exists), `!canary`, and any number of those that all have to hold, with `,`
/// between them.
pub fn constraints(rule: &str) -> Vec<u8> {
    let field = |number: u8, payload: &[u8]| {
        let mut out = BytesMut::new();
        wire::put_header(&mut out, number, payload.len());
        out.extend_from_slice(payload);
        out.to_vec()
    };
    let single = |part: &str| match part.split_once('=') {
        Some((key, value)) => field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat()),
        None => field(1, &[field(1, part.as_bytes()), field(3, &[])].concat()),
    };
    let part = |part: &str| match part.strip_prefix('!') {
        Some(part) => field(4, &single(part)),
        None => single(part),
    };
    let parts: Vec<Vec<u8>> = rule.split(',').map(|text| field(1, &part(text))).collect();
    field(3, &parts.concat())
}

/// Parameters, written as `env=prod v=1`.
pub fn parameters(text: &str) -> Parameters {
    text.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect()
}

/// A message as it lies in the body of a call.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("it is short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A response as a client sees it.
#[derive(Clone, Debug)]
pub struct Told {
    pub type_url: TypeUrl,
    pub version: String,
    pub nonce: String,
    /// Name and text; `@` and milliseconds follow where a TTL is told, and of a heartbeat the version behind `~` is all.
    pub resources: Vec<(String, String)>,
    pub removed: Vec<String>,
    /// Name, code and message.
    pub errors: Vec<(String, i32, String)>,
}

/// The message of a frame in one piece, without the gRPC prefix.
pub fn message_in(frame: &Frame) -> bytes::Bytes {
    frame.chunks().concat().split_off(5).into()
}

/// Reads a frame and checks what holds of every frame (R-SotW-21, R-SotW-22, R-Delta-14, R-Delta-15).
pub fn read(protocol: Protocol, frame: &Frame) -> Told {
    if frame.chunks().len() > 1 {
        assert!(frame.chunks().iter().all(|chunk| chunk.len() >= 256), "a tiny chunk");
    }
    let prefix: Vec<u8> = frame.chunks().concat()[..5].to_vec();
    assert_eq!(prefix, [&[0], &(frame.size() as u32 - 5).to_be_bytes()[..]].concat(), "the gRPC prefix");
    let told = match protocol {
        Protocol::Sotw => {
            let message = proto::DiscoveryResponse::decode(message_in(frame)).unwrap();
            let type_url = TypeUrl::from(message.type_url.as_str());
            Told {
                resources: message.resources.iter().map(|any| unwrapped(any, &type_url)).collect(),
                version: message.version_info,
                nonce: message.nonce,
                removed: Vec::new(),
                errors: errors(message.resource_errors),
                type_url,
            }
        }
        Protocol::Delta => {
            let message = proto::DeltaDiscoveryResponse::decode(message_in(frame)).unwrap();
            let type_url = TypeUrl::from(message.type_url.as_str());
            let unwrap = |bytes: &bytes::Bytes| {
                let envelope = Envelope::parse(bytes, &type_url).unwrap();
                if envelope.body.is_none() && envelope.has_aliases {
                    return (envelope.name.to_owned(), "unresolved".to_owned());
                }
                if envelope.body.is_some_and(is_redirect) {
                    return (envelope.name.to_owned(), "redirect".to_owned());
                }
                (identity(&envelope), timed(&envelope, &type_url))
            };
            let gone = message.removed_resource_names.iter().map(|gone| {
                let constraints = Constraints::parse(&gone.dynamic_parameter_constraints).unwrap();
                located(&gone.name, constraints.as_ref())
            });
            Told {
                resources: message.resources.iter().map(unwrap).collect(),
                version: message.system_version_info,
                nonce: message.nonce,
                removed: message.removed_resources.iter().cloned().chain(gone).collect(),
                errors: errors(message.resource_errors),
                type_url,
            }
        }
    };
    let mut names: Vec<&str> = told.resources.iter().map(|(name, _)| name.as_str()).collect();
    names.extend(told.removed.iter().map(String::as_str));
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name twice in {told:?}");
    assert!(!told.nonce.is_empty());
    let failed: Vec<&str> = told.errors.iter().map(|(name, ..)| name.as_str()).collect();
    assert!(
        failed.iter().enumerate().all(|(at, name)| !failed[..at].contains(name)),
        "an error twice in {told:?}"
    );
    if protocol == Protocol::Delta || !told.type_url.kind().full_state() {
        // R-Err-01. A full state holds what its clients are to keep (R-Err-04).
        let is_sent =
            |name: &&str| told.resources.iter().any(|(sent, _)| normal_form(sent) == normal_form(name));
        assert!(!failed.iter().any(is_sent), "both sent and in error in {told:?}");
    }
    told
}

/// A name as it is told by locator.
fn located(name: &str, constraints: Option<&Constraints>) -> String {
    format!("{name}{{{}}}", constraints.map(ToString::to_string).unwrap_or_default())
}

/// Name of a resource in its envelope.
fn identity(envelope: &Envelope<'_>) -> String {
    match &envelope.constraints {
        Ok(constraints) if envelope.by_resource_name => located(envelope.name, constraints.as_ref()),
        _ => envelope.name.to_owned(),
    }
}

/// The text of a resource with an envelope, and the time that is told of it.
fn timed(envelope: &Envelope<'_>, type_url: &TypeUrl) -> String {
    let text = match envelope.body {
        Some(any) => {
            let (name, text) = body(any, type_url);
            assert_eq!(normal_form(envelope.name), normal_form(&name));
            // Where a body changed under its version, there is a mark behind that.
            let version = envelope.version.split('~').next();
            assert_eq!(version, text.split('/').next());
            text
        }
        None => format!("~{}", envelope.version),
    };
    match envelope.ttl {
        Some(ttl) => format!("{text}@{}", ttl.as_millis()),
        None => text,
    }
}

/// The name and the text of an element of a state of the world, be it wrapped (R-DP-11, R-TTL-05).
fn unwrapped(any: &[u8], type_url: &TypeUrl) -> (String, String) {
    let fields: Vec<_> = wire::fields(any).map(Result::unwrap).collect();
    let value = |number| fields.iter().find(|field| field.number == number).unwrap().bytes().unwrap();
    if value(1) != b"type.googleapis.com/envoy.service.discovery.v3.Resource" {
        return body(any, type_url);
    }
    let envelope = Envelope::parse(value(2), type_url).unwrap();
    let is_told_more = envelope.ttl.is_some() || envelope.by_resource_name;
    assert!(envelope.body.is_some() && is_told_more, "nothing else is wrapped (R-SotW-23)");
    (identity(&envelope), timed(&envelope, type_url))
}

fn errors(errors: Vec<proto::ResourceError>) -> Vec<(String, i32, String)> {
    let read = |error: proto::ResourceError| {
        let (name, status) = (error.resource_name.unwrap().name, error.error_detail.unwrap());
        (name, status.code, status.message)
    };
    errors.into_iter().map(read).collect()
}

/// Whether a body says only where the resource is to be found.
fn is_redirect(any: &[u8]) -> bool {
    any.windows(REDIRECT.len()).any(|part| part == REDIRECT.as_bytes())
}

/// The name and the text in a body.
pub fn body(any: &[u8], expected: &TypeUrl) -> (String, String) {
    let text = |message, number| {
        let field = wire::fields(message).map(Result::unwrap).find(|field| field.number == number);
        field.unwrap().bytes().unwrap()
    };
    assert_eq!(text(any, 1), expected.as_str().as_bytes(), "every Any is of the response's type");
    let value = text(any, 2);
    let string = |number| String::from_utf8(text(value, number).to_vec()).unwrap();
    (string(1), string(TEXT))
}
