//! Random histories of times: R-TTL-03 and R-TTL-09 against naive clients with timers of their own.
//!
//! A client here does as Envoy does: it refuses a heartbeat for what it does not hold, it drops by itself what ended, and
//! it never asks for that again. What the origin says last and when that ends is the truth.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use deltafan::cache::{Limits, Protocol, View};
use deltafan_test_support::fixture::{Client, Fixture};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
const FEATURE: &str = "xds.config.supports-resource-ttl";
/// Told as of 100 ms after it began, by a frame that is 100 ms old, and rounded up.
const SLACK: Duration = Duration::from_millis(201);

/// Versions, and when they end.
type Held = BTreeMap<&'static str, (u64, Option<Instant>)>;

fn known(name: &str) -> &'static str {
    NAMES.into_iter().find(|known| *known == name).unwrap()
}

/// The origin's word on one type: the wildcard's clusters, or endpoints by name.
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

    /// Anything that an origin may say.
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

    /// The relay takes away what ended.
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

    /// A new stream, to which it brings what it holds.
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

    /// Takes what there is; one response in so many is refused.
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

fn history(seed: u64) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let response_bytes = if rng.random_bool(0.3) { 300 } else { 1 << 20 };
    let mut fixture = Fixture::with_limits(Limits { response_bytes, ..Limits::default() });
    fixture.known("cds");
    let mut truths = ["cds", "eds"].map(|short| Truth { short, held: Held::new(), version: 0 });
    let mut holders: Vec<Holder> = Vec::new();
    for at in 0..8 {
        holders.push(Holder::join(&fixture, ["cds", "eds"][at % 2], at < 4));
    }
    for _ in 0..150 {
        let end = fixture.now + Duration::from_millis(rng.random_range(0..800));
        while let Some(due) = truths.iter().filter_map(Truth::next_end).min().filter(|due| *due <= end) {
            fixture.now = fixture.now.max(due);
            truths.iter_mut().for_each(|truth| truth.expire(&mut fixture));
            let prompt = holders.iter_mut().filter(|holder| holder.is_prompt);
            prompt
                .for_each(|holder| holder.take(&fixture, &truths[usize::from(holder.short == "eds")], None));
        }
        fixture.now = end;
        let at = rng.random_range(0..2);
        truths[at].speak(&mut fixture, rng);
        // What ends at once does.
        truths.iter_mut().for_each(|truth| truth.expire(&mut fixture));
        let who = rng.random_range(0..holders.len());
        match rng.random_range(0..8) {
            0 => holders[who].come_again(&fixture),
            1..=4 if holders[who].short == "eds" => holders[who].resubscribe(&fixture, rng),
            _ => {}
        }
        for holder in &mut holders {
            let truth = &truths[usize::from(holder.short == "eds")];
            if holder.is_prompt {
                holder.take(&fixture, truth, None);
                holder.check(truth);
            } else if rng.random_bool(0.2) {
                holder.take(&fixture, truth, Some(rng));
            }
        }
    }
    for truth in &mut truths {
        for name in NAMES {
            truth.version += 1;
            truth.held.insert(name, (truth.version, Some(fixture.now + Duration::from_secs(60))));
            truth.say(&mut fixture, &format!("{name}:{}@60000", truth.version), false);
        }
    }
    for holder in &mut holders {
        let truth = &truths[usize::from(holder.short == "eds")];
        holder.take(&fixture, truth, None);
        holder.check(truth);
    }
}

#[test]
fn r_ttl_09_in_random_histories_nobody_loses_what_lasts_or_keeps_what_ended() {
    for seed in 0..60 {
        let failed = std::panic::catch_unwind(|| history(seed)).is_err();
        assert!(!failed, "seed {seed}");
    }
}
