//! Settings of each part of the program, from a configuration.
//!
//! The parts do not know the configuration: their settings differ in names, groups or units, or combine
//! several keys. A configuration struct that fits is the setting itself.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_128;

use crate::RelayIdentity;
use crate::cache;
use crate::config::{self, AuthorizationRule, Config, DefaultAccess};
use crate::downstream::Policy;
use crate::node_group::{GroupRules, NodeMatch};
use crate::proto;
use crate::resource::{Pattern, Patterns, Scope};
use crate::snapshot::SnapshotSettings;
use crate::snapshot_content::Selection;
use crate::subscription::{self, NodeParameterRules, Permissions, SessionConfig};
use crate::upstream::{FailoverTimes, LivenessTimes, Settings, Transport, Tuning};

pub(super) fn cache_limits(config: &Config) -> cache::Limits {
    cache::Limits {
        encoded_bytes: config.cache.encoded_bytes,
        tombstones: config.cache.tombstones,
        parameter_sets: config.cache.max_parameter_sets,
        response_bytes: config.downstream.max_response_bytes,
        ..cache::Limits::default()
    }
}

/// Guard of changes; `None` if all clients receive them at once.
///
/// # Errors
///
/// `rollout.key_file` is unreadable or too short.
pub fn rollout_settings(config: &Config) -> anyhow::Result<Option<cache::RolloutSettings>> {
    let config::Rollout { types, canaries, key_file, window, threshold, max_removed, report, .. } =
        &config.rollout;
    let key =
        key_file.as_deref().map_or_else(|| Ok(rand::random()), canary_key).context("rollout.key_file")?;
    let max_value_bytes = config.downstream.max_name_bytes;
    let named = canaries.as_ref().map(|of| NodeMatch::new(of.conditions.clone(), max_value_bytes));
    let shares = config.rollout.shares().map(config::Percent::ratio).collect();
    Ok((!types.is_empty()).then_some(cache::RolloutSettings {
        types: types.clone(),
        named,
        shares,
        key,
        window: *window,
        threshold: threshold.ratio(),
        max_removed: max_removed.map(config::Percent::ratio),
        reports: *report == config::HoldReport::Nack,
        counts: std::sync::Arc::default(),
    }))
}

fn canary_key(file: &Path) -> anyhow::Result<[u8; 16]> {
    let secret = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    // A line end may be of an editor.
    let secret = secret.trim_ascii();
    anyhow::ensure!(secret.len() >= 16, "{} has {} bytes; write at least 16", file.display(), secret.len());
    Ok(xxh3_128(secret).to_be_bytes())
}

pub(super) fn policy(config: &Config) -> Policy {
    let authorization = &config.authorization;
    let granted = authorization.rules.iter().map(|rule| (rule.peers.clone(), grant(rule)));
    let rest = match authorization.default {
        DefaultAccess::Allow => Permissions::default(),
        DefaultAccess::Deny => Permissions::nothing(),
    };
    Policy::new(&base_rules(config), granted, rest, config.downstream.clone(), config.rest.clone())
}

pub(super) const fn tuning(config: &Config) -> Tuning {
    Tuning {
        settle: config.downstream.settle,
        settle_max: config.downstream.settle_max,
        resource_errors: config.downstream.resource_errors,
        eds_repush: config.downstream.eds_repush_on_cds_change,
        prefetch_endpoints: config.upstream.prefetch_endpoints,
    }
}

/// Time in which this relay, or one downstream with default times, notices that a control plane is gone.
fn detection_time(keepalive: &config::UpstreamKeepalive) -> Duration {
    let LivenessTimes { after, timeout } = liveness(keepalive);
    (after + timeout).max(SessionConfig::default().detection_time)
}

/// Times of the health check of a silent control plane.
pub(super) fn liveness(keepalive: &config::UpstreamKeepalive) -> LivenessTimes {
    LivenessTimes { timeout: keepalive.timeout, ..LivenessTimes::default() }
}

pub(super) const fn failover(failover: &config::Failover) -> FailoverTimes {
    FailoverTimes { after: failover.after, return_after: failover.return_after }
}

fn base_rules(config: &Config) -> SessionConfig {
    let downstream = &config.downstream;
    SessionConfig {
        ack_timeout: downstream.ack_timeout,
        warm_wait: downstream.make_before_break.wait,
        cold_deadline: downstream.cold_deadline,
        detection_time: detection_time(&config.upstream.keepalive),
        settle: downstream.settle,
        no_legacy_wildcard: downstream.no_legacy_wildcard.clone(),
        trust_initial_versions: downstream.trust_initial_versions_for_explicit,
        eds_repush: downstream.eds_repush_on_cds_change,
        serve_secrets: downstream.secrets_without_authentication,
        max_name_bytes: downstream.max_name_bytes,
        max_names: downstream.max_names,
        max_connection_names: downstream.max_names_per_connection,
        max_subscription_bytes: downstream.max_subscription_bytes,
        unacked_timeout: downstream.unacked_timeout,
        observers: config.upstream.directory.is_none(),
        given: given(config),
        ..SessionConfig::default()
    }
}

fn grant(rule: &AuthorizationRule) -> Permissions {
    let patterns = |patterns: &Vec<Pattern>| patterns.iter().cloned().collect::<Patterns>();
    Permissions {
        nothing: false,
        node_ids: rule.node_ids.as_ref().map(patterns),
        clusters: rule.clusters.as_ref().map(patterns),
        types: rule.types.clone(),
        names: rule.names.as_ref().map(patterns).map_or(Scope::ALL, Scope::only),
        parameters: rule.parameters.clone(),
    }
}

/// Rules for clients without dynamic parameters. A value longer than a name may be counts as missing.
pub fn given(config: &Config) -> NodeParameterRules {
    let rule = |rule: &config::DynamicParameter| subscription::Rule {
        key: rule.key.as_str().into(),
        from: rule.from.clone(),
        pattern: rule.pattern.as_ref().map(|pattern| pattern.regex().clone()),
        default: rule.default.as_deref().map(Into::into),
    };
    NodeParameterRules::new(
        config.dynamic_parameters.iter().map(rule).collect(),
        config.downstream.max_name_bytes,
    )
}

/// Rules that place clients in node groups. Values are bounded as names are.
pub fn group_rules(config: &Config) -> GroupRules {
    // A rule with faults is in no configuration.
    let rules = config.groups.rules.iter().filter_map(|rule| rule.rule().ok()).collect();
    GroupRules::new(rules, config.groups.default, own_node(config), config.downstream.max_name_bytes)
}

/// Settings of the relay as a client, without those of [`tuning`].
pub(super) fn upstream(config: &Config) -> Settings {
    let upstream = &config.upstream;
    Settings {
        node: own_node(config),
        identity: identity(config),
        linger: upstream.unsubscribe_linger,
        max_lingering: upstream.max_lingering_names,
        request_interval: upstream.request_interval,
        same_versions: upstream.failover.same_versions,
        locators: upstream.locators,
        ..Settings::default()
    }
}

/// Name of this process among relays. Replicas may share a configuration, and so a `node.id`.
pub(super) fn identity(config: &Config) -> RelayIdentity {
    static INSTANCE: LazyLock<u32> = LazyLock::new(rand::random);
    RelayIdentity::new(&config.node.id, *INSTANCE)
}

/// URIs of the servers; none for a directory.
pub(super) fn servers(config: &Config) -> Vec<String> {
    config.upstream.servers.iter().map(|server| server.uri.to_string()).collect()
}

/// Settings of the snapshot, if any.
pub(super) fn snapshot(config: &Config) -> Option<SnapshotSettings> {
    let folder = config.snapshot.path.clone()?;
    let selection = Selection { secrets: config.snapshot.secrets };
    Some(SnapshotSettings { folder, max_groups: config.groups.max, selection })
}

pub(super) const fn transport(upstream: &config::Upstream) -> Transport {
    Transport {
        connect_timeout: upstream.connect_timeout,
        keepalive_interval: upstream.keepalive.interval,
        keepalive_timeout: upstream.keepalive.timeout,
    }
}

/// The relay's own node, with its metadata as protobuf.
pub fn own_node(config: &Config) -> proto::Node {
    let config::Node { id, cluster, locality, metadata } = &config.node;
    proto::Node {
        id: id.clone(),
        cluster: cluster.clone(),
        metadata: proto::structure(metadata).encode_to_vec().into(),
        locality: Some(proto::Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            sub_zone: locality.sub_zone.clone(),
        }),
        user_agent_name: subscription::USER_AGENT.to_owned(),
        user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        // Without it a conforming control plane sends no TTLs (R-TTL-07).
        client_features: vec!["xds.config.supports-resource-ttl".to_owned()],
    }
}

/// Own node for operators, without metadata, which may be long.
pub(super) fn shown_node(config: &Config) -> serde_json::Value {
    let (node, locality) = (&config.node, &config.node.locality);
    serde_json::json!({
        "id": node.id,
        "cluster": node.cluster,
        "locality": { "region": locality.region, "zone": locality.zone, "sub_zone": locality.sub_zone },
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// The parts have defaults of their own, for tests that read no file. Other ones than those of the keys would have these
    /// tests show a relay that nobody runs.
    #[test]
    fn the_defaults_of_the_parts_are_those_of_the_keys() {
        fn same<T: Debug>(of_keys: T, of_part: T) {
            assert_eq!(format!("{of_keys:#?}"), format!("{of_part:#?}"));
        }
        let mut config = Config::parse("upstream: {servers: [{uri: \"http://a:1\"}]}", "f").unwrap();
        // By default as much as the machine allows.
        config.cache.encoded_bytes = cache::Limits::default().encoded_bytes;
        same(cache_limits(&config), cache::Limits::default());
        same(base_rules(&config), SessionConfig { given: given(&config), ..SessionConfig::default() });
        let (node, identity) = (own_node(&config), identity(&config));
        same(upstream(&config), Settings { node, identity, ..Settings::default() });
        same(transport(&config.upstream), Transport::default());
        assert_eq!(Tuning::default().eds_repush, SessionConfig::default().eds_repush);
    }
}
