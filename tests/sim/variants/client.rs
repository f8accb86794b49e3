//! A client: a session, and the knowledge of the peer at its other end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use deltafan::cache::{Cache, Protocol};
use deltafan::proto::{self, ResourceLocator};
use deltafan::resource::Envelope;
use deltafan::subscription::{Session, SessionConfig};
use rand::Rng;
use rand::rngs::StdRng;

use super::origin::{NAMES, Origin, TYPES, at_of, is_member};
use super::rule::{ClientParameters, ENVS, VS, shown};
use crate::common::session;
use deltafan_test_support::wire::{Told, body, type_url};

/// The text in a resource on the wire.
pub(crate) fn text_of(resource: &[u8], at: usize) -> String {
    let type_url = type_url(TYPES[at]);
    let (name, text) = body(Envelope::parse(resource, &type_url).unwrap().body.unwrap(), &type_url);
    format!("{name}:{text}")
}

/// Subscription: each name, or `*`, plainly or with parameters.
pub(crate) type Asks = BTreeMap<String, Option<ClientParameters>>;

/// How a client asks for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// By its name, not as a member of the wildcard set.
    by_name: bool,
    pub(crate) located: bool,
    pub(crate) params: ClientParameters,
}

/// How a name is asked for, where plain names are given these parameters.
pub(crate) fn way(asks: &Asks, given: ClientParameters, name: &str) -> Option<Way> {
    let star = || asks.get("*").filter(|_| is_member(name)).map(|asked| (false, asked));
    let (by_name, asked) = asks.get(name).map(|asked| (true, asked)).or_else(star)?;
    // A locator without parameters is a plain name (R-DP-10).
    let params = asked.filter(|params| *params != ClientParameters::default()).unwrap_or(given);
    Some(Way { by_name, located: asked.is_some(), params })
}

/// Resource that is held under one identity.
#[derive(Clone, Debug)]
struct Held {
    text: String,
    /// It came before the client changed how it asks for the name. Any word of that name replaces it.
    old: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Type {
    pub(crate) requested: bool,
    pub(crate) asks: Asks,
    /// By identity.
    held: BTreeMap<String, Held>,
    version: String,
    in_flight: Option<Told>,
    last_nonce: String,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) protocol: Protocol,
    pub(crate) only: Option<usize>,
    node: ClientParameters,
    /// Parameters that the rules give to its plain names.
    pub(crate) given: ClientParameters,
    locates: f64,
    slow: bool,
    pub(crate) session: Session,
    pub(crate) types: [Type; TYPES.len()],
    nonces: BTreeSet<String>,
    pub(crate) untaken: bool,
}

pub(crate) fn name_of(identity: &str) -> &str {
    identity.split('{').next().unwrap()
}

/// One of few, so that many share them.
pub(crate) fn random_parameters(rng: &mut StdRng) -> ClientParameters {
    ClientParameters { env: ENVS[rng.random_range(0..3)], v: VS[rng.random_range(0..3)] }
}

pub(crate) fn node(params: ClientParameters, id: &str) -> proto::Node {
    proto::Node {
        id: id.to_owned(),
        cluster: params.env.to_owned(),
        user_agent_name: params.v.to_owned(),
        ..proto::Node::default()
    }
}

fn split(
    list: impl IntoIterator<Item = (String, Option<ClientParameters>)>,
) -> (Vec<String>, Vec<ResourceLocator>) {
    let (mut names, mut locators) = (Vec::new(), Vec::new());
    for (name, asked) in list {
        match asked {
            Some(params) => locators.push(ResourceLocator { name, dynamic_parameters: params.pairs() }),
            None => names.push(name),
        }
    }
    (names, locators)
}

impl Client {
    pub(crate) fn new(
        rng: &mut StdRng,
        cache: &Arc<Cache>,
        rules: &Arc<SessionConfig>,
        now: Instant,
    ) -> Self {
        let protocol = if rng.random_bool(0.5) { Protocol::Sotw } else { Protocol::Delta };
        let only = rng.random_bool(0.3).then(|| rng.random_range(0..TYPES.len()));
        let node = if rng.random_bool(0.6) { random_parameters(rng) } else { ClientParameters::default() };
        let given = if rules.given.is_empty() { ClientParameters::default() } else { node };
        Self {
            session: session(cache, rules, protocol, only.map(|at| TYPES[at]), now),
            protocol,
            only,
            node,
            given,
            locates: [0.0, 0.5, 1.0, 1.0][rng.random_range(0..4)],
            slow: rng.random_bool(0.2),
            types: Default::default(),
            nonces: BTreeSet::new(),
            untaken: false,
        }
    }

    /// Another stream of the same client, which may keep what it holds.
    pub(crate) fn reconnect(
        &mut self,
        keeps: bool,
        cache: &Arc<Cache>,
        rules: &Arc<SessionConfig>,
        now: Instant,
    ) {
        self.session = session(cache, rules, self.protocol, self.only.map(|at| TYPES[at]), now);
        for state in &mut self.types {
            *state = Type {
                held: std::mem::take(&mut state.held),
                version: std::mem::take(&mut state.version),
                ..Type::default()
            };
            state.held.values_mut().for_each(|held| held.old = true);
            if !keeps {
                state.held.clear();
                state.version.clear();
            }
        }
        self.nonces.clear();
        self.untaken = false;
    }

    fn is_full_state(&self, at: usize) -> bool {
        self.protocol == Protocol::Sotw && TYPES[at] != "eds"
    }

    pub(crate) fn take(&mut self, now: Instant) {
        if std::mem::take(&mut self.untaken) {
            self.session.on_flushed(now);
        }
    }

    /// Asks for something else.
    pub(crate) fn ask(&mut self, rng: &mut StdRng, now: Instant) {
        let at = self.only.unwrap_or_else(|| rng.random_range(0..TYPES.len()));
        let one = random_parameters(rng);
        let mut pick = |chance: f64, star: f64, locates: f64| -> Vec<(String, Option<ClientParameters>)> {
            let mut picked = Vec::new();
            for name in NAMES.into_iter().chain(["*"]) {
                if rng.random_bool(if name == "*" { star } else { chance }) {
                    let params = if rng.random_bool(0.7) { one } else { random_parameters(rng) };
                    picked.push((name.to_owned(), rng.random_bool(locates).then_some(params)));
                }
            }
            picked
        };
        match self.protocol {
            Protocol::Sotw => {
                let list = pick(0.4, 0.4, self.locates);
                self.list(at, list.into_iter().collect(), false, now);
            }
            Protocol::Delta => {
                let add = pick(0.25, 0.15, self.locates);
                let mut end = pick(0.1, 0.1, self.locates);
                // Mostly what it has.
                for (name, asked) in &mut end {
                    if let Some(has) = self.types[at].asks.get(name).filter(|_| rng.random_bool(0.8)) {
                        *asked = *has;
                    }
                }
                if !(add.is_empty() && end.is_empty()) {
                    self.increment(at, add, end, false, now);
                }
            }
        }
    }

    /// ACKs or NACKs what is in flight.
    pub(crate) fn answer(&mut self, rng: &mut StdRng, at: usize, now: Instant) {
        if self.slow && rng.random_bool(0.7) {
            return;
        }
        self.acknowledge(at, rng.random_bool(0.03), now);
    }

    pub(crate) fn acknowledge(&mut self, at: usize, refuses: bool, now: Instant) {
        if self.types[at].in_flight.is_none() {
            return;
        }
        match self.protocol {
            Protocol::Sotw => self.list(at, self.types[at].asks.clone(), refuses, now),
            Protocol::Delta => self.increment(at, Vec::new(), Vec::new(), refuses, now),
        }
    }

    fn list(&mut self, at: usize, asks: Asks, refuses: bool, now: Instant) {
        let first = !self.types[at].requested;
        if first && asks.is_empty() {
            // It would be the legacy wildcard.
            return;
        }
        let (names, locators) = split(asks.clone());
        let version_info = self.types[at].version.clone();
        self.turn(at, asks);
        let state = &mut self.types[at];
        state.in_flight = None;
        if first {
            state.version.clear();
        }
        let request = proto::DiscoveryRequest {
            node: Some(node(self.node, "")),
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resource_names: names,
            resource_locators: locators,
            response_nonce: state.last_nonce.clone(),
            version_info,
            error_detail: refuses.then(proto::Status::default),
        };
        self.session.on_sotw_request(request, now).unwrap();
    }

    fn increment(
        &mut self,
        at: usize,
        add: Vec<(String, Option<ClientParameters>)>,
        end: Vec<(String, Option<ClientParameters>)>,
        refuses: bool,
        now: Instant,
    ) {
        let first = !self.types[at].requested;
        let mut asks = self.types[at].asks.clone();
        let (plain, located) = split(add.clone());
        let (end_plain, end_located) = split(end.clone());
        let end_names: Vec<String> = end.iter().map(|(name, _)| name.clone()).collect();
        asks.extend(add);
        for (name, asked) in end {
            let is_it = match (name.as_str(), asked, asks.get(&name)) {
                // Any wildcard ends with `*`, and one that was asked for by locator with the same.
                ("*", None, _) => true,
                ("*", asked, Some(has)) => *has == asked,
                (_, asked, Some(has)) => has.unwrap_or_default() == asked.unwrap_or_default(),
                (_, _, None) => false,
            };
            if is_it {
                asks.remove(&name);
            }
        }
        let versions = if first { self.versions(at) } else { Vec::new() };
        self.turn(at, asks);
        let given = self.given;
        let state = &mut self.types[at];
        // It lets go of what it names, also where it has only brought it.
        let is_ended = |name: &str| end_names.iter().any(|ended| ended == name);
        let asks = &state.asks;
        state.held.retain(|identity, _| {
            let name = name_of(identity);
            !is_ended(name) || way(asks, given, name).is_some()
        });
        let request = proto::DeltaDiscoveryRequest {
            node: Some(node(self.node, "")),
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resource_names_subscribe: plain,
            resource_names_unsubscribe: end_plain,
            resource_locators_subscribe: located,
            resource_locators_unsubscribe: end_located,
            initial_resource_versions: versions.into_iter().collect(),
            response_nonce: state.in_flight.take().map(|told| told.nonce).unwrap_or_default(),
            error_detail: refuses.then(proto::Status::default),
        };
        self.session.on_delta_request(request, Default::default(), now).unwrap();
    }

    /// Versions that it holds, by names alone (R-DP-14).
    fn versions(&self, at: usize) -> Vec<(String, String)> {
        let held = self.types[at].held.iter();
        held.map(|(identity, held)| {
            (name_of(identity).to_owned(), held.text.split('/').next().unwrap().to_owned())
        })
        .collect()
    }

    /// It lets go of what it no longer asks for.
    fn turn(&mut self, at: usize, asks: Asks) {
        let given = self.given;
        let state = &mut self.types[at];
        let first = !std::mem::replace(&mut state.requested, true);
        // With the wildcard it drops all that it does not ask for by name (R-Delta-10): of what it brought it cannot tell
        // whether it is a member.
        let drops = state.asks.contains_key("*") && !asks.contains_key("*");
        state.held.retain(|identity, _| !drops || asks.contains_key(name_of(identity)));
        for name in NAMES {
            let (before, after) = (way(&state.asks, given, name), way(&asks, given, name));
            if before == after && !first {
                continue;
            }
            for held in state.held.iter_mut().filter(|(identity, _)| name_of(identity) == name) {
                held.1.old = true;
            }
            // Resources that it brought are the relay's to remove.
            if after.is_none() && !(first && self.protocol == Protocol::Delta) {
                state.held.retain(|identity, _| name_of(identity) != name);
            }
        }
        state.asks = asks;
    }

    /// Checks a response against the origin of this moment, and takes it in.
    pub(crate) fn hear(&mut self, told: Told, origin: &Origin) {
        let at = at_of(told.type_url.as_str());
        assert!(self.only.is_none_or(|only| only == at));
        assert!(self.nonces.insert(told.nonce.clone()), "the nonce {} twice", told.nonce);
        let mut names = BTreeSet::new();
        for (identity, text) in &told.resources {
            let name = name_of(identity);
            assert!(names.insert(name), "two of {name} in {told:?}");
            let way = way(&self.types[at].asks, self.given, name);
            let way = way.unwrap_or_else(|| panic!("it never asked for {name}: {told:?}"));
            let rule = text.split_once('/').unwrap().1;
            assert!(way.params.fits(rule), "{identity} {text} is not for {way:?}");
            let expected = if way.located { format!("{name}{{{}}}", shown(rule)) } else { name.to_owned() };
            assert_eq!(*identity, expected, "{way:?}");
        }
        for identity in &told.removed {
            let name = name_of(identity);
            let way = way(&self.types[at].asks, self.given, name);
            assert!(
                !names.contains(name) || way.is_some_and(|way| way.located),
                "sent and removed: {told:?}"
            );
        }
        let before = self.lasting(at, origin);
        let full_state = self.is_full_state(at);
        let state = &mut self.types[at];
        if full_state {
            state.held.clear();
        }
        let mentioned = |identity: &String| {
            let resources = told.resources.iter().map(|(identity, _)| identity);
            resources.chain(&told.removed).any(|other| name_of(other) == name_of(identity))
        };
        // Over state of the world there is nothing by which to take back an identity.
        let is_sotw = self.protocol == Protocol::Sotw;
        state.held.retain(|identity, held| !(mentioned(identity) && (held.old || is_sotw)));
        for identity in &told.removed {
            state.held.remove(identity);
        }
        for (identity, text) in &told.resources {
            state.held.insert(identity.clone(), Held { text: text.clone(), old: false });
        }
        for name in before {
            let has = state.held.keys().any(|identity| name_of(identity) == name);
            assert!(has, "{name} of {} was never gone, but {told:?}", TYPES[at]);
        }
        state.version.clone_from(&told.version);
        state.last_nonce.clone_from(&told.nonce);
        state.in_flight = Some(told);
        self.untaken = true;
    }

    /// Names that it holds and that have always been there for it since before it was told (R-DP-13).
    fn lasting(&self, at: usize, origin: &Origin) -> BTreeSet<String> {
        let state = &self.types[at];
        let lasts = |(identity, held): &(&String, &Held)| {
            let name = name_of(identity);
            let Some(way) = way(&state.asks, self.given, name) else { return false };
            let version: u64 = held.text.split('/').next().unwrap().parse().unwrap();
            !held.old && origin.since(at, name, way.params).is_some_and(|since| since <= version)
        };
        state.held.iter().filter(lasts).map(|(identity, _)| name_of(identity).to_owned()).collect()
    }

    /// Once everything was said and answered, it holds what its subscription shows, under one identity per name.
    pub(crate) fn check_settled(&self, origin: &Origin) {
        for (at, state) in self.types.iter().enumerate().filter(|(_, state)| state.requested) {
            for name in NAMES {
                let held = state.held.iter().filter(|(identity, _)| name_of(identity) == name);
                let held: Vec<_> = held.map(|(identity, held)| (identity, &held.text)).collect();
                let way = way(&state.asks, self.given, name);
                let texts = way.map(|way| origin.texts(at, name, way.params)).unwrap_or_default();
                let place =
                    format!("{name} of {} by {:?}, {:?} {:?}", TYPES[at], self.protocol, way, state.asks);
                if texts.is_empty() {
                    let stays = self.protocol == Protocol::Sotw && TYPES[at] == "eds";
                    assert!(stays || held.is_empty(), "{held:?} is left of {place}");
                } else {
                    assert_eq!(held.len(), 1, "{held:?} and not {texts:?} of {place}");
                    assert!(texts.contains(held[0].1), "{held:?} and not {texts:?} of {place}");
                }
            }
        }
    }
}
