//! Orders that operators post to the admin address.
//!
//! Owns their paths, parameters and log lines. Others carry them out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde_json::json;

use super::relay_status::RelayStatus;
use crate::cache::{Note, Order};
use crate::fleet::{Document, GroupStates, LookError, Query, clip, document, earlier_states};
use crate::groups::Origin;
use crate::resource::Name;

/// Keys of the query of an order; `None` for any other path.
fn keys(path: &str) -> Option<&'static [&'static str]> {
    match path {
        "/rollout/hold" | "/rollout/release" | "/rollout/discard" => Some(&["type", "group", "by"]),
        "/rollout/restore" => Some(&["type", "name", "version", "at", "group", "by"]),
        "/log" => Some(&["level"]),
        "/refresh" => Some(&["type", "name", "group"]),
        "/drain" => Some(&[]),
        _ => to_disconnect(path).map(|_| &[][..]),
    }
}

fn to_disconnect(path: &str) -> Option<&str> {
    path.strip_prefix("/clients/")?.strip_suffix("/disconnect")
}

pub(super) fn is_order(path: &str) -> bool {
    keys(path).is_some()
}

/// Follows an order; `None` for any other path.
pub(super) fn follow(status: &RelayStatus, path: &str, query: &str, peer: SocketAddr) -> Option<Document> {
    let keys = keys(path)?;
    if !query.is_empty() && !query.contains('=') {
        // A slip, and not the own group, which an empty `group` stands for.
        return Some(Err(LookError::Wrong(format!("`{}` has no value", clip(query)))));
    }
    Some(Query::parse(query, keys).and_then(|query| match path {
        "/rollout/hold" | "/rollout/release" | "/rollout/discard" => {
            decide(status, path.trim_start_matches("/rollout/"), &query, peer)
        }
        "/rollout/restore" => restore(status, &query, peer),
        "/drain" => drain(status),
        "/log" => log(status, query.get("level")),
        "/refresh" => refresh(status, &query),
        _ => disconnect(status, to_disconnect(path).unwrap_or_default()),
    }))
}

/// Time and author of an order: the peer, and what it says of itself.
fn note(query: &Query<'_>, peer: SocketAddr) -> Note {
    const LONGEST: usize = 100;
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let by = query.get("by").map_or_else(
        || peer.ip().to_string(),
        |by| format!("{} ({})", peer.ip(), by.chars().take(LONGEST).collect::<String>()),
    );
    Note { at, by: by.into() }
}

/// Gives the groups of a query this order. Answers with those that had something to order.
fn decide(status: &RelayStatus, what: &str, query: &Query<'_>, peer: SocketAddr) -> Document {
    let (of, note, now) = (query.type_url()?, note(query, peer), Instant::now());
    let order = match what {
        "hold" => Order::Hold(of, note.clone()),
        "release" => Order::Release(of),
        _ => Order::Discard(of, note.clone()),
    };
    let chosen = status.groups.chosen(query.get("group")).into_iter();
    let ordered = chosen.filter(|(_, group)| group.cache().order(order.clone(), now));
    let ordered: Vec<_> = ordered.map(|(key, _)| key).collect();
    if ordered.is_empty() {
        let why = match what {
            "hold" => "no such node group, or the type is not in `rollout.types`",
            _ => "nothing is held",
        };
        return Err(LookError::Missing(format!("{why}; GET /rollout shows what is on trial or held")));
    }
    log_order(what, query, &ordered, &note);
    document(&json!({ "groups": ordered }))
}

fn restore(status: &RelayStatus, query: &Query<'_>, peer: SocketAddr) -> Document {
    let (note, now, mut ordered, mut restored) = (note(query, peer), Instant::now(), Vec::new(), 0);
    for GroupStates { group, of, states } in earlier_states(&status.groups, query)? {
        restored += states.len();
        of.cache().order(Order::Restore(states, note.clone()), now);
        ordered.push(group);
    }
    log_order("restore", query, &ordered, &note);
    document(&json!({ "groups": ordered, "restored": restored }))
}

fn log_order(order: &str, query: &Query<'_>, groups: &[Option<String>], note: &Note) {
    let of = query.type_url().ok().flatten();
    let kind = of.as_ref().map_or("all", |of| of.kind().short());
    let [name, version, at] = ["name", "version", "at"].map(|key| query.get(key).unwrap_or_default());
    tracing::info!(
        order,
        kind,
        name,
        version,
        at,
        by = clip(&note.by),
        ?groups,
        "an operator gave the rollout guard an order"
    );
}

/// As Envoy's `drain_listeners?graceful`: like SIGTERM, but the process goes on.
fn drain(status: &RelayStatus) -> Document {
    let (drain, window) = (&status.drain, status.drain.window());
    let is_first = drain.begin();
    if is_first {
        tracing::info!(?window, "draining, as an operator ordered (POST /drain); SIGTERM ends the process");
        let drain = Arc::clone(drain);
        let drains = async move {
            drain.run().await;
            tracing::info!("drained; SIGTERM ends the process");
        };
        tokio::spawn(status.everything.clone().run_until_cancelled_owned(drains));
    }
    document(&json!({ "state": "DRAINING", "window_seconds": window.as_secs_f64(), "began": is_first }))
}

fn disconnect(status: &RelayStatus, id: &str) -> Document {
    let client = id.parse().ok().and_then(|id| status.fleet.connection_of(id));
    let closed = client.filter(|(number, _)| status.drain.connections.close_one(*number));
    let (connection, node) = closed.ok_or_else(LookError::no_client)?;
    tracing::info!(
        client = id,
        connection,
        node,
        "closing the connection of a client, as an operator ordered"
    );
    document(&json!({ "connection": connection, "node": node }))
}

fn log(status: &RelayStatus, level: Option<&str>) -> Document {
    let without = || LookError::Wrong("`level` is missing: /log?level=debug".to_owned());
    let fixed = || LookError::Failed("the log of this process has no level that can be changed".to_owned());
    let (level, log) = (level.ok_or_else(without)?, status.log_level.as_ref().ok_or_else(fixed)?);
    let before = log.set(level).map_err(LookError::Wrong)?;
    tracing::info!(before, now = level, "the log level was changed, as an operator ordered");
    document(&json!({ "before": before, "now": level }))
}

/// Has a resource asked for anew, in all groups or in one. What is held is served until the control plane answers.
fn refresh(status: &RelayStatus, query: &Query<'_>) -> Document {
    let without = |key| LookError::without(key, "/refresh?type=eds&name=backend");
    let type_url = query.type_url()?.ok_or_else(|| without("type"))?;
    let name = Name::normal(query.get("name").ok_or_else(|| without("name"))?);
    if matches!(status.groups.origin(), Origin::Directory { .. }) {
        let why = "resources come from a directory, which is read again whenever a file in it changes";
        return Err(LookError::Wrong(why.to_owned()));
    }
    let chosen = status.groups.chosen(query.get("group")).into_iter();
    let asked = chosen.filter(|(_, running)| running.cache().refresh(&type_url, &name));
    let groups: Vec<_> = asked.map(|(group, _)| group).collect();
    if groups.is_empty() {
        let unwanted = "no client asks for this resource; GET /resources lists those that are held";
        return Err(LookError::Missing(unwanted.to_owned()));
    }
    let kind = type_url.kind().short();
    if let Some(suppressed) = status.refreshes.allow((), Instant::now()) {
        tracing::info!(
            kind,
            %name,
            ?groups,
            suppressed,
            "asking the control plane for a resource anew, as an operator ordered"
        );
    }
    document(&json!({ "type": kind, "type_url": type_url.as_str(), "name": name.as_str(), "groups": groups }))
}
