//! Node groups at their control planes, and their rollouts, as JSON.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::view::{Document, LookError, Page, Query, View, document, row, seconds};
use crate::cache::{OrderKind, Protocol, Rollout, RolloutStatus, StandingOrder};
use crate::groups::{Groups, ShownNode};
use crate::node_group::GroupKey;
use crate::resource::{Name, Parameters, TypeUrl};
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
        protocol: Option<Protocol> = at.protocol,
        last_answer_seconds_ago: Option<f64> = at.answered_ago(now).map(|ago| ago.as_secs_f64()),
        /// Since the first request.
        first_answer_awaited_seconds: f64 = at.first_answer_awaited_for(now).as_secs_f64(),
        unanswered_subscriptions: usize = at.unanswered.count,
        stale_seconds: f64 = at.held_stale_for(now).as_secs_f64(),
        unsteady: bool = at.is_unsteady(now),
        refused: Json = refusals(at, now),
        last_error: Option<String> = at.errors.get(&at.server).cloned(),
    }
}

/// Of one node group; `None` is the own one.
#[derive(Serialize)]
struct RolloutRow {
    group: Option<String>,
    #[serde(flatten)]
    status: RolloutStatus,
    orders: Vec<OrderRow>,
}

row! {
    struct OrderRow(of: &StandingOrder) {
        order: OrderKind = of.kind,
        #[serde(flatten)]
        type_url: TypeUrl = of.type_url.clone(),
        name: Option<Name> = of.name.clone(),
        parameters: Parameters = of.parameters.clone(),
        /// Restored version; absent if the resource did not exist then.
        version: Option<Arc<str>> = of.version.clone(),
        since: String = of_order(of),
        by: Arc<str> = Arc::clone(&of.note.by),
    }
}

/// Time of an order, in UTC.
pub fn of_order(order: &StandingOrder) -> String {
    utc::seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(order.note.at))
}

/// Types with a refused update and nothing usable since.
pub fn refusals(state: &UpstreamState, now: Instant) -> Json {
    let refusal = |of: &Refusal| {
        let (kind, type_url) = (of.type_url.kind(), of.type_url.as_str());
        json!({"type": kind, "type_url": type_url, "seconds": seconds(of.since, now), "error": of.fault})
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
        let (group, mut page) = (query.pattern("group")?, Page::new("listed", &query)?);
        let mut made = self.groups.made();
        made.retain(|(key, ..)| group.is_match(&key.to_string()));
        made.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        page.figures = json!({ "rules": self.groups.figures(self.now), "matched": made.len() });
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
        let row = |(group, rollout): (_, Arc<Rollout>)| {
            let status = rollout.status(self.now);
            RolloutRow { group, orders: status.orders.iter().map(OrderRow::new).collect(), status }
        };
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
