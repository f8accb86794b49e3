//! Names of resources, in one spelling (R-XT-01): `xdstp://authority/type/id?context#directives`, or any text.
//!
//! Owns the grammar, the normal form, the names that a collection covers (R-XT-03), and
//! `envoy.service.discovery.v3.ResourceName`: a name with constraints. A malformed name stays as it is, for others to judge.
//!
//! Invariants: names with equal components, in any order of context parameters, have the same
//! normal form · a normal form is its own · names that differ in a component have different ones.

use std::borrow::{Borrow, Cow};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use arcstr::ArcStr;
use bytes::{Bytes, BytesMut};
use serde::{Serialize, Serializer};

use super::wire::{self, MalformedError};
use super::{ConstraintError, Constraints};

/// Cheap to clone, and one pointer wide: the cache and its subscribers share one allocation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(ArcStr);

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Table by name. It keeps the hashes: rehashing tens of thousands of names would make all others
/// wait.
pub type NameMap<V> = indexmap::IndexMap<Name, V, foldhash::quality::RandomState>;

/// Removes a name, and shrinks a table with few names left. May change the order.
pub fn take_out<V>(names: &mut NameMap<V>, name: &Name) -> Option<V> {
    let taken = names.swap_remove(name);
    if names.len() < names.capacity() / 8 {
        names.shrink_to(names.len() * 2);
    }
    taken
}

/// Set counterpart of [`NameMap`].
pub type NameSet = indexmap::IndexSet<Name, foldhash::quality::RandomState>;

impl Name {
    /// Subscription to everything.
    pub const WILDCARD: &'static str = "*";

    /// Name that cannot exist. A relay claims it in its first request of a type; its removal marks
    /// the end of the answer (R-Up-22).
    pub const END_MARK: &'static str = "deltafan/end-of-answer";

    /// Normal form of a peer's name (R-XT-01). The relay subscribes to, holds and compares only
    /// normal names.
    pub fn normal(text: &str) -> Self {
        Self(ArcStr::from(&*normal_form(text)))
    }

    /// A cheap first test of equality.
    pub fn same_allocation(&self, other: &Self) -> bool {
        ArcStr::ptr_eq(&self.0, &other.0)
    }

    /// Whether it begins with `xdstp://`, well-formed or not.
    pub fn is_xdstp(&self) -> bool {
        is_xdstp(&self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(ArcStr::from(text))
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(ArcStr::from(text))
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// Field numbers.
const NAMED_NAME: u8 = 1;
const NAMED_CONSTRAINTS: u8 = 2;

/// Name, and the constraints or the reason why they cannot be read.
type ReadName<'a> = (&'a str, Result<Option<Constraints>, ConstraintError>);

/// Reads an `envoy.service.discovery.v3.ResourceName`.
///
/// # Errors
///
/// [`MalformedError`] if the bytes are malformed. Unreadable constraints are part of the result.
pub fn parse_resource_name(message: &[u8]) -> Result<ReadName<'_>, MalformedError> {
    let (mut name, mut constraints) = ("", None);
    for field in wire::fields(message) {
        let field = field?;
        match u8::try_from(field.number) {
            Ok(NAMED_NAME) => name = field.text()?,
            // Repeated constraints would have to be merged.
            Ok(NAMED_CONSTRAINTS) if constraints.is_some() => {
                constraints = Some(Err(ConstraintError::Malformed));
            }
            Ok(NAMED_CONSTRAINTS) => constraints = Some(Constraints::parse(field.bytes()?)),
            _ => {}
        }
    }
    Ok((name, constraints.unwrap_or(Ok(None))))
}

/// Encodes an `envoy.service.discovery.v3.ResourceName`.
pub fn resource_name(name: &Name, constraints: Option<&Constraints>) -> Bytes {
    let name = name.as_str().as_bytes();
    let constraints = constraints.map(|constraints| &constraints.encoded()[..]).unwrap_or_default();
    let mut out = BytesMut::with_capacity(wire::field_len(name.len()) + wire::field_len(constraints.len()));
    wire::put_field(&mut out, NAMED_NAME, name);
    wire::put_field(&mut out, NAMED_CONSTRAINTS, constraints);
    out.freeze()
}

pub(super) const SCHEME: &str = "xdstp://";
/// Last segment of a collection's path.
const MEMBERS: &str = "*";

/// Escaped characters beside those that are not printable: Envoy's, so that its names are normal.
/// An escaped `/` within a segment stays escaped, or it would be another path.
const IN_AUTHORITY: &[u8] = b"%/?#";
const IN_SEGMENT: &[u8] = b"%/:?#[]";
const IN_PARAMETER: &[u8] = b"%#[]&=";

/// Well-formed or not.
pub(crate) fn is_xdstp(name: &str) -> bool {
    name.starts_with(SCHEME)
}

/// Names of other forms are normal.
pub fn normal_form(name: &str) -> Cow<'_, str> {
    match name.strip_prefix(SCHEME).and_then(normalise) {
        Some(normal) if normal != name => Cow::Owned(normal),
        _ => Cow::Borrowed(name),
    }
}

/// Whether a control plane is likely to spell a normal name otherwise.
pub(crate) fn has_other_spellings(name: &str) -> bool {
    is_xdstp(name) && name.contains(['&', '%'])
}

/// The name in its spelling, without directives (R-XT-02).
pub fn without_directives(name: &str) -> &str {
    match name.split_once('#') {
        Some((before, _)) if name.starts_with(SCHEME) => before,
        _ => name,
    }
}

/// Names that differ only in the last segment of their path, where the collection has `*`
/// (R-XT-03). A name is a member of at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection<'a> {
    /// Start of all members.
    prefix: &'a str,
    /// End of all members: the context parameters.
    context: &'a str,
}

impl<'a> Collection<'a> {
    pub fn named(name: &'a str) -> Option<Self> {
        let (prefix, member, context) = split(name)?;
        (member == MEMBERS).then_some(Self { prefix, context })
    }

    /// Name of the collection with this member.
    pub fn covering(name: &str) -> Option<String> {
        let (prefix, member, context) = split(name)?;
        (member != MEMBERS).then(|| [prefix, MEMBERS, context].concat())
    }

    /// Start of all members, and of other names.
    pub const fn prefix(&self) -> &'a str {
        self.prefix
    }

    pub const fn has_context(&self) -> bool {
        !self.context.is_empty()
    }

    pub fn covers(&self, name: &str) -> bool {
        split(name).is_some_and(|(prefix, member, context)| {
            prefix == self.prefix && context == self.context && member != MEMBERS
        })
    }
}

/// Splits before and after the last segment of the path.
fn split(name: &str) -> Option<(&str, &str, &str)> {
    let id = name.strip_prefix(SCHEME)?;
    let path = &name[..name.find('?').unwrap_or(name.len())];
    let at = path.rfind('/')? + 1;
    // Authority and type come before it.
    let has_id = at > SCHEME.len() && id[..at - SCHEME.len()].matches('/').count() >= 2;
    has_id.then(|| (&name[..at], &path[at..], &name[path.len()..]))
}

/// `None` if it is malformed.
fn normalise(rest: &str) -> Option<String> {
    let rest = rest.split_once('#').map_or(rest, |(name, _directives)| name);
    let (path, context) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = path.split_once('/')?;
    let (type_name, id) = path.split_once('/')?;
    if type_name.is_empty() || id.is_empty() {
        return None;
    }
    let mut out = String::with_capacity(SCHEME.len() + rest.len());
    out.push_str(SCHEME);
    respell(authority, IN_AUTHORITY, &mut out)?;
    out.push('/');
    respell(type_name, IN_SEGMENT, &mut out)?;
    for segment in id.split('/') {
        out.push('/');
        respell(segment, IN_SEGMENT, &mut out)?;
    }
    let mut parameters = BTreeMap::new();
    for parameter in context.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=')?;
        let (mut normal_key, mut normal_value) = (String::new(), String::new());
        respell(key, IN_PARAMETER, &mut normal_key)?;
        respell(value, IN_PARAMETER, &mut normal_value)?;
        // The last of a repeated key counts, as with gRPC (A47); the protocol leaves it open.
        parameters.insert(normal_key, normal_value);
    }
    for (at, (key, value)) in parameters.iter().enumerate() {
        out.push(if at == 0 { '?' } else { '&' });
        out.push_str(key);
        out.push('=');
        out.push_str(value);
    }
    Some(out)
}

/// `None` for a `%` that begins no escape.
fn respell(text: &str, reserved: &[u8], out: &mut String) -> Option<()> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            byte => byte,
        };
        if (b' '..b'~').contains(&byte) && !reserved.contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").ok()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_that_was_large_gives_its_room_back() {
        let name = |number: u32| Name::from(number.to_string().as_str());
        let mut names: NameMap<u32> = (0..100_000).map(|number| (name(number), number)).collect();
        for number in 10..100_000 {
            assert_eq!(take_out(&mut names, &name(number)), Some(number));
        }
        assert!(names.capacity() < 1000, "{}", names.capacity());
        assert_eq!(take_out(&mut names, &name(10)), None);
        assert!((0..10).all(|number| names[&name(number)] == number), "the others stay");
    }

    #[test]
    fn r_xt_01_spellings_of_one_name_have_one_normal_form() {
        let normal = "xdstp://auth/t.Type/a/b%3Ac?k=1&l=x/y";
        for spelling in [
            normal,
            "xdstp://auth/t.Type/a/b:c?l=x/y&k=1",
            "xdstp://%61uth/t.Type/a/b%3ac?k=%31&l=x/y",
            "xdstp://auth/t.Type/a/b:c?k=0&l=x%2Fy&k=1&",
        ] {
            assert_eq!(normal_form(spelling), normal, "{spelling}");
        }
        for other in [
            "xdstp://auth/t.Type/a/b%3Ac",
            "xdstp://auth/t.Type/a/b%3Ac?k=1",
            "xdstp://auth/t.Type/a%2Fb:c?k=1&l=x/y",
            "xdstp:///t.Type/a/b:c?k=1&l=x/y",
            "xdstp://auth/t.Type/A/b:c?k=1&l=x/y",
        ] {
            assert_ne!(normal_form(other), normal, "{other}");
        }
    }

    #[test]
    fn r_xt_01_a_name_that_is_not_well_formed_is_opaque() {
        for name in [
            "",
            "cluster?b=1&a=2",
            "xdstp:/a/t/x?b=1&a=2",
            "xdstp://",
            "xdstp://authority-only?b=1&a=2",
            "xdstp://a/t?b=1&a=2",
            "xdstp://a/t/?b=1&a=2",
            "xdstp://a//x?b=1&a=2",
            "xdstp://a/t/x?b=1&a",
            "xdstp://a/t/x%zz?b=1&a=2",
            "xdstp://a/t/x?b=1&a=%2",
            "XDSTP://a/t/x?b=1&a=2",
        ] {
            assert_eq!(normal_form(name), name);
        }
    }

    #[test]
    fn r_xt_02_directives_are_no_part_of_a_name() {
        let spelled = "xdstp://a/t/x?b=1&a=2#entry=y,alt=xdstp://c/t/z";
        assert_eq!(normal_form(spelled), "xdstp://a/t/x?a=2&b=1");
        assert_eq!(without_directives(spelled), "xdstp://a/t/x?b=1&a=2");
        assert_eq!(without_directives("cluster#1"), "cluster#1");
    }

    #[test]
    fn r_xt_03_a_collection_covers_one_level_with_its_context() {
        let name = "xdstp://auth/t/foo/*?a=b";
        let collection = Collection::named(name).expect("a collection");
        assert!(collection.covers("xdstp://auth/t/foo/x?a=b"));
        assert_eq!(Collection::covering("xdstp://auth/t/foo/x?a=b").as_deref(), Some(name));
        for other in [
            name,
            "xdstp://auth/t/foo/x",
            "xdstp://auth/t/foo/x?a=b&c=d",
            "xdstp://auth/t/foo/x/y?a=b",
            "xdstp://auth/t/foo?a=b",
            "xdstp://other/t/foo/x?a=b",
            "foo/x?a=b",
        ] {
            assert!(!collection.covers(other), "{other}");
            assert_ne!(Collection::covering(other).as_deref(), Some(name));
        }
        for none in
            ["*", "foo/*", "xdstp://auth/*", "xdstp://*", "xdstp://auth/t/foo/x", "xdstp://auth/t/x?a=/*"]
        {
            assert_eq!(Collection::named(none), None, "{none}");
        }
        assert!(Collection::named("xdstp:///t/*").is_some());
    }

    fn component() -> impl Strategy<Value = String> {
        // Characters that have a meaning in a name, those that must be escaped, and letters.
        "[a-c/?#&=%:\\[\\]~é ]{1,4}"
    }

    fn escaped(text: &str, reserved: &[u8], lower: bool) -> String {
        let byte = |byte: u8| match byte {
            b if lower && (reserved.contains(&b) || !b.is_ascii_alphanumeric()) => format!("%{b:02x}"),
            b if reserved.contains(&b) || !b.is_ascii() => format!("%{b:02X}"),
            b => char::from(b).to_string(),
        };
        text.bytes().map(byte).collect()
    }

    proptest! {
        #[test]
        fn r_xt_01_names_are_equal_as_their_components_are(
            id in proptest::collection::vec(component(), 1..3),
            context in proptest::collection::btree_map(component(), component(), 0..3),
            lower: bool,
            backwards: bool,
        ) {
            let spell = |lower: bool, backwards: bool| {
                let path: Vec<_> = id.iter().map(|part| escaped(part, IN_SEGMENT, lower)).collect();
                let pair = |(key, value): (&String, &String)| {
                    format!("{}={}", escaped(key, IN_PARAMETER, lower), escaped(value, IN_PARAMETER, lower))
                };
                let mut pairs: Vec<_> = context.iter().map(pair).collect();
                if backwards {
                    pairs.reverse();
                }
                format!("xdstp://a/t/{}?{}", path.join("/"), pairs.join("&"))
            };
            let normal = normal_form(&spell(false, false)).into_owned();
            let spelled = spell(lower, backwards);
            prop_assert_eq!(&*normal_form(&spelled), &normal);
            prop_assert_eq!(&*normal_form(&normal), &normal, "a normal form is its own");
            let other = format!("xdstp://a/t/{}x", escaped(&id.join("x"), IN_SEGMENT, false));
            prop_assert_ne!(normal_form(&other), normal);
        }

        #[test]
        fn any_text_has_a_normal_form_that_is_its_own(text in "(xdstp://)?[a/?#&=%2F:*é]{0,24}") {
            let normal = normal_form(&text).into_owned();
            prop_assert_eq!(&*normal_form(&normal), &normal);
        }
    }
}
