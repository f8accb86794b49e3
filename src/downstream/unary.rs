//! Unary Fetch methods: a state-of-the-world stream of one request and one answer.

use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http_body::Body;
use prost::Message as _;

use super::connection::Connection;
use super::connection::NameShare;
use super::group_entry::{claimed_node_id, enter, raw_node};
use super::grpc_status::Status;
use super::limits::TransportLimits;
use super::message_assembler::Assembler;
use super::server_state::ServerState;
use super::timer::LazyTimer;
use crate::cache::{Frame, Protocol};
use crate::fairness::{LARGE_REQUEST, MANY_NAMES, RETRY};
use crate::identity::Peer;
use crate::limit::Limit;
use crate::proto;
use crate::resource::Kind;
use crate::subscription::{NextStep, Session, SessionConfig};
use crate::upstream::Stay;

/// Reads the request and waits until every requested resource is known.
pub(super) async fn fetch<B>(
    kind: Kind,
    body: B,
    peer: Arc<Peer>,
    rules: Arc<SessionConfig>,
    connection: &Arc<Connection>,
    limits: &TransportLimits,
    server: Arc<ServerState>,
) -> Result<Frame, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut requests = Assembler::new(body, limits.max_request_bytes);
    let read = std::future::poll_fn(|cx| match requests.poll_message(cx) {
        Poll::Pending => match requests.charge(&server.buffered, connection, Instant::now()) {
            Ok(()) => Poll::Pending,
            Err(status) => Poll::Ready(Some(Err(status))),
        },
        read => read,
    });
    let message = tokio::time::timeout(limits.first_request_timeout, read)
        .await
        .map_err(|_| Status::deadline_exceeded("no request came").over(Limit::FirstRequest))?
        .ok_or_else(|| Status::invalid_argument("a request is required"))??;
    rules.check_parts(Protocol::Sotw, &message)?;
    // The request is whole: its memory no longer counts.
    drop(requests);
    let (cold_deadline, is_long) = (rules.cold_deadline, message.len() > LARGE_REQUEST);
    let mut seat = server.groups.own();
    let cache = Arc::clone(seat.group().cache());
    let session = Session::new(cache, rules, Protocol::Sotw, Some(kind.into()), Instant::now())
        .one_shot()
        .proven(peer.certificate.clone())
        .charged_to(connection.tenant().cloned());
    let mut session = server.scheduler.drop_guard(session, |session| session.names() > MANY_NAMES);
    let hear = || -> Result<(), Status> {
        let request = proto::DiscoveryRequest::decode(message.clone()).map_err(|error| {
            Status::invalid_argument(format!("the request is no DiscoveryRequest: {error}"))
        })?;
        let hear = || {
            if let Some(node) = &request.node {
                let raw = || raw_node(Protocol::Sotw, &message);
                seat = enter(&server, session.rules(), &peer, connection, (node, Stay::Visit), raw)?;
                session.enter(Arc::clone(seat.group().cache()));
            }
            session.on_sotw_request(request, Instant::now())
        };
        let heard = hear();
        let node = || claimed_node_id(Protocol::Sotw, &message);
        heard.inspect_err(|refusal| server.note_denial(refusal, &*peer, node))?;
        Ok(())
    };
    server.scheduler.run_when_free(is_long, hear).await?;
    let mut names = NameShare::new(connection);
    if let Some(all) = names.set(session.names(), session.name_bytes()) {
        session.rules().check_connection(all)?;
    }
    ServerState::note_hidden(session.take_hidden());
    let mut timer = LazyTimer::default();
    let answer = std::future::poll_fn(|cx| {
        session.wake_handle().register(cx.waker());
        loop {
            let (now, upstream) = (Instant::now(), seat.group().upstream());
            let is_long = session.evaluation_cost(now) > MANY_NAMES;
            let next = server.scheduler.run(is_long, || session.next(now, upstream));
            match next.unwrap_or(NextStep::Wait(Some(now + RETRY))) {
                NextStep::Send(outgoing) => return Poll::Ready(Ok(outgoing.frame)),
                NextStep::Close(refusal) => return Poll::Ready(Err(refusal.into())),
                NextStep::Wait(deadline) => ready!(timer.poll(deadline, cx)),
            }
        }
    });
    tokio::time::timeout(cold_deadline, answer).await.map_err(|_| {
        Status::unavailable("the control plane has not answered for what was asked for; try again")
    })?
}
