//! Status with which a stream ends.

use std::fmt::Display;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Code;

use crate::limit::Limit;
use crate::{subscription, telemetry};

/// Trailer with the milliseconds until a retry.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Draws a retry delay of 1 s to 5 s, so that refused clients do not all return at once.
pub(super) fn retry_after() -> Duration {
    Duration::from_millis(rand::random_range(1000..=5000))
}

/// gRPC status, and the limit that caused it, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) message: String,
    pub(super) limit: Option<Limit>,
}

impl Status {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), limit: None }
    }

    /// Attributes the status to a limit.
    pub(super) const fn over(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn no_memory() -> Self {
        Self::new(Code::Unavailable, "the relay is short of memory; try another server or again")
            .over(Limit::MemoryRefuse)
    }

    /// Refusal because more clients wait for their first answer than can be answered in time.
    pub(super) fn overloaded() -> Self {
        let message =
            "more clients came at once than the relay can answer in time; try another server or again";
        Self::new(Code::ResourceExhausted, message).over(Limit::FirstAnswer)
    }

    pub(super) fn too_much_buffered(limit: Limit) -> Self {
        Self::new(Code::ResourceExhausted, "too much of requests has come that are not whole yet").over(limit)
    }

    /// Counts the limit if one was reached, and logs it at intervals.
    pub(super) fn report(&self, whom: &str) {
        if let Some(limit) = self.limit {
            report(limit, &whom, &self.message);
        }
    }

    pub(super) fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    pub(super) fn closing() -> Self {
        Self::new(Code::Unavailable, "the relay closes this connection; reconnect")
    }

    /// Code as a metric label.
    pub(super) const fn label(&self) -> &'static str {
        match self.code {
            Code::Ok => "ok",
            Code::Cancelled => "cancelled",
            Code::InvalidArgument => "invalid_argument",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::PermissionDenied => "permission_denied",
            Code::FailedPrecondition => "failed_precondition",
            Code::ResourceExhausted => "resource_exhausted",
            Code::Unimplemented => "unimplemented",
            Code::Unavailable => "unavailable",
            _ => "other",
        }
    }

    /// Converts to trailers, or to the headers of a response without a body.
    pub(super) fn into_trailers(self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(3);
        if matches!(self.limit, Some(Limit::MemoryRefuse | Limit::FirstAnswer)) {
            // Nothing is wrong with the request (gRFC A6).
            let after = u64::try_from(retry_after().as_millis()).unwrap_or(u64::MAX);
            trailers.insert(PUSHBACK, HeaderValue::from(after));
        }
        // tonic percent-encodes the message as gRPC requires.
        if tonic::Status::new(self.code, self.message).add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", HeaderValue::from(self.code as i32));
        }
        trailers
    }
}

impl From<subscription::SessionError> for Status {
    fn from(refusal: subscription::SessionError) -> Self {
        let code = match refusal.code {
            subscription::Code::InvalidArgument => Code::InvalidArgument,
            subscription::Code::PermissionDenied => Code::PermissionDenied,
            subscription::Code::ResourceExhausted => Code::ResourceExhausted,
            subscription::Code::Unavailable => Code::Unavailable,
        };
        Self { limit: refusal.limit, ..Self::new(code, refusal.message) }
    }
}

/// Counts a client that reached a limit, and logs it at intervals.
pub(super) fn report(limit: Limit, whom: &dyn Display, why: &str) {
    if let Some(suppressed) = telemetry::refused_at(limit, 1, Instant::now()) {
        let (raise, whom) = (limit.key(), whom.to_string());
        tracing::warn!(
            whom,
            why,
            raise,
            suppressed,
            "a client reached a limit; raise it if this load is expected"
        );
    }
}
