//! A client: a session, and the knowledge of the peer at its other end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Completeness, Protocol};
use deltafan::proto;
use deltafan::subscription::{Session, SessionConfig, SessionError};
use rand::Rng;
use rand::rngs::StdRng;

use super::origin::{CDS, RDS, ROUTE, TYPES};
use super::subscription::{Subscribed, pick};
use crate::common::session;
use deltafan_test_support::bell::Bell;
use deltafan_test_support::wire::{Told, type_url};

/// A response that was not answered.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) told: Told,
    pub(crate) taken: Option<Instant>,
}

/// One type on the stream.
#[derive(Debug, Default)]
pub(crate) struct Type {
    pub(crate) requested: bool,
    /// It had a response on this stream.
    pub(crate) told: bool,
    pub(crate) subscribed: Subscribed,
    pub(crate) in_flight: Option<Unanswered>,
    nonces: Vec<String>,
    /// Names that it asked for or brought: all but these it can only have from the wildcard.
    pub(crate) familiar: BTreeSet<String>,
    pub(crate) brought: BTreeSet<String>,
    /// Of these, the names that only the relay can take away.
    unsettled: BTreeSet<String>,
    /// Resources that it holds; they outlive the stream.
    pub(crate) held: BTreeMap<String, String>,
    pub(crate) version: String,
    /// Whether it may hold what it was not told on this stream, or not as a member of the wildcard set.
    pub(crate) may_hold: bool,
    /// Names that it may still hold although it no longer asks for them: state of the world is not told.
    pub(crate) lingering: BTreeSet<String>,
    /// Names that it holds by version alone: a client that resumes is not sent another body of that version.
    pub(crate) resumed: BTreeSet<String>,
    /// When it was told of what it holds, by the clock of the origin.
    pub(crate) told_at: BTreeMap<String, u64>,
    pub(crate) asked_at: u64,
    /// How often it asked for something.
    asks: u64,
    /// How many responses followed what the origin said last and it asked for last.
    told_since: (u64, u64, usize),
    pub(crate) heard_at: u64,
    /// Endpoints without which a changed cluster keeps warming (V1).
    pub(crate) warming: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Prompt,
    Slow,
    NeverAnswers,
    Refuses,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) protocol: Protocol,
    pub(crate) only: Option<usize>,
    pub(crate) manner: Manner,
    pub(crate) grpc: bool,
    /// Its answers are never split.
    pub(crate) in_one_piece: bool,
    /// Unknown names are taken for absent in time.
    pub(crate) timed: bool,
    /// It subscribes to all clusters and the moving route, and leaves it at that.
    pub(crate) steady: bool,
    pub(crate) session: Session,
    pub(crate) types: [Type; TYPES.len()],
    pub(crate) all_nonces: BTreeSet<String>,
    pub(crate) untaken: Option<usize>,
    pub(crate) bell: Arc<Bell>,
    /// It was told to wait until then, and nothing happened to it since.
    pub(crate) asleep: Option<Option<Instant>>,
    /// Why its stream was closed.
    pub(crate) refused: Option<SessionError>,
}

impl Client {
    pub(crate) fn new(
        rng: &mut StdRng,
        cache: &Arc<Cache>,
        rules: &Arc<SessionConfig>,
        in_one_piece: bool,
        now: Instant,
    ) -> Self {
        let protocol = if rng.random_bool(0.5) { Protocol::Sotw } else { Protocol::Delta };
        let only = rng.random_bool(0.3).then(|| rng.random_range(0..TYPES.len()));
        let manner = match rng.random_range(0..6) {
            0 => Manner::NeverAnswers,
            1 => Manner::Refuses,
            2 => Manner::Slow,
            _ => Manner::Prompt,
        };
        let grpc = rng.random_bool(0.15);
        let steady = only.is_none() && !grpc && rng.random_bool(0.5);
        Self {
            session: session(cache, rules, protocol, only.map(|at| TYPES[at]), now),
            protocol,
            only,
            manner,
            grpc,
            in_one_piece,
            timed: rules.cold_deadline < Duration::from_secs(60),
            steady,
            types: Default::default(),
            all_nonces: BTreeSet::new(),
            untaken: None,
            bell: Arc::default(),
            asleep: None,
            refused: None,
        }
    }

    /// Another stream of the same client, which keeps what it holds.
    pub(crate) fn reconnect(&mut self, cache: &Arc<Cache>, rules: &Arc<SessionConfig>, now: Instant) {
        self.session = session(cache, rules, self.protocol, self.only.map(|at| TYPES[at]), now);
        for state in &mut self.types {
            *state = Type {
                held: std::mem::take(&mut state.held),
                version: std::mem::take(&mut state.version),
                lingering: std::mem::take(&mut state.lingering),
                ..Type::default()
            };
        }
        self.all_nonces.clear();
        self.untaken = None;
        self.asleep = None;
        self.refused = None;
    }

    /// How much of the wildcard set has to be known before it is told a full state.
    pub(crate) fn needed(&self, at: usize) -> Completeness {
        if self.types[at].may_hold { Completeness::Complete } else { Completeness::Presumed }
    }

    pub(crate) fn is_full_state(&self, at: usize) -> bool {
        self.protocol == Protocol::Sotw && ["cds", "lds"].contains(&TYPES[at])
    }

    fn node(&self) -> Option<proto::Node> {
        let agent = if self.grpc { "gRPC C-core" } else { "envoy" };
        Some(proto::Node { user_agent_name: agent.to_owned(), ..proto::Node::default() })
    }

    fn any_nonce(&self, rng: &mut StdRng, at: usize) -> String {
        let nonces = &self.types[at].nonces;
        match rng.random_range(0..4) {
            0 => String::new(),
            1 if !nonces.is_empty() => nonces[rng.random_range(0..nonces.len())].clone(),
            _ => nonces.last().cloned().unwrap_or_default(),
        }
    }

    /// Counts a response; returns how many followed the same cause.
    pub(crate) fn count(&mut self, at: usize, said: u64) -> usize {
        let state = &mut self.types[at];
        let (before, asks, count) = state.told_since;
        let count = if (before, asks) == (said, state.asks) { count + 1 } else { 1 };
        state.told_since = (said, state.asks, count);
        count
    }

    pub(crate) fn remember(&mut self, at: usize, told: Told) {
        let state = &mut self.types[at];
        state.told = true;
        state.may_hold = false;
        state.nonces.push(told.nonce.clone());
        state.version.clone_from(&told.version);
        state.in_flight = Some(Unanswered { told, taken: None });
        self.untaken = Some(at);
    }

    pub(crate) fn take(&mut self, now: Instant) {
        if let Some(at) = self.untaken.take() {
            self.session.on_flushed(now);
            self.asleep = None;
            if let Some(in_flight) = &mut self.types[at].in_flight {
                in_flight.taken = Some(now);
            }
        }
    }

    /// ACKs or NACKs what is in flight.
    pub(crate) fn answer(&mut self, at: usize, refuse: bool, now: Instant) {
        let Some(Unanswered { told, .. }) = self.types[at].in_flight.take() else { return };
        let error = refuse.then(proto::Status::default);
        let mut names: Vec<String> = self.types[at].subscribed.names.iter().cloned().collect();
        // A legacy wildcard has no names; beside names the star has to be said.
        if self.types[at].subscribed.wildcard && !names.is_empty() {
            names.push("*".to_owned());
        }
        if self.types[at].subscribed.wildcard && names.is_empty() {
            names.extend(self.types[at].familiar.contains("*").then(|| "*".to_owned()));
        }
        match self.protocol {
            Protocol::Sotw => self.list(at, names, told.nonce, error, now),
            Protocol::Delta => self.increment(at, (&[], &[]), told.nonce, error, now),
        }
    }

    fn list(
        &mut self,
        at: usize,
        names: Vec<String>,
        nonce: String,
        error: Option<proto::Status>,
        now: Instant,
    ) {
        let grpc = self.grpc;
        let node = self.node();
        let state = &mut self.types[at];
        let first = !std::mem::replace(&mut state.requested, true);
        let mut before = std::mem::take(&mut state.subscribed.names);
        let had_wildcard = state.subscribed.wildcard;
        state.subscribed.list(at, grpc, &names);
        state.may_hold |= !had_wildcard && state.subscribed.wildcard && state.told;
        before.retain(|name| !state.subscribed.names.contains(name));
        state.familiar.extend(names.iter().cloned());
        if state.subscribed.wildcard {
            state.lingering.append(&mut before);
        } else {
            let Type { held, subscribed, .. } = state;
            held.retain(|name, _| subscribed.names.contains(name));
        }
        if state.nonces.last() == Some(&nonce) {
            state.in_flight = None;
        }
        let version_info = state.version.clone();
        if first {
            state.may_hold = !version_info.is_empty();
            state.version.clear();
        }
        self.asleep = None;
        let request = proto::DiscoveryRequest {
            node,
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resource_names: names,
            response_nonce: nonce,
            version_info,
            error_detail: error,
            ..Default::default()
        };
        if let Err(refusal) = self.session.on_sotw_request(request, now) {
            self.refused = Some(refusal);
        }
    }

    fn increment(
        &mut self,
        at: usize,
        (add, end): (&[String], &[String]),
        nonce: String,
        error: Option<proto::Status>,
        now: Instant,
    ) {
        let grpc = self.grpc;
        let node = self.node();
        let state = &mut self.types[at];
        let mut versions = BTreeMap::new();
        let was_wildcard = state.subscribed.wildcard;
        if state.requested {
            state.subscribed.change(add, end);
        } else {
            state.requested = true;
            state.subscribed.begin(at, grpc, add, end);
            state.held.retain(|name, _| !end.contains(name));
            for (name, text) in &state.held {
                versions.insert(name.clone(), text.split('/').next().unwrap().to_owned());
                state.brought.insert(name.clone());
                state.unsettled.insert(name.clone());
                state.resumed.insert(name.clone());
            }
        }
        state.familiar.extend(add.iter().cloned());
        if was_wildcard && !state.subscribed.wildcard {
            // It lets go of what it has from the wildcard by itself (R-Delta-10).
            state.unsettled.clear();
        }
        if !state.subscribed.wildcard {
            // A resource that was brought along and not asked for is the relay's to remove (R-Delta-07).
            let Type { held, subscribed, unsettled, .. } = state;
            unsettled.retain(|name| !end.contains(name));
            held.retain(|name, _| subscribed.names.contains(name) || unsettled.contains(name));
        }
        if state.nonces.last() == Some(&nonce) {
            state.in_flight = None;
        }
        self.asleep = None;
        let request = proto::DeltaDiscoveryRequest {
            node,
            type_url: type_url(TYPES[at]).as_str().to_owned(),
            resource_names_subscribe: add.to_vec(),
            resource_names_unsubscribe: end.to_vec(),
            initial_resource_versions: versions.into_iter().collect(),
            response_nonce: nonce,
            error_detail: error,
            ..Default::default()
        };
        if let Err(refusal) = self.session.on_delta_request(request, Default::default(), now) {
            self.refused = Some(refusal);
        }
    }

    /// Changes what it subscribes to, at random.
    pub(crate) fn ask(&mut self, rng: &mut StdRng, now: Instant, clock: u64) {
        let at = self.only.unwrap_or_else(|| rng.random_range(0..TYPES.len()));
        self.types[at].asked_at = clock;
        self.types[at].asks += 1;
        let nonce = self.any_nonce(rng, at);
        if self.steady && (at == CDS || at == RDS) {
            // The route is asked for only when the clusters are there, as a client does that learns of it from them.
            if self.types[at].requested || (at == RDS && !self.types[CDS].told) {
                return;
            }
            let names = if at == CDS { Vec::new() } else { vec![ROUTE.to_owned()] };
            return match self.protocol {
                Protocol::Sotw => self.list(at, names, nonce, None, now),
                Protocol::Delta => self.increment(at, (&names, &[]), nonce, None, now),
            };
        }
        match self.protocol {
            Protocol::Sotw => {
                let chance = [0.0, 0.2, 0.5][rng.random_range(0..3)];
                let star = if self.grpc { 0.0 } else { 0.3 };
                let names = pick(rng, at, chance, star);
                self.list(at, names, nonce, None, now);
            }
            Protocol::Delta => {
                let star = if self.grpc { 0.0 } else { 0.2 };
                let chance = [0.0, 0.2][rng.random_range(0..2)];
                let (add, end) = (pick(rng, at, chance, star), pick(rng, at, 0.15, 0.1));
                self.increment(at, (&add, &end), nonce, None, now);
            }
        }
    }
}
