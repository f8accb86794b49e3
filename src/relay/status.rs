//! State of the relay, as the admin address reports it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

use super::origin::Origin;
use crate::admin::Report;
use crate::downstream::OverloadManager;
use crate::downstream::ResponseCache;
use crate::groups::{Groups, RuleFigures};
use crate::telemetry::{self, TypeFigures};

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
}

impl Report for Status {
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
            let snapshot = of.snapshot();
            // Types without rules of their own share a label.
            let figures = kinds.entry(of.type_url().kind()).or_default();
            figures.members += snapshot.member_count();
            figures.cohorts += of.cohorts();
            figures.generation = figures.generation.max(snapshot.generation().get());
        }
        kinds.into_iter().for_each(|(kind, figures)| telemetry::report_type(kind.short(), figures));
        // All caches count together.
        groups.first().into_iter().for_each(|own| telemetry::report_encodes(own.cache().encoder().encodes()));
        let json = self.responses.writer();
        telemetry::report_json(json.resources_written(), json.responses_written());
        self.origin.report(&self.groups.events());
        self.report_groups();
        self.metrics.render()
    }
}
