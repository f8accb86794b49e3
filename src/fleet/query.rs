//! Queries of the admin address: the part of a path behind `?`.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::glob::Glob;
use crate::resource::TypeUrl;
use crate::subscription::ClientState;

/// Bytes of a query.
const LONGEST: usize = 4 << 10;
/// Entries of a page that says nothing of its size.
const PAGE: usize = 1_000;
/// Entries of the largest page.
const LARGEST_PAGE: usize = 10_000;

/// Fault of a query, for the operator that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

/// Filters of a query and the page that it asks for.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) node: Option<Glob>,
    pub(super) type_url: Option<TypeUrl>,
    pub(super) state: Option<ClientState>,
    pub(super) name: Option<Glob>,
    /// Name of one resource.
    pub(super) asks_for: Option<String>,
    pub(super) limit: usize,
    /// Entries after this one.
    pub(super) after: u64,
}

impl Query {
    /// Reads a query that may have these keys, beside `limit` and `after`.
    ///
    /// # Errors
    ///
    /// [`QueryError`] if it is too long, or a key is unknown, there twice or without a usable value.
    pub(super) fn parse(text: &str, allowed: &[&str]) -> Result<Self, QueryError> {
        if text.len() > LONGEST {
            return Err(QueryError(format!("the query is longer than {LONGEST} bytes")));
        }
        let mut query = Self {
            node: None,
            type_url: None,
            state: None,
            name: None,
            asks_for: None,
            limit: PAGE,
            after: 0,
        };
        let mut seen: Vec<Cow<'_, str>> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (decode(key)?, decode(value)?);
            if !allowed.contains(&&*key) && key != "limit" && key != "after" {
                let all = allowed.join(", ");
                return Err(QueryError(format!(
                    "unknown key `{}`; there are {all}, limit and after",
                    clip(&key)
                )));
            }
            if seen.contains(&key) {
                return Err(QueryError(format!("`{key}` is there twice")));
            }
            query.set(&key, &value)?;
            seen.push(key);
        }
        Ok(query)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), QueryError> {
        let wrong =
            |allowed: &str| QueryError(format!("`{key}` is `{}`; it has to be {allowed}", clip(value)));
        match key {
            "node" => self.node = Some(Glob::new(value)),
            "name" => self.name = Some(Glob::new(value)),
            "asks_for" => self.asks_for = Some(value.to_owned()),
            "type" => {
                let type_url = TypeUrl::from_user(value);
                self.type_url = Some(type_url.map_err(|unknown| QueryError(unknown.to_string()))?);
            }
            "state" => {
                let state = ClientState::ALL.into_iter().find(|state| state.label() == value);
                let all = || ClientState::ALL.map(ClientState::label).join(", ");
                self.state = Some(state.ok_or_else(|| wrong(&format!("one of {}", all())))?);
            }
            "limit" => {
                let limit = value.parse().ok().filter(|limit| *limit <= LARGEST_PAGE);
                self.limit = limit.ok_or_else(|| wrong(&format!("a number up to {LARGEST_PAGE}")))?;
            }
            _ => self.after = value.parse().map_err(|_| wrong("`next` of the page before"))?,
        }
        Ok(())
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, QueryError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| QueryError("the query is no UTF-8".to_owned()))
}

/// Beginning of a text for a message.
fn clip(text: &str) -> String {
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_wrong_query_is_told_what_is_right() {
        assert_eq!(fault("nodes=a"), "unknown key `nodes`; there are node, type, state, limit and after");
        assert_eq!(fault("node=a&node=b"), "`node` is there twice");
        assert!(fault("state=sick").contains("one of rejected, waiting, unacked, behind, synced"));
        assert!(fault("limit=10001").contains("a number up to 10000"));
        assert!(fault("limit=-1").contains("a number up to 10000"));
        assert!(fault("after=x").contains("`next` of the page before"));
        assert!(fault("type=cows").contains("is no resource type"));
        assert!(fault("node=%ff").contains("UTF-8"));
        assert!(fault("a\u{1b}=b").contains("\\u{1b}"), "nothing steers a terminal");
        assert!(fault(&"node=a&".repeat(1_000_000)).contains("longer than 4096 bytes"));
    }
}
