//! Subjects of a measurement: the relay, a peer, the raw loop; and the load client that drives them.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::floor::Sizes;
use super::origin::PARAMETER;
use super::process::{Core, Cores, Process};
use super::report::{Arrivals, Joined, Stormed, Tally};
use super::shape::Load;
use super::storm::Storm;
use super::tls;

const DELTAFAN: &str = env!("CARGO_BIN_EXE_deltafan");

/// All clients have one address and one certificate, which is not what is measured.
const PLACES: &str = "max_connections_per_address: 1000000, max_connections_per_identity: 1000000";

/// A group for each cluster that clients say they are in. All clients have one address, which may have all groups.
const GROUPS: &str = "groups:
  max: 100000
  rules: [{name: cluster, match: {node.cluster: \"(?P<cluster>.*)\"}, key: \"${cluster}\", node: {id: \"${cluster}\"}}]
";

/// A trial takes as little time as it can: a second, in which changes are gathered, and this.
const GUARD: &str = "rollout: {types: [eds], share: 5%, window: 100ms}\n";

/// Reads a page of an admin address, head and all.
pub(crate) fn page(admin: SocketAddr, path: &str) -> io::Result<String> {
    let mut socket = std::net::TcpStream::connect(admin)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(socket, "GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")?;
    io::read_to_string(socket)
}

/// A running relay.
pub(crate) struct Relay {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    _home: tempfile::TempDir,
}

impl Relay {
    /// Longer than any round: polls end because of a change.
    const HOLD: Duration = Duration::from_secs(600);

    /// A relay of an origin, as such clients need it: with TLS, a rollout guard, or dynamic parameters or a group by the
    /// cluster that they are in.
    pub(crate) fn start(cores: Cores, origin: SocketAddr, load: &Load) -> io::Result<Self> {
        let tls = load.certificates.as_deref().map(tls::of_listener).unwrap_or_default();
        let rule = format!("dynamic_parameters: [{{key: {PARAMETER}, from: node.cluster}}]\n");
        let rest = match load {
            Load { sets: 1.., .. } => rule.as_str(),
            Load { groups: 1.., .. } => GROUPS,
            Load { guarded: true, .. } => GUARD,
            _ => "",
        };
        Self::serving((cores, load.relay_on), origin, Self::HOLD, &tls, rest, load.counted.as_deref())
    }

    /// A relay of an origin, which holds polls for so long.
    pub(crate) fn holding(cores: Cores, origin: SocketAddr, hold: Duration) -> io::Result<Self> {
        Self::serving((cores, Core::Server), origin, hold, "", "", None)
    }

    fn serving(
        (cores, core): (Cores, Core),
        origin: SocketAddr,
        hold: Duration,
        tls: &str,
        rest: &str,
        counted: Option<&Path>,
    ) -> io::Result<Self> {
        // Both are held until both are chosen, so that they differ.
        let (one, other) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let (address, admin) = (one.local_addr()?, other.local_addr()?);
        drop((one, other));
        let home = tempfile::tempdir()?;
        let config = home.path().join("relay.yaml");
        std::fs::write(
            &config,
            format!(
                "upstream: {{servers: [{{uri: \"http://{origin}\"}}]}}\nadmin: {{address: \"{admin}\"}}\n\
                 downstream: {{listeners: [{{address: \"{address}\", {tls}}}], {PLACES}}}\n\
                 rest: {{hold: {}s}}\n{rest}",
                hold.as_secs()
            ),
        )?;
        let args = ["serve", "--log-level", "warn", "--config", &config.to_string_lossy()].map(str::to_owned);
        let process = match counted {
            None => Process::spawn(cores, core, Path::new(DELTAFAN), &args)?,
            Some(out) => {
                let out = format!("--callgrind-out-file={}", out.display());
                let options =
                    ["-q", "--tool=callgrind", "--collect-systime=yes", "--collect-bus=yes", &out, DELTAFAN];
                let all: Vec<String> = options.into_iter().map(str::to_owned).chain(args).collect();
                Process::spawn(cores, core, Path::new("valgrind"), &all)?
            }
        };
        let relay = Self { process, address, admin, _home: home };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !relay.page("/ready").is_ok_and(|page| page.starts_with("HTTP/1.1 200")) {
            if Instant::now() > deadline {
                return Err(io::Error::other("the relay does not become ready"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(relay)
    }

    fn page(&self, path: &str) -> io::Result<String> {
        page(self.admin, path)
    }

    /// Waits until no more than so many clients are connected.
    pub(crate) fn wait_for_connections(&self, most: u64) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let open = self.metric("deltafan_connections ")?;
            if open <= most {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("the relay still has {open} connections")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Frames encoded since the start.
    pub(crate) fn encodes(&self) -> io::Result<u64> {
        self.metric("deltafan_encodes_total ")
    }

    /// The newest generation of a relay that holds one type.
    pub(crate) fn generation(&self) -> io::Result<u64> {
        self.metric("deltafan_generation{")
    }

    /// Polls that are held now.
    pub(crate) fn held_polls(&self) -> io::Result<u64> {
        let page = self.page("/metrics")?;
        let lines = page.lines().filter(|line| line.starts_with("deltafan_held_polls{"));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    fn metric(&self, prefix: &str) -> io::Result<u64> {
        let page = self.page("/metrics")?;
        let line = page.lines().find(|line| line.starts_with(prefix));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .ok_or_else(|| io::Error::other(format!("no metric {prefix}")))
    }

    /// How many responses of the control plane were applied within so many seconds each, since the start.
    pub(crate) fn applied(&self) -> io::Result<Vec<(f64, u64)>> {
        let page = self.page("/metrics")?;
        let bucket = |line: &str| {
            let rest = line.strip_prefix("deltafan_upstream_apply_seconds_bucket{le=\"")?;
            let (bound, count) = rest.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.parse().ok()?))
        };
        Ok(page.lines().filter_map(bucket).collect())
    }
}

/// A peer that is told what to hold and change: a go-control-plane server.
pub(crate) struct Peer {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Peer {
    /// Builds it where Go is found.
    pub(crate) fn build() -> Option<PathBuf> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/linear");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("linear");
        let built =
            Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(folder).status();
        built.is_ok_and(|status| status.success()).then_some(program)
    }

    pub(crate) fn start(cores: Cores, program: &Path, load: &Load, bytes: usize) -> io::Result<Self> {
        let args = [load.kinds[0].type_url().to_owned(), load.resources.to_string(), bytes.to_string()];
        let mut process = Process::spawn(cores, Core::Server, program, &args)?;
        Ok(Self { address: address(&process.hear("listening")?)?, process })
    }
}

/// The raw loop.
pub(crate) struct Floor {
    pub(crate) load: Driver,
    pub(crate) process: Process,
}

impl Floor {
    pub(crate) fn start(cores: Cores, clients: usize, sizes: Sizes) -> io::Result<Self> {
        let sizes = [clients, sizes.message, sizes.ack, sizes.answer].map(|number| number.to_string());
        let mut args = vec!["floor".to_owned()];
        args.extend_from_slice(&sizes);
        let mut process = Process::role(cores, Core::Server, &args)?;
        let mut args = vec!["floor-load".to_owned(), process.hear("listening")?];
        args.extend(sizes);
        let mut load = Driver(Process::role(cores, Core::Load, &args)?);
        load.0.hear("ready")?;
        Ok(Self { process, load })
    }
}

/// The load client.
pub(crate) struct Driver(pub(crate) Process);

impl Driver {
    /// Connects a fleet and waits until all of it has its first state.
    pub(crate) fn start(cores: Cores, target: SocketAddr, load: &Load) -> io::Result<(Self, Joined)> {
        let args = ["load".to_owned(), target.to_string(), serde_json::to_string(load)?];
        let mut driver = Self(Process::role(cores, Core::Load, &args)?);
        let joined = driver.0.hear_value("ready")?;
        Ok((driver, joined))
    }

    /// Begins to wait for so many responses.
    pub(crate) fn expect(&mut self, responses: usize) -> io::Result<()> {
        self.0.say(&format!("expect {responses}"))?;
        self.0.hear("waiting").map(drop)
    }

    pub(crate) fn arrivals(&mut self) -> io::Result<Arrivals> {
        self.0.hear_value("got")
    }

    /// Traffic since the last answer.
    pub(crate) fn tally(&mut self) -> io::Result<Tally> {
        self.0.say("tally")?;
        self.0.hear_value("tally")
    }
}

/// Has a fleet come all at once, and waits until all of it is answered.
pub(crate) fn storm(cores: Cores, target: SocketAddr, storm: &Storm) -> io::Result<Stormed> {
    let args = ["storm".to_owned(), target.to_string(), serde_json::to_string(storm)?];
    Process::role(cores, Core::Load, &args)?.hear_value("ready")
}

/// An address that a process said.
pub(crate) fn address(word: &str) -> io::Result<SocketAddr> {
    word.parse().map_err(|error| io::Error::other(format!("`{word}` is no address: {error}")))
}
