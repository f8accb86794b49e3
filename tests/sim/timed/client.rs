//! A client that follows the protocol: what it asks for, what it says, and what it holds.
//!
//! Owns its subscriptions and what it was told, as Envoy and gRPC would keep it, over streams that come and go. Judges
//! nothing: what a response does to what it holds is returned, to be judged by the time line of the origin.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use deltafan::cache::Protocol;
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};

use super::reading::Told;
use super::relay::Request;
use super::truth::{TYPES, is_full_state};
use deltafan_test_support::wire::type_url;

/// Subscription to one type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) wildcard: bool,
    pub(crate) names: BTreeSet<String>,
}

impl Asked {
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    pub(crate) fn is_nothing(&self) -> bool {
        !self.wildcard && self.names.is_empty()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) text: String,
    version: String,
    pub(crate) since: Instant,
    /// From when on its end may have come.
    pub(crate) may_end_from: Instant,
}

/// One type.
#[derive(Debug, Default)]
pub(crate) struct Type {
    pub(crate) asked: Asked,
    pub(crate) held: BTreeMap<String, Held>,
    /// When each name, or the wildcard as `*`, was last asked for.
    pub(crate) since: BTreeMap<String, Instant>,
    version: String,
    nonce: String,
    /// When the newest response was made.
    told: Option<Instant>,
    /// It let go of something that it held since the response with that version.
    lacks_some: bool,
    requested: bool,
    /// A name or `*` was said on this stream.
    explicit: bool,
    /// Past subscriptions, each with the number of the request on its stream from which it holds.
    lists: Vec<(u64, Asked)>,
    /// How often the subscription changed.
    pub(crate) changes: u64,
}

#[derive(Debug)]
struct Stream {
    only: Option<usize>,
    sent: u64,
}

/// Ways in which a name was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Views {
    pub(crate) wildcard: bool,
    pub(crate) name: bool,
}

/// Effect of a response on a client.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    pub(crate) at: usize,
    /// Resources that were held before.
    pub(crate) lost: Vec<(String, Held, Views)>,
    /// Names that a full state lacks: subscribed to when it was made, and not held.
    pub(crate) absent: Vec<(String, Views)>,
    /// Names that are told to be absent, and were not held.
    pub(crate) removed: Vec<(String, Views)>,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: usize,
    pub(crate) relay: usize,
    pub(crate) link: usize,
    pub(crate) protocol: Protocol,
    per_type: bool,
    pub(crate) grpc: bool,
    /// `node.cluster`.
    pub(crate) cluster: String,
    /// Whether it says `*` beside the names that it adds to a legacy wildcard.
    spells: bool,
    pub(crate) ack_delay: Duration,
    pub(crate) online: bool,
    /// When it comes back, by this number: an older one does not count.
    pub(crate) attempt: u64,
    pub(crate) reading: bool,
    streams: BTreeMap<u32, Stream>,
    pub(crate) types: [Type; TYPES.len()],
}

/// A request to be sent.
pub(crate) type Outgoing = (u32, Option<usize>, Request);

impl Client {
    pub(crate) fn new(id: usize, relay: usize, link: usize, protocol: Protocol, kind: [bool; 3]) -> Self {
        let [per_type, grpc, spells] = kind;
        Self {
            id,
            relay,
            link,
            protocol,
            per_type,
            grpc,
            cluster: String::new(),
            spells,
            ack_delay: Duration::ZERO,
            online: false,
            attempt: 0,
            reading: true,
            streams: BTreeMap::new(),
            types: Default::default(),
        }
    }

    fn node(&self) -> Option<Node> {
        let agent = if self.grpc { "gRPC C-core" } else { "envoy" };
        Some(Node {
            id: format!("c{}", self.id),
            cluster: self.cluster.clone(),
            user_agent_name: agent.to_owned(),
            ..Node::default()
        })
    }

    /// Opens its streams and asks for everything.
    pub(crate) fn connect(&mut self, now: Instant, ids: &mut u32) -> Vec<Outgoing> {
        self.online = true;
        self.streams.clear();
        let mut out = Vec::new();
        for at in 0..TYPES.len() {
            let state = &mut self.types[at];
            (state.requested, state.explicit) = (false, false);
            state.nonce.clear();
            state.lists.clear();
            let names: Vec<String> = state.asked.names.iter().cloned().collect();
            state.since = names.into_iter().map(|name| (name, now)).collect();
            if state.asked.wildcard {
                state.since.insert("*".to_owned(), now);
            }
        }
        for at in 0..TYPES.len() {
            out.extend(self.first(at, ids));
        }
        out
    }

    /// The stream of a type, which is opened where there is none.
    fn stream(&mut self, at: usize, ids: &mut u32) -> u32 {
        let only = self.per_type.then_some(at);
        if let Some((id, _)) = self.streams.iter().find(|(_, stream)| stream.only == only) {
            return *id;
        }
        *ids += 1;
        self.streams.insert(*ids, Stream { only, sent: 0 });
        *ids
    }

    pub(crate) fn streams(&self) -> Vec<u32> {
        self.streams.keys().copied().collect()
    }

    pub(crate) fn has(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// All of its streams are over; what it holds it keeps.
    pub(crate) fn disconnect(&mut self) {
        self.online = false;
        self.reading = true;
        self.streams.clear();
    }

    /// It starts anew, and holds nothing.
    pub(crate) fn forget(&mut self) {
        for state in &mut self.types {
            state.held.clear();
            state.version.clear();
        }
    }

    fn first(&mut self, at: usize, ids: &mut u32) -> Option<Outgoing> {
        let state = &mut self.types[at];
        if state.asked.is_nothing() {
            return None;
        }
        state.requested = true;
        let asked = state.asked.clone();
        let mut names: Vec<String> = asked.names.iter().cloned().collect();
        if asked.wildcard && (!names.is_empty() || self.grpc) {
            names.push("*".to_owned());
        }
        state.explicit = !names.is_empty();
        let held = state.held.iter().filter(|(name, _)| asked.covers(name));
        let held = held.map(|(name, held)| (name.clone(), held.version.clone())).collect();
        // That version would claim what it let go, and no server could tell (R-SotW-10).
        let is_lone = asked.wildcard && asked.names.is_empty();
        let claims_too_much = state.lacks_some && is_lone;
        let version_info = if claims_too_much { String::new() } else { state.version.clone() };
        let (type_url, node) = (type_url(TYPES[at]).as_str().to_owned(), self.node());
        let request = match self.protocol {
            Protocol::Delta => Request::Delta(DeltaDiscoveryRequest {
                node,
                type_url,
                resource_names_subscribe: names,
                initial_resource_versions: held,
                ..DeltaDiscoveryRequest::default()
            }),
            Protocol::Sotw => Request::Sotw(DiscoveryRequest {
                node,
                type_url,
                resource_names: names,
                version_info,
                ..DiscoveryRequest::default()
            }),
        };
        Some(self.sent(at, ids, request))
    }

    fn sent(&mut self, at: usize, ids: &mut u32, request: Request) -> Outgoing {
        let id = self.stream(at, ids);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.sent += 1;
            let state = &mut self.types[at];
            state.lists.push((stream.sent, state.asked.clone()));
        }
        (id, self.per_type.then_some(at), request)
    }

    /// Asks for something else of a type.
    pub(crate) fn ask(&mut self, at: usize, asked: Asked, now: Instant, ids: &mut u32) -> Option<Outgoing> {
        let state = &mut self.types[at];
        let before = std::mem::replace(&mut state.asked, asked.clone());
        // A client whose stream is away learns of nothing that it could let go. The version that it says on the next one would
        // claim what it has let go, and no server could tell.
        let lets_go =
            (before.wildcard && !asked.wildcard) || before.names.difference(&asked.names).next().is_some();
        if before == asked || (lets_go && !self.online) {
            state.asked = before;
            return None;
        }
        state.changes += 1;
        state.lacks_some |= lets_go;
        for name in asked.names.difference(&before.names) {
            state.since.insert(name.clone(), now);
        }
        if asked.wildcard && !before.wildcard {
            state.since.insert("*".to_owned(), now);
        }
        // It lets go of what it does not ask for any more, and goes on saying the version that it accepted last.
        state.held.retain(|name, _| asked.covers(name));
        if !self.online {
            return None;
        }
        if !state.requested {
            return self.first(at, ids);
        }
        let type_url = type_url(TYPES[at]).as_str().to_owned();
        let request = match self.protocol {
            Protocol::Sotw => self.list(at),
            Protocol::Delta => {
                let mut add: Vec<String> = asked.names.difference(&before.names).cloned().collect();
                let mut end: Vec<String> = before.names.difference(&asked.names).cloned().collect();
                let makes_explicit = self.spells && !add.is_empty() && !state.explicit;
                if asked.wildcard && (!before.wildcard || makes_explicit) {
                    add.push("*".to_owned());
                }
                if before.wildcard && !asked.wildcard {
                    end.push("*".to_owned());
                }
                state.explicit |= !add.is_empty();
                Request::Delta(DeltaDiscoveryRequest {
                    node: self.node(),
                    type_url,
                    resource_names_subscribe: add,
                    resource_names_unsubscribe: end,
                    ..DeltaDiscoveryRequest::default()
                })
            }
        };
        Some(self.sent(at, ids, request))
    }

    /// Whether a subscription can be said: an empty list would be a legacy wildcard.
    pub(crate) fn may_ask(&self, at: usize, asked: &Asked) -> bool {
        !asked.is_nothing() || (self.types[at].explicit && self.types[at].requested)
    }

    fn list(&mut self, at: usize) -> Request {
        let state = &mut self.types[at];
        let mut names: Vec<String> = state.asked.names.iter().cloned().collect();
        if state.asked.wildcard && (!names.is_empty() || state.explicit) {
            names.push("*".to_owned());
        }
        state.explicit |= !names.is_empty();
        Request::Sotw(DiscoveryRequest {
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resource_names: names,
            version_info: state.version.clone(),
            response_nonce: state.nonce.clone(),
            node: self.node(),
            ..DiscoveryRequest::default()
        })
    }

    /// Says that a response was taken in.
    pub(crate) fn acknowledge(&mut self, at: usize, nonce: String, ids: &mut u32) -> Outgoing {
        let request = match self.protocol {
            Protocol::Sotw => self.list(at),
            Protocol::Delta => Request::Delta(DeltaDiscoveryRequest {
                type_url: type_url(TYPES[at]).as_str().to_owned(),
                response_nonce: nonce,
                ..DeltaDiscoveryRequest::default()
            }),
        };
        self.sent(at, ids, request)
    }

    /// Takes in a response that was made at that moment, when so many requests of the stream had been heard.
    pub(crate) fn hear(&mut self, told: &Told, heard: u64, names: &[String], made: Instant) -> Effect {
        let at = told.at;
        let is_full = self.protocol == Protocol::Sotw && is_full_state(at);
        let state = &mut self.types[at];
        assert!(state.requested, "client {} never asked for {}", self.id, TYPES[at]);
        let then = state.lists.iter().rposition(|(from, _)| *from <= heard).unwrap_or(0);
        state.lists.drain(..then);
        let then = state.lists.first().map(|(_, asked)| asked.clone()).unwrap_or_default();
        state.nonce.clone_from(&told.nonce);
        state.version.clone_from(&told.version);
        state.lacks_some = false;
        let mut effect = Effect { at, ..Effect::default() };
        let views = |name: &str| Views { wildcard: then.wildcard, name: then.names.contains(name) };
        let both = |name: &str| then.covers(name) && state.asked.covers(name);
        if is_full {
            for name in names.iter().filter(|name| both(name) && !told.has(name)) {
                match state.held.remove(name) {
                    Some(held) => effect.lost.push((name.clone(), held, views(name))),
                    None => effect.absent.push((name.clone(), views(name))),
                }
            }
        }
        for name in told.removed.iter().filter(|name| both(name)) {
            match state.held.remove(name) {
                Some(held) => effect.lost.push((name.clone(), held, views(name))),
                None => effect.removed.push((name.clone(), views(name))),
            }
        }
        for (name, text, version) in &told.resources {
            if state.asked.covers(name) {
                // A union of old and new repeats what has ended (R-ADS-03): that is no news of it.
                let is_union = told.nonce.ends_with('+');
                let repeated = state.held.get(name).filter(|held| is_union && held.text == *text);
                let since = repeated.map_or(made, |held| held.since);
                // It also repeats what came and ended since the response before it: a server remembers the last body of a
                // name, and not which of its clients held it.
                let began = state.told.filter(|_| is_union).unwrap_or(made);
                let may_end_from = repeated.map_or(began, |held| held.may_end_from);
                let held = Held { text: text.clone(), version: version.clone(), since, may_end_from };
                state.held.insert(name.clone(), held);
            }
        }
        state.told = Some(made);
        effect
    }
}
