//! Phases of a load: clients connect, first states arrive, changes are measured. A terminal shows the progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
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
    // On stderr, if that is a terminal. Clears itself.
    let bar = ProgressBar::new(0);
    begin(&bar, CONNECTING, of.clients as u64);
    let joined = || {
        let measures = measures.lock();
        show(&bar, measures.answered as u64, &measures);
    };
    for number in 0..of.clients {
        pace.tick().await;
        fleet.spawn(Member::new(of, number, Arc::clone(measures)).live());
        joined();
    }
    let late = Instant::now() + of.patience;
    while !measures.lock().is_settled(of.clients) && Instant::now() < late {
        tokio::time::sleep(TICK).await;
        joined();
    }
    if measures.lock().answered == 0 {
        return;
    }
    let late = Instant::now() + LONGEST_QUIET;
    let is_quiet = || measures.lock().last_response.is_none_or(|last| last.elapsed() >= QUIET);
    while !is_quiet() && Instant::now() < late {
        tokio::time::sleep(TICK).await;
    }
    let measured_since = Instant::now();
    measures.lock().begin(measured_since);
    begin(&bar, MEASURING, of.duration.as_secs());
    while let Some(left) = of.duration.checked_sub(measured_since.elapsed()).filter(|left| !left.is_zero()) {
        tokio::time::sleep(TICK.min(left)).await;
        show(&bar, measured_since.elapsed().as_secs(), &measures.lock());
    }
}

fn begin(bar: &ProgressBar, template: &str, length: u64) {
    // Fails only for a malformed template.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("##-"));
    }
    bar.reset();
    bar.set_length(length);
}

fn show(bar: &ProgressBar, position: u64, of: &Measures) {
    bar.set_position(position);
    let Measures { changes, failed, lost, .. } = of;
    bar.set_message(format!("{changes} changes, {failed} attempts failed, {lost} streams lost"));
}
