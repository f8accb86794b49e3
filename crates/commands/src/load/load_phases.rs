//! Phases of a load: clients connect, first states arrive, changes are measured. A terminal shows the progress.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Load;
use super::load_client::Member;
use super::load_measures::Measures;
use super::load_report::{Report, cpu_time};

/// Silence that ends the first states of all clients.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for that silence.
const LONGEST_QUIET: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(100);
const CONNECTING: &str = "connecting  {bar:40} {pos} of {len} clients  {msg}";
const MEASURING: &str = "measuring   {bar:40} {pos} of {len} s  {msg}";

/// Measures until the time is over or `stop` is done.
pub(crate) async fn load(of: Load, stop: impl Future<Output = ()>) -> anyhow::Result<Report> {
    let of = Arc::new(of);
    let (begun, cpu) = (Instant::now(), cpu_time());
    let measures = Arc::new(Mutex::new(Measures::default()));
    let mut fleet = JoinSet::new();
    let run = run(&of, &mut fleet, &measures);
    tokio::select! {
        () = run => {}
        () = stop => {}
    }
    let used = (cpu_time() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    // So that the figures fit together.
    fleet.shutdown().await;
    let measures = measures.lock();
    if measures.answered == 0 {
        match &measures.last_failure {
            Some(failure) => bail!("{failure}"),
            None => bail!("{} has answered no client", of.server.uri),
        }
    }
    Ok(Report::new(&of, &measures, used))
}

async fn run(of: &Arc<Load>, fleet: &mut JoinSet<()>, measures: &Arc<Mutex<Measures>>) {
    // An interval of zero panics.
    let mut pace =
        tokio::time::interval((Duration::from_secs(1) / of.rate.get()).max(Duration::from_micros(1)));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let progress = Progress::new();
    progress.begin(CONNECTING, of.clients as u64);
    for number in 0..of.clients {
        pace.tick().await;
        fleet.spawn(Member::new(of, number, Arc::clone(measures)).live());
        progress.joined(&measures.lock());
    }
    let late = Instant::now() + of.patience;
    while !measures.lock().is_settled(of.clients) && Instant::now() < late {
        tokio::time::sleep(TICK).await;
        progress.joined(&measures.lock());
    }
    if measures.lock().answered == 0 {
        return;
    }
    let late = Instant::now() + LONGEST_QUIET;
    let is_quiet = || measures.lock().last_response.is_none_or(|last| last.elapsed() >= QUIET);
    while !is_quiet() && Instant::now() < late {
        tokio::time::sleep(TICK).await;
    }
    let begun = Instant::now();
    measures.lock().begin(begun);
    progress.begin(MEASURING, of.duration.as_secs());
    while let Some(left) = of.duration.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        tokio::time::sleep(TICK.min(left)).await;
        progress.measured(begun.elapsed(), &measures.lock());
    }
}

/// On stderr; hidden unless that is a terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self(ProgressBar::with_draw_target(None, target))
    }

    fn joined(&self, measures: &Measures) {
        self.0.set_position(measures.answered as u64);
        if measures.failed > 0 {
            self.0.set_message(format!("{} attempts failed", measures.failed));
        }
    }

    fn measured(&self, time: Duration, measures: &Measures) {
        self.0.set_position(time.as_secs());
        let lost =
            if measures.lost > 0 { format!(", {} streams lost", measures.lost) } else { String::new() };
        self.0.set_message(format!("{} changes{lost}", measures.changes));
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
