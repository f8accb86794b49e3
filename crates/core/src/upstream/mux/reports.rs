//! Reports to the control plane of changes that the rollout guard holds.
//!
//! The relay ACKs each response at once and lets canaries judge it later, so a report is a NACK beside an ACK: a request with
//! `error_detail` and the nonce of the newest response of its type. In state of the world it says the version that was accepted, which
//! is the control plane's own, so that one that compares versions sends nothing again (R-SotW-08).
//!
//! Invariants:
//! - A report follows an accepted response of its type on the stream, and its ACK. It is never the first request of a type, and it
//!   refuses no response that nobody has judged: a NACK of the relay's own keeps its wait (`refusals`).
//! - It holds no change of a subscription: a control plane may pass over names in a NACK.

use super::super::StreamId;
use super::{INVALID_ARGUMENT, Mux};
use crate::proto::{DeltaDiscoveryRequest, Status};
use crate::resource::TypeUrl;

impl Mux {
    /// Notes the newest response of a type on a stream.
    pub(super) fn note_response(
        &mut self,
        stream: StreamId,
        type_url: &TypeUrl,
        nonce: &str,
        is_accepted: bool,
    ) {
        let is_reported = self.writer.cache().rollout().is_some_and(|rollout| rollout.reports(type_url));
        if let Some(open) = self.streams[stream as usize].as_mut().filter(|_| is_reported) {
            open.reports.note(type_url, Some(nonce).filter(|nonce| is_accepted && !nonce.is_empty()));
        }
    }

    /// Takes note of a hold that began or ended.
    pub(super) fn look_for_hold(&mut self) {
        let rollout = self.writer.cache().rollout();
        let holding = rollout.filter(|rollout| rollout.has_report());
        if holding.is_some() != self.held.is_empty() {
            return;
        }
        self.held = holding.map(|rollout| rollout.held_types()).unwrap_or_default();
        self.streams.iter_mut().flatten().for_each(|open| open.reports.begin_anew());
    }

    /// Report that is due on a stream.
    pub(super) fn next_report(&mut self, stream: StreamId) -> Option<DeltaDiscoveryRequest> {
        loop {
            let open = self.streams[stream as usize].as_mut()?;
            let (type_url, response_nonce) = open.reports.take(&self.held)?;
            // An operator may have decided since, or the control plane corrected it.
            let Some(message) = self.writer.cache().rollout().and_then(|rollout| rollout.report(&type_url))
            else {
                continue;
            };
            self.counters.holds_reported.add(1);
            return Some(DeltaDiscoveryRequest {
                type_url: type_url.as_str().to_owned(),
                response_nonce,
                error_detail: Some(Status { code: INVALID_ARGUMENT, message }),
                ..DeltaDiscoveryRequest::default()
            });
        }
    }
}
