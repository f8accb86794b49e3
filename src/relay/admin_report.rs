//! Answers of the admin address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::admin_orders;
use super::relay_status::server_info;
use super::relay_status::{Status, document, no_such_client, refused};
use crate::admin::{Page, Report};
use crate::fleet::{self, LookError, Query};
use crate::telemetry::{self, TypeFigures};
use crate::terminal::printable_json;

/// Answer to a query.
fn page(found: Result<impl Serialize, LookError>) -> Page {
    found.map_or_else(|wrong| refused(&wrong), |found| document(&found))
}

impl Status {
    /// State of the control planes and of the snapshot, with that of the `groups`.
    fn upstreams_with(&self, groups: impl Serialize, now: Instant) -> Json {
        let state = self.origin.state();
        let servers = self.servers.iter().enumerate().map(|(at, uri)| {
            let in_use = state.as_ref().filter(|state| state.server == at);
            json!({
                "uri": uri,
                "active": in_use.is_some(),
                "connected": in_use.is_some_and(|state| state.connected),
                "protocol": in_use.and_then(|state| Some(state.protocol?.label())),
                "last_error": state.as_ref().and_then(|state| state.errors.get(&at)),
            })
        });
        let seconds = |time: Duration| time.as_secs_f64();
        let answered = state.as_ref().and_then(|state| state.answered_ago(now)).map(seconds);
        let stale = state.as_ref().map(|state| seconds(state.stale_for(now)));
        json!({
            "servers": servers.collect::<Vec<_>>(),
            "last_answer_seconds_ago": answered,
            "stale_seconds": stale,
            "unsteady": state.as_ref().is_some_and(|state| state.is_unsteady(now)),
            "refused": state.as_ref().map(|state| fleet::refusals(state, now)),
            "groups": groups,
            "snapshot": self.snapshot(now),
        })
    }
}

impl Report for Status {
    fn look(&self, path: &str, query: &str) -> Option<Page> {
        let (fleet, groups, now) = (&*self.fleet, &*self.groups, Instant::now());
        let no_filters = || Query::parse(query, &[]).map(drop);
        Some(match path {
            "/clients" => page(fleet::clients(fleet, groups, query, now)),
            "/server_info" => page(no_filters().map(|()| server_info(self, now))),
            "/rollout" => page(no_filters().map(|()| fleet::rollouts(groups, now))),
            "/upstreams" if query.is_empty() => {
                let state = self.upstreams_with(json!({ "rules": fleet::rules(groups, now) }), now);
                Page::Json(printable_json(format!("{state:#}\n")))
            }
            "/upstreams" => page(
                fleet::groups(groups, &self.servers, query, now)
                    .map(|groups| self.upstreams_with(groups, now)),
            ),
            "/resources" => page(fleet::resources(groups, query)),
            "/nacks" => page(fleet::nacks(fleet, groups, query, now)),
            "/config_dump" => fleet::config_dump(groups, &self.descriptors, query)
                .map_or_else(|wrong| refused(&wrong), |dump| Page::Json(printable_json(dump))),
            "/history" => page(fleet::history(fleet, groups, &self.descriptors, query, now)),
            _ => {
                let id = path.strip_prefix("/clients/")?;
                if let Err(wrong) = no_filters() {
                    return Some(refused(&wrong));
                }
                let found = id.parse().ok().and_then(|id| fleet::client(fleet, groups, id, now));
                found.map_or_else(no_such_client, |client| document(&client))
            }
        })
    }

    fn is_order(&self, path: &str) -> bool {
        admin_orders::is_order(path)
    }

    fn order(&self, path: &str, query: &str, peer: SocketAddr) -> Option<Page> {
        admin_orders::follow(self, path, query, peer)
    }

    fn client_status(&self, request: &[u8]) -> Result<Vec<u8>, tonic::Status> {
        fleet::client_status(&self.fleet, &self.groups, &self.descriptors, request).map_err(|error| {
            match error {
                LookError::TooLarge(_) => tonic::Status::resource_exhausted(error.to_string()),
                LookError::Wrong(_) | LookError::Missing(_) => {
                    tonic::Status::invalid_argument(error.to_string())
                }
            }
        })
    }

    fn stale_seconds(&self) -> Option<f64> {
        Some(self.origin.state()?.stale_for(Instant::now()).as_secs_f64())
    }

    fn ready(&self) -> Result<(), String> {
        if self.drain.is_begun() {
            return Err("draining".to_owned());
        }
        if self.overload.refuses_new() {
            return Err("memory is short: newcomers are refused (downstream.memory.refuse_above)".to_owned());
        }
        self.is_ready.borrow().clone()
    }

    fn metrics(&self) -> String {
        let mut kinds: BTreeMap<_, TypeFigures> = BTreeMap::new();
        let (groups, now) = (self.groups.all(), Instant::now());
        for of in groups.iter().flat_map(|group| group.cache().types()) {
            let snapshot = of.snapshot();
            // Types without their own rules share a label.
            let figures = kinds.entry(of.type_url().kind()).or_default();
            // Tracks, and views of mixed parameters and restricted clients, repeat these.
            if of.parameter_view().as_uniform().is_some() {
                figures.members += snapshot.member_count();
                figures.held = figures.held.plus(snapshot.held_in_all());
            }
            figures.cohorts += of.cohorts();
            figures.lost += of.lost(now);
            figures.generation = figures.generation.max(snapshot.generation().get());
        }
        kinds.into_iter().for_each(|(kind, figures)| telemetry::report_type(kind.short(), figures));
        // All caches count together.
        if let Some(own) = groups.first().map(|own| own.cache()) {
            telemetry::set_total(telemetry::ENCODES, own.encoder().encodes());
            let history = own.history().map_or(0, |history| history.bytes());
            telemetry::set(telemetry::HISTORY_BYTES, history as f64);
        }
        let json = self.responses.writer();
        telemetry::report_json(json.resources_written(), json.responses_written());
        self.origin.report(&self.groups.events());
        fleet::report_clients(&self.fleet, &self.groups, now);
        telemetry::report_process();
        self.report_groups();
        self.report_snapshot();
        self.report_rollouts();
        self.metrics.render()
    }
}
