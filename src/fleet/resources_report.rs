//! Resources of node groups, as JSON without bodies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;

use super::admin_query::{LookError, Query};
use super::view::{NameRow, Page, TypeName, row};
use crate::cache::{Entry, Named, Track, TypeCache};
use crate::groups::{Group, Groups};
use crate::resource::{Resource, TypeUrl};

row! {
    struct ResourceRow(of: &TypeCache, key: Option<&str>, entry: &Entry)
    where
        view = of.parameter_view(),
        given = view.parameters().iter().filter(|parameters| !parameters.is_empty()),
        resource = resource(entry),
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

row! {
    /// Resources of a type that the clients of a node group are served, canaries aside. Relays that serve equal
    /// resources agree on it.
    struct FingerprintRow(of: &TypeUrl, key: Option<String>, all: Fingerprint) {
        #[serde(flatten)]
        kind: TypeName = TypeName::new(of),
        /// `None` in the group of the relay's own node.
        group: Option<String> = key,
        resources: usize = all.resources,
        /// Sum of the digests; of Secrets, by name only.
        digest: String = format!("{:032x}", all.digest),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Fingerprint {
    resources: usize,
    digest: u128,
}

impl Fingerprint {
    fn add(&mut self, of: &TypeUrl, resource: &Resource) {
        let digest = if of.is_secret() { resource.identity_digest() } else { resource.digest() };
        self.resources += 1;
        // A sum, not XOR: the resources of two sets of parameters may be equal.
        self.digest = self.digest.wrapping_add(digest);
    }
}

/// Whether a name is only known to be removed: clients may still have to learn it.
fn is_tombstone(entry: &Entry) -> bool {
    !entry.is_member() && matches!(entry.named(), Named::Unknown) && entry.failure().is_none()
}

fn resource(entry: &Entry) -> Option<&Arc<Resource>> {
    entry.as_member().existing().or_else(|| entry.by_name().existing())
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
    let mut fingerprints: BTreeMap<(Option<String>, TypeUrl), Fingerprint> = BTreeMap::new();
    for (key, group) in groups.chosen(None) {
        for of in stores(&group, only.as_ref()) {
            // Stores of mixed parameters and of restricted clients repeat the others.
            let view = of.parameter_view();
            let is_served = view.as_whole().is_some() && !matches!(view.track(), Track::Canary(_));
            let mut fingerprint =
                is_served.then(|| fingerprints.entry((key.clone(), of.type_url().clone())).or_default());
            let snapshot = of.snapshot();
            let is_one = |entry: &&Entry| name.matches(entry.name().as_str()) && !is_tombstone(entry);
            for entry in snapshot.entries().filter(is_one) {
                *matched.entry(of.type_url().kind().short()).or_default() += 1;
                if let Some((all, resource)) = fingerprint.as_mut().zip(resource(entry)) {
                    all.add(of.type_url(), resource);
                }
                place += 1;
                page.offer(place, || ResourceRow::new(&of, key.as_deref(), entry));
            }
        }
    }
    fingerprints.retain(|_, all| all.resources > 0);
    let rows = fingerprints.into_iter().map(|((key, of), all)| FingerprintRow::new(&of, key, all));
    page.figures = vec![("matched", json!(matched)), ("fingerprints", json!(rows.collect::<Vec<_>>()))];
    Ok(page)
}
