//! Requests of long polls: reading and decoding, and errors as HTTP responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body as _;
use prost::Message as _;
use tonic::Code;

use super::body::{ClientBody, ResponseBody, text};
use super::connection::NameShare;
use super::grpc_status::{Status, report, retry_after};
use super::request_memory::MemoryShare;
use super::scheduler::BackgroundDrop;
use super::server_state::{Services, enter};
use crate::descriptors::BoundsError;
use crate::fairness::{BODY_SLICE, LARGE_REQUEST, MANY_NAMES, lower_thread_priority};
use crate::fleet::{PollRequest, Registration};
use crate::groups::GroupSeat;
use crate::json::{self, JsonRequestError};
use crate::limit::Limit;
use crate::pool::Share;
use crate::proto;
use crate::resource::Kind;
use crate::subscription::{Poll, SessionConfig};
use crate::telemetry::{self, PollOutcome};
use crate::upstream::Stay;

/// Envoy's header for the milliseconds that it waits.
const EXPECTED_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";
/// Time left for the way back: 200 ms, or a fifth of the wait if that is shorter.
const RETURN_MARGIN: Duration = Duration::from_millis(200);

pub(super) struct OpenedPoll {
    pub(super) poll: BackgroundDrop<Poll>,
    /// Slot of its peer, if already needed.
    pub(super) slot: Option<Share>,
    pub(super) names: NameShare,
    pub(super) seat: GroupSeat,
    /// Entry among the clients, for operators.
    pub(super) _registration: Registration,
}

/// Returns the hold time of a request, at most `longest` (R-REST-06).
///
/// Example: Envoy waits 1000 ms; the poll is held for min(`longest`, 800 ms).
fn hold(longest: Duration, headers: &HeaderMap) -> Duration {
    let expected = headers.get(EXPECTED_TIMEOUT).and_then(|value| value.to_str().ok()?.parse().ok());
    match expected.map(Duration::from_millis) {
        // Envoy sends no disabled timeout; zero leaves no time to answer.
        None | Some(Duration::ZERO) => longest,
        Some(expected) => longest.min(expected - RETURN_MARGIN.min(expected / 5)),
    }
}

/// Reads a request and joins the cohort of its subscription.
pub(super) async fn open(
    kind: Kind,
    request: Request<ClientBody>,
    client: &Services,
    now: Instant,
) -> Result<OpenedPoll, PollError> {
    // The content type is ignored: the body can only be JSON, and curl sends another type by default.
    let (head, body) = request.into_parts();
    let codings = head.headers.get_all(header::CONTENT_ENCODING);
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(PollError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must not be compressed",
        ));
    }
    let mut slot = None;
    let (body, share) = read(body, client, &mut slot).await?;
    let whole_node = !client.rules.given.is_empty() || !client.server.groups.is_trivial();
    let request = if body.len() > LARGE_REQUEST {
        let (rules, reader) =
            (Arc::clone(&client.rules), Arc::clone(&client.server.polls.readers).acquire_owned().await);
        // Charged until decoding ends, even if the client is gone by then.
        let kept = (reader, share);
        let read = on_reader_thread(move || {
            let read = parse(&body, &rules, whole_node);
            drop(body);
            drop(kept);
            read
        });
        let read = read.await;
        read.ok_or_else(|| {
            PollError::refused(StatusCode::INTERNAL_SERVER_ERROR, "reading the request failed")
        })??
    } else {
        let read = parse(&body, &client.rules, whole_node);
        drop(share);
        read?
    };
    let polls = &client.server.polls;
    let hold = hold(client.server.policy.load().polls.hold, &head.headers);
    let from = (&*client.peer, client.connection.tenant());
    let is_long = request.resource_names.len() + request.resource_locators.len() > MANY_NAMES;
    let seat = seat(&request, client)?;
    let cache = seat.group().cache();
    let version = clip(&request.version_info);
    let node_id = request.node.as_ref().map_or_else(String::new, |node| node.id.clone());
    let read = || Poll::new(cache, &client.rules, &polls.memory, kind, request, from, hold, now);
    let poll = client.server.scheduler.run_when_free(is_long, read).await;
    let poll = poll.inspect_err(|refusal| client.server.note_denial(refusal, &*client.peer, || node_id))?;
    telemetry::hidden(poll.hidden());
    let mut names = NameShare::new(&client.connection);
    names.set(poll.names(), poll.name_bytes(), &client.rules)?;
    let registration =
        client.server.fleet.open("rest", Arc::clone(&client.peer), client.connection.number(), now);
    let asked = PollRequest { version, audience: poll.audience() };
    registration.polled(Arc::clone(poll.client()), seat.key(), asked);
    let scheduler = (poll.names() > MANY_NAMES).then(|| client.server.scheduler.clone());
    let poll = BackgroundDrop::new(poll, scheduler);
    Ok(OpenedPoll { poll, slot, names, seat, _registration: registration })
}

/// Beginning of a version that a client claims to hold. Versions of a relay are shorter.
fn clip(version: &str) -> Box<str> {
    version[..version.floor_char_boundary(100)].into()
}

/// Takes a place in the node group of a request. No node counts as an empty node.
fn seat(request: &proto::DiscoveryRequest, client: &Services) -> Result<GroupSeat, PollError> {
    let nothing = proto::Node::default();
    let node = request.node.as_ref().unwrap_or(&nothing);
    let raw = || node.encode_to_vec().into();
    let entered =
        enter(&client.server, &client.rules, &client.peer, &client.connection, (node, Stay::Visit), raw);
    Ok(entered.inspect_err(|refusal| client.server.note_denial(refusal, &*client.peer, || &node.id))?)
}

/// Reads a body into one buffer. Pieces are copied: one byte could keep a whole read buffer alive.
pub(super) async fn read(
    body: ClientBody,
    client: &Services,
    slot: &mut Option<Share>,
) -> Result<(Bytes, MemoryShare), PollError> {
    // Read anew: the connection may be older than the policy in force.
    let policy = client.server.policy.load_full();
    let limit = policy.limits.max_request_bytes;
    let too_large = || {
        let reason = format!("a request of more than {limit} bytes is over the limit");
        PollError::refused(StatusCode::PAYLOAD_TOO_LARGE, reason).over(Limit::RequestBytes)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let timeout = policy.limits.first_request_timeout;
    let mut share = MemoryShare::new(&client.server.buffered, &client.connection);
    let collect = async {
        let (mut body, mut read, mut slice_start) = (body, BytesMut::new(), Instant::now());
        let mut next = |cx: &mut task::Context<'_>| {
            // A closing connection does not wait for a body that may never come.
            if client.connection.is_closing() {
                return task::Poll::Ready(Err(PollError::from(Status::closing())));
            }
            let polled = Pin::new(&mut body).poll_frame(cx);
            if polled.is_pending() && slot.is_none() {
                let taken = client.server.polls.park(client.peer.source, &policy);
                *slot = Some(taken.ok_or_else(PollError::too_many)?);
            }
            polled.map(Ok)
        };
        while let Some(frame) = std::future::poll_fn(&mut next).await? {
            let frame = frame.map_err(|error| {
                PollError::refused(StatusCode::BAD_REQUEST, format!("the body is not whole: {error}"))
            })?;
            let data = frame.into_data().unwrap_or_default();
            if read.len() + data.len() > limit {
                return Err(too_large());
            }
            read.extend_from_slice(&data);
            share.set(read.capacity()).map_err(Status::too_much_buffered)?;
            if slice_start.elapsed() >= BODY_SLICE {
                tokio::task::yield_now().await;
                slice_start = Instant::now();
            }
        }
        Ok(read.freeze())
    };
    let late = || PollError::refused(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
    let read = tokio::time::timeout(timeout, collect).await;
    let body = read.map_err(|_| late().over(Limit::FirstRequest))??;
    Ok((body, share))
}

/// Runs long work on a low-priority thread. `None` if no thread starts, or the work panicked.
async fn on_reader_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = move || {
        lower_thread_priority();
        _ = tell.send(work());
    };
    std::thread::Builder::new().name("reader".to_owned()).spawn(work).ok()?;
    told.await.ok()
}

fn parse(body: &[u8], rules: &SessionConfig, whole_node: bool) -> Result<proto::DiscoveryRequest, PollError> {
    json::read(body, rules.max_names, whole_node).map_err(|error| match error {
        JsonRequestError::OutOfBounds(BoundsError::TooMany(_)) => {
            PollError::refused(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).over(Limit::Names)
        }
        _ => PollError::refused(StatusCode::BAD_REQUEST, error.to_string()),
    })
}

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

    pub(super) const fn over(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn into_response(self) -> Response<ResponseBody> {
        let Some(mut reason) = self.reason else {
            let mut response = Response::new(ResponseBody::Text(None));
            *response.status_mut() = self.status;
            return response;
        };
        if let Some(limit) = self.limit {
            report(limit, &"a client of REST-JSON", &reason);
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

impl<R: Into<Status>> From<R> for PollError {
    fn from(refusal: R) -> Self {
        let Status { code, message, limit } = refusal.into();
        // Not too large: other requests have used it up.
        let is_shared = matches!(
            limit,
            Some(Limit::Groups | Limit::NamesPerConnection | Limit::Buffered | Limit::BufferedPerConnection)
        );
        let status = match code {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted if !is_shared => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { limit, ..Self::refused(status, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_rest_06_a_poll_is_answered_before_its_client_gives_up() {
        let longest = Duration::from_secs(60);
        for (expected, held) in [("1000", 800), ("5000", 4_800), ("100", 80), ("0", 60_000), ("soon", 60_000)]
        {
            let headers =
                HeaderMap::from_iter([(EXPECTED_TIMEOUT.parse().unwrap(), expected.parse().unwrap())]);
            assert_eq!(hold(longest, &headers), Duration::from_millis(held), "{expected}");
        }
        assert_eq!(hold(longest, &HeaderMap::new()), longest);
    }
}
