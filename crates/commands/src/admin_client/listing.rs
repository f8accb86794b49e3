//! Questions and orders for one relay: filters, joined pages, and the forms of a report.

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value as Json, json};

use super::admin_connection::{AdminClient, Missing};
use super::answer_tables::{clients, history, nacks, one_client, order, resources, rollout};
use super::status_command::{status, status_table};

const PAGE: usize = 1_000;

/// A list of the relay: the key of its entries, which is also its path, and its table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listing(&'static str, Table);

impl Listing {
    /// Streams and held polls.
    pub(crate) const CLIENTS: Self = Self("clients", clients);
    /// Newest rejection of each client and type.
    pub(crate) const NACKS: Self = Self("nacks", nacks);
    /// Names of which the control plane has said something.
    pub(crate) const RESOURCES: Self = Self("resources", resources);
}

pub(crate) type Filters = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(crate) enum Asked {
    /// One client, with the names that it asks for.
    Client(u64),
    /// Up to so many entries.
    List(Listing, Filters, Option<usize>),
    /// Last changes of the resource in the filters, or of all.
    History(Filters),
    /// Faults of the relay.
    Status,
    /// Changes on trial or held.
    Rollout,
    /// Path of an order, with its query.
    Order(String, Filters),
}

/// Form of a document for people.
type Table = fn(&Json) -> String;

#[derive(Debug)]
pub(super) struct Report {
    /// For programs.
    pub(super) document: Json,
    table: Table,
}

/// Asks a relay.
pub(super) async fn ask(relay: &mut AdminClient, asked: &Asked) -> anyhow::Result<Report> {
    let (document, table): (_, Table) = match asked {
        Asked::Client(id) => {
            let gone = || format!("client {id} is not connected; `deltafan clients` lists those that are");
            let client = relay.get(&format!("/clients/{id}")).await;
            let told =
                |error: anyhow::Error| if error.is::<Missing>() { Missing(gone()).into() } else { error };
            (client.map_err(told)?, one_client)
        }
        Asked::List(listing, filters, limit) => (list(relay, listing.0, filters, *limit).await?, listing.1),
        Asked::History(filters) => (relay.get(&path("/history", filters)).await?, history),
        Asked::Status => (status(relay).await?, status_table),
        Asked::Rollout => (relay.get("/rollout").await?, rollout),
        Asked::Order(order_path, filters) => {
            (relay.json(Method::POST, &path(order_path, filters)).await?, order)
        }
    };
    Ok(Report { document, table })
}

impl Asked {
    /// Whether it names a client by an ID, which is that of one relay.
    pub(super) fn is_for_one_relay(&self) -> bool {
        match self {
            Self::Client(_) => true,
            Self::Order(path, _) => path.starts_with("/clients/"),
            _ => false,
        }
    }

    /// Whether filters match nothing, which fails like a missing name.
    pub(super) fn is_in_vain(&self, report: &Report) -> bool {
        let Self::List(listing, filters, limit) = self else { return false };
        let is_empty = report.document[listing.0].as_array().is_none_or(Vec::is_empty);
        is_empty && *limit != Some(0) && !filters.is_empty()
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
