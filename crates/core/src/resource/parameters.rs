//! Dynamic parameters of a client, beside the name that it asks for (R-DP-01, TP2).
//!
//! Owns a set of them as a value that is cheap to copy and compare. Invariant: sets with equal
//! pairs are equal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Values by key. Most clients have none, which costs nothing.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Parameters(Option<Arc<BTreeMap<Box<str>, Box<str>>>>);

impl Parameters {
    pub const NONE: Self = Self(None);

    /// An empty value is a value (R-DP-01).
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.as_ref()?.get(key).map(|value| &**value)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds those of `others` with new keys.
    pub fn completed_with(&self, others: &Self) -> Self {
        if others.iter().all(|(key, _)| self.get(key).is_some()) {
            return self.clone();
        }
        others.iter().chain(self.iter()).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|pairs| pairs.iter()).map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Parameters {
    /// The last value of a repeated key counts, as in a protobuf map.
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
    /// `key=value, …` for people, escaped: a peer's text could steer a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{}={}", key.escape_debug(), value.escape_debug())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn equal_pairs_are_equal_however_they_came_about() {
        let one: Parameters = [("a", "1"), ("b", "")].into_iter().collect();
        let other: Parameters = [("b", ""), ("a", "0"), ("a", "1")].into_iter().collect();
        assert_eq!(one, other);
        assert_eq!(HashSet::from([one.clone(), other]).len(), 1);
        assert_eq!([one.get("a"), one.get("b"), one.get("c")], [Some("1"), Some(""), None]);
        assert_eq!(one.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "")]);
        assert_ne!(one, [("a", "1")].into_iter().collect());
    }

    #[test]
    fn without_a_pair_it_is_none() {
        let empty: Parameters = std::iter::empty::<(&str, &str)>().collect();
        assert_eq!(empty, Parameters::NONE);
        assert!(empty.is_empty());
        assert_eq!(empty.get(""), None);
        // An empty key with an empty value is a pair.
        let pair: Parameters = [("", "")].into_iter().collect();
        assert!(!pair.is_empty());
        assert_eq!(pair.get(""), Some(""));
    }

    #[test]
    fn parameters_of_a_peer_cannot_steer_a_terminal() {
        let parameters: Parameters = [("a\n", "\u{1b}[2J"), ("b", "x y")].into_iter().collect();
        assert_eq!(parameters.to_string(), r"a\n=\u{1b}[2J, b=x y");
    }
}
