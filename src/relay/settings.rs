//! Settings of each part, derived from the configuration.

use std::collections::BTreeSet;

use crate::cache;
use crate::config::{self, AuthorizationRule, Config, DefaultAccess, Glob, PeerMatch, Source};
use crate::downstream::{AdmissionLimits, AuthzPolicy, Policy, PollLimits, TransportLimits};
use crate::identity::PeerPattern;
use crate::resource::{Pattern, Patterns, Scope, TypeUrl};
use crate::subscription::{self, Given, Grant, Rules};
use crate::upstream::Tuning;

pub(super) fn cache_limits(config: &Config) -> cache::Limits {
    cache::Limits {
        encoded_bytes: config.cache.encoded_bytes,
        tombstones: config.cache.tombstones,
        parameter_sets: config.cache.max_parameter_sets,
        response_bytes: config.downstream.max_response_bytes,
        ..cache::Limits::default()
    }
}

pub(super) fn policy(config: &Config) -> Policy {
    let Config { downstream, rest, .. } = config;
    let polls =
        PollLimits { hold: rest.hold, idle_timeout: rest.idle_timeout, per_peer: rest.max_polls_per_peer };
    Policy::new(authz(config), limits(downstream), polls, downstream.drain)
}

/// Settings of the source that may change while it runs.
pub(super) const fn tuning(config: &Config) -> Tuning {
    Tuning {
        settle: config.downstream.settle,
        settle_max: config.downstream.settle_max,
        resource_errors: config.downstream.resource_errors,
        eds_repush: config.downstream.eds_repush_on_cds_change,
    }
}

/// Rules for all peers.
fn base_rules(config: &Config) -> Rules {
    let downstream = &config.downstream;
    Rules {
        ack_timeout: downstream.ack_timeout,
        cold_deadline: downstream.cold_deadline,
        dead_unnoticed: config.upstream.keepalive.interval + config.upstream.keepalive.timeout,
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
        observers: matches!(config.upstream.source, Source::Servers(_)),
        given: given(config),
        ..Rules::default()
    }
}

/// Rules by peer.
fn authz(config: &Config) -> AuthzPolicy {
    let authorization = &config.authorization;
    let rules = authorization.rules.iter().map(|rule| {
        let peers = rule.peers.iter().map(|peer| match peer {
            PeerMatch::SpiffeId(glob) => PeerPattern::SpiffeId(pattern(glob)),
            PeerMatch::DnsName(glob) => PeerPattern::DnsName(pattern(glob)),
            PeerMatch::Subject(glob) => PeerPattern::Subject(pattern(glob)),
            PeerMatch::Network(network) => PeerPattern::Network(*network),
            PeerMatch::Unix => PeerPattern::Unix,
        });
        (peers.collect(), grant(rule))
    });
    let rest = match authorization.default {
        DefaultAccess::Allow => Grant::default(),
        DefaultAccess::Deny => Grant::nothing(),
    };
    AuthzPolicy::new(&base_rules(config), rules.collect(), rest)
        .trusting_loopback(config.downstream.secrets_over_loopback)
}

fn grant(rule: &AuthorizationRule) -> Grant {
    let patterns = |globs: &Vec<Glob>| globs.iter().map(pattern).collect::<Patterns>();
    let names = |globs: &Vec<Glob>| {
        globs.iter().map(|glob| pattern(glob).of_names(glob.xdstp().cloned())).collect::<Patterns>()
    };
    let values = |values: &BTreeSet<String>| values.iter().map(|value| value.as_str().into()).collect();
    let types = |types: &BTreeSet<String>| types.iter().map(|url| TypeUrl::from(url.as_str())).collect();
    Grant {
        nothing: false,
        node_ids: rule.node_ids.as_ref().map(patterns),
        clusters: rule.clusters.as_ref().map(patterns),
        types: rule.types.as_ref().map(types),
        names: rule.names.as_ref().map(names).map_or(Scope::ALL, Scope::only),
        parameters: rule
            .parameters
            .iter()
            .map(|(key, allowed)| (key.as_str().into(), values(allowed)))
            .collect(),
    }
}

fn pattern(glob: &Glob) -> Pattern {
    Pattern::new(glob.text(), glob.whole().clone())
}

/// Rules that give dynamic parameters to clients that send none. A value longer than a name may be counts as
/// absent.
pub fn given(config: &Config) -> Given {
    let rule = |rule: &config::DynamicParameter| subscription::Rule {
        key: rule.key.as_str().into(),
        from: match &rule.from {
            config::NodeField::Id => subscription::NodeField::Id,
            config::NodeField::Cluster => subscription::NodeField::Cluster,
            config::NodeField::Region => subscription::NodeField::Region,
            config::NodeField::Zone => subscription::NodeField::Zone,
            config::NodeField::SubZone => subscription::NodeField::SubZone,
            config::NodeField::UserAgentName => subscription::NodeField::UserAgentName,
            config::NodeField::SpiffeId => subscription::NodeField::SpiffeId,
            config::NodeField::Metadata(path) => subscription::NodeField::Metadata(path.clone()),
        },
        pattern: rule.pattern.as_ref().map(|pattern| pattern.whole().clone()),
        default: rule.default.as_deref().map(Into::into),
    };
    Given::new(config.dynamic_parameters.iter().map(rule).collect(), config.downstream.max_name_bytes)
}

pub(super) const fn admission_limits(limits: &config::ConnectionLimits) -> AdmissionLimits {
    AdmissionLimits {
        max_connections: limits.max_connections,
        max_connections_per_address: limits.max_connections_per_address,
        max_connections_per_identity: limits.max_connections_per_identity,
    }
}

fn limits(downstream: &config::Downstream) -> TransportLimits {
    TransportLimits {
        max_request_bytes: downstream.max_request_bytes,
        first_request_timeout: downstream.first_request_timeout,
        max_streams_per_connection: downstream.max_streams_per_connection,
        stall_timeout: downstream.stall_timeout,
        idle_timeout: downstream.idle_timeout,
        max_connection_age: downstream.max_connection_age,
        keepalive_interval: downstream.keepalive.interval,
        keepalive_timeout: downstream.keepalive.timeout,
    }
}
