//! Random histories of aliases against a naive model: whatever happened, each client ends with what it asks for, by
//! whichever name, and with nothing else (R-Delta-21, R-Relay-20, R-Relay-03).

use std::collections::{BTreeMap, BTreeSet};

use deltafan::proto::DeltaDiscoveryRequest;
use deltafan::upstream::StreamId;
use deltafan_test_support::fixture::Client;
use deltafan_test_support::whole::{Primary, Secondary, Whole};
use deltafan_test_support::wire::Told;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const OWN: [&str; 5] = ["r/1", "r/2", "r/3", "r/4", "r/5"];
const ALIASES: [&str; 5] = ["r/a", "r/b", "r/c", "r/d", "r/e"];

#[derive(Clone, Debug, Default)]
struct Resource {
    version: u32,
    aliases: BTreeSet<&'static str>,
    member: bool,
}

/// What the origin was asked for on one stream, and what it has sent there.
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
    /// What a subscription is to hold, as it is written for [`Whole::says`].
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
        // What nobody asked for any more need not be removed, but may be.
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

fn settle(whole: &mut Whole, origin: &mut Origin, keepers: &mut [Keeper]) {
    for _ in 0..20 {
        for stream in [Primary, Secondary] {
            let requests = whole.requests(stream);
            origin.answer(whole, stream, &requests);
        }
        whole.pass(300);
        for keeper in &mut *keepers {
            keeper.answer(whole);
            while keeper.listen(whole) {
                keeper.answer(whole);
            }
        }
    }
}

fn history(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut whole = Whole::new();
    let mut origin = Origin::default();
    let mut keepers: Vec<Keeper> = (0..3)
        .map(|number| {
            let wildcard = number == 0 && seed.is_multiple_of(2);
            let client = whole.asking("vhds", if wildcard { "*" } else { "r/a" });
            let names = if wildcard { BTreeSet::new() } else { BTreeSet::from(["r/a".to_owned()]) };
            Keeper { client, wildcard, names, held: BTreeMap::new(), unanswered: None }
        })
        .collect();
    let mut version = 0;
    for _ in 0..random.random_range(5..60) {
        match random.random_range(0..10) {
            0..3 => {
                version += 1;
                let own = OWN[random.random_range(0..OWN.len())];
                // An alias belongs to one resource.
                let mut aliases: BTreeSet<&str> =
                    ALIASES.iter().copied().filter(|_| random.random_bool(0.4)).collect();
                if random.random_bool(0.5) {
                    for (name, other) in &mut origin.resources {
                        if *name != own && other.aliases.iter().any(|alias| aliases.contains(alias)) {
                            other.aliases.retain(|alias| !aliases.contains(alias));
                            other.version = version;
                        }
                    }
                } else {
                    for (_, other) in origin.resources.iter().filter(|(name, _)| **name != own) {
                        aliases.retain(|alias| !other.aliases.contains(alias));
                    }
                }
                let member = random.random_bool(0.5);
                origin.resources.insert(own, Resource { version, aliases, member });
            }
            3 => drop(origin.resources.remove(OWN[random.random_range(0..OWN.len())])),
            4..6 => {
                let stream = if random.random_bool(0.5) { Primary } else { Secondary };
                let requests = whole.requests(stream);
                origin.answer(&mut whole, stream, &requests);
            }
            6..8 => {
                let at = random.random_range(0..keepers.len());
                let keeper = &mut keepers[at];
                let name = if random.random_bool(0.5) { OWN } else { ALIASES }[random.random_range(0..5)];
                // What is let go is dropped by the client; what it holds by another name it asks for again.
                if keeper.names.contains(name) && keeper.names.len() > 1 && !keeper.wildcard {
                    let all: Vec<String> = keeper.names.iter().map(|name| format!("-{name}")).collect();
                    let rest: Vec<String> =
                        keeper.names.iter().filter(|kept| *kept != name).cloned().collect();
                    keeper.client.change(&whole.fixture, "vhds", &all.join(" "));
                    keeper.client.change(&whole.fixture, "vhds", &rest.join(" "));
                    keeper.held.clear();
                    keeper.names = rest.into_iter().collect();
                } else {
                    keeper.client.change(&whole.fixture, "vhds", name);
                    keeper.names.insert(name.to_owned());
                }
            }
            8 => {
                let at = random.random_range(0..keepers.len());
                keepers[at].listen(&whole);
                if random.random_bool(0.7) {
                    keepers[at].answer(&whole);
                }
            }
            _ => whole.pass(random.random_range(1..700)),
        }
    }
    settle(&mut whole, &mut origin, &mut keepers);
    for keeper in &keepers {
        let expected = origin.of(keeper.wildcard, &keeper.names);
        let expected: BTreeMap<String, String> = expected
            .into_iter()
            .map(|(own, text)| (own, text.split('=').next().unwrap().to_owned()))
            .collect();
        assert_eq!(keeper.held, expected, "seed {seed}, names {:?}\n{origin:#?}", keeper.names);
    }
    drop(keepers);
    for _ in 0..3 {
        whole.requests(Primary);
        whole.requests(Secondary);
        whole.pass(61_000);
    }
    // Members that went are remembered for who was slow; nothing else is.
    assert!(
        seed.is_multiple_of(2) || whole.entries("vhds") == 0,
        "seed {seed}: what nobody asks for is forgotten"
    );
}

#[test]
fn r_relay_20_whatever_happens_to_aliases_a_client_ends_with_what_it_asks_for() {
    (0..400).for_each(history);
}
