//! From a text to a [`Config`]: reads each section over its defaults, then holds values against each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::errors::{ConfigErrors, Report, quoted};
use super::section::Section;
use super::tree::Value;
use super::values::{self, ListenAddress, NonEmpty, Server, Source};
use super::{
    Admin, Authorization, AuthorizationRule, Backoff, Cache, Config, DefaultAccess, Downstream,
    DynamicParameter, Glob, Keepalive, Listener, Locality, Node, PeerMatch, Rest, Upstream, apart, check,
    listener_tls, tree, upstream_tls,
};

/// `base` is where relative paths in the text start; absent or empty is the working directory.
pub(super) fn config(text: &str, origin: &str, base: Option<&Path>) -> Result<Config, ConfigErrors> {
    let report = Report::default();
    let config = tree::read(text, &report).and_then(|mut root| {
        check::document(&mut root, &report);
        if matches!(root.value, Value::Refused) {
            return None;
        }
        read(&Section::root(&root, &report), base.unwrap_or_else(|| Path::new("")))
    });
    match (report.into_errors(origin), config) {
        (None, Some(config)) => Ok(config),
        (Some(errors), _) => Err(errors),
        (None, None) => {
            debug_assert!(false, "a reader gave up without a word");
            Err(ConfigErrors::single(origin, super::Problem::new(None, "cannot be read")))
        }
    }
}

/// `None` where a problem was reported that leaves nothing to go on with.
fn read(root: &Section<'_>, base: &Path) -> Option<Config> {
    let node = node(&root.section("node"));
    let downstream = downstream(&root.section("downstream"), base);
    let rest = rest(&root.section("rest"), base);
    let admin = admin(&root.section("admin"));
    let cache = cache(&root.section("cache"));
    let dynamic_parameters = dynamic_parameters(root);
    let authorization = authorization(&root.section("authorization"));
    apart::check(root);
    let upstream = upstream(root, base)?;
    Some(Config { node, upstream, downstream, rest, admin, cache, dynamic_parameters, authorization })
}

fn node(section: &Section<'_>) -> Node {
    let mut node = Node::default();
    if let Some(id) = section.parsed("id", filled) {
        node.id = id;
    }
    if let Some(cluster) = section.parsed("cluster", filled) {
        node.cluster = cluster;
    }
    node.locality = locality(&section.section("locality"));
    section.free("metadata", &mut node.metadata);
    node
}

fn filled(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn locality(section: &Section<'_>) -> Locality {
    let mut locality = Locality::default();
    section.text("region", &mut locality.region);
    section.text("zone", &mut locality.zone);
    section.text("sub_zone", &mut locality.sub_zone);
    locality
}

fn upstream(root: &Section<'_>, base: &Path) -> Option<Upstream> {
    let section = root.section("upstream");
    // Everything else is read before a missing source ends the reading, so that its problems are told as well.
    let source = source(root, &section, base);
    let mut upstream = Upstream::new(source.clone().unwrap_or_else(|| Source::Directory(PathBuf::new())));
    section.duration("connect_timeout", &mut upstream.connect_timeout);
    section.size("max_response_bytes", &mut upstream.max_response_bytes);
    section.duration("request_interval", &mut upstream.request_interval);
    section.duration("unsubscribe_linger", &mut upstream.unsubscribe_linger);
    section.count("max_lingering_names", &mut upstream.max_lingering_names);
    section.duration("ready_wait", &mut upstream.ready_wait);
    if let Some(reconcile) = section.parsed("reconcile", str::parse) {
        upstream.reconcile = reconcile;
    }
    if let Some(locators) = section.parsed("locators", str::parse) {
        upstream.locators = locators;
    }
    upstream.backoff = backoff(&section.section("backoff"));
    upstream.keepalive = keepalive(&section.section("keepalive"));
    source.map(|_| upstream)
}

fn source(root: &Section<'_>, upstream: &Section<'_>, base: &Path) -> Option<Source> {
    match (upstream.has("servers"), upstream.has("directory")) {
        (true, true) => {
            let line = upstream.line_of("servers").max(upstream.line_of("directory"));
            root.wrong("upstream", line, "has both `servers` and `directory`; one of them is allowed");
            None
        }
        (false, false) if root.is_refused("upstream") => None,
        (false, false) if root.has("upstream") => {
            root.wrong("upstream", upstream.line(), "has no source; write `servers` or `directory`");
            None
        }
        (false, false) => {
            root.wrong("upstream", root.line(), "is missing; write it with `servers` or `directory`");
            None
        }
        (true, false) => servers(upstream, base).map(Source::Servers),
        (false, true) => {
            upstream.parsed("directory", |text| values::parse_path(text, base)).map(Source::Directory)
        }
    }
}

fn servers(upstream: &Section<'_>, base: &Path) -> Option<NonEmpty<Server>> {
    let sections = upstream.sections("servers")?;
    if sections.is_empty() {
        upstream.wrong("servers", upstream.line_of("servers"), "is empty; list one server");
    }
    NonEmpty::new(sections.iter().filter_map(|section| upstream_tls::server(section, base)).collect())
}

fn backoff(section: &Section<'_>) -> Backoff {
    let mut backoff = Backoff::default();
    let initial = section.duration("initial", &mut backoff.initial);
    let max = section.duration("max", &mut backoff.max);
    if initial && max {
        not_above(section, ("initial", backoff.initial), ("max", backoff.max));
    }
    backoff
}

fn keepalive(section: &Section<'_>) -> Keepalive {
    let mut keepalive = Keepalive::default();
    section.duration("interval", &mut keepalive.interval);
    section.duration("timeout", &mut keepalive.timeout);
    keepalive
}

fn downstream(section: &Section<'_>, base: &Path) -> Downstream {
    let mut downstream = Downstream::default();
    if let Some(listeners) = listeners(section, base) {
        downstream.listeners = listeners;
    }
    let settle = section.duration("settle", &mut downstream.settle);
    let settle_max = section.duration("settle_max", &mut downstream.settle_max);
    if settle && settle_max {
        not_above(section, ("settle", downstream.settle), ("settle_max", downstream.settle_max));
    }
    section.duration("cold_deadline", &mut downstream.cold_deadline);
    section.duration("ack_timeout", &mut downstream.ack_timeout);
    section.duration("max_connection_age", &mut downstream.max_connection_age);
    section.duration("drain", &mut downstream.drain);
    section.duration("handshake_timeout", &mut downstream.handshake_timeout);
    section.duration("first_request_timeout", &mut downstream.first_request_timeout);
    section.duration("stall_timeout", &mut downstream.stall_timeout);
    section.duration("idle_timeout", &mut downstream.idle_timeout);
    section.duration("unacked_timeout", &mut downstream.unacked_timeout);
    downstream.keepalive = keepalive(&section.section("keepalive"));
    section.size("max_request_bytes", &mut downstream.max_request_bytes);
    section.size("max_response_bytes", &mut downstream.max_response_bytes);
    section.size("max_name_bytes", &mut downstream.max_name_bytes);
    section.count("max_names", &mut downstream.max_names);
    section.count("max_names_per_connection", &mut downstream.max_names_per_connection);
    section.size("max_subscription_bytes", &mut downstream.max_subscription_bytes);
    section.count("max_streams_per_connection", &mut downstream.max_streams_per_connection);
    downstream.limits.read(section);
    section.size("max_buffered_request_bytes", &mut downstream.max_buffered_request_bytes);
    section.size(
        "max_buffered_request_bytes_per_connection",
        &mut downstream.max_buffered_request_bytes_per_connection,
    );
    section.size("max_initial_version_bytes", &mut downstream.max_initial_version_bytes);
    section.size(
        "max_initial_version_bytes_per_connection",
        &mut downstream.max_initial_version_bytes_per_connection,
    );
    section.size("max_unsent_bytes", &mut downstream.max_unsent_bytes);
    downstream.memory.read(&section.section("memory"));
    section.flag("trust_initial_versions_for_explicit", &mut downstream.trust_initial_versions_for_explicit);
    section.flag("eds_repush_on_cds_change", &mut downstream.eds_repush_on_cds_change);
    section.flag("resource_errors", &mut downstream.resource_errors);
    section.flag("secrets_without_authentication", &mut downstream.secrets_without_authentication);
    section.flag("secrets_over_loopback", &mut downstream.secrets_over_loopback);
    if let Some(types) = section.texts("no_legacy_wildcard", values::parse_type) {
        downstream.no_legacy_wildcard = types.into_iter().collect();
    }
    downstream
}

fn listeners(downstream: &Section<'_>, base: &Path) -> Option<NonEmpty<Listener>> {
    let sections = downstream.sections("listeners")?;
    if sections.is_empty() {
        downstream.wrong("listeners", downstream.line_of("listeners"), "is empty; list at least one");
    }
    let mut lines = HashMap::new();
    let mut listeners = Vec::new();
    for section in sections {
        let read = section.parsed("address", |text| ListenAddress::parse(text, base));
        let address = match read {
            Some(address) => address,
            None if section.has("address") => continue,
            None => Listener::default().address,
        };
        // Port 0 is another port each time.
        let fixed = !matches!(address, ListenAddress::Tcp(socket) if socket.port() == 0);
        let line = section.line_of("address");
        if let Some(first) = lines.insert(address.clone(), line).filter(|_| fixed) {
            let problem = format!("{} is listed on line {first} already", quoted(&address.to_string()));
            section.wrong("address", line, &problem);
        }
        let tls = section.has("tls").then(|| listener_tls::read(&section.section("tls"), base)).flatten();
        listeners.push(Listener { address, tls });
    }
    NonEmpty::new(listeners)
}

fn rest(section: &Section<'_>, base: &Path) -> Rest {
    let mut rest = Rest::default();
    section.duration("hold", &mut rest.hold);
    section.duration("idle_timeout", &mut rest.idle_timeout);
    section.count("max_polls_per_peer", &mut rest.max_polls_per_peer);
    section.size("json_bytes", &mut rest.json_bytes);
    if let Some(paths) = section.texts("descriptor_sets", |text| values::parse_path(text, base)) {
        rest.descriptor_sets = paths;
    }
    rest
}

fn admin(section: &Section<'_>) -> Admin {
    let mut admin = Admin::default();
    if let Some(address) = section.parsed("address", values::parse_socket_address) {
        admin.address = address;
    }
    admin
}

fn cache(section: &Section<'_>) -> Cache {
    let mut cache = Cache::default();
    section.size("encoded_bytes", &mut cache.encoded_bytes);
    section.count("tombstones", &mut cache.tombstones);
    section.count("max_parameter_sets", &mut cache.max_parameter_sets);
    cache
}

fn dynamic_parameters(root: &Section<'_>) -> Vec<DynamicParameter> {
    let mut lines = HashMap::new();
    let mut rules = Vec::new();
    let sections = root.sections("dynamic_parameters").unwrap_or_default();
    for section in sections.iter().filter(|section| !section.was_refused()) {
        for (name, example) in [("key", "the parameter that is given"), ("from", "what it is taken from")] {
            if !section.has(name) {
                section.wrong(name, section.line(), &format!("is missing; write {example}"));
            }
        }
        let key = section.parsed("key", filled);
        let from = section.parsed("from", str::parse);
        let pattern = section.parsed("pattern", str::parse);
        let default = section.parsed("default", |text| Ok(text.to_owned()));
        let Some(key) = key else { continue };
        let line = section.line_of("key");
        if let Some(first) = lines.insert(key.clone(), line) {
            section.wrong("key", line, &format!("{} has a rule on line {first} already", quoted(&key)));
        }
        if let Some(from) = from {
            rules.push(DynamicParameter { key, from, pattern, default });
        }
    }
    rules
}

fn authorization(section: &Section<'_>) -> Authorization {
    let mut authorization = Authorization::default();
    if let Some(default) = section.parsed("default", |text| match text {
        "allow" => Ok(DefaultAccess::Allow),
        "deny" => Ok(DefaultAccess::Deny),
        other => Err(format!("{} is neither `allow` nor `deny`", quoted(other))),
    }) {
        authorization.default = default;
    }
    for section in section.sections("rules").unwrap_or_default() {
        if section.was_refused() {
            continue;
        }
        let peers: Option<Vec<PeerMatch>> = section.texts("peers", str::parse);
        let peers = peers.unwrap_or_default();
        if section.count_of("peers") == 0 && !section.is_refused("peers") {
            let problem = "names nobody; list who the rule is about, as in [\"spiffe://mesh/ns/prod/**\"]";
            section.wrong("peers", section.line_of("peers"), problem);
        }
        let globs = |name: &str| section.texts(name, str::parse::<Glob>);
        authorization.rules.push(AuthorizationRule {
            peers,
            node_ids: globs("node_ids"),
            clusters: globs("clusters"),
            types: section.texts("types", values::parse_type).map(|types| types.into_iter().collect()),
            names: section.texts("names", Glob::of_names),
            parameters: allowed_parameters(&section),
        });
    }
    authorization
}

/// Lists of values by key. A number or a flag counts as it is written in a node's metadata.
fn allowed_parameters(rule: &Section<'_>) -> BTreeMap<String, BTreeSet<String>> {
    const NAME: &str = "parameters";
    let mut given = serde_json::Map::new();
    rule.free(NAME, &mut given);
    let wrong = |key: &str, problem: &str| {
        rule.wrong(NAME, rule.line_of(NAME), &format!("{}: {problem}", quoted(key)));
    };
    let mut allowed = BTreeMap::new();
    for (key, list) in given {
        let Some(items) = list.as_array().filter(|items| !items.is_empty()) else {
            wrong(&key, "write a list of the values that are allowed, as in [prod, canary]");
            continue;
        };
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => Some(text.clone()),
            serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Some(value.to_string()),
            _ => None,
        };
        match items.iter().map(text).collect::<Option<BTreeSet<String>>>() {
            Some(values) => drop(allowed.insert(key, values)),
            None => wrong(&key, "a value is a text, a number, true or false"),
        }
    }
    allowed
}

/// Reported where the file sets the lower one, else where it sets the upper one: the other may be a default.
fn not_above(section: &Section<'_>, lower: (&str, Duration), upper: (&str, Duration)) {
    if lower.1 <= upper.1 {
        return;
    }
    let line = section.line_of(if section.has(lower.0) { lower.0 } else { upper.0 });
    let [low, high] = [lower.1, upper.1].map(super::units::format_duration);
    section.wrong(lower.0, line, &format!("`{low}` is above `{}`, which is `{high}`", upper.0));
}
