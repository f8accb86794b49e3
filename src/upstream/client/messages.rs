//! Messages on the streams of a connection, and requests in return.

use bytes::Bytes;
use deltafan_transport::stream::OpenStream;
use tonic::{Code, Status};

use super::super::link::Lease;
use super::super::probe::lend;
use super::super::relay_watch::Standing;
use super::super::wait::now;
use super::super::{Counters, ProtocolError, StreamId, UpstreamState};
use super::Client;
use super::conversation::{Conversation, Ended};
use crate::cache::Protocol;
use crate::telemetry;

impl Client {
    /// Handles a message or the end of a stream. Returns the end of the connection.
    pub(super) fn on_message(
        &mut self,
        stream: StreamId,
        message: Option<Result<Bytes, Status>>,
        lease: &Lease,
        talk: &mut Conversation,
    ) -> Option<Ended> {
        let end = self.receive(stream, message, talk);
        if talk.answered {
            lease.answered();
        }
        let Some(end) = end.and_then(|end| self.fall_back(stream, end, talk)) else {
            self.try_delta_again(talk);
            return None;
        };
        match stream {
            // Both streams need the connection: it may take no more after a GOAWAY.
            StreamId::Secondary if !lease.is_closed() => {
                self.counters().stream_failures.add(1);
                let why = end.reason(self.link.uri());
                talk.secondary.lost(&mut self.mux, &self.link, self.group.as_deref(), &why);
                return None;
            }
            StreamId::Primary if !matches!(end, Ended::Unfit(_)) => self.mux.ended_by_server(now()),
            StreamId::Primary | StreamId::Secondary => {}
        }
        Some(end)
    }

    /// Takes a message or the end of a stream. Returns that end.
    fn receive(
        &mut self,
        stream: StreamId,
        message: Option<Result<Bytes, Status>>,
        talk: &mut Conversation,
    ) -> Option<Ended> {
        let message = match message {
            Some(Ok(message)) => message,
            Some(Err(status)) => return Some(Ended::by(&status, talk.protocol, talk.answered)),
            None => return Some(Ended::orderly(talk.answered)),
        };
        self.learn_if_relay(stream, talk);
        let message = self.unless_old(stream, message, talk)?;
        match self.apply(stream, message) {
            Ok(is_of_use) => {
                // A control plane whose responses are all rejected counts as silent.
                if is_of_use && !std::mem::replace(&mut talk.answered, true) {
                    self.answered(talk.delta);
                }
                talk.secondary.answered |= is_of_use && stream == StreamId::Secondary;
                // A burst of responses is answered with a burst of ACKs.
                self.ask(stream, talk);
                None
            }
            Err(fault) => {
                if matches!(fault, ProtocolError::Loop(_)) {
                    self.failover.looped(now());
                }
                Some(Ended::Failed(fault.to_string()))
            }
        }
    }

    /// Drops responses of a cut-off relay if the cache may be newer. The first one waits for the relay's
    /// report.
    fn unless_old(&self, stream: StreamId, message: Bytes, talk: &mut Conversation) -> Option<Bytes> {
        if !self.failover.passes_over_cut_off() {
            return Some(message);
        }
        match talk.watch.standing(now()) {
            Standing::Answered => return Some(message),
            Standing::Unsaid => talk.kept = Some((stream, message)),
            Standing::CutOff => talk.has_passed_over = true,
        }
        None
    }

    /// Notes whether the server is a relay, which reports on its own control plane.
    fn learn_if_relay(&mut self, stream: StreamId, talk: &mut Conversation) {
        let is_relay = talk.open(stream).is_some_and(OpenStream::is_relay);
        self.mux.origin_is_relay(is_relay);
        if is_relay {
            if talk.watch.begin() && talk.protocol == Protocol::Sotw {
                self.report_relay_by_sotw();
            }
            return;
        }
        self.state.send_if_modified(UpstreamState::origin_has_no_word);
        if talk.watch.end() {
            self.origin_reported(true);
        }
    }

    /// Applies a response. Returns whether it was accepted.
    fn apply(&mut self, stream: StreamId, message: Bytes) -> Result<bool, ProtocolError> {
        let begun = now();
        let of_no_use =
            |counters: &Counters| counters.nacks_sent.get() + counters.unrequested_responses.get();
        let before = of_no_use(self.counters());
        let result = self.mux.on_message(stream, message, begun);
        let done = now();
        telemetry::upstream_applied(done.saturating_duration_since(begun));
        result?;
        let is_of_use = of_no_use(self.counters()) == before;
        if is_of_use {
            let source = self.mux.source();
            self.state.send_if_modified(|state| {
                let is_news = state.source.as_ref() != source;
                if is_news {
                    state.source = source.cloned();
                }
                state.accepted(done) || is_news
            });
        }
        if !is_of_use || !self.state.borrow().refusals.is_empty() {
            self.note_refusals();
        }
        Ok(is_of_use)
    }

    /// Notes types with a rejected response and no usable one since.
    pub(super) fn note_refusals(&self) {
        let refusals = self.mux.refusals();
        self.state.send_if_modified(|state| {
            let is_news = state.refusals != refusals;
            state.refusals = refusals;
            is_news
        });
    }

    /// Handles the answer to an inquiry, or the end of its stream.
    pub(super) fn on_inquiry(&mut self, answer: Option<Result<Bytes, Status>>, talk: &Conversation) {
        match answer {
            Some(Ok(answer)) if !talk.is_inquiry_of_relay() => {
                self.mux.on_inquiry_message(answer, now());
            }
            Some(Ok(_)) => self.mux.inquiry_refused(now()),
            Some(Err(end)) if end.code() == Code::Unimplemented => self.mux.inquiry_refused(now()),
            Some(Err(_)) | None => self.mux.inquiry_lost(),
        }
    }

    /// Handles a report of the relay at the other end; `None` if it does not report.
    pub(super) fn on_word(&mut self, word: Option<bool>, talk: &mut Conversation) {
        match word {
            Some(is_answered) => self.origin_reported(is_answered),
            None => _ = self.state.send_if_modified(UpstreamState::origin_has_no_word),
        }
        if word == Some(true) && talk.has_passed_over {
            self.renew(StreamId::Primary, talk);
        }
    }

    /// Notes the upstream relay's report whether its own control plane answers.
    fn origin_reported(&mut self, is_answered: bool) {
        let is_news = self.state.send_if_modified(|state| state.origin_reported(is_answered, now()));
        self.mux.origin_reported(is_answered, now());
        if is_news {
            self.report_word(is_answered);
        }
    }

    /// Sends requests on a stream while there is room.
    pub(super) fn ask(&mut self, stream: StreamId, talk: &Conversation) {
        let Some(open) = talk.open(stream) else { return };
        while self.mux.has_request(stream)
            && let Ok(room) = open.outgoing.try_reserve()
        {
            if let Some(message) = self.mux.next_message(stream, now()) {
                room.send(lend(self.representative.as_deref(), message, talk.protocol));
            }
        }
    }
}
