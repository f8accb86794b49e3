//! Errors of long polls, as HTTP responses.

use http::{HeaderValue, Response, StatusCode, header};

use super::body::{ResponseBody, text};
use super::grpc_status::{report, retry_after};
use crate::limit::Limit;
use crate::subscription::{Code, SessionError};
use crate::telemetry::PollOutcome;

/// End of a poll without an answer.
pub(super) struct PollError {
    pub(super) outcome: PollOutcome,
    status: StatusCode,
    /// Text for the client; none with 304.
    reason: Option<String>,
    limit: Option<Limit>,
}

impl PollError {
    pub(super) fn new(outcome: PollOutcome, status: StatusCode, reason: impl Into<String>) -> Self {
        Self { outcome, status, reason: Some(reason.into()), limit: None }
    }

    pub(super) fn refused(status: StatusCode, reason: impl Into<String>) -> Self {
        Self::new(PollOutcome::Refused, status, reason)
    }

    pub(super) const fn not_modified() -> Self {
        let (outcome, status) = (PollOutcome::NotModified, StatusCode::NOT_MODIFIED);
        Self { outcome, status, reason: None, limit: None }
    }

    pub(super) fn too_many() -> Self {
        let reason = "too many requests of this address are held already (rest.max_polls_per_peer)";
        Self::new(PollOutcome::TooMany, StatusCode::TOO_MANY_REQUESTS, reason).over(Limit::Polls)
    }

    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    pub(super) const fn over(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn into_response<B>(self) -> Response<ResponseBody<B>> {
        let Some(mut reason) = self.reason else {
            let mut response = Response::new(ResponseBody::Text(None));
            *response.status_mut() = self.status;
            return response;
        };
        if let Some(limit) = self.limit {
            report(limit, "a client of REST-JSON", &reason);
        }
        reason.push('\n');
        let mut response = text(self.status, reason);
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            // Whole seconds (RFC 9110, section 10.2.3).
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after().as_secs()));
        }
        response
    }
}

impl From<SessionError> for PollError {
    fn from(refusal: SessionError) -> Self {
        let status = match refusal.code {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            // Not too large: other requests have used up the groups.
            Code::ResourceExhausted if refusal.limit == Some(Limit::Groups) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { limit: refusal.limit, ..Self::refused(status, refusal.message) }
    }
}
