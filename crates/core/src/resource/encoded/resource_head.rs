//! Resource for clients that get more of it, or another name, than others.
//!
//! Owns the fields before the body, which is shared. Knows no clock.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use super::super::name::resource_name;
use super::super::{Name, wire};
use super::{
    RESOURCE_NAME, RESOURCE_RESOURCE_NAME, RESOURCE_TTL, RESOURCE_VERSION, RESOURCES, Resource, WRAPPER,
};

// Fields of google.protobuf.Any.
const ANY_TYPE_URL: u8 = 1;
const ANY_VALUE: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub enum NameForm<'a> {
    /// See R-DP-09.
    Plain(&'a Name),
    /// With the constraints (R-DP-07, R-DP-08).
    Locator(&'a Name),
}

impl Resource {
    /// Start of an element of `DeltaDiscoveryResponse.resources`, before the shared tail.
    pub fn delta_head(&self, called: NameForm<'_>, ttl: Option<Duration>) -> Bytes {
        self.element_head(&self.fields_before_body(called, ttl))
    }

    /// Start of a wrapped element of `DiscoveryResponse.resources`, before the shared tail.
    pub fn wrapped_head(&self, called: NameForm<'_>, ttl: Option<Duration>) -> Bytes {
        self.element_head(&self.wrapper_head(called, ttl))
    }

    /// Wrapped resource, as an `Any` in one piece.
    pub fn wrapped(&self, called: NameForm<'_>) -> Bytes {
        let mut out = self.wrapper_head(called, None);
        out.put_slice(self.sotw_entry());
        out.freeze()
    }

    fn wrapper_head(&self, called: NameForm<'_>, ttl: Option<Duration>) -> BytesMut {
        let fields = self.fields_before_body(called, ttl);
        let mut out = BytesMut::with_capacity(wire::field_len(WRAPPER.len()) + wire::field_len(fields.len()));
        wire::put_field(&mut out, ANY_TYPE_URL, WRAPPER.as_bytes());
        wire::put_header(&mut out, ANY_VALUE, fields.len() + self.sotw_entry().len());
        out.put_slice(&fields);
        out
    }

    fn element_head(&self, fields: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(wire::field_len(fields.len()));
        wire::put_header(&mut out, RESOURCES, fields.len() + self.sotw_entry().len());
        out.put_slice(fields);
        out.freeze()
    }

    /// Only name, version and TTL (R-TTL-02). Without a body, aliases would mean that none of them
    /// exists (R-Delta-22).
    pub fn heartbeat(&self, called: NameForm<'_>, ttl: Option<Duration>) -> Bytes {
        let mut inner = BytesMut::new();
        self.put_name(&mut inner, called);
        wire::put_field(&mut inner, RESOURCE_VERSION as u8, self.version().as_bytes());
        wire::put_field(&mut inner, RESOURCE_TTL as u8, &ttl.map(duration).unwrap_or_default());
        let mut out = BytesMut::with_capacity(wire::field_len(inner.len()));
        wire::put_field(&mut out, RESOURCES, &inner);
        out.freeze()
    }

    fn put_name(&self, out: &mut BytesMut, called: NameForm<'_>) {
        match called {
            NameForm::Plain(name) => wire::put_field(out, RESOURCE_NAME as u8, name.as_str().as_bytes()),
            NameForm::Locator(name) => {
                let name = resource_name(name, self.constraints());
                wire::put_field(out, RESOURCE_RESOURCE_NAME as u8, &name);
            }
        }
    }

    fn fields_before_body(&self, called: NameForm<'_>, ttl: Option<Duration>) -> BytesMut {
        let (entry, at) = self.sotw_tail();
        let inner = wire::payloads(entry, RESOURCES.into()).next().unwrap_or_default();
        let fields = inner.get(..inner.len().saturating_sub(entry.len() - at)).unwrap_or_default();
        // The name comes first.
        let kept = fields.get(wire::field_len(self.name().as_str().len())..).unwrap_or_default();
        let mut out = BytesMut::with_capacity(fields.len() + 32);
        self.put_name(&mut out, called);
        out.put_slice(kept);
        wire::put_field(&mut out, RESOURCE_TTL as u8, &ttl.map(duration).unwrap_or_default());
        out
    }
}

/// Not empty, as a TTL is more than zero.
fn duration(time: Duration) -> Vec<u8> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    prost_types::Duration { seconds, nanos: time.subsec_nanos().cast_signed() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resource::wire::field;
    use crate::resource::{Envelope, Kind, TypeUrl};

    fn inside(message: &[u8], number: u32) -> &[u8] {
        let mut fields = wire::fields(message).map(|field| field.expect("well-formed"));
        fields.find(|field| field.number == number).and_then(|field| field.bytes().ok()).expect("it is there")
    }

    proptest! {
        #[test]
        fn r_sotw_23_each_form_reads_back_with_its_time_and_keeps_the_rest(
            seconds in 0_u64..1 << 40, nanos in 0_u32..1_000_000_000, body: Vec<u8>,
        ) {
            let time = Duration::new(seconds, nanos).max(Duration::from_millis(1));
            let cds: TypeUrl = Kind::Cluster.into();
            let any = [field(1, cds.as_str().as_bytes()), field(2, &body)].concat();
            let unknown = [0xfa, 0x06, 0x02, b'h', b'i'];
            let sent = [field(3, b"a"), field(1, b"7"), field(4, b"alias"), unknown.to_vec(), field(2, &any)].concat();
            let envelope = Envelope::parse(&sent, &cds).expect("good");
            let resource = envelope.encode(&cds, "a".into()).expect("a body");

            let delta = [&resource.delta_head(NameForm::Plain(&"b".into()), Some(time)), resource.sotw_entry()].concat();
            let wrapped = [&resource.wrapped_head(NameForm::Plain(&"a".into()), Some(time)), resource.sotw_entry()].concat();
            let name = "a".into();
            let untimed = [&resource.wrapped_head(NameForm::Plain(&name), None), resource.sotw_entry()].concat();
            prop_assert_eq!(inside(&untimed, 2), &resource.wrapped(NameForm::Plain(&name))[..]);
            let wrapper = inside(&wrapped, 2);
            prop_assert_eq!(inside(wrapper, 1), WRAPPER.as_bytes());
            for (message, name) in [(inside(&delta, 2), "b"), (inside(wrapper, 2), "a")] {
                let read = Envelope::parse(message, &cds).expect("a Resource");
                prop_assert_eq!((read.name, read.version, read.ttl), (name, "7", Some(time)));
                prop_assert_eq!(read.body, Some(&any[..]));
                prop_assert!(read.has_aliases && message.windows(5).any(|window| window == unknown));
            }
            let heartbeat = resource.heartbeat(NameForm::Plain(&"b".into()), Some(time));
            let read = Envelope::parse(inside(&heartbeat, 2), &cds).expect("a Resource");
            prop_assert_eq!((read.name, read.version, read.ttl, read.body), ("b", "7", Some(time), None));
            prop_assert!(!read.has_aliases);
        }
    }
}
