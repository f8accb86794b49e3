//! The relay under test.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{PATIENCE, Process, eventually, free_port, http};

pub(crate) struct Relay {
    dir: PathBuf,
    ports: Ports,
    process: Option<Process>,
}

#[derive(Clone, Copy)]
struct Ports {
    xds: u16,
    admin: u16,
}

impl Relay {
    pub(crate) fn start(dir: &Path, origin: u16) -> Self {
        Self::launch(dir, &|ports| configuration(ports, &server(origin), ""))
    }

    /// Starts one that speaks TLS on both sides, with the files of a folder.
    pub(crate) fn start_secure(dir: &Path, origin: u16, origin_is: &str, files: &Path) -> Self {
        let files = files.display();
        let own = format!("cert_file: {files}/relay.pem, key_file: {files}/relay.key");
        let server = format!(
            "{{uri: \"https://127.0.0.1:{origin}\", \
             tls: {{ca_file: {files}/ca.pem, {own}, server_name: \"{origin_is}\"}}}}"
        );
        let tls = format!(", tls: {{{own}, client_ca_file: {files}/ca.pem}}");
        Self::launch(dir, &|ports| configuration(ports, &server, &tls))
    }

    fn launch(dir: &Path, configuration: &dyn Fn(Ports) -> String) -> Self {
        for _ in 0..3 {
            let ports = Ports { xds: free_port(), admin: free_port() };
            fs::write(dir.join("relay.yaml"), configuration(ports)).unwrap();
            let mut relay = Self { dir: dir.to_owned(), ports, process: None };
            if relay.try_start() {
                return relay;
            }
        }
        panic!("the relay was not given a free port three times");
    }

    pub(crate) fn port(&self) -> u16 {
        self.ports.xds
    }

    /// The sum of a metric over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = http::get(&format!("http://127.0.0.1:{}/metrics", self.ports.admin)).unwrap();
        let values = text.lines().filter(|line| line.starts_with(name));
        values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    /// Sends SIGTERM, and waits until the relay has drained and gone.
    pub(crate) fn stop(&mut self) {
        self.process.take().expect("the relay runs").terminate(Duration::from_secs(10));
    }

    /// Starts it with the configuration it had.
    pub(crate) fn start_again(&mut self) {
        assert!(self.try_start(), "another program took the relay's port");
    }

    /// False when somebody else was quicker to take one of the ports.
    fn try_start(&mut self) -> bool {
        let config = self.dir.join("relay.yaml");
        let program = deltafan_test_support::process::program();
        let args = ["serve", "--config", config.to_str().unwrap()];
        let mut process = Process::start("relay", &self.dir, &program, &args, &[]);
        let ready = format!("http://127.0.0.1:{}/ready", self.ports.admin);
        let started = eventually(PATIENCE, "the relay is ready", || {
            if !process.is_running() {
                let log = process.log();
                assert!(log.contains("in use"), "the relay ended:\n{log}");
                return Ok(false);
            }
            http::get(&ready).map(|_| true)
        });
        self.process = started.then_some(process);
        started
    }
}

fn server(origin: u16) -> String {
    format!("{{uri: \"http://127.0.0.1:{origin}\"}}")
}

fn configuration(ports: Ports, server: &str, tls: &str) -> String {
    let Ports { xds, admin } = ports;
    format!(
        r#"
node: {{id: relay-test, cluster: edge}}
upstream:
  servers: [{server}]
  unsubscribe_linger: 1s
  backoff: {{initial: 100ms, max: 1s}}
downstream:
  listeners: [{{address: "127.0.0.1:{xds}"{tls}}}]
  drain: 1s
admin: {{address: "127.0.0.1:{admin}"}}
"#
    )
}
