//! Names of resources, and `envoy.service.discovery.v3.ResourceName`: a name with constraints.

use std::borrow::Borrow;
use std::fmt;

use arcstr::ArcStr;
use bytes::{Bytes, BytesMut};

use super::wire::{self, MalformedError};
use super::{ConstraintError, Constraints, normal_form};

/// Cheap to clone, and one pointer wide: the cache and its subscribers share one allocation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(ArcStr);

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
        super::is_xdstp(&self.0)
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
    let (mut name, mut constraints) = ("", Ok(None));
    let mut constrained = false;
    for field in wire::fields(message) {
        let field = field?;
        match u8::try_from(field.number) {
            Ok(NAMED_NAME) => name = field.text()?,
            // Repeated constraints would have to be merged.
            Ok(NAMED_CONSTRAINTS) if constrained => constraints = Err(ConstraintError::Malformed),
            Ok(NAMED_CONSTRAINTS) => {
                constrained = true;
                constraints = Constraints::parse(field.bytes()?);
            }
            _ => {}
        }
    }
    Ok((name, constraints))
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

#[cfg(test)]
mod tests {
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
}
