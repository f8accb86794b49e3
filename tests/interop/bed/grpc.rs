//! Real gRPC clients and servers (C-core, by way of Python).

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;

use super::{Process, in_repository, substitute};

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
    pub(crate) fn start(dir: &Path, id: &str, target: &str, server: u16) -> Self {
        let example = fs::read_to_string(in_repository("config/grpc-bootstrap.json")).unwrap();
        let server = format!("127.0.0.1:{server}");
        let bootstrap = substitute(&example, &[("127.0.0.1:15010", &server), ("grpc-1", id)]);
        Self::launch(dir, id, target, &bootstrap)
    }

    /// Starts one whose way to the xDS server is TLS with these files on both sides.
    pub(crate) fn start_secure(dir: &Path, id: &str, target: &str, server: u16, files: &Path) -> Self {
        let example = fs::read_to_string(in_repository("config/grpc-bootstrap-mtls.json")).unwrap();
        let server = format!("127.0.0.1:{server}");
        let bootstrap = substitute(&example, &[("127.0.0.1:15010", &server), ("grpc-1", id)]);
        Self::launch(dir, id, target, &bootstrap.replace("/etc/grpc/xds-tls", files.to_str().unwrap()))
    }

    fn launch(dir: &Path, id: &str, target: &str, bootstrap: &str) -> Self {
        let path = dir.join(format!("{id}.json"));
        fs::write(&path, bootstrap).unwrap();
        let script = in_repository("tests/interop/grpc_client.py");
        let target = format!("xds:///{target}");
        let args = [script.to_str().unwrap(), &target];
        let env = [("GRPC_XDS_BOOTSTRAP", path.to_str().unwrap())];
        Self { process: Process::start(id, dir, &python(), &args, &env) }
    }

    /// The results so far.
    pub(crate) fn results(&self) -> Vec<CallResult> {
        self.process.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn python() -> std::path::PathBuf {
    in_repository(".venv/bin/python")
}
