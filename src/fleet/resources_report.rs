//! Resources of node groups, as JSON without bodies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::view::{Document, Page, Query, View, document, row};
use crate::cache::{Entry, Named, Snapshot, Track, TypeCache};
use crate::groups::Group;
use crate::resource::{Name, Resource, TypeUrl};

/// Store as the fleet sees it, of one view. Canaries may see another.
struct Shown<'w> {
    store: Arc<TypeCache>,
    canaries: Vec<Arc<TypeCache>>,
    /// Names of which not all clients were sent the newest state, with the origin's states.
    newest: BTreeMap<&'w Name, &'w Snapshot>,
}

impl Shown<'_> {
    /// State of the control plane, if not all clients have it.
    fn newest(&self, entry: &Entry) -> Option<Option<&Arc<Resource>>> {
        let newest = self.newest.get(entry.name())?.get(entry.name().as_str()).and_then(resource);
        let digest = |of: Option<&Arc<Resource>>| of.map(|resource| resource.digest());
        (digest(newest) != digest(resource(entry))).then_some(newest)
    }

    /// Entries that nobody but canaries was sent.
    fn unsent<'s>(&'s self, snapshot: &Snapshot) -> impl Iterator<Item = &'s Entry> {
        let is_new = |name: &Name| snapshot.get(name.as_str()).is_none_or(is_tombstone);
        self.newest
            .iter()
            .filter(move |(name, _)| is_new(name))
            .filter_map(|(name, of)| of.get(name.as_str()))
    }

    fn clients(&self, entry: &Entry) -> usize {
        self.store.clients_of(entry) + self.canaries.iter().map(|of| of.clients_of(entry)).sum::<usize>()
    }
}

fn resource(entry: &Entry) -> Option<&Arc<Resource>> {
    entry.as_member().existing().or_else(|| entry.by_name().existing())
}

row! {
    struct ResourceRow(of: &Shown<'_>, key: Option<&str>, entry: &Entry, is_new: bool)
    where
        given = of.store.parameter_view().parameters().iter().filter(|parameters| !parameters.is_empty()),
        sent = resource(entry).filter(|_| !is_new),
        newest_of = if is_new { Some(resource(entry)) } else { of.newest(entry) },
    {
        #[serde(flatten)]
        type_url: TypeUrl = of.store.type_url().clone(),
        name: Name = entry.name().clone(),
        /// `None` in the group of the relay's own node.
        group: Option<String> = key.map(str::to_owned),
        /// Of the clients that see it so.
        parameters: Vec<String> = given.map(ToString::to_string).collect(),
        state: &'static str = if is_new { "new" } else { state(entry) },
        wildcard: bool = entry.is_member(),
        version: Option<String> = sent.map(|resource| resource.version().to_owned()),
        /// Version of the control plane, if not all clients were sent it; `Some(None)` of a removal.
        #[serde(skip_serializing_if = "Option::is_none")]
        newest: Option<Option<String>> =
            newest_of.map(|newest| newest.map(|resource| resource.version().to_owned())),
        /// Bytes of its `Any`.
        bytes: Option<usize> = resource(entry).map(|resource| resource.body().len()),
        /// Generation of its last change.
        generation: u64 = entry.position().get(),
        error: Option<String> = entry.failure().map(|error| error.message().to_owned()),
        /// Streams and held polls, also by wildcard.
        clients: usize = of.clients(entry),
    }
}

/// Resources of a type that the clients of a node group are served, canaries aside. Relays that serve equal resources
/// agree on it.
#[derive(Clone, Copy, Debug, Default)]
struct Fingerprint {
    resources: usize,
    /// Sum of the digests; of Secrets, by name only.
    digest: u128,
}

impl Fingerprint {
    fn add(&mut self, of: &TypeUrl, resource: &Resource) {
        let digest = if of.is_secret() { resource.identity_digest() } else { resource.digest() };
        self.resources += 1;
        // A sum, not XOR: the resources of two sets of parameters may be equal.
        self.digest = self.digest.wrapping_add(digest);
    }

    /// `group` is `None` in the group of the relay's own node.
    fn row(self, of: &TypeUrl, group: Option<&str>) -> Json {
        let (kind, digest) = (of.kind().short(), format!("{:032x}", self.digest));
        json!({ "type": kind, "type_url": of.as_str(), "group": group, "resources": self.resources, "digest": digest })
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

/// Stores that the fleet sees, by type. Of a guarded type these are the stable ones.
pub(super) fn stores(group: &Group, only: Option<&TypeUrl>) -> Vec<Arc<TypeCache>> {
    let mut stores = group.cache().types();
    stores.retain(|of| {
        only.is_none_or(|only| only == of.type_url())
            && of.parameter_view().track() == group.cache().fleet_track(of.type_url())
    });
    stores.sort_by_key(|of| (of.type_url().kind(), of.index()));
    stores
}

impl View<'_> {
    /// Page of matching resources, by group, type and name.
    ///
    /// # Errors
    ///
    /// [`LookError`](super::LookError) if the query is wrong.
    pub fn resources(&self, query: &str) -> Document {
        let query = Query::parse(query, &["type", "name", "held_back", "limit", "after"])?;
        let (only, name, is_about_held_back) =
            (query.type_url()?, query.pattern("name")?, query.is_set("held_back")?);
        let (mut page, mut place) = (Page::new("resources", &query)?, 0);
        let mut matched: BTreeMap<_, usize> = BTreeMap::new();
        let mut fingerprints: BTreeMap<(Option<String>, TypeUrl), Fingerprint> = BTreeMap::new();
        let withheld = self.withheld();
        for (key, group) in self.groups.chosen(None) {
            for store in stores(&group, only.as_ref()) {
                let (type_url, view) = (store.type_url().clone(), store.parameter_view().clone());
                let steps = 0..group.cache().rollout_of(&type_url).map_or(0, |rollout| rollout.steps());
                let canaries = steps
                    .filter_map(|step| group.cache().find(&type_url, &view.clone().on(Track::Canary(step))));
                let canaries = canaries.collect();
                // Stores of mixed parameters and of restricted clients repeat the others.
                let mut fingerprint =
                    view.as_whole().map(|_| fingerprints.entry((key.clone(), type_url.clone())).or_default());
                let (snapshot, newest) = (store.snapshot(), withheld.newest(&store).collect());
                let shown = Shown { store, canaries, newest };
                let sent =
                    snapshot.entries().filter(|entry| !is_tombstone(entry)).map(|entry| (entry, false));
                let all = sent.chain(shown.unsent(&snapshot).map(|entry| (entry, true)));
                let is_asked = |(entry, is_new): &(&Entry, bool)| {
                    let is_held_back = || *is_new || shown.newest(entry).is_some();
                    name.is_match(entry.name().as_str()) && (!is_about_held_back || is_held_back())
                };
                for (entry, is_new) in all.filter(is_asked) {
                    *matched.entry(type_url.kind().short()).or_default() += 1;
                    if let Some((all, resource)) =
                        fingerprint.as_mut().zip(resource(entry)).filter(|_| !is_new)
                    {
                        all.add(&type_url, resource);
                    }
                    place += 1;
                    page.offer(place, || ResourceRow::new(&shown, key.as_deref(), entry, is_new));
                }
            }
        }
        fingerprints.retain(|_, all| all.resources > 0);
        let rows = fingerprints.iter().map(|((key, of), all)| all.row(of, key.as_deref()));
        page.figures = json!({ "matched": matched, "fingerprints": rows.collect::<Vec<_>>() });
        document(&page)
    }
}
