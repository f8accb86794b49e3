//! Resources made from others: with a mark of the version, or read back from the stored encoding.
//!
//! A client that reconnects with a version holds its content of that time. If the content changed
//! under the version, clients get it with a mark. Else the client would count as current, and keep
//! the old content for good.
//!
//! Example: `a` is held in version 7, and comes with another body in version 7. Clients get version
//! `7~` and 16 hexadecimal digits. The next version 8 has no mark.
//!
//! Three facts are stored beside an encoding: constraints, whether the relay made up the version, and the length of its mark.

use xxhash_rust::xxh3;

use super::super::{Constraints, Name, TypeUrl};
use super::{Envelope, EnvelopeError, Form, Layout, RESOURCES, Resource, begin_entry, digest, wire};

/// `~` and the digits. A mark of a server is shorter.
const BODY_MARK: usize = 17;

fn without_body_mark(version: &str, mark_bytes: usize) -> &str {
    let has_mark = mark_bytes >= BODY_MARK;
    version
        .len()
        .checked_sub(BODY_MARK)
        .and_then(|at| version.get(..at))
        .filter(|_| has_mark)
        .unwrap_or(version)
}

impl Resource {
    /// Whether the origin gave this version to other content too.
    pub(crate) const fn is_reused_version(&self) -> bool {
        self.layout.mark as usize >= BODY_MARK
    }

    /// Copy with a mark, if a held resource has the same version and other content.
    pub(crate) fn marked_if_reused(&self, held: &Self) -> Option<Self> {
        let more = held.version().strip_prefix(self.version()).filter(|_| !self.own_version)?;
        let is_equal = more.is_empty() || (more.len() == BODY_MARK && held.version_mark().ends_with(more));
        (is_equal && self.form == Form::Whole && self.name == held.name && !self.same_content(held))
            .then(|| self.with_body_mark())
    }

    fn with_body_mark(&self) -> Self {
        let rest = self.rest();
        let version = format!("{}~{:016x}", self.version(), xxh3::xxh3_64(rest));
        let mut out = begin_entry(&self.name, &version, rest.len());
        let rest_at = out.len();
        out.extend_from_slice(rest);
        let Layout { mark, rest_at: was_at, sotw_at, body_at, .. } = self.layout;
        let starts = [was_at, sotw_at, body_at].map(|at| (at - was_at) as usize + rest_at);
        // The digest has the body: replicas that missed the change have an equal one.
        Self {
            layout: Layout::new(version.len(), mark as usize + BODY_MARK, starts),
            entry: out.freeze(),
            ..self.clone()
        }
    }
}

impl Resource {
    pub const fn version_form(&self) -> VersionForm {
        VersionForm { is_own: self.own_version, mark_bytes: self.layout.mark as usize }
    }

    /// See R-XT-09.
    pub fn may_be_kept(&self, type_url: &TypeUrl) -> bool {
        let envelope = inner(&self.entry).and_then(|inner| Envelope::parse(inner, type_url));
        envelope.is_ok_and(|envelope| !envelope.do_not_cache)
    }

    /// Reads back a [`delta_entry`](Self::delta_entry).
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`] if the bytes are no encoding of a resource of this type with a body.
    pub fn from_entry(
        type_url: &TypeUrl,
        entry: &[u8],
        constraints: Option<Constraints>,
        form: VersionForm,
    ) -> Result<Self, EnvelopeError> {
        let envelope = Envelope::parse(inner(entry)?, type_url)?;
        let read = envelope.encode(type_url, Name::from(envelope.name)).ok_or(EnvelopeError::Malformed)?;
        let mark = u32::try_from(form.mark_bytes).ok().filter(|mark| *mark <= read.layout.version);
        let mark = mark.ok_or(EnvelopeError::Malformed)?;
        let version = without_body_mark(read.version(), form.mark_bytes);
        Ok(Self {
            digest: digest(envelope.name, constraints.as_ref(), version, xxh3::xxh3_64(read.body())),
            constraints,
            own_version: form.is_own,
            layout: Layout { mark, ..read.layout },
            ..read
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
    use crate::resource::{Envelope, Kind, NameForm, TypeUrl};

    fn resource(version: &str, mark: &str, body: &str) -> Resource {
        let cds: TypeUrl = Kind::Cluster.into();
        let any = [field(1, cds.as_str().as_bytes()), field(2, body.as_bytes())].concat();
        let sent =
            [field(3, b"a"), field(1, version.as_bytes()), field(4, b"alias"), field(2, &any)].concat();
        let envelope = Envelope { mark, ..Envelope::parse(&sent, &cds).expect("good") };
        envelope.encode(&cds, "a".into()).expect("a body")
    }

    /// Version for clients where one is held.
    fn version(new: &Resource, held: &Resource) -> String {
        new.marked_if_reused(held).unwrap_or_else(|| new.clone()).version().to_owned()
    }

    #[test]
    fn r_xt_06_each_content_of_one_version_is_told_in_a_version_of_its_own() {
        let [first, second, third] = ["1", "2", "3"].map(|body| resource("7", "", body));
        let marked = second.marked_if_reused(&first).expect("another body");
        assert!(marked.version().starts_with("7~") && marked.version().len() == 1 + BODY_MARK);
        assert_eq!((marked.origin_version(), marked.body()), (Some("7"), second.body()));
        assert!(second.same_content(&marked));
        assert_eq!(marked.digest(), second.digest(), "R-REST-07: so has a replica that held nothing before");
        let again = third.marked_if_reused(&marked).expect("another body");
        assert_ne!(again.version(), marked.version());
        assert_eq!(again.version(), version(&third, &first), "it depends on the content alone");
        assert_ne!(version(&first, &marked), "7", "clients may have missed the first change back");
        for (new, held) in [(&second, &second), (&second, &marked)] {
            assert_eq!(new.marked_if_reused(held), None, "equal content");
        }
        let [next, unversioned] = [resource("8", "", "4"), resource("", "", "5")];
        assert_eq!(version(&next, &marked), "8");
        assert_eq!(resource("", "", "6").marked_if_reused(&unversioned), None, "it has a hash for a version");
    }

    #[test]
    fn versions_of_two_servers_differ_without_a_mark_of_the_body() {
        let (first, second) = (resource("7", "", "1"), resource("7", "~12345678", "2"));
        assert_eq!(version(&second, &first), "7~12345678");
        assert_eq!(version(&first, &second), "7");
        let third = resource("7", "~12345678", "3");
        let marked = third.marked_if_reused(&second).expect("one server");
        assert_eq!((marked.version_mark().len(), marked.origin_version()), (9 + BODY_MARK, Some("7")));
        assert_ne!(version(&second, &marked), "7~12345678");
    }

    #[test]
    fn a_marked_resource_is_laid_out_like_any_other() {
        let marked = resource("7", "", "2").marked_if_reused(&resource("7", "", "1")).expect("another body");
        let cds: TypeUrl = Kind::Cluster.into();
        let read = Resource::from_entry(&cds, marked.delta_entry(), None, marked.version_form());
        assert_eq!(read.as_ref(), Ok(&marked));
        assert_eq!(marked.aliases().collect::<Vec<_>>(), ["alias"]);
        let form = NameForm::Plain(marked.name());
        let whole = [&marked.delta_head(form, None), marked.sotw_entry()].concat();
        assert_eq!(whole, marked.delta_entry()[..]);
    }

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
            let read = Resource::from_entry(&cds, resource.delta_entry(), None, resource.version_form());
            prop_assert_eq!(read, Ok(resource));
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes: Vec<u8>) {
            let read = Resource::from_entry(&Kind::Cluster.into(), &bytes, None, VersionForm::default());
            read.into_iter().for_each(|resource| _ = resource.version().len());
        }
    }
}
