//! Serving one connection, once its bytes are those of HTTP.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpStream, UnixStream};
use tonic_health::pb::health_server::{Health, HealthServer};

use super::admission::ConnectionSlot;
use super::connection::{Connection, ConnectionState};
use super::connections::Connections;
use super::http1_body::Http1Body;
use super::limits::MAX_HEAD_BYTES;
use super::scheduler::CpuBudget;
use super::service::Services;
use super::sniff::WireProtocol;
use super::state::ServerState;
use super::status::report;
use super::transport::{BoxedTransport, Peek, Transport};
use super::write_timeout::WriteTimeout;
use crate::http2::Serve;
use crate::identity::{Certificate, Peer, Source};
use crate::telemetry::{self, Limit};

/// Why a connection ends otherwise than by agreement. Not an [`anyhow::Error`]: hostile peers cause many, and with
/// `RUST_BACKTRACE` each of those walks the stack.
pub(super) type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// What a connection is served with, before it is known who its peer is.
pub(super) struct PendingConnection<H> {
    pub(super) slot: ConnectionSlot,
    pub(super) server: Arc<ServerState>,
    pub(super) health: HealthServer<H>,
    pub(super) connection: Arc<Connection>,
    pub(super) connections: Arc<Connections>,
    pub(super) source: Source,
}

impl<H: Health> PendingConnection<H> {
    /// The services for a peer that has proven to be this, for as long as it has its place.
    pub(super) fn services(
        mut self,
        certificate: Option<Box<Certificate>>,
    ) -> Result<(Services<H>, ConnectionSlot), ConnectionError> {
        let peer = Arc::new(Peer { source: self.source, certificate });
        if let Err(refused) = self.slot.identify(&peer) {
            refused.report(&peer);
            return Err("no place for a further connection of this identity".into());
        }
        self.connections.identify(&self.connection, Arc::clone(&peer));
        // Loaded after it is known who this is: a reload finds the connection, or the connection the reload.
        let policy = self.server.policy.load_full();
        let services = Services {
            rules: Arc::clone(policy.rules_for(&peer)),
            policy,
            server: self.server,
            health: self.health,
            connection: self.connection,
            peer,
        };
        Ok((services, self.slot))
    }
}

pub(super) async fn serve_tcp<H: Health>(
    socket: TcpStream,
    pending: PendingConnection<H>,
) -> Result<(), ConnectionError> {
    socket.set_nodelay(true)?;
    let (services, _slot) = pending.services(None)?;
    match sniff_protocol(&socket, &services).await? {
        // In a box, so that connections over HTTP/2 do not keep the room for it.
        Some(WireProtocol::Http1) => Box::pin(serve_http1(socket, services)).await,
        Some(WireProtocol::Http2) => serve_http2(socket, services).await,
        Some(other) => reject(&socket, other),
        None => Ok(()),
    }
}

pub(super) async fn serve_unix<H: Health>(
    socket: UnixStream,
    pending: PendingConnection<H>,
) -> Result<(), ConnectionError> {
    let (services, _slot) = pending.services(None)?;
    match sniff_protocol(&socket, &services).await? {
        Some(WireProtocol::Http1) => serve_http1::<_, BoxedTransport>(Box::new(socket), services).await,
        Some(WireProtocol::Http2) => serve_http2::<_, BoxedTransport>(Box::new(socket), services).await,
        Some(other) => reject(&socket, other),
        None => Ok(()),
    }
}

pub(super) fn first_bytes_timed_out(limit: Duration) -> ConnectionError {
    format!("nothing came within {limit:?}").into()
}

/// Waits for what comes first. Until then there is no protocol, and none that would time out. `None` where the
/// connection is to close before.
async fn sniff_protocol<H>(
    socket: &impl Peek,
    services: &Services<H>,
) -> Result<Option<WireProtocol>, ConnectionError> {
    let limit = services.policy.limits.first_request_timeout;
    tokio::select! {
        protocol = tokio::time::timeout(limit, WireProtocol::sniff(socket)) => {
            Ok(Some(protocol.map_err(|_| first_bytes_timed_out(limit))??))
        }
        () = services.connection.until_closing() => Ok(None),
    }
}

fn reject(socket: &impl Peek, protocol: WireProtocol) -> Result<(), ConnectionError> {
    // A socket that is closed with something unread in it is reset.
    socket.discard();
    if protocol == WireProtocol::Tls {
        telemetry::tls_handshake("to_cleartext");
        return Err("a TLS handshake, and this listener has no `tls`".into());
    }
    Err("neither HTTP/1 nor HTTP/2".into())
}

pub(super) async fn serve_http2<H: Health, IO: Transport>(
    socket: IO,
    services: Services<H>,
) -> Result<(), ConnectionError> {
    let (connection, http2) = (Arc::clone(&services.connection), Arc::clone(&services.policy.http2));
    let budget = services.server.scheduler.budget();
    let mut serve = Serve::new(socket, http2, move |request| services.clone().answer(request));
    let mut held = 0;
    drive(&connection, budget, &mut serve, Serve::shut_down, |serve| {
        let holds = serve.held();
        if std::mem::replace(&mut held, holds) != holds {
            connection.set_held(holds);
        }
        note_limits(serve.take_refused(), serve.take_idle());
        if connection.take_recheck() {
            serve.look();
            return true;
        }
        false
    })
    .await
}

pub(super) async fn serve_http1<H: Health, IO: Transport>(
    socket: IO,
    services: Services<H>,
) -> Result<(), ConnectionError> {
    let (connection, policy) = (Arc::clone(&services.connection), Arc::clone(&services.policy));
    let budget = services.server.scheduler.budget();
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    // The first request has begun to come; the wait for the next one is a client's pause between two polls.
    builder.timer(TokioTimer::new()).header_read_timeout(policy.polls.idle_timeout);
    let socket = WriteTimeout::new(socket, policy.limits.stall_timeout);
    let answer =
        move |request: Request<hyper::body::Incoming>| services.clone().answer(request.map(Http1Body));
    let service = service_fn(move |request| answer(request).map(Ok::<_, Infallible>));
    let mut serve = builder.serve_connection(TokioIo::new(socket), service);
    drive(&connection, budget, &mut serve, |serve| Pin::new(serve).graceful_shutdown(), |_| false).await
}

/// Counts streams that were one too many, and a connection on which there was none for long.
fn note_limits(refused_streams: u64, idle: bool) {
    if refused_streams > 0 {
        report(Limit::Streams, "a connection", "too many streams");
        Limit::Streams.count_all(refused_streams - 1);
    }
    if idle {
        Limit::Idle.count();
    }
}

/// Polls what serves a connection, in scheduler with others, and tells it when it is to close. What is polled is looked at afterwards, and polled
/// again if that says so.
async fn drive<S, E>(
    connection: &Connection,
    mut budget: CpuBudget,
    serve: &mut S,
    close: impl Fn(&mut S),
    mut look: impl FnMut(&mut S) -> bool,
) -> Result<(), ConnectionError>
where
    S: Future<Output = Result<(), E>> + Unpin,
    E: Into<ConnectionError>,
{
    let mut closing = false;
    std::future::poll_fn(|cx| {
        connection.register(cx.waker());
        match connection.state() {
            ConnectionState::Closing if !closing => {
                closing = true;
                close(serve);
            }
            ConnectionState::Aborted => return Poll::Ready(Err("it does not close".into())),
            ConnectionState::Open | ConnectionState::Closing => {}
        }
        let polled = budget.poll(cx, |cx| {
            let mut polled = Pin::new(&mut *serve).poll(cx);
            while look(serve) && polled.is_pending() {
                polled = Pin::new(&mut *serve).poll(cx);
            }
            polled
        });
        polled.map_err(Into::into)
    })
    .await
}
