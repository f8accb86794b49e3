//! Newest changes of all resources, as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::clients_report::seconds;
use crate::cache::{PlacedChange, ResourceChange};
use crate::groups::Group;
use crate::resource::TypeUrl;
use crate::utc::{self, WallClock};

pub(super) type Chosen = Vec<(Option<String>, Arc<Group>)>;

#[derive(Debug, Serialize)]
pub(super) struct RecentPage {
    /// Newest first.
    changes: Vec<RecentChange>,
}

#[derive(Debug, Serialize)]
struct RecentChange {
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    name: String,
    /// `None` in the group of the relay's own node.
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<String>,
    #[serde(flatten)]
    change: ChangeFacts,
}

#[derive(Debug, Serialize)]
pub(super) struct ChangeFacts {
    /// UTC, as in `2026-03-01T14:02:11Z`; `None` before the first remembered change.
    time: Option<String>,
    seconds_ago: Option<f64>,
    event: &'static str,
    /// `None` of a removal, as bytes.
    version: Option<String>,
    generation: u64,
    /// Bytes of its `Any`.
    bytes: Option<usize>,
}

impl ChangeFacts {
    pub(super) fn of(change: &ResourceChange, now: Instant) -> Self {
        let after = change.after.as_ref();
        Self {
            time: change.at.map(|at| utc::seconds(WallClock::get().at(at))),
            seconds_ago: change.at.map(|at| seconds(at, now)),
            event: event(change),
            version: after.map(|after| after.version.to_string()),
            generation: change.generation.get(),
            bytes: after.map(|after| after.bytes),
        }
    }
}

pub(super) fn recent(groups: &Chosen, only: Option<&TypeUrl>, max: usize, now: Instant) -> RecentPage {
    let keys: BTreeMap<u64, &Option<String>> =
        groups.iter().map(|(key, group)| (group.cache().number(), key)).collect();
    let is_one = |cache: u64, type_url: &TypeUrl| {
        keys.contains_key(&cache) && only.is_none_or(|only| only == type_url)
    };
    // All groups share one.
    let history = groups.iter().find_map(|(_, group)| group.cache().history());
    let found = history.map(|history| history.newest(max, is_one)).unwrap_or_default();
    let report = |of: PlacedChange| RecentChange {
        kind: of.type_url.kind().short(),
        type_url: of.type_url.as_str().to_owned(),
        name: of.name.to_string(),
        group: keys.get(&of.cache).and_then(|key| (*key).clone()),
        parameters: (!of.parameters.is_empty()).then(|| of.parameters.to_string()),
        change: ChangeFacts::of(&of.change, now),
    };
    RecentPage { changes: found.into_iter().map(report).collect() }
}

const fn event(change: &ResourceChange) -> &'static str {
    match (&change.after, change.is_first) {
        _ if change.at.is_none() => "present",
        (None, _) => "removed",
        (Some(_), true) => "added",
        (Some(_), false) => "changed",
    }
}
