//! What a change costs the relay per client, beside what it costs others and what it must cost anybody.
//!
//! The relay runs as a process of its own, pinned to one core; origin and load client share the other. All figures
//! that are compared come from interleaved rounds of one run. `docs/benchmarks.md` says how to read them.

#![allow(clippy::expect_used, clippy::unwrap_used, missing_debug_implementations)]

mod floor;
mod h2;
mod load;
mod measure;
mod origin;
mod row;
mod shape;
mod target;

use std::net::SocketAddr;

use clap::{Parser, Subcommand};
use shape::Load;

#[derive(Parser)]
struct Cli {
    /// The few rows and checks that CI runs.
    #[arg(long)]
    short: bool,
    /// Only rows whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Rounds of each measurement; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The relay alone, without peer and floor: for a profiler.
    #[arg(long)]
    alone: bool,
    /// Cargo passes this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What this program is when the bench starts it again as a process of its own.
#[derive(Subcommand)]
enum Role {
    /// The load client.
    Load { target: SocketAddr, load: String },
    /// The client of the raw loop.
    FloorLoad { target: SocketAddr, clients: usize, message: usize },
    /// The server of the raw loop.
    Floor { clients: usize, message: usize },
}

fn main() {
    let cli = Cli::parse();
    let result = match cli.role {
        Some(Role::Load { target, load }) => {
            let load: Load = load.parse().expect("a load that the bench wrote");
            load::run(target, &load)
        }
        Some(Role::FloorLoad { target, clients, message }) => floor::run_load(target, clients, message),
        Some(Role::Floor { clients, message }) => floor::run_server(clients, message),
        None if cli.short => row::short(),
        None => row::all(&cli.only, cli.rounds, cli.alone),
    };
    if let Err(error) = result {
        eprintln!("fanout: {error}");
        std::process::exit(1);
    }
}
