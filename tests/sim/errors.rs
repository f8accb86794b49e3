//! Histories of errors of single resources, against a naive model of a client that reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use deltafan::cache::{Limits, Op, OriginError, Protocol, Resend, View, VisibleState};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::{Client, Fixture, fail, show, url};
use deltafan_test_support::wire::{self, Told};

const NOT_FOUND: i32 = 5;
const DENIED: i32 = 7;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

const READERS: usize = 6;

/// Knowledge of a client that reads errors (R-Err-01): a name's error until another comes, or the resource.
struct Reader {
    client: Client,
    protocol: Protocol,
    short: &'static str,
    names: BTreeSet<&'static str>,
    held: BTreeMap<String, String>,
    errors: BTreeMap<String, i32>,
    /// Names that it asked for when they were denied, and was not sent since.
    refused: BTreeSet<&'static str>,
    /// Names of which the origin spoke since it was last told an error.
    stirred: BTreeSet<&'static str>,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Reader {
    fn new(fixture: &Fixture, protocol: Protocol, short: &'static str) -> Self {
        let client = fixture.client(protocol, None);
        let (names, held, errors, refused, stirred) = Default::default();
        Self { client, protocol, short, names, held, errors, refused, stirred }
    }

    fn full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.short == "cds"
    }

    fn list(&self) -> Vec<&'static str> {
        // A list without names would be no first request, or a wildcard.
        self.names.iter().copied().chain(["z"]).collect()
    }

    fn toggle(&mut self, fixture: &Fixture, name: &'static str, denied: &BTreeSet<&'static str>) {
        let leaves = self.names.remove(name);
        if leaves {
            self.held.remove(name);
            self.errors.remove(name);
            self.refused.remove(name);
        } else {
            self.names.insert(name);
            self.refused.extend(denied.get(name));
        }
        match self.protocol {
            Protocol::Delta => {
                let text = if leaves { format!("-{name} z") } else { format!("{name} z") };
                self.client.change(fixture, self.short, &text);
            }
            Protocol::Sotw => {
                let list = self.list();
                self.client.ask(fixture, self.short, &list);
            }
        }
    }

    fn poll(&mut self, fixture: &Fixture, ack: bool, trace: bool) -> bool {
        let Some(told) = self.client.poll(fixture) else { return false };
        if trace {
            eprintln!("  a {:?} client is told {}", self.protocol, show(&told));
        }
        self.take(&told);
        if ack {
            let list = self.list();
            self.client.ack(fixture, &told, if self.protocol == Protocol::Sotw { &list } else { &[] });
        }
        true
    }

    fn take(&mut self, told: &Told) {
        let before = std::mem::take(&mut self.held);
        let full_state = self.full_state();
        if !full_state {
            self.held.clone_from(&before);
        }
        for (name, text) in &told.resources {
            assert!(!self.refused.contains(name.as_str()), "{name} was denied: {}", show(told));
            // A full state repeats what is not new.
            if !full_state || before.get(name) != Some(text) {
                self.errors.remove(name);
            }
            self.held.insert(name.clone(), text.clone());
        }
        for name in &told.removed {
            self.held.remove(name);
        }
        for (name, code, _) in &told.errors {
            if *code == NOT_FOUND {
                assert!(self.protocol == Protocol::Sotw || told.removed.contains(name), "R-Err-07");
                self.held.remove(name);
            }
            let known = self.errors.insert(name.clone(), *code);
            let is_news = self.stirred.remove(name.as_str());
            assert!(is_news || known != Some(*code), "{name} again: {}", show(told));
        }
    }

    fn check(&self, fixture: &Fixture) {
        let snapshot = fixture.cache.of(&url(self.short)).unwrap().snapshot();
        for &name in &self.names {
            let entry = snapshot.get(name);
            let held = self.held.get(name).map(|text| text.split('/').next().unwrap());
            let failure = entry.and_then(|entry| entry.failure()).map(OriginError::code);
            let seen = snapshot.by_name(name);
            let place = format!("{name} of {:?} {}: {seen:?} {failure:?}", self.protocol, self.short);
            match seen {
                VisibleState::Present(resource) => assert_eq!(held, Some(resource.version()), "{place}"),
                VisibleState::Denied(_) if self.refused.contains(name) => assert_eq!(held, None, "{place}"),
                // A client that asked before may have been told it or not.
                VisibleState::Denied(_) | VisibleState::Failed | VisibleState::Unknown => {}
                _ if self.protocol == Protocol::Delta || self.full_state() || failure == Some(NOT_FOUND) => {
                    assert_eq!(held, None, "{place}");
                }
                _ => {}
            }
            let hidden = failure == Some(NOT_FOUND) && seen.present().is_some();
            match failure.filter(|_| !hidden) {
                Some(code) => assert_eq!(self.errors.get(name), Some(&code), "{place}"),
                // A removal counts for more than the error before it; a full state that repeats a resource cannot show that
                // its error is over.
                None if failure.is_none() && seen.present().is_some() && !self.full_state() => {
                    assert!(self.errors.get(name).is_none_or(|code| *code == NOT_FOUND), "{place}");
                }
                None => {}
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Set { view: View, at: usize, version: u8 },
    Remove { view: View, at: usize },
    Fail { at: usize, code: i32 },
    Repush { at: usize },
    Toggle { reader: usize, at: usize },
    Poll { reader: usize, ack: bool },
}

impl Step {
    fn random(rng: &mut StdRng) -> Self {
        let (at, reader) = (rng.random_range(0..NAMES.len()), rng.random_range(0..READERS));
        let view = if rng.random_bool(0.25) { View::Wildcard } else { View::Named };
        match rng.random_range(0..15) {
            0..3 => Self::Set { view, at, version: rng.random_range(0..3) },
            3 => Self::Remove { view, at },
            4..7 => {
                Self::Fail { at, code: [NOT_FOUND, DENIED, UNAVAILABLE, INTERNAL][rng.random_range(0..4)] }
            }
            7 => Self::Repush { at },
            8..11 => Self::Toggle { reader, at },
            _ => Self::Poll { reader, ack: rng.random_bool(0.5) },
        }
    }
}

/// One history. However slow a client was, it ends with the last word of the origin (R-Err-01, R-Err-06).
struct World {
    rng: StdRng,
    fixture: Fixture,
    short: &'static str,
    readers: Vec<Reader>,
    denied: BTreeSet<&'static str>,
    trace: bool,
}

impl World {
    fn with(rng: StdRng, is_small: bool, short: &'static str, trace: bool) -> Self {
        let limits = Limits { response_bytes: if is_small { 60 } else { 1 << 20 }, ..Limits::default() };
        let mut fixture = Fixture::with_limits(limits);
        // Some readers answer nothing for longer than `unacked_timeout` allows.
        fixture.rules.unacked_timeout = Duration::from_secs(24 * 60 * 60);
        fixture.known(short);
        fixture.named(&format!("{short} z:1"));
        let protocol = |at| if at % 2 == 0 { Protocol::Delta } else { Protocol::Sotw };
        let readers = (0..READERS).map(|at| Reader::new(&fixture, protocol(at), short)).collect();
        Self { rng, fixture, short, readers, denied: BTreeSet::new(), trace }
    }

    fn play(&mut self, step: Step) {
        if self.trace {
            eprintln!("{step:?}");
        }
        match step {
            Step::Set { view, at, version } => {
                let resource = wire::resource(&url(self.short), NAMES[at], &version.to_string(), 0);
                self.say(at, Op::Set { view, resource, resend: Resend::Answer, lease: None });
            }
            Step::Remove { view, at } => self.say(at, Op::Remove { view, name: NAMES[at].into() }),
            Step::Fail { at, code } => self.say(at, fail(NAMES[at], code)),
            Step::Repush { at } => self.say(at, Op::ResendEndpoints { name: NAMES[at].into() }),
            Step::Toggle { reader, at } => {
                self.readers[reader].toggle(&self.fixture, NAMES[at], &self.denied)
            }
            Step::Poll { reader, ack } => {
                self.readers[reader].poll(&self.fixture, ack, self.trace);
                self.fixture.after(Duration::from_secs(1));
            }
        }
    }

    fn say(&mut self, at: usize, op: Op) {
        let name = NAMES[at];
        self.fixture.ops(self.short, vec![op]);
        let snapshot = self.fixture.cache.of(&url(self.short)).unwrap().snapshot();
        let is_denied = matches!(snapshot.by_name(name), VisibleState::Denied(_));
        if is_denied {
            self.denied.insert(name);
        } else {
            self.denied.remove(name);
        }
        for reader in &mut self.readers {
            reader.stirred.insert(name);
            if !is_denied {
                reader.refused.remove(name);
            }
        }
    }
}

impl Scenario for World {
    const NAME: &'static str = "errors";
    const LENGTH: u64 = 60;
    const STEPS: u64 = 300 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (is_small, is_full_state) = (rng.random_bool(0.5), rng.random_bool(0.5));
        Self::with(rng, is_small, if is_full_state { "cds" } else { "eds" }, trace)
    }

    fn step(&mut self, _: u64) {
        let step = Step::random(&mut self.rng);
        self.play(step);
    }

    fn finish(mut self) {
        for reader in &mut self.readers {
            for _ in 0..2 {
                let mut said = 0;
                while reader.poll(&self.fixture, true, self.trace) {
                    said += 1;
                    assert!(said < 100, "it goes on and on");
                }
                self.fixture.after(Duration::from_secs(60));
            }
            reader.check(&self.fixture);
        }
    }
}

/// The answer goes on in parts when endpoints are owed behind a changed cluster: the error is no news because of that, and
/// does not come with what changed since.
#[test]
fn an_error_is_told_with_its_part_though_the_name_changes_meanwhile() {
    let mut world = World::with(StdRng::seed_from_u64(0), true, "eds", false);
    let (view, version) = (View::Named, 0);
    let toggle = |at| Step::Toggle { reader: 2, at };
    let steps = [
        Step::Set { view: View::Wildcard, at: 1, version },
        toggle(1),
        Step::Set { view, at: 3, version },
        toggle(3),
        Step::Fail { at: 3, code: DENIED },
        Step::Poll { reader: 2, ack: false },
        Step::Repush { at: 3 },
    ];
    steps.into_iter().for_each(|step| world.play(step));
    world.finish();
}

#[test]
fn whatever_happens_a_client_ends_with_the_last_error_of_each_name() {
    harness::play::<World>();
}
