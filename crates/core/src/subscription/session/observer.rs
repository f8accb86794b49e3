//! Streams that only observe: `deltafan get` at a relay.
//!
//! Owns when such a stream ends. It gets what the relay holds and requests nothing upstream, so it
//! would wait for ever for resources that no client wants.

use std::time::{Duration, Instant};

use super::super::session_error::{Code, SessionError};
use super::super::stream_type::{Pending, StreamType};
use super::Session;
use super::flush_order::NextStep;
use crate::cache::Role;

/// Time by which resources of other views are filled in (see
/// [`Writer::fill`](crate::cache::Writer::fill)).
const FILLED: Duration = Duration::from_millis(500);

const NOT_HELD: &str = "the relay holds no answer to all of this: no client of it asks for it, or the control plane has not \
    answered yet; subscribe as a client to have the control plane asked (--subscribe)";

impl Session {
    /// Next step of an observer with nothing left to send.
    pub(in crate::subscription) fn observer_step(
        &self,
        pending: &[Pending],
        now: Instant,
    ) -> Option<NextStep> {
        let waits = |pending: &Pending| matches!(pending, Pending::Nothing | Pending::Unknown);
        if self.role != Role::Observer || !pending.iter().all(waits) {
            return None;
        }
        let ends = self.types.iter().map(|state| state.asked).max()? + FILLED;
        if now < ends {
            return Some(NextStep::Wait(Some(ends)));
        }
        let session_error = || SessionError {
            code: Code::Unavailable,
            message: NOT_HELD.to_owned(),
            denied: None,
            limit: None,
        };
        self.types.iter().any(StreamType::lacks).then(|| NextStep::Close(session_error()))
    }
}
