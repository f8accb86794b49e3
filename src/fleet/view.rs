//! View for operators: queries, and rows and pages of the JSON.
//!
//! Owns the part of a path behind `?`, and how documents name a type, a node, a delivery and a time.

use std::borrow::Cow;
use std::time::{Instant, SystemTime};

use percent_encoding::percent_decode_str;
use regex::Regex;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::registry::Fleet;
use crate::cache::Withheld;
use crate::descriptors::Descriptors;
use crate::groups::Groups;
use crate::resource::{MAX_AUTOMATON, TypeUrl, whole_match};
use crate::subscription::{ClientState, Delivery};
use crate::terminal::printable_json;
use crate::utc;

/// State of a relay for operators.
#[derive(Clone, Copy, Debug)]
pub struct View<'v> {
    pub fleet: &'v Fleet,
    pub groups: &'v Groups,
    pub descriptors: &'v Descriptors,
    pub now: Instant,
}

impl View<'_> {
    /// Changes that clients were not sent yet. Read it after the records of the clients.
    pub(super) fn withheld(&self) -> Withheld {
        let groups = self.groups.all();
        Withheld::of(groups.iter().map(|group| &**group.cache()))
    }
}

/// Bytes.
const LONGEST: usize = 4 << 10;
/// Entries of the largest page.
const LARGEST_PAGE: usize = 10_000;

/// Refusal of a look or an order, for the operator that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// The query is wrong.
    #[error("{0}")]
    Wrong(String),
    /// There is no such thing.
    #[error("{0}")]
    Missing(String),
    /// The answer would be too large.
    #[error("{0}")]
    TooLarge(&'static str),
    /// The relay could not do it.
    #[error("{0}")]
    Failed(String),
    #[error(
        "answers that other clients of the admin address have not read yet take all the memory for such; try again"
    )]
    Busy,
}

/// JSON text, which terminals show as it is.
pub type Document = Result<String, LookError>;

/// Writes a document on one line.
///
/// # Errors
///
/// [`LookError::Failed`] if a key of a map is no text.
pub fn document(of: &impl Serialize) -> Document {
    let text = serde_json::to_string(of).map_err(|error| LookError::Failed(error.to_string()))?;
    Ok(printable_json(text + "\n"))
}

/// Keys of a query with their values.
#[derive(Debug)]
pub struct Query<'t>(Vec<(Cow<'t, str>, Cow<'t, str>)>);

impl<'t> Query<'t> {
    /// Reads a query that may have these keys.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is too long or no UTF-8, or a key is unknown or there twice.
    pub fn parse(text: &'t str, allowed: &[&str]) -> Result<Self, LookError> {
        if text.len() > LONGEST {
            return Err(LookError::Wrong(format!("the query is longer than {LONGEST} bytes")));
        }
        let mut query = Self(Vec::new());
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (decode(key)?, decode(value)?);
            if !allowed.contains(&&*key) {
                let known = match allowed {
                    [] => "this page has none".to_owned(),
                    [one] => format!("there is {one}"),
                    [others @ .., last] => format!("there are {} and {last}", others.join(", ")),
                };
                return Err(LookError::Wrong(format!("unknown key `{}`; {known}", clip(&key))));
            }
            if query.get(&key).is_some() {
                return Err(LookError::Wrong(format!("`{key}` is there twice")));
            }
            query.0.push((key, value));
        }
        Ok(query)
    }

    /// Value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// Resource type that `type` names.
    ///
    /// # Errors
    ///
    /// [`LookError`] if there is no such type.
    pub fn type_url(&self) -> Result<Option<TypeUrl>, LookError> {
        let read = |text| TypeUrl::from_user(text).map_err(|unknown| LookError::Wrong(unknown.to_string()));
        self.get("type").map(read).transpose()
    }

    /// Pattern of a key, in which `*` stands for any text; without the key it matches everything.
    pub(super) fn pattern(&self, key: &str) -> Result<Regex, LookError> {
        let parts = self.get(key).unwrap_or("*").split('*').map(regex::escape);
        let whole = parts.collect::<Vec<_>>().join("(?s:.*)");
        whole_match(&whole, MAX_AUTOMATON).map_err(|error| LookError::Wrong(format!("`{key}` is {error}")))
    }

    pub(super) fn state(&self) -> Result<Option<ClientState>, LookError> {
        let find = |value: &str| ClientState::ALL.into_iter().find(|state| state.label() == value);
        self.checked("state", find, || {
            format!("one of {}", ClientState::ALL.map(ClientState::label).join(", "))
        })
    }

    /// Whether a filter is turned on: `true` is its only value.
    pub(super) fn is_set(&self, key: &str) -> Result<bool, LookError> {
        let read = |value: &str| (value == "true").then_some(true);
        Ok(self.checked(key, read, || "true".to_owned())?.unwrap_or_default())
    }

    /// Number of entries that are asked for.
    pub(super) fn limit(&self, default: usize) -> Result<usize, LookError> {
        let read = |value: &str| value.parse().ok().filter(|limit| *limit <= LARGEST_PAGE);
        let limit = self.checked("limit", read, || format!("a number up to {LARGEST_PAGE}"))?;
        Ok(limit.unwrap_or(default))
    }

    /// Entry behind which the page begins; 0 for the first page.
    pub(super) fn after(&self) -> Result<u64, LookError> {
        let read = |value: &str| value.parse().ok();
        Ok(self.checked("after", read, || "`next` of the page before".to_owned())?.unwrap_or_default())
    }

    /// Time in UTC that a key gives.
    pub(super) fn time(&self, key: &str) -> Result<Option<SystemTime>, LookError> {
        self.checked(key, utc::parse, || "a time such as 2026-03-01T14:02:11Z".to_owned())
    }

    fn checked<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Option<T>,
        allowed: impl FnOnce() -> String,
    ) -> Result<Option<T>, LookError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || format!("`{key}` is `{}`; it has to be {}", clip(value), allowed());
        read(value).map(Some).ok_or_else(|| LookError::Wrong(wrong()))
    }
}

impl LookError {
    /// A query lacks a key. `example` has all that are needed.
    pub fn without(key: &str, example: &str) -> Self {
        Self::Wrong(format!("`{key}` is missing: {example} for example"))
    }

    /// There is no such client.
    pub fn no_client() -> Self {
        Self::Missing("no such client; GET /clients lists those that are connected".to_owned())
    }

    /// There is no such node group.
    pub(super) fn no_group(key: &str) -> String {
        format!("there is no group `{}`; GET /resources shows the group of each resource", clip(key))
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, LookError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| LookError::Wrong("the query is no UTF-8".to_owned()))
}

/// Beginning of a text, for a message.
pub fn clip(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

/// Rows of a page that says nothing of its size.
const ROWS: usize = 1_000;

/// Declares a row: fields in their order, each with its value.
macro_rules! row {
    (
        $(#[$about:meta])*
        $visible:vis struct $row:ident($($from:ident: $of:ty),+)
        $(where $($name:ident = $init:expr,)+)?
        {
            $($(#[$attribute:meta])* $field:ident: $type:ty = $value:expr,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, serde::Serialize)]
        $visible struct $row {
            $($(#[$attribute])* pub(super) $field: $type,)+
        }

        impl $row {
            $visible fn new($($from: $of),+) -> Self {
                $($(let $name = $init;)+)?
                Self { $($field: $value),+ }
            }
        }
    };
}

pub(super) use row;

row! {
    pub(super) struct DeliveryRow(of: &Delivery, now: Instant) {
        version: String = of.version.to_string(),
        generation: u64 = of.generation.get(),
        seconds_ago: f64 = seconds(of.at, now),
    }
}

impl DeliveryRow {
    /// Version; without one, its generation.
    pub(super) fn label(&self) -> String {
        if self.version.is_empty() { format!("#{}", self.generation) } else { self.version.clone() }
    }
}

row! {
    pub(super) struct RejectionRow(of: &Delivery, its_code: i32, its_text: &str, now: Instant) {
        #[serde(flatten)]
        delivery: DeliveryRow = DeliveryRow::new(of, now),
        code: i32 = its_code,
        text: String = its_text.to_owned(),
    }
}

/// Seconds since `at`, cut to milliseconds.
pub fn seconds(at: Instant, now: Instant) -> f64 {
    let millis = now.saturating_duration_since(at).as_millis();
    millis as f64 / 1_000.0
}

/// Part of a list, with figures of the whole.
#[derive(Debug)]
pub(super) struct Page<Row> {
    pub(super) figures: Json,
    /// Name of the rows.
    name: &'static str,
    pub(super) rows: Vec<Row>,
    limit: usize,
    after: u64,
    /// Place of the newest row.
    last: u64,
    /// `after` of the next page.
    next: Option<u64>,
}

impl<Row> Page<Row> {
    pub(super) fn new(name: &'static str, query: &Query<'_>) -> Result<Self, LookError> {
        let (limit, after) = (query.limit(ROWS)?, query.after()?);
        Ok(Self { figures: Json::Null, name, rows: Vec::new(), limit, after, last: after, next: None })
    }

    /// For places that become smaller. Returns the one that the page is behind.
    pub(super) fn downwards(&mut self) -> u64 {
        Some(std::mem::take(&mut self.after)).filter(|after| *after > 0).unwrap_or(u64::MAX)
    }

    /// Adds a row if its place is on this page.
    pub(super) fn offer(&mut self, place: u64, row: impl FnOnce() -> Row) {
        if place <= self.after {
            return;
        }
        if self.rows.len() < self.limit {
            self.last = place;
            self.rows.push(row());
        } else if self.limit > 0 {
            self.next = Some(self.last);
        }
    }
}

impl<Row: Serialize> Serialize for Page<Row> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut figures = self.figures.as_object().into_iter().flatten();
        figures.try_for_each(|(name, figure)| map.serialize_entry(name, figure))?;
        map.serialize_entry(self.name, &self.rows)?;
        map.serialize_entry("next", &self.next)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] = ["node", "type", "state", "limit", "after"];

    fn fault(text: &str) -> String {
        let read = |query: Query<'_>| {
            let types = (query.pattern("node")?, query.type_url()?);
            Ok((types, query.state()?, query.limit(9)?, query.after()?))
        };
        Query::parse(text, &KEYS).and_then(read).expect_err(text).to_string()
    }

    #[test]
    fn a_query_is_filters_and_a_page() {
        let query = Query::parse("node=web%2D*&type=cds&state=rejected&limit=7&after=12", &KEYS).unwrap();
        assert!(query.pattern("node").unwrap().is_match("web-1"));
        assert_eq!(query.type_url().unwrap().unwrap().kind().short(), "cds");
        assert_eq!(query.state(), Ok(Some(ClientState::Rejected)));
        assert_eq!((query.limit(9), query.after()), (Ok(7), Ok(12)));
        let all = Query::parse("", &KEYS).unwrap();
        assert_eq!((all.limit(9), all.after(), all.get("node")), (Ok(9), Ok(0), None));
    }

    #[test]
    fn a_wrong_query_is_told_what_is_right() {
        let unknown = |keys| Query::parse("nodes=a", keys).unwrap_err().to_string();
        assert_eq!(unknown(&KEYS), "unknown key `nodes`; there are node, type, state, limit and after");
        assert_eq!(unknown(&["node"]), "unknown key `nodes`; there is node");
        assert_eq!(unknown(&[]), "unknown key `nodes`; this page has none");
        assert_eq!(fault("node=a&node=b"), "`node` is there twice");
        assert!(
            fault("state=sick")
                .contains("one of rejected, waiting, unacked, behind, resuming, held_back, synced")
        );
        assert!(fault("limit=10001").contains("a number up to 10000"));
        assert!(fault("limit=-1").contains("a number up to 10000"));
        assert!(fault("after=x").contains("`next` of the page before"));
        assert!(fault("type=cows").contains("is no resource type"));
        assert!(fault("node=%ff").contains("UTF-8"));
        assert!(fault("a\u{1b}=b").contains("\\u{1b}"), "nothing steers a terminal");
        assert!(fault(&"node=a&".repeat(1_000_000)).contains("longer than 4096 bytes"));
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text, matches) in [
            ("web", "web", true),
            ("web", "web-1", false),
            ("*", "", true),
            ("web-*", "web-1", true),
            ("w*b*1", "web-1", true),
            ("a*a", "a", false),
            ("a.*", "ab", false),
            ("*é*", "caf\u{e9}\n", true),
        ] {
            let query = format!("node={pattern}");
            let query = Query::parse(&query, &KEYS).unwrap();
            assert_eq!(query.pattern("node").unwrap().is_match(text), matches, "{pattern} {text}");
        }
    }
}
