//! `deltafan status`: whether a relay is well, and its faults.
//!
//! Owns the screen. `status_checks` judges the answers of the admin address.

use serde_json::{Value as Json, json};

use super::admin_connection::AdminClient;
use super::status_checks::{Check, Facts, State, checks};
use crate::output::Format;
use crate::table::Table;
use crate::terminal::printable;

#[derive(Debug)]
pub struct Status {
    relay: String,
    checks: Vec<Check>,
}

/// Asks a relay, and judges its answers.
///
/// # Errors
///
/// Relay that does not answer.
pub async fn status(relay: &mut AdminClient) -> anyhow::Result<Status> {
    let facts = Facts::of(relay).await?;
    let build = facts.metrics.all("deltafan_build_info").next();
    let version = build.map_or_else(
        || "of unknown version".to_owned(),
        |build| format!("{} ({})", build.label("version"), build.label("commit")),
    );
    Ok(Status { relay: format!("deltafan {version} at {}", relay.address()), checks: checks(&facts) })
}

impl Status {
    /// Notes are no faults.
    pub fn is_well(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Fault)
    }

    /// Prints the findings.
    ///
    /// # Errors
    ///
    /// Status that has no form in YAML.
    pub fn show(&self, format: Format) -> anyhow::Result<String> {
        format.write(|| Ok(self.document()), || self.table())
    }

    fn document(&self) -> Json {
        let check = |check: &Check| {
            json!({
                "check": check.name,
                "state": check.state.label(),
                "finding": check.finding,
                "figures": check.figures,
            })
        };
        let checks: Vec<Json> = self.checks.iter().map(check).collect();
        json!({"well": self.is_well(), "relay": self.relay, "checks": checks})
    }

    fn table(&self) -> String {
        let mut table = Table::new(["STATE", "CHECK", "FINDING"]);
        for check in &self.checks {
            table.row([check.state.label(), check.name, &check.finding]);
        }
        let verdict = if self.is_well() { "all is well" } else { "not well" };
        format!("{verdict}: {}\n\n{}", printable(&self.relay), table.show())
    }
}
