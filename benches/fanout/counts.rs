//! Cost of an update in figures that do not depend on the machine, as callgrind counts them.
//!
//! A relay runs twice, for few changes and for many: the difference is what the updates between them cost. CI compares it
//! with `benches/counts.txt`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::process::Command;

use super::process::Cores;
use super::shape::{Load, Transport};
use super::subject::{RelaySubject, Subject as _};

/// Part by which a figure may exceed that of the file.
const ROOM: f64 = 0.03;
/// Changes of the short and of the long run: so many that what a start takes more in one than in the other is no part of it.
const CHANGES: [usize; 2] = [5, 65];
/// Figures that are allowed, a row a line.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/counts.txt");

/// Figures by name.
type Counts = BTreeMap<&'static str, f64>;

fn rows() -> [(&'static str, Load); 4] {
    [
        ("delta wildcard 400 x 100", Load::delta(400, 100)),
        ("delta named 400 x 10 of 1000", Load::named(400, 10, 1000)),
        ("sotw cds wildcard 400 x 100", Load::wildcard(Transport::Sotw, 400, 100)),
        ("rest poll 400 x 1 name", Load { polls: true, stride: 0, ..Load::named(400, 1, 1) }),
    ]
}

/// Counts every row, and compares it with that of the file.
pub(crate) fn run(cores: Cores) -> io::Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        let why = "valgrind is not here";
        println!("SKIPPED: the cost of an update in instructions and the like, as {why}");
        return if std::env::var_os("CI").is_some() { Err(io::Error::other(why)) } else { Ok(()) };
    }
    let file = fs::read_to_string(FILE)?;
    let mut faults = 0;
    for (name, load) in rows() {
        let [few, many] = [of_run(cores, &load, CHANGES[0])?, of_run(cores, &load, CHANGES[1])?];
        let updates = ((CHANGES[1] - CHANGES[0]) * load.readers()) as f64;
        let of_update = |what: &str| (many[what] - few[what]) / updates;
        let figures: Vec<String> = many.keys().map(|what| format!("{what} {:.2}", of_update(what))).collect();
        println!("{name}: {}", figures.join(", "));
        let allowed = file.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let allowed = allowed.ok_or_else(|| io::Error::other(format!("{FILE} lacks {name}")))?;
        for figure in allowed.split(", ") {
            let (what, most) = figure.split_once(' ').unwrap_or((figure, ""));
            let most: f64 = most.parse().map_err(|error| io::Error::other(format!("{figure}: {error}")))?;
            if of_update(what) > most * (1.0 + ROOM) {
                println!("FAULT: {what} {:.2}, at most {most} and {:.0} %", of_update(what), ROOM * 100.0);
                faults += 1;
            }
        }
    }
    match faults {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{faults} figures exceed those of {FILE}"))),
    }
}

/// Figures of a relay, from its start to its end, with so many changes. Each is acknowledged before the next, so that a
/// connection is always polled as often.
fn of_run(cores: Cores, load: &Load, changes: usize) -> io::Result<Counts> {
    let home = tempfile::tempdir()?;
    let out = home.path().join("callgrind.out");
    let mut subject = RelaySubject::start(cores, &Load { counted: Some(out.clone()), ..load.clone() })?;
    for change in 0..changes {
        subject.push(change)?;
        subject.process().settled_cpu()?;
    }
    subject.end()?;
    Ok(totals(&fs::read_to_string(out)?))
}

/// Reads callgrind's output: costs by line, and calls, each followed by a line with the cost of the callee. Names are
/// compressed: `(id) name` where one comes first, `(id)` from then on.
fn totals(text: &str) -> Counts {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let (mut events, mut function, mut callee, mut is_in_callee) = (Vec::new(), "", "", false);
    let mut counts: Counts = [ALLOCATIONS, ATOMICS, CLOCK_READS, COPYING, INSTRUCTIONS, SYSTEM_CALLS]
        .map(|what| (what, 0.0))
        .into();
    for line in text.lines() {
        let (key, value) = line.split_once(['=', ':']).unwrap_or(("", line));
        match key {
            "fn" | "cfn" => {
                let (id, name) = value.split_once(' ').unwrap_or((value, ""));
                let known = names.entry(id).or_insert(name);
                *(if key == "fn" { &mut function } else { &mut callee }) = *known;
            }
            "calls" => {
                is_in_callee = true;
                let calls: f64 =
                    value.split(' ').next().and_then(|calls| calls.parse().ok()).unwrap_or_default();
                if let Some(what) = counted_calls(function, callee) {
                    *counts.entry(what).or_default() += calls;
                }
                // Under valgrind each is a system call.
                if callee.starts_with(CLOCK) {
                    *counts.entry(SYSTEM_CALLS).or_default() -= calls;
                }
            }
            "events" => events = value.split_whitespace().collect(),
            "totals" => {
                for (event, total) in events.iter().zip(value.split_whitespace()) {
                    let what = match *event {
                        "Ir" => INSTRUCTIONS,
                        "sysCount" => SYSTEM_CALLS,
                        "Ge" => ATOMICS,
                        _ => continue,
                    };
                    *counts.entry(what).or_default() += total.parse().unwrap_or(f64::NAN);
                }
            }
            "" if std::mem::take(&mut is_in_callee) => {}
            "" if function.starts_with("__mem") => {
                let own = value.split(' ').nth(1).and_then(|own| own.parse::<f64>().ok());
                *counts.entry(COPYING).or_default() += own.unwrap_or_default();
            }
            _ => {}
        }
    }
    counts
}

const ALLOCATIONS: &str = "allocations";
/// Atomic instructions: locks, and counts of references.
const ATOMICS: &str = "atomics";
const CLOCK_READS: &str = "clock_reads";
/// Instructions that copy, fill or compare memory.
const COPYING: &str = "copying";
const INSTRUCTIONS: &str = "instructions";
const SYSTEM_CALLS: &str = "system_calls";

const CLOCK: &str = "clock_gettime";

fn counted_calls(caller: &str, callee: &str) -> Option<&'static str> {
    let allocates = ["_rjem_malloc", "_rjem_mallocx", "_rjem_calloc", "_rjem_realloc", "_rjem_rallocx"];
    match callee {
        _ if allocates.contains(&callee) => Some(ALLOCATIONS),
        // The metrics' clock is compared with the system's once, thousands of times, more often on a busy machine.
        _ if caller.starts_with("quanta::Calibration") => None,
        _ if callee.starts_with(CLOCK) => Some(CLOCK_READS),
        _ => None,
    }
}
