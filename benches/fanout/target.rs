//! Processes that are measured: the relay, a peer, the raw loop, and the load client that drives them.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::measure::{cpu_nanos, rss_kib};
use super::shape::Load;

const SERVER_CORE: &str = "0";
const LOAD_CORE: &str = "1";

/// A process that is told what to do line by line, and ends with this value.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn spawn(core: &str, program: &Path, args: &[String]) -> io::Result<Self> {
        let mut child = Command::new("taskset")
            .args(["-c", core])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("cannot start taskset (util-linux): {error}")))?;
        let stdin = child.stdin.take().ok_or_else(|| io::Error::other("no stdin"))?;
        let stdout = BufReader::new(child.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?);
        Ok(Self { child, stdin, stdout })
    }

    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}")
    }

    /// The words after `verb` of the next line, which has to begin with it.
    pub(crate) fn hear(&mut self, verb: &str) -> io::Result<Vec<String>> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        if words.next().as_deref() != Some(verb) {
            return Err(io::Error::other(format!("`{}` instead of `{verb}`", line.trim())));
        }
        Ok(words.collect())
    }

    pub(crate) fn cpu(&self) -> io::Result<u64> {
        cpu_nanos(self.child.id())
    }

    pub(crate) fn rss(&self) -> io::Result<u64> {
        rss_kib(self.child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn myself() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

fn parsed<T: std::str::FromStr>(words: &[String], at: usize) -> io::Result<T> {
    words
        .get(at)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::Error::other(format!("no number in {words:?}")))
}

/// A relay of an origin.
pub(crate) struct Relay {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    _home: tempfile::TempDir,
}

impl Relay {
    pub(crate) fn start(origin: SocketAddr) -> io::Result<Self> {
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        let (address, admin) = (free()?, free()?);
        let home = tempfile::tempdir()?;
        let config = home.path().join("relay.yaml");
        std::fs::write(
            &config,
            format!(
                "upstream: {{servers: [{{uri: \"http://{origin}\"}}]}}\nadmin: {{address: \"{admin}\"}}\n\
                 downstream: {{listeners: [{{address: \"{address}\"}}]}}\n"
            ),
        )?;
        let args = ["serve", "--log-level", "warn", "--config", &config.to_string_lossy()].map(str::to_owned);
        let process = Process::spawn(SERVER_CORE, Path::new(env!("CARGO_BIN_EXE_deltafan")), &args)?;
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
        let mut socket = std::net::TcpStream::connect(self.admin)?;
        write!(socket, "GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")?;
        io::read_to_string(socket)
    }

    /// Frames encoded since the start.
    pub(crate) fn encodes(&self) -> io::Result<u64> {
        let page = self.page("/metrics")?;
        let line = page.lines().find_map(|line| line.strip_prefix("deltafan_encodes_total "));
        line.and_then(|count| count.parse().ok()).ok_or_else(|| io::Error::other("no count of encodes"))
    }
}

/// A peer that is told what to hold and change: a go-control-plane server.
pub(crate) struct Peer {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Peer {
    pub(crate) fn start(program: &Path, load: &Load, bytes: usize) -> io::Result<Self> {
        let args = [load.type_url().to_owned(), load.resources.to_string(), bytes.to_string()];
        let mut process = Process::spawn(SERVER_CORE, program, &args)?;
        let words = process.hear("listening")?;
        Ok(Self { address: parsed(&words, 0)?, process })
    }
}

/// The raw loop.
pub(crate) struct Floor {
    pub(crate) process: Process,
    pub(crate) load: Driver,
}

impl Floor {
    pub(crate) fn start(clients: usize, message: usize) -> io::Result<Self> {
        let args = ["floor".to_owned(), clients.to_string(), message.to_string()];
        let mut process = Process::spawn(SERVER_CORE, &myself()?, &args)?;
        let address: SocketAddr = parsed(&process.hear("listening")?, 0)?;
        let args = ["floor-load".to_owned(), address.to_string(), clients.to_string(), message.to_string()];
        let mut load = Driver(Process::spawn(LOAD_CORE, &myself()?, &args)?);
        load.0.hear("ready")?;
        Ok(Self { process, load })
    }
}

/// The load client.
pub(crate) struct Driver(pub(crate) Process);

/// When the responses of a round came, on the machine's monotonic clock, in nanoseconds.
pub(crate) struct Arrivals {
    pub(crate) median: u64,
    pub(crate) p99: u64,
    pub(crate) last: u64,
}

impl Driver {
    /// Connects a fleet and waits until all of it has its first state.
    pub(crate) fn start(target: SocketAddr, load: &Load) -> io::Result<(Self, Duration)> {
        let args = ["load".to_owned(), target.to_string(), load.to_string()];
        let mut driver = Self(Process::spawn(LOAD_CORE, &myself()?, &args)?);
        let words = driver.0.hear("ready")?;
        Ok((driver, Duration::from_nanos(parsed(&words, 0)?)))
    }

    pub(crate) fn expect(&mut self, responses: usize) -> io::Result<()> {
        self.0.say(&format!("expect {responses}"))
    }

    pub(crate) fn arrivals(&mut self) -> io::Result<Arrivals> {
        let words = self.0.hear("got")?;
        Ok(Arrivals { median: parsed(&words, 1)?, p99: parsed(&words, 2)?, last: parsed(&words, 3)? })
    }
}
