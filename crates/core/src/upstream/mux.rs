//! Subscriptions of the relay at one control plane, and the requests to send next.
//!
//! Owns the topics, the queues of ACKs, the linger (R-Relay-16) and the batching (R-Up-20). Knows
//! no transport and no clock: it is driven by events and times, and asked for a request whenever a
//! stream can take one.

mod acks;
mod hold_reports;
mod inquiries;
mod interest;
mod prefetch;
mod questions;
mod requests;
mod sources;
mod stream;
mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::inquiry::Inquiries;
use super::linger::Lingering;
use super::quiet_clock::QuietClock;
use super::refusal::{self, Refusal};
use super::response::{self, Complaint, DecodedResponse, ProtocolError};
use super::sotw::{self, Reading};
use super::suspects::Suspects;
use super::topic::OriginTraits;
use super::topic_set::{Changes, TopicSet};
use super::{Counters, Locators, ServerId, Settings, StreamId, Tuning};
use crate::cache::{Cache, Protocol, View, Writer};
use crate::resource::{Kind, TypeUrl};
use acks::Ack;
pub use sources::Restored;
use stream::{RenewalPace, Stream};

/// Most bytes of ACKs that wait for a stream: a control plane beyond it does not read.
const ACK_BYTES: usize = 1 << 20;
/// Transfer time on one stream that does not count as silence: 150 MB at 2 Mbit/s.
const TRANSFERS: Duration = Duration::from_secs(600);
/// Characters of an identifier in an error.
const LOOP_CHARS: usize = 500;
/// google.rpc.Code
const INVALID_ARGUMENT: i32 = 3;

/// Subscriptions of the relay at one control plane.
#[derive(Debug)]
pub struct Mux {
    writer: Writer,
    settings: Settings,
    counters: Arc<Counters>,
    pub(super) topic_sets: BTreeMap<TypeUrl, TopicSet>,
    streams: [Option<Stream>; 2],
    renewals: [RenewalPace; 2],
    /// Time of the newest event.
    latest: Option<Instant>,
    /// If the control plane is a relay that is cut off: the time up to which that is excluded from
    /// silence.
    cut_off: Option<Instant>,
    lingering: Lingering,
    /// Server of the held resources, unless a topic notes another one.
    server: Option<ServerId>,
    /// Server of everything that was restored, if its versions have no mark.
    restored_plain: Option<ServerId>,
    /// Mark on versions of the connected server.
    mark: String,
    has_answered: bool,
    /// Whether it ignores locators, on the present connection.
    asks_plainly: bool,
    traits: OriginTraits,
    /// Types with held changes that are to be reported.
    held: BTreeSet<TypeUrl>,
    suspects: Suspects,
    inquiries: Inquiries,
    clock: QuietClock,
}

impl Mux {
    /// Sets the protocol for streams that are opened from now on. No stream may be open.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        let speaks_sotw = protocol == Protocol::Sotw;
        self.set_traits(OriginTraits { speaks_sotw, ..self.traits });
    }

    pub fn new(mut writer: Writer, settings: Settings) -> Self {
        writer.set_identity(&settings.identity);
        writer.set_eds_repush(settings.tuning.eds_repush);
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
            has_answered: false,
            lingering,
            asks_plainly: false,
            traits: OriginTraits::default(),
            held: BTreeSet::new(),
            suspects: Suspects::default(),
            inquiries: Inquiries::default(),
            clock: QuietClock::default(),
        }
    }

    /// Applies settings that changed. Pending deadlines follow the new values.
    pub const fn tune(&mut self, tuning: Tuning) {
        self.settings.tuning = tuning;
        self.writer.set_eds_repush(tuning.eds_repush);
    }

    pub const fn cache(&self) -> &Arc<Cache> {
        self.writer.cache()
    }

    /// Time between subscription changes.
    pub const fn request_interval(&self) -> Duration {
        self.settings.request_interval
    }

    pub const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Notes whether the control plane is a relay like this one. A proxy may have switched to
    /// another one.
    pub fn origin_is_relay(&mut self, is_relay: bool) {
        self.set_traits(OriginTraits { is_relay, ..self.traits });
    }

    /// Notes whether the control plane of an upstream relay answers it. If not, its silence proves
    /// nothing. If so, that answers all requests: there is no other answer if everything was
    /// claimed.
    pub fn origin_reported(&mut self, is_answered: bool, now: Instant) {
        self.update_clock(now);
        if !is_answered {
            self.cut_off = Some(now);
            return;
        }
        if self.cut_off.take().is_some() {
            self.writer.restart_silence(|_| true, now);
        }
        let is_asked =
            |topic_set: &TopicSet| StreamId::ALL.iter().any(|stream| topic_set.is_started(*stream));
        let asked = self.topic_sets.iter().filter(|(_, topic_set)| is_asked(topic_set));
        asked.for_each(|(type_url, _)| self.writer.record_answer(type_url, now));
    }

    /// Updates the clock, before an event is applied. Time in which the upstream relay is cut off
    /// does not count as silence.
    fn update_clock(&mut self, now: Instant) {
        if let Some(since) = &mut self.cut_off {
            let pause = now.saturating_duration_since(std::mem::replace(since, now));
            self.exclude_pause(pause, now);
        }
    }

    fn set_traits(&mut self, traits: OriginTraits) {
        if traits != self.traits {
            self.traits = traits;
            self.topic_sets.values_mut().for_each(|topic_set| topic_set.traits = traits);
        }
    }

    /// Returns a stream to close and open anew on the same connection: it cannot be relied on for
    /// the next question (O1), or carries unwanted subscriptions.
    pub fn renewal_due(&self, now: Instant) -> Option<StreamId> {
        StreamId::ALL.into_iter().find(|stream| self.renewal_at(*stream).is_some_and(|at| at <= now))
    }

    /// Time at which a stream is due to be opened anew. Before the first response it is not: the
    /// unwanted wildcard may bring the first sign of life.
    fn renewal_at(&self, stream: StreamId) -> Option<Instant> {
        let open = self.streams[stream as usize].as_ref()?;
        if self.streams.iter().flatten().any(|open| open.transfer_goes_on) {
            return None;
        }
        let topic_sets = self.topic_sets.values().filter(|_| self.has_answered);
        let sheds = topic_sets.filter_map(|topic_set| topic_set.sheds_at(stream, &self.settings));
        // An answer in parts would start over. It settles in bounded time.
        if self.topic_sets.values().any(|topic_set| topic_set.is_receiving(stream)) {
            return None;
        }
        let shed = sheds.min().map(|at| at.max(self.renewable_at(stream, open)));
        open.renews_at.into_iter().chain(shed).min()
    }

    /// Earliest time at which an open stream may be opened anew.
    fn renewable_at(&self, stream: StreamId, open: &Stream) -> Instant {
        open.opened + self.renewals[stream as usize].least()
    }

    /// Has the streams opened anew, because they show an outdated node.
    pub fn node_is_outdated(&mut self) {
        self.renew([true, false]);
    }

    /// Notes transfer time since the last call, on the connection, of responses that had begun.
    /// `goes_on`: one is still under way.
    ///
    /// That is no silence, as an awaited answer may be behind it, and no time to renew a stream. At
    /// most ten minutes of each stream count.
    pub fn transferred(&mut self, time: Duration, goes_on: bool, now: Instant) {
        let Some(open) = &mut self.streams[StreamId::Primary as usize] else { return };
        let time = time.min(TRANSFERS.saturating_sub(open.transferred));
        open.transferred += time;
        open.transfer_goes_on = goes_on && open.transferred < TRANSFERS;
        if !time.is_zero() {
            self.exclude_pause(time, now);
        }
    }

    /// Excludes a pause of the process from the silence of the control plane.
    pub fn exclude_pause(&mut self, pause: Duration, now: Instant) {
        self.clock.excuse(pause);
        self.writer.exclude_pause(pause, now);
    }

    /// Notes an opened stream and subscribes to everything wanted on it. The primary starts with a
    /// clean layout.
    pub fn opened(&mut self, stream: StreamId, now: Instant) {
        self.update_clock(now);
        self.renewals[stream as usize].opened(now);
        self.streams[stream as usize] = Some(Stream::new(self.traits.speaks_sotw, now));
        if stream == StreamId::Primary {
            // No control plane is known that reads locators in SotW.
            let is_plain =
                self.asks_plainly || self.traits.speaks_sotw || self.settings.locators == Locators::Plain;
            self.set_traits(OriginTraits { is_plain, knows_locators: false, ..self.traits });
            self.drop_kept(|_| true, now);
        }
        self.topic_sets.values_mut().for_each(|topic_set| topic_set.opened(stream));
        let has_names = |topic_set: &TopicSet| topic_set.placed(stream) == Some(View::Named);
        let topic_sets = &self.topic_sets;
        self.writer.restart_silence(|type_url| topic_sets.get(type_url).is_some_and(has_names), now);
        self.try_suspects(now);
        self.tick(now);
    }

    /// Notes the end of a stream; the secondary ends with the primary. The cached resources stay
    /// (R-Relay-06).
    pub fn closed(&mut self, stream: StreamId) {
        if stream == StreamId::Primary && self.streams[StreamId::Secondary as usize].is_some() {
            self.closed(StreamId::Secondary);
        }
        if stream == StreamId::Primary {
            self.inquiries.abandon();
        }
        self.renewals[stream as usize].is_renewal |= self.renewal_at(stream).is_some();
        self.streams[stream as usize] = None;
        self.topic_sets.values_mut().for_each(|topic_set| topic_set.closed(stream));
        if stream == StreamId::Secondary
            && self.streams[StreamId::Primary as usize].is_some()
            && let Some(now) = self.latest
        {
            // Resources on it are no longer kept up to date.
            self.drop_kept(TopicSet::has_stray, now);
        }
        let types: Vec<TypeUrl> = self.topic_sets.keys().cloned().collect();
        types.iter().for_each(|type_url| self.tidy(type_url));
    }

    /// Whether anything has to be subscribed to on the secondary stream.
    pub fn wants_secondary(&self) -> bool {
        self.streams[StreamId::Primary as usize].is_some()
            && self.topic_sets.values().any(|topic_set| topic_set.is_live_on(StreamId::Secondary))
    }

    /// Applies a message. Call it before [`on_deadline`](Self::on_deadline), as a message that has
    /// arrived is no silence.
    ///
    /// # Errors
    /// [`ProtocolError`] if the message is no usable response: the stream has to end.
    pub fn on_message(
        &mut self,
        stream: StreamId,
        message: Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        self.update_clock(now);
        let sotw = self.streams[stream as usize].as_mut().and_then(|open| open.sotw.as_mut());
        let response = if sotw.is_some() { sotw::decode(message) } else { response::decode(message) }?;
        self.counters.responses.add(1);
        let type_url = TypeUrl::from(response.type_url.as_str());
        let topic_set = self.topic_sets.get_mut(&type_url);
        let Some(topic_set) = topic_set.filter(|topic_set| topic_set.is_started(stream)) else {
            self.counters.unrequested_responses.add(1);
            return Ok(());
        };
        let identifier = response::identifier(&response);
        if self.settings.identity.is_in(identifier) {
            return Err(ProtocolError::Loop(identifier.chars().take(LOOP_CHARS).collect()));
        }
        topic_set.came_through(identifier, &self.settings.identity);
        let nonce = response.nonce.clone();
        let is_delta = sotw.is_none();
        let increments = match sotw {
            Some(sotw) => sotw.read(response, &type_url),
            None => Ok(Reading::from(response)),
        };
        let (mark, tells_errors) = (self.mark.clone(), self.settings.tuning.resource_errors);
        let reading = increments.as_ref().map_err(Clone::clone);
        let fault = match reading.and_then(|reading| reading.decode(&type_url, tells_errors)) {
            Ok(mut reading) => {
                // SotW versions are hashes of the content.
                reading.mark(if is_delta { &mark } else { "" });
                self.has_answered = true;
                let is_partial = increments.as_ref().is_ok_and(|increments| increments.is_partial);
                self.accept(stream, &type_url, reading, is_partial, now);
                None
            }
            Err(fault) => {
                self.counters.nacks_sent.add(1);
                // A control plane that repeats a rejected response must not fill the log.
                if let Some(suppressed) = self.settings.complaints.allow(Complaint::Refused, now) {
                    let node = self.settings.node.id.escape_debug();
                    tracing::warn!(%type_url, %node, fault = fault.text(), suppressed, "refused a response of the control plane");
                }
                // In SotW the next response replaces it, whatever its names.
                let refused = increments.iter().filter(|_| is_delta);
                let names = refused.flat_map(|increments| refusal::names(&increments.response));
                topic_set.refuse(&fault, names, now);
                Some(fault.text().to_owned())
            }
        };
        let Some(open) = &mut self.streams[stream as usize] else { return Ok(()) };
        open.reports.note(&type_url, Some(&*nonce).filter(|nonce| fault.is_none() && !nonce.is_empty()));
        open.is_answered |= fault.is_none();
        if let (Some(sotw), Ok(increments), None) = (&mut open.sotw, increments, &fault) {
            sotw.accept(&type_url, increments);
        }
        open.owe(Ack { type_url, nonce, fault }, now);
        if open.ack_bytes > ACK_BYTES {
            return Err(ProtocolError::AcksUnread(open.ack_bytes));
        }
        self.tick(now);
        Ok(())
    }

    /// Applies a usable response. `is_partial`: in SotW, it may lack existing resources.
    fn accept(
        &mut self,
        stream: StreamId,
        type_url: &TypeUrl,
        reading: DecodedResponse<'_>,
        is_partial: bool,
        now: Instant,
    ) {
        let Some(topic_set) = self.topic_sets.get_mut(type_url) else { return };
        let (complaints, moment) = (&self.settings.complaints, self.clock.moment(now));
        // Captures of a client's node may be in it.
        let node = self.settings.node.id.escape_debug();
        if let Some(report) = reading.reports.first()
            && let Some(suppressed) = complaints.allow(Complaint::Reported, now)
        {
            report.complain(type_url, &node, suppressed);
        }
        topic_set.traits.knows_locators |= reading.knows_locators();
        let traits = topic_set.traits;
        let (changes, unusable) =
            topic_set.apply_response(stream, reading, self.writer.cache(), &self.counters, moment);
        if let Some((name, fault)) = unusable
            && let Some(suppressed) = complaints.allow(Complaint::Unusable, now)
        {
            let name = response::clipped(name.as_str());
            tracing::warn!(%type_url, %node, name, fault, suppressed, "the control plane sent an unusable resource");
        }
        if is_partial {
            topic_set.doubt(stream);
        }
        self.set_traits(traits);
        self.suspects.answered(type_url);
        self.writer.record_answer(type_url, now);
        self.apply(type_url, changes, now);
        self.tidy(type_url);
    }

    /// Types with a rejected response that nothing usable has replaced.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.topic_sets.values().filter_map(TopicSet::refusal).collect()
    }

    /// Runs everything that is due. Call it after all messages that have arrived.
    pub fn on_deadline(&mut self, now: Instant) {
        self.update_clock(now);
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
        self.try_suspects(now);
        self.inquiries.give_up(self.clock.at(now));
        self.writer.roll_out(now);
        self.look_for_hold();
        self.tick(now);
    }

    fn tick(&mut self, now: Instant) {
        self.latest = Some(now);
        for stream in StreamId::ALL {
            let dirty: Vec<TypeUrl> = self.dirty(stream).cloned().collect();
            if let Some(open) = &mut self.streams[stream as usize] {
                open.tick(dirty, &self.settings, now);
            }
        }
    }

    /// Time of the next call of [`on_deadline`](Self::on_deadline).
    pub fn next_deadline(&self) -> Option<Instant> {
        let topic_sets =
            self.topic_sets.values().filter_map(|topic_set| topic_set.deadline(&self.settings, &self.clock));
        let ticks = StreamId::ALL.into_iter().filter_map(|stream| {
            let is_dirty = self.dirty(stream).next().is_some();
            self.streams[stream as usize].as_ref()?.deadline(is_dirty)
        });
        let lingering = self.lingering.first();
        let renewals = StreamId::ALL.into_iter().filter_map(|stream| self.renewal_at(stream));
        let rollout = self.writer.next_rollout();
        let others = self.next_trial().into_iter().chain(self.next_inquiry());
        topic_sets.chain(ticks).chain(lingering).chain(others).chain(renewals).chain(rollout).min()
    }

    fn advance(&mut self, type_url: &TypeUrl, now: Instant) {
        let Some(topic_set) = self.topic_sets.get_mut(type_url) else { return };
        let changes =
            topic_set.advance(&self.settings, &self.clock, now, self.writer.cache(), &self.counters);
        self.apply(type_url, changes, now);
        self.tidy(type_url);
    }

    /// Queues the changes of a type, and removes what is idle.
    fn tidy(&mut self, type_url: &TypeUrl) {
        let renews = self.topic_sets.get_mut(type_url).map(TopicSet::take_renewals).unwrap_or_default();
        self.renew(renews);
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

    /// Has streams opened anew, as soon as their pace allows.
    fn renew(&mut self, renews: [bool; 2]) {
        for stream in StreamId::ALL.into_iter().filter(|stream| renews[*stream as usize]) {
            let at = self.streams[stream as usize].as_ref().map(|open| self.renewable_at(stream, open));
            if let Some(open) = &mut self.streams[stream as usize] {
                open.renews_at = open.renews_at.or(at);
            }
        }
    }

    /// Types with a changed subscription, which waits for the next tick of a stream.
    fn dirty(&self, stream: StreamId) -> impl Iterator<Item = &TypeUrl> {
        let open = self.streams[stream as usize].as_ref();
        let dirty = self.topic_sets.iter().filter(move |(type_url, topic_set)| {
            topic_set.is_dirty(stream)
                && open.is_some_and(|open| !open.due.contains(*type_url))
                && !self.suspects.withholds(type_url)
        });
        dirty.map(|(type_url, _)| type_url)
    }

    fn apply(&mut self, type_url: &TypeUrl, changes: Changes, now: Instant) {
        let control_plane = self.topic_sets.get(type_url).and_then(TopicSet::control_plane).cloned();
        for (parameters, mut change) in changes.into_iter().filter(|(_, change)| !change.is_nothing()) {
            change.control_plane.clone_from(&control_plane);
            if type_url.kind() == Kind::Cluster {
                self.prefetch(&parameters, &change, now);
                self.let_go_soon(&parameters, &change, now);
            }
            // The store exists, as the clients have joined it.
            self.writer.apply_with_parameters(type_url, &parameters, change, now).ok();
        }
    }
}
