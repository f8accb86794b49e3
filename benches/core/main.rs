//! Cost of the core without sockets: nanoseconds per client-update and per ACK, and how long a change takes
//! while clients join; and how single operations grow with what is beside them.
//!
//!     cargo bench --bench core                          # everything
//!     cargo bench --bench core -- --rounds 3 wildcard   # some rows, few rounds: for a profiler that counts

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod fleet;
mod growth;
mod writer;

use std::time::Duration;

use deltafan::cache::Protocol;
use fleet::{Fleet, Round, Shape};

const ROWS: [(&str, Shape); 9] = [
    ("delta wildcard 1000 x 1000", shape(Protocol::Delta, 1000, 1000, 0)),
    ("delta wildcard 5000 x 1000", shape(Protocol::Delta, 5000, 1000, 0)),
    ("delta wildcard 10000 x 100", shape(Protocol::Delta, 10_000, 100, 0)),
    ("the same in 100 sets", Shape { sets: 100, ..shape(Protocol::Delta, 10_000, 100, 0) }),
    ("delta named 1000 x 10 of 1000", shape(Protocol::Delta, 1000, 1000, 10)),
    ("delta named 5000 x 10 of 1000", shape(Protocol::Delta, 5000, 1000, 10)),
    ("delta named 500 x 200 of 1000", shape(Protocol::Delta, 500, 1000, 200)),
    ("sotw cds wildcard 1000 x 1000", shape(Protocol::Sotw, 1000, 1000, 0)),
    ("sotw cds named 1000 x 10 of 1000", shape(Protocol::Sotw, 1000, 1000, 10)),
];

const fn shape(protocol: Protocol, clients: usize, resources: usize, names: usize) -> Shape {
    Shape { protocol, clients, resources, names, sets: 0 }
}

fn main() {
    let mut rounds = 50;
    let mut only = Vec::new();
    // `cargo bench` passes `--bench`.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => rounds = args.next().and_then(|text| text.parse().ok()).expect("--rounds N"),
            _ => only.push(arg),
        }
    }
    let is_wanted = |row: &str| only.is_empty() || only.iter().any(|text| row.contains(text.as_str()));

    println!("{:34} {:>9} {:>9} {:>9}", "median ns per client", "change", "update", "ACK");
    for (row, shape) in ROWS.into_iter().filter(|(row, _)| is_wanted(row)) {
        let mut fleet = Fleet::new(shape);
        let took: Vec<Round> = (0..rounds).map(|_| fleet.round()).collect();
        let each = |part: fn(&Round) -> Duration| {
            let mut parts: Vec<u128> = took.iter().map(|round| part(round).as_nanos()).collect();
            parts.sort_unstable();
            parts[parts.len() / 2] / shape.clients as u128
        };
        println!(
            "{row:34} {:>9} {:>9} {:>9}",
            each(|round| round.change),
            each(|round| round.updates),
            each(|round| round.acks)
        );
    }
    if is_wanted("joins") {
        writer::joins();
    }
    if is_wanted("resubscribe") {
        writer::resubscribe();
    }
    if is_wanted("growth") {
        growth::rows();
    }
}
