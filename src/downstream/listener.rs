//! Accepting connections and serving them.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use http::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::admission::{Refused, Slot};
use super::connection::{Connection, ConnectionGuard, Connections, Credentials, Fate};
use super::handshake::{Handshakes, TimedOut};
use super::http1_body::Http1Body;
use super::paced::Paced;
use super::service::{Context, Services};
use super::stall::Stalling;
use super::status::report;
use super::transport::{Boxed, Peek, Transport};
use super::turns::Account;
use super::unix::UnixSocket;
use crate::http2::{self, Serve};
use crate::identity::{Certificate, Peer, Source};
use crate::telemetry::{self, Limit};
use crate::tls;
use crate::tls::reload::Reloaded;
use crate::tls::server::{ServerTls, Shown};

/// The queue of connections that the kernel completed and we did not accept yet. A fleet that comes back comes all
/// at once, and tokio's own default is short for that.
const BACKLOG: i32 = 4096;
/// Bytes that a socket takes beyond those on their way to the peer. By default the kernel keeps up to `tcp_wmem` (4 MiB) for
/// a peer that reads nothing, which no watermark of this process sees, and for a slow one as much that is out of date. It
/// reports room when half of this is free, which is [`http2::MIN_BYTES`].
const UNSENT: usize = 2 * http2::MIN_BYTES;
/// The head of a request, over either version of HTTP: many times those of Envoy and of gRPC.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Connections accepted before those that came in have a turn: more than can be served are left to the kernel.
const ACCEPTED_IN_A_ROW: usize = 16;

/// How long it waits for that: others are dear, and who connects need not be.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why a connection ends otherwise than by agreement. Not an [`anyhow::Error`]: hostile peers cause many, and with
/// `RUST_BACKTRACE` each of those walks the stack.
type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What a client may do to the transport.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The largest request, in bytes.
    pub max_request_bytes: usize,
    /// A connection or stream that has sent nothing by then is closed.
    pub first_request_timeout: Duration,
    /// Streams of one connection.
    pub max_streams_per_connection: u32,
    /// A connection whose transport takes nothing, or next to nothing, for so long is closed.
    pub stall_timeout: Duration,
    /// A connection over HTTP/2 without a stream for so long is asked to go.
    pub idle_timeout: Duration,
    /// A connection closes after this, less up to a fifth.
    pub max_connection_age: Duration,
    /// A connection that is silent for so long is pinged.
    pub keepalive_interval: Duration,
    /// A ping must be answered by then.
    pub keepalive_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_request_bytes: 4 << 20,
            first_request_timeout: Duration::from_secs(10),
            max_streams_per_connection: 1000,
            stall_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(5 * 60),
            max_connection_age: Duration::from_secs(30 * 60),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    pub(super) fn http2(&self) -> http2::Limits {
        http2::Limits {
            max_streams: self.max_streams_per_connection,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            max_head_bytes: MAX_HEAD_BYTES,
            head_timeout: self.first_request_timeout,
            idle_timeout: self.idle_timeout,
            keepalive_interval: self.keepalive_interval,
            keepalive_timeout: self.keepalive_timeout,
            stall_timeout: self.stall_timeout,
        }
    }
}

/// A place where clients connect.
#[derive(Debug)]
pub struct Listener {
    socket: Bound,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixSocket),
}

/// A connection as it was accepted.
enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// How clients are met that have to begin with a handshake.
#[derive(Clone, Debug)]
struct Tls {
    side: Reloaded<ServerTls>,
    handshakes: Handshakes,
    complaints: Arc<Mutex<telemetry::LogThrottle>>,
}

impl Listener {
    /// Binds an address.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM.nonblocking().cloexec(),
            Some(socket2::Protocol::TCP),
        )?;
        // A relay that restarts binds its port again while old connections still linger in TIME_WAIT.
        socket.set_reuse_address(true)?;
        // Connections have this from their listener.
        socket.set_tcp_notsent_lowat(UNSENT as u32)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        let address = socket.local_addr()?;
        Ok(Self { socket: Bound::Tcp(socket, address), tls: None })
    }

    /// Binds the path of a Unix socket. The file is removed when the listener ends.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        UnixSocket::bind(path, BACKLOG).map(|socket| Self { socket: Bound::Unix(socket), tls: None })
    }

    /// The same listener, with TLS. Each connection begins with the configuration that is in force then.
    pub fn with_tls(self, side: Reloaded<ServerTls>, handshakes: Handshakes) -> Self {
        Self { tls: Some(Tls { side, handshakes, complaints: Arc::default() }), ..self }
    }

    /// The address, with the port that was chosen where none was given; `None` for a Unix socket.
    pub const fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Bound::Tcp(_, address) => Some(*address),
            Bound::Unix(_) => None,
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Bound::Tcp(socket, _) => socket.accept().await.map(|(socket, peer)| Accepted::Tcp(socket, peer)),
            Bound::Unix(socket) => socket.accept().await.map(Accepted::Unix),
        }
    }

    /// Serves until `stop`, then accepts no more; connections that are open live on in `connections`.
    pub async fn serve<H: Health>(
        self,
        shared: Arc<Context>,
        health: HealthServer<H>,
        connections: Arc<Connections>,
        stop: CancellationToken,
    ) {
        if let Some(tls) = &self.tls {
            let follow = tls.clone().follow(Arc::clone(&shared), Arc::clone(&connections));
            tokio::spawn(stop.clone().run_until_cancelled_owned(follow));
        }
        let mut complaints = telemetry::LogThrottle::default();
        for count in 1_usize.. {
            if count % ACCEPTED_IN_A_ROW == 0 {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = tokio::time::timeout(LONGEST_PAUSE, shared.turns.pass()) => {}
                }
            }
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.accept() => accepted,
            };
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    telemetry::accept_failed();
                    if let Some(unsaid) = complaints.say(Instant::now()) {
                        tracing::warn!(%error, unsaid, "could not accept a connection; is the descriptor limit reached?");
                    }
                    // Out of descriptors is no reason to spin.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let source = match &accepted {
                Accepted::Tcp(_, peer) => Source::of(peer.ip()),
                Accepted::Unix(_) => Source::Unix,
            };
            let slot = match shared.admission.by_source(source) {
                Ok(slot) => slot,
                Err(refused) => {
                    accepted.turn_away(refused);
                    continue;
                }
            };
            let guard = connections.open(shared.policy.load().limits.max_connection_age, Instant::now());
            let entrance = Entrance {
                slot,
                shared: Arc::clone(&shared),
                health: health.clone(),
                connection: Arc::clone(&guard.connection),
                connections: Arc::clone(&connections),
                source,
            };
            // Futures of their own, so that none is as large as the largest.
            match (accepted, &self.tls) {
                (Accepted::Tcp(socket, _), None) => spawn(guard, source, serve_tcp(socket, entrance)),
                (Accepted::Unix(socket), None) => spawn(guard, source, serve_unix(socket, entrance)),
                (Accepted::Tcp(socket, _), Some(tls)) => {
                    _ = socket.set_nodelay(true);
                    spawn(guard, source, tls.clone().serve(socket, entrance));
                }
                (Accepted::Unix(socket), Some(tls)) => {
                    spawn(guard, source, tls.clone().serve(socket, entrance));
                }
            }
        }
    }
}

impl Accepted {
    fn turn_away(&self, refused: Refused) {
        match self {
            Self::Tcp(socket, peer) => refused.turn_away(socket, peer),
            Self::Unix(socket) => refused.turn_away(socket, &Source::Unix),
        }
    }
}

fn spawn(
    guard: ConnectionGuard,
    source: Source,
    serving: impl Future<Output = Result<(), Fault>> + Send + 'static,
) {
    tokio::spawn(async move {
        let _open = telemetry::ConnectionGauge::open();
        if let Err(error) = serving.await {
            tracing::debug!(%source, %error, fate = ?guard.connection.fate(), "connection ends");
        }
        drop(guard);
    });
}

/// What a connection is served with, before it is known who its peer is.
struct Entrance<H> {
    slot: Slot,
    shared: Arc<Context>,
    health: HealthServer<H>,
    connection: Arc<Connection>,
    connections: Arc<Connections>,
    source: Source,
}

impl<H: Health> Entrance<H> {
    /// The services for a peer that has proven to be this, for as long as it has its place.
    fn services(mut self, certificate: Option<Box<Certificate>>) -> Result<(Services<H>, Slot), Fault> {
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

async fn serve_tcp<H: Health>(socket: TcpStream, entrance: Entrance<H>) -> Result<(), Fault> {
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

async fn serve_unix<H: Health>(socket: UnixStream, entrance: Entrance<H>) -> Result<(), Fault> {
    let (services, _slot) = entrance.services(None)?;
    match first_words(&socket, &services).await? {
        Some(Speech::Http1) => serve_http1::<_, Boxed>(Box::new(socket), services).await,
        Some(Speech::Http2) => serve_http2::<_, Boxed>(Box::new(socket), services).await,
        Some(other) => refuse(&socket, other),
        None => Ok(()),
    }
}

impl Tls {
    async fn serve<H: Health>(
        self,
        socket: impl Transport + 'static,
        entrance: Entrance<H>,
    ) -> Result<(), Fault> {
        let source = entrance.source;
        // In a box, so that a connection does not keep the room that its handshake took.
        let side = self.side.load();
        let handshake = self.shake_hands(socket, side.config(), &entrance.connection, source);
        let Some(mut socket) = Box::pin(handshake).await? else { return Ok(()) };
        let (_, session) = socket.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let shown = session.peer_certificates().and_then(Shown::now);
        let certificate = match shown.as_ref().map(|shown| Certificate::from_der(shown.own())) {
            None => None,
            Some(Some(certificate)) => Some(Box::new(certificate)),
            Some(None) => {
                telemetry::tls_handshake("bad_certificate");
                return Err(
                    "its certificate was verified, but what it says of the client cannot be read".into()
                );
            }
        };
        if let Some(shown) = shown {
            let credentials = Credentials { shown, judge: self.side.clone() };
            let credentials = entrance.connections.admit(&entrance.connection, credentials);
            // Loaded after it is known what was shown: a reload finds the connection, or the connection the reload.
            let now = self.side.load();
            if !Arc::ptr_eq(&now, &side) && !now.would_accept(&credentials.shown) {
                telemetry::tls_handshake("revoked");
                return Err("its certificate is not accepted any more since the handshake began".into());
            }
        }
        telemetry::tls_handshake("ok");
        let (services, _slot) = entrance.services(certificate)?;
        if is_http2 {
            return serve_http2::<_, Boxed>(socket, services).await;
        }
        // What serves HTTP/1 lets the first request take as long as any.
        let limit = services.policy.limits.first_request_timeout;
        let connection = Arc::clone(&services.connection);
        tokio::select! {
            began = tokio::time::timeout(limit, socket.fill_buf()) => {
                began.map_err(|_| nothing_within(limit))??;
            }
            () = connection.until_closing() => return Ok(()),
        }
        Box::pin(serve_http1::<_, Boxed>(socket, services)).await
    }

    /// Closes the connections of clients that would not be let in any more, whenever the authorities of clients or what
    /// these have revoked is replaced; for as long as it is awaited.
    async fn follow(self, shared: Arc<Context>, connections: Arc<Connections>) {
        let mut judged = self.side.load();
        loop {
            let now = self.side.replaced(&judged).await;
            let is_alike = now.judges_like(&judged);
            judged = now;
            if is_alike {
                continue;
            }
            let window = shared.policy.load().drain();
            let (all, judge) = (Arc::clone(&connections), self.side.clone());
            // On another thread: thousands of certificates take seconds to verify.
            let Ok((count, closing)) =
                tokio::task::spawn_blocking(move || all.close_unaccepted(&judge, window)).await
            else {
                continue;
            };
            if count > 0 {
                tracing::info!(
                    connections = count,
                    ?window,
                    "closing the connections of clients whose certificates are not accepted any more"
                );
                // A set that is replaced meanwhile does not wait for these.
                tokio::spawn(closing);
            }
        }
    }

    /// The connection once both sides agree; `None` where it is to close before that.
    async fn shake_hands<IO: Transport>(
        &self,
        socket: IO,
        config: Arc<ServerConfig>,
        connection: &Connection,
        source: Source,
    ) -> Result<Option<Box<TlsStream<Paced<IO>>>>, Fault> {
        let limit = self.handshakes.timeout;
        let socket = Paced::new(socket);
        let handshake = self.handshakes.take_turns(TlsAcceptor::from(config).accept(socket));
        let shaken = tokio::select! {
            shaken = handshake => shaken,
            () = connection.until_closing() => {
                telemetry::tls_handshake("draining");
                return Ok(None);
            }
        };
        let (result, error) = match shaken {
            Ok(Ok(socket)) => return Ok(Some(Box::new(socket))),
            Ok(Err(error)) => (tls::server::failure(&error), Fault::from(error)),
            Err(TimedOut) => {
                ("timeout", format!("not done within {limit:?} (downstream.handshake_timeout)").into())
            }
        };
        telemetry::tls_handshake(result);
        if let Some(unsaid) = self.complaints.lock().say(Instant::now()) {
            tracing::info!(%source, result, %error, unsaid, "a client's TLS handshake failed");
        }
        Err(format!("TLS handshake: {error}").into())
    }
}

fn nothing_within(limit: Duration) -> Fault {
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

async fn serve_http2<H: Health, IO: Transport>(socket: IO, services: Services<H>) -> Result<(), Fault> {
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

async fn serve_http1<H: Health, IO: Transport>(socket: IO, services: Services<H>) -> Result<(), Fault> {
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

/// What a connection speaks, by what comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Http1,
    Http2,
    /// The handshake of TLS, where there is none.
    Tls,
    /// Nothing that is served here.
    Other,
}

impl Speech {
    /// Enough to tell HTTP/2 from every method of HTTP/1.
    const TOLD_BY: usize = 3;

    fn of(start: [u8; Self::TOLD_BY]) -> Self {
        match &start {
            b"PRI" => Self::Http2,
            // Not every word of capitals: a faulty preface of HTTP/2 ends the connection (RFC 9113, section 3.4).
            b"GET" | b"HEA" | b"POS" | b"PUT" | b"DEL" | b"CON" | b"OPT" | b"TRA" | b"PAT" => Self::Http1,
            // A record of a handshake, of any version (RFC 8446, section 5.1).
            [22, 3, _] => Self::Tls,
            _ => Self::Other,
        }
    }

    /// Looks at what comes first. It stays where it is.
    async fn on(socket: &impl Peek) -> io::Result<Self> {
        let mut start = [0; Self::TOLD_BY];
        let mut pause = Duration::from_millis(5);
        loop {
            match socket.peek(&mut start).await? {
                0 => return Ok(Self::Other),
                Self::TOLD_BY => return Ok(Self::of(start)),
                // What was peeked at stays readable, so that there is nothing to wait for but time; ever longer, because
                // it costs nothing to send one byte and wait.
                _ => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(320));
                }
            }
        }
    }
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
