//! The `deltafan` command: runs what the command line asks for.

mod cli;

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Parser as _;
use cli::{
    AdminArgs, Cli, Command, ConfigArgs, GetArgs, LoadArgs, LogFormat, Order, RolloutCommand,
    SnapshotCommand, VERSION, WatchArgs,
};
use deltafan::admin_client::{Answers, Asked};
use deltafan::client::{self, News};
use deltafan::config::{Config, DefaultAccess};
use deltafan::relay::Relay;
use deltafan::reload::{self, ConfigLoadError, WatchedConfig};
use deltafan::snapshot;
use deltafan::telemetry::{self, Lines, LogLevel};
use deltafan::terminal::printable;
use deltafan::{load, node_file, preview};
use tikv_jemallocator::Jemalloc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_appender::non_blocking::WorkerGuard;

/// Returns memory to the system within seconds, also when idle, and reports how much is in use.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// `EX_CONFIG` of sysexits.h: the configuration is wrong; a retry will not help.
const BAD_CONFIG: u8 = 78;
/// As of clap.
const BAD_USAGE: u8 = 2;
/// Of `status`: the relay answered with a fault.
const NOT_WELL: u8 = 3;

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    let or = |fault: u8| move |is_well: bool| if is_well { ExitCode::SUCCESS } else { fault.into() };
    let result = match Cli::parse().command {
        Command::Serve { config, log_format, log_level } => serve(&config, log_format, &log_level),
        Command::Check { config, node, no_files } => {
            let load = if no_files { reload::load_without_files } else { reload::load };
            match load(&config.config, config.unknown_keys()) {
                Ok((config, ignored)) => {
                    ignored.to_string().lines().for_each(|line| complain(format_args!("ignored: {line}")));
                    let read = if no_files { Ok(()) } else { check_directory(&config) };
                    read.and_then(|()| check(&config, node.as_deref())).map(done)
                }
                Err(error) => return bad_config(error),
            }
        }
        Command::Snapshot(SnapshotCommand::Show { path, output }) => {
            snapshot::report(&path, output).and_then(|report| print(&report)).map(done)
        }
        Command::Snapshot(SnapshotCommand::Verify { path }) => {
            snapshot::verify(&path).and_then(|intact| print(&intact)).map(done)
        }
        Command::Completions { shell } => print(cli::completions(shell)).map(done),
        Command::Status(to) => ask(&Asked::Status, &to),
        Command::Clients(args) => ask(&args.asked(), &args.admin),
        Command::Nacks(args) => ask(&args.asked(), &args.admin),
        Command::Resources(args) => ask(&args.asked(), &args.admin),
        Command::History(args) => ask(&args.asked(), &args.admin),
        Command::Rollout(args) => match args.command.map_or(Err(args.admin), RolloutCommand::into_order) {
            Ok(given) => order(&given),
            Err(to) => ask(&Asked::Rollout, &to),
        },
        Command::Order(command) => order(&command.into_order()),
        Command::Get(args) => get(*args).map(or(1)),
        Command::Watch(args) => watch(*args).map(done),
        Command::Load(args) => load(*args).map(or(1)),
    };
    result.unwrap_or_else(|error| failure(&error))
}

/// Writes a line to stderr. One that cannot be written in time is lost, without effect on the exit or its
/// status.
fn complain(line: impl Display) {
    let line = format!("{line}\n");
    within_a_second(move || _ = std::io::stderr().write_all(line.as_bytes()));
}

/// For work that may hang with the reader of an output.
fn within_a_second(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let work = move || {
        work();
        _ = done.send(());
    };
    // Without a thread the output is lost.
    if std::thread::Builder::new().spawn(work).is_ok() {
        _ = is_done.recv_timeout(Duration::from_secs(1));
    }
}

/// Writes the log until dropped. tracing-appender's guard complains on stdout about a full queue, and may
/// wait for it.
struct WrittenLog(Option<WorkerGuard>);

impl Drop for WrittenLog {
    fn drop(&mut self) {
        let guard = self.0.take();
        within_a_second(move || drop(guard));
    }
}

/// The error may quote a peer.
fn failure(error: &anyhow::Error) -> ExitCode {
    complain(format_args!("deltafan: {}", printable(&format!("{error:#}"))));
    ExitCode::FAILURE
}

fn bad_config(error: ConfigLoadError) -> ExitCode {
    complain(error);
    ExitCode::from(BAD_CONFIG)
}

fn start_log(format: Option<LogFormat>, level: &str) -> (LogLevel, WrittenLog) {
    let filter = LogLevel::filter_lossy(level);
    let format = format
        .unwrap_or_else(|| if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json });
    let (lines, thread) = telemetry::write_log_to(std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || Lines(lines.clone()));
    // Colours are for terminals; in a file they are noise. NO_COLOR is heeded there too.
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let level = match format {
        LogFormat::Text => {
            let log = log.with_ansi(colours).with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            LogLevel::new(level, move |filter| handle.reload(filter).is_ok())
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let handle = log.reload_handle();
            log.init();
            LogLevel::new(level, move |filter| handle.reload(filter).is_ok())
        }
    };
    (level, WrittenLog(Some(thread)))
}

fn check_directory(config: &Config) -> anyhow::Result<()> {
    let faults = preview::directory_faults(config)?;
    faults.iter().for_each(|fault| complain(format_args!("deltafan: {fault}")));
    anyhow::ensure!(faults.is_empty(), "upstream.directory: files that cannot be used: {}", faults.len());
    Ok(())
}

fn check(config: &Config, node: Option<&Path>) -> anyhow::Result<()> {
    preview::warnings(config).for_each(|warning| complain(format_args!("deltafan: warning: {warning}")));
    match node {
        None => print(config.to_string()),
        Some(path) => print(&preview::of_node(config, &node_file::read(path)?)?),
    }
}

fn print(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_ref()).map_err(anyhow::Error::from).or_else(unless_unread)
}

/// Raises the limit as far as allowed: every client takes a descriptor, and shells start programs with few.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = ?limit.current, "could not raise the limit of open descriptors");
    }
}

/// Polls sockets often, and few at a time: ready ones enter a queue of 256 per thread, whose overflow waits
/// behind everything later.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(16)
        .max_io_events_per_tick(128)
        .max_io_events_per_busy_tick(16)
        .build()
}

fn serve(file: &ConfigArgs, log_format: Option<LogFormat>, log_level: &str) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let code = runtime.block_on(async {
        // First of all: an unhandled signal ends the process or, if it is the first of its container, is
        // lost.
        let mut signals = Signals::new()?;
        let (watched, config) = match WatchedConfig::open(&file.config, file.unknown_keys()) {
            Ok(opened) => opened,
            Err(error) => return Ok(bad_config(error)),
        };
        let (log_level, _written) = start_log(log_format, log_level);
        telemetry::log_panics();
        raise_descriptor_limit();
        run(&config, watched, log_level, &mut signals).await.map(|()| ExitCode::SUCCESS)
    });
    // Nobody reads an answer that a thread still writes.
    runtime.shutdown_background();
    code
}

async fn run(
    config: &Config,
    watched: WatchedConfig,
    log_level: LogLevel,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let relay = Relay::start(config, telemetry::install()?).await?;
    relay.set_log_level(log_level);
    let listeners = relay.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    tracing::info!(version = VERSION, listeners = %format!("[{listeners}]"), admin = %relay.admin_address(), "serving");
    if config.authorization.default == DefaultAccess::Allow {
        let rules = config.authorization.rules.len();
        tracing::info!(
            rules,
            "peers matched by no rule may request everything except Secrets, which need authentication (authorization.default)"
        );
    }
    let served = serve_until_asked(&relay, watched, signals).await;
    relay.stop().await;
    served
}

async fn serve_until_asked(
    relay: &Relay,
    watched: WatchedConfig,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let Signals { stop, hangups } = signals;
    tokio::select! {
        () = stop.asked() => {}
        () = relay.failed() => anyhow::bail!("the upstream task exited unexpectedly; this is a bug in deltafan"),
        never = watched.follow(relay, hangups) => match never {},
    }
    tracing::info!(window = ?relay.drain_window(), "draining; signal again to end at once");
    tokio::select! {
        () = relay.drain() => tracing::info!("drained"),
        () = stop.asked() => tracing::warn!("ended by a second signal while draining"),
    }
    Ok(())
}

/// Signals with a meaning; none ends the process by itself now. One without a waiter, as SIGHUP during a
/// drain, does nothing.
struct Signals {
    stop: Stop,
    hangups: Signal,
}

/// SIGTERM and SIGINT.
struct Stop([Signal; 2]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        let stop = Stop([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]);
        Ok(Self { stop, hangups: signal(SignalKind::hangup())? })
    }
}

impl Stop {
    /// Waits for the next one.
    async fn asked(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
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
    let write = |text: &str| Ok(std::io::stdout().write_all(text.as_bytes())?);
    let tell = |news| {
        match news {
            News::Change(change) => {
                let now = SystemTime::now();
                return write(&client::show_change(&change, &query.asked.type_url, now, output)?);
            }
            News::Waiting(None) => complain("deltafan: connected; the server has not answered yet"),
            News::Waiting(Some(words)) => {
                complain(format_args!("deltafan: no answer yet: {}", printable(&words)))
            }
            News::Lost(why, wait) => {
                let why = printable(&why);
                complain(format_args!("deltafan: {why}; connecting again in {:.1} s", wait.as_secs_f64()));
            }
            News::Back => complain("deltafan: connected again"),
        }
        Ok(())
    };
    let ended = small_runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        write(&client::watch_header(output))?;
        let stop = async {
            tokio::select! {
                () = signals.stop.asked() => {}
                () = tokio::time::sleep(time) => {}
            }
        };
        client::watch(&query, stop, tell).await
    });
    ended.or_else(unless_unread)
}

/// Returns whether each client had an answer.
fn load(args: LoadArgs) -> anyhow::Result<bool> {
    const OTHER_DESCRIPTORS: u64 = 64;
    raise_descriptor_limit();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let (clients, output) = (args.clients, args.output);
    if let Some(limit) = limit.filter(|limit| *limit < clients as u64 + OTHER_DESCRIPTORS) {
        anyhow::bail!(
            "{clients} clients need more open files than the {limit} that are allowed; raise `ulimit -n`"
        );
    }
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

/// A reader that closes early (`| head`) is no fault.
fn unless_unread(error: anyhow::Error) -> anyhow::Result<()> {
    match error.downcast_ref::<std::io::Error>() {
        Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }
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

fn small_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
