//! Results of a load, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use deltafan_core::cache::Protocol;
use deltafan_transport::terminal::printable;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value as Json, json};

use super::Load;
use super::load_measures::{Measures, Times};
use crate::output::{Format, Table};

/// Share of the machine's CPUs above which this process may distort its measures.
const BUSY: f64 = 0.5;
const QUANTILES: [(&str, f64); 4] = [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p99_9_ms", 0.999)];
const LONGEST: &str = "max_ms";

/// CPU time of this process.
pub(super) fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Measured times by their keys.
const TIMES: [&str; 4] = ["connect", "first_answer", "spread", "last_client"];

#[derive(Debug)]
pub(crate) struct Report(Json);

impl Report {
    pub(super) fn new(of: &Load, measures: &Measures, cpus_used: f64) -> Self {
        let whole = measures.whole();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut document = json!({
            "server": of.server.uri,
            "transport": match of.protocol { Protocol::Delta => "delta", Protocol::Sotw => "sotw" },
            "clients": of.clients,
            "answered": measures.answered,
            "failed_attempts": measures.failed,
            "lost_streams": measures.lost,
            "causes": measures.causes,
            "responses": measures.responses,
            "bytes": measures.bytes,
            "changes": measures.changes,
            "changes_at_all_clients": whole.count(),
            "cpus": cpus,
            "cpus_used": (cpus_used * 100.0).round() / 100.0,
        });
        let times = [&measures.connect, &measures.first_answer, &measures.spread, &whole];
        for (name, times) in TIMES.into_iter().zip(times) {
            document[name] = figures(times);
        }
        Self(document)
    }

    /// Whether each client had an answer.
    pub(crate) fn is_whole(&self) -> bool {
        self.0["answered"].as_u64() >= self.0["clients"].as_u64()
    }

    /// Prints the report.
    pub(crate) fn show(&self, format: Format) -> anyhow::Result<String> {
        format.write(|| Ok(&self.0), || table(&self.0))
    }
}

fn table(of: &Json) -> String {
    let mut table = Table::new(["TIME", "COUNT", "P50", "P90", "P99", "P99.9", "MAX"]);
    for name in TIMES {
        let times = &of[name];
        let millis = |key: &str| {
            times[key].as_f64().map_or_else(|| "-".to_owned(), |millis| format!("{millis:.2} ms"))
        };
        let quantiles = QUANTILES.map(|(key, _)| millis(key));
        let own = [name.replace('_', " "), times["count"].to_string()];
        table.row(own.into_iter().chain(quantiles).chain([millis(LONGEST)]));
    }
    let mut out = table.show() + "\n";
    // Writing to a String cannot fail.
    _ = writeln!(
        out,
        "clients: {} of {} answered; failed attempts: {}; lost streams: {}",
        of["answered"], of["clients"], of["failed_attempts"], of["lost_streams"]
    );
    for (cause, count) in of["causes"].as_object().into_iter().flatten() {
        _ = writeln!(out, "  {count} times: {}", printable(cause));
    }
    _ = writeln!(
        out,
        "changes: {}, of which {} reached all clients; responses: {}, {} bytes",
        of["changes"], of["changes_at_all_clients"], of["responses"], of["bytes"]
    );
    if let (Some(used), Some(cpus)) = (of["cpus_used"].as_f64(), of["cpus"].as_f64()) {
        _ = writeln!(out, "this process used {used} of {cpus} CPUs");
        if used > cpus * BUSY {
            out.push_str(
                "note: this process may have slowed down what it measured; use fewer clients or more machines\n",
            );
        }
    }
    out
}

fn figures(times: &Times) -> Json {
    let mut figures = json!({"count": times.count()});
    if times.count() > 0 {
        for (key, fraction) in QUANTILES {
            figures[key] = millis(times.quantile(fraction)).into();
        }
        figures[LONGEST] = millis(times.max()).into();
    }
    figures
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}
