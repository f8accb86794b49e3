//! Everything that is subscribed to at one origin, and what is to be said to it next.
//!
//! Owns the topics, the queues of ACKs, the linger (R-Relay-16) and the batching (R-Up-20). Knows no transport and
//! no clock: it is told what happened and when, and asked for the next request whenever a stream can take one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::response::{self, ProtocolError};
use super::topic::{Reading, Topic, Want};
use super::{Counters, Settings, StreamId};
use crate::cache::{Cache, Change, Interest, Op, Seen, Snapshot, View, Writer};
use crate::proto::{DeltaDiscoveryRequest, Status};
use crate::resource::{Name, TypeUrl};
use crate::telemetry::Sparingly;

/// ACKs that wait for a stream take no more than about this; an origin that lets them pile up does not read.
const ACK_BYTES: usize = 1 << 20;
/// What an ACK takes beside its nonce.
const ACK_OVERHEAD: usize = 128;
/// google.rpc.Code
const INVALID_ARGUMENT: i32 = 3;

/// What is owed for a response.
#[derive(Debug)]
struct Ack {
    type_url: TypeUrl,
    nonce: String,
    fault: Option<String>,
}

impl Ack {
    fn weight(&self) -> usize {
        ACK_OVERHEAD + self.nonce.len() + self.fault.as_ref().map_or(0, String::len)
    }
}

/// What an open stream has to say.
#[derive(Debug, Default)]
struct Stream {
    node_sent: bool,
    acks: VecDeque<Ack>,
    ack_bytes: usize,
    /// Types whose subscription changed, to be sent at the next tick.
    dirty: BTreeSet<TypeUrl>,
    /// Types whose subscription is being sent, in flush order (R-Up-06).
    due: BTreeSet<TypeUrl>,
    next_tick: Option<Instant>,
}

impl Stream {
    /// The first change after idle is due at once, later ones together.
    fn tick(&mut self, settings: &Settings, now: Instant) {
        if !self.dirty.is_empty() && self.next_tick.is_none_or(|at| at <= now) {
            self.due.append(&mut self.dirty);
            self.next_tick = Some(now + settings.request_interval);
        }
    }
}

/// The subscriptions of the relay at one origin.
#[derive(Debug)]
pub struct Mux {
    writer: Writer,
    settings: Settings,
    counters: Arc<Counters>,
    pub(super) topics: BTreeMap<TypeUrl, Topic>,
    streams: [Option<Stream>; 2],
    /// What nobody wants, by the time when it is let go; without a name: the wildcard.
    lingering: BTreeSet<(Instant, TypeUrl, Option<Name>)>,
    complaints: Sparingly,
}

impl Mux {
    /// A relay that is not connected and wants nothing yet.
    pub fn new(writer: Writer, settings: Settings) -> Self {
        let (topics, lingering) = Default::default();
        Self {
            writer,
            settings,
            counters: Arc::default(),
            topics,
            streams: [None, None],
            lingering,
            complaints: Sparingly::default(),
        }
    }

    /// The cache that it fills.
    pub const fn cache(&self) -> &Arc<Cache> {
        self.writer.cache()
    }

    /// What happened so far.
    pub const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// A stream was opened. Everything wanted is subscribed to on it, in the clean layout where it is the primary.
    pub fn opened(&mut self, stream: StreamId, now: Instant) {
        self.streams[stream as usize] = Some(Stream::default());
        self.topics.values_mut().for_each(|topic| topic.opened(stream));
        self.topics.keys().cloned().collect::<Vec<_>>().iter().for_each(|type_url| self.mark(type_url));
        self.on_deadline(now);
    }

    /// A stream ended; without the primary there is no secondary. What was learned stays (R-Relay-06).
    pub fn closed(&mut self, stream: StreamId) {
        if stream == StreamId::Primary && self.streams[StreamId::Secondary as usize].is_some() {
            self.closed(StreamId::Secondary);
        }
        self.streams[stream as usize] = None;
        self.topics.values_mut().for_each(|topic| topic.closed(stream));
        self.topics.retain(|_, topic| !topic.is_idle());
    }

    /// Whether anything has to be subscribed to on the secondary stream.
    pub fn wants_secondary(&self) -> bool {
        self.streams[StreamId::Primary as usize].is_some()
            && self.topics.values().any(|topic| topic.placed(StreamId::Secondary).is_some())
    }

    /// What the clients want changed: the outcome of [`Cache::take_interest`].
    pub fn interest(&mut self, interest: Vec<(TypeUrl, Interest)>, now: Instant) {
        for (type_url, interest) in interest {
            let open = StreamId::ALL.map(|stream| self.streams[stream as usize].is_some());
            let topic = self.topics.entry(type_url.clone()).or_insert_with(|| Topic::new(open));
            let until = now + self.settings.linger;
            match (topic.wildcard, interest.wildcard) {
                (Want::No, true) => topic.wildcard = Want::Yes,
                (Want::Until(end), true) => {
                    self.lingering.remove(&(end, type_url.clone(), None));
                    topic.wildcard = Want::Yes;
                }
                (Want::Yes, false) => {
                    self.lingering.insert((until, type_url.clone(), None));
                    topic.wildcard = Want::Until(until);
                }
                (Want::Yes, true) | (Want::No | Want::Until(_), false) => {}
            }
            for (name, wanted) in interest.names {
                // A client cannot ask by name for what would be the wildcard upstream.
                if matches!(name.as_str(), "" | Name::WILDCARD) {
                    continue;
                }
                if wanted && topic.names.contains_key(&name) {
                    topic.want_again(&name, &snapshot(self.writer.cache(), &type_url));
                }
                match (topic.names.get_mut(&name), wanted) {
                    (None, true) => topic.add_name(&name),
                    (Some(want @ Want::Until(_)), true) => {
                        if let Want::Until(end) = std::mem::replace(want, Want::Yes) {
                            self.lingering.remove(&(end, type_url.clone(), Some(name)));
                        }
                    }
                    (Some(want @ Want::Yes), false) => {
                        *want = Want::Until(until);
                        self.lingering.insert((until, type_url.clone(), Some(name)));
                    }
                    (Some(_), _) | (None, false) => {}
                }
            }
            topic.arrange();
            self.tidy(&type_url, now);
        }
        self.on_deadline(now);
    }

    /// A message came. An error means that the stream is of no use any more.
    pub fn on_message(
        &mut self,
        stream: StreamId,
        message: Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        self.on_deadline(now);
        let response = response::decode(message)?;
        self.counters.responses.add(1);
        let type_url = TypeUrl::from(response.type_url.as_str());
        let topic = self.topics.get_mut(&type_url);
        let Some(topic) = topic.filter(|topic| topic.link(stream).is_some_and(|link| link.is_started()))
        else {
            self.counters.unrequested_responses.add(1);
            return Ok(());
        };
        let fault = match response::envelopes(&response, &type_url) {
            Ok(envelopes) => {
                let reading = Reading {
                    envelopes,
                    removed: response::removed(&response).collect(),
                    system_version: &response.system_version_info,
                };
                let snapshot = snapshot(self.writer.cache(), &type_url);
                let change = topic.learn(stream, &type_url, &reading, &snapshot, &self.counters, now);
                self.apply(&type_url, change, now);
                self.tidy(&type_url, now);
                None
            }
            Err(fault) => {
                self.counters.nacks_sent.add(1);
                // An origin that sends again what was refused must not fill the log.
                if let Some(unsaid) = self.complaints.say(now) {
                    tracing::warn!(%type_url, fault = fault.text(), unsaid, "refused a response of the control plane");
                }
                Some(fault.text().to_owned())
            }
        };
        let Some(open) = &mut self.streams[stream as usize] else { return Ok(()) };
        let ack = Ack { type_url, nonce: response.nonce, fault };
        open.ack_bytes += ack.weight();
        open.acks.push_back(ack);
        if open.ack_bytes > ACK_BYTES {
            return Err(ProtocolError::AcksUnread(open.ack_bytes));
        }
        Ok(())
    }

    /// Whether [`next_request`](Self::next_request) may have something to say.
    pub fn has_request(&self, stream: StreamId) -> bool {
        let open = self.streams[stream as usize].as_ref();
        open.is_some_and(|open| !open.acks.is_empty() || !open.due.is_empty())
    }

    /// The next request for a stream that can take one: what is owed for responses first, with what is due of the
    /// same type, then subscriptions in flush order (R-Up-06, R-Up-10).
    pub fn next_request(&mut self, stream: StreamId, now: Instant) -> Option<DeltaDiscoveryRequest> {
        loop {
            let open = self.streams[stream as usize].as_mut()?;
            let ack = open.acks.pop_front();
            open.ack_bytes -= ack.as_ref().map_or(0, Ack::weight);
            let due = match &ack {
                Some(ack) => open.due.take(&ack.type_url),
                None => Some(open.due.pop_first()?),
            };
            let changes = due.and_then(|type_url| self.changes(stream, type_url, now));
            let Some(open) = &mut self.streams[stream as usize] else { return None };
            let mut request = match (&ack, changes) {
                (_, Some(changes)) => changes,
                (Some(_), None) => DeltaDiscoveryRequest::default(),
                // Wanted and let go again before it was sent.
                (None, None) => continue,
            };
            if let Some(ack) = ack {
                request.type_url = ack.type_url.as_str().to_owned();
                request.response_nonce = ack.nonce;
                request.error_detail = ack.fault.map(|message| Status { code: INVALID_ARGUMENT, message });
            }
            if !std::mem::replace(&mut open.node_sent, true) {
                request.node = Some(self.settings.node.clone());
            }
            self.counters.requests.add(1);
            return Some(request);
        }
    }

    fn changes(
        &mut self,
        stream: StreamId,
        type_url: TypeUrl,
        now: Instant,
    ) -> Option<DeltaDiscoveryRequest> {
        let topic = self.topics.get_mut(&type_url)?;
        let snapshot = snapshot(self.writer.cache(), &type_url);
        let (mut request, more) = topic.changes(stream, &snapshot, &self.settings, now);
        if let Some(request) = &mut request {
            request.type_url = type_url.as_str().to_owned();
        }
        self.tidy(&type_url, now);
        if more && let Some(open) = &mut self.streams[stream as usize] {
            open.due.insert(type_url);
        }
        request
    }

    /// Does what has become due; cheap when nothing has.
    pub fn on_deadline(&mut self, now: Instant) {
        self.let_go(now);
        let due = |topic: &Topic| topic.deadline(&self.settings).is_some_and(|at| at <= now);
        let due: Vec<TypeUrl> = self
            .topics
            .iter()
            .filter(|(_, topic)| due(topic))
            .map(|(type_url, _)| type_url.clone())
            .collect();
        for type_url in due {
            self.advance(&type_url, now);
        }
        self.streams.iter_mut().flatten().for_each(|stream| stream.tick(&self.settings, now));
    }

    /// When to call [`on_deadline`](Self::on_deadline) though nothing happened.
    pub fn next_deadline(&self) -> Option<Instant> {
        let topics = self.topics.values().filter_map(|topic| topic.deadline(&self.settings));
        let ticks = self.streams.iter().flatten().filter(|stream| !stream.dirty.is_empty());
        let lingering = self.lingering.first().map(|(at, ..)| *at);
        topics.chain(ticks.filter_map(|stream| stream.next_tick)).chain(lingering).min()
    }

    fn advance(&mut self, type_url: &TypeUrl, now: Instant) {
        let Some(topic) = self.topics.get_mut(type_url) else { return };
        let snapshot = snapshot(self.writer.cache(), type_url);
        let change = topic.advance(&self.settings, now, &snapshot, &self.counters);
        self.apply(type_url, change, now);
        self.tidy(type_url, now);
    }

    /// Lets go what nobody wanted for the linger time, unless somebody does by now (R-Relay-16).
    ///
    /// While the origin is away, what it said cannot be had again: it is kept for clients that come back, and its
    /// linger begins anew (R-Relay-06). What is not known is let go all the same, or clients that come and go with
    /// names of their own would fill the relay meanwhile.
    fn let_go(&mut self, now: Instant) {
        let away = self.streams[StreamId::Primary as usize].is_none();
        let later = now + self.settings.linger;
        let mut forgotten: BTreeMap<TypeUrl, Change> = BTreeMap::new();
        while self.lingering.first().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, type_url, item)) = self.lingering.pop_first() else { break };
            let Some(topic) = self.topics.get_mut(&type_url) else { continue };
            let Ok(of) = self.writer.cache().of(&type_url) else { continue };
            let change = forgotten.entry(type_url).or_default();
            match item {
                Some(name) if of.wants(name.as_str()) => {
                    topic.names.insert(name, Want::Yes);
                }
                Some(name) if away && !matches!(of.snapshot().by_name(name.as_str()), Seen::Unknown) => {
                    topic.names.insert(name.clone(), Want::Until(later));
                    self.lingering.insert((later, of.type_url().clone(), Some(name)));
                }
                Some(name) => {
                    topic.remove_name(&name);
                    change.ops.extend(topic.forget(name, &of.snapshot()));
                }
                None if of.wants_wildcard() => topic.wildcard = Want::Yes,
                None if away && (of.snapshot().wildcard_known() || of.snapshot().member_count() > 0) => {
                    topic.wildcard = Want::Until(later);
                    self.lingering.insert((later, of.type_url().clone(), None));
                }
                None => {
                    topic.remove_wildcard();
                    let forget = |name: &Name| Op::Forget { view: View::Wildcard, name: name.clone() };
                    change.ops.extend(of.snapshot().members().map(|member| forget(member.name())));
                    change.wildcard_known = Some(false);
                }
            }
        }
        for (type_url, change) in forgotten {
            self.apply(&type_url, change, now);
            if let Some(topic) = self.topics.get_mut(&type_url) {
                topic.arrange();
            }
            self.tidy(&type_url, now);
        }
    }

    /// Ends a move that is complete, announces what a topic has to say, removes it when it is spent.
    fn tidy(&mut self, type_url: &TypeUrl, now: Instant) {
        if let Some(topic) = self.topics.get_mut(type_url) {
            topic.finish_move(now);
        }
        self.mark(type_url);
        if self.topics.get(type_url).is_some_and(Topic::is_idle) {
            self.topics.remove(type_url);
        }
    }

    fn mark(&mut self, type_url: &TypeUrl) {
        let Some(topic) = self.topics.get(type_url) else { return };
        for stream in StreamId::ALL {
            let dirty = topic.link(stream).is_some_and(|link| link.is_dirty());
            if dirty && let Some(open) = &mut self.streams[stream as usize] {
                open.dirty.insert(type_url.clone());
            }
        }
    }

    fn apply(&mut self, type_url: &TypeUrl, change: Change, now: Instant) {
        if change.ops.is_empty() && change.wildcard_known.is_none() && change.system_version.is_none() {
            return;
        }
        // The type is subscribed to, so the cache has it; too many types can only keep the endpoints of a changed
        // cluster from being sent again, and then nobody asks for endpoints.
        self.writer.apply(type_url, change, now).ok();
    }
}

fn snapshot(cache: &Cache, type_url: &TypeUrl) -> Arc<Snapshot> {
    cache.of(type_url).map(|of| of.snapshot()).unwrap_or_default()
}
