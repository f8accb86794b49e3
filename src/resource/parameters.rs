//! Dynamic parameters: what a client says of itself beside the name that it asks for (R-DP-01, TP2).
//!
//! Owns a set of them as a value that is cheap to copy and to compare. Knows nothing of who has them.
//!
//! Invariant: two sets of equal pairs are equal, however they came about.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Values by key, each key once. Cheap to clone; most clients have none, which costs nothing.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Parameters(Option<Arc<BTreeMap<Box<str>, Box<str>>>>);

impl Parameters {
    /// No parameters: what everybody has who says nothing.
    pub const NONE: Self = Self(None);

    /// The value of a parameter, if it is present. An empty value is a value (R-DP-01).
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.as_ref()?.get(key).map(|value| &**value)
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|pairs| pairs.iter()).map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Parameters {
    /// Of a key that is there twice the last value counts, as in a protobuf map.
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        let pairs: BTreeMap<Box<str>, Box<str>> =
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self((!pairs.is_empty()).then(|| Arc::new(pairs)))
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl fmt::Display for Parameters {
    /// As `key=value, …`, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}
