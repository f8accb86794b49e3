//! Resources of node groups, as JSON without bodies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::admin_query::{LookError, Query};
use super::view::{NameRow, Page, row};
use crate::cache::{Entry, Named, Track, TypeCache};
use crate::groups::{Group, Groups};
use crate::resource::TypeUrl;

row! {
    struct ResourceRow(of: &TypeCache, key: Option<&str>, entry: &Entry)
    where
        view = of.parameter_view(),
        given = view.parameters().iter().filter(|parameters| !parameters.is_empty()),
        resource = entry.as_member().existing().or_else(|| entry.by_name().existing()),
    {
        #[serde(flatten)]
        name: NameRow = NameRow::new(of.type_url(), entry.name()),
        /// `None` in the group of the relay's own node.
        group: Option<String> = key.map(str::to_owned),
        /// Of the clients that see it so.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        parameters: Vec<String> = given.map(ToString::to_string).collect(),
        /// Canaries or other clients, if the type is guarded.
        #[serde(skip_serializing_if = "Option::is_none")]
        track: Option<&'static str> = match view.track() {
            Track::Origin => None,
            Track::Canary(_) => Some("canary"),
            Track::Stable => Some("stable"),
        },
        state: &'static str = state(entry),
        wildcard: bool = entry.is_member(),
        version: Option<String> = resource.map(|resource| resource.version().to_owned()),
        /// Bytes of its `Any`.
        bytes: Option<usize> = resource.map(|resource| resource.body().len()),
        /// Generation of its last change.
        generation: u64 = entry.changed().get(),
        error: Option<String> = entry.failure().map(|error| error.message().to_owned()),
        /// Streams and held polls, also by wildcard.
        clients: usize = of.clients_of(entry),
    }
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

/// Stores that clients see, by type. With tracks, none sees the store of the origin.
pub(super) fn stores(group: &Group, only: Option<&TypeUrl>) -> Vec<Arc<TypeCache>> {
    let mut stores = group.cache().types();
    stores.retain(|of| {
        let is_guarded = group.cache().rollout_of(of.type_url()).is_some();
        only.is_none_or(|only| only == of.type_url())
            && (!is_guarded || of.parameter_view().track() != Track::Origin)
    });
    stores.sort_by_key(|of| (of.type_url().kind(), of.index()));
    stores
}

/// Page of matching resources, by group, type and name.
///
/// # Errors
///
/// [`LookError`] if the query is wrong.
pub fn resources(groups: &Groups, query: &str) -> Result<impl Serialize + use<>, LookError> {
    let query = Query::parse(query, &["type", "name", "limit", "after"])?;
    let (only, name) = (query.type_url()?, query.pattern("name"));
    let (mut page, mut place) = (Page::new("resources", &query)?, 0);
    let mut matched: BTreeMap<_, usize> = BTreeMap::new();
    for (key, group) in groups.chosen(None) {
        for of in stores(&group, only.as_ref()) {
            let snapshot = of.snapshot();
            let is_one = |entry: &&Entry| name.matches(entry.name().as_str()) && !is_tombstone(entry);
            for entry in snapshot.entries().filter(is_one) {
                *matched.entry(of.type_url().kind().short()).or_default() += 1;
                place += 1;
                page.offer(place, || ResourceRow::new(&of, key.as_deref(), entry));
            }
        }
    }
    page.figures = vec![("matched", json!(matched))];
    Ok(page)
}
