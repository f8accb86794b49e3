//! Resources of node groups, as JSON without bodies.

use std::collections::BTreeMap;

use serde::Serialize;

use super::admin_query::{LookError, PAGE, Query};
use crate::cache::{Entry, Named, Track, TypeCache};
use crate::groups::Groups;

#[derive(Debug, Serialize)]
struct ResourcePage {
    matched: BTreeMap<&'static str, usize>,
    resources: Vec<ResourceReport>,
    /// `after` of the next page.
    next: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ResourceReport {
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    name: String,
    /// `None` in the group of the relay's own node.
    group: Option<String>,
    /// Of the clients that see it so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<String>,
    /// Canaries or other clients, if the type is guarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    track: Option<&'static str>,
    state: &'static str,
    wildcard: bool,
    version: Option<String>,
    /// Bytes of its `Any`.
    bytes: Option<usize>,
    /// Generation of its last change.
    generation: u64,
    error: Option<String>,
    /// Streams and held polls, also by wildcard.
    clients: usize,
}

/// Whether a name is only known to be removed: clients may still have to learn it.
fn is_tombstone(entry: &Entry) -> bool {
    !entry.is_member() && matches!(entry.named(), Named::Unknown) && entry.failure().is_none()
}

const fn state(entry: &Entry) -> &'static str {
    match (entry.is_member(), entry.named()) {
        (true, _) | (_, Named::Present(_) | Named::Superseded(_) | Named::Alias(_)) => "present",
        (_, Named::Collection { .. }) => "collection",
        (_, Named::Absent | Named::Gone) => "absent",
        (_, Named::Unknown) => "unknown",
    }
}

fn report(of: &TypeCache, group: Option<&str>, entry: &Entry) -> ResourceReport {
    let resource = entry.as_member().existing().or_else(|| entry.by_name().existing());
    let parameters = of.parameter_view().parameters().iter().filter(|parameters| !parameters.is_empty());
    ResourceReport {
        kind: of.type_url().kind().short(),
        type_url: of.type_url().as_str().to_owned(),
        name: entry.name().to_string(),
        group: group.map(str::to_owned),
        parameters: parameters.map(ToString::to_string).collect(),
        track: match of.parameter_view().track() {
            Track::Origin => None,
            Track::Canary => Some("canary"),
            Track::Stable => Some("stable"),
        },
        state: state(entry),
        wildcard: entry.is_member(),
        version: resource.map(|resource| resource.version().to_owned()),
        bytes: resource.map(|resource| resource.body().len()),
        generation: entry.changed().get(),
        error: entry.failure().map(|error| error.message().to_owned()),
        clients: of.clients_of(entry),
    }
}

/// Page of matching resources, by group, type and name.
///
/// # Errors
///
/// [`LookError`] if the query is wrong.
pub fn resources(groups: &Groups, query: &str) -> Result<impl Serialize + use<>, LookError> {
    let query = Query::parse(query, &["type", "name", "limit", "after"])?;
    let (only, name) = (query.type_url()?, query.pattern("name"));
    let (limit, after) = (query.limit(PAGE)?, query.after()?);
    let mut page = ResourcePage { matched: BTreeMap::new(), resources: Vec::new(), next: None };
    let mut seen = 0;
    for (key, group) in groups.chosen(None) {
        let mut types = group.cache().types();
        types.retain(|of| only.as_ref().is_none_or(|only| only == of.type_url()));
        // No client sees the store of the origin where there are tracks.
        types.retain(|of| {
            let is_guarded = group.cache().rollout_of(of.type_url()).is_some();
            !is_guarded || of.parameter_view().track() != Track::Origin
        });
        types.sort_by_key(|of| (of.type_url().kind(), of.index()));
        for of in types {
            let snapshot = of.snapshot();
            let is_one =
                |entry: &&Entry| name.as_ref().is_none_or(|name| name.matches(entry.name().as_str()));
            for entry in snapshot.entries().filter(is_one).filter(|entry| !is_tombstone(entry)) {
                *page.matched.entry(of.type_url().kind().short()).or_default() += 1;
                seen += 1;
                if seen <= after {
                    continue;
                }
                if page.resources.len() < limit {
                    page.resources.push(report(&of, key.as_deref(), entry));
                } else if limit > 0 {
                    page.next = Some(after + page.resources.len() as u64);
                }
            }
        }
    }
    Ok(page)
}
