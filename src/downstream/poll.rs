//! REST-JSON long polls over HTTP (R-REST-01).
//!
//! Turns a request into a [`Poll`] and its verdict into a response. A waiting poll is only this future: no
//! task, no queue, no read buffer. When the client hangs up, the transport drops the future with the poll,
//! its cohort place and its upstream interest.

use std::task::{self, ready};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};

use super::body::{ClientBody, ResponseBody, text};
use super::grpc_status::Status;
use super::poll_request::{OpenedPoll, PollError, open, read};
use super::scheduler::{BackgroundDrop, LazyTimer};
use super::server_state::Services;
use crate::fairness::{MANY_NAMES, RETRY};
use crate::json::{JsonError, JsonResponse};
use crate::limit::Limit;
use crate::resource::Kind;
use crate::subscription::{Poll, PollVerdict};
use crate::telemetry::{PollCounter, PollOutcome};

/// Longest delay of an error response; less if the hold is shorter.
const ERROR_DELAY: Duration = Duration::from_secs(1);

/// Answers a request for a REST-JSON path.
pub(super) async fn answer(
    kind: Kind,
    request: Request<ClientBody>,
    client: Services,
) -> Response<ResponseBody> {
    if request.method() != Method::POST {
        // An answer before the end of the body would make the connection unusable.
        _ = Box::pin(read(request.into_body(), &client, &mut None)).await;
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "REST-JSON is asked with POST\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let now = Instant::now();
    let mut counter = PollCounter::open(kind);
    if client.server.admission.overload.refuses_new() {
        counter.ended(PollOutcome::Refused);
        return PollError::from(Status::no_memory()).into_response();
    }
    client.connection.note_served();
    match serve(kind, request, &client, now).await {
        Ok((answer, waited)) => {
            counter.answered(answer.bytes(), waited);
            let body = ResponseBody::json(answer, &client.connection, &client.server.unsent);
            let mut response = Response::new(body);
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(fault) => {
            counter.ended(fault.outcome);
            fault.into_response()
        }
    }
}

/// Answer, and the time since the newest change that it waited for.
type PollAnswer = (JsonResponse, Option<Duration>);

async fn serve(
    kind: Kind,
    request: Request<ClientBody>,
    client: &Services,
    now: Instant,
) -> Result<PollAnswer, PollError> {
    // Boxed, so that a waiting poll does not keep the memory of reading.
    let mut opened = Box::pin(open(kind, request, client, now)).await?;
    let verdict = wait(&mut opened, client).await?;
    opened.slot = None;
    // The names count until the poll is answered.
    let OpenedPoll { poll, names: _names, .. } = opened;
    Box::pin(write(poll, verdict, client)).await
}

/// Waits until it is known how to answer. A slow request costs as much as a waiting poll, and may have a slot
/// already.
async fn wait(opened: &mut OpenedPoll, client: &Services) -> Result<PollVerdict, PollError> {
    let OpenedPoll { poll, slot, seat, .. } = opened;
    let mut timer = LazyTimer::default();
    std::future::poll_fn(|cx| {
        // Registered before the check, so that any later change wakes the poll.
        poll.wake_handle().register(cx.waker());
        loop {
            let (now, upstream) = (Instant::now(), seat.group().origin().upstream());
            // A closing connection waits for its open requests.
            let verdict = || {
                if client.connection.is_closing() {
                    poll.expire(now, upstream)
                } else {
                    poll.next(now, upstream)
                }
            };
            let verdict = client.server.scheduler.run(poll.names() > MANY_NAMES, verdict);
            let verdict = verdict.unwrap_or(PollVerdict::Wait(now + RETRY));
            let PollVerdict::Wait(until) = verdict else { return task::Poll::Ready(Ok(verdict)) };
            if slot.is_none() {
                let taken = client.server.polls.park(client.peer.source, &client.server.policy.load());
                *slot = Some(taken.ok_or_else(PollError::too_many)?);
            }
            ready!(timer.poll(Some(until), cx));
        }
    })
    .await
}

async fn write(
    poll: BackgroundDrop<Poll>,
    verdict: PollVerdict,
    client: &Services,
) -> Result<PollAnswer, PollError> {
    let polls = &client.server.polls;
    let written = match verdict {
        PollVerdict::Answer(version) => {
            let found = || {
                let found = client.server.scheduler.run(poll.names() > MANY_NAMES, || poll.found());
                found.unwrap_or_else(|| poll.found())
            };
            polls.responses.response(poll.type_url(), version, &poll.asked(), found).await
        }
        PollVerdict::Unknown => {
            poll.end(None, &polls.memory, Instant::now());
            let reason = "the control plane has not answered for what was asked for; try again";
            return Err(PollError::new(PollOutcome::Unknown, StatusCode::SERVICE_UNAVAILABLE, reason));
        }
        PollVerdict::NotModified | PollVerdict::Wait(_) => {
            poll.end(None, &polls.memory, Instant::now());
            return Err(PollError::not_modified());
        }
    };
    let now = Instant::now();
    match written {
        Ok(answer) => {
            let waited = poll.changed_at().map(|changed| now.saturating_duration_since(changed));
            poll.end(Some(answer.version), &polls.memory, now);
            Ok((answer, waited))
        }
        Err(error) => {
            // Logged, because only an operator can fix it.
            if let Some(suppressed) = polls.throttle.allow((), now) {
                tracing::warn!(type_url = poll.type_url().as_str(), %error, suppressed, "cannot answer a REST-JSON poll");
            }
            // Delayed, or a fleet would return at once, before anything improved.
            let until = poll.until().min(now + ERROR_DELAY);
            drop(poll);
            tokio::time::sleep_until(until.into()).await;
            let outcome = match error {
                JsonError::UnknownType { .. } => PollOutcome::UnknownType,
                JsonError::Broken { .. } | JsonError::TooLarge { .. } | JsonError::Failed => {
                    PollOutcome::Unwritable
                }
            };
            let fault = PollError::new(outcome, StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
            Err(if let JsonError::TooLarge { .. } = error { fault.over(Limit::Unsent) } else { fault })
        }
    }
}
