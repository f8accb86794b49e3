//! Figures beside what they are to reach (`docs/benchmarks.md`). They say, they do not fail: machines differ.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Where figures go beside stdout, and the row that is measured.
static KEPT: Mutex<Option<(File, String)>> = Mutex::new(None);

/// Writes figures to a file from now on, a JSON object on each line.
pub(crate) fn keep(path: &Path) -> io::Result<()> {
    *KEPT.lock() = Some((File::create(path)?, String::new()));
    Ok(())
}

/// Names the row of the figures that follow.
pub(crate) fn begin(row: &str) {
    if let Some((_, of)) = &mut *KEPT.lock() {
        row.clone_into(of);
    }
}

/// Writes a figure of the row that is measured.
pub(crate) fn figure(what: &str, figure: impl Into<Value>) {
    if let Some((file, row)) = &mut *KEPT.lock() {
        let line = json!({"row": row, "what": what, "figure": figure.into()});
        writeln!(file, "{line}").expect("the file takes a line");
    }
}

/// Bound that a figure has to reach, and one that it had better.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) must: f64,
    pub(crate) stretch: f64,
}

impl Goal {
    pub(crate) const fn new(must: f64, stretch: f64) -> Self {
        Self { must, stretch }
    }

    /// A figure that should be small.
    pub(crate) fn at_most(self, what: &str, value: f64) {
        self.print(what, value, '≤', |value, goal| value <= goal);
    }

    /// A figure that should be large.
    pub(crate) fn at_least(self, what: &str, value: f64) {
        self.print(what, value, '≥', |value, goal| value >= goal);
    }

    fn print(self, what: &str, value: f64, sign: char, holds: fn(f64, f64) -> bool) {
        let verdict = |goal| if holds(value, goal) { "PASS" } else { "BELOW" };
        let Self { must, stretch } = self;
        println!(
            "    {what}: {value:.2}   must {sign} {must}: {}   stretch {sign} {stretch}: {}",
            verdict(must),
            verdict(stretch)
        );
        figure(what, json!({"value": value, "sign": sign.to_string(), "must": must, "stretch": stretch}));
    }
}
