//! Resource read back from its stored encoding.
//!
//! Three facts are stored beside it: constraints, whether the relay made up the version, and the
//! length of its mark.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3;

use super::body_mark::without_body_mark;
use super::{
    Envelope, EnvelopeError, Form, RESOURCE_NAME, RESOURCE_VERSION, RESOURCES, Resource, digest, eds_service,
    wire,
};
use crate::resource::{Constraints, Kind, Name, TypeUrl};

impl Resource {
    pub const fn version_form(&self) -> VersionForm {
        VersionForm { is_own: self.own_version, mark_bytes: self.mark_bytes }
    }

    /// See R-XT-09.
    pub fn may_be_kept(&self, type_url: &TypeUrl) -> bool {
        let envelope = inner(&self.entry).and_then(|inner| Envelope::parse(inner, type_url));
        envelope.is_ok_and(|envelope| !envelope.do_not_cache)
    }

    /// Reads back a [`delta_entry`](Self::delta_entry), without copying it.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`] if the bytes are no encoding of a resource of this type with a body.
    pub fn from_entry(
        type_url: &TypeUrl,
        entry: Bytes,
        constraints: Option<Constraints>,
        form: VersionForm,
    ) -> Result<Self, EnvelopeError> {
        let whole = inner(&entry)?;
        let envelope = Envelope::parse(whole, type_url)?;
        let head = head_len(whole).ok_or(EnvelopeError::Malformed)?;
        if form.mark_bytes > envelope.version.len() {
            return Err(EnvelopeError::Malformed);
        }
        let any = envelope.body.ok_or(EnvelopeError::Malformed)?;
        // The tail must be an element of a SotW response.
        if any.as_ptr_range().end != entry.as_ptr_range().end {
            return Err(EnvelopeError::Malformed);
        }
        let version = without_body_mark(envelope.version, form.mark_bytes);
        let body_at = entry.len() - any.len();
        let header = wire::field_len(any.len()) - any.len();
        let sotw_at = if envelope.is_redirect { entry.len() } else { body_at.saturating_sub(header) };
        Ok(Self {
            digest: digest(envelope.name, constraints.as_ref(), version, xxh3::xxh3_64(any)),
            eds_service: (type_url.kind() == Kind::Cluster).then(|| eds_service(any)).flatten(),
            name: Name::from(envelope.name),
            constraints,
            version: Arc::from(envelope.version),
            own_version: form.is_own,
            mark_bytes: form.mark_bytes,
            rest_at: entry.len() - whole.len() + head,
            form: Form::Whole,
            has_aliases: envelope.has_aliases,
            sotw_at,
            body_at,
            entry,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionForm {
    /// A relay made it up (R-Up-17).
    pub is_own: bool,
    /// Bytes at its end that the origin does not know.
    pub mark_bytes: usize,
}

fn head_len(whole: &[u8]) -> Option<usize> {
    let mut fields = wire::fields(whole).map_while(Result::ok);
    let name = fields.next().filter(|field| field.number == RESOURCE_NAME)?;
    let version = fields.next().filter(|field| field.number == RESOURCE_VERSION);
    Some(name.raw.len() + version.map_or(0, |version| version.raw.len()))
}

fn inner(entry: &[u8]) -> Result<&[u8], EnvelopeError> {
    let mut fields = wire::fields(entry);
    match (fields.next(), fields.next()) {
        (Some(Ok(field)), None) if field.number == u32::from(RESOURCES) => Ok(field.bytes()?),
        _ => Err(EnvelopeError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resource::wire::field;

    proptest! {
        #[test]
        fn what_is_stored_reads_back_as_it_was(
            body: Vec<u8>, version in "[a-z0-9]{0,5}", mark in "(~[0-9])?", has_alias: bool, redirect: bool,
        ) {
            let cds: TypeUrl = Kind::Cluster.into();
            let url = if redirect { "type.googleapis.com/xds.core.v3.ResourceLocator" } else { cds.as_str() };
            let any = [field(1, url.as_bytes()), field(2, &body)].concat();
            let alias = if has_alias { field(4, b"alias") } else { Vec::new() };
            let name = "xdstp://a/envoy.config.cluster.v3.Cluster/b";
            let sent = [alias, field(3, name.as_bytes()), field(1, version.as_bytes()), field(2, &any)].concat();
            let envelope = Envelope { mark: &mark, ..Envelope::parse(&sent, &cds).expect("good") };
            let resource = envelope.encode(&cds, name.into()).expect("a body");
            let entry = resource.delta_entry().clone();
            let read = Resource::from_entry(&cds, entry, None, resource.version_form());
            prop_assert_eq!(read, Ok(resource));
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes: Vec<u8>) {
            let _read = Resource::from_entry(&Kind::Cluster.into(), bytes.into(), None, VersionForm::default());
        }
    }
}
