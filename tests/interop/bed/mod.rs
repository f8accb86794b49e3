//! The test bed: a real control plane, the relay, and what the tests connect to it.
//!
//! `INTEROP=direct` leaves the relay out and connects the clients to the control plane itself: what fails
//! then is no fault of the relay's.

mod backend;
mod envoy;
mod foreign;
mod grpc;
mod http;
mod link;
mod origin;
mod poll;
mod ports;
mod process;
mod relay;
pub(crate) mod resources;
mod scripted;
mod seats;
mod secure;
mod transport;

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    thread,
};

use parking_lot::Mutex;

pub(crate) use self::{
    backend::http_backend,
    envoy::Envoy,
    foreign::{ForeignBed, get},
    grpc::{CallResult, GrpcBackends, GrpcClient, Implementation},
    link::Link,
    origin::{ControlPlane, Origin},
    poll::{PATIENCE, always, eventually},
    scripted::ScriptedBed,
    secure::SecureBed,
    transport::Transport,
};
use self::{ports::free_port, process::Process, relay::Relay, seats::Seats};

pub(crate) struct Bed {
    // Dropped in this order: clients belong to the test, so the relay is next, then the origin.
    relay: Option<Mutex<Relay>>,
    pub(crate) origin: Origin,
    logs: Logs,
    _seats: Seats,
}

impl Bed {
    /// Starts the origin and the relay, with room for so many Envoys; None when there is nothing to test with.
    pub(crate) fn start(envoys: usize) -> Option<Self> {
        Origin::require()?;
        require(Envoy::program().is_some(), "no Envoy and no gRPC")?;
        let seats = Seats::take(envoys);
        let logs = Logs::new();
        let origin = Origin::start(logs.dir());
        let relay = (!is_direct()).then(|| Mutex::new(Relay::start(logs.dir(), origin.port())));
        Some(Self { relay, origin, logs, _seats: seats })
    }

    /// The port that the clients of this test connect to.
    pub(crate) fn xds_port(&self) -> u16 {
        self.relay.as_ref().map_or_else(|| self.origin.port(), |relay| relay.lock().port())
    }

    pub(crate) fn start_envoy(&self, id: &str, transport: Transport) -> Envoy {
        Envoy::start(self.logs.dir(), id, transport, self.xds_port(), &[])
    }

    pub(crate) fn start_grpc_client(&self, made_by: Implementation, id: &str, target: &str) -> GrpcClient {
        GrpcClient::start(made_by, self.logs.dir(), id, target, self.xds_port())
    }

    pub(crate) fn start_grpc_backends(&self, names: &[&str]) -> GrpcBackends {
        GrpcBackends::start(self.logs.dir(), names)
    }

    pub(crate) fn stop_relay(&self) {
        self.relay.as_ref().unwrap().lock().stop();
    }

    pub(crate) fn start_relay_again(&self) {
        self.relay.as_ref().unwrap().lock().start_again();
    }
}

/// An Envoy on a relay that is the test's own.
pub(crate) struct AloneEnvoy {
    envoy: Envoy,
    _logs: Logs,
    _seats: Seats,
}

impl AloneEnvoy {
    /// Whether there is one to start.
    pub(crate) fn is_there() -> bool {
        require(Envoy::program().is_some(), "no Envoy").is_some()
    }

    pub(crate) fn start(transport: Transport, server: u16, features: &[&str]) -> Self {
        let (seats, logs) = (Seats::take(1), Logs::new());
        let envoy = Envoy::start(logs.dir(), "envoy", transport, server, features);
        Self { envoy, _logs: logs, _seats: seats }
    }
}

impl std::ops::Deref for AloneEnvoy {
    type Target = Envoy;

    fn deref(&self) -> &Envoy {
        &self.envoy
    }
}

/// True when the clients are connected to the origin itself.
pub(crate) fn is_direct() -> bool {
    env::var("INTEROP").is_ok_and(|mode| mode == "direct")
}

/// Says loudly that a test does not run, past the capture of the test harness.
pub(crate) fn skipped(reason: &str) {
    let test = thread::current().name().unwrap_or_default().to_owned();
    let mut stderr = std::io::stderr();
    writeln!(stderr, "SKIPPED ({reason}): {test}").unwrap();
}

pub(crate) fn require(condition: bool, lack: &str) -> Option<()> {
    if condition {
        return Some(());
    }
    let reason = format!("{lack}: run tests/interop/setup");
    assert!(!env::var("CI").is_ok_and(|value| value == "true"), "in CI nothing may be skipped: {reason}");
    skipped(&reason);
    None
}

pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The program that runs a class from a folder with its libraries, and the first arguments. It is to start quickly, not to
/// run for long.
fn java(classes: &Path, class: &str) -> (PathBuf, Vec<String>) {
    let class_path = format!("{0}:{0}/*", classes.display());
    let args = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", &class_path, class];
    ("java".into(), args.map(str::to_owned).to_vec())
}

/// Replaces each of `changes` in an example, which must hold it exactly once.
fn substitute(example: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(example.to_owned(), |text, (old, new)| {
        assert_eq!(text.matches(old).count(), 1, "{old:?} in\n{text}");
        text.replace(old, new)
    })
}

/// The directory of a test's logs; removed when the test passes, shown when it fails.
struct Logs(Option<tempfile::TempDir>);

impl Logs {
    fn new() -> Self {
        Self(Some(tempfile::Builder::new().prefix("deltafan-interop-").tempdir().unwrap()))
    }

    fn dir(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let dir = self.0.take().unwrap();
        if !thread::panicking() {
            return;
        }
        let dir = dir.keep();
        eprintln!("logs are kept in {}", dir.display());
        let files = fs::read_dir(dir).unwrap().flatten().filter(|entry| entry.path().is_file());
        for entry in files {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            eprintln!("--- the end of {}\n{tail}", entry.file_name().display());
        }
    }
}
