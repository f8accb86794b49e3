//! Histories of TTLs: R-TTL-03 and R-TTL-09 against naive clients with timers of their own.
//!
//! A client here does as Envoy does: it refuses a heartbeat of a resource that it does not hold, it drops by itself a resource
//! that ended, and it never asks for that again. The last word of the origin on each name, with its end, is the truth.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use deltafan::cache::{Limits, Protocol, View};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::{Client, Fixture};

const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
const FEATURE: &str = "xds.config.supports-resource-ttl";
/// Told as of 100 ms after it began, by a frame that is 100 ms old, and rounded up.
const SLACK: Duration = Duration::from_millis(201);

/// Versions, and when they end.
type Held = BTreeMap<&'static str, (u64, Option<Instant>)>;

fn known(name: &str) -> &'static str {
    NAMES.into_iter().find(|known| *known == name).unwrap()
}

/// Last word of the origin on one type: the wildcard's clusters, or endpoints by name.
struct Truth {
    short: &'static str,
    held: Held,
    version: u64,
}

impl Truth {
    fn say(&self, fixture: &mut Fixture, text: &str, unasked: bool) {
        let text = format!("{} {text}", self.short);
        match (self.short, unasked) {
            ("cds", true) => fixture.resend(View::Wildcard, &text),
            ("cds", false) => fixture.answer(View::Wildcard, &text),
            (_, true) => fixture.resend(View::Named, &text),
            (_, false) => fixture.answer(View::Named, &text),
        }
    }

    /// Says anything that an origin may say.
    fn speak(&mut self, fixture: &mut Fixture, rng: &mut StdRng) {
        let mut items = Vec::new();
        let count = if rng.random_bool(0.2) { NAMES.len() } else { rng.random_range(1..4) };
        let unasked = rng.random_bool(0.3);
        for name in NAMES.into_iter().take(count) {
            let name = if count < NAMES.len() { NAMES[rng.random_range(0..NAMES.len())] } else { name };
            if items.iter().any(|(said, _)| *said == name) {
                continue;
            }
            let ttl = rng.random_bool(0.8).then(|| rng.random_range(1..12) * 500);
            let until = ttl.map(|ttl| fixture.now + Duration::from_millis(ttl));
            let suffix = ttl.map(|ttl| format!("@{ttl}")).unwrap_or_default();
            let item = match (rng.random_range(0..10), self.held.get_mut(name)) {
                (0, Some(_)) => {
                    self.held.remove(name);
                    format!("-{name}")
                }
                (1..=2, Some(held)) => {
                    held.1 = until;
                    format!("{name}:{}{suffix}", held.0)
                }
                (3..=8, Some(held)) => {
                    held.1 = until;
                    format!("~{name}{suffix}")
                }
                _ => {
                    self.version += 1;
                    self.held.insert(name, (self.version, until));
                    format!("{name}:{}{suffix}", self.version)
                }
            };
            items.push((name, item));
        }
        let items: Vec<String> = items.into_iter().map(|(_, item)| item).collect();
        self.say(fixture, &items.join(" "), unasked);
    }

    fn next_end(&self) -> Option<Instant> {
        self.held.values().filter_map(|held| held.1).min()
    }

    /// The relay takes away resources that ended.
    fn expire(&mut self, fixture: &mut Fixture) {
        let has_ended = |held: &(u64, Option<Instant>)| held.1.is_some_and(|until| until <= fixture.now);
        let ended = self.held.iter().filter(|(_, held)| has_ended(held));
        let ended: Vec<String> = ended.map(|(name, _)| format!("-{name}")).collect();
        self.held.retain(|_, held| !has_ended(held));
        if !ended.is_empty() {
            self.say(fixture, &ended.join(" "), false);
        }
    }
}

/// A client of one type.
struct Holder {
    client: Client,
    short: &'static str,
    /// The names that it asks for; of clusters it asks for all.
    names: Vec<&'static str>,
    held: Held,
    /// It takes and accepts everything at once.
    is_prompt: bool,
}

impl Holder {
    fn join(fixture: &Fixture, short: &'static str, is_prompt: bool) -> Self {
        let client = fixture.client_with(&[FEATURE], Protocol::Delta);
        let mut holder = Self { client, short, names: Vec::new(), held: Held::new(), is_prompt };
        holder.come_again(fixture);
        holder
    }

    /// A new stream, on which it tells the versions that it holds.
    fn come_again(&mut self, fixture: &Fixture) {
        self.drop_ended(fixture.now);
        self.client = fixture.client_with(&[FEATURE], Protocol::Delta);
        let versions: Vec<_> = self.held.iter().map(|(name, held)| (*name, held.0.to_string())).collect();
        let versions: Vec<_> = versions.iter().map(|(name, version)| (*name, version.as_str())).collect();
        let names: &[&str] = if self.short == "cds" { &["*"] } else { &self.names };
        if !names.is_empty() {
            self.client.resume(fixture, self.short, names, &versions);
        }
    }

    /// Index of its type among the truths.
    fn at(&self) -> usize {
        usize::from(self.short == "eds")
    }

    fn drop_ended(&mut self, now: Instant) {
        self.held.retain(|_, held| held.1.is_none_or(|until| until > now));
    }

    fn resubscribe(&mut self, fixture: &Fixture, rng: &mut StdRng) {
        let name = NAMES[rng.random_range(0..NAMES.len())];
        if let Some(at) = self.names.iter().position(|held| *held == name) {
            self.client.change(fixture, self.short, &format!("-{name}"));
            self.names.remove(at);
            self.held.remove(name);
        } else {
            self.client.change(fixture, self.short, name);
            self.names.push(name);
        }
    }

    /// Takes all responses. With `refuses` it NACKs one in five.
    fn take(&mut self, fixture: &Fixture, truth: &Truth, refuses: Option<&mut StdRng>) {
        let mut refuses = refuses;
        self.drop_ended(fixture.now);
        while let Some(told) = self.client.poll(fixture) {
            let mut next = self.held.clone();
            for (name, text) in &told.resources {
                let (text, ttl) =
                    text.split_once('@').map_or((text.as_str(), None), |(text, ttl)| (text, Some(ttl)));
                let until = ttl.map(|ttl| fixture.now + Duration::from_millis(ttl.parse().unwrap()));
                let (version, name) = (text.trim_start_matches('~').parse().unwrap(), known(name));
                if text.starts_with('~') {
                    let held = self.held.get(name).map(|held| held.0);
                    assert_eq!(held, Some(version), "a heartbeat for what is not held: {told:?}");
                }
                let (current, ends) = truth.held[name];
                assert_eq!((version, until.is_some()), (current, ends.is_some()), "{name} in {told:?}");
                if let (Some(until), Some(ends)) = (until, ends) {
                    assert!(ends <= until && until <= ends + SLACK, "{:?} too late", until - ends);
                }
                next.insert(name, (version, until));
            }
            told.removed.iter().for_each(|name| _ = next.remove(name.as_str()));
            if refuses.as_mut().is_some_and(|rng| rng.random_bool(0.2)) {
                self.client.nack(fixture, &told, &[]);
            } else {
                self.held = next;
                self.client.ack(fixture, &told, &[]);
            }
        }
    }

    /// It holds what it asks for, and nothing of it ends before its time.
    fn check(&self, truth: &Truth) {
        let wants = |name: &str| self.short == "cds" || self.names.contains(&name);
        let versions = |held: &Held| -> Vec<_> {
            let wanted = held.iter().filter(|(name, _)| wants(name));
            wanted.map(|(name, held)| (*name, held.0, held.1.is_some())).collect()
        };
        assert_eq!(versions(&self.held), versions(&truth.held));
        for (name, held) in &self.held {
            assert!(held.1 >= truth.held[name].1, "{name} ends before its time");
        }
    }
}

/// One history.
struct World {
    rng: StdRng,
    fixture: Fixture,
    truths: [Truth; 2],
    holders: Vec<Holder>,
    trace: bool,
}

impl Scenario for World {
    const NAME: &'static str = "ttl";
    const LENGTH: u64 = 150;
    const STEPS: u64 = 60 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let response_bytes = if rng.random_bool(0.3) { 300 } else { 1 << 20 };
        let mut fixture = Fixture::with_limits(Limits { response_bytes, ..Limits::default() });
        fixture.known("cds");
        let truths = ["cds", "eds"].map(|short| Truth { short, held: Held::new(), version: 0 });
        let holders = (0..8).map(|at| Holder::join(&fixture, ["cds", "eds"][at % 2], at < 4)).collect();
        Self { rng, fixture, truths, holders, trace }
    }

    fn step(&mut self, step: u64) {
        let Self { rng, fixture, truths, holders, trace } = self;
        let end = fixture.now + Duration::from_millis(rng.random_range(0..800));
        while let Some(due) = truths.iter().filter_map(Truth::next_end).min().filter(|due| *due <= end) {
            fixture.now = fixture.now.max(due);
            truths.iter_mut().for_each(|truth| truth.expire(fixture));
            let prompt = holders.iter_mut().filter(|holder| holder.is_prompt);
            prompt.for_each(|holder| holder.take(fixture, &truths[holder.at()], None));
        }
        fixture.now = end;
        truths[rng.random_range(0..2)].speak(fixture, rng);
        // A resource that ends at once does.
        truths.iter_mut().for_each(|truth| truth.expire(fixture));
        let holder = &mut holders[rng.random_range(0..8)];
        match rng.random_range(0..8) {
            0 => holder.come_again(fixture),
            1..=4 if holder.short == "eds" => holder.resubscribe(fixture, rng),
            _ => {}
        }
        if *trace {
            let held = |held: &Held| -> Vec<String> {
                let ends = |until: Instant| format!(" for {:?}", until.saturating_duration_since(end));
                let held = held.iter();
                held.map(|(name, held)| format!("{name}:{}{}", held.0, held.1.map(ends).unwrap_or_default()))
                    .collect()
            };
            truths
                .iter()
                .for_each(|truth| eprintln!("{step} origin has of {} {:?}", truth.short, held(&truth.held)));
            holders.iter().for_each(|holder| {
                eprintln!("  {} asks {:?} holds {:?}", holder.short, holder.names, held(&holder.held));
            });
        }
        for holder in holders {
            let truth = &truths[holder.at()];
            if holder.is_prompt {
                holder.take(fixture, truth, None);
                holder.check(truth);
            } else if rng.random_bool(0.2) {
                holder.take(fixture, truth, Some(rng));
            }
        }
    }

    fn finish(self) {
        let Self { mut fixture, mut truths, mut holders, .. } = self;
        for truth in &mut truths {
            for name in NAMES {
                truth.version += 1;
                truth.held.insert(name, (truth.version, Some(fixture.now + Duration::from_secs(60))));
                truth.say(&mut fixture, &format!("{name}:{}@60000", truth.version), false);
            }
        }
        for holder in &mut holders {
            let truth = &truths[holder.at()];
            holder.take(&fixture, truth, None);
            holder.check(truth);
        }
    }
}

#[test]
fn r_ttl_09_in_random_histories_no_client_loses_a_live_resource_or_keeps_an_ended_one() {
    harness::play::<World>();
}
