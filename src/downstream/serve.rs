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

use super::admission::Slot;
use super::connection::{Connection, Fate};
use super::connections::Connections;
use super::http1_body::Http1Body;
use super::limits::MAX_HEAD_BYTES;
use super::service::Services;
use super::sniff::Speech;
use super::stall::Stalling;
use super::state::Context;
use super::status::report;
use super::transport::{Boxed, Peek, Transport};
use super::turns::Account;
use crate::http2::Serve;
use crate::identity::{Certificate, Peer, Source};
use crate::telemetry::{self, Limit};

/// Why a connection ends otherwise than by agreement. Not an [`anyhow::Error`]: hostile peers cause many, and with
/// `RUST_BACKTRACE` each of those walks the stack.
pub(super) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What a connection is served with, before it is known who its peer is.
pub(super) struct Entrance<H> {
    pub(super) slot: Slot,
    pub(super) shared: Arc<Context>,
    pub(super) health: HealthServer<H>,
    pub(super) connection: Arc<Connection>,
    pub(super) connections: Arc<Connections>,
    pub(super) source: Source,
}

impl<H: Health> Entrance<H> {
    /// The services for a peer that has proven to be this, for as long as it has its place.
    pub(super) fn services(
        mut self,
        certificate: Option<Box<Certificate>>,
    ) -> Result<(Services<H>, Slot), Fault> {
        let peer = Arc::new(Peer { source: self.source, certificate });
        if let Err(refused) = self.slot.identified(&peer) {
            refused.report(&peer);
            return Err("no place for a further connection of this identity".into());
        }
        self.connections.identify(&self.connection, Arc::clone(&peer));
        // Loaded after it is known who this is: a reload finds the connection, or the connection the reload.
        let policy = self.shared.policy.load_full();
        let services = Services {
            rules: Arc::clone(policy.rules_for(&peer)),
            policy,
            shared: self.shared,
            health: self.health,
            connection: self.connection,
            peer,
        };
        Ok((services, self.slot))
    }
}

pub(super) async fn serve_tcp<H: Health>(socket: TcpStream, entrance: Entrance<H>) -> Result<(), Fault> {
    socket.set_nodelay(true)?;
    let (services, _slot) = entrance.services(None)?;
    match first_words(&socket, &services).await? {
        // In a box, so that connections over HTTP/2 do not keep the room for it.
        Some(Speech::Http1) => Box::pin(serve_http1(socket, services)).await,
        Some(Speech::Http2) => serve_http2(socket, services).await,
        Some(other) => refuse(&socket, other),
        None => Ok(()),
    }
}

pub(super) async fn serve_unix<H: Health>(socket: UnixStream, entrance: Entrance<H>) -> Result<(), Fault> {
    let (services, _slot) = entrance.services(None)?;
    match first_words(&socket, &services).await? {
        Some(Speech::Http1) => serve_http1::<_, Boxed>(Box::new(socket), services).await,
        Some(Speech::Http2) => serve_http2::<_, Boxed>(Box::new(socket), services).await,
        Some(other) => refuse(&socket, other),
        None => Ok(()),
    }
}

pub(super) fn nothing_within(limit: Duration) -> Fault {
    format!("nothing came within {limit:?}").into()
}

/// Waits for what comes first. Until then there is no protocol, and none that would time out. `None` where the
/// connection is to close before.
async fn first_words<H>(socket: &impl Peek, services: &Services<H>) -> Result<Option<Speech>, Fault> {
    let limit = services.policy.limits.first_request_timeout;
    tokio::select! {
        speech = tokio::time::timeout(limit, Speech::on(socket)) => {
            Ok(Some(speech.map_err(|_| nothing_within(limit))??))
        }
        () = services.connection.until_closing() => Ok(None),
    }
}

fn refuse(socket: &impl Peek, speech: Speech) -> Result<(), Fault> {
    // A socket that is closed with something unread in it is reset.
    socket.discard();
    if speech == Speech::Tls {
        telemetry::tls_handshake("to_cleartext");
        return Err("a TLS handshake, and this listener has no `tls`".into());
    }
    Err("neither HTTP/1 nor HTTP/2".into())
}

pub(super) async fn serve_http2<H: Health, IO: Transport>(
    socket: IO,
    services: Services<H>,
) -> Result<(), Fault> {
    let (connection, http2) = (Arc::clone(&services.connection), Arc::clone(&services.policy.http2));
    let account = services.shared.turns.account();
    let mut serve = Serve::new(socket, http2, move |request| services.clone().answer(request));
    let mut held = 0;
    fulfil(&connection, account, &mut serve, Serve::shut_down, |serve| {
        let holds = serve.held();
        if std::mem::replace(&mut held, holds) != holds {
            connection.set_held(holds);
        }
        note_limits(serve.take_refused(), serve.take_idle());
        if connection.takes_look() {
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
) -> Result<(), Fault> {
    let (connection, policy) = (Arc::clone(&services.connection), Arc::clone(&services.policy));
    let account = services.shared.turns.account();
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    // The first request has begun to come; the wait for the next one is a client's pause between two polls.
    builder.timer(TokioTimer::new()).header_read_timeout(policy.polls.idle_timeout);
    let socket = Stalling::new(socket, policy.limits.stall_timeout);
    let answer =
        move |request: Request<hyper::body::Incoming>| services.clone().answer(request.map(Http1Body));
    let service = service_fn(move |request| answer(request).map(Ok::<_, Infallible>));
    let mut serve = builder.serve_connection(TokioIo::new(socket), service);
    fulfil(&connection, account, &mut serve, |serve| Pin::new(serve).graceful_shutdown(), |_| false).await
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

/// Polls what serves a connection, in turns with others, and tells it when it is to close. What is polled is looked at afterwards, and polled
/// again if that says so.
async fn fulfil<S, E>(
    connection: &Connection,
    mut account: Account,
    serve: &mut S,
    close: impl Fn(&mut S),
    mut look: impl FnMut(&mut S) -> bool,
) -> Result<(), Fault>
where
    S: Future<Output = Result<(), E>> + Unpin,
    E: Into<Fault>,
{
    let mut closing = false;
    std::future::poll_fn(|cx| {
        connection.register(cx.waker());
        match connection.fate() {
            Fate::Closes if !closing => {
                closing = true;
                close(serve);
            }
            Fate::Dies => return Poll::Ready(Err("it does not close".into())),
            Fate::Stays | Fate::Closes => {}
        }
        let polled = account.poll(cx, |cx| {
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
