//! The resources that the origin has, and all that it ever had.
//!
//! Owns the time line of each name, by which everything that a client is told is judged. Knows neither streams nor
//! clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use deltafan::resource::wire::put_field;
use prost::Message as _;

use crate::common::any;
use deltafan_test_support::wire::type_url;

pub(crate) const TYPES: [&str; 4] = ["cds", "eds", "lds", "rds"];
pub(crate) const CDS: usize = 0;
pub(crate) const LDS: usize = 2;

/// Text of a name that istiod does not know: it answers with an empty resource.
pub(crate) const NONE: &str = "none";

pub(crate) fn at_of(url: &str) -> usize {
    let at = TYPES.iter().position(|short| type_url(short).as_str() == url);
    at.unwrap_or_else(|| panic!("{url} is no type of these histories"))
}

/// Whether state of the world says all of it in each response.
pub(crate) const fn is_full_state(at: usize) -> bool {
    matches!(at, CDS | LDS)
}

/// One state of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) text: String,
    /// As the origin says it; empty where it has none.
    pub(crate) version: Arc<str>,
}

/// Encodes an element of a delta response; without its body it is a heartbeat.
pub(crate) fn encode(at: usize, name: &str, body: &Body, ttl: Option<Duration>, heartbeat: bool) -> Bytes {
    let mut out = BytesMut::new();
    put_field(&mut out, 1, body.version.as_bytes());
    if !heartbeat {
        put_field(&mut out, 2, &any(TYPES[at], name, &body.text));
    }
    put_field(&mut out, 3, name.as_bytes());
    if let Some(ttl) = ttl {
        let ttl = prost_types::Duration { seconds: ttl.as_secs() as i64, nanos: ttl.subsec_nanos() as i32 };
        put_field(&mut out, 6, &ttl.encode_to_vec());
    }
    out.freeze()
}

type Line = Vec<(Instant, Option<Arc<Body>>)>;

/// Time line of every name.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    lines: [BTreeMap<String, Line>; TYPES.len()],
    pub(crate) changed: [Option<Instant>; TYPES.len()],
}

impl Truth {
    pub(crate) fn set(&mut self, at: usize, name: &str, body: Option<Body>, now: Instant) {
        self.changed[at] = Some(now);
        let line = self.lines[at].entry(name.to_owned()).or_default();
        line.push((now, body.map(Arc::new)));
    }

    /// All names that there ever were.
    pub(crate) fn names(&self, at: usize) -> Vec<String> {
        self.lines[at].keys().cloned().collect()
    }

    pub(crate) fn get(&self, at: usize, name: &str) -> Option<&Arc<Body>> {
        self.lines[at].get(name)?.last()?.1.as_ref()
    }

    /// All that there is now.
    pub(crate) fn present(&self, at: usize) -> impl Iterator<Item = (&String, &Arc<Body>)> {
        self.lines[at].iter().filter_map(|(name, line)| Some((name, line.last()?.1.as_ref()?)))
    }

    /// Since when a name has been there without a break.
    pub(crate) fn present_since(&self, at: usize, name: &str) -> Option<Instant> {
        let line = self.lines[at].get(name)?;
        line.last()?.1.as_ref()?;
        let began = line.iter().rposition(|(_, body)| body.is_none()).map_or(0, |gone| gone + 1);
        line.get(began).map(|(at, _)| *at)
    }

    /// Since when it has not been there; the beginning of all where it never was.
    pub(crate) fn absent_since(&self, at: usize, name: &str) -> Option<Instant> {
        let line = self.lines[at].get(name)?;
        match line.last() {
            Some((_, Some(_))) | None => None,
            Some((_, None)) => {
                let began = line.iter().rposition(|(_, body)| body.is_some()).map_or(0, |last| last + 1);
                line.get(began).map(|(at, _)| *at)
            }
        }
    }

    /// When a text was last published, by then.
    pub(crate) fn published(&self, at: usize, name: &str, text: &str, by: Instant) -> Option<Instant> {
        let line = self.lines[at].get(name)?;
        let said = |(when, body): &&(Instant, Option<Arc<Body>>)| {
            *when <= by && body.as_ref().is_some_and(|body| body.text == text)
        };
        line.iter().rfind(said).map(|(when, _)| *when)
    }

    /// Whether a text was ever published, in this version if one is given.
    pub(crate) fn had(&self, at: usize, name: &str, text: &str, version: Option<&str>) -> bool {
        let is_it =
            |body: &Body| body.text == text && version.is_none_or(|version| *version == *body.version);
        let line = self.lines[at].get(name).into_iter().flatten();
        line.filter_map(|(_, body)| body.as_deref()).any(is_it)
    }

    /// Whether a name was away for any moment after this one.
    pub(crate) fn was_absent_after(&self, at: usize, name: &str, after: Instant) -> bool {
        let Some(line) = self.lines[at].get(name) else { return true };
        // The state of that moment counts as well.
        let first = line.iter().rposition(|(when, _)| *when <= after);
        first.is_none() || line[first.unwrap_or(0)..].iter().any(|(_, body)| body.is_none())
    }
}
