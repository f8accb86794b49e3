//! `deltafan status`: whether a relay is well, and its faults.
//!
//! Owns the screen. `status_checks` judges the answers of the admin address.

use deltafan_transport::terminal::printable;
use serde_json::{Value as Json, json};

use super::admin_connection::AdminClient;
use super::status_checks::{Check, Facts, State, checks};
use crate::output::Table;

#[derive(Debug)]
pub(super) struct Status {
    relay: String,
    checks: Vec<Check>,
    /// By type and node group, of resources that clients are served; `null` of an older relay.
    pub(super) fingerprints: Json,
}

/// Asks a relay, and judges its answers.
pub(super) async fn status(relay: &mut AdminClient) -> anyhow::Result<Status> {
    let facts = Facts::of(relay).await?;
    let build = facts.metrics.all("deltafan_build_info").next();
    let version = build.map_or_else(
        || "of unknown version".to_owned(),
        |build| format!("{} ({})", build.label("version"), build.label("commit")),
    );
    let fingerprints = relay.json_or_null("/resources?limit=0").await?["fingerprints"].take();
    let relay = format!("deltafan {version} at {}", relay.address());
    Ok(Status { relay, checks: checks(&facts), fingerprints })
}

impl Status {
    /// Notes are no faults.
    pub(super) fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Fault)
    }

    pub(super) fn document(&self) -> Json {
        let check = |check: &Check| {
            json!({
                "check": check.name,
                "state": check.state.label(),
                "finding": check.finding,
                "figures": check.figures,
            })
        };
        let checks: Vec<Json> = self.checks.iter().map(check).collect();
        json!({
            "well": self.is_well(),
            "relay": self.relay,
            "checks": checks,
            "fingerprints": self.fingerprints,
        })
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new(["STATE", "CHECK", "FINDING"]);
        for check in &self.checks {
            table.row([check.state.label(), check.name, &check.finding]);
        }
        let is_noted = self.checks.iter().any(|check| check.state == State::Note);
        let verdict = match (self.is_well(), is_noted) {
            (true, false) => "all is well",
            (true, true) => "no fault, but notes",
            (false, _) => "not well",
        };
        format!("{verdict}: {}\n\n{}", printable(&self.relay), table.show())
    }
}
