//! The tables of the schema: every key with its shape and range, and what is refused for now.
//!
//! A new key is a row here, a line in `parse`, a field with its default, and a commented entry in
//! `config/reference.yaml`; tests fail for each of these that is forgotten.

use std::time::Duration;

use super::tree::{Tree, Value};
use super::units::{format_duration, format_size};

/// One key. Path segments are joined by `.`; `[]` stands for each entry of a list.
pub(super) struct Key {
    pub(super) path: &'static str,
    pub(super) shape: Shape,
}

/// What may stand at a key. Ranges are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A mapping of the keys below this one.
    Section,
    /// A list of the entries below this one.
    List,
    /// A mapping of anything.
    Free,
    /// Text with rules of its own.
    Text,
    /// `true` or `false`.
    Flag,
    Duration(Duration, Duration),
    /// Bytes.
    Size(u64, u64),
    Count(u64, u64),
}

impl Shape {
    /// The range, as messages and the reference write it.
    pub(super) fn range(self) -> Option<String> {
        match self {
            Self::Duration(min, max) => Some(format!("{} to {}", format_duration(min), format_duration(max))),
            Self::Size(min, max) => Some(format!("{} to {}", format_size(min), format_size(max))),
            Self::Count(min, max) => Some(format!("{min} to {max}")),
            Self::Section | Self::List | Self::Free | Self::Text | Self::Flag => None,
        }
    }
}

const ZERO: Duration = Duration::ZERO;
const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A protobuf message cannot be larger.
const MESSAGE: u64 = 2 << 30;
const TIB: u64 = 1 << 40;

const fn key(path: &'static str, shape: Shape) -> Key {
    Key { path, shape }
}

pub(super) const KEYS: &[Key] = &[
    key("", Shape::Section),
    key("node", Shape::Section),
    key("node.id", Shape::Text),
    key("node.cluster", Shape::Text),
    key("node.locality", Shape::Section),
    key("node.locality.region", Shape::Text),
    key("node.locality.zone", Shape::Text),
    key("node.locality.sub_zone", Shape::Text),
    key("node.metadata", Shape::Free),
    key("upstream", Shape::Section),
    key("upstream.servers", Shape::List),
    key("upstream.servers[]", Shape::Section),
    key("upstream.servers[].uri", Shape::Text),
    key("upstream.servers[].tls", Shape::Section),
    key("upstream.servers[].tls.ca_file", Shape::Text),
    key("upstream.servers[].tls.cert_file", Shape::Text),
    key("upstream.servers[].tls.key_file", Shape::Text),
    key("upstream.servers[].tls.crl_file", Shape::Text),
    key("upstream.servers[].tls.server_name", Shape::Text),
    key("upstream.directory", Shape::Text),
    key("upstream.connect_timeout", Shape::Duration(TICK, HOUR)),
    key("upstream.max_response_bytes", Shape::Size(1, MESSAGE)),
    key("upstream.request_interval", Shape::Duration(ZERO, Duration::from_millis(10))),
    key("upstream.unsubscribe_linger", Shape::Duration(ZERO, DAY)),
    key("upstream.max_lingering_names", Shape::Count(0, 100_000_000)),
    key("upstream.ready_wait", Shape::Duration(ZERO, Duration::from_secs(30 * 24 * 60 * 60))),
    key("upstream.reconcile", Shape::Text),
    key("upstream.locators", Shape::Text),
    key("upstream.backoff", Shape::Section),
    key("upstream.backoff.initial", Shape::Duration(TICK, HOUR)),
    key("upstream.backoff.max", Shape::Duration(TICK, HOUR)),
    key("upstream.keepalive", Shape::Section),
    key("upstream.keepalive.interval", Shape::Duration(TICK, DAY)),
    key("upstream.keepalive.timeout", Shape::Duration(TICK, HOUR)),
    key("downstream", Shape::Section),
    key("downstream.listeners", Shape::List),
    key("downstream.listeners[]", Shape::Section),
    key("downstream.listeners[].address", Shape::Text),
    key("downstream.listeners[].tls", Shape::Section),
    key("downstream.listeners[].tls.cert_file", Shape::Text),
    key("downstream.listeners[].tls.key_file", Shape::Text),
    key("downstream.listeners[].tls.client_ca_file", Shape::Text),
    key("downstream.listeners[].tls.crl_file", Shape::Text),
    key("downstream.settle", Shape::Duration(ZERO, HOUR)),
    key("downstream.settle_max", Shape::Duration(ZERO, HOUR)),
    key("downstream.cold_deadline", Shape::Duration(TICK, HOUR)),
    key("downstream.ack_timeout", Shape::Duration(TICK, HOUR)),
    key("downstream.max_connection_age", Shape::Duration(TICK, Duration::from_secs(30 * 24 * 60 * 60))),
    key("downstream.drain", Shape::Duration(ZERO, DAY)),
    key("downstream.handshake_timeout", Shape::Duration(TICK, HOUR)),
    key("downstream.first_request_timeout", Shape::Duration(TICK, HOUR)),
    key("downstream.stall_timeout", Shape::Duration(TICK, HOUR)),
    key("downstream.idle_timeout", Shape::Duration(TICK, DAY)),
    key("downstream.unacked_timeout", Shape::Duration(TICK, DAY)),
    key("downstream.keepalive", Shape::Section),
    key("downstream.keepalive.interval", Shape::Duration(TICK, DAY)),
    key("downstream.keepalive.timeout", Shape::Duration(TICK, HOUR)),
    key("downstream.max_request_bytes", Shape::Size(1, MESSAGE)),
    key("downstream.max_response_bytes", Shape::Size(1, MESSAGE)),
    key("downstream.max_name_bytes", Shape::Size(1, MESSAGE)),
    key("downstream.max_names", Shape::Count(1, 100_000_000)),
    key("downstream.max_names_per_connection", Shape::Count(1, 1_000_000_000)),
    key("downstream.max_subscription_bytes", Shape::Size(1, TIB)),
    key("downstream.max_streams_per_connection", Shape::Count(1, 1_000_000)),
    key("downstream.max_connections", Shape::Count(1, 100_000_000)),
    key("downstream.max_connections_per_address", Shape::Count(1, 100_000_000)),
    key("downstream.max_connections_per_identity", Shape::Count(1, 100_000_000)),
    key("downstream.max_buffered_request_bytes", Shape::Size(1, TIB)),
    key("downstream.max_buffered_request_bytes_per_connection", Shape::Size(1, TIB)),
    key("downstream.max_initial_version_bytes", Shape::Size(1, TIB)),
    key("downstream.max_initial_version_bytes_per_connection", Shape::Size(1, TIB)),
    key("downstream.max_unsent_bytes", Shape::Size(1, TIB)),
    key("downstream.memory", Shape::Section),
    key("downstream.memory.refuse_above", Shape::Size(0, TIB)),
    key("downstream.memory.close_above", Shape::Size(0, TIB)),
    key("downstream.trust_initial_versions_for_explicit", Shape::Flag),
    key("downstream.eds_repush_on_cds_change", Shape::Flag),
    key("downstream.resource_errors", Shape::Flag),
    key("downstream.secrets_without_authentication", Shape::Flag),
    key("downstream.secrets_over_loopback", Shape::Flag),
    key("downstream.no_legacy_wildcard", Shape::List),
    key("downstream.no_legacy_wildcard[]", Shape::Text),
    key("rest", Shape::Section),
    key("rest.hold", Shape::Duration(TICK, HOUR)),
    key("rest.idle_timeout", Shape::Duration(TICK, HOUR)),
    key("rest.max_polls_per_peer", Shape::Count(1, 100_000_000)),
    key("rest.json_bytes", Shape::Size(1, TIB)),
    key("rest.descriptor_sets", Shape::List),
    key("rest.descriptor_sets[]", Shape::Text),
    key("admin", Shape::Section),
    key("admin.address", Shape::Text),
    key("cache", Shape::Section),
    key("cache.encoded_bytes", Shape::Size(1, TIB)),
    key("cache.tombstones", Shape::Count(1, 100_000_000)),
    key("cache.max_parameter_sets", Shape::Count(1, 1_000_000)),
    key("dynamic_parameters", Shape::List),
    key("dynamic_parameters[]", Shape::Section),
    key("dynamic_parameters[].key", Shape::Text),
    key("dynamic_parameters[].from", Shape::Text),
    key("dynamic_parameters[].pattern", Shape::Text),
    key("dynamic_parameters[].default", Shape::Text),
    key("authorization", Shape::Section),
    key("authorization.default", Shape::Text),
    key("authorization.rules", Shape::List),
    key("authorization.rules[]", Shape::Section),
    key("authorization.rules[].peers", Shape::List),
    key("authorization.rules[].peers[]", Shape::Text),
    key("authorization.rules[].node_ids", Shape::List),
    key("authorization.rules[].node_ids[]", Shape::Text),
    key("authorization.rules[].clusters", Shape::List),
    key("authorization.rules[].clusters[]", Shape::Text),
    key("authorization.rules[].types", Shape::List),
    key("authorization.rules[].types[]", Shape::Text),
    key("authorization.rules[].names", Shape::List),
    key("authorization.rules[].names[]", Shape::Text),
    key("authorization.rules[].parameters", Shape::Free),
];

/// Something users may expect that this version cannot do. Deleting the row lifts the refusal.
pub(super) struct NotYet {
    pub(super) path: &'static str,
    pub(super) when: When,
    /// The subject of the message.
    pub(super) what: &'static str,
    /// What to do meanwhile.
    pub(super) instead: &'static str,
}

/// Which values of a key are refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    Present,
    /// Anything but an empty list.
    NotEmpty,
    /// From the second entry of a list on.
    Several,
}

const fn not_yet(path: &'static str, when: When, what: &'static str, instead: &'static str) -> NotYet {
    NotYet { path, when, what, instead }
}

pub(super) const NOT_YET: &[NotYet] = &[
    not_yet("snapshot", When::Present, "`snapshot`", "leave it out"),
    not_yet("groups", When::NotEmpty, "`groups`", "leave it out or write []"),
    not_yet("upstream.servers", When::Several, "a second entry in `upstream.servers`", "list one server"),
];

impl NotYet {
    pub(super) fn message(&self) -> String {
        format!("{} is not supported yet by this version; {}", self.what, self.instead)
    }

    pub(super) fn refuses(&self, tree: &Tree) -> bool {
        match (self.when, &tree.value) {
            (_, Value::Refused) => false,
            (When::Present, _) => true,
            (When::NotEmpty, Value::List(items)) => !items.is_empty(),
            (When::NotEmpty, _) => true,
            (When::Several, Value::List(items)) => items.len() > 1,
            (When::Several, _) => false,
        }
    }
}

pub(super) fn shape(path: &str) -> Option<Shape> {
    KEYS.iter().find(|key| key.path == path).map(|key| key.shape)
}

/// Every path a file may name, refused ones included.
fn paths() -> impl Iterator<Item = &'static str> {
    let refused = NOT_YET.iter().map(|row| row.path).filter(|path| shape(path).is_none());
    KEYS.iter().map(|key| key.path).chain(refused)
}

/// The keys that a section may hold.
pub(super) fn children(section: &str) -> impl Iterator<Item = &'static str> {
    paths().filter_map(move |path| {
        let name = match section {
            "" => path,
            _ => path.strip_prefix(section)?.strip_prefix('.')?,
        };
        (!name.is_empty() && !name.contains(['.', '['])).then_some(name)
    })
}

pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Which of these a word was probably meant to be.
pub(super) fn near<'k>(known: impl Iterator<Item = &'k str>, word: &str) -> Option<&'k str> {
    /// A longer word is no slip of the keyboard, and the distance of a huge one takes long to compute.
    const LONGEST: usize = 64;
    known
        .filter(|_| word.len() <= LONGEST)
        .map(|known| (strsim::osa_distance(known, word), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// What an unknown key was probably meant to be: a near name in its section, else the same name in another place.
pub(super) fn nearest(section: &str, name: &str) -> Option<String> {
    if let Some(known) = near(children(section), name) {
        return Some(known.to_owned());
    }
    let elsewhere = paths().filter(|path| !path.is_empty() && path.rsplit('.').next() == Some(name));
    elsewhere.min_by_key(|path| !path.starts_with(section)).map(str::to_owned)
}
