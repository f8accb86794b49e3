//! Orders that operators post to the admin address.
//!
//! Owns their paths and parameters, and what the log says of each. What they do is the business of others.

use std::borrow::Cow;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use serde_json::json;

use super::rollouts;
use super::status::{Status, document, no_such_client};
use crate::admin::Page;
use crate::cache::Order;
use crate::resource::{Name, TypeUrl};
use crate::upstream::Refresh;

/// An order, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'p> {
    Rollout(Order),
    Drain,
    /// With the number of the client.
    Disconnect(&'p str),
    Log,
    Refresh,
}

/// Values of the parameters of an order, by their names.
type Values<'q> = Vec<(&'static str, Cow<'q, str>)>;

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

    /// Parameters that it may have.
    const fn parameters(self) -> &'static [&'static str] {
        match self {
            Self::Rollout(_) => &["group"],
            Self::Log => &["level"],
            Self::Refresh => &["type", "name"],
            Self::Drain | Self::Disconnect(_) => &[],
        }
    }
}

/// Whether a path is that of an order.
pub(super) fn is_order(path: &str) -> bool {
    Kind::of(path).is_some()
}

/// Follows an order; `None` if the path is that of none.
pub(super) fn follow(status: &Status, path: &str, query: &str) -> Option<Page> {
    let order = Kind::of(path)?;
    let values = match values(order, query) {
        Ok(values) => values,
        Err(wrong) => return Some(Page::BadRequest(wrong)),
    };
    let value = |known: &str| values.iter().find(|(key, _)| *key == known).map(|(_, value)| &**value);
    Some(match order {
        Kind::Rollout(order) => decide(status, order, value("group")),
        Kind::Drain => drain(status),
        Kind::Disconnect(id) => disconnect(status, id),
        Kind::Log => log(status, value("level")),
        Kind::Refresh => refresh(status, value("type"), value("name")),
    })
}

/// Values of the parameters that an order may have, each of which is there once at most.
fn values<'q>(order: Kind<'_>, query: &'q str) -> Result<Values<'q>, String> {
    let allowed = order.parameters();
    let mut values = Values::new();
    for pair in query.split('&').filter(|_| !query.is_empty()) {
        let known = pair.split_once('=').and_then(|(key, value)| {
            let key = allowed.iter().copied().find(|known| *known == key)?;
            values.iter().all(|(before, _)| *before != key).then_some((key, value))
        });
        let Some((key, value)) = known else {
            return Err(match allowed {
                [] => "this order has no parameters".to_owned(),
                [one] => format!("the one parameter is `{one}`"),
                several => format!("the parameters are {}, each once", several.join(", ")),
            });
        };
        let value = percent_decode_str(value).decode_utf8().map_err(|_| format!("`{key}` is no UTF-8"))?;
        values.push((key, value));
    }
    Ok(values)
}

fn decide(status: &Status, order: Order, group: Option<&str>) -> Page {
    let ordered = rollouts::order(&status.groups, group, order);
    if ordered.is_empty() {
        return Page::NotFound("no change is held; GET /rollout shows what is on trial".to_owned());
    }
    tracing::info!(?order, groups = ?ordered, "an operator decided on the changes that are held");
    document(&json!({ "groups": ordered }))
}

/// As Envoy's `drain_listeners?graceful`: what SIGTERM does, but the process does not end.
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

/// Has the control plane asked anew for one name of a type, or for all that is asked for of it, by each node group that asks for it.
fn refresh(status: &Status, kind: Option<&str>, name: Option<&str>) -> Page {
    let Some(kind) = kind else {
        return Page::BadRequest("`type` is missing: /refresh?type=cds&name=backend".to_owned());
    };
    let type_url = match TypeUrl::from_user(kind) {
        Ok(type_url) => type_url,
        Err(unknown) => return Page::BadRequest(unknown.to_string()),
    };
    let Some(own) = status.origin.refresher() else {
        return Page::BadRequest(
            "a directory is read when it changes: only a control plane can be asked anew".to_owned(),
        );
    };
    let name = name.filter(|name| *name != Name::WILDCARD).map(Name::normal);
    let what = Refresh { type_url, name };
    let asks = status.groups.named().into_iter().filter(|(_, group)| group.asks_for(&what));
    let mut asked = Vec::new();
    for (key, group) in asks {
        if group.refresher().unwrap_or(own).try_send(what.clone()).is_err() {
            return Page::Failed("earlier orders of this kind wait; try again in a second".to_owned());
        }
        asked.push(key.map(|key| key.to_string()));
    }
    let kind = what.type_url.kind().short();
    if asked.is_empty() {
        return Page::NotFound(format!(
            "the control plane is not asked for this; GET /resources?type={kind} lists what it is asked for"
        ));
    }
    let name = what.name.as_ref().map(Name::as_str);
    tracing::info!(kind, name, groups = ?asked, "asking the control plane anew, as an operator ordered");
    let is_connected = status.origin.state().is_some_and(|state| state.connected);
    document(&json!({ "type": kind, "name": name, "groups": asked, "connected": is_connected }))
}
