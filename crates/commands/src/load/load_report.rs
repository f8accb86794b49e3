//! Results of a load, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use deltafan_core::cache::Protocol;
use deltafan_transport::terminal::printable;
use procfs::process::Process;
use serde_json::{Value as Json, json};

use super::Load;
use super::load_measures::{Measures, Times};
use crate::output::{Format, Table};

/// Share of the machine's CPUs above which this process may distort its measures.
const BUSY: f64 = 0.5;
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

pub(super) struct Cpu(Option<Duration>);

impl Cpu {
    pub(super) fn now() -> Self {
        let used = || {
            let stat = Process::myself().and_then(|process| process.stat()).ok()?;
            Some(Duration::from_secs_f64(
                (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
            ))
        };
        Self(used())
    }

    /// Average CPUs in use since then; `None` if unknown.
    pub(super) fn since(&self, time: Duration) -> Option<f64> {
        let used = Self::now().0?.checked_sub(self.0?)?;
        Some(used.as_secs_f64() / time.as_secs_f64())
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    document: Json,
    rows: Vec<(&'static str, Times)>,
    is_whole: bool,
}

impl Report {
    pub(super) fn new(of: &Load, measures: &Measures, cpus_used: Option<f64>) -> Self {
        let whole = measures.whole();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let document = json!({
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
            "changes_left_out": measures.is_full,
            "cpus": cpus,
            "cpus_used": cpus_used.map(|used| (used * 100.0).round() / 100.0),
        });
        let rows = vec![
            ("connect", measures.connect.clone()),
            ("first_answer", measures.first_answer.clone()),
            ("spread", measures.spread.clone()),
            ("last_client", whole),
        ];
        let mut report = Self { document, rows, is_whole: measures.answered >= of.clients };
        for (name, times) in &report.rows {
            report.document[*name] = figures(times);
        }
        report
    }

    pub(crate) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Prints the report.
    pub(crate) fn show(&self, format: Format) -> anyhow::Result<String> {
        format.write(|| Ok(&self.document), || self.table())
    }

    fn table(&self) -> String {
        let headers = ["TIME", "COUNT", "P50", "P90", "P99", "P99.9", "MAX"];
        let mut table = Table::new(headers);
        for (name, times) in &self.rows {
            let quantiles = QUANTILES.map(|(_, fraction)| times.quantile(fraction));
            let times_of = quantiles.into_iter().chain([times.max()]);
            let cells =
                times_of.map(|time| if times.count() == 0 { "-".to_owned() } else { in_millis(time) });
            table.row([name.replace('_', " "), times.count().to_string()].into_iter().chain(cells));
        }
        let of = &self.document;
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
        if of["changes_left_out"] == true {
            out.push_str("note: too many names; the changes of some were not measured\n");
        }
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
}

fn figures(times: &Times) -> Json {
    let mut figures = json!({"count": times.count()});
    if times.count() > 0 {
        for (name, fraction) in QUANTILES {
            figures[format!("{}_ms", name.replace('.', "_"))] = json!(millis(times.quantile(fraction)));
        }
        figures["max_ms"] = json!(millis(times.max()));
    }
    figures
}

fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1_000.0
}

/// With the three significant digits of the measures.
fn in_millis(time: Duration) -> String {
    let millis = millis(time);
    let digits = if millis < 10.0 {
        2
    } else if millis < 100.0 {
        1
    } else {
        0
    };
    format!("{millis:.digits$} ms")
}
