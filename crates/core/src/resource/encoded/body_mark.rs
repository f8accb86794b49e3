//! Marks of versions that the origin gave to two contents.
//!
//! A client that reconnects with a version holds its content of that time. If the content changed
//! under the version, clients get it with a mark. Else the client would count as current, and keep
//! the old content for good.
//!
//! Example: `a` is held in version 7, and comes with another body in version 7. Clients get version
//! `7~` and 16 hexadecimal digits. The next version 8 has no mark.

use std::sync::Arc;

use xxhash_rust::xxh3;

use super::{Form, Resource, begin_entry};

/// `~` and the digits. A mark of a server is shorter.
const BODY_MARK: usize = 17;

pub(super) fn without_body_mark(version: &str, mark_bytes: usize) -> &str {
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
        self.mark_bytes >= BODY_MARK
    }

    /// Copy with a mark, if a held resource has the same version and other content.
    pub(crate) fn marked_if_reused(&self, held: &Self) -> Option<Self> {
        let more = held.version.strip_prefix(&*self.version).filter(|_| !self.own_version)?;
        let is_equal = more.is_empty() || (more.len() == BODY_MARK && held.version_mark().ends_with(more));
        (is_equal && self.form == Form::Whole && self.name == held.name && !self.same_content(held))
            .then(|| self.with_body_mark())
    }

    fn with_body_mark(&self) -> Self {
        let rest = self.rest();
        let version = format!("{}~{:016x}", self.version, xxh3::xxh3_64(rest));
        let mut out = begin_entry(&self.name, &version, rest.len());
        let rest_at = out.len();
        out.extend_from_slice(rest);
        let moved = |at: usize| at - self.rest_at + rest_at;
        // The digest has the body: replicas that missed the change have an equal one.
        Self {
            version: Arc::from(version),
            mark_bytes: self.mark_bytes + BODY_MARK,
            entry: out.freeze(),
            rest_at,
            sotw_at: moved(self.sotw_at),
            body_at: moved(self.body_at),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
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
        let read = Resource::from_entry(&cds, marked.delta_entry().clone(), None, marked.version_form());
        assert_eq!(read.as_ref(), Ok(&marked));
        assert_eq!(marked.aliases().collect::<Vec<_>>(), ["alias"]);
        let form = NameForm::Plain(marked.name());
        let whole = [&marked.delta_head(form, None), marked.sotw_entry()].concat();
        assert_eq!(whole, marked.delta_entry()[..]);
    }
}
