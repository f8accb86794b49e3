//! Commands of `deltafan` that ask servers, and the command line of all.
//!
//! Owns arguments, their meaning, output and exit codes. The relay is another server: nothing here knows its
//! library.

mod admin_client;
pub mod cli;
mod client;
mod http1_client;
mod load;
mod output;
pub mod process;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use deltafan_transport::terminal::printable;
use serde_json::Value;

use admin_client::{Answers, Asked};
use cli::{AdminArgs, ClientCommand, GetArgs, LoadArgs, Order, RolloutCommand, WatchArgs};
pub use client::NodeFile;
use output::Format;
use process::{Signals, complain, print, raise_descriptor_limit, runtime, small_runtime, unless_unread};

/// As of clap.
const BAD_USAGE: u8 = 2;
/// Of `status`: the relay answered with a fault.
const NOT_WELL: u8 = 3;

impl ClientCommand {
    /// Runs the command, and returns the exit code.
    ///
    /// # Errors
    ///
    /// Words for the user.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let whole = |is_whole: bool| if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        match self {
            Self::Status(to) => ask(&Asked::get("/status", Vec::new(), None), &to),
            Self::Clients(args) => ask(&args.asked(), &args.admin),
            Self::Nacks(args) => ask(&args.asked(), &args.admin),
            Self::Resources(args) => ask(&args.asked(), &args.admin),
            Self::History(args) => ask(&args.asked(), &args.admin),
            Self::Rollout(args) => match args.command.map_or(Err(args.admin), RolloutCommand::into_order) {
                Ok(given) => order(&given),
                Err(to) => ask(&Asked::get("/rollout", Vec::new(), None), &to),
            },
            Self::Order(command) => order(&command.into_order()),
            Self::Get(args) => get(*args).map(whole),
            Self::Watch(args) => watch(*args).map(|()| ExitCode::SUCCESS),
            Self::Load(args) => load(*args).map(whole),
        }
    }
}

/// Report on a snapshot, in this form.
///
/// # Errors
///
/// It cannot be written as YAML.
pub fn show_snapshot(report: &Value, format: Format) -> anyhow::Result<String> {
    format.write(|| Ok(report), || admin_client::snapshot(report))
}

/// Returns whether all requested resources exist.
fn get(args: GetArgs) -> anyhow::Result<bool> {
    let (output, timeout) = (args.output, args.timeout);
    let answer = small_runtime()?.block_on(client::get(args.into_query()?, timeout))?;
    print(&client::show(&answer, output)?)?;
    if let Some(reason) = &answer.reason {
        complain(format_args!("deltafan: {}", printable(reason)));
    }
    Ok(answer.is_whole())
}

/// Runs until a signal, the end of the time, or a closed stdout.
fn watch(args: WatchArgs) -> anyhow::Result<()> {
    let (output, time, query) = (args.output, args.time.unwrap_or(Duration::MAX), args.into_query()?);
    let ended = small_runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let stop = async { _ = tokio::time::timeout(time, signals.stop.asked()).await };
        client::watch(&query, output, stop).await
    });
    ended.or_else(unless_unread)
}

/// Returns whether each client had an answer.
fn load(args: LoadArgs) -> anyhow::Result<bool> {
    raise_descriptor_limit();
    let output = args.output;
    let of = args.into_load()?;
    let runtime = runtime()?;
    let report = runtime.block_on(async {
        let mut signals = Signals::new()?;
        load::load(of, signals.stop.asked()).await
    });
    runtime.shutdown_background();
    let report = report?;
    print(report.show(output)?)?;
    Ok(report.is_whole())
}

/// Asks relays, and prints their answers. A filter without a match fails, like a missing name.
fn ask(asked: &Asked, to: &AdminArgs) -> anyhow::Result<ExitCode> {
    let answers = small_runtime()?.block_on(Answers::of(&to.admin, to.timeout, asked))?;
    print(answers.show(to.output)?)?;
    let is_well = answers.verdict()?;
    Ok(if is_well { ExitCode::SUCCESS } else { NOT_WELL.into() })
}

/// Gives an order, once a person has confirmed it.
fn order(order: &Order) -> anyhow::Result<ExitCode> {
    if !order.is_confirmed {
        if !std::io::stdin().is_terminal() {
            complain("deltafan: stdin is no terminal to ask on; confirm the order with --yes");
            return Ok(BAD_USAGE.into());
        }
        let relays: Vec<String> = order.admin.admin.iter().map(ToString::to_string).collect();
        let mut stderr = std::io::stderr();
        write!(stderr, "{} at {}? [y/N] ", printable(&order.words), relays.join(", "))?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        let is_yes = ["y", "yes"].iter().any(|yes| answer.trim().eq_ignore_ascii_case(yes));
        anyhow::ensure!(is_yes, "the order was not given");
    }
    ask(&order.asked, &order.admin)
}
