//! The rows of the bench, in the order in which they are measured. `benches/README.md` says what each is for.

mod churn;
mod groups;
mod join;
pub(crate) mod memory;
mod operators;
mod polls;
mod sets;
mod silent;
mod tls;
mod tree;
mod update;

use std::io;
use std::path::PathBuf;

pub(crate) use silent::growth_by_pushes;
pub(crate) use update::flatness;

use super::process::Cores;
use super::shape::{Client, Load, Transport};
use super::verdict::{Goal, begin};
use update::{Goals, update};

/// Common parts of all rows.
pub(crate) struct Bench {
    pub(crate) cores: Cores,
    /// Rounds of each measurement that has any; the median counts.
    pub(crate) rounds: usize,
    /// The relay alone, without peer and floor.
    pub(crate) alone: bool,
    /// The program of the go-control-plane peer.
    pub(crate) peer: Option<PathBuf>,
    /// How long the sustained row lasts.
    pub(crate) seconds: u64,
    /// Client-updates per second in it.
    pub(crate) rate: usize,
}

type Run = Box<dyn Fn(&Bench, &str) -> io::Result<()>>;

/// Measures the row of this name, or those whose name contains `only`.
pub(crate) fn run(bench: &Bench, only: &str) -> io::Result<()> {
    let mut found = false;
    let rows = rows();
    let exact = rows.iter().any(|(name, _)| *name == only);
    for (name, row) in rows.iter().filter(|(name, _)| if exact { *name == only } else { name.contains(only) })
    {
        found = true;
        begin(name);
        row(bench, name).map_err(|error| io::Error::other(format!("{name}: {error}")))?;
    }
    if found { Ok(()) } else { Err(io::Error::other(format!("no row is named `{only}`; --list has them"))) }
}

pub(crate) fn list() {
    rows().iter().for_each(|(name, _)| println!("{name}"));
}

fn rows() -> Vec<(&'static str, Run)> {
    let updates =
        |load: Load, goals: Goals| -> Run { Box::new(move |bench, name| update(bench, name, &load, goals)) };
    let idle = |stride, goal| -> Run {
        let load = memory::four_types(2000, 50, stride);
        Box::new(move |bench, name| memory::idle(bench, name, &load, goal))
    };
    let none = Goals::default();
    let linear = |must, stretch| Goals { linear: Some(Goal::new(must, stretch)), ..none };
    let real = |client, load| Load { client, ..load };
    let floor = Some(Goal::new(1.5, 1.2));
    let wildcard =
        |client| updates(real(client, Load::delta(1000, 1000)), Goals { floor, ..linear(20.0, 30.0) });
    vec![
        ("delta wildcard 100 x 100", updates(Load::delta(100, 100), none)),
        ("delta wildcard 1000 x 100", updates(Load::delta(1000, 100), none)),
        ("delta wildcard 3000 x 100", updates(Load::delta(3000, 100), none)),
        (
            "delta wildcard 1000 x 1000",
            updates(
                Load::delta(1000, 1000),
                Goals { floor: Some(Goal::new(2.0, 1.3)), ..linear(20.0, 30.0) },
            ),
        ),
        ("grpc-go: delta wildcard 1000 x 1000", wildcard(Client::GrpcGo)),
        ("c-core: delta wildcard 1000 x 1000", wildcard(Client::CCore)),
        (
            "grpc-go: delta named 5000 x 10 of 1000",
            updates(real(Client::GrpcGo, Load::named(5000, 10, 1000)), Goals { floor, ..linear(5.0, 7.0) }),
        ),
        (
            "grpc-go: sotw cds wildcard 1000 x 1000",
            updates(
                real(Client::GrpcGo, Load::wildcard(Transport::Sotw, 1000, 1000)),
                Goals { floor, ..linear(12.0, 20.0) },
            ),
        ),
        (
            "grpc-go: delta wildcard 1000 x 5000",
            updates(real(Client::GrpcGo, Load::delta(1000, 5000)), linear(50.0, 50.0)),
        ),
        ("delta wildcard 1000 x 10000", updates(Load::delta(1000, 10_000), none)),
        ("flat: 10000 resources against 100", Box::new(update::flat)),
        (
            "delta wildcard 1000 x 1000, 100 streams each",
            updates(Load { streams_per_connection: 100, ..Load::delta(1000, 1000) }, none),
        ),
        (
            "delta wildcard 1000 x 1000, 5 % do not read",
            updates(Load { silent_percent: 5, ..Load::delta(1000, 1000) }, none),
        ),
        ("delta named 1000 x 10 of 1000", updates(Load::named(1000, 10, 1000), none)),
        ("delta named 5000 x 10 of 1000", updates(Load::named(5000, 10, 1000), linear(4.0, 7.0))),
        (
            "sotw cds wildcard 1000 x 1000",
            updates(Load::wildcard(Transport::Sotw, 1000, 1000), linear(10.0, 20.0)),
        ),
        ("rest poll 1000 x 1 name, of a delta stream", Box::new(polls::update)),
        ("memory of 5000 held polls", Box::new(polls::held)),
        (
            "delta wildcard 10000 x 100",
            updates(Load::delta(10_000, 100), Goals { last: Some(Goal::new(2.0, 1.3)), ..none }),
        ),
        ("10000 clients in 100 sets of parameters", Box::new(sets::sets)),
        ("10000 clients in 200 groups", Box::new(groups::groups)),
        ("guarded: delta wildcard 1000 x 1000", Box::new(update::guarded)),
        ("pages of operators beside 10000 clients", Box::new(operators::pages)),
        ("a worker on each of two cores", Box::new(update::workers)),
        ("one change through 1, 2 and 3 relays", Box::new(update::chain)),
        ("a million clients at a hundredth", Box::new(tree::tree)),
        ("join of 1000 wildcard clients x 1000", Box::new(join::join)),
        ("reconnect storm of 15000", Box::new(join::storm)),
        ("100000 streams leave at once", Box::new(join::leave)),
        ("memory of an idle client, shared names", idle(0, Goal::new(6.0, 5.0))),
        ("memory of an idle client, own names", idle(37, Goal::new(9.0, 8.0))),
        ("memory of a subscription", Box::new(memory::subscription)),
        ("memory of 19000 connections", Box::new(|bench, name| memory::fleet(bench, name, 19_000, 1))),
        ("memory of 100000 streams", Box::new(|bench, name| memory::fleet(bench, name, 100_000, 100))),
        ("tls: an update", Box::new(tls::update)),
        ("tls: memory of an idle client", Box::new(tls::idle)),
        ("tls: 15000 back after a restart", Box::new(tls::storm)),
        ("tls: 15000 all at once", Box::new(tls::all_at_once)),
        ("tls: live streams while 15000 shake hands", Box::new(tls::live)),
        ("500 clients stop reading", Box::new(silent::silent)),
        ("joins onto 100000 resources under churn", Box::new(churn::joins)),
        ("sustained", Box::new(churn::sustained)),
    ]
}
