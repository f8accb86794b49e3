//! Reports to the control plane of changes that the rollout guard holds.
//!
//! The relay ACKs each response at once, and canaries judge it later. So a report is a NACK beside
//! an ACK: a request with `error_detail` and the nonce of the newest response. In SotW it has the
//! accepted version, so that a control plane that compares versions sends nothing again
//! (R-SotW-08).
//!
//! Invariants:
//! - A type is reported once per hold and stream, so that canaries cannot cause more.
//! - A report follows the ACK of an accepted response, and never the relay's own NACK (`acks`).
//! - It holds no change of a subscription: a control plane may ignore names in a NACK.

use super::super::StreamId;
use super::stream::Stream;
use super::{INVALID_ARGUMENT, Mux};
use crate::proto::{DeltaDiscoveryRequest, Status};

impl Mux {
    pub(super) fn look_for_hold(&mut self) {
        let rollout = self.writer.cache().rollout();
        let holding = rollout.filter(|rollout| rollout.has_report());
        if holding.is_some() != self.held.is_empty() {
            return;
        }
        self.held = holding.map(|rollout| rollout.held_types()).unwrap_or_default();
        self.streams.iter_mut().flatten().for_each(|open| open.reports.sent.clear());
    }

    pub(super) fn has_report(&self, open: &Stream) -> bool {
        open.reports.next(&self.held).is_some()
    }

    /// Takes a report that is due on a stream.
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
