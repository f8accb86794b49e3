//! Dynamic parameters of a client, and constraints: which clients a variant of a resource is for (R-DP-01 to R-DP-06,
//! TP2).
//!
//! Owns reading of `envoy.service.discovery.v3.DynamicParameterConstraints`, its canonical form,
//! and matching. Knows nothing of resources or subscriptions.
//!
//! Invariants: parameters with equal pairs are equal · an unconstrained resource has no constraints · constraints that differ
//! only in order, repetition or nesting of lists, or by double negation, are equal and have one encoding
//! · unknown constraints are refused, never read as "matches everybody".

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::{Serialize, Serializer};

use super::wire::{self, MalformedError};

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
        let pair = |(key, value): (&str, &str)| format!("{}={}", key.escape_debug(), value.escape_debug());
        f.write_str(&self.iter().map(pair).collect::<Vec<_>>().join(", "))
    }
}

impl Serialize for Parameters {
    /// `null` without any.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() { serializer.serialize_none() } else { serializer.collect_str(self) }
    }
}

/// Most levels of nesting.
pub const MAX_DEPTH: usize = 32;
/// Most constraints, lists and negations in one tree.
pub const MAX_NODES: usize = 1024;

// Field numbers of DynamicParameterConstraints, ConstraintList and SingleConstraint.
const SINGLE: u8 = 1;
const ANY_OF: u8 = 2;
const ALL_OF: u8 = 3;
const NOT: u8 = 4;
const LISTED: u8 = 1;
const KEY: u8 = 1;
const VALUE: u8 = 2;
const EXISTS: u8 = 3;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error("not understood")]
    Malformed,
    #[error("a constraint has neither `value` nor `exists`")]
    NoKind,
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("more than {MAX_NODES} constraints")]
    TooMany,
}

impl From<MalformedError> for ConstraintError {
    fn from(_: MalformedError) -> Self {
        Self::Malformed
    }
}

/// Ordered by the canonical encodings, which all relays agree on (R-DP-04).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constraints(Arc<Canonical>);

#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Canonical {
    encoded: Bytes,
    tree: Tree,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Tree {
    Equals {
        key: Box<str>,
        value: Box<str>,
    },
    Exists {
        key: Box<str>,
    },
    /// At least two, sorted, none of them `Any`. Empty: matches nobody.
    Any(Vec<Self>),
    /// At least two, sorted, none of them `All`. Empty: matches everybody, and is never part of
    /// another.
    All(Vec<Self>),
    /// Never of a negation, nor of a constraint that matches everybody or nobody.
    Not(Box<Self>),
}

impl Constraints {
    /// Reads an encoded `DynamicParameterConstraints`; `None` if it constrains nothing.
    ///
    /// # Errors
    ///
    /// [`ConstraintError`] if the bytes are malformed, too large or too deep.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, ConstraintError> {
        let mut nodes = 0;
        let tree = read(bytes, MAX_DEPTH, &mut nodes)?;
        if tree == Tree::EVERYBODY {
            return Ok(None);
        }
        let encoded = tree.encode().freeze();
        Ok(Some(Self(Arc::new(Canonical { encoded, tree }))))
    }

    pub fn matches(&self, parameters: &Parameters) -> bool {
        self.0.tree.matches(parameters)
    }

    pub fn encoded(&self) -> &Bytes {
        &self.0.encoded
    }
}

impl fmt::Debug for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Constraints {
    /// For people: `(env = "prod" and not exists(canary))`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.tree, f)
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |parts: &[Self], word: &str| {
            let parts: Vec<String> = parts.iter().map(Self::to_string).collect();
            format!("({})", parts.join(word))
        };
        match self {
            // A key must not steer a terminal or begin a line of the log.
            Self::Equals { key, value } => write!(f, "{} = {value:?}", key.escape_debug()),
            Self::Exists { key } => write!(f, "exists({})", key.escape_debug()),
            Self::Any(parts) if parts.is_empty() => f.write_str("never"),
            Self::All(parts) if parts.is_empty() => f.write_str("always"),
            Self::Any(parts) => f.write_str(&list(parts, " or ")),
            Self::All(parts) => f.write_str(&list(parts, " and ")),
            Self::Not(part) => write!(f, "not {part}"),
        }
    }
}

impl Tree {
    const EVERYBODY: Self = Self::All(Vec::new());
    const NOBODY: Self = Self::Any(Vec::new());

    fn matches(&self, parameters: &Parameters) -> bool {
        match self {
            Self::Equals { key, value } => parameters.get(key) == Some(value),
            Self::Exists { key } => parameters.get(key).is_some(),
            Self::Any(parts) => parts.iter().any(|part| part.matches(parameters)),
            Self::All(parts) => parts.iter().all(|part| part.matches(parameters)),
            Self::Not(part) => !part.matches(parameters),
        }
    }

    fn not(part: Self) -> Self {
        match part {
            Self::Not(inner) => *inner,
            Self::All(parts) if parts.is_empty() => Self::NOBODY,
            Self::Any(parts) if parts.is_empty() => Self::EVERYBODY,
            part => Self::Not(Box::new(part)),
        }
    }

    /// Flattens, sorts and simplifies `Any` or `All` of these.
    fn list(parts: Vec<Self>, is_any: bool) -> Self {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match (part, is_any) {
                (Self::Any(inner), true) | (Self::All(inner), false) => flat.extend(inner),
                (Self::All(inner), true) if inner.is_empty() => return Self::EVERYBODY,
                (Self::Any(inner), false) if inner.is_empty() => return Self::NOBODY,
                (part, _) => flat.push(part),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        match flat.pop() {
            Some(only) if flat.is_empty() => only,
            last => {
                flat.extend(last);
                if is_any { Self::Any(flat) } else { Self::All(flat) }
            }
        }
    }

    fn encode(&self) -> BytesMut {
        let (mut inner, mut out) = (BytesMut::new(), BytesMut::new());
        let field = match self {
            Self::Equals { key, value } => {
                wire::put_field(&mut inner, KEY, key.as_bytes());
                wire::put_bytes(&mut inner, VALUE.into(), value.as_bytes());
                SINGLE
            }
            Self::Exists { key } => {
                wire::put_field(&mut inner, KEY, key.as_bytes());
                wire::put_bytes(&mut inner, EXISTS.into(), &[]);
                SINGLE
            }
            Self::Any(parts) | Self::All(parts) => {
                parts.iter().for_each(|part| wire::put_bytes(&mut inner, LISTED.into(), &part.encode()));
                if matches!(self, Self::Any(_)) { ANY_OF } else { ALL_OF }
            }
            Self::Not(part) => {
                inner = part.encode();
                NOT
            }
        };
        wire::put_bytes(&mut out, field.into(), &inner);
        out
    }
}

fn read(bytes: &[u8], depth: usize, nodes: &mut usize) -> Result<Tree, ConstraintError> {
    let depth = depth.checked_sub(1).ok_or(ConstraintError::TooDeep)?;
    *nodes += 1;
    if *nodes > MAX_NODES {
        return Err(ConstraintError::TooMany);
    }
    let mut fields = wire::fields(bytes);
    let Some(field) = fields.next().transpose()? else { return Ok(Tree::EVERYBODY) };
    if fields.next().is_some() {
        // Only one field is allowed; a second may be of an unknown kind.
        return Err(ConstraintError::Malformed);
    }
    let inner = field.bytes()?;
    match u8::try_from(field.number) {
        Ok(SINGLE) => read_single(inner),
        Ok(number @ (ANY_OF | ALL_OF)) => Ok(Tree::list(read_list(inner, depth, nodes)?, number == ANY_OF)),
        Ok(NOT) => Ok(Tree::not(read(inner, depth, nodes)?)),
        _ => Err(ConstraintError::Malformed),
    }
}

fn read_list(bytes: &[u8], depth: usize, nodes: &mut usize) -> Result<Vec<Tree>, ConstraintError> {
    let mut parts = Vec::new();
    for field in wire::fields(bytes) {
        let field = field?;
        if field.number != u32::from(LISTED) {
            return Err(ConstraintError::Malformed);
        }
        parts.push(read(field.bytes()?, depth, nodes)?);
    }
    Ok(parts)
}

fn read_single(bytes: &[u8]) -> Result<Tree, ConstraintError> {
    let (mut key, mut kind) = (None, None);
    for field in wire::fields(bytes) {
        let field = field?;
        let place = match u8::try_from(field.number) {
            Ok(KEY) => &mut key,
            Ok(VALUE | EXISTS) => &mut kind,
            _ => return Err(ConstraintError::Malformed),
        };
        if place.replace(field).is_some() {
            return Err(ConstraintError::Malformed);
        }
    }
    let key = key.map_or(Ok(""), |field| field.text())?.into();
    let Some(kind) = kind else { return Err(ConstraintError::NoKind) };
    if kind.number == u32::from(VALUE) {
        return Ok(Tree::Equals { key, value: kind.text()?.into() });
    }
    if kind.bytes()?.is_empty() { Ok(Tree::Exists { key }) } else { Err(ConstraintError::Malformed) }
}

#[cfg(test)]
mod unit_tests {
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

#[cfg(test)]
mod tests;
