//! Requests of a stream, in the protocol of the control plane.

use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;

use super::super::StreamId;
use super::super::sotw::SotwStream;
use super::acks::Ack;
use super::{INVALID_ARGUMENT, Mux};
use crate::fairness::ACKS_IN_A_ROW;
use crate::proto::{DeltaDiscoveryRequest, Status};
use crate::resource::TypeUrl;

impl Mux {
    /// Whether anything was requested on an open stream.
    pub fn has_asked(&self, stream: StreamId) -> bool {
        self.streams[stream as usize].as_ref().is_some_and(|open| open.node_sent)
    }

    /// Returns the next request of a stream, encoded in its protocol.
    pub fn next_message(&mut self, stream: StreamId, now: Instant) -> Option<Bytes> {
        loop {
            let open = self.streams[stream as usize].as_mut()?;
            if let Some(encoded) = open.sotw.as_mut().and_then(SotwStream::next) {
                return Some(encoded);
            }
            let request = self.next_request(stream, now)?;
            let open = self.streams[stream as usize].as_mut()?;
            match &mut open.sotw {
                Some(sotw) => sotw.ask(request),
                None => return Some(request.encode_to_vec().into()),
            }
        }
    }

    pub fn acks_waiting(&self) -> usize {
        self.streams.iter().flatten().map(|open| open.acks.len()).sum()
    }

    /// Whether [`next_request`](Self::next_request) may return a request.
    pub fn has_request(&self, stream: StreamId) -> bool {
        let open = self.streams[stream as usize].as_ref();
        open.is_some_and(|open| {
            !open.acks.is_empty() || !open.due.is_empty() || open.has_encoded() || self.has_report(open)
        })
    }

    /// Returns the next request of a stream: first ACKs and NACKs, the newest of a type with its
    /// changes, then reports of held changes, then subscriptions in flush order (R-Up-06, R-Up-10).
    pub fn next_request(&mut self, stream: StreamId, now: Instant) -> Option<DeltaDiscoveryRequest> {
        self.update_clock(now);
        if self.streams[stream as usize].as_ref()?.acks.is_empty()
            && let Some(report) = self.next_report(stream)
        {
            self.counters.requests.add(1);
            return Some(report);
        }
        loop {
            let open = self.streams[stream as usize].as_mut()?;
            // ACKs go first, but subscriptions get a turn after so many.
            let yields = open.acks_in_a_row >= ACKS_IN_A_ROW && !open.due.is_empty();
            let ack = if yields { None } else { open.acks.pop_front() };
            open.acks_in_a_row = if ack.is_some() { open.acks_in_a_row + 1 } else { 0 };
            open.ack_bytes -= ack.as_ref().map_or(0, Ack::weight);
            let is_newest = |ack: &Ack| !open.acks.iter().any(|later| later.type_url == ack.type_url);
            let due = match &ack {
                // istiod drops a request whose nonce is not the newest, and any NACK, with the
                // names in it (R-Delta-02).
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
        let mut request =
            topic_set.changes(stream, self.writer.cache(), &self.settings, self.clock.moment(now));
        if let Some(request) = &mut request {
            request.type_url = type_url.as_str().to_owned();
        }
        self.tidy(&type_url);
        // Other types, and responses, get a turn before the rest of a cut request.
        self.tick(now);
        request
    }
}
