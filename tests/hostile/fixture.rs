//! One relay, its control plane, an honest client, and attacks one after the other.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deltafan_test_support::process::{self, Process};
use parking_lot::{Mutex, MutexGuard};
use rustix::thread::CpuSet;

use super::aftermath::Bystanders;
use super::honest::Honest;
use super::peer::{Connector, Target, tcp};

/// By how much an attack may have the relay grow.
const MEMORY: u64 = 64 << 20;
/// Latency that counts as undisturbed however little it was before: with a few hundred changes the 99th percentile is the third
/// or so from the top, attackers and honest client share a core, and the relay has one for all it does.
const FLOOR: Duration = Duration::from_millis(12);
/// Whether latency is measured and judged: in a program that is optimized, on a quiet machine, as in `make attacks`. Elsewhere an
/// attack shows that the relay lives, is bounded, and serves others in the end.
pub(crate) const IS_JUDGED: bool = !cfg!(debug_assertions);
/// Runs of an attack of which one must be within bounds: the machine may have had something else to do. Memory has no
/// second try.
const TRIES: usize = 2;

/// One at a time: they measure.
static SEAT: Mutex<()> = Mutex::new(());

/// An attack, which so many threads run until its target's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    name: &'static str,
    /// Limit that bounds it, for the table.
    bound: &'static str,
    threads: usize,
    run: fn(&Target),
}

/// An attack by two threads.
pub(crate) const fn attack(name: &'static str, bound: &'static str, run: fn(&Target)) -> Attack {
    Attack { name, bound, threads: 2, run }
}

impl Attack {
    pub(crate) const fn by(self, threads: usize) -> Self {
        Self { threads, ..self }
    }
}

/// Whether an attack is to be run: `DELTAFAN_ATTACKS` is a part of the names of those that are, for who looks for causes.
fn is_chosen(attack: &Attack) -> bool {
    std::env::var("DELTAFAN_ATTACKS").map_or(true, |part| attack.name.contains(&part))
}

/// Length of an attack on a quiet machine; `DELTAFAN_ATTACK_SECONDS` overrides it.
fn length() -> Duration {
    let seconds = std::env::var("DELTAFAN_ATTACK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(Duration::from_millis(600), Duration::from_secs)
}

/// Whether there is time to wait for names that linger.
fn is_long() -> bool {
    length() >= Duration::from_secs(2)
}

#[derive(Debug)]
pub(crate) struct Fixture {
    relay: Process,
    /// Which of its listeners is attacked.
    target: SocketAddr,
    honest: Honest,
    bystanders: Mutex<Bystanders>,
    _seat: MutexGuard<'static, ()>,
}

/// Result of an attack.
#[derive(Debug)]
struct Outcome {
    grown: u64,
    kept: u64,
    before: Duration,
    during: Duration,
    after: Duration,
    over: Duration,
}

impl Fixture {
    /// Starts all, with further lines of configuration under `downstream`.
    pub(crate) fn start(downstream: &str) -> Self {
        Self::start_with("[{address: \"127.0.0.1:0\"}]", downstream)
    }

    /// Starts all with these listeners: honest clients use the first, and the last is attacked.
    pub(crate) fn start_with(listeners: &str, downstream: &str) -> Self {
        let seat = SEAT.lock();
        raise_descriptors();
        let cores = cores();
        let (honest, origin) = Honest::origin();
        // The relay has a core to itself; a child has that of the thread that starts it.
        pin(cores.map(|(first, _)| first));
        let relay = Process::behind_with(&origin, listeners, downstream);
        pin(cores.map(|(_, last)| last));
        honest.listen(relay.uri());
        let bystanders = Mutex::new(Bystanders::connect(&relay));
        Self { target: relay.last_listener, relay, honest, bystanders, _seat: seat }
    }

    pub(crate) const fn relay(&self) -> &Process {
        &self.relay
    }

    /// Runs attacks in cleartext.
    pub(crate) fn suffer(&self, attacks: &[Attack]) {
        self.suffer_over(tcp, attacks);
    }

    /// Runs attacks over some transport.
    pub(crate) fn suffer_over(&self, connect: Connector, attacks: &[Attack]) {
        let mut faults = Vec::new();
        for attack in attacks.iter().filter(|attack| is_chosen(attack)) {
            let mut fault = None;
            for _ in 0..TRIES {
                let outcome = self.run(connect, attack);
                let ratio = outcome.during.as_secs_f64() / outcome.before.as_secs_f64().max(1e-6);
                println!(
                    "| {} | {} | {:.1} MiB | {:.1} → {:.1} ms ({ratio:.1}x) | {:.1} s, {:.1} ms, {:+.1} MiB |",
                    attack.name,
                    attack.bound,
                    mib(outcome.grown),
                    millis(outcome.before),
                    millis(outcome.during),
                    outcome.over.as_secs_f64(),
                    millis(outcome.after),
                    mib(outcome.kept),
                );
                assert!(outcome.grown <= MEMORY, "{}: {:.1} MiB", attack.name, mib(outcome.grown));
                let allowed = (outcome.before * 2).max(FLOOR);
                let is_harmed = outcome.during > allowed || outcome.after > allowed;
                fault = is_harmed.then_some((attack.name, outcome));
                if fault.is_none() {
                    break;
                }
            }
            faults.extend(fault);
        }
        self.bystanders.lock().ask(&self.relay, is_long());
        assert!(faults.is_empty(), "the honest client is harmed: {faults:#?}");
    }

    /// Latency of the changes in a span of time from now on, which lasts until there are enough of them; zero if nothing is judged.
    fn p99_of_a_while(&self, span: Duration) -> Duration {
        if !IS_JUDGED {
            return Duration::ZERO;
        }
        let start = Instant::now();
        std::thread::sleep(span);
        self.p99_since(start)
    }

    /// Latency of the changes since a moment, as soon as there are enough of them.
    fn p99_since(&self, start: Instant) -> Duration {
        let mut p99 = None;
        self.relay.wait_for("changes to measure", || {
            p99 = self.honest.pulses.lock().p99(start, Instant::now());
            p99.is_some()
        });
        p99.expect("enough changes were waited for")
    }

    fn run(&self, connect: Connector, attack: &Attack) -> Outcome {
        let pulses = &self.honest.pulses;
        let connections = self.relay.metric("deltafan_connections");
        let streams = self.relay.metric("deltafan_streams{");
        let length = length();
        let before = self.p99_of_a_while(length / 2);
        let attacked = Instant::now();
        let rss = resident(&self.relay);
        let (most, stop, pid) = (AtomicU64::new(0), AtomicBool::new(false), self.relay.pid());
        let target = Target { address: self.target, until: attacked + length, connect };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(process::resident(pid), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let attackers: Vec<_> = (0..attack.threads)
                .map(|_| {
                    scope.spawn(|| {
                        if IS_JUDGED {
                            give_way();
                        }
                        (attack.run)(&target);
                    })
                })
                .collect();
            let panicked = attackers.into_iter().filter_map(|attacker| attacker.join().err()).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(panicked, 0, "{}: an attacker panicked", attack.name);
        });
        let ended = Instant::now();
        let during = if IS_JUDGED {
            let during = pulses.lock().p99(attacked, target.until);
            // Where the machine left no time for changes, those that came since have to do.
            during.unwrap_or_else(|| self.p99_since(attacked))
        } else {
            Duration::ZERO
        };
        let what = format!("end of {}", attack.name);
        self.relay.wait_for(&what, || {
            pulses.lock().has_heard(ended)
                && self.relay.metric("deltafan_connections") <= connections
                && self.relay.metric("deltafan_streams{") <= streams
        });
        let over = ended.elapsed();
        let after = self.p99_of_a_while(length / 2);
        assert!(!self.relay.has_written("panicked"), "{}: a panic", attack.name);
        let (grown, kept) =
            (most.into_inner().saturating_sub(rss), resident(&self.relay).saturating_sub(rss));
        Outcome { grown, kept, before, during, after, over }
    }
}

/// Memory of a relay, in bytes.
pub(crate) fn resident(relay: &Process) -> u64 {
    process::resident(relay.pid())
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Has this thread run when nobody else wants its core: who measures comes first, or it would measure itself. Without
/// `chrt` (util-linux) it is but the least urgent.
fn give_way() {
    _ = rustix::process::setpriority_process(None, 19);
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    _ = std::process::Command::new("chrt").args(["--idle", "--pid", "0", &thread]).status();
}

/// As many descriptors as are allowed, for attackers and, by inheritance, the relay.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// The first and the last core that we may use, where there are two and it is measured what the relay does with one.
fn cores() -> Option<(usize, usize)> {
    if !IS_JUDGED {
        return None;
    }
    // The mask of the process: threads of tests pin themselves.
    let set =
        rustix::thread::sched_getaffinity(rustix::thread::Pid::from_raw(std::process::id() as i32)).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core));
    Some((cores.next()?, cores.next_back()?))
}

/// Pins this thread and those that it starts.
fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = CpuSet::new();
        set.set(core);
        _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
