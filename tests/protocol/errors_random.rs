//! Errors of single resources in random histories, against a naive model of a client that reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use deltafan::cache::{Limits, Op, OriginError, Protocol, Resend, Seen, View};
use deltafan_test_support::fixture::{Client, Fixture, fail, show, url};
use deltafan_test_support::wire::{self, Told};
use proptest::prelude::*;

use crate::errors::{DENIED, NOT_FOUND, UNAVAILABLE};

/// What a client that reads errors knows (R-Err-01): a name's error until another comes, or the resource.
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

    fn poll(&mut self, fixture: &Fixture, ack: bool) -> bool {
        let Some(told) = self.client.poll(fixture) else { return false };
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
                Seen::Present(resource) => assert_eq!(held, Some(resource.version()), "{place}"),
                Seen::Denied(_) if self.refused.contains(name) => assert_eq!(held, None, "{place}"),
                // Who asked before may have been told it or not.
                Seen::Denied(_) | Seen::Failed | Seen::Unknown => {}
                _ if self.protocol == Protocol::Delta || self.full_state() || failure == Some(NOT_FOUND) => {
                    assert_eq!(held, None, "{place}");
                }
                _ => {}
            }
            let hidden = failure == Some(NOT_FOUND) && seen.present().is_some();
            match failure.filter(|_| !hidden) {
                Some(code) => assert_eq!(self.errors.get(name), Some(&code), "{place}"),
                // What a removal said counts for more than the error before it; a full state that repeats what is
                // held cannot show that an error is over.
                None if failure.is_none() && seen.present().is_some() && !self.full_state() => {
                    assert!(self.errors.get(name).is_none_or(|code| *code == NOT_FOUND), "{place}");
                }
                None => {}
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set { view: View, at: usize, version: u8 },
    Remove { view: View, at: usize },
    Fail { at: usize, code: i32 },
    Repush { at: usize },
    Toggle { who: usize, at: usize },
    Poll { who: usize, ack: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let view = || prop_oneof![1 => Just(View::Wildcard), 3 => Just(View::Named)];
    let codes = prop_oneof![Just(NOT_FOUND), Just(DENIED), Just(UNAVAILABLE), Just(13)];
    let (at, who) = (|| 0..NAMES.len(), || 0..6_usize);
    let step = prop_oneof![
        3 => (view(), at(), 0..3_u8).prop_map(|(view, at, version)| Step::Set { view, at, version }),
        1 => (view(), at()).prop_map(|(view, at)| Step::Remove { view, at }),
        3 => (at(), codes).prop_map(|(at, code)| Step::Fail { at, code }),
        1 => at().prop_map(|at| Step::Repush { at }),
        3 => (who(), at()).prop_map(|(who, at)| Step::Toggle { who, at }),
        4 => (who(), any::<bool>()).prop_map(|(who, ack)| Step::Poll { who, ack }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// R-Err-01, R-Err-06: whatever happened, and however slow a client was, it ends with the last word of the origin.
fn play(steps: Vec<Step>, small: bool, full_state: bool) {
    let short = if full_state { "cds" } else { "eds" };
    let limits = Limits { response_bytes: if small { 60 } else { 1 << 20 }, ..Limits::default() };
    let mut fixture = Fixture::with_limits(limits);
    // Some of them answer nothing for longer than would be borne.
    fixture.rules.unacked_timeout = Duration::from_secs(24 * 60 * 60);
    fixture.known(short);
    fixture.named(&format!("{short} z:1"));
    let mut readers: Vec<Reader> = (0..6)
        .map(|at| Reader::new(&fixture, if at % 2 == 0 { Protocol::Delta } else { Protocol::Sotw }, short))
        .collect();
    let mut denied = BTreeSet::new();
    for step in steps {
        let op = match step {
            Step::Set { view, at, version } => {
                let resource = wire::resource(&url(short), NAMES[at], &version.to_string(), 0);
                Op::Set { view, resource, resend: Resend::Answer, lease: None }
            }
            Step::Remove { view, at } => Op::Remove { view, name: NAMES[at].into() },
            Step::Fail { at, code } => fail(NAMES[at], code),
            Step::Repush { at } => Op::Repush { name: NAMES[at].into() },
            Step::Toggle { who, at } => {
                readers[who].toggle(&fixture, NAMES[at], &denied);
                continue;
            }
            Step::Poll { who, ack } => {
                readers[who].poll(&fixture, ack);
                fixture.after(Duration::from_secs(1));
                continue;
            }
        };
        let name = NAMES.into_iter().find(|name| *name == op.name().as_str()).unwrap();
        fixture.ops(short, vec![op]);
        readers.iter_mut().for_each(|reader| _ = reader.stirred.insert(name));
        let is_denied =
            matches!(fixture.cache.of(&url(short)).unwrap().snapshot().by_name(name), Seen::Denied(_));
        if is_denied {
            denied.insert(name);
        } else {
            denied.remove(name);
            readers.iter_mut().for_each(|reader| _ = reader.refused.remove(name));
        }
    }
    for reader in &mut readers {
        for _ in 0..2 {
            let mut said = 0;
            while reader.poll(&fixture, true) {
                said += 1;
                assert!(said < 100, "it goes on and on");
            }
            fixture.after(Duration::from_secs(60));
        }
        reader.check(&fixture);
    }
}

/// The answer goes on in parts when endpoints are owed behind a changed cluster: the error is no news because of that, and
/// does not come with what changed since.
#[test]
fn an_error_is_told_with_its_part_though_the_name_changes_meanwhile() {
    let (view, version) = (View::Named, 0);
    let toggle = |at| Step::Toggle { who: 2, at };
    let steps = vec![
        Step::Set { view: View::Wildcard, at: 1, version },
        toggle(1),
        Step::Set { view, at: 3, version },
        toggle(3),
        Step::Fail { at: 3, code: DENIED },
        Step::Poll { who: 2, ack: false },
        Step::Repush { at: 3 },
    ];
    play(steps, true, false);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn whatever_happens_a_client_ends_with_the_last_error_of_each_name(
        steps in steps(),
        small: bool,
        full_state: bool,
    ) {
        play(steps, small, full_state);
    }
}
