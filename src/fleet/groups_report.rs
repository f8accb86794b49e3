//! Node groups at their control planes, and their rollouts, as JSON.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::view::{
    Document, LookError, NameRow, Page, Query, TypeName, View, document, in_seconds, row, seconds, text_of,
};
use crate::cache::{HeldChange, Phase, Rollout, RolloutStatus, StandingOrder};
use crate::groups::{Groups, ShownNode};
use crate::node_group::GroupKey;
use crate::resource::Name;
use crate::upstream::{Refusal, UpstreamState};
use crate::utc;

row! {
    struct GroupRow(
        key: &GroupKey, present: usize, at: &UpstreamState, shown: Option<ShownNode>, servers: &[String], now: Instant
    ) {
        /// As in `/resources`.
        group: String = key.to_string(),
        rule: String = key.rule().to_owned(),
        /// Values in the key; they distinguish groups with equal texts.
        values: Vec<String> = key.values().map(str::to_owned).collect(),
        clients: usize = present,
        /// `None` until the node of a client is chosen.
        node: Option<Json> = shown.map(|node| json!({
            "id": node.id,
            "of_client": node.of_client_since.is_some(),
            "shown_seconds": node.of_client_since.map(|since| seconds(since, now)),
        })),
        server: Option<String> = servers.get(at.server).cloned(),
        connected: bool = at.connected,
        protocol: Option<&'static str> = at.protocol.map(|protocol| protocol.label()),
        last_answer_seconds_ago: Option<f64> = in_seconds(at.answered_ago(now)),
        /// Since the first request.
        first_answer_awaited_seconds: f64 = at.first_answer_awaited_for(now).as_secs_f64(),
        unanswered_subscriptions: usize = at.unanswered.count,
        stale_seconds: f64 = at.held_stale_for(now).as_secs_f64(),
        unsteady: bool = at.is_unsteady(now),
        refused: Json = refusals(at, now),
        last_error: Option<String> = at.errors.get(&at.server).cloned(),
    }
}

row! {
    struct RolloutRow(key: Option<String>, of: &RolloutStatus) {
        /// `None` in the own group.
        group: Option<String> = key,
        phase: &'static str = match of.phase {
            Phase::Idle => "idle",
            Phase::Gathering => "gathering",
            Phase::Trying { .. } => "trying",
            Phase::Held => "held",
        },
        /// Time until the step ends.
        #[serde(skip_serializing_if = "Option::is_none")]
        seconds_left: Option<f64> = match of.phase {
            Phase::Trying { left, .. } => Some(left.as_secs_f64()),
            _ => None,
        },
        /// Step of the trial, from 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        step: Option<u8> = match of.phase {
            Phase::Trying { step, .. } => Some(step),
            _ => None,
        },
        canaries: usize = of.canaries,
        trying: usize = of.tried,
        waiting: usize = of.waiting,
        /// Changes of types that an operator put on hold.
        on_hold: usize = of.on_hold,
        /// Trials in a row that no canary has answered.
        unanswered: usize = of.unanswered,
        /// Why changes are held: `rejected` by canaries, or too many `removals`.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'static str> =
            (!of.held.is_empty()).then_some(if of.is_braked { "removals" } else { "rejected" }),
        /// Time since the trial failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        held_seconds: Option<f64> = in_seconds(of.held_for),
        /// Whether canaries are sent parts of the held changes, to find the bad ones.
        searching: bool = of.is_searching,
        held: Vec<HeldRow> = of.held.iter().map(HeldRow::new).collect(),
        /// Orders in force.
        orders: Vec<OrderRow> = of.orders.iter().map(OrderRow::new).collect(),
    }
}

row! {
    struct OrderRow(of: &StandingOrder) {
        order: &'static str = of.kind.label(),
        #[serde(flatten)]
        kind: TypeName = TypeName::new(&of.type_url),
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String> = of.name.as_ref().map(Name::to_string),
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<String> = text_of(&of.parameters),
        /// Restored version; absent if the resource did not exist then.
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<String> = of.version.as_deref().map(str::to_owned),
        since: String = utc::seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(of.note.at)),
        by: String = of.note.by.to_string(),
    }
}

row! {
    struct HeldRow(of: &HeldChange) {
        #[serde(flatten)]
        name: NameRow = NameRow::new(&of.type_url, &of.name),
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<String> = text_of(&of.parameters),
        /// Rejected version; `None` for a removal.
        version: Option<Box<str>> = of.version.clone(),
        accepted: usize = of.accepted,
        rejected: usize = of.rejected,
        texts: Vec<String> = of.texts.iter().map(|text| (**text).to_owned()).collect(),
    }
}

/// Types with a refused update and nothing usable since.
pub fn refusals(state: &UpstreamState, now: Instant) -> Json {
    let refusal = |of: &Refusal| {
        json!({
            "type": of.type_url.kind().short(),
            "type_url": of.type_url.as_str(),
            "seconds": seconds(of.since, now),
            "error": of.fault.to_string(),
        })
    };
    state.refusals.iter().map(refusal).collect()
}

impl View<'_> {
    /// Figures by rule, and a page of matching groups by rule and key. `servers` are those of the configuration.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is wrong.
    pub fn node_groups(&self, servers: &[String], query: &str) -> Result<impl Serialize + use<>, LookError> {
        let query = Query::parse(query, &["group", "limit", "after"])?;
        let (group, mut page) = (query.pattern("group"), Page::new("listed", &query)?);
        let mut made = self.groups.made();
        made.retain(|(key, ..)| group.matches(&key.to_string()));
        made.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        page.figures = vec![("rules", json!(self.groups.figures(self.now))), ("matched", json!(made.len()))];
        for (place, (key, group, clients)) in (1..).zip(&made) {
            if let Some(state) = group.origin().state() {
                let row = || GroupRow::new(key, *clients, &state, group.shown_node(), servers, self.now);
                page.offer(place, row);
            }
        }
        Ok(page)
    }

    /// Changes on trial or held, of each group.
    ///
    /// # Errors
    ///
    /// As of [`document`].
    pub fn rollouts(&self) -> Document {
        let rollouts = rollouts_of(self.groups, None);
        let row = |(key, rollout): (_, Arc<Rollout>)| RolloutRow::new(key, &rollout.status(self.now));
        document(&rollouts.map(row).collect::<Vec<_>>())
    }
}

/// None without guarded types.
pub fn rollouts_of(
    groups: &Groups,
    only: Option<&str>,
) -> impl Iterator<Item = (Option<String>, Arc<Rollout>)> {
    let chosen = groups.chosen(only).into_iter();
    chosen.filter_map(|(key, group)| Some((key, Arc::clone(group.cache().rollout()?))))
}
