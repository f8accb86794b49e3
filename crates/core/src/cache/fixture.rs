//! Resources for tests of the cache.

use std::sync::Arc;

use bytes::BytesMut;

use crate::resource::{Envelope, Resource, TypeUrl, wire};

/// A resource as the origin sent it, whose body has these bytes.
pub(super) fn resource(type_url: &TypeUrl, name: &str, version: &str, body: &[u8]) -> Arc<Resource> {
    marked(type_url, name, version, body, "")
}

/// As before, with the mark of a server in its version.
pub(super) fn marked(
    type_url: &TypeUrl,
    name: &str,
    version: &str,
    body: &[u8],
    mark: &str,
) -> Arc<Resource> {
    let (mut any, mut sent) = (BytesMut::new(), BytesMut::new());
    wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
    wire::put_field(&mut any, 2, body);
    wire::put_field(&mut sent, 1, version.as_bytes());
    wire::put_field(&mut sent, 2, &any);
    wire::put_field(&mut sent, 3, name.as_bytes());
    let mut envelope = Envelope::parse(&sent, type_url).expect("a good envelope");
    envelope.mark = mark;
    Arc::new(envelope.encode(type_url, name.into()).expect("it has a body"))
}
