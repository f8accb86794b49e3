//! What differs between two configurations, and what comes of it while the relay runs.
//!
//! Owns the table of when a change of each key takes effect. Compares key by key what `check` would print, so that a new
//! key needs no code here but its row; docs/operations.md shows the same table to users. Tests hold the three together.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::Config;
use super::keys::{self, Shape};

/// When a changed key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// For all, with the reload.
    AtOnce,
    /// For what connects from then on; a stream keeps to what it began with.
    Connections,
    /// For each poll that comes from then on, on whichever connection.
    Polls,
    /// As for connections, and those that are open and concerned are closed, so that their clients come again.
    Rights,
    /// Not before the next start.
    Restart,
}

/// Each key, or the section or list that it is in; the longest that fits counts.
pub(super) const EFFECTS: &[(&str, Effect)] = &[
    ("node", Effect::Restart),
    ("upstream", Effect::Restart),
    ("downstream.listeners", Effect::Restart),
    ("downstream.settle", Effect::AtOnce),
    ("downstream.settle_max", Effect::AtOnce),
    ("downstream.cold_deadline", Effect::Connections),
    ("downstream.ack_timeout", Effect::Connections),
    ("downstream.max_connection_age", Effect::Connections),
    ("downstream.drain", Effect::AtOnce),
    ("downstream.first_request_timeout", Effect::Connections),
    ("downstream.stall_timeout", Effect::Connections),
    ("downstream.keepalive", Effect::Connections),
    ("downstream.max_request_bytes", Effect::Connections),
    ("downstream.max_response_bytes", Effect::AtOnce),
    ("downstream.max_name_bytes", Effect::Connections),
    ("downstream.max_names", Effect::Connections),
    ("downstream.max_names_per_connection", Effect::Connections),
    ("downstream.max_streams_per_connection", Effect::Connections),
    ("downstream.trust_initial_versions_for_explicit", Effect::Connections),
    ("downstream.eds_repush_on_cds_change", Effect::AtOnce),
    ("downstream.resource_errors", Effect::AtOnce),
    ("downstream.secrets_without_authentication", Effect::Rights),
    ("downstream.secrets_over_loopback", Effect::Rights),
    ("downstream.no_legacy_wildcard", Effect::Connections),
    ("rest.hold", Effect::Polls),
    ("rest.idle_timeout", Effect::Connections),
    ("rest.max_polls_per_peer", Effect::Polls),
    ("rest.json_bytes", Effect::Restart),
    ("rest.descriptor_sets", Effect::Restart),
    ("admin", Effect::Restart),
    ("cache.encoded_bytes", Effect::Restart),
    ("cache.tombstones", Effect::AtOnce),
    ("cache.max_parameter_sets", Effect::AtOnce),
    ("dynamic_parameters", Effect::Rights),
    ("authorization", Effect::Rights),
    ("downstream.handshake_timeout", Effect::Restart),
    ("downstream.idle_timeout", Effect::Connections),
    ("downstream.unacked_timeout", Effect::Connections),
    ("downstream.max_subscription_bytes", Effect::Connections),
    ("downstream.max_connections", Effect::Restart),
    ("downstream.max_connections_per_address", Effect::Restart),
    ("downstream.max_connections_per_identity", Effect::Restart),
    ("downstream.max_buffered_request_bytes", Effect::Restart),
    ("downstream.max_buffered_request_bytes_per_connection", Effect::Restart),
    ("downstream.max_initial_version_bytes", Effect::Restart),
    ("downstream.max_initial_version_bytes_per_connection", Effect::Restart),
    ("downstream.max_unsent_bytes", Effect::Restart),
    ("downstream.memory", Effect::Restart),
];

/// Lists whose entries have a name: their order says nothing, and an entry is compared with its namesake.
const NAMED: [(&str, &str); 1] = [("downstream.listeners", "address")];

/// The keys in which two configurations differ, by what comes of it. Paths are those of the reference, with `[]` for any
/// entry of a list; each is there once, in the order of the alphabet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// What takes effect while the relay runs.
    pub live: Vec<String>,
    /// What does not before it is started again.
    pub restart: Vec<String>,
}

impl Changes {
    /// Whether the two say the same.
    pub fn is_nothing(&self) -> bool {
        self.live.is_empty() && self.restart.is_empty()
    }

    /// Whether anything in this section or list, or the key itself, takes another effect.
    pub fn concerns(&self, path: &str) -> bool {
        self.live.iter().any(|changed| is_within(changed, path))
    }
}

/// Compares two configurations key by key.
pub fn diff(old: &Config, new: &Config) -> Changes {
    let mut differing = BTreeSet::new();
    compare("", &tree(old), &tree(new), &mut differing);
    let (restart, live) = differing.into_iter().partition(|path| effect(path) == Effect::Restart);
    Changes { live, restart }
}

/// As it is printed. Nothing in a configuration is refused by JSON: maps have texts for keys, and floats are none.
fn tree(config: &Config) -> Json {
    serde_json::to_value(config).unwrap_or_default()
}

fn compare(path: &str, old: &Json, new: &Json, differing: &mut BTreeSet<String>) {
    if old == new {
        return;
    }
    match (old, new) {
        // What stands in a mapping of anything are no keys of ours.
        (Json::Object(old), Json::Object(new)) if keys::shape(path) != Some(Shape::Free) => {
            for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let [old, new] = [old, new].map(|of| of.get(name).unwrap_or(&Json::Null));
                compare(&keys::join(path, name), old, new, differing);
            }
        }
        (Json::Array(old), Json::Array(new)) => compare_lists(path, old, new, differing),
        _ => _ = differing.insert(path.to_owned()),
    }
}

fn compare_lists(path: &str, old: &[Json], new: &[Json], differing: &mut BTreeSet<String>) {
    let entry = format!("{path}[]");
    let name = NAMED.iter().find(|(list, _)| *list == path).map(|(_, name)| *name);
    let pairs: Vec<_> = match name {
        Some(name) => old
            .iter()
            .filter_map(|old| Some((old, new.iter().find(|new| new.get(name) == old.get(name))?)))
            .collect(),
        None => old.iter().zip(new).collect(),
    };
    if pairs.len() != old.len() || old.len() != new.len() || keys::shape(&entry) != Some(Shape::Section) {
        differing.insert(path.to_owned());
        if name.is_none() {
            return;
        }
    }
    for (old, new) in pairs {
        compare(&entry, old, new, differing);
    }
}

/// When a change takes effect. A key without a row waits for a start; a test finds it.
fn effect(path: &str) -> Effect {
    let rows = EFFECTS.iter().filter(|(of, _)| is_within(path, of));
    rows.max_by_key(|(of, _)| of.len()).map_or(Effect::Restart, |(_, effect)| *effect)
}

/// Whether a path is this one or below it.
pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
