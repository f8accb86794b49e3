//! The `deltafan` command: runs what the command line asks for.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use deltafan::config::{Config, ConfigError, DefaultAccess, UnknownKeys};
use deltafan::relay::Relay;
use deltafan::reload::{self, WatchedConfig};
use deltafan::telemetry::{self, Lines, LogLevel};
use deltafan::terminal::printable;
use deltafan::{preview, snapshot};
use deltafan_commands::cli::{self, Command, ConfigArgs, LogFormat, SnapshotCommand};
use deltafan_commands::process::{
    Signals, complain, print, raise_descriptor_limit, runtime, within_a_second,
};
use deltafan_commands::{NodeFile, show_snapshot};
use tikv_jemallocator::Jemalloc;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("DELTAFAN_COMMIT"), ")");

/// Returns memory to the system within seconds, also when idle, and reports how much is in use.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// `EX_CONFIG` of sysexits.h: the configuration is wrong; a retry will not help.
const BAD_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    let result = match cli::parse(VERSION) {
        Command::Serve { config, log_format, log_level } => serve(&config, log_format, &log_level),
        Command::Check { config, node, no_files } => {
            match reload::load(&config.config, unknown_keys(&config), !no_files) {
                Ok((config, ignored)) => {
                    ignored.iter().for_each(|line| complain(format_args!("ignored: {line}")));
                    let read = if no_files { Ok(()) } else { check_directory(&config) };
                    read.and_then(|()| check(&config, node.as_deref())).map(done)
                }
                Err(error) => return bad_config(error),
            }
        }
        Command::Client(command) => command.run(),
        Command::Snapshot(SnapshotCommand::Show { path, output }) => {
            snapshot::report(&path).and_then(|report| print(show_snapshot(&report, output)?)).map(done)
        }
        Command::Snapshot(SnapshotCommand::Verify { path }) => {
            snapshot::verify(&path).and_then(print).map(done)
        }
        Command::Completions { shell } => print(cli::completions(shell)).map(done),
    };
    result.unwrap_or_else(|error| failure(&error))
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

fn bad_config(error: ConfigError) -> ExitCode {
    complain(error);
    ExitCode::from(BAD_CONFIG)
}

fn start_log(format: Option<LogFormat>, level: &str) -> (LogLevel, WrittenLog) {
    let (filter, level) = LogLevel::new(level);
    let format = format
        .unwrap_or_else(|| if std::io::stderr().is_terminal() { LogFormat::Text } else { LogFormat::Json });
    let (lines, thread) = telemetry::write_log_to(std::io::stderr());
    // Colours are for terminals; in a file they are noise. NO_COLOR is heeded there too.
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let log = tracing_subscriber::fmt::layer().with_writer(move || Lines(lines.clone()));
    let log = match format {
        LogFormat::Text => log.with_ansi(colours).boxed(),
        LogFormat::Json => log.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(log).init();
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
        Some(path) => {
            let NodeFile { node, encoded } = NodeFile::read(path)?;
            print(&preview::of_node(config, &node, &encoded)?)
        }
    }
}

const fn unknown_keys(file: &ConfigArgs) -> UnknownKeys {
    if file.allow_unknown_keys { UnknownKeys::Ignore } else { UnknownKeys::Refuse }
}

fn serve(file: &ConfigArgs, log_format: Option<LogFormat>, log_level: &str) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let code = runtime.block_on(async {
        // First of all: an unhandled signal ends the process or, if it is the first of its container, is
        // lost.
        let mut signals = Signals::new()?;
        let (watched, config) = match WatchedConfig::open(&file.config, unknown_keys(file)) {
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
    let relay = Relay::start(config, telemetry::install()?, Some(log_level)).await?;
    let listeners = relay.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    tracing::info!(version = VERSION, listeners = %format!("[{listeners}]"), admin = %relay.admin_address, "serving");
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
