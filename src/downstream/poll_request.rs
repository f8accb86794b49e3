//! Requests of long polls, until they are read.

use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;

use super::connection::Connection;
use super::names::NameShare;
use super::policy::Policy;
use super::poll_error::PollError;
use super::poll_slots::PollSlot;
use super::request_memory::MemoryShare;
use super::scheduler::{BackgroundDrop, LARGE_REQUEST, MANY_NAMES, lower_thread_priority};
use super::state::ServerState;
use crate::identity::{Peer, Source};
use crate::proto;
use crate::resource::Kind;
use crate::rest::{self, BadRequest, OutOfBounds};
use crate::subscription::{Asker, Poll, Rules};
use crate::telemetry::Limit;

/// How long a client waits for its answer, says Envoy.
const EXPECTED_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";
/// What is left of that for the way: this, or a fifth of it where it is short.
const RETURN_MARGIN: Duration = Duration::from_millis(200);
/// How long a body is read, however fast it comes, before others have their turn.
const SLICE: Duration = Duration::from_micros(500);
/// Said to a client whose request has not come whole when its connection closes.
const CLOSING: &str = "the relay closes this connection; reconnect";

/// Who polls, and over what.
#[derive(Debug)]
pub(super) struct PollClient {
    pub(super) peer: Arc<Peer>,
    pub(super) rules: Arc<Rules>,
    pub(super) connection: Arc<Connection>,
}

/// A poll that was read.
pub(super) struct OpenedPoll {
    pub(super) poll: BackgroundDrop<Poll>,
    /// Its place among those of its peer, if it needs one already.
    pub(super) slot: Option<PollSlot>,
    pub(super) names: NameShare,
}

/// How long a request with these headers may be held, `longest` at most (R-REST-06).
fn hold(longest: Duration, headers: &HeaderMap) -> Duration {
    let expected = headers.get(EXPECTED_TIMEOUT).and_then(|value| value.to_str().ok()?.parse().ok());
    match expected.map(Duration::from_millis) {
        // Envoy does not send a timeout that is switched off; zero is no time to answer in.
        None | Some(Duration::ZERO) => longest,
        Some(expected) => longest.min(expected - RETURN_MARGIN.min(expected / 5)),
    }
}

/// Reads a request and takes its place among those who wait for the same.
pub(super) async fn open<B>(
    kind: Kind,
    request: Request<B>,
    client: &PollClient,
    server: &ServerState,
    now: Instant,
) -> Result<OpenedPoll, PollError>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    // The type of the body is not looked at: it can only be one, and curl says another unless told otherwise.
    let (head, body) = request.into_parts();
    let codings = head.headers.get_all(header::CONTENT_ENCODING);
    if codings.into_iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(PollError::refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must not be compressed",
        ));
    }
    let mut slot = None;
    // A connection may be older than what is in force.
    let policy = server.policy.load_full();
    let (body, share) = read(body, client, &policy, server, &mut slot).await?;
    let request = if body.len() > LARGE_REQUEST {
        let (rules, reader) =
            (Arc::clone(&client.rules), Arc::clone(&server.polls.readers).acquire_owned().await);
        // What it takes is counted until it is read, also if nobody waits for that any more.
        let kept = (reader, share);
        let read = on_reader_thread(move || {
            let read = parse(&body, &rules);
            drop(body);
            drop(kept);
            read
        });
        let read = read.await;
        read.ok_or_else(|| PollError::refused(StatusCode::INTERNAL_SERVER_ERROR, "reading it failed"))??
    } else {
        let read = parse(&body, &client.rules);
        drop(share);
        read?
    };
    // Who is on this machine shares a socket as others do an address.
    let peer = match client.peer.source {
        Source::Ip(IpAddr::V4(address)) => address.to_ipv6_mapped(),
        Source::Ip(IpAddr::V6(address)) => address,
        Source::Unix => Ipv6Addr::UNSPECIFIED,
    };
    let polls = &server.polls;
    let hold = hold(policy.polls.hold, &head.headers);
    let (spiffe_id, tenant) = (client.peer.spiffe_id(), client.connection.tenant());
    let from = Asker { key: &peer.octets(), spiffe_id, tenant };
    let is_long = request.resource_names.len() + request.resource_locators.len() > MANY_NAMES;
    let read = || Poll::new(&server.cache, &client.rules, &polls.memory, kind, request, from, hold, now);
    let poll = server.scheduler.run_when_free(is_long, read).await;
    let poll = poll.inspect_err(|refusal| server.note_denial(refusal, &*client.peer, None))?;
    ServerState::note_hidden(poll.hidden());
    let mut names = NameShare::new(&client.connection);
    if let Some(all) = names.set(poll.names(), poll.name_bytes()) {
        // Other requests of the connection take what there is: this one is not too large.
        client
            .rules
            .check_connection(all)
            .map_err(|refusal| PollError::from(refusal).with_status(StatusCode::SERVICE_UNAVAILABLE))?;
    }
    let poll = server.scheduler.drop_guard(poll, |poll| poll.names() > MANY_NAMES);
    Ok(OpenedPoll { poll, slot, names })
}

/// Reads a body into one buffer. Its pieces are copied: each may be a byte that keeps all of a buffer that was read into.
async fn read<B>(
    body: B,
    client: &PollClient,
    policy: &Policy,
    server: &ServerState,
    slot: &mut Option<PollSlot>,
) -> Result<(Bytes, MemoryShare), PollError>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let limit = policy.limits.max_request_bytes;
    let too_large = || {
        let reason = format!("a request of more than {limit} bytes is over the limit");
        PollError::refused(StatusCode::PAYLOAD_TOO_LARGE, reason).over(Limit::RequestBytes)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let timeout = policy.limits.first_request_timeout;
    let mut share = MemoryShare::new(&server.buffered, &client.connection);
    let collect = async {
        let (mut body, mut read, mut slice_start) = (body, BytesMut::new(), Instant::now());
        let mut next = |cx: &mut task::Context<'_>| {
            // A connection that closes does not wait for what may never come.
            if client.connection.is_closing() {
                return task::Poll::Ready(Err(PollError::refused(StatusCode::SERVICE_UNAVAILABLE, CLOSING)));
            }
            let polled = Pin::new(&mut body).poll_frame(cx);
            if polled.is_pending() && slot.is_none() {
                let per_peer = policy.polls.per_peer;
                *slot = Some(
                    server
                        .polls
                        .slots
                        .acquire(client.peer.source, per_peer)
                        .ok_or_else(PollError::too_many)?,
                );
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
            share.set(read.capacity()).map_err(|limit| {
                let reason = "too much of requests has come that are not whole yet";
                PollError::refused(StatusCode::SERVICE_UNAVAILABLE, reason).over(limit)
            })?;
            if slice_start.elapsed() >= SLICE {
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

/// Reads a body that nobody needs: behind an answer that comes before its end the connection could not be used again.
pub(super) async fn discard<B>(mut body: B, policy: &Policy)
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let limit = policy.limits.max_request_bytes;
    let read = async {
        let mut length = 0;
        while length <= limit
            && let Some(Ok(frame)) = body.frame().await
        {
            length += frame.into_data().map_or(0, |data| data.len());
        }
    };
    // Who takes longer is answered all the same.
    _ = tokio::time::timeout(policy.limits.first_request_timeout, read).await;
}

/// Does what takes long on a thread of its own, which gives way to those that serve everybody. `None` where there is none
/// to be had, or the work panicked.
async fn on_reader_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = move || {
        lower_thread_priority();
        _ = tell.send(work());
    };
    std::thread::Builder::new().name("reader".to_owned()).spawn(work).ok()?;
    told.await.ok()
}

fn parse(body: &[u8], rules: &Rules) -> Result<proto::DiscoveryRequest, PollError> {
    rest::read(body, rules.max_names, !rules.given.is_empty()).map_err(|error| match error {
        BadRequest::OutOfBounds(OutOfBounds::TooMany(_)) => {
            PollError::refused(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).over(Limit::Names)
        }
        _ => PollError::refused(StatusCode::BAD_REQUEST, error.to_string()),
    })
}
