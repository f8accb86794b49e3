//! Several relays, asked at once.
//!
//! Owns the relays that an address leads to, their answers side by side, what differs, and the worst result.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use deltafan_transport::dial::resolve;
use deltafan_transport::terminal::printable;
use futures_util::future::join_all;
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use super::admin_connection::{AdminAddress, AdminClient, Missing};
use super::listing::{Asked, Report};
use crate::output::{Format, Table, or_dash, text};

/// Characters of a fingerprint in a table.
const FINGERPRINT: usize = 12;

/// Address of a relay, with its answer or the reason why there is none.
type Of<T> = (String, anyhow::Result<T>);
type Connected = Of<AdminClient>;

#[derive(Debug)]
pub(crate) struct Answers(Vec<Of<Report>>);

impl Answers {
    /// Asks all relays that these addresses lead to. `patience` is the time limit of each answer.
    ///
    /// # Errors
    ///
    /// A question for one relay, and several relays.
    pub(crate) async fn of(
        named: &[AdminAddress],
        patience: Duration,
        asked: &Asked,
    ) -> anyhow::Result<Self> {
        let connected = join_all(named.iter().map(|name| connect(name, patience))).await;
        let mut seen = Vec::new();
        let is_new = |(relay, _): &Connected| {
            let is_new = !seen.contains(relay);
            seen.push(relay.clone());
            is_new
        };
        let relays: Vec<Connected> = connected.into_iter().flatten().filter(is_new).collect();
        if asked.is_for_one_relay() && relays.len() > 1 {
            let relays: Vec<String> = relays.into_iter().map(|(relay, _)| relay).collect();
            bail!("the ID of a client is that of one relay; choose one with --admin: {}", relays.join(", "));
        }
        let answers = relays.into_iter().map(async |(relay, connected)| {
            let answer = match connected {
                Ok(mut client) => asked.at(&mut client).await,
                Err(error) => Err(error),
            };
            (relay, answer)
        });
        Ok(Self(join_all(answers).await))
    }

    /// Prints the answers: that of one relay as it is, those of several with the relay of each.
    pub(crate) fn show(&self, format: Format) -> anyhow::Result<String> {
        match &*self.0 {
            [(_, Ok(report))] => format.write(|| Ok(&report.document), || report.table()),
            [_] => Ok(String::new()),
            _ => format.write(|| Ok(self.document()), || self.table()),
        }
    }

    /// Returns whether all relays are well.
    ///
    /// # Errors
    ///
    /// Relay that could not be asked, or nothing that matches at any relay.
    pub(crate) fn verdict(mut self) -> anyhow::Result<bool> {
        let failed = |(_, answer): &&Of<Report>| answer.as_ref().is_err_and(|error| !error.is::<Missing>());
        let (failed, count) = (self.0.iter().filter(failed).count(), self.0.len());
        if failed > 0 && count > 1 {
            bail!("relays that could not be asked: {failed} of {count}");
        }
        let mut found = self.0.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        // Nothing matches only if that is so at all relays.
        if found.clone().any(|report| !report.is_in_vain) {
            return Ok(found.all(|report| report.document["well"] != false));
        }
        match self.0.pop() {
            Some((_, Err(error))) => Err(error),
            _ => bail!("nothing matches"),
        }
    }

    fn document(&self) -> Json {
        let one = |(relay, answer): &Of<Report>| match answer {
            Ok(report) => json!({"relay": relay, "answer": report.document}),
            Err(error) => json!({"relay": relay, "error": format!("{error:#}")}),
        };
        self.0.iter().map(one).collect()
    }

    fn table(&self) -> String {
        let section = |(relay, answer): &Of<Report>| {
            let shown = match answer {
                Ok(report) => report.table(),
                Err(error) => printable(&format!("{error:#}")) + "\n",
            };
            format!("==> {relay} <==\n{shown}")
        };
        let sections = self.0.iter().map(section).chain(self.differences());
        sections.collect::<Vec<_>>().join("\n")
    }

    /// Types of which relays serve different resources; `None` if fewer than two relays have fingerprints.
    fn differences(&self) -> Option<String> {
        let told = self.0.iter().filter_map(|(relay, answer)| {
            let rows = answer.as_ref().ok()?.document["fingerprints"].as_array()?;
            let rows = rows.iter().map(|row| ((text(&row["group"]), text(&row["type"])), row));
            Some((relay, rows.collect::<BTreeMap<_, _>>()))
        });
        let told: Vec<_> = told.collect();
        if told.len() < 2 {
            return None;
        }
        let kinds: BTreeSet<_> = told.iter().flat_map(|(_, rows)| rows.keys()).collect();
        let mut table = Table::new(["GROUP", "TYPE", "RESOURCES", "FINGERPRINT", "RELAYS"]);
        for kind in kinds {
            let mut states: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
            for (relay, rows) in &told {
                let row = rows.get(kind).copied().unwrap_or(&Json::Null);
                states.entry((or_dash(&row["digest"]), or_dash(&row["resources"]))).or_default().push(relay);
            }
            if states.len() > 1 {
                let (group, of_type) = kind;
                for ((digest, resources), relays) in &states {
                    let digest: String = digest.chars().take(FINGERPRINT).collect();
                    table.row([group, of_type, resources, &digest, &relays.join(", ")]);
                }
            }
        }
        Some(if table.is_empty() {
            "==> the relays that answered serve equal resources <==\n".to_owned()
        } else {
            format!(
                "==> the relays that answered serve different resources <==\n{}",
                table.without_empty_columns().show()
            )
        })
    }
}

/// Connects to each relay that an address leads to.
async fn connect(named: &AdminAddress, patience: Duration) -> Vec<Connected> {
    let found = timeout(patience, resolve(&named.0)).await;
    let found = found.ok().and_then(Result::ok).filter(|found| found.len() > 1).unwrap_or_default();
    let reach = async |at: SocketAddr| {
        let relay: AdminAddress = format!("http://{at}").parse().map_err(anyhow::Error::msg)?;
        AdminClient::connect(relay, patience).await
    };
    let reached = join_all(found.into_iter().map(async |at| (at, reach(at).await))).await;
    let relays = of_one_version(reached);
    if relays.len() > 1 {
        return relays.into_iter().map(|(at, client)| (format!("http://{at}"), client)).collect();
    }
    vec![(named.to_string(), AdminClient::connect(named.clone(), patience).await)]
}

/// Keeps the addresses of one IP version, as a relay may have one of each: the version of the first address that
/// was reached.
fn of_one_version<C>(mut all: Vec<(SocketAddr, anyhow::Result<C>)>) -> Vec<(SocketAddr, anyhow::Result<C>)> {
    let first = all.iter().find(|(_, reached)| reached.is_ok()).or_else(|| all.first());
    let is_ipv4 = first.is_some_and(|(at, _)| at.is_ipv4());
    all.retain(|(at, _)| at.is_ipv4() == is_ipv4);
    all
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_relay_with_two_addresses_is_asked_once() {
        let kept = |all: &[(&str, bool)]| {
            let reached = |reached: bool| if reached { Ok(()) } else { Err(anyhow!("refused")) };
            let all = all.iter().map(|(at, is_reached)| (at.parse().unwrap(), reached(*is_reached)));
            let kept = of_one_version(all.collect()).into_iter();
            kept.map(|(at, _)| at.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[("[::1]:1", false), ("127.0.0.1:1", true)]), ["127.0.0.1:1"], "localhost");
        let pods = [("[fd::1]:1", false), ("[fd::2]:1", true), ("10.0.0.1:1", true), ("10.0.0.2:1", true)];
        assert_eq!(kept(&pods), ["[fd::1]:1", "[fd::2]:1"], "one of the two does not answer");
        assert_eq!(kept(&[("10.0.0.1:1", false), ("10.0.0.2:1", false)]).len(), 2);
    }
}
