//! A control plane, a relay and clients that all show certificates to each other, with SPIFFE IDs.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use deltafan_test_support::authority::{Authority, Use};
use parking_lot::Mutex;

use super::{Envoy, GrpcBackends, GrpcClient, Implementation, Logs, Origin, Relay, Seats, require};

const ORIGIN: &str = "spiffe://mesh.example/ns/control/sa/origin";
const RELAY: &str = "spiffe://mesh.example/ns/edge/sa/deltafan";
const ENVOY: &str = "spiffe://mesh.example/ns/edge/sa/envoy";
const GRPC: &str = "spiffe://mesh.example/ns/apps/sa/greeter";

pub(crate) struct SecureBed {
    // Dropped in this order: clients belong to the test, so the relay is next, then the origin.
    pub(crate) relay: Mutex<Relay>,
    pub(crate) origin: Origin,
    logs: Logs,
    _seats: Seats,
}

impl SecureBed {
    /// Starts the origin and the relay, all of them certified by this authority, with room for so many Envoys.
    pub(crate) fn start(envoys: usize, authority: &Authority) -> Option<Self> {
        Origin::require()?;
        require(Envoy::program().is_some(), "no Envoy and no gRPC")?;
        let seats = Seats::take(envoys);
        let logs = Logs::new();
        certify(logs.dir(), authority, &[authority]);
        let origin = Origin::start_secure(logs.dir(), &files(logs.dir(), "origin"));
        let relay = Relay::start_secure(logs.dir(), origin.port(), ORIGIN, &files(logs.dir(), "relay"));
        Some(Self { relay: Mutex::new(relay), origin, logs, _seats: seats })
    }

    /// Everybody has a new certificate, and trusts these.
    pub(crate) fn certify(&self, authority: &Authority, trusted: &[&Authority]) {
        certify(self.logs.dir(), authority, trusted);
    }

    pub(crate) fn start_envoy(&self, id: &str) -> Envoy {
        Envoy::start_secure(self.logs.dir(), id, self.port(), &files(self.logs.dir(), "envoy"))
    }

    pub(crate) fn start_grpc_client(&self, made_by: Implementation, id: &str, target: &str) -> GrpcClient {
        let files = files(self.logs.dir(), "grpc");
        GrpcClient::start_secure(made_by, self.logs.dir(), id, target, self.port(), &files)
    }

    pub(crate) fn start_grpc_backends(&self, names: &[&str]) -> GrpcBackends {
        GrpcBackends::start(self.logs.dir(), names)
    }

    /// Asks the relay for its clusters, with a certificate of this authority.
    pub(crate) fn get_clusters(&self, authority: &Authority) -> Output {
        let leaf = authority.certify(&[GRPC], Use::Client);
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["me.pem", "me.key"].map(|name| dir.path().join(name));
        fs::write(&certificate, leaf.certificate).unwrap();
        fs::write(&key, leaf.key).unwrap();
        Command::new(deltafan_test_support::process::program())
            .args(["get", "cds", "--subscribe", "--server", &format!("https://127.0.0.1:{}", self.port())])
            .args(["--server-name", RELAY, "--ca-file"])
            .arg(files(self.logs.dir(), "relay").join("ca.pem"))
            .arg("--cert-file")
            .arg(certificate)
            .arg("--key-file")
            .arg(key)
            .output()
            .unwrap()
    }

    fn port(&self) -> u16 {
        self.relay.lock().port()
    }
}

fn files(dir: &Path, of: &str) -> PathBuf {
    dir.join("tls").join(of)
}

/// gRPC looks for the address of its server among the names, and Envoy for nothing but the ID.
fn certify(dir: &Path, authority: &Authority, trusted: &[&Authority]) {
    let trusted: String = trusted.iter().map(|authority| authority.certificate()).collect();
    for (of, names, certificate, key) in [
        ("origin", &[ORIGIN][..], "cert.pem", "key.pem"),
        ("relay", &[RELAY, "127.0.0.1"], "relay.pem", "relay.key"),
        ("envoy", &[ENVOY], "envoy.pem", "envoy.key"),
        ("grpc", &[GRPC], "client.pem", "client.key"),
    ] {
        let leaf = authority.certify(names, Use::Any);
        mount(&files(dir, of), &[(certificate, &leaf.certificate), (key, &leaf.key), ("ca.pem", &trusted)]);
    }
}

/// Puts files into a folder as Kubernetes mounts Secrets: links through `..data`, which is replaced at once.
fn mount(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    let count = fs::read_dir(dir).unwrap().count();
    let version = format!("..{count}");
    fs::create_dir(dir.join(&version)).unwrap();
    for (name, text) in files {
        fs::write(dir.join(&version).join(name), text).unwrap();
        if !dir.join(name).is_symlink() {
            symlink(Path::new("..data").join(name), dir.join(name)).unwrap();
        }
    }
    symlink(&version, dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
}
