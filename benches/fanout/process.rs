//! Child processes: pinned to a core, told what to do line by line, and gone when the bench is gone, however it ends.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::CpuSet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::measure::{Threads, peak_kib, reset_peak, rss_kib, sleeps};

/// Where a process runs. What is measured has a core to itself; whatever loads it shares the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Core {
    Server,
    Load,
    /// On both.
    Each,
}

impl Core {
    /// The first and the last core of the machine that we may use.
    fn number() -> io::Result<(usize, usize)> {
        let parent = std::fs::read_to_string("/proc/self/status")?;
        let list = parent.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let list = list.ok_or_else(|| io::Error::other("no list of cores in /proc/self/status"))?;
        let mut ends = list.trim().split([',', '-']).map(str::parse::<usize>);
        let (first, last) = (ends.next(), ends.next_back());
        match (first, last) {
            (Some(Ok(first)), Some(Ok(last))) if first != last => Ok((first, last)),
            _ => Err(io::Error::other("two cores are needed: one for what is measured, one for its load")),
        }
    }
}

/// The cores of a run, looked up before the bench pins itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    server: usize,
    load: usize,
}

impl Cores {
    /// Finds the cores and moves this process, with the origin in it, to that of the load.
    pub(crate) fn take() -> io::Result<Self> {
        let (server, load) = Core::number()?;
        pin(&[load])?;
        Ok(Self { server, load })
    }
}

fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Turns this process into `program` on a core, bound to the life of the bench that started it, with as many
/// descriptors as are allowed. Returns only if that fails.
pub(crate) fn become_program(cores: &str, parent: i32, program: &Path, args: &[OsString]) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
        return Err(io::Error::other("the bench ended before its child began"));
    }
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let cores: Result<Vec<usize>, _> = cores.split(',').map(str::parse).collect();
    pin(&cores.map_err(io::Error::other)?)?;
    Err(Command::new(program).args(args).exec())
}

/// A process that is told what to do line by line, and ends with this value.
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// As of the last look: what each thread had used, and all of them since the start, those that ended included.
    used: RefCell<(Threads, u64)>,
}

impl Process {
    pub(crate) fn spawn(cores: Cores, core: Core, program: &Path, args: &[String]) -> io::Result<Self> {
        let cores = match core {
            Core::Server => cores.server.to_string(),
            Core::Load => cores.load.to_string(),
            Core::Each => format!("{},{}", cores.server, cores.load),
        };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["run", &cores, &std::process::id().to_string()])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| io::Error::other("no stdin"))?;
        let stdout = BufReader::new(child.stdout.take().ok_or_else(|| io::Error::other("no stdout"))?);
        Ok(Self { child, stdin, stdout, used: RefCell::default() })
    }

    /// This program in another role.
    pub(crate) fn role(cores: Cores, core: Core, args: &[String]) -> io::Result<Self> {
        Self::spawn(cores, core, &std::env::current_exe()?, args)
    }

    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}")
    }

    /// The rest of the next line, which has to begin with `verb`.
    pub(crate) fn hear(&mut self, verb: &str) -> io::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.trim().strip_prefix(verb) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None if line.is_empty() => Err(io::Error::other(format!("it ended before it said `{verb}`"))),
            None => Err(io::Error::other(format!("it said `{}` instead of `{verb}`", line.trim()))),
        }
    }

    /// The rest of the next line behind `verb`, as JSON.
    pub(crate) fn hear_value<T: DeserializeOwned>(&mut self, verb: &str) -> io::Result<T> {
        Ok(serde_json::from_str(&self.hear(verb)?)?)
    }

    pub(crate) fn threads(&self) -> io::Result<Threads> {
        Threads::of(self.child.id())
    }

    /// CPU used since its start, in nanoseconds; never less than it was.
    pub(crate) fn cpu(&self) -> io::Result<u64> {
        let now = Threads::of(self.child.id())?;
        let mut used = self.used.borrow_mut();
        let (before, sum) = &mut *used;
        *sum += now.since(before);
        *before = now;
        Ok(*sum)
    }

    /// CPU used since its start once it has nothing left to do: what it owes to the last change, as the ACKs of it, is in
    /// the figure, and not in that of the next to be measured on its core.
    pub(crate) fn settled_cpu(&self) -> io::Result<u64> {
        const LOOK: Duration = Duration::from_millis(10);
        const IDLE_NANOS: u64 = 200_000;
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut used = self.cpu()?;
        loop {
            std::thread::sleep(LOOK);
            let before = std::mem::replace(&mut used, self.cpu()?);
            if used - before < IDLE_NANOS || Instant::now() > deadline {
                return Ok(used);
            }
        }
    }

    /// Wake-ups per second during this time.
    pub(crate) fn wake_ups(&self, during: Duration) -> io::Result<f64> {
        let before = sleeps(self.child.id())?;
        std::thread::sleep(during);
        Ok(sleeps(self.child.id())?.saturating_sub(before) as f64 / during.as_secs_f64())
    }

    /// Resident memory, in MiB.
    pub(crate) fn rss_mib(&self) -> io::Result<f64> {
        Ok(rss_kib(self.child.id())? as f64 / 1024.0)
    }

    /// The most that was resident since [`reset_peak`](Self::reset_peak), in MiB.
    pub(crate) fn peak_mib(&self) -> io::Result<f64> {
        Ok(peak_kib(self.child.id())? as f64 / 1024.0)
    }

    pub(crate) fn reset_peak(&self) -> io::Result<()> {
        reset_peak(self.child.id())
    }
}

impl Process {
    /// Has it end, and waits until it has.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, Signal::TERM)?;
        self.child.wait().map(drop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A child that cannot be killed has ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
