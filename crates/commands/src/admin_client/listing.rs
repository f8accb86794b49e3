//! Questions and orders for one relay: filters, joined pages, and the forms of a report.

use std::borrow::Cow;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value as Json, json};

use super::admin_connection::{AdminClient, Missing};
use super::answer_tables::{clients, history, nacks, one_client, order, resources, rollout};
use super::status_command::{Status, status};

const PAGE: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// Streams and held polls.
    Clients,
    /// Newest rejection of each client and type.
    Nacks,
    /// Names of which the control plane has said something.
    Resources,
}

impl Listing {
    /// Key of its entries; also their name and path.
    pub(super) const fn entries(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Nacks => "nacks",
            Self::Resources => "resources",
        }
    }
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

#[derive(Debug)]
pub(super) enum Report {
    List(Listing, Json),
    Client(Json),
    History(Json),
    Status(Status),
    Rollout(Json),
    Order(Json),
}

/// Asks a relay.
pub(super) async fn ask(relay: &mut AdminClient, asked: &Asked) -> anyhow::Result<Report> {
    match asked {
        Asked::Client(id) => {
            let client = relay.json(&format!("/clients/{id}")).await?;
            let gone = || format!("client {id} is not connected; `deltafan clients` lists those that are");
            client.map(Report::Client).ok_or_else(|| Missing(gone()).into())
        }
        Asked::List(listing, filters, limit) => list(relay, *listing, filters, *limit).await,
        Asked::History(filters) => {
            let path = format!("/history?{}", query(filters));
            Ok(Report::History(relay.json(&path).await?.unwrap_or_default()))
        }
        Asked::Status => status(relay).await.map(Report::Status),
        Asked::Rollout => Ok(Report::Rollout(relay.json("/rollout").await?.unwrap_or_default())),
        Asked::Order(path, filters) => {
            let query = query(filters);
            let path = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
            relay.post(&path).await.map(Report::Order)
        }
    }
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
        match (self, report) {
            (Self::List(listing, filters, limit), Report::List(_, page)) => {
                page[listing.entries()].as_array().is_none_or(Vec::is_empty)
                    && *limit != Some(0)
                    && !filters.is_empty()
            }
            _ => false,
        }
    }
}

impl Report {
    /// For programs.
    pub(super) fn document(&self) -> Cow<'_, Json> {
        match self {
            Self::Status(status) => Cow::Owned(status.document()),
            Self::List(_, page)
            | Self::Client(page)
            | Self::History(page)
            | Self::Rollout(page)
            | Self::Order(page) => Cow::Borrowed(page),
        }
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        match self {
            Self::List(Listing::Clients, page) => clients(page),
            Self::List(Listing::Nacks, page) => nacks(page),
            Self::List(Listing::Resources, page) => resources(page),
            Self::Client(client) => one_client(client),
            Self::History(page) => history(page),
            Self::Status(status) => status.table(),
            Self::Rollout(groups) => rollout(groups),
            Self::Order(answer) => order(answer),
        }
    }

    /// Fingerprints of what clients are served; `null` of other reports.
    pub(super) fn fingerprints(&self) -> &Json {
        match self {
            Self::Status(status) => &status.fingerprints,
            Self::List(Listing::Resources, page) => &page["fingerprints"],
            _ => &Json::Null,
        }
    }
}

fn query(filters: &Filters) -> String {
    let encoded = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let pairs = filters.iter().map(|(key, value)| format!("{key}={}", encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Fetches a list, page by page. Figures beside the entries are those of the last page.
async fn list(
    relay: &mut AdminClient,
    listing: Listing,
    filters: &Filters,
    limit: Option<usize>,
) -> anyhow::Result<Report> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let wanted = limit.map_or(PAGE, |limit| PAGE.min(limit - all.len()));
        let mut filters = filters.clone();
        filters.push(("limit", wanted.to_string()));
        filters.extend(after.map(|after: u64| ("after", after.to_string())));
        let path = format!("/{}?{}", listing.entries(), query(&filters));
        let mut page = relay.json(&path).await?.unwrap_or_default();
        let Some(Json::Array(entries)) = page.get_mut(listing.entries()).map(Json::take) else {
            anyhow::bail!("{0}/{1} has no `{1}`", relay.address(), listing.entries());
        };
        let came = entries.len();
        all.extend(entries);
        let before = std::mem::replace(&mut after, page["next"].as_u64());
        if after.is_some() && after == before {
            anyhow::bail!("{}/{} gives one page again and again", relay.address(), listing.entries());
        }
        // An empty page is the last, whatever it says.
        if came == 0 || after.is_none() || limit.is_some_and(|limit| all.len() >= limit) {
            page[listing.entries()] = json!(all);
            return Ok(Report::List(listing, page));
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
