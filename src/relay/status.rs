//! State of the relay, as the admin address reports it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::origin::Origin;
use super::rollouts;
use crate::admin::{Page, Report};
use crate::cache::{Order, Track};
use crate::downstream::{OverloadManager, ResponseCache};
use crate::fleet::{self, ClientStatusError, Fleet, QueryError};
use crate::groups::{Groups, RuleFigures};
use crate::snapshot::Disk;
use crate::telemetry::{self, SnapshotFigures, TypeFigures};

/// Readiness, or the reason against it.
pub(super) type Ready = Result<(), String>;

/// State that the admin address reports.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) groups: Arc<Groups>,
    pub(super) responses: Arc<ResponseCache>,
    pub(super) origin: Origin,
    pub(super) metrics: PrometheusHandle,
    pub(super) is_ready: watch::Receiver<Ready>,
    pub(super) draining: AtomicBool,
    pub(super) overload: Arc<OverloadManager>,
    pub(super) fleet: Arc<Fleet>,
    /// `None` where nothing is kept on disk.
    pub(super) disk: Option<Arc<Disk>>,
    /// Servers as configured; none for a directory.
    pub(super) servers: Vec<String>,
}

impl Status {
    fn report_groups(&self) {
        if let Some(connections) = self.groups.connections() {
            telemetry::report_upstream_connections(connections);
        }
        for (name, RuleFigures { groups, clients, stale }) in self.groups.figures(Instant::now()) {
            telemetry::report_groups(&name, groups, clients, stale);
        }
    }

    fn report_snapshot(&self) {
        let Some(disk) = &self.disk else { return };
        let (status, now) = (disk.status(), Instant::now());
        let age = self.origin.state().map(|state| state.silent_for(now)).unwrap_or_default();
        telemetry::report_snapshot(SnapshotFigures {
            writes: status.writes,
            failures: status.failures,
            bytes: status.bytes,
            last_write: now.saturating_duration_since(status.last_write.unwrap_or(status.since)),
            age,
        });
    }

    fn snapshot(&self, now: Instant) -> Json {
        let Some(disk) = &self.disk else { return Json::Null };
        let status = disk.status();
        let ago = |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at).as_secs_f64());
        let loaded = status.loaded.map(|loaded| {
            json!({
                "resources": loaded.resources,
                "bytes": loaded.bytes,
                "seconds": loaded.took.as_secs_f64(),
                "loaded_seconds_ago": ago(Some(loaded.at)),
                "age_seconds": loaded.age.map(|age| age.as_secs_f64()),
            })
        });
        json!({
            "path": disk.path().display().to_string(),
            "loaded": loaded,
            "bytes": status.bytes,
            "writes": status.writes,
            "failures": status.failures,
            "last_write_seconds_ago": ago(status.last_write),
            "error": status.error,
        })
    }
}

/// Answer to a query.
fn page(found: Result<impl Serialize, QueryError>) -> Page {
    found.map_or_else(|wrong| Page::BadRequest(wrong.to_string()), |found| document(&found))
}

fn document(of: &impl Serialize) -> Page {
    match serde_json::to_vec(of) {
        Ok(mut document) => {
            document.push(b'\n');
            Page::Json(document)
        }
        Err(error) => Page::Failed(error.to_string()),
    }
}

impl Report for Status {
    fn upstreams(&self) -> Json {
        let now = Instant::now();
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
            "snapshot": self.snapshot(now),
        })
    }

    fn look(&self, path: &str, query: &str) -> Option<Page> {
        let (fleet, now) = (&*self.fleet, Instant::now());
        Some(match path {
            "/clients" => page(fleet::clients(fleet, query, now)),
            "/rollout" => document(&rollouts::report(&self.groups, now)),
            "/resources" => page(fleet::resources(&self.groups, query)),
            "/nacks" => page(fleet::nacks(fleet, query, now)),
            _ => {
                let id = path.strip_prefix("/clients/")?;
                let found = id.parse().ok().and_then(|id| fleet::client(fleet, id, now));
                let gone = || {
                    Page::NotFound("no such client; GET /clients lists those that are connected".to_owned())
                };
                found.map_or_else(gone, |client| document(&client))
            }
        })
    }

    fn order(&self, path: &str, query: &str) -> Option<Page> {
        let order = match path {
            "/rollout/release" => Order::Release,
            "/rollout/discard" => Order::Discard,
            _ => return None,
        };
        let only = match query.split_once('=') {
            None if query.is_empty() => None,
            Some(("group", group)) => {
                Some(percent_encoding::percent_decode_str(group).decode_utf8_lossy().into_owned())
            }
            _ => {
                let wrong = "the one parameter is `group`, the name of a node group as /rollout shows it";
                return Some(Page::BadRequest(wrong.to_owned()));
            }
        };
        let ordered = rollouts::order(&self.groups, only.as_deref(), order);
        if ordered.is_empty() {
            return Some(Page::NotFound("no change is held; GET /rollout shows what is on trial".to_owned()));
        }
        tracing::info!(?order, groups = ?ordered, "an operator decided on the changes that are held");
        Some(document(&json!({ "groups": ordered })))
    }

    fn client_status(&self, request: &[u8]) -> Result<Vec<u8>, tonic::Status> {
        fleet::client_status(&self.fleet, request).map_err(|error| match error {
            ClientStatusError::TooLarge => tonic::Status::resource_exhausted(error.to_string()),
            ClientStatusError::Undecodable(_) | ClientStatusError::Matcher(_) => {
                tonic::Status::invalid_argument(error.to_string())
            }
        })
    }

    fn stale_seconds(&self) -> Option<f64> {
        Some(self.origin.state()?.stale_for(Instant::now()).as_secs_f64())
    }

    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Acquire) {
            return Err("draining".to_owned());
        }
        if self.overload.refuses_new() {
            return Err("memory is short: newcomers are refused (downstream.memory.refuse_above)".to_owned());
        }
        self.is_ready.borrow().clone()
    }

    fn metrics(&self) -> String {
        let mut kinds: BTreeMap<_, TypeFigures> = BTreeMap::new();
        let groups = self.groups.all();
        for of in groups.iter().flat_map(|group| group.cache().types()) {
            // The tracks of a type that is guarded hold what the origin's store does.
            let snapshot = of.snapshot();
            // Types without rules of their own share a label.
            let figures = kinds.entry(of.type_url().kind()).or_default();
            if of.parameter_view().track() == Track::Origin {
                figures.members += snapshot.member_count();
            }
            figures.cohorts += of.cohorts();
            figures.generation = figures.generation.max(snapshot.generation().get());
        }
        kinds.into_iter().for_each(|(kind, figures)| telemetry::report_type(kind.short(), figures));
        // All caches count together.
        groups.first().into_iter().for_each(|own| telemetry::report_encodes(own.cache().encoder().encodes()));
        let json = self.responses.writer();
        telemetry::report_json(json.resources_written(), json.responses_written());
        self.origin.report(&self.groups.events());
        for ((kind, state), clients) in fleet::figures(&self.fleet) {
            telemetry::report_clients(kind.short(), state.label(), clients);
        }
        self.report_groups();
        self.report_snapshot();
        rollouts::report_metrics(&self.groups, Instant::now());
        self.metrics.render()
    }
}
