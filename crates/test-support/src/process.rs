//! The relay's binary on a directory, as a process of its own.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::PATIENCE;
use crate::client::{CDS, Delta, connect};
use crate::origin::{Origin, OriginStream};

/// One listener in cleartext, at an address of its own.
pub const LISTENERS: &str = "[{address: \"OWN:0\"}]";
/// One listener in cleartext at 127.0.0.1, for clients that know its port only.
pub const SHARED_LISTENER: &str = "[{address: \"127.0.0.1:0\"}]";

/// The relay's binary: cargo names it to a test program, and puts it into the folder above that.
pub fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_deltafan").map_or_else(
        || std::env::current_exe().unwrap().parent().unwrap().with_file_name("deltafan"),
        PathBuf::from,
    )
}

/// A relay that is ready, and ends with this value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: mpsc::Receiver<String>,
    /// Lines from before it served that nobody has looked at.
    early: RefCell<Vec<String>>,
    pub listener: SocketAddr,
    /// The last of its listeners.
    pub last_listener: SocketAddr,
    pub admin: SocketAddr,
    home: TempDir,
    /// The part of the configuration that stays.
    base: String,
    logged: Arc<AtomicUsize>,
    reading: Arc<AtomicU8>,
}

/// The log is read.
const READ: u8 = 0;
/// It is left unread.
const LEFT: u8 = 1;
/// It is closed.
const CLOSED: u8 = 2;

impl Process {
    /// Starts it on `files` with further lines of configuration under `downstream`.
    pub fn start(files: &[(&str, &str)], downstream: &str) -> Self {
        Self::launch("{directory: ./resources}", files, LISTENERS, downstream)
    }

    /// Starts it on `files`, with these listeners instead of one in cleartext.
    pub fn listening(listeners: &str, files: &[(&str, &str)], downstream: &str) -> Self {
        Self::launch("{directory: ./resources}", files, listeners, downstream)
    }

    /// Starts it on a control plane.
    pub fn behind(origin: &str, downstream: &str) -> Self {
        Self::behind_with(origin, LISTENERS, downstream)
    }

    /// Starts it on a control plane, with these listeners instead of one in cleartext.
    pub fn behind_with(origin: &str, listeners: &str, downstream: &str) -> Self {
        Self::launch(&upstream(origin, "", ""), &[], listeners, downstream)
    }

    /// Starts it on a control plane with these keys beside its URI, these beside the server, and further lines of configuration. The
    /// back-off is short, unless they say another one.
    pub fn behind_keys(origin: &str, server: &str, keys: &str, further: &str) -> Self {
        Self::launch(&upstream(origin, server, keys), &[], LISTENERS, further)
    }

    /// Starts it on a control plane with further lines of configuration, and does not wait until it is ready.
    pub fn unready_with(origin: &str, further: &str) -> Self {
        Self::begin(&upstream(origin, "", ""), &[], LISTENERS, further)
    }

    /// Starts it on several control planes with these keys beside them.
    pub fn behind_several(origins: &[String], keys: &str, downstream: &str) -> Self {
        let servers: Vec<String> = origins.iter().map(|uri| format!("{{uri: \"{uri}\"}}")).collect();
        let upstream = format!("{{servers: [{}], {keys}}}", servers.join(", "));
        Self::launch(&upstream, &[], LISTENERS, downstream)
    }

    /// Starts it on a control plane with these keys beside the server, and does not wait until it is ready.
    pub fn unready_behind(origin: &str, upstream: &str) -> Self {
        let upstream = format!("{{servers: [{{uri: \"{origin}\"}}], {upstream}}}");
        Self::begin(&upstream, &[], LISTENERS, "")
    }

    /// Starts it on a control plane with these listeners instead of one in cleartext, and does not wait until it is ready.
    pub fn unready_on(listeners: &str, origin: &str) -> Self {
        Self::begin(&upstream(origin, "", ""), &[], listeners, "")
    }

    /// Starts it with this source of resources, these files and listeners, and further lines of configuration.
    pub fn launch(upstream: &str, files: &[(&str, &str)], listeners: &str, downstream: &str) -> Self {
        Self::begin(upstream, files, listeners, downstream).when_ready()
    }

    #[must_use]
    pub fn when_ready(self) -> Self {
        self.wait_for("readiness", || self.admin_get("/ready").0 == 200);
        self
    }

    fn begin(upstream: &str, files: &[(&str, &str)], listeners: &str, downstream: &str) -> Self {
        let (home, base) = Self::prepare(upstream, files, listeners, downstream);
        Self::spawn(home, base)
    }

    /// Writes its files. Returns their folder, and the part of the configuration that stays.
    fn prepare(
        upstream: &str,
        files: &[(&str, &str)],
        listeners: &str,
        downstream: &str,
    ) -> (TempDir, String) {
        let home = tempfile::tempdir().unwrap();
        let resources = home.path().join("resources");
        std::fs::create_dir(&resources).unwrap();
        for (name, text) in files {
            std::fs::write(resources.join(name), text).unwrap();
        }
        let config = home.path().join("relay.yaml");
        let listeners = listeners.replace("OWN", &crate::own_loopback().to_string());
        let base = format!(
            "node: {{id: test}}\nupstream: {upstream}\nadmin: {{address: \"127.0.0.1:0\"}}\n\
             downstream:\n  listeners: {listeners}\n"
        );
        std::fs::write(&config, format!("{base}{downstream}")).unwrap();
        (home, base)
    }

    /// Kills it without a word, has `between` do something to its folder, and starts it again there. Does not wait until it is
    /// ready.
    pub fn killed_and_restarted(mut self, between: impl FnOnce(&Path)) -> Self {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let home = std::mem::replace(&mut self.home, tempfile::tempdir().unwrap());
        between(home.path());
        Self::spawn(home, std::mem::take(&mut self.base))
    }

    /// Ends it in order, and starts it again.
    pub fn restarted(mut self) -> Self {
        self.terminate();
        self.wait();
        self.killed_and_restarted(|_| {})
    }

    /// Folder of its configuration.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    fn spawn(home: TempDir, base: String) -> Self {
        let config = home.path().join("relay.yaml");
        let mut child = Command::new(program())
            .args(["serve", "--log-format", "json", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();

        // The log is read to its end, so that the relay never waits for the pipe.
        let log = BufReader::new(child.stderr.take().unwrap());
        let (lines, serving) = mpsc::channel();
        let logged = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&logged);
        let reading = Arc::new(AtomicU8::new(READ));
        let how = Arc::clone(&reading);
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                eprintln!("relay: {line}");
                count.fetch_add(1, Ordering::Relaxed);
                _ = lines.send(line);
                while how.load(Ordering::Relaxed) == LEFT {
                    std::thread::sleep(Duration::from_millis(10));
                }
                if how.load(Ordering::Relaxed) == CLOSED {
                    break;
                }
            }
        });
        let mut early = Vec::new();
        let (listener, last_listener, admin) = loop {
            let line = serving.recv_timeout(PATIENCE).expect("the relay says that it serves");
            let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if event["message"] == "serving" {
                let all = event["listeners"].as_str().unwrap();
                let all = all.strip_prefix('[').unwrap().strip_suffix(']').unwrap();
                // Unix sockets are left out: the test knows their paths.
                let mut listeners = all.split(", ").filter_map(|one| one.parse().ok());
                let listener = listeners.next().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
                break (
                    listener,
                    listeners.last().unwrap_or(listener),
                    event["admin"].as_str().unwrap().parse().unwrap(),
                );
            }
            early.push(line);
        };
        let early = RefCell::new(early);
        Self { child, log: serving, early, listener, last_listener, admin, home, base, logged, reading }
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Leaves its log unread from now on, with the pipe full, as a reader does that hangs.
    pub fn leave_log(&self) {
        self.have_log(LEFT);
        let mut pipe = self.log_pipe();
        while pipe.write(&[b' '; 1 << 10]).is_ok() {}
    }

    /// Reads its log again.
    pub fn read_log(&self) {
        self.have_log(READ);
    }

    /// Closes its log: the reader is gone.
    pub fn close_log(&self) {
        self.have_log(CLOSED);
        let deadline = Instant::now() + PATIENCE;
        // Opened anew each time, so that it is not the test that keeps it open.
        while self.log_pipe().write(b"\n").is_ok() {
            assert!(Instant::now() < deadline, "the pipe is still read");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn have_log(&self, how: u8) {
        self.reading.store(how, Ordering::Relaxed);
        // The reader looks behind each line.
        drop(self.log_pipe().write(b"{}\n"));
    }

    /// The end of the pipe that the relay writes to.
    fn log_pipe(&self) -> std::fs::File {
        let path = format!("/proc/{}/fd/2", self.child.id());
        // O_NONBLOCK of Linux: a full pipe is an error.
        std::fs::OpenOptions::new().write(true).custom_flags(0o4000).open(path).unwrap()
    }

    /// Lines it has written to its log.
    pub fn log_lines(&self) -> usize {
        self.logged.load(Ordering::Relaxed)
    }

    /// Whether a line of its log so far, structured or not, says this. Each is looked at once.
    pub fn has_written(&self, text: &str) -> bool {
        self.lines().any(|line| line.contains(text))
    }

    /// CPU time it has used.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanos = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.flatten().filter_map(nanos).sum())
    }

    /// The events of the log so far that say this, each once.
    pub fn said(&self, message: &str) -> Vec<serde_json::Value> {
        self.events().into_iter().filter(|event| event["message"] == message).collect()
    }

    /// Waits until the log has this message, and returns the events with it so far. The log is read behind what the relay
    /// answers: a message need not be there when its cause is.
    pub fn wait_for_message(&self, message: &str) -> Vec<serde_json::Value> {
        self.wait_for_messages(message, 1)
    }

    /// Waits until the log has this message so many times.
    pub fn wait_for_messages(&self, message: &str, count: usize) -> Vec<serde_json::Value> {
        let mut said = Vec::new();
        self.wait_for(message, || {
            said.extend(self.said(message));
            said.len() >= count
        });
        said
    }

    /// The events of the log so far, each once.
    pub fn events(&self) -> Vec<serde_json::Value> {
        self.lines().filter_map(|line| serde_json::from_str(&line).ok()).collect()
    }

    /// Lines of the log so far, each once.
    fn lines(&self) -> impl Iterator<Item = String> {
        self.early.take().into_iter().chain(self.log.try_iter())
    }

    pub fn uri(&self) -> String {
        format!("http://{}", self.listener)
    }

    /// A client of its clusters of these names.
    pub async fn client(&self, id: &str, names: &[&str]) -> Delta {
        Delta::asking(&connect(&self.uri()).await, id, CDS, names).await
    }

    /// Puts a file into the directory, as careful writers do: whole or not at all.
    pub fn write(&self, name: &str, text: &str) {
        let hidden = self.resources().join(format!(".{name}.new"));
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, self.resources().join(name)).unwrap();
    }

    /// The file of its configuration.
    pub fn config(&self) -> PathBuf {
        self.home.path().join("relay.yaml")
    }

    /// Its configuration with other further lines under `downstream`.
    pub fn config_with(&self, downstream: &str) -> String {
        format!("{}{downstream}", self.base)
    }

    /// Puts another configuration in the place of the one it has, whole or not at all.
    pub fn reconfigure(&self, text: &str) {
        let new = self.home.path().join("relay.yaml.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.config()).unwrap();
    }

    /// Times that it has read its configuration again with this result.
    pub fn reloads(&self, result: &str) -> f64 {
        self.metric(&format!("deltafan_config_reloads_total{{result=\"{result}\"}}"))
    }

    pub fn resources(&self) -> PathBuf {
        Path::join(self.home.path(), "resources")
    }

    /// Status and body of a page of the admin address.
    pub fn admin_get(&self, path: &str) -> (u16, String) {
        http1(self.admin, &format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n"))
    }

    /// JSON of a page of the admin address, which has to answer 200.
    pub fn admin_json(&self, path: &str) -> serde_json::Value {
        let (status, text) = self.admin_get(path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Status and body of the answer to an order to the admin address.
    pub fn admin_post(&self, path: &str) -> (u16, String) {
        let head = "host: admin\r\nconnection: close\r\ncontent-length: 0";
        http1(self.admin, &format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n"))
    }

    /// The value of a metric; zero where it has not been counted yet.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.admin_get("/metrics");
        let values = text.lines().filter(|line| line.starts_with(name));
        values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    pub fn wait_for(&self, what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < deadline, "no {what} in time");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nothing has changed for `quiet`, and the snapshot has everything. A machine that is busy may be slow to write.
    pub fn wait_for_snapshot(&self, quiet: Duration) {
        let begun = Instant::now();
        self.wait_for("a complete snapshot", || {
            let status = self.admin_json("/upstreams");
            let ago = |key: &str| status["snapshot"][key].as_f64();
            ago("last_write_seconds_ago").is_some_and(|ago| ago > quiet.as_secs_f64())
                && ago("complete_seconds_ago").is_some_and(|ago| ago < begun.elapsed().as_secs_f64())
        });
    }

    pub fn terminate(&self) {
        self.signal("TERM");
    }

    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the relay does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success());
}

/// Bytes of memory that a process holds.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it lives");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Configuration of one control plane, with these keys beside its URI and these beside the server.
fn upstream(origin: &str, server: &str, keys: &str) -> String {
    let backoff = if keys.contains("backoff") { "" } else { "backoff: {initial: 50ms, max: 500ms}, " };
    format!("{{servers: [{{uri: \"{origin}\", {server}}}], {backoff}{keys}}}")
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Exit status, stdout and stderr of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Each of these is said on the standard error.
    pub fn complains(&self, texts: &[&str]) {
        assert!(texts.iter().all(|text| self.stderr.contains(text)), "{}", self.stderr);
    }
}

/// Runs a command line of the program to its end.
pub fn run(args: &[impl AsRef<OsStr>]) -> Ran {
    // Otherwise the user would be the author of orders.
    let output = Command::new(program()).args(args).env_remove("USER").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Status and body of whatever answers to these bytes; status 0 where nobody answers in HTTP.
pub fn http1(server: SocketAddr, request: &str) -> (u16, String) {
    let Ok(mut socket) = TcpStream::connect(server) else { return (0, String::new()) };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// A resource file with clusters of these names.
pub fn clusters<N: fmt::Display>(names: impl IntoIterator<Item = N>) -> String {
    let entry = |name| format!("- \"@type\": {CDS}\n  name: {name}\n  connect_timeout: 1s\n");
    format!("type_url: {CDS}\nresources:\n{}", names.into_iter().map(entry).collect::<String>())
}

/// A relay on a directory with the clusters `a` and `b`, with further lines of configuration under `downstream`.
pub fn relay(downstream: &str) -> Process {
    Process::start(&[("clusters.yaml", &clusters(["a", "b"]))], downstream)
}

/// A relay, its control plane, and the control plane's side of the stream between them.
pub async fn relay_and_origin(downstream: &str) -> (Process, Origin, OriginStream) {
    let mut origin = Origin::start().await;
    let relay = Process::behind(&origin.uri(), downstream);
    let stream = origin.accept().await;
    (relay, origin, stream)
}
