//! Pages of the admin address that are read beside a fleet that is sent changes.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Bench;
use super::update::print_cost;
use crate::measure::median;
use crate::shape::{Load, resource_name};
use crate::subject::{Cost, RelaySubject, Subject as _};
use crate::target::page;
use crate::verdict::Goal;

const CLIENTS: usize = 10_000;
const RESOURCES: usize = 1000;
/// Pause of a browser between two readings: the page of the relay reads what it shows every 2 s.
const PACE: Duration = Duration::from_secs(2);

/// Page, and the pause between two readings of it.
type Reading = (String, Duration);

/// How late changes are while somebody reads a page again and again, beside what they are while nobody does.
pub(super) fn pages(bench: &Bench, name: &str) -> io::Result<()> {
    let changed = resource_name(0);
    let readings = [
        ("none", None),
        ("clients, as a browser", Some((format!("/clients?limit={CLIENTS}"), PACE))),
        ("clients", Some((format!("/clients?limit={CLIENTS}"), Duration::ZERO))),
        ("history", Some((format!("/history?type=eds&name={changed}"), Duration::ZERO))),
        ("resources", Some(("/resources?type=eds".to_owned(), Duration::ZERO))),
        ("metrics", Some(("/metrics".to_owned(), Duration::ZERO))),
    ];
    let mut fleet = RelaySubject::start(bench.cores, &Load::delta(CLIENTS, RESOURCES))?;
    let mut costs: Vec<Vec<Cost>> = readings.iter().map(|_| Vec::new()).collect();
    let mut seconds: Vec<Vec<f64>> = readings.iter().map(|_| Vec::new()).collect();
    // The first round warms up.
    for round in 0..=bench.rounds {
        for (at, (_, reading)) in readings.iter().enumerate() {
            let (cost, read) = round_beside(&mut fleet, round * readings.len() + at, reading.as_ref())?;
            if round > 0 {
                costs[at].push(cost);
                seconds[at].extend(read);
            }
        }
    }
    for (at, (page, reading)) in readings.iter().enumerate() {
        print_cost(if at == 0 { name } else { "" }, page, &Cost::medians(&costs[at]));
        if reading.is_some() {
            let longest = seconds[at].iter().copied().fold(0.0, f64::max);
            println!("    read {} times, median {:.3} s", seconds[at].len(), median(seconds[at].clone()));
            Goal::new(1.0, 0.5).at_most("seconds for the slowest", longest);
            let ratios = costs[at].iter().zip(&costs[0]).map(|(beside, alone)| beside.p99_ms / alone.p99_ms);
            Goal::new(1.1, 1.02)
                .at_most("times the p99 of changes that nobody watches", median(ratios.collect()));
        }
    }
    Ok(())
}

/// A round while a page is read, and the seconds that each reading took.
fn round_beside(
    fleet: &mut RelaySubject,
    round: usize,
    reading: Option<&Reading>,
) -> io::Result<(Cost, Vec<f64>)> {
    let (admin, is_over) = (fleet.relay.admin, AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn(|| reading.map_or(Ok(Vec::new()), |reading| read(admin, reading, &is_over)));
        let cost = fleet.round(round);
        is_over.store(true, Ordering::Relaxed);
        let seconds = reader.join().map_err(|_| io::Error::other("the reader of pages panicked"))??;
        Ok((cost?, seconds))
    })
}

fn read(admin: SocketAddr, (path, pause): &Reading, is_over: &AtomicBool) -> io::Result<Vec<f64>> {
    let mut seconds = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answer = page(admin, path)?;
        if !answer.starts_with("HTTP/1.1 200") {
            return Err(io::Error::other(format!("{path}: {}", answer.lines().next().unwrap_or_default())));
        }
        seconds.push(begun.elapsed().as_secs_f64());
        let next = Instant::now() + *pause;
        while Instant::now() < next && !is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(seconds)
}
