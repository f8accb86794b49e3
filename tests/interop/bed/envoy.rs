//! Real Envoys, with the bootstraps of `config/`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{PATIENCE, Process, Transport, eventually, http, in_repository, substitute};

pub(crate) struct Envoy {
    _process: Process,
    admin: String,
}

/// The dynamic clusters of a config dump: name to configuration.
#[derive(Debug)]
pub(crate) struct DynamicClusters {
    pub(crate) active: BTreeMap<String, Value>,
    pub(crate) warming: BTreeMap<String, Value>,
}

impl Envoy {
    pub(crate) fn program() -> Option<PathBuf> {
        let packages = fs::read_dir(in_repository(".venv/lib")).ok()?;
        packages
            .flatten()
            .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
            .find(|program| program.exists())
    }

    /// Starts an Envoy whose xDS server listens on `server`, and which says that it has these features.
    pub(crate) fn start(dir: &Path, id: &str, transport: Transport, server: u16, features: &[&str]) -> Self {
        let example = in_repository("config").join(transport.bootstrap());
        let server = format!("port_value: {server}");
        let node = format!("client_features: {features:?}\n  id: {id} ");
        let bootstrap = substitute(
            &fs::read_to_string(example).unwrap(),
            &[("port_value: 15010", &server), ("port_value: 9901", "port_value: 0"), ("id: envoy-1 ", &node)],
        );
        Self::launch(dir, id, &bootstrap)
    }

    /// Starts one whose way to the xDS server is TLS with these files on both sides.
    pub(crate) fn start_secure(dir: &Path, id: &str, server: u16, files: &Path) -> Self {
        let here = |text: String| text.replace("/etc/envoy/xds-tls", files.to_str().unwrap());
        for name in ["certificate.yaml", "authority.yaml"] {
            let secret = fs::read_to_string(in_repository("config/envoy-mtls").join(name)).unwrap();
            fs::write(files.join(name), here(secret)).unwrap();
        }
        let example = fs::read_to_string(in_repository("config/envoy-delta-ads-mtls.yaml")).unwrap();
        let server = format!("port_value: {server}");
        let node = format!("id: {id} ");
        let changes =
            [("port_value: 15010", &*server), ("port_value: 9901", "port_value: 0"), ("id: envoy-1 ", &node)];
        Self::launch(dir, id, &here(substitute(&example, &changes)))
    }

    fn launch(dir: &Path, id: &str, bootstrap: &str) -> Self {
        let config = dir.join(format!("{id}.yaml"));
        let admin = dir.join(format!("{id}.admin"));
        fs::write(&config, bootstrap).unwrap();
        let args = [
            "-c",
            config.to_str().unwrap(),
            "--admin-address-path",
            admin.to_str().unwrap(),
            "--concurrency",
            "1",
            "--disable-hot-restart",
        ];
        let mut process = Process::start(id, dir, &Self::program().unwrap(), &args, &[]);
        let address = eventually(PATIENCE, "Envoy tells where its admin server is", || {
            assert!(process.is_running(), "Envoy ended:\n{}", process.log());
            fs::read_to_string(&admin).ok().filter(|text| !text.is_empty()).ok_or_else(String::new)
        });
        Self { _process: process, admin: format!("http://{}", address.trim()) }
    }

    /// A counter or gauge of its own.
    pub(crate) fn stat(&self, name: &str) -> Result<u64, String> {
        let stats = http::get_json(&format!("{}/stats?format=json&filter=^{name}$", self.admin))?;
        let found = list(&stats, "stats").find(|stat| stat["name"] == name);
        found.and_then(|stat| stat["value"].as_u64()).ok_or_else(|| format!("no {name} in {stats}"))
    }

    /// The ports of each cluster's endpoints.
    pub(crate) fn clusters(&self) -> Result<BTreeMap<String, Vec<u16>>, String> {
        let dump = http::get_json(&format!("{}/clusters?format=json", self.admin))?;
        let clusters = list(&dump, "cluster_statuses").map(|cluster| {
            let ports = list(cluster, "host_statuses").map(|host| port(&host["address"])).collect();
            (name(cluster), ports)
        });
        Ok(clusters.collect())
    }

    pub(crate) fn dynamic_clusters(&self) -> Result<DynamicClusters, String> {
        let dump = http::get_json(&format!("{}/config_dump", self.admin))?;
        let clusters = list(&dump, "configs")
            .find(|part| part["@type"].as_str().is_some_and(|kind| kind.ends_with(".ClustersConfigDump")))
            .ok_or("the config dump has no clusters")?;
        let named = |field| {
            list(clusters, field).map(|entry| (name(&entry["cluster"]), entry["cluster"].clone())).collect()
        };
        Ok(DynamicClusters {
            active: named("dynamic_active_clusters"),
            warming: named("dynamic_warming_clusters"),
        })
    }

    /// The answer to a request to a listener.
    pub(crate) fn request(&self, listener: &str) -> Result<String, String> {
        http::get(&self.url(listener)?)
    }

    /// Sends a request to a virtual host of it.
    pub(crate) fn request_to(&self, listener: &str, host: &str) -> Result<String, String> {
        http::get_from(&self.url(listener)?, host)
    }

    fn url(&self, listener: &str) -> Result<String, String> {
        let dump = http::get_json(&format!("{}/listeners?format=json", self.admin))?;
        let status = list(&dump, "listener_statuses")
            .find(|status| status["name"] == listener)
            .ok_or_else(|| format!("Envoy has no listener {listener}: {dump}"))?;
        Ok(format!("http://127.0.0.1:{}/", port(&status["local_address"])))
    }
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

fn name(value: &Value) -> String {
    value["name"].as_str().unwrap_or_default().to_owned()
}

fn port(address: &Value) -> u16 {
    let port = address["socket_address"]["port_value"].as_u64().unwrap_or_default();
    u16::try_from(port).unwrap()
}
