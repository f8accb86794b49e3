//! Facts about the process, for operators.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::status::Status;

/// Answer to `/server_info`, with the names of Envoy where it has them.
pub(super) fn report(status: &Status, now: Instant) -> Json {
    let state = if status.drain.is_begun() {
        "DRAINING"
    } else if status.is_ready.borrow().is_ok() {
        "LIVE"
    } else {
        "INITIALIZING"
    };
    let seconds = |since: Instant| Duration::from_millis(millis(now, since)).as_secs_f64();
    let config = status.loaded.lock().clone().map(|loaded| {
        json!({
            "path": loaded.path.display().to_string(),
            "xxh3": format!("{:016x}", loaded.digest),
            "loaded_seconds_ago": seconds(loaded.at),
            "newest_content_refused": loaded.is_refused,
        })
    });
    let uptime = seconds(status.started);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "build": {
            "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
            "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        },
        "state": state,
        "uptime_current_epoch": format!("{}s", uptime as u64),
        "uptime_seconds": uptime,
        "node": status.node,
        "config": config,
    })
}

fn millis(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}
