//! Resource in a state-of-the-world response: its name, a version by its content, and its bytes in
//! a delta response.
//!
//! Owns the definition of that version. Relays of all releases must compute the same hash: clients
//! carry it from one relay to another.
//!
//! Version of a resource: 32 lowercase hexadecimal digits of the 128-bit XXH3 (seed 0) over
//! - the length of the `Any`'s type URL in bytes, 64 bits little-endian, and the type URL,
//! - the length of the `Any`'s value in bytes, 64 bits little-endian, and the value,
//! - of a wrapping `Resource`, all fields but name, version, TTL and body, as they came and in that
//!   order. A resource with other aliases is another version.
//!
//! Invariant: the bytes of the `Any` are copied as they came.

use bytes::{Bytes, BytesMut};
use xxhash_rust::xxh3::Xxh3;

use super::encoded::{RESOURCE_BODY, RESOURCE_NAME, RESOURCE_TTL, RESOURCE_VERSION, WRAPPER, any_parts};
use super::{Envelope, EnvelopeError, TypeUrl, wire};

/// Most bytes before version, name and body.
const HEADERS: usize = 3 * 6;

/// Element of `DiscoveryResponse.resources`, parsed but not copied.
#[derive(Clone, Debug)]
pub struct SotwElement<'a> {
    name: &'a str,
    any: Option<&'a [u8]>,
    wrapper: Option<Envelope<'a>>,
}

impl<'a> SotwElement<'a> {
    /// Parses an encoded `Any`: a resource of the response's type, or a `Resource` around one.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`] if the bytes are malformed, or the name is missing or the type wrong.
    pub fn parse(bytes: &'a [u8], expected: &TypeUrl) -> Result<Self, EnvelopeError> {
        let (url, value) = any_parts(bytes)?;
        if url == WRAPPER && expected.as_str() != WRAPPER {
            let envelope = Envelope::parse(value, expected)?;
            return Ok(Self { name: envelope.name, any: envelope.body, wrapper: Some(envelope) });
        }
        // Clients judge the rest of a body (R-Up-14).
        let is_named = expected.kind().is_named_by_first_field();
        let first = is_named.then(|| wire::payloads(value, 1).last()).flatten();
        let name = first.and_then(|name| std::str::from_utf8(name).ok()).filter(|name| !name.is_empty());
        if url != expected.as_str() {
            return Err(EnvelopeError::WrongType {
                name: name.unwrap_or_default().to_owned(),
                found: url.to_owned(),
                expected: expected.as_str().to_owned(),
            });
        }
        Ok(Self { name: name.ok_or(EnvelopeError::NoName)?, any: Some(bytes), wrapper: None })
    }

    pub const fn name(&self) -> &'a str {
        self.name
    }

    pub const fn wrapper(&self) -> Option<&Envelope<'a>> {
        self.wrapper.as_ref()
    }

    /// Hash of the content, as defined at the head of this module; `None` without a body.
    pub fn content_hash(&self) -> Option<u128> {
        let (url, value) = any_parts(self.any?).ok()?;
        let mut hasher = Xxh3::new();
        for part in [url.as_bytes(), value] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let is_content =
            |number| !matches!(number, RESOURCE_NAME | RESOURCE_VERSION | RESOURCE_TTL | RESOURCE_BODY);
        self.wrapper_fields()
            .filter(|field| is_content(field.number))
            .for_each(|field| hasher.update(field.raw));
        Some(hasher.digest128())
    }

    pub fn as_delta(&self, version: &str) -> Bytes {
        let version = version.as_bytes();
        let rest = self.wrapper.as_ref().map(|wrapper| wrapper.whole).or(self.any).unwrap_or_default();
        let lengths = version.len() + self.name.len() + rest.len();
        let mut out = BytesMut::with_capacity(lengths + HEADERS);
        wire::put_field(&mut out, RESOURCE_VERSION as u8, version);
        if self.wrapper.is_some() {
            for field in self.wrapper_fields().filter(|field| field.number != RESOURCE_VERSION) {
                out.extend_from_slice(field.raw);
            }
        } else {
            wire::put_field(&mut out, RESOURCE_NAME as u8, self.name.as_bytes());
            wire::put_field(&mut out, RESOURCE_BODY as u8, self.any.unwrap_or_default());
        }
        out.freeze()
    }

    fn wrapper_fields(&self) -> impl Iterator<Item = wire::Field<'a>> {
        wire::fields(self.wrapper.as_ref().map_or(&[], |wrapper| wrapper.whole)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Kind;

    fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        wire::put_header(&mut out, number, payload.len());
        out.extend_from_slice(payload);
        out.to_vec()
    }

    fn any(url: &str, value: &[u8]) -> Vec<u8> {
        [field(1, url.as_bytes()), field(2, value)].concat()
    }

    fn cds() -> TypeUrl {
        Kind::Cluster.into()
    }

    fn version(bytes: &[u8]) -> String {
        let element = SotwElement::parse(bytes, &cds()).expect("a good element");
        format!("{:032x}", element.content_hash().expect("a body"))
    }

    /// Clients carry these versions from one release to the next: a failure here means that all of them are sent everything.
    #[test]
    fn the_version_by_content_is_that_of_every_release() {
        let plain = any(cds().as_str(), &[field(1, b"web"), vec![0x10, 3]].concat());
        assert_eq!(version(&plain), "d1b6e072407603c30e4d61287d936320");
        let named = |version: &[u8]| [field(1, version), field(3, b"web"), field(2, &plain)].concat();
        assert_eq!(
            version(&any(WRAPPER, &named(b"7"))),
            version(&plain),
            "neither wrapped nor by another version"
        );
        let alias = [named(b"7"), field(4, b"web-alias")].concat();
        assert_eq!(version(&any(WRAPPER, &alias)), "fb26fce8dd885de620adb831e5ddd127", "aliases are content");
    }

    #[test]
    fn an_element_becomes_a_resource_with_the_bytes_of_its_any() {
        let plain = any(cds().as_str(), &[field(1, b"web"), vec![0xfa, 1, 3, b'a', b'b', b'c']].concat());
        let element = SotwElement::parse(&plain, &cds()).expect("a good element");
        let delta = element.as_delta("v");
        assert_eq!(delta.as_ref(), [field(1, b"v"), field(3, b"web"), field(2, &plain)].concat());

        let rest = [field(6, &[8, 5]), field(4, b"alias"), field(9, b"\x0a\x01m")].concat();
        let wrapped =
            any(WRAPPER, &[field(3, b"x"), field(1, b"7"), field(2, &plain), rest.clone()].concat());
        let element = SotwElement::parse(&wrapped, &cds()).expect("a good wrapper");
        assert_eq!(element.name(), "x", "the name of the wrapper, not that of the body");
        assert_eq!(
            element.as_delta("v").as_ref(),
            [field(1, b"v"), field(3, b"x"), field(2, &plain), rest].concat()
        );
    }

    #[test]
    fn r_sotw_22_an_element_of_another_type_or_without_a_name_is_refused() {
        let refused = |bytes: &[u8], kind: Kind| {
            SotwElement::parse(bytes, &kind.into()).map(|_| ()).expect_err("a fault")
        };
        let route = any(TypeUrl::from(Kind::Route).as_str(), &field(1, b"r"));
        assert!(
            matches!(refused(&route, Kind::Cluster), EnvelopeError::WrongType { name, .. } if name == "r")
        );
        assert_eq!(refused(&any(cds().as_str(), &[0x10, 3]), Kind::Cluster), EnvelopeError::NoName);
        assert_eq!(refused(b"\x0b", Kind::Cluster), EnvelopeError::Malformed);
        // Endpoints of a locality have no name of their own.
        let leds = any(TypeUrl::from(Kind::LocalityEndpoint).as_str(), &field(1, b"x"));
        assert_eq!(refused(&leds, Kind::LocalityEndpoint), EnvelopeError::NoName);
        let wrapped = any(WRAPPER, &[field(3, b"a"), field(2, &route)].concat());
        assert!(matches!(refused(&wrapped, Kind::Cluster), EnvelopeError::WrongType { .. }));
    }
}
