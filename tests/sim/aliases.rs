//! Histories of aliases: whatever happened, each client ends with the resources that it asks for, by whichever name, and with
//! nothing else (R-Delta-21, R-Relay-20, R-Relay-03).

use std::collections::{BTreeMap, BTreeSet};

use deltafan::proto::DeltaDiscoveryRequest;
use deltafan::upstream::StreamId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::Client;
use deltafan_test_support::whole::{Primary, Secondary, Whole};
use deltafan_test_support::wire::Told;

const OWN: [&str; 5] = ["r/1", "r/2", "r/3", "r/4", "r/5"];
const ALIASES: [&str; 5] = ["r/a", "r/b", "r/c", "r/d", "r/e"];

#[derive(Clone, Debug, Default)]
struct Resource {
    version: u32,
    aliases: BTreeSet<&'static str>,
    member: bool,
}

/// Subscriptions on one stream, and the resources that the origin has sent there.
#[derive(Debug, Default)]
struct Stream {
    wildcard: bool,
    names: BTreeSet<String>,
    held: BTreeMap<String, String>,
}

/// A control plane as it should be.
#[derive(Debug, Default)]
struct Origin {
    resources: BTreeMap<&'static str, Resource>,
    streams: [Stream; 2],
    secondaries: u32,
}

impl Origin {
    /// Resources that belong to a subscription, as they are written for [`Whole::says`].
    fn of(&self, wildcard: bool, names: &BTreeSet<String>) -> BTreeMap<String, String> {
        let is_wanted = |own: &str, resource: &Resource| {
            (wildcard && resource.member)
                || names.contains(own)
                || resource.aliases.iter().any(|alias| names.contains(*alias))
        };
        let wanted = self.resources.iter().filter(|(own, resource)| is_wanted(own, resource));
        let text = |resource: &Resource| {
            let aliases: Vec<_> = resource.aliases.iter().copied().collect();
            format!("{}={}", resource.version, aliases.join(","))
        };
        wanted.map(|(own, resource)| ((*own).to_owned(), text(resource))).collect()
    }

    /// Takes in a request, and says everything that it has to say on this stream.
    fn answer(&mut self, whole: &mut Whole, stream: StreamId, requests: &[DeltaDiscoveryRequest]) {
        let mut asked = BTreeSet::new();
        if std::mem::replace(&mut self.secondaries, whole.secondaries) != whole.secondaries {
            self.streams[Secondary as usize] = Stream::default();
        }
        let state = &mut self.streams[stream as usize];
        for request in requests {
            let empty = |request: &DeltaDiscoveryRequest| {
                request.resource_names_subscribe.is_empty() && request.resource_names_unsubscribe.is_empty()
            };
            state.wildcard |= empty(request) && request.response_nonce.is_empty();
            for name in &request.resource_names_subscribe {
                state.wildcard |= name == "*";
                if name != "*" {
                    asked.insert(name.clone());
                    state.names.insert(name.clone());
                }
            }
            for name in &request.resource_names_unsubscribe {
                state.wildcard &= name != "*";
                state.names.remove(name);
                asked.remove(name);
            }
        }
        let state = &self.streams[stream as usize];
        let (wildcard, names) = (state.wildcard, state.names.clone());
        let now = self.of(wildcard, &names);
        let answers = self.of(false, &asked);
        let news =
            now.iter().filter(|(own, text)| state.held.get(*own) != Some(text) || answers.contains_key(*own));
        let mut words: Vec<String> = news.map(|(own, text)| format!("{own}:{text}")).collect();
        // A resource that nobody asks for any more need not be removed, but may be.
        words.extend(state.held.keys().filter(|own| !now.contains_key(*own)).map(|own| format!("-{own}")));
        let is_known = |name: &str| {
            let by_alias = |resource: &Resource| resource.aliases.contains(name);
            self.resources.contains_key(name) || self.resources.values().any(by_alias)
        };
        for name in asked.iter().filter(|name| !is_known(name)) {
            let word = if name.ends_with('e') { format!("{name}:?={name}") } else { format!("-{name}") };
            if !words.contains(&word) {
                words.push(word);
            }
        }
        if !words.is_empty() || requests.iter().any(|request| request.resource_names_subscribe.is_empty()) {
            whole.says(stream, &format!("vhds {}", words.join(" ")));
        }
        self.streams[stream as usize].held = now;
    }
}

/// A client that does as it is told.
struct Keeper {
    client: Client,
    wildcard: bool,
    names: BTreeSet<String>,
    held: BTreeMap<String, String>,
    unanswered: Option<Told>,
}

impl Keeper {
    fn listen(&mut self, whole: &Whole) -> bool {
        let Some(told) = self.client.poll(&whole.fixture) else { return false };
        for name in &told.removed {
            self.held.remove(name);
        }
        for (name, text) in &told.resources {
            match text.as_str() {
                "unresolved" => drop(self.held.remove(name)),
                text => drop(self.held.insert(name.clone(), text.to_owned())),
            }
        }
        self.unanswered = Some(told);
        true
    }

    fn answer(&mut self, whole: &Whole) {
        if let Some(told) = self.unanswered.take() {
            self.client.ack(&whole.fixture, &told, &[]);
        }
    }
}

/// One history.
struct World {
    rng: StdRng,
    whole: Whole,
    origin: Origin,
    keepers: Vec<Keeper>,
    version: u32,
    trace: bool,
    /// One client asks for the wildcard.
    has_wildcard: bool,
}

impl Scenario for World {
    const NAME: &'static str = "aliases";
    const LENGTH: u64 = 32;
    const STEPS: u64 = 400 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let has_wildcard = seed.is_multiple_of(2);
        let whole = Whole::new();
        let keeper = |number: u32| {
            let wildcard = number == 0 && has_wildcard;
            let client = whole.asking("vhds", if wildcard { "*" } else { "r/a" });
            let names = if wildcard { BTreeSet::new() } else { BTreeSet::from(["r/a".to_owned()]) };
            Keeper { client, wildcard, names, held: BTreeMap::new(), unanswered: None }
        };
        let keepers = (0..3).map(keeper).collect();
        let (rng, origin) = (StdRng::seed_from_u64(seed), Origin::default());
        Self { rng, whole, origin, keepers, version: 0, trace, has_wildcard }
    }

    fn step(&mut self, step: u64) {
        match self.rng.random_range(0..10) {
            0..3 => self.publish(),
            3 => drop(self.origin.resources.remove(OWN[self.rng.random_range(0..OWN.len())])),
            4..6 => {
                let stream = if self.rng.random_bool(0.5) { Primary } else { Secondary };
                self.answer(stream);
            }
            6..8 => self.ask(),
            8 => {
                let keeper = &mut self.keepers[self.rng.random_range(0..3)];
                keeper.listen(&self.whole);
                if self.rng.random_bool(0.7) {
                    keeper.answer(&self.whole);
                }
            }
            _ => self.whole.pass(self.rng.random_range(1..700)),
        }
        if self.trace {
            eprintln!("{step} origin {:?}", self.origin.resources);
            self.keepers.iter().for_each(|keeper| {
                eprintln!("  asks {:?}, wildcard {}, holds {:?}", keeper.names, keeper.wildcard, keeper.held);
            });
        }
    }

    fn finish(mut self) {
        self.settle();
        for keeper in &self.keepers {
            let expected = self.origin.of(keeper.wildcard, &keeper.names);
            let expected: BTreeMap<String, String> = expected
                .into_iter()
                .map(|(own, text)| (own, text.split('=').next().unwrap().to_owned()))
                .collect();
            assert_eq!(keeper.held, expected, "names {:?}\n{:#?}", keeper.names, self.origin);
        }
        self.keepers.clear();
        for _ in 0..3 {
            self.whole.requests(Primary);
            self.whole.requests(Secondary);
            self.whole.pass(61_000);
        }
        // Members that went are remembered for slow clients; nothing else is.
        assert!(
            self.has_wildcard || self.whole.entries("vhds") == 0,
            "names that nobody asks for are forgotten"
        );
    }
}

impl World {
    /// A resource gets a new version and other aliases. An alias belongs to one resource.
    fn publish(&mut self) {
        self.version += 1;
        let own = OWN[self.rng.random_range(0..OWN.len())];
        let mut aliases: BTreeSet<&str> =
            ALIASES.iter().copied().filter(|_| self.rng.random_bool(0.4)).collect();
        if self.rng.random_bool(0.5) {
            for (name, other) in &mut self.origin.resources {
                if *name != own && other.aliases.iter().any(|alias| aliases.contains(alias)) {
                    other.aliases.retain(|alias| !aliases.contains(alias));
                    other.version = self.version;
                }
            }
        } else {
            for (_, other) in self.origin.resources.iter().filter(|(name, _)| **name != own) {
                aliases.retain(|alias| !other.aliases.contains(alias));
            }
        }
        let member = self.rng.random_bool(0.5);
        self.origin.resources.insert(own, Resource { version: self.version, aliases, member });
    }

    fn answer(&mut self, stream: StreamId) {
        let requests = self.whole.requests(stream);
        self.origin.answer(&mut self.whole, stream, &requests);
    }

    /// A client asks for one more name, or for one less.
    fn ask(&mut self) {
        let (keeper, whole) = (&mut self.keepers[self.rng.random_range(0..3)], &self.whole);
        let name = if self.rng.random_bool(0.5) { OWN } else { ALIASES }[self.rng.random_range(0..5)];
        if keeper.names.contains(name) && keeper.names.len() > 1 && !keeper.wildcard {
            // A client drops what it lets go; what it holds by another name it asks for again.
            let all: Vec<String> = keeper.names.iter().map(|name| format!("-{name}")).collect();
            keeper.names.remove(name);
            let rest: Vec<&str> = keeper.names.iter().map(String::as_str).collect();
            keeper.client.change(&whole.fixture, "vhds", &all.join(" "));
            keeper.client.change(&whole.fixture, "vhds", &rest.join(" "));
            keeper.held.clear();
        } else {
            keeper.client.change(&whole.fixture, "vhds", name);
            keeper.names.insert(name.to_owned());
        }
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.answer(Primary);
            self.answer(Secondary);
            self.whole.pass(300);
            for keeper in &mut self.keepers {
                keeper.answer(&self.whole);
                while keeper.listen(&self.whole) {
                    keeper.answer(&self.whole);
                }
            }
        }
    }
}

#[test]
fn r_relay_20_in_random_histories_of_aliases_a_client_ends_with_the_resources_it_asks_for() {
    harness::play::<World>();
}
