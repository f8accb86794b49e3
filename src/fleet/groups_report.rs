//! Node groups at their control planes, as JSON.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::admin_query::{LookError, PAGE, Query};
use crate::groups::{GroupStatus, Groups, RuleFigures};
use crate::node_group::GroupKey;
use crate::upstream::{Refusal, UpstreamState};

#[derive(Debug, Serialize)]
struct RuleReport {
    rule: String,
    groups: usize,
    clients: usize,
    protocols: ProtocolReport,
    not_connected: usize,
    /// Groups whose requests have never been answered.
    never_answered: usize,
    unanswered_subscriptions: usize,
    /// Groups whose connections or streams keep ending.
    unsteady: usize,
    refused: usize,
    newest_answer_seconds_ago: Option<f64>,
    oldest_answer_seconds_ago: Option<f64>,
    stale_seconds: f64,
}

#[derive(Debug, Serialize)]
struct ProtocolReport {
    delta: usize,
    sotw: usize,
}

#[derive(Debug, Serialize)]
struct GroupPage {
    rules: Vec<RuleReport>,
    matched: usize,
    listed: Vec<GroupReport>,
    /// `after` of the next page.
    next: Option<u64>,
}

#[derive(Debug, Serialize)]
struct GroupReport {
    /// As in `/resources`.
    group: String,
    rule: String,
    /// Values in the key; they distinguish groups with equal texts.
    values: Vec<String>,
    clients: usize,
    /// `None` until the node of a client is chosen.
    node: Option<NodeReport>,
    server: Option<String>,
    connected: bool,
    protocol: Option<&'static str>,
    last_answer_seconds_ago: Option<f64>,
    /// Since the first request.
    first_answer_awaited_seconds: f64,
    unanswered_subscriptions: usize,
    stale_seconds: f64,
    unsteady: bool,
    refused: Vec<RefusalReport>,
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct RefusalReport {
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    seconds: f64,
    error: String,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    id: String,
    /// Whether a client of the group has this node.
    of_client: bool,
    shown_seconds: Option<f64>,
}

fn rule((rule, figures): (Arc<str>, RuleFigures)) -> RuleReport {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    RuleReport {
        rule: rule.to_string(),
        groups: figures.groups,
        clients: figures.clients,
        protocols: ProtocolReport { delta: figures.delta, sotw: figures.sotw },
        not_connected: figures.not_connected,
        never_answered: figures.never_answered,
        unanswered_subscriptions: figures.unanswered_subscriptions,
        unsteady: figures.unsteady,
        refused: figures.refused,
        newest_answer_seconds_ago: seconds(figures.newest_answer),
        oldest_answer_seconds_ago: seconds(figures.oldest_answer),
        stale_seconds: figures.stale.as_secs_f64(),
    }
}

fn report(
    key: &GroupKey,
    clients: usize,
    status: GroupStatus,
    servers: &[String],
    now: Instant,
) -> GroupReport {
    let GroupStatus { state, node } = status;
    GroupReport {
        group: key.to_string(),
        rule: key.rule().to_owned(),
        values: key.values().map(str::to_owned).collect(),
        clients,
        node: node.map(|node| NodeReport {
            id: node.id,
            of_client: node.of_client_since.is_some(),
            shown_seconds: node.of_client_since.map(|at| now.saturating_duration_since(at).as_secs_f64()),
        }),
        server: servers.get(state.server).cloned(),
        connected: state.connected,
        protocol: state.protocol.map(|protocol| protocol.label()),
        last_answer_seconds_ago: state.answered_ago(now).map(|ago| ago.as_secs_f64()),
        first_answer_awaited_seconds: state.first_answer_awaited_for(now).as_secs_f64(),
        unanswered_subscriptions: state.unanswered.count,
        stale_seconds: state.held_stale_for(now).as_secs_f64(),
        unsteady: state.is_unsteady(now),
        refused: refused(&state, now),
        last_error: state.errors.get(&state.server).cloned(),
    }
}

fn refused(state: &UpstreamState, now: Instant) -> Vec<RefusalReport> {
    let report = |refusal: &Refusal| RefusalReport {
        kind: refusal.type_url.kind().short(),
        type_url: refusal.type_url.as_str().to_owned(),
        seconds: now.saturating_duration_since(refusal.since).as_secs_f64(),
        error: refusal.fault.to_string(),
    };
    state.refusals.iter().map(report).collect()
}

/// Types with a refused update and nothing usable since.
pub fn refusals(state: &UpstreamState, now: Instant) -> impl Serialize + use<> {
    refused(state, now)
}

/// Figures of the groups of each rule.
pub fn rules(groups: &Groups, now: Instant) -> impl Serialize + use<> {
    #[derive(Serialize)]
    struct Rules {
        rules: Vec<RuleReport>,
    }
    Rules { rules: groups.figures(now).into_iter().map(rule).collect() }
}

/// Figures by rule, and a page of matching groups by rule and key. `servers` are those of the configuration.
///
/// # Errors
///
/// [`LookError`] if the query is wrong.
pub fn groups(
    groups: &Groups,
    servers: &[String],
    query: &str,
    now: Instant,
) -> Result<impl Serialize + use<>, LookError> {
    let query = Query::parse(query, &["group", "limit", "after"])?;
    let (group, limit, after) = (query.pattern("group"), query.limit(PAGE)?, query.after()?);
    let mut made = groups.made();
    made.retain(|(key, ..)| group.as_ref().is_none_or(|group| group.matches(&key.to_string())));
    made.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
    let matched = made.len();
    let after = usize::try_from(after).unwrap_or(usize::MAX);
    let page = made.iter().skip(after).take(limit);
    let listed: Vec<GroupReport> = page
        .filter_map(|(key, group, clients)| Some(report(key, *clients, group.status()?, servers, now)))
        .collect();
    let end = after.saturating_add(listed.len());
    let next = (limit > 0 && end < matched).then_some(end as u64);
    let rules = groups.figures(now).into_iter().map(rule).collect();
    Ok(GroupPage { rules, matched, listed, next })
}
