//! Names of resources.

use std::borrow::Borrow;
use std::fmt;

use arcstr::ArcStr;

use super::normal_form;

/// The name of a resource, cheap to clone. A pointer wide, for there are many: the cache shares one allocation
/// among all its subscribers.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(ArcStr);

/// Anything by name, for tables that grow as clients ask. It keeps what names hash to: a table that has to look at tens of
/// thousands of names again when it grows makes all others wait.
pub type NameMap<V> = indexmap::IndexMap<Name, V, foldhash::quality::RandomState>;

/// Takes a name out of a table, and gives back the room of those that have gone once there are few left: a client that
/// asked for a million names leaves no empty table behind. The order of the others may change.
pub fn take_out<V>(names: &mut NameMap<V>, name: &Name) -> Option<V> {
    let taken = names.swap_remove(name);
    if names.len() < names.capacity() / 8 {
        names.shrink_to(names.len() * 2);
    }
    taken
}

/// A set of names of the same kind as [`NameMap`].
pub type NameSet = indexmap::IndexSet<Name, foldhash::quality::RandomState>;

impl Name {
    /// The subscription to "everything the origin lists for me" (xDS protocol, "Wildcard Subscriptions").
    pub const WILDCARD: &'static str = "*";

    /// The end mark: a name that cannot exist. A relay claims it in its first request for a type; the response that says that it is gone
    /// is the end of the answer (R-Up-22).
    pub const END_MARK: &'static str = "deltafan/end-of-answer";

    /// A name that a peer said, in its normal form (R-XT-01). What the relay subscribes to, holds and compares are names
    /// that went through here once.
    pub fn normal(text: &str) -> Self {
        Self(ArcStr::from(&*normal_form(text)))
    }

    /// Whether two names share one allocation; a cheap first test of equality.
    pub fn same_allocation(&self, other: &Self) -> bool {
        ArcStr::ptr_eq(&self.0, &other.0)
    }

    /// Whether it is of the form `xdstp://…`, or claims to be.
    pub fn is_xdstp(&self) -> bool {
        super::is_xdstp(&self.0)
    }

    /// The name as text.
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
