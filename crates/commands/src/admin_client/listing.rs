//! Questions and orders for one relay: filters, joined pages, and the forms of a report.

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value as Json, json};

use super::admin_connection::AdminClient;
use super::answer_tables::{clients, fields, history, nacks, one_client, resources, rollout, status};
use crate::output::text;

const PAGE: usize = 1_000;
/// Paths that answer with pages of entries, each under its own name.
const LISTS: [&str; 3] = ["clients", "nacks", "resources"];

pub(crate) type Filters = Vec<(&'static str, String)>;

/// A question or an order.
#[derive(Debug)]
pub(crate) struct Asked {
    method: Method,
    path: String,
    filters: Filters,
    /// Most entries of a list.
    limit: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Report {
    /// For programs.
    pub(super) document: Json,
    /// Filters match nothing, which fails like a missing name.
    pub(super) is_in_vain: bool,
    /// Form for people.
    table: fn(&Json) -> String,
}

impl Asked {
    pub(crate) fn get(path: impl Into<String>, filters: Filters, limit: Option<usize>) -> Self {
        Self { method: Method::GET, path: path.into(), filters, limit }
    }

    pub(crate) fn order(path: impl Into<String>, filters: Filters) -> Self {
        Self { method: Method::POST, ..Self::get(path, filters, None) }
    }

    /// Name of the entries of a list.
    fn list(&self) -> Option<&str> {
        self.path.strip_prefix('/').filter(|name| LISTS.contains(name))
    }

    /// Asks a relay.
    pub(super) async fn at(&self, relay: &mut AdminClient) -> anyhow::Result<Report> {
        let mut document = match self.list() {
            Some(name) => list(relay, name, &self.filters, self.limit).await?,
            None => relay.json(self.method.clone(), &path(&self.path, &self.filters)).await?,
        };
        let table = match &*self.path {
            "/clients" => clients,
            "/nacks" => nacks,
            "/resources" => resources,
            "/history" => history,
            "/rollout" => rollout,
            "/status" => {
                document["relay"] = format!("{} at {}", text(&document["relay"]), relay.address).into();
                document["fingerprints"] = relay.get("/resources?limit=0").await?["fingerprints"].take();
                status
            }
            _ if self.method == Method::POST => fields,
            _ => one_client,
        };
        let entries = self.list().map(|name| document[name].as_array().map_or(0, Vec::len));
        let is_in_vain = entries == Some(0) && self.limit != Some(0) && !self.filters.is_empty();
        Ok(Report { document, is_in_vain, table })
    }

    /// Whether it names a client by an ID, which is that of one relay.
    pub(super) fn is_for_one_relay(&self) -> bool {
        self.path.starts_with("/clients/")
    }
}

impl Report {
    pub(super) fn table(&self) -> String {
        (self.table)(&self.document)
    }
}

/// A path with these filters.
fn path(page: &str, filters: &Filters) -> String {
    if filters.is_empty() { page.to_owned() } else { format!("{page}?{}", query(filters)) }
}

fn query(filters: &Filters) -> String {
    let encoded = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let pairs = filters.iter().map(|(key, value)| format!("{key}={}", encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Fetches a list, page by page. Figures beside the entries are those of the last page.
async fn list(
    relay: &mut AdminClient,
    name: &str,
    filters: &Filters,
    limit: Option<usize>,
) -> anyhow::Result<Json> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let wanted = limit.map_or(PAGE, |limit| PAGE.min(limit - all.len()));
        let mut filters = filters.clone();
        filters.push(("limit", wanted.to_string()));
        filters.extend(after.map(|after: u64| ("after", after.to_string())));
        let mut page = relay.get(&path(&format!("/{name}"), &filters)).await?;
        let Some(Json::Array(entries)) = page.get_mut(name).map(Json::take) else {
            anyhow::bail!("{0}/{name} has no `{name}`", relay.address);
        };
        let came = entries.len();
        all.extend(entries);
        let before = std::mem::replace(&mut after, page["next"].as_u64());
        if after.is_some() && after == before {
            anyhow::bail!("{}/{name} gives one page again and again", relay.address);
        }
        // An empty page is the last, whatever it says.
        if came == 0 || after.is_none() || limit.is_some_and(|limit| all.len() >= limit) {
            page[name] = json!(all);
            return Ok(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_cannot_break_out_of_its_value() {
        let filters = vec![("node", "a*&limit=0 #\u{e9}".to_owned()), ("type", "cds".to_owned())];
        assert_eq!(query(&filters), "node=a%2A%26limit%3D0%20%23%C3%A9&type=cds");
    }
}
