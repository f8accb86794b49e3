//! Everything that is subscribed to at one origin, and what is to be said to it next.
//!
//! Owns the topics, the queues of ACKs, the linger (R-Relay-16) and the batching (R-Up-20). Knows no transport and
//! no clock: it is told what happened and when, and asked for the next request whenever a stream can take one.

mod acks;
mod hold_reports;
mod inquiries;
mod interest;
mod let_go;
mod messages;
mod prefetch;
mod protocol;
mod questions;
mod sources;
mod stream;
mod trials;
mod unanswered;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::inquiry::Inquiries;
use super::linger::Lingering;
use super::quiet_clock::{QuietClock, QuietInstant};
use super::refusal::Refusal;
use super::response::{self, Complaint, ProtocolError};
use super::suspects::Suspects;
use super::topic::OriginHabits;
use super::topic_set::{Changes, TopicSet};
use super::{Counters, Locators, ServerId, Settings, StreamId, Tuning};
use crate::cache::{Cache, Generation, View, Writer};
use crate::fairness::ACKS_IN_A_ROW;
use crate::proto::{DeltaDiscoveryRequest, Status};
use crate::resource::{Name, TypeUrl};
use acks::Ack;
use messages::Increments;
pub use sources::Restored;
use stream::{RenewalPace, Stream};

/// ACKs that wait for a stream take no more than about this; an origin that lets them pile up does not read.
const ACK_BYTES: usize = 1 << 20;
/// Time on one stream in which the origin is not silent because responses are on their way: 150 MB at 2 Mbit/s.
const TRANSFERS: Duration = Duration::from_secs(600);
/// Characters of an identifier that are told in an error.
const LOOP_CHARS: usize = 500;
/// google.rpc.Code
const INVALID_ARGUMENT: i32 = 3;

/// The subscriptions of the relay at one origin.
#[derive(Debug)]
pub struct Mux {
    writer: Writer,
    settings: Settings,
    counters: Arc<Counters>,
    pub(super) topic_sets: BTreeMap<TypeUrl, TopicSet>,
    streams: [Option<Stream>; 2],
    renewals: [RenewalPace; 2],
    /// The newest moment that it was told.
    latest: Option<Instant>,
    /// The origin is a relay that is cut off from its own control plane: the time up to which that was made up for.
    cut_off: Option<Instant>,
    lingering: Lingering,
    /// Server that what is held came from, unless a topic notes another one.
    server: Option<ServerId>,
    /// Server of everything that was restored, if its versions have no mark.
    restored_plain: Option<ServerId>,
    /// Mark on versions of the server that is connected.
    mark: String,
    /// Whether a response of the origin was ever accepted.
    is_heard: bool,
    /// Whether the origin on this connection is asked by locators, and whether it has shown that it knows them.
    locators: Locators,
    knows_locators: bool,
    /// Whether it does not know them: that holds for the connection that stands.
    asks_plainly: bool,
    /// Behaviour that the origin has shown.
    habits: OriginHabits,
    /// When to look whether it has left any unanswered.
    locators_due: Option<QuietInstant>,
    /// Types of which the rollout guard holds changes that the origin is to be told of.
    held: BTreeSet<TypeUrl>,
    /// Streams that ended soon after the origin was told of these.
    ended_by_reports: u32,
    suspects: Suspects,
    inquiries: Inquiries,
    clock: QuietClock,
}

impl Mux {
    /// A relay that is not connected and wants nothing yet.
    pub fn new(mut writer: Writer, settings: Settings) -> Self {
        writer.set_identity(&settings.identity);
        let all = Arc::clone(&settings.all_lingering);
        let lingering = Lingering::new(settings.max_lingering, settings.max_lingering_sets, all);
        Self {
            writer,
            settings,
            counters: Arc::default(),
            topic_sets: BTreeMap::new(),
            streams: [None, None],
            renewals: Default::default(),
            latest: None,
            cut_off: None,
            server: None,
            restored_plain: None,
            mark: String::new(),
            is_heard: false,
            lingering,
            locators: Locators::default(),
            knows_locators: false,
            asks_plainly: false,
            habits: OriginHabits::default(),
            locators_due: None,
            held: BTreeSet::new(),
            ended_by_reports: 0,
            suspects: Suspects::default(),
            inquiries: Inquiries::default(),
            clock: QuietClock::default(),
        }
    }

    /// Takes over what may change meanwhile. Deadlines that have not come yet are those of the new values.
    pub const fn tune(&mut self, tuning: Tuning) {
        let Tuning { settle, settle_max, resource_errors, eds_repush, prefetch_endpoints } = tuning;
        self.settings.settle = settle;
        self.settings.settle_max = settle_max;
        self.settings.resource_errors = resource_errors;
        self.settings.prefetch_endpoints = prefetch_endpoints;
        self.writer.set_eds_repush(eds_repush);
    }

    /// The cache that it fills.
    pub const fn cache(&self) -> &Arc<Cache> {
        self.writer.cache()
    }

    /// The newest generation of that cache.
    pub const fn generation(&self) -> Generation {
        self.writer.generation()
    }

    /// `node.id` of the relay.
    pub fn node_id(&self) -> &str {
        &self.settings.node.id
    }

    /// How far apart the origin is asked for more.
    pub const fn request_interval(&self) -> Duration {
        self.settings.request_interval
    }

    /// Counts of what happened so far.
    pub const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The origin is not known to be a relay. Behind a proxy another one may have taken its place on the same connection.
    pub fn origin_is_no_relay(&mut self) {
        self.set_habits(OriginHabits { is_relay: false, ..self.habits });
    }

    /// The origin is a relay like this one.
    pub fn origin_is_relay(&mut self) {
        self.set_habits(OriginHabits { is_relay: true, ..self.habits });
    }

    /// The relay that is the origin says whether its own control plane answers it. While that is not so, its silence says nothing:
    /// it may lack resources, and a name that it leaves unanswered may exist. If it is so, that is an answer for what it was asked for: it
    /// has no other if all that it knows of is claimed.
    pub fn origin_says(&mut self, is_answered: bool, now: Instant) {
        self.look_at_clock(now);
        if !is_answered {
            self.cut_off = Some(now);
            return;
        }
        if self.cut_off.take().is_some() {
            self.writer.defer_silence(now);
        }
        let is_asked =
            |topic_set: &TopicSet| StreamId::ALL.iter().any(|stream| topic_set.is_started(*stream));
        let asked = self.topic_sets.iter().filter(|(_, topic_set)| is_asked(topic_set));
        asked.for_each(|(type_url, _)| self.writer.record_answer(type_url, now));
    }

    /// Looks at the clock, before anything is made of an event. Time in which the relay that is the origin is cut off from its own control
    /// plane is no silence of the origin.
    fn look_at_clock(&mut self, now: Instant) {
        if let Some(since) = &mut self.cut_off {
            let pause = now.saturating_duration_since(std::mem::replace(since, now));
            self.overslept(pause, now);
        }
    }

    fn set_habits(&mut self, habits: OriginHabits) {
        if habits != self.habits {
            self.habits = habits;
            self.topic_sets.values_mut().for_each(|topic_set| topic_set.habits = habits);
        }
    }

    /// The stream that is to be closed and opened anew on the same connection, because the origin cannot be relied on to
    /// answer on it what is to be asked (O1), or because it carries what nobody wants any more.
    pub fn renewal_due(&self, now: Instant) -> Option<StreamId> {
        StreamId::ALL.into_iter().find(|stream| self.renewal_at(*stream).is_some_and(|at| at <= now))
    }

    /// When a stream is due to be opened anew. Clients of an origin that has never answered go to other relays; the wildcard
    /// that they asked for is kept then, since its answer is the first sign that the origin is well.
    fn renewal_at(&self, stream: StreamId) -> Option<Instant> {
        let open = self.streams[stream as usize].as_ref()?;
        if self.streams.iter().flatten().any(|open| open.transfer_goes_on) {
            return None;
        }
        let topic_sets = self.topic_sets.values().filter(|_| self.is_heard);
        let sheds = topic_sets.filter_map(|topic_set| topic_set.sheds_at(stream, &self.settings));
        // An answer that comes in parts would begin anew. It settles in bounded time.
        if self.topic_sets.values().any(|topic_set| topic_set.is_receiving(stream)) {
            return None;
        }
        let shed = sheds.min().map(|at| at.max(self.renewable_at(stream, open)));
        open.renews_at.into_iter().chain(shed).min()
    }

    /// When an open stream may be opened anew.
    fn renewable_at(&self, stream: StreamId, open: &Stream) -> Instant {
        open.opened + self.renewals[stream as usize].least()
    }

    /// The streams show a node that is to be another one: they are to be opened anew.
    pub fn node_is_outdated(&mut self) {
        self.renew([true, false]);
    }

    /// Responses of which a part had come were on their way for this long since the last call, to this relay or to another node
    /// group on the connection; `goes_on` tells whether one is now. It is no silence of the origin, as what is awaited may be behind
    /// them, and no time to open a stream anew. At most ten minutes of each stream count, so that an origin that always has more to
    /// send than the link carries keeps nobody waiting for ever.
    pub fn transferred(&mut self, time: Duration, goes_on: bool, now: Instant) {
        let Some(open) = &mut self.streams[StreamId::Primary as usize] else { return };
        let time = time.min(TRANSFERS.saturating_sub(open.transferred));
        open.transferred += time;
        open.transfer_goes_on = goes_on && open.transferred < TRANSFERS;
        if !time.is_zero() {
            self.overslept(time, now);
        }
    }

    /// The process did not run for this long: what is measured as silence of the origin must not count it.
    pub fn overslept(&mut self, pause: Duration, now: Instant) {
        self.clock.excuse(pause);
        self.writer.exclude_pause(pause, now);
    }

    /// A stream was opened. Everything wanted is subscribed to on it, in the clean layout where it is the primary.
    pub fn opened(&mut self, stream: StreamId, now: Instant) {
        self.look_at_clock(now);
        self.renewals[stream as usize].opened(now);
        self.streams[stream as usize] = Some(Stream::new(self.habits.speaks_sotw, now));
        if stream == StreamId::Primary {
            // No origin is known that reads locators in a list of names.
            let plain = self.asks_plainly || self.habits.speaks_sotw;
            self.locators = if plain { Locators::Plain } else { self.settings.locators };
            self.knows_locators = false;
            self.locators_due = None;
            self.drop_kept(|_| true, now);
            self.withhold_suspects(now);
        }
        let plain = self.locators == Locators::Plain;
        self.topic_sets.values_mut().for_each(|topic_set| topic_set.opened(stream, plain));
        let has_names = |topic_set: &TopicSet| topic_set.placed(stream) == Some(View::Named);
        let topic_sets = &self.topic_sets;
        self.writer.restart_silence(|type_url| topic_sets.get(type_url).is_some_and(has_names), now);
        self.topic_sets.keys().cloned().collect::<Vec<_>>().iter().for_each(|type_url| self.mark(type_url));
        self.try_suspects(now);
        self.tick(now);
    }

    /// A stream ended; without the primary there is no secondary. What was learned stays (R-Relay-06).
    pub fn closed(&mut self, stream: StreamId) {
        if stream == StreamId::Primary && self.streams[StreamId::Secondary as usize].is_some() {
            self.closed(StreamId::Secondary);
        }
        if stream == StreamId::Primary {
            self.inquiries.abandon();
        }
        if let Some(open) = self.streams[stream as usize].take() {
            self.note_end(&open.reports);
            let sheds = self
                .topic_sets
                .values()
                .any(|topic_set| topic_set.sheds_at(stream, &self.settings).is_some());
            self.renewals[stream as usize].is_renewal |= open.renews_at.is_some() || sheds;
        }
        let mut has_dropped = false;
        for topic_set in self.topic_sets.values_mut() {
            topic_set.closed(stream);
            has_dropped |= topic_set.drop_idle();
        }
        if has_dropped {
            self.writer.cache().drop_unused();
        }
        if stream == StreamId::Secondary
            && self.streams[StreamId::Primary as usize].is_some()
            && let Some(now) = self.latest
        {
            // Resources that lived there are not kept up to date any more.
            self.drop_kept(TopicSet::has_stray, now);
        }
        self.topic_sets.retain(|_, topic_set| !topic_set.is_idle());
    }

    /// Whether anything has to be subscribed to on the secondary stream.
    pub fn wants_secondary(&self) -> bool {
        self.streams[StreamId::Primary as usize].is_some()
            && self.topic_sets.values().any(|topic_set| topic_set.is_live_on(StreamId::Secondary))
    }

    /// A message came. It is taken in before any timer is judged, however late: what has arrived is no silence. An error
    /// means that the stream is of no use any more.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] if the message is no response: the stream has to end.
    pub fn on_message(
        &mut self,
        stream: StreamId,
        message: Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        self.look_at_clock(now);
        let message = self.decode(stream, message)?;
        self.counters.responses.add(1);
        let type_url = message.type_url();
        let topic_set = self.topic_sets.get_mut(&type_url);
        let Some(topic_set) = topic_set.filter(|topic_set| topic_set.is_started(stream)) else {
            self.counters.unrequested_responses.add(1);
            return Ok(());
        };
        let identifier = message.identifier();
        if self.settings.identity.is_in(identifier) {
            return Err(ProtocolError::Loop(identifier.chars().take(LOOP_CHARS).collect()));
        }
        topic_set.came_through(identifier, &self.settings.identity);
        let nonce = message.nonce().to_owned();
        let sotw = self.streams[stream as usize].as_mut().and_then(|open| open.sotw.as_mut());
        let increments = message.into_increments(sotw, &type_url);
        let read = |increments| Increments::read(increments, &type_url, self.settings.resource_errors);
        // Captures of a client's node may be in it.
        let node = self.settings.node.id.escape_debug();
        let fault = match increments.as_ref().map_err(Clone::clone).and_then(read) {
            Ok(mut reading) => {
                // Versions of a state of the world are hashes of the content.
                reading.mark(if self.habits.speaks_sotw { "" } else { &self.mark });
                self.is_heard = true;
                if let Some(report) = reading.reports.first()
                    && let Some(suppressed) = self.settings.complaints.say(Complaint::Reported, now)
                {
                    report.complain(&type_url, &node, suppressed);
                }
                self.knows_locators |= reading.knows_locators();
                let changes = topic_set.learn(
                    stream,
                    reading,
                    self.writer.cache(),
                    (&self.counters, self.knows_locators),
                    self.clock.moment(now),
                );
                if let Some((name, fault)) = topic_set.take_complaint()
                    && let Some(suppressed) = self.settings.complaints.say(Complaint::Unusable, now)
                {
                    let name = response::clipped(name.as_str());
                    tracing::warn!(%type_url, %node, name, fault, suppressed, "the control plane sent an unusable resource");
                }
                if matches!(&increments, Ok(Increments::Sotw(reading)) if reading.is_partial) {
                    topic_set.doubt(stream);
                }
                self.suspects.answered(&type_url);
                self.writer.record_answer(&type_url, now);
                self.apply(&type_url, changes, now);
                self.tidy(&type_url);
                None
            }
            Err(fault) => {
                self.counters.nacks_sent.add(1);
                // An origin that sends again what was refused must not fill the log.
                if let Some(suppressed) = self.settings.complaints.say(Complaint::Refused, now) {
                    tracing::warn!(%type_url, %node, fault = fault.text(), suppressed, "refused a response of the control plane");
                }
                topic_set.refuse(&fault, increments.iter().flat_map(Increments::names), now);
                topic_set.claim_nothing_next(stream, self.writer.cache());
                Some(fault.text().to_owned())
            }
        };
        self.note_response(stream, &type_url, &nonce, fault.is_none());
        let Some(open) = &mut self.streams[stream as usize] else { return Ok(()) };
        open.is_answered |= fault.is_none();
        if let (Some(sotw), Ok(Increments::Sotw(reading)), None) = (&mut open.sotw, increments, &fault) {
            sotw.accept(&type_url, reading);
        }
        open.owe(Ack { type_url, nonce, fault }, now);
        if open.ack_bytes > ACK_BYTES {
            return Err(ProtocolError::AcksUnread(open.ack_bytes));
        }
        self.tick(now);
        Ok(())
    }

    /// Types of which a response was refused, and nothing usable has come in its place.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.topic_sets.values().filter_map(TopicSet::refusal).collect()
    }

    /// How many responses are not acknowledged yet.
    pub fn acks_waiting(&self) -> usize {
        self.streams.iter().flatten().map(|open| open.acks.len()).sum()
    }

    /// Whether [`next_request`](Self::next_request) may have something to say.
    pub fn has_request(&self, stream: StreamId) -> bool {
        let open = self.streams[stream as usize].as_ref();
        open.is_some_and(|open| {
            !open.acks.is_empty() || !open.due.is_empty() || open.has_encoded() || self.has_report(open)
        })
    }

    /// The next request for a stream that can take one: what is owed for responses first, the newest of a type with what is
    /// due of it, then reports of held changes, then subscriptions in flush order (R-Up-06, R-Up-10).
    pub fn next_request(&mut self, stream: StreamId, now: Instant) -> Option<DeltaDiscoveryRequest> {
        self.look_at_clock(now);
        if self.streams[stream as usize].as_ref()?.acks.is_empty()
            && let Some(report) = self.next_report(stream, now)
        {
            self.counters.requests.add(1);
            return Some(report);
        }
        loop {
            let open = self.streams[stream as usize].as_mut()?;
            // ACKs go first, but not for ever: what clients ask for has a turn after so many.
            let yields = open.acks_in_a_row >= ACKS_IN_A_ROW && !open.due.is_empty();
            let ack = if yields { None } else { open.acks.pop_front() };
            open.acks_in_a_row = if ack.is_some() { open.acks_in_a_row + 1 } else { 0 };
            open.ack_bytes -= ack.as_ref().map_or(0, Ack::weight);
            let is_newest = |ack: &Ack| !open.acks.iter().any(|later| later.type_url == ack.type_url);
            let due = match &ack {
                // istiod drops a request whose nonce is not the newest, and any NACK, with the names in it (R-Delta-02).
                Some(ack) if ack.fault.is_some() || (open.sotw.is_none() && !is_newest(ack)) => None,
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
        let topic_set = self.topic_sets.get_mut(&type_url)?;
        let (mut request, more) =
            topic_set.changes(stream, self.writer.cache(), &self.settings, self.clock.moment(now));
        if let Some(request) = &mut request {
            if !request.resource_locators_subscribe.is_empty() && !self.knows_locators {
                let due = self.clock.at(now) + self.settings.locator_timeout;
                self.locators_due = Some(self.locators_due.map_or(due, |at| at.min(due)));
            }
            request.type_url = type_url.as_str().to_owned();
        }
        self.tidy(&type_url);
        if more && let Some(open) = &mut self.streams[stream as usize] {
            // Others are heard between two pieces, and so are the answers to them.
            open.dirty.insert(type_url);
            open.tick(&self.settings, now);
        }
        request
    }

    /// Does what has become due; cheap when nothing has. To be called when everything that has arrived was taken in.
    pub fn on_deadline(&mut self, now: Instant) {
        self.look_at_clock(now);
        self.latest = Some(now);
        self.let_go(now);
        let due = |topic_set: &TopicSet| {
            topic_set.deadline(&self.settings, &self.clock).is_some_and(|at| at <= now)
        };
        let due: Vec<TypeUrl> = self
            .topic_sets
            .iter()
            .filter(|(_, topic_set)| due(topic_set))
            .map(|(type_url, _)| type_url.clone())
            .collect();
        for type_url in due {
            self.advance(&type_url, now);
        }
        self.look_for_ignored_locators(now);
        self.try_suspects(now);
        self.end_inquiry(now);
        self.writer.roll_out(now);
        self.look_for_hold();
        self.tick(now);
    }

    fn tick(&mut self, now: Instant) {
        self.latest = Some(now);
        self.streams.iter_mut().flatten().for_each(|stream| stream.tick(&self.settings, now));
    }

    /// When to call [`on_deadline`](Self::on_deadline) though nothing happened.
    pub fn next_deadline(&self) -> Option<Instant> {
        let topic_sets =
            self.topic_sets.values().filter_map(|topic_set| topic_set.deadline(&self.settings, &self.clock));
        let ticks = self.streams.iter().flatten().filter_map(Stream::deadline);
        let lingering = self.lingering.first();
        let renewals = StreamId::ALL.into_iter().filter_map(|stream| self.renewal_at(stream));
        let rollout = self.writer.next_rollout();
        let others = self
            .locators_due
            .map(|due| self.clock.when(due))
            .into_iter()
            .chain(self.next_trial())
            .chain(self.next_inquiry());
        topic_sets.chain(ticks).chain(lingering).chain(others).chain(renewals).chain(rollout).min()
    }

    fn advance(&mut self, type_url: &TypeUrl, now: Instant) {
        let Some(topic_set) = self.topic_sets.get_mut(type_url) else { return };
        let changes =
            topic_set.advance(&self.settings, &self.clock, now, self.writer.cache(), &self.counters);
        self.apply(type_url, changes, now);
        self.tidy(type_url);
    }

    /// Announces what a type has to say, removes what is spent.
    fn tidy(&mut self, type_url: &TypeUrl) {
        let renews = self.topic_sets.get_mut(type_url).map(TopicSet::take_renewals).unwrap_or_default();
        self.renew(renews);
        self.mark(type_url);
        if self.topic_sets.get_mut(type_url).is_some_and(TopicSet::drop_idle) {
            self.writer.cache().drop_unused();
        }
        if self.topic_sets.get(type_url).is_some_and(TopicSet::wants_nothing) {
            self.writer.cache().drop_type(type_url);
        }
        if self.topic_sets.get(type_url).is_some_and(TopicSet::is_idle) {
            self.topic_sets.remove(type_url);
        }
    }

    /// Has these streams opened anew, as soon as their pace allows.
    fn renew(&mut self, renews: [bool; 2]) {
        for stream in StreamId::ALL.into_iter().filter(|stream| renews[*stream as usize]) {
            let at = self.streams[stream as usize].as_ref().map(|open| self.renewable_at(stream, open));
            if let Some(open) = &mut self.streams[stream as usize] {
                open.renews_at = open.renews_at.or(at);
            }
        }
    }

    fn mark(&mut self, type_url: &TypeUrl) {
        if self.suspects.withholds(type_url) {
            return;
        }
        let Some(topic_set) = self.topic_sets.get(type_url) else { return };
        for stream in StreamId::ALL {
            if topic_set.is_dirty(stream)
                && let Some(open) = &mut self.streams[stream as usize]
            {
                open.dirty.insert(type_url.clone());
            }
        }
    }

    fn apply(&mut self, type_url: &TypeUrl, changes: Changes, now: Instant) {
        let has_loans = self.topic_sets.get(type_url).is_some_and(TopicSet::has_loans);
        let ops = changes.iter().flat_map(|(_, change)| &change.ops).filter(|_| has_loans);
        let names: BTreeSet<Name> = ops.map(|op| op.name().clone()).collect();
        let control_plane = self.topic_sets.get(type_url).and_then(TopicSet::control_plane).cloned();
        for (parameters, mut change) in changes.into_iter().filter(|(_, change)| !change.is_nothing()) {
            change.control_plane.clone_from(&control_plane);
            let endpoints = self.new_endpoints(type_url, &parameters, &change);
            let gone = self.gone_endpoints(type_url, &parameters, &change);
            // A subscription has a store, and room for it: its clients have joined it.
            self.writer.apply_with_parameters(type_url, &parameters, change, now).ok();
            if !endpoints.is_empty() {
                self.prefetch(endpoints, &parameters, now);
            }
            if !gone.is_empty() {
                self.let_go_soon(gone, &parameters, now);
            }
        }
        if let Some(topic_set) = self.topic_sets.get_mut(type_url).filter(|_| has_loans) {
            topic_set.end_loans(&names, self.writer.cache());
        }
    }
}
