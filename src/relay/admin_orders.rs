//! Orders that operators post to the admin address.
//!
//! Owns their paths, parameters and log lines. Others carry them out.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use percent_encoding::percent_decode_str;
use serde_json::json;

use super::origin::Origin;
use super::relay_status::{Status, document, no_such_client};
use super::rollouts;
use crate::admin::Page;
use crate::cache::{Order, RefreshError};
use crate::fleet::RefreshQuery;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'p> {
    Rollout(Order),
    Drain,
    /// With the number of the client.
    Disconnect(&'p str),
    Log,
    Refresh,
}

impl<'p> Kind<'p> {
    fn of(path: &'p str) -> Option<Self> {
        Some(match path {
            "/rollout/release" => Self::Rollout(Order::Release),
            "/rollout/discard" => Self::Rollout(Order::Discard),
            "/drain" => Self::Drain,
            "/log" => Self::Log,
            "/refresh" => Self::Refresh,
            _ => Self::Disconnect(path.strip_prefix("/clients/")?.strip_suffix("/disconnect")?),
        })
    }
}

pub(super) fn is_order(path: &str) -> bool {
    Kind::of(path).is_some()
}

/// Follows an order; `None` for any other path.
pub(super) fn follow(status: &Status, path: &str, query: &str) -> Option<Page> {
    Some(match Kind::of(path)? {
        Kind::Rollout(order) => with(query, Some("group"), |group| decide(status, order, group)),
        Kind::Drain => with(query, None, |_| drain(status)),
        Kind::Disconnect(id) => with(query, None, |_| disconnect(status, id)),
        Kind::Log => with(query, Some("level"), |level| log(status, level)),
        Kind::Refresh => match RefreshQuery::parse(query) {
            Ok(wanted) => refresh(status, &wanted),
            Err(wrong) => Page::BadRequest(wrong.to_string()),
        },
    })
}

/// Follows an order that may have this one parameter.
fn with(query: &str, parameter: Option<&str>, follow: impl FnOnce(Option<&str>) -> Page) -> Page {
    match value_of(parameter, query) {
        Ok(value) => follow(value.as_deref()),
        Err(wrong) => Page::BadRequest(wrong),
    }
}

/// Value of a query's only allowed parameter.
fn value_of<'q>(parameter: Option<&str>, query: &'q str) -> Result<Option<Cow<'q, str>>, String> {
    if query.is_empty() {
        return Ok(None);
    }
    match (parameter, query.split_once('=')) {
        (Some(known), Some((key, value))) if key == known && !value.contains('&') => {
            let value = percent_decode_str(value).decode_utf8();
            value.map(Some).map_err(|_| format!("`{known}` is no UTF-8"))
        }
        (Some(known), _) => Err(format!("the one parameter is `{known}`")),
        (None, _) => Err("this order has no parameters".to_owned()),
    }
}

fn decide(status: &Status, order: Order, group: Option<&str>) -> Page {
    let ordered = rollouts::order(&status.groups, group, order);
    if ordered.is_empty() {
        return Page::NotFound("no change is held; GET /rollout shows what is on trial".to_owned());
    }
    tracing::info!(?order, groups = ?ordered, "an operator decided on the changes that are held");
    document(&json!({ "groups": ordered }))
}

/// As Envoy's `drain_listeners?graceful`: like SIGTERM, but the process goes on.
fn drain(status: &Status) -> Page {
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

fn disconnect(status: &Status, id: &str) -> Page {
    let client = id.parse().ok().and_then(|id| status.fleet.connection_of(id));
    let Some((connection, node)) = client.filter(|(number, _)| status.drain.connections.close_one(*number))
    else {
        return no_such_client();
    };
    tracing::info!(
        client = id,
        connection,
        node,
        "closing the connection of a client, as an operator ordered"
    );
    document(&json!({ "connection": connection, "node": node }))
}

fn log(status: &Status, level: Option<&str>) -> Page {
    let Some(level) = level else {
        return Page::BadRequest("`level` is missing: /log?level=debug".to_owned());
    };
    let Some(log) = status.log_level.get() else {
        return Page::Failed("the log of this process has no level that can be changed".to_owned());
    };
    match log.set(level) {
        Ok(before) => {
            tracing::info!(before, now = level, "the log level was changed, as an operator ordered");
            document(&json!({ "before": before, "now": level }))
        }
        Err(wrong) => Page::BadRequest(wrong),
    }
}

/// Requests a resource again, in all groups or in one. The cached one is served meanwhile.
fn refresh(status: &Status, wanted: &RefreshQuery) -> Page {
    if matches!(status.origin, Origin::Directory { .. }) {
        let why = "resources come from a directory, which is read again whenever a file in it changes";
        return Page::BadRequest(why.to_owned());
    }
    let RefreshQuery { type_url, name, group: only } = wanted;
    let (mut groups, mut is_busy) = (Vec::new(), false);
    for (group, running) in status.groups.named() {
        let group = group.map(|group| group.to_string());
        if only.as_ref().is_some_and(|only| group.as_deref().unwrap_or_default() != only) {
            continue;
        }
        match running.cache().refresh(type_url, name) {
            Ok(()) => groups.push(group),
            Err(RefreshError::Busy) => is_busy = true,
            Err(RefreshError::Unwanted) => {}
        }
    }
    if groups.is_empty() {
        return match is_busy {
            true => Page::Failed(RefreshError::Busy.to_string()),
            false => Page::NotFound(
                "no client asks for this resource; GET /resources lists those that are held".to_owned(),
            ),
        };
    }
    let kind = type_url.kind().short();
    if let Some(suppressed) = status.refreshes.say((), Instant::now()) {
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
