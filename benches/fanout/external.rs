//! The load of the bench against any xDS server: nothing of ours is started but the load client.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;

use super::measure::{Threads, median, monotonic_nanos, rss_kib};
use super::process::Cores;
use super::shape::{Kind, Load, Transport};
use super::target::Driver;

/// The number of the change, for the command that makes it.
const CHANGE_VARIABLE: &str = "CHANGE";

/// A server and the fleet that is to connect to it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Load this server, HOST:PORT, over cleartext HTTP/2, instead of ours.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) target: Option<String>,
    /// Its process, where it runs on this machine: adds CPU and memory.
    #[arg(long, value_name = "PID", requires = "target")]
    pub(crate) target_pid: Option<u32>,
    /// Protocol of the clients.
    #[arg(long, default_value = "delta", requires = "target")]
    pub(crate) transport: Transport,
    /// Subscription of each client.
    #[arg(long, default_value = "eds", requires = "target")]
    pub(crate) kind: Kind,
    /// How many there are.
    #[arg(long, default_value_t = 1000, requires = "target")]
    pub(crate) clients: usize,
    /// How many of them share a connection.
    #[arg(long, default_value_t = 1, requires = "target")]
    pub(crate) streams_per_connection: usize,
    /// Resources that make up a wildcard client's first state; 0: its first response does, whatever is in it.
    #[arg(long, default_value_t = 0, requires = "target")]
    pub(crate) resources: usize,
    /// Names that each client asks for; 0: the wildcard.
    #[arg(long, default_value_t = 0, requires = "names_file")]
    pub(crate) names: usize,
    /// The names that exist, one a line; clients ask for different ones.
    #[arg(long, requires = "target")]
    pub(crate) names_file: Option<PathBuf>,
    /// Changes something that every client has to be told of in one response; run by `sh` with the number of the
    /// change in $CHANGE. Without it the bench watches what the server does by itself for --seconds.
    #[arg(long, value_name = "COMMAND", requires = "target")]
    pub(crate) change: Option<String>,
    /// How many changes.
    #[arg(long, default_value_t = 10, requires = "change")]
    pub(crate) changes: usize,
}

impl Options {
    fn load(&self) -> io::Result<Load> {
        let each = self.streams_per_connection;
        if self.clients == 0 || each == 0 || !self.clients.is_multiple_of(each) {
            let clients = self.clients;
            return Err(io::Error::other(format!("{clients} clients cannot be {each} to a connection")));
        }
        let load = Load {
            kinds: vec![self.kind],
            names: self.names,
            names_file: self.names_file.clone(),
            streams_per_connection: each,
            first: if self.names > 0 { self.names } else { self.resources },
            patience: 30,
            ..Load::wildcard(self.transport, self.clients, self.resources)
        };
        let pool = load.pool()?.len();
        if self.names > pool {
            return Err(io::Error::other(format!("--names {} of a file with {pool} names", self.names)));
        }
        Ok(load)
    }
}

fn resolve(target: &str) -> io::Result<SocketAddr> {
    let fault = |what: &str| {
        io::Error::other(format!(
            "--target {target}: {what}; HOST:PORT is wanted, cleartext HTTP/2 is spoken"
        ))
    };
    let mut addresses = target.to_socket_addrs().map_err(|error| fault(&error.to_string()))?;
    addresses.next().ok_or_else(|| fault("it has no address"))
}

/// Connects the fleet, then counts its updates.
pub(crate) fn run(cores: Cores, target: &str, options: &Options, seconds: u64) -> io::Result<()> {
    let (load, address) = (options.load()?, resolve(target)?);
    let before = Usage::of(options.target_pid)?;
    let (mut driver, joined) = Driver::start(cores, address, &load)
        .map_err(|error| io::Error::other(format!("the fleet does not come up at {target}: {error}")))?;
    let clients = load.clients as f64;
    println!(
        "{target}: {} clients joined in {:.0} ms, {:.0} B and {:.1} resources each{}",
        load.clients,
        joined.nanos as f64 / 1e6,
        joined.tally.bytes as f64 / clients,
        joined.tally.resources as f64 / clients,
        Usage::of(options.target_pid)?.since(&before, clients, "join")
    );
    match &options.change {
        Some(command) => changes(&mut driver, &load, options, command),
        None => watch(&mut driver, options, seconds),
    }
}

fn changes(driver: &mut Driver, load: &Load, options: &Options, command: &str) -> io::Result<()> {
    let (mut p50, mut p99, mut last, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let before = Usage::of(options.target_pid)?;
    let load_cpu = driver.0.cpu()?;
    for change in 1..=options.changes {
        driver.expect(load.clients)?;
        let begun = monotonic_nanos();
        let status =
            Command::new("sh").args(["-c", command]).env(CHANGE_VARIABLE, change.to_string()).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("change {change}: `{command}`: {status}")));
        }
        let arrivals = driver.arrivals().map_err(|error| {
            io::Error::other(format!(
                "change {change}: {error}; every client has to have one response for each change: does it touch \
                 what they subscribe to?"
            ))
        })?;
        let ms = |at: u64| at.saturating_sub(begun) as f64 / 1e6;
        p50.push(ms(arrivals.median));
        p99.push(ms(arrivals.p99));
        last.push(ms(arrivals.last));
        bytes += arrivals.tally.bytes;
    }
    let updates = (load.clients * options.changes) as f64;
    println!(
        "{} changes, the command's own time included: p50 {:.2}  p99 {:.2}  last {:.2} ms (medians), {:.0} B per \
         client-update{}; load client {:.2} us",
        options.changes,
        median(p50),
        median(p99),
        median(last),
        bytes as f64 / updates,
        Usage::of(options.target_pid)?.since(&before, updates, "client-update"),
        (driver.0.cpu()? - load_cpu) as f64 / 1e3 / updates
    );
    Ok(())
}

fn watch(driver: &mut Driver, options: &Options, seconds: u64) -> io::Result<()> {
    driver.tally()?;
    let before = Usage::of(options.target_pid)?;
    std::thread::sleep(Duration::from_secs(seconds));
    let tally = driver.tally()?;
    println!(
        "in {seconds} s: {} responses with {} resources, {:.1} responses/s, {:.0} B each{}",
        tally.messages,
        tally.resources,
        tally.messages as f64 / seconds.max(1) as f64,
        tally.bytes as f64 / tally.messages.max(1) as f64,
        Usage::of(options.target_pid)?.since(&before, tally.messages as f64, "response")
    );
    Ok(())
}

/// CPU time and memory that the server's process has used.
struct Usage(Option<(Threads, u64)>);

impl Usage {
    fn of(pid: Option<u32>) -> io::Result<Self> {
        let of = |pid| Ok((Threads::of(pid)?, rss_kib(pid)?));
        let usage = |pid| {
            of(pid).map_err(|error: io::Error| io::Error::other(format!("--target-pid {pid}: {error}")))
        };
        Ok(Self(pid.map(usage).transpose()?))
    }

    fn since(&self, before: &Self, count: f64, what: &str) -> String {
        let (Some((now, rss)), Some((before, _))) = (&self.0, &before.0) else { return String::new() };
        if count == 0.0 {
            return String::new();
        }
        let cpu = now.since(before) as f64 / 1e3 / count;
        format!(", {cpu:.2} us of its CPU per {what}, rss {:.1} MiB", *rss as f64 / 1024.0)
    }
}
