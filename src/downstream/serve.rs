//! Serving of one connection: TLS, then HTTP/1 or HTTP/2.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use http::Request;
use http_body_util::Either;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::AsyncReadExt as _;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use super::connection::{Connection, ConnectionState, Credentials, Usage};
use super::connections::Connections;
use super::grpc_status::report;
use super::handshake::schedule;
use super::policy::MAX_HEAD_BYTES;
use super::scheduler::CpuBudget;
use super::server_state::{ServerState, Services};
use super::transport::{BoxedTransport, Departure, Transport, WireProtocol, WriteTimeout};
use crate::http2::Serve;
use crate::identity::{Certificate, Peer, Source};
use crate::limit::Limit;
use crate::tls::reload::Reloaded;
use crate::tls::server::{ServerTls, Shown};
use crate::{telemetry, tls};

/// Reason for an abnormal end. Not an [`anyhow::Error`]: hostile peers cause many, and `RUST_BACKTRACE` would
/// walk the stack each time.
pub(super) type ConnectionError = Box<dyn std::error::Error + Send + Sync>;

/// Reason for a log line about a connection that a limit keeps out.
pub(super) const REFUSED: &str = "a connection is refused";

/// Connection whose peer is not known yet.
pub(super) struct PendingConnection {
    pub(super) server: Arc<ServerState>,
    pub(super) connection: Arc<Connection>,
    pub(super) connections: Arc<Connections>,
    pub(super) source: Source,
}

impl PendingConnection {
    /// Sets the peer. Returns its services.
    pub(super) fn services(self, peer: Arc<Peer>) -> Services {
        self.connections.identify(&self.connection, Arc::clone(&peer));
        // Loaded after the peer is set: either the reload sees the connection, or the connection sees the new
        // policy.
        let policy = self.server.policy.load_full();
        Services {
            rules: Arc::clone(policy.rules_for(&peer)),
            policy,
            server: self.server,
            connection: self.connection,
            peer,
        }
    }
}

/// Serves the protocol that the first bytes show.
///
/// Neither this nor what it calls is an `async fn`: its future would keep room for the arguments beside what it makes
/// of them.
#[allow(clippy::manual_async_fn)]
pub(super) fn serve_http(
    mut socket: impl Transport,
    services: Services,
) -> impl Future<Output = Result<(), ConnectionError>> + Send {
    async move {
        // No timeout of a protocol applies yet.
        let limit = services.policy.limits.first_request_timeout;
        let sniffed = tokio::select! {
            sniffed = tokio::time::timeout(limit, WireProtocol::sniff(&mut socket)) => sniffed,
            () = services.connection.until_closing() => return Ok(()),
        };
        let late = |_| format!("no bytes came within {limit:?} (downstream.first_request_timeout)");
        let (protocol, start) = sniffed.map_err(late)??;
        match protocol {
            // Boxed, so that HTTP/2 connections do not keep room for it.
            WireProtocol::Http1 => Box::pin(serve_http1(socket, start, services)).await,
            WireProtocol::Http2 => serve_http2(socket, start, services).await,
            WireProtocol::Tls | WireProtocol::Unknown => {
                // Discarded, because closing a socket with unread bytes resets it.
                _ = socket.read(&mut [0; 1024]).now_or_never();
                if protocol == WireProtocol::Tls {
                    services.server.note_tls_to_cleartext(&*services.peer);
                    return Err("the client began a TLS handshake, and this listener has no `tls`".into());
                }
                Err("the client speaks neither HTTP/1 nor HTTP/2".into())
            }
        }
    }
}

fn serve_http2<IO: Transport>(
    socket: IO,
    start: Vec<u8>,
    services: Services,
) -> impl Future<Output = Result<(), ConnectionError>> + Send {
    let (connection, http2) = (Arc::clone(&services.connection), Arc::clone(&services.policy.http2));
    let budget = services.server.scheduler.budget();
    let answer = move |request: Request<_>| services.clone().answer(request.map(Either::Left));
    let serve = Serve::new(socket, http2, answer).behind(&start);
    let mut held = 0;
    drive(connection, budget, serve, Serve::shut_down, move |connection, serve| {
        let holds = serve.held();
        if std::mem::replace(&mut held, holds) != holds {
            connection.set_used(Usage::Http2, holds);
        }
        note_limits(serve.take_refused(), serve.take_idle());
        if connection.take_recheck() {
            serve.look();
            return true;
        }
        false
    })
}

fn serve_http1<IO: Transport>(
    socket: IO,
    start: Vec<u8>,
    services: Services,
) -> impl Future<Output = Result<(), ConnectionError>> + Send {
    let (connection, policy) = (Arc::clone(&services.connection), Arc::clone(&services.policy));
    let budget = services.server.scheduler.budget();
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    // The first request has begun to arrive. This timeout is for the pause between two polls.
    builder.timer(TokioTimer::new()).header_read_timeout(policy.polls.idle_timeout);
    let socket = WriteTimeout::new(start, socket, policy.limits.stall_timeout);
    let answer = move |request: Request<_>| services.clone().answer(request.map(Either::Right));
    let service = service_fn(move |request| answer(request).map(Ok::<_, Infallible>));
    let serve = builder.serve_connection(TokioIo::new(socket), service);
    drive(connection, budget, serve, |serve| Pin::new(serve).graceful_shutdown(), |_, _| false)
}

/// Counts refused streams, and idle connections.
fn note_limits(refused_streams: u64, idle: bool) {
    if refused_streams > 0 {
        report(Limit::Streams, &"a connection", "too many streams");
        telemetry::refused(Limit::Streams, refused_streams - 1);
    }
    if idle {
        telemetry::refused(Limit::Idle, 1);
    }
}

/// Polls the future that serves a connection within its CPU budget, and closes it with the connection. After
/// each poll `look` inspects it and returns whether to poll again.
///
/// Its streams are dropped in turn with other connections: those of many that end at once take long.
fn drive<S, E>(
    connection: Arc<Connection>,
    mut budget: CpuBudget,
    mut serve: S,
    close: impl Fn(&mut S),
    mut look: impl FnMut(&Connection, &mut S) -> bool,
) -> impl Future<Output = Result<(), ConnectionError>>
where
    S: Future<Output = Result<(), E>> + Unpin,
    E: Into<ConnectionError>,
{
    let (mut closing, mut ended) = (false, None);
    std::future::poll_fn(move |cx| {
        connection.register(cx.waker());
        match connection.state() {
            ConnectionState::Closing if !closing && ended.is_none() => {
                closing = true;
                close(&mut serve);
            }
            ConnectionState::Aborted => {
                return Poll::Ready(Err("the connection was aborted because it did not close".into()));
            }
            ConnectionState::Open | ConnectionState::Closing => {}
        }
        if ended.is_none() {
            // A closing connection asks for no turn: its streams end. One that already waits goes on.
            let place = connection.first_answer().place().filter(|_| !closing);
            let polled = budget.poll(cx, place, |cx| {
                if place.is_some() {
                    connection.begin_first_answer();
                }
                let mut polled = Pin::new(&mut serve).poll(cx);
                while look(&connection, &mut serve) && polled.is_pending() {
                    polled = Pin::new(&mut serve).poll(cx);
                }
                connection.first_answer().end_turn();
                polled
            });
            ended = Some(ready!(polled).map_err(Into::into));
        }
        ready!(budget.poll(cx, Some(Instant::now()), |_| Poll::Ready(())));
        Poll::Ready(ended.take().unwrap_or(Ok(())))
    })
}

#[derive(Clone, Debug)]
pub(super) struct TlsListener {
    settings: Reloaded<ServerTls>,
    handshake_timeout: Duration,
    /// By result, so that one fault does not hide another.
    throttle: Arc<telemetry::LogThrottle<&'static str>>,
}

impl TlsListener {
    pub(super) fn new(settings: Reloaded<ServerTls>, handshake_timeout: Duration) -> Self {
        Self { settings, handshake_timeout, throttle: Arc::default() }
    }

    pub(super) async fn serve(
        self,
        socket: impl Transport + Departure,
        pending: PendingConnection,
    ) -> Result<(), ConnectionError> {
        let settings = self.settings.load();
        // Boxed, so that a connection does not keep the memory of its handshake.
        let handshake = self.handshake(socket, settings.config(), &pending);
        let Some(socket) = Box::pin(handshake).await? else { return Ok(()) };
        let (_, session) = socket.get_ref();
        let shown = session.peer_certificates().and_then(Shown::now);
        let certificate = match shown.as_ref().map(|shown| Certificate::from_der(shown.own())) {
            None => None,
            Some(Some(certificate)) => Some(Arc::new(certificate)),
            Some(None) => {
                telemetry::tls_handshake("bad_certificate");
                return Err("the client certificate was verified, but its subject cannot be parsed".into());
            }
        };
        if let Some(shown) = shown {
            let credentials = Credentials { shown, judge: self.settings.clone() };
            let credentials = pending.connections.admit(&pending.connection, credentials);
            // Loaded after the credentials are set: either the reload sees the connection, or the connection
            // sees the new settings.
            let now = self.settings.load();
            if !Arc::ptr_eq(&now, &settings) && !now.would_accept(&credentials.shown) {
                telemetry::tls_handshake("revoked");
                return Err(
                    "the client certificate was revoked, or its CA removed, since the handshake began".into(),
                );
            }
        }
        telemetry::tls_handshake("ok");
        let peer = Arc::new(Peer { source: pending.source, certificate });
        let slot = pending.server.admission.by_identity(&peer);
        let _slot = slot.map_err(|limit| {
            report(limit, &peer, REFUSED);
            "too many connections of this identity"
        })?;
        let services = pending.services(peer);
        let socket: BoxedTransport = socket;
        serve_http(socket, services).await
    }

    /// Closes connections with certificates no longer accepted, whenever the client CA or the revocation list
    /// is replaced; never returns.
    pub(super) async fn close_revoked(self, server: Arc<ServerState>, connections: Arc<Connections>) {
        let mut judged = self.settings.load();
        loop {
            let now = self.settings.replaced(&judged).await;
            let is_alike = now.judges_like(&judged);
            judged = now;
            if is_alike {
                continue;
            }
            let window = server.policy.load().drain();
            let all = Arc::clone(&connections);
            let is_refused = |Credentials { shown, judge }: &Credentials| !judge.load().would_accept(shown);
            // On a blocking thread: verifying thousands of certificates takes seconds.
            let close = move || all.close_where(&|one| one.credentials().is_some_and(is_refused), window);
            let Ok((count, closing)) = tokio::task::spawn_blocking(close).await else { continue };
            if count > 0 {
                tracing::info!(
                    connections = count,
                    ?window,
                    "closing connections whose client certificates are not accepted any more"
                );
                // Spawned, so that the next reload does not wait for the pacing.
                tokio::spawn(closing);
            }
        }
    }

    /// Performs the handshake; `None` if the connection must close first.
    async fn handshake<IO: Transport + Departure>(
        &self,
        socket: IO,
        config: Arc<ServerConfig>,
        pending: &PendingConnection,
    ) -> Result<Option<Box<TlsStream<IO>>>, ConnectionError> {
        let (limit, source) = (self.handshake_timeout, pending.source);
        let has_left = |accept: &Accept<IO>| accept.get_ref().is_some_and(Departure::has_left);
        let permits = pending.server.scheduler.request_permit();
        let handshake = schedule(permits, limit, TlsAcceptor::from(config).accept(socket), has_left);
        let done = tokio::select! {
            done = handshake => done,
            () = pending.connection.until_closing() => {
                telemetry::tls_handshake("draining");
                return Ok(None);
            }
        };
        let (result, error) = match done {
            Ok(Ok(socket)) => return Ok(Some(Box::new(socket))),
            Ok(Err(error)) => (tls::server::failure(&error), ConnectionError::from(error)),
            Err((result, why)) => (result, why.into()),
        };
        telemetry::tls_handshake(result);
        if let Some(suppressed) = self.throttle.allow(result, Instant::now()) {
            tracing::info!(%source, result, %error, suppressed, "TLS handshake of a client failed");
        }
        Err(format!("TLS handshake: {error}").into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::downstream::connections::ConnectionGuard;
    use crate::downstream::scheduler::FairScheduler;

    /// Connection that ends at a time, and counts its drop.
    struct Ended(Pin<Box<tokio::time::Sleep>>, Arc<AtomicUsize>);

    impl Future for Ended {
        type Output = Result<(), ConnectionError>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
            self.0.as_mut().poll(cx).map(Ok)
        }
    }

    impl Drop for Ended {
        fn drop(&mut self) {
            self.1.fetch_add(1, Relaxed);
        }
    }

    /// Connections that end then, and the number of those dropped.
    fn ending(
        count: usize,
        at: tokio::time::Instant,
        scheduler: &FairScheduler,
    ) -> (Vec<ConnectionGuard>, Arc<AtomicUsize>) {
        let (connections, dropped) = (Arc::<Connections>::default(), Arc::<AtomicUsize>::default());
        let open = std::iter::repeat_with(|| {
            let one = connections.open(Duration::from_secs(60), Instant::now());
            let serve = Ended(Box::pin(tokio::time::sleep_until(at)), Arc::clone(&dropped));
            tokio::spawn(drive(Arc::clone(&one.connection), scheduler.budget(), serve, |_| {}, |_, _| false));
            one
        });
        (open.take(count).collect(), dropped)
    }

    async fn turns() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    /// By then none is new, or needs a permit to be polled.
    fn later() -> tokio::time::Instant {
        tokio::time::Instant::now() + Duration::from_millis(300)
    }

    #[tokio::test]
    async fn others_have_their_turn_between_connections_that_end_at_once() {
        let (open, dropped) = ending(50, later(), &FairScheduler::new(1));
        while dropped.load(Relaxed) < open.len() {
            let before = dropped.load(Relaxed);
            tokio::task::yield_now().await;
            assert!(dropped.load(Relaxed) <= before + 1, "two in one turn");
        }
    }

    #[tokio::test]
    async fn an_aborted_connection_waits_for_no_turn_and_takes_none() {
        let scheduler = FairScheduler::new(1);
        let permit = || async {
            let (now, mut request) = (Instant::now(), scheduler.request_permit());
            std::future::poll_fn(|cx| request.poll_since(now, cx)).await
        };
        for is_new in [true, false] {
            let early = if is_new { Some(permit().await) } else { None };
            let end = later();
            let (open, dropped) = ending(2, end, &scheduler);
            turns().await;
            let held = if let Some(early) = early { early } else { permit().await };
            tokio::time::sleep_until(end).await;
            turns().await;
            assert_eq!(dropped.load(Relaxed), 0, "both wait");
            open[0].connection.abort();
            turns().await;
            assert_eq!(dropped.load(Relaxed), 1, "the other one waits");
            drop(held);
            turns().await;
            assert_eq!(dropped.load(Relaxed), 2);
        }
    }
}
