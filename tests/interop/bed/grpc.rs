//! Real gRPC clients of several implementations, and servers (C-core, by way of Python).

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use deltafan_test_support::client::FETCH_CLUSTERS;
use serde::Deserialize;

use super::{Envoy, Process, in_repository, java, require, substitute};

const GO: &str = "tests/interop/bin/grpc-go";
const JAVA: &str = "tests/interop/bin/grpc-java";

/// An implementation of gRPC with an xDS client of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// C-core, by way of Python.
    Core,
    Go,
    Java,
    /// For Node.js.
    Js,
}

impl Implementation {
    /// Says if it has to be left out.
    pub(crate) fn require(self) -> Option<()> {
        let installed = match self {
            // One environment of Python has both.
            Self::Core => Envoy::program().is_some(),
            Self::Go => in_repository(GO).exists(),
            Self::Java => in_repository(JAVA).join("installed").exists(),
            Self::Js => in_repository("tests/interop/grpc-js/node_modules/installed").exists(),
        };
        require(installed, &format!("no gRPC {self:?}"))
    }

    /// Fetches clusters with a request of any size.
    pub(crate) fn fetch_clusters(self, address: SocketAddr, window: u32, request: &[u8]) -> Vec<u8> {
        let (program, args) = match self {
            Self::Core => {
                let script = in_repository("tests/interop/grpc_body.py");
                (python(), vec![script.to_str().unwrap().to_owned()])
            }
            // It is made of Node's own HTTP/2, whose windows can be changed.
            Self::Js => {
                let script = in_repository("tests/interop/grpc-js/body.js");
                ("node".into(), vec![script.to_str().unwrap().to_owned()])
            }
            Self::Go | Self::Java => {
                let (program, mut args) = self.client();
                args.push("body".to_owned());
                (program, args)
            }
        };
        exchange(&program, &args, address, window, request)
    }

    /// The program of its client and the first arguments.
    fn client(self) -> (PathBuf, Vec<String>) {
        let script = |path| vec![in_repository(path).to_str().unwrap().to_owned()];
        match self {
            Self::Core => (python(), script("tests/interop/grpc_client.py")),
            Self::Go => (in_repository(GO), Vec::new()),
            Self::Java => java(&in_repository(JAVA), "Client"),
            Self::Js => ("node".into(), script("tests/interop/grpc-js/client.js")),
        }
    }
}

/// Makes a unary call with a program, whose windows are of this size: the request on its stdin, the response on its stdout.
fn exchange(program: &Path, args: &[String], address: SocketAddr, window: u32, request: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(args)
        .args([&address.to_string(), FETCH_CLUSTERS, &window.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // All of it is read before anything is written.
    child.stdin.take().unwrap().write_all(request).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{} with windows of {window}", program.display());
    output.stdout
}

/// gRPC servers that answer with their name.
pub(crate) struct GrpcBackends {
    _process: Process,
    ports: BTreeMap<String, u16>,
}

impl GrpcBackends {
    pub(crate) fn start(dir: &Path, names: &[&str]) -> Self {
        let script = in_repository("tests/interop/grpc_backend.py");
        let mut args = vec![script.to_str().unwrap()];
        args.extend(names);
        let process = Process::start("grpc-backends", dir, &python(), &args, &[]);
        let ports = serde_json::from_value(process.announcement(0)).unwrap();
        Self { _process: process, ports }
    }

    pub(crate) fn port(&self, name: &str) -> u16 {
        self.ports[name]
    }
}

/// A gRPC client that calls an xDS target over and over.
pub(crate) struct GrpcClient {
    process: Process,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub(crate) enum CallResult {
    Answer { answer: String },
    Error { error: String, details: Option<String> },
}

impl GrpcClient {
    /// Starts a client of `xds:///TARGET` whose xDS server listens on `server`.
    pub(crate) fn start(made_by: Implementation, dir: &Path, id: &str, target: &str, server: u16) -> Self {
        let example = fs::read_to_string(in_repository("config/grpc-bootstrap.json")).unwrap();
        let server = format!("127.0.0.1:{server}");
        let bootstrap = substitute(&example, &[("127.0.0.1:15010", &server), ("grpc-1", id)]);
        Self::launch(made_by, dir, id, target, &bootstrap)
    }

    /// Starts one whose way to the xDS server is TLS with these files on both sides.
    pub(crate) fn start_secure(
        made_by: Implementation,
        dir: &Path,
        id: &str,
        target: &str,
        server: u16,
        files: &Path,
    ) -> Self {
        let example = fs::read_to_string(in_repository("config/grpc-bootstrap-mtls.json")).unwrap();
        let server = format!("127.0.0.1:{server}");
        let bootstrap = substitute(&example, &[("127.0.0.1:15010", &server), ("grpc-1", id)]);
        let bootstrap = bootstrap.replace("/etc/grpc/xds-tls", files.to_str().unwrap());
        Self::launch(made_by, dir, id, target, &bootstrap)
    }

    fn launch(made_by: Implementation, dir: &Path, id: &str, target: &str, bootstrap: &str) -> Self {
        let path = dir.join(format!("{id}.json"));
        fs::write(&path, bootstrap).unwrap();
        let target = format!("xds:///{target}");
        let (program, mut args) = made_by.client();
        args.push(target);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let env = [("GRPC_XDS_BOOTSTRAP", path.to_str().unwrap())];
        Self { process: Process::start(id, dir, &program, &args, &env) }
    }

    /// The results so far.
    pub(crate) fn results(&self) -> Vec<CallResult> {
        self.process.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn python() -> PathBuf {
    in_repository(".venv/bin/python")
}
