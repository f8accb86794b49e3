//! Queries of the admin address: the part of a path behind `?`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::resource::{Name, Pattern, Segments, TypeUrl};
use crate::subscription::ClientState;

/// Bytes.
const LONGEST: usize = 4 << 10;
const PAGE: usize = 1_000;
const CHANGES: usize = 100;
const LARGEST_PAGE: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

#[derive(Debug)]
pub(super) struct Query {
    pub(super) node: Option<Pattern>,
    pub(super) type_url: Option<TypeUrl>,
    pub(super) state: Option<ClientState>,
    pub(super) name: Option<Pattern>,
    pub(super) group: Option<Pattern>,
    pub(super) asks_for: Option<String>,
    pub(super) limit: usize,
    pub(super) after: u64,
}

impl Query {
    /// Allows `limit`, `after` and the `allowed` keys.
    ///
    /// # Errors
    ///
    /// [`QueryError`] if it is too long, or a key is unknown, there twice or without a usable value.
    pub(super) fn parse(text: &str, allowed: &[&str]) -> Result<Self, QueryError> {
        let mut query = Self {
            node: None,
            type_url: None,
            state: None,
            name: None,
            group: None,
            asks_for: None,
            limit: PAGE,
            after: 0,
        };
        let allowed: Vec<&str> = allowed.iter().copied().chain(["limit", "after"]).collect();
        for (key, value) in pairs(text, &allowed)? {
            query.set(&key, &value)?;
        }
        Ok(query)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), QueryError> {
        let wrong = |allowed: &str| wrong(key, value, allowed);
        match key {
            "node" => self.node = Some(pattern_of(key, value)?),
            "name" => self.name = Some(pattern_of(key, value)?),
            "group" => self.group = Some(pattern_of(key, value)?),
            "asks_for" => self.asks_for = Some(value.to_owned()),
            "type" => {
                self.type_url = Some(type_of(value)?);
            }
            "state" => {
                let state = ClientState::ALL.into_iter().find(|state| state.label() == value);
                let all = || ClientState::ALL.map(ClientState::label).join(", ");
                self.state = Some(state.ok_or_else(|| wrong(&format!("one of {}", all())))?);
            }
            "limit" => self.limit = limit_of(value)?,
            _ => self.after = value.parse().map_err(|_| wrong("`next` of the page before"))?,
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct DumpQuery {
    pub(super) type_url: Option<TypeUrl>,
    pub(super) name: Option<Pattern>,
    /// A node group; empty or absent for that of the relay's own node.
    pub(super) group: Option<String>,
}

impl DumpQuery {
    /// Reads a query.
    ///
    /// # Errors
    ///
    /// [`QueryError`] as of [`Query::parse`].
    pub(super) fn parse(text: &str) -> Result<Self, QueryError> {
        let mut query = Self { type_url: None, name: None, group: None };
        for (key, value) in pairs(text, &["type", "name", "group"])? {
            match &*key {
                "type" => query.type_url = Some(type_of(&value)?),
                "name" => query.name = Some(pattern_of(&key, &value)?),
                _ => query.group = Some(value.into_owned()),
            }
        }
        Ok(query)
    }
}

#[derive(Debug)]
pub(super) struct HistoryQuery {
    pub(super) type_url: Option<TypeUrl>,
    pub(super) resource: Option<HistoryOf>,
    /// A node group; empty for that of the relay's own node.
    pub(super) group: Option<String>,
    /// Ignored for one resource, which has few changes.
    pub(super) limit: usize,
}

#[derive(Debug)]
pub(super) struct HistoryOf {
    pub(super) type_url: TypeUrl,
    pub(super) name: Name,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
}

impl HistoryQuery {
    /// Reads a query.
    ///
    /// # Errors
    ///
    /// [`QueryError`] as of [`Query::parse`], or if a key lacks another one that it needs.
    pub(super) fn parse(text: &str) -> Result<Self, QueryError> {
        let mut values = pairs(text, &["type", "name", "from", "to", "group", "limit"])?;
        let mut take = |key: &str| {
            let at = values.iter().position(|(known, _)| known == key)?;
            Some(values.swap_remove(at).1.into_owned())
        };
        let type_url = take("type").map(|text| type_of(&text)).transpose()?;
        let (name, from, to) = (take("name"), take("from"), take("to"));
        let missing =
            |key: &str| QueryError(format!("`{key}` is missing: /history?type=cds&name=backend for example"));
        let resource = match (&type_url, name) {
            (Some(type_url), Some(name)) => {
                let (type_url, name) = (type_url.clone(), Name::normal(&name));
                Some(HistoryOf { type_url, name, from, to })
            }
            (None, Some(_)) => return Err(missing("type")),
            (_, None) if from.is_some() || to.is_some() => return Err(missing("name")),
            (_, None) => None,
        };
        let limit = take("limit").map_or(Ok(CHANGES), |text| limit_of(&text))?;
        Ok(Self { type_url, resource, group: take("group"), limit })
    }
}

#[derive(Debug)]
pub struct RefreshQuery {
    pub type_url: TypeUrl,
    pub name: Name,
    /// A node group; empty for that of the relay's own node, absent for all.
    pub group: Option<String>,
}

impl RefreshQuery {
    /// Reads a query.
    ///
    /// # Errors
    ///
    /// [`QueryError`] if the query is too long or has no UTF-8, if a key is unknown or there twice, and
    /// without `type` and `name`.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let missing =
            |key: &str| QueryError(format!("`{key}` is missing: /refresh?type=eds&name=backend for example"));
        let (mut type_url, mut name, mut group) = (None, None, None);
        for (key, value) in pairs(text, &["type", "name", "group"])? {
            match &*key {
                "type" => type_url = Some(type_of(&value)?),
                "name" => name = Some(Name::normal(&value)),
                _ => group = Some(value.into_owned()),
            }
        }
        Ok(Self {
            type_url: type_url.ok_or_else(|| missing("type"))?,
            name: name.ok_or_else(|| missing("name"))?,
            group,
        })
    }
}

/// Refuses any query, for a page without filters.
///
/// # Errors
///
/// [`QueryError`] if there is any key.
pub fn no_filters(text: &str) -> Result<(), QueryError> {
    match text.split('&').find(|pair| !pair.is_empty()) {
        None => Ok(()),
        Some(pair) => {
            let (key, _) = pair.split_once('=').unwrap_or((pair, ""));
            Err(QueryError(format!("unknown key `{}`; this page has none", clip(key))))
        }
    }
}

type Pair<'t> = (Cow<'t, str>, Cow<'t, str>);

/// Each key is allowed and unique.
fn pairs<'t>(text: &'t str, allowed: &[&str]) -> Result<Vec<Pair<'t>>, QueryError> {
    if text.len() > LONGEST {
        return Err(QueryError(format!("the query is longer than {LONGEST} bytes")));
    }
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decode(key)?, decode(value)?);
        if !allowed.contains(&&*key) {
            let (last, others) = allowed.split_last().unwrap_or((&"", &[]));
            return Err(QueryError(format!(
                "unknown key `{}`; there are {} and {last}",
                clip(&key),
                others.join(", ")
            )));
        }
        if pairs.iter().any(|(seen, _)| *seen == key) {
            return Err(QueryError(format!("`{key}` is there twice")));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn wrong(key: &str, value: &str, allowed: &str) -> QueryError {
    QueryError(format!("`{key}` is `{}`; it has to be {allowed}", clip(value)))
}

/// `*` stands for any text.
fn pattern_of(key: &str, value: &str) -> Result<Pattern, QueryError> {
    let pattern = Pattern::read(value, value, Segments::None);
    pattern.map_err(|error| QueryError(format!("`{key}` is {error}")))
}

fn limit_of(value: &str) -> Result<usize, QueryError> {
    let limit = value.parse().ok().filter(|limit| *limit <= LARGEST_PAGE);
    limit.ok_or_else(|| wrong("limit", value, &format!("a number up to {LARGEST_PAGE}")))
}

fn type_of(text: &str) -> Result<TypeUrl, QueryError> {
    TypeUrl::from_user(text).map_err(|unknown| QueryError(unknown.to_string()))
}

fn decode(text: &str) -> Result<Cow<'_, str>, QueryError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| QueryError("the query is no UTF-8".to_owned()))
}

pub(super) fn clip(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_filters_takes_none() {
        assert_eq!(no_filters(""), Ok(()));
        let told = no_filters("group=edge").expect_err("a key").to_string();
        assert_eq!(told, "unknown key `group`; this page has none");
    }

    const KEYS: [&str; 3] = ["node", "type", "state"];

    fn fault(text: &str) -> String {
        Query::parse(text, &KEYS).expect_err(text).to_string()
    }

    #[test]
    fn a_query_is_filters_and_a_page() {
        let query = Query::parse("node=web%2D*&type=cds&state=rejected&limit=7&after=12", &KEYS).unwrap();
        assert!(query.node.unwrap().matches("web-1"));
        assert_eq!(query.type_url.unwrap().kind().short(), "cds");
        assert_eq!(query.state, Some(ClientState::Rejected));
        assert_eq!((query.limit, query.after), (7, 12));
        let all = Query::parse("", &KEYS).unwrap();
        assert_eq!((all.limit, all.after), (PAGE, 0));
    }

    #[test]
    fn a_history_is_of_one_resource_or_of_all() {
        let query = HistoryQuery::parse("type=eds&name=web%2D1&from=17&group=").unwrap();
        assert_eq!(query.group.as_deref(), Some(""));
        let of = query.resource.unwrap();
        assert_eq!((of.type_url.kind().short(), of.name.as_str()), ("eds", "web-1"));
        assert_eq!((of.from.as_deref(), of.to), (Some("17"), None));
        let all = HistoryQuery::parse("").unwrap();
        assert!(all.resource.is_none() && all.type_url.is_none() && all.limit == CHANGES);
        assert_eq!(HistoryQuery::parse("type=eds&limit=7").unwrap().limit, 7);
        let fault = |text: &str| HistoryQuery::parse(text).expect_err(text).to_string();
        assert!(fault("name=a").contains("`type` is missing: /history?type=cds&name=backend"));
        assert!(fault("type=cds&to=1").contains("`name` is missing"));
        assert!(fault("type=cows&name=a").contains("is no resource type"));
        assert!(fault("limit=10001").contains("a number up to 10000"));
        assert_eq!(fault("after=1"), "unknown key `after`; there are type, name, from, to, group and limit");
    }

    #[test]
    fn a_wrong_query_is_told_what_is_right() {
        assert_eq!(fault("nodes=a"), "unknown key `nodes`; there are node, type, state, limit and after");
        assert_eq!(fault("node=a&node=b"), "`node` is there twice");
        assert!(fault("state=sick").contains("one of rejected, waiting, unacked, behind, resuming, synced"));
        assert!(fault("limit=10001").contains("a number up to 10000"));
        assert!(fault("limit=-1").contains("a number up to 10000"));
        assert!(fault("after=x").contains("`next` of the page before"));
        assert!(fault("type=cows").contains("is no resource type"));
        assert!(fault("node=%ff").contains("UTF-8"));
        assert!(fault("a\u{1b}=b").contains("\\u{1b}"), "nothing steers a terminal");
        assert!(fault(&"node=a&".repeat(1_000_000)).contains("longer than 4096 bytes"));
    }
}
