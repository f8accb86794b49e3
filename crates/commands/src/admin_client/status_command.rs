//! `deltafan status`: whether a relay is well, and its faults.
//!
//! Owns the screen. `status_checks` judges the answers of the admin address.

use deltafan_transport::terminal::printable;
use serde_json::{Value as Json, json};

use super::admin_connection::AdminClient;
use super::answer_tables::items;
use super::status_checks::{Check, Facts, State, checks};
use crate::output::{Table, text};

/// Asks a relay, and judges its answers.
pub(super) async fn status(relay: &mut AdminClient) -> anyhow::Result<Json> {
    let facts = Facts::of(relay).await?;
    let build = facts.metrics.all("deltafan_build_info").next();
    let version = build.map_or_else(
        || "of unknown version".to_owned(),
        |build| format!("{} ({})", build.label("version"), build.label("commit")),
    );
    let checks = checks(&facts);
    let shown = |check: &Check| {
        json!({
            "check": check.name,
            "state": check.state.label(),
            "finding": check.finding,
            "figures": check.figures,
        })
    };
    Ok(json!({
        // Notes are no faults.
        "well": checks.iter().all(|check| check.state != State::Fault),
        "relay": format!("deltafan {version} at {}", relay.address),
        "checks": checks.iter().map(shown).collect::<Vec<_>>(),
        "fingerprints": relay.get("/resources?limit=0").await?["fingerprints"].take(),
    }))
}

pub(super) fn status_table(status: &Json) -> String {
    let mut table = Table::new(["STATE", "CHECK", "FINDING"]);
    let checks = items(&status["checks"]);
    checks.iter().for_each(|check| table.row(["state", "check", "finding"].map(|key| text(&check[key]))));
    let is_noted = checks.iter().any(|check| check["state"] == State::Note.label());
    let verdict = match (status["well"] == true, is_noted) {
        (true, false) => "all is well",
        (true, true) => "no fault, but notes",
        (false, _) => "not well",
    };
    format!("{verdict}: {}\n\n{}", printable(&text(&status["relay"])), table.show())
}
