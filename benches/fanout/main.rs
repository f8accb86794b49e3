//! Cost of a change to the relay per client, beside its cost to others and the least that it must cost anybody.
//!
//! The relay runs as a process of its own, pinned to one core; origin and load client share another. All figures
//! that are compared come from interleaved rounds of one run. `benches/README.md` says how to read them.

#![allow(clippy::expect_used, clippy::unwrap_used, missing_debug_implementations)]

mod counts;
mod floor;
mod h2;
mod load;
mod measure;
mod origin;
mod polls;
mod process;
mod report;
mod request;
mod response;
mod rows;
mod shape;
mod short;
mod storm;
mod subject;
mod target;
mod tls;
mod verdict;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use process::Cores;
use rows::Bench;
use target::Peer;

/// Measure the relay, or any xDS server.
#[derive(Parser)]
struct Cli {
    /// The properties that CI checks, instead of the rows.
    #[arg(long)]
    short: bool,
    /// Count an update in figures that do not depend on the machine, and compare them with `benches/counts.txt`. Needs valgrind.
    #[arg(long)]
    counts: bool,
    /// Name the rows.
    #[arg(long)]
    list: bool,
    /// Only rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Rounds of each measurement; the median counts.
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// The relay alone, without peer and floor: for a profiler.
    #[arg(long)]
    alone: bool,
    /// How long the sustained row lasts.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Client-updates per second in the sustained row.
    #[arg(long, default_value_t = 50_000)]
    rate: usize,
    /// Write the figures to this file too, a JSON object on each line; `benches/page.py` makes tables and charts of them.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Cargo passes this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Role of this program when the bench starts it again as a process of its own.
#[derive(Subcommand)]
#[command(disable_help_subcommand = true)]
enum Role {
    /// Whatever the program is, on some cores, for as long as the bench lives.
    #[command(hide = true)]
    Run {
        /// Numbers with a comma between them.
        cores: String,
        parent: i32,
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// The load client.
    #[command(hide = true)]
    Load { target: SocketAddr, load: String },
    /// A fleet that comes all at once, and gives up what takes too long.
    #[command(hide = true)]
    Storm { target: SocketAddr, storm: String },
    /// The client of the raw loop.
    #[command(hide = true)]
    FloorLoad {
        target: SocketAddr,
        clients: usize,
        #[command(flatten)]
        sizes: floor::Sizes,
    },
    /// The server of the raw loop.
    #[command(hide = true)]
    Floor {
        clients: usize,
        #[command(flatten)]
        sizes: floor::Sizes,
    },
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        Ok(rounds) => Ok(rounds),
        Err(error) => Err(format!("{error}")),
    }
}

fn main() {
    let mut cli = Cli::parse();
    let result = match cli.role.take() {
        Some(role) => role.play(),
        None => bench(&cli),
    };
    if let Err(error) = result {
        eprintln!("fanout: {error}");
        std::process::exit(1);
    }
}

impl Role {
    fn play(self) -> io::Result<()> {
        match self {
            Self::Run { cores, parent, program, args } => {
                process::become_program(&cores, parent, &program, &args)
            }
            Self::Load { target, load } => {
                let load: shape::Load = serde_json::from_str(&load)?;
                load::run(target, &load)
            }
            Self::Storm { target, storm } => storm::run(target, &serde_json::from_str(&storm)?),
            Self::FloorLoad { target, clients, sizes } => floor::run_load(target, clients, sizes),
            Self::Floor { clients, sizes } => floor::until_closed(floor::run_server(clients, sizes)),
        }
    }
}

fn bench(cli: &Cli) -> io::Result<()> {
    if cli.list {
        rows::list();
        return Ok(());
    }
    // The peer is built on all cores, before this process takes its own.
    let wants_peer = !cli.short && !cli.alone && !cli.counts;
    let peer = if wants_peer { Peer::build() } else { None };
    if wants_peer && peer.is_none() {
        println!("SKIPPED: the rows beside go-control-plane (go is not here, or its modules cannot be had)");
    }
    let cores = Cores::take()?;
    if cli.short {
        return short::run(cores);
    }
    if cli.counts {
        return counts::run(cores);
    }
    if let Some(path) = &cli.json {
        verdict::keep(path)?;
    }
    let Cli { rounds, alone, seconds, rate, .. } = *cli;
    let bench = Bench { cores, rounds, alone, peer, seconds, rate };
    rows::run(&bench, &cli.only)
}
