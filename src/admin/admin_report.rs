//! Answers of the admin address.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::relay_status::{RelayStatus, server_info};
use super::status_checks::StatusReport;
use crate::fleet::{self, Document, LookError, Query, View, document};
use crate::resource::Kind;
use crate::subscription::ClientState;
use crate::telemetry::{self, TypeFigures};
use crate::terminal::printable_json;

impl RelayStatus {
    pub(super) fn view(&self) -> View<'_> {
        View { fleet: &self.fleet, groups: &self.groups, descriptors: &self.descriptors, now: Instant::now() }
    }

    /// State of the control planes and of the snapshot, with that of the `groups`.
    fn upstreams_with(&self, groups: impl Serialize, now: Instant) -> Json {
        let state = self.groups.origin().state();
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
            "snapshot": self.disk.as_ref().map(|disk| disk.status()),
        })
    }

    /// Page at a path, with its query; `None` if there is none. May take long.
    pub(super) fn look(&self, path: &str, query: &str) -> Option<Document> {
        let view = self.view();
        let no_filters = || Query::parse(query, &[]).map(drop);
        Some(match path {
            "/clients" => view.clients(query),
            "/server_info" => no_filters().and_then(|()| document(&server_info(self, view.now))),
            "/status" => no_filters().and_then(|()| document(&StatusReport::of(self, view.now))),
            "/rollout" => no_filters().and_then(|()| view.rollouts()),
            "/upstreams" if query.is_empty() => {
                let state = self.upstreams_with(json!({ "rules": self.groups.figures(view.now) }), view.now);
                Ok(printable_json(format!("{state:#}\n")))
            }
            "/upstreams" => view
                .node_groups(&self.servers, query)
                .and_then(|groups| document(&self.upstreams_with(groups, view.now))),
            "/resources" => view.resources(query),
            "/nacks" => view.nacks(query),
            "/config_dump" => view.config_dump(query),
            "/history" => view.history(query),
            _ => {
                let id = path.strip_prefix("/clients/")?;
                no_filters().and_then(|()| view.client(id))
            }
        })
    }

    /// Response of CSDS to an encoded request. May take long.
    pub(super) fn client_status(&self, request: &[u8]) -> Result<Vec<u8>, LookError> {
        self.view().client_status(request)
    }

    /// Seconds for which resources may be out of date; `None` if the source is no control plane.
    pub(super) fn stale_seconds(&self) -> Option<f64> {
        Some(self.groups.origin().state()?.stale_for(Instant::now()).as_secs_f64())
    }

    /// Whether clients should be sent here; an error is the reason against it, for operators.
    pub(super) fn ready(&self) -> Result<(), String> {
        if self.drain.is_begun() {
            return Err("draining".to_owned());
        }
        if self.overload.refuses_new() {
            return Err("memory is short: newcomers are refused (downstream.memory.refuse_above)".to_owned());
        }
        self.is_ready.borrow().clone()
    }

    /// Figures of the types, over all node groups.
    pub(super) fn type_figures(&self, now: Instant) -> BTreeMap<Kind, TypeFigures> {
        let mut kinds: BTreeMap<_, TypeFigures> = BTreeMap::new();
        let groups = self.groups.all();
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
        kinds
    }

    /// Text format of Prometheus. May take long.
    pub(super) fn metrics(&self) -> String {
        for (kind, figures) in self.type_figures(Instant::now()) {
            telemetry::report_type(kind.short(), figures);
        }
        // All caches count together.
        if let Some(own) = self.groups.all().first().map(|own| own.cache()) {
            telemetry::set_total(telemetry::ENCODES, &[], own.encoder().encodes());
            let history = own.history().map_or(0, |history| history.bytes());
            telemetry::set(telemetry::HISTORY_BYTES, &[], history as f64);
        }
        let json = self.responses.writer();
        for (what, written) in [("resource", json.resources_written()), ("answer", json.responses_written())]
        {
            telemetry::set_total(telemetry::JSON_WRITTEN, &[("what", what)], written);
        }
        telemetry::set(telemetry::CONNECTIONS, &[], self.drain.connections.count() as f64);
        self.groups.origin().report(&self.groups.events());
        let (kinds, streams) = self.view().figures();
        for (transport, count) in streams {
            telemetry::set(telemetry::STREAMS, &[("transport", transport)], f64::from(count));
        }
        for (kind, figures) in kinds {
            let of_type = ("type", kind.short());
            for (state, clients) in ClientState::ALL.into_iter().zip(figures.states) {
                telemetry::set(telemetry::CLIENTS, &[of_type, ("state", state.label())], clients as f64);
            }
            telemetry::set(telemetry::MAX_LAG, &[of_type], figures.lag as f64);
            telemetry::set(telemetry::MAX_UNANSWERED, &[of_type], figures.unanswered.as_secs_f64());
            telemetry::set(telemetry::HELD_POLLS, &[of_type], figures.held_polls as f64);
        }
        telemetry::report_process();
        self.report_groups();
        self.report_snapshot();
        self.report_rollouts();
        self.metrics.render()
    }
}
