//! Progress of a load, on a terminal only.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::load_measures::Measures;

const CONNECTING: &str = "connecting  {bar:40} {pos} of {len} clients  {msg}";
const MEASURING: &str = "measuring   {bar:40} {pos} of {len} s  {msg}";

/// On stderr; hidden unless that is a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self(ProgressBar::with_draw_target(None, target))
    }

    pub(super) fn connecting(&self, clients: usize) {
        self.begin(CONNECTING, clients as u64);
    }

    pub(super) fn joined(&self, measures: &Measures) {
        self.0.set_position(measures.answered() as u64);
        if measures.failed > 0 {
            self.0.set_message(format!("{} attempts failed", measures.failed));
        }
    }

    pub(super) fn measuring(&self, time: Duration) {
        self.begin(MEASURING, time.as_secs());
    }

    pub(super) fn measured(&self, time: Duration, measures: &Measures) {
        self.0.set_position(time.as_secs());
        let lost =
            if measures.lost > 0 { format!(", {} streams lost", measures.lost) } else { String::new() };
        self.0.set_message(format!("{} changes{lost}", measures.changes()));
    }

    fn begin(&self, template: &str, length: u64) {
        // Fails only for a malformed template.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style.progress_chars("##-"));
        }
        self.0.reset();
        self.0.set_length(length);
        self.0.set_message("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
