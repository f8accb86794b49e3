//! Guarded rollouts, as the admin address shows and directs them.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::cache::{HeldChange, Order, Phase, Rollout, RolloutStatus};
use crate::groups::Groups;
use crate::telemetry::{self, RolloutFigures};

#[derive(Debug, Serialize)]
pub(super) struct RolloutReport {
    /// `None` in the own group.
    group: Option<String>,
    phase: &'static str,
    /// Time until the trial ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<f64>,
    canaries: usize,
    trying: usize,
    waiting: usize,
    /// Trials in a row that no canary has answered.
    unanswered: usize,
    /// Why changes are held: `rejected` by canaries, or too many `removals`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// Canaries are sent parts of the held changes, to find the bad ones.
    searching: bool,
    held: Vec<HeldReport>,
    discarded: Vec<DiscardedReport>,
}

#[derive(Debug, Serialize)]
struct HeldReport {
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<String>,
    /// Rejected version; `None` for a removal.
    version: Option<Box<str>>,
    accepted: usize,
    rejected: usize,
    texts: Vec<Box<str>>,
}

#[derive(Debug, Serialize)]
struct DiscardedReport {
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    name: String,
}

impl RolloutReport {
    fn new(group: Option<String>, status: RolloutStatus) -> Self {
        let (phase, left) = match status.phase {
            Phase::Idle => ("idle", None),
            Phase::Gathering => ("gathering", None),
            Phase::Trying { left } => ("trying", Some(left.as_secs_f64())),
            Phase::Held => ("held", None),
        };
        let held = |change: HeldChange| HeldReport {
            kind: change.type_url.kind().short(),
            type_url: change.type_url.as_str().to_owned(),
            name: change.name.to_string(),
            parameters: (!change.parameters.is_empty()).then(|| change.parameters.to_string()),
            version: change.version,
            accepted: change.accepted,
            rejected: change.rejected,
            texts: change.texts.iter().map(|text| Box::from(&**text)).collect(),
        };
        let discarded = status.discarded.into_iter().map(|(type_url, name)| DiscardedReport {
            kind: type_url.kind().short(),
            type_url: type_url.as_str().to_owned(),
            name: name.to_string(),
        });
        Self {
            group,
            phase,
            seconds_left: left,
            canaries: status.canaries,
            trying: status.tried,
            waiting: status.waiting,
            unanswered: status.unanswered,
            reason: (!status.held.is_empty()).then_some(if status.is_braked {
                "removals"
            } else {
                "rejected"
            }),
            searching: status.is_searching,
            held: status.held.into_iter().map(held).collect(),
            discarded: discarded.collect(),
        }
    }
}

fn all(groups: &Groups, only: Option<&str>) -> impl Iterator<Item = (Option<String>, Arc<Rollout>)> {
    groups
        .chosen(only)
        .into_iter()
        .filter_map(|(key, group)| Some((key, Arc::clone(group.cache().rollout()?))))
}

/// Rollouts of all groups; none without guarded types.
pub(super) fn report(groups: &Groups, now: Instant) -> Vec<RolloutReport> {
    all(groups, None).map(|(group, rollout)| RolloutReport::new(group, rollout.status(now))).collect()
}

/// Releases or discards held changes, in all groups or in one. Returns the groups that held any; `None` is
/// the own group.
pub(super) fn order(groups: &Groups, only: Option<&str>, order: Order) -> Vec<Option<String>> {
    let ordered = all(groups, only).filter(|(_, rollout)| rollout.order(order));
    ordered.map(|(group, _)| group).collect()
}

pub(super) fn report_metrics(groups: &Groups, now: Instant) {
    let mut figures = RolloutFigures::default();
    let mut counts = None;
    for (_, rollout) in all(groups, None) {
        let status = rollout.status(now);
        figures.canaries += status.canaries;
        figures.trying += status.tried;
        figures.waiting += status.waiting;
        figures.held += status.held.len();
        figures.discarded += status.discarded.len();
        counts = Some(Arc::clone(rollout.counts()));
    }
    if let Some(counts) = counts {
        telemetry::report_rollouts(figures, &counts);
    }
}
