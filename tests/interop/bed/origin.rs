//! The control plane: go-control-plane, run by `tests/interop/origin`, or java-control-plane, run by
//! `tests/interop/java-origin`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::{Process, free_port, http, in_repository, java, require};

/// A control plane that others have written, in a version and with one of its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlPlane {
    /// go-control-plane: its version, and the flags that choose the cache.
    Go(&'static str, &'static [&'static str]),
    /// java-control-plane with its SimpleCache.
    Java(&'static str),
}

impl ControlPlane {
    /// The one of the tests that are about clients.
    const USUAL: Self = Self::Go("v0.14.0", &[]);

    /// Says if it has to be left out.
    pub(crate) fn require(self) -> Option<()> {
        let (program, _) = self.command();
        let built = match self {
            Self::Go(..) => program.exists(),
            Self::Java(_) => in_repository("tests/interop/bin/java/installed").exists(),
        };
        require(built, &format!("no origin {self:?}"))
    }

    /// Whether this is a LinearCache by itself.
    pub(crate) fn serves_clusters_only(self) -> bool {
        matches!(self, Self::Go(_, flags) if flags.contains(&"linear"))
    }

    fn version(self) -> &'static str {
        match self {
            Self::Go(version, _) | Self::Java(version) => version,
        }
    }

    /// The program and its first arguments.
    fn command(self) -> (PathBuf, Vec<String>) {
        match self {
            Self::Go(version, flags) => {
                let program = match version {
                    "v0.12.0" => "origin-0.12",
                    "v0.13.4" => "origin-0.13",
                    _ => "origin",
                };
                let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
                (in_repository("tests/interop/bin").join(program), flags)
            }
            Self::Java(_) => java(&in_repository("tests/interop/bin/java"), "Origin"),
        }
    }
}

pub(crate) struct Origin {
    control_plane: ControlPlane,
    dir: PathBuf,
    port: u16,
    /// The files of TLS, where it speaks that.
    secure: Option<PathBuf>,
    state: Mutex<State>,
}

struct State {
    /// None while the origin is dead.
    running: Option<Running>,
    starts: usize,
    /// Resources that it serves, by type and name, to fill it with when it comes back.
    resources: BTreeMap<(String, String), Value>,
}

struct Running {
    _process: Process,
    control: String,
}

/// Record of the origin about its xDS clients.
#[derive(Debug, Deserialize)]
pub(crate) struct Stats {
    pub(crate) connections: Connections,
    pub(crate) open_streams: usize,
    /// How often each name of each type was subscribed.
    pub(crate) subscribed: BTreeMap<String, BTreeMap<String, usize>>,
    /// On how many streams each name of each type is subscribed now.
    pub(crate) wanted: BTreeMap<String, BTreeMap<String, usize>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Connections {
    pub(crate) ever: usize,
}

impl Origin {
    pub(crate) fn require() -> Option<()> {
        ControlPlane::USUAL.require()
    }

    pub(crate) fn start(dir: &Path) -> Self {
        Self::launch(ControlPlane::USUAL, dir, None)
    }

    pub(crate) fn start_as(control_plane: ControlPlane, dir: &Path) -> Self {
        Self::launch(control_plane, dir, None)
    }

    /// Starts one that speaks TLS, with `cert.pem` and `key.pem` of a folder, to clients that `ca.pem` has certified.
    pub(crate) fn start_secure(dir: &Path, files: &Path) -> Self {
        Self::launch(ControlPlane::USUAL, dir, Some(files.to_owned()))
    }

    fn launch(control_plane: ControlPlane, dir: &Path, secure: Option<PathBuf>) -> Self {
        let state = State { running: None, starts: 0, resources: BTreeMap::new() };
        let origin =
            Self { control_plane, dir: dir.to_owned(), port: free_port(), secure, state: Mutex::new(state) };
        origin.start_again();
        origin
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sets a resource; while the origin is dead, it will come back with it.
    pub(crate) fn put(&self, resource: &Value) {
        let mut state = self.state.lock();
        let name = resource.get("name").or_else(|| resource.get("cluster_name")).unwrap();
        let key = (resource["@type"].as_str().unwrap().to_owned(), name.as_str().unwrap().to_owned());
        state.resources.insert(key, resource.clone());
        if let Some(running) = &state.running {
            running.put(resource);
        }
    }

    pub(crate) fn delete(&self, type_url: &str, name: &str) {
        let mut state = self.state.lock();
        state.resources.remove(&(type_url.to_owned(), name.to_owned()));
        if let Some(running) = &state.running {
            http::delete(&format!("{}/resource?type={type_url}&name={name}", running.control)).unwrap();
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.state.lock();
        let running = state.running.as_ref().expect("the origin runs");
        serde_json::from_value(http::get_json(&format!("{}/stats", running.control)).unwrap()).unwrap()
    }

    /// Kills it without a goodbye.
    pub(crate) fn kill(&self) {
        self.state.lock().running = None;
    }

    /// Starts it on the port it had, with the resources it had, whole before the first client gets in.
    pub(crate) fn start_again(&self) {
        let mut state = self.state.lock();
        let address = format!("127.0.0.1:{}", self.port);
        let (program, flags) = self.control_plane.command();
        let mut args: Vec<_> = flags.iter().map(String::as_str).collect();
        args.extend(["--listen", &address, "--paused"]);
        if let Some(files) = &self.secure {
            args.extend(["--tls", files.to_str().unwrap()]);
        }
        let process = Process::start("origin", &self.dir, &program, &args, &[]);
        let announced = process.announcement(state.starts);
        assert_eq!(announced["version"], self.control_plane.version(), "{announced}");
        let control = format!("http://{}", announced["control"].as_str().unwrap());
        let running = Running { _process: process, control };
        for resource in state.resources.values() {
            running.put(resource);
        }
        http::post(&format!("{}/resume", running.control)).unwrap();
        state.starts += 1;
        state.running = Some(running);
    }
}

impl Running {
    fn put(&self, resource: &Value) {
        http::put(&format!("{}/resource", self.control), resource).unwrap();
    }
}
