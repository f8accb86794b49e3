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

use super::connection::{Connection, ConnectionGuard, Connections, Fate};
use super::handshake::Handshakes;
use super::service::{Context, Services};
use super::stall::Stalling;
use super::transport::{Boxed, Peek, Transport};
use super::unix::UnixSocket;
use crate::http2::{self, Serve};
use crate::identity::{Certificate, Peer, Source};
use crate::subscription::Rules;
use crate::telemetry;
use crate::tls;
use crate::tls::reload::Reloaded;

/// The queue of connections that the kernel completed and we did not accept yet. A fleet that comes back comes all
/// at once, and tokio's own default is short for that.
const BACKLOG: i32 = 4096;

/// What a client may do to the transport.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The largest request, in bytes.
    pub max_request_bytes: usize,
    /// A connection or stream that has sent nothing by then is closed.
    pub first_request_timeout: Duration,
    /// Streams of one connection.
    pub max_streams_per_connection: u32,
    /// A connection whose transport takes nothing for so long is closed.
    pub stall_timeout: Duration,
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
            max_connection_age: Duration::from_secs(30 * 60),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    fn http2(&self) -> http2::Limits {
        http2::Limits {
            max_streams: self.max_streams_per_connection,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            max_head_bytes: 16 << 10,
            head_timeout: self.first_request_timeout,
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
    config: Reloaded<ServerConfig>,
    handshakes: Handshakes,
    complaints: Arc<Mutex<telemetry::Sparingly>>,
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
    pub fn with_tls(self, config: Reloaded<ServerConfig>, handshakes: Handshakes) -> Self {
        Self { tls: Some(Tls { config, handshakes, complaints: Arc::default() }), ..self }
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
        let open_rules = Arc::new(Rules { serve_secrets: true, ..shared.rules.clone() });
        let rules = Arc::new(shared.rules.clone());
        let http2 = Arc::new(shared.limits.http2());
        let mut complaints = telemetry::Sparingly::default();
        loop {
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
            let guard = connections.open(shared.limits.max_connection_age, Instant::now());
            let (source, local) = match &accepted {
                Accepted::Tcp(socket, peer) => {
                    let local = socket.local_addr().is_ok_and(|address| address.ip().is_loopback());
                    (Source::of(peer.ip()), local)
                }
                Accepted::Unix(_) => (Source::Unix, true),
            };
            let entrance = Entrance {
                shared: Arc::clone(&shared),
                rules: RuleSets { open: Arc::clone(&open_rules), closed: Arc::clone(&rules) },
                health: health.clone(),
                connection: Arc::clone(&guard.connection),
                http2: Arc::clone(&http2),
                source,
                local,
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

fn spawn(
    guard: ConnectionGuard,
    source: Source,
    serving: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) {
    tokio::spawn(async move {
        let _open = telemetry::ConnectionGauge::open();
        if let Err(error) = serving.await {
            tracing::debug!(%source, %error, fate = ?guard.connection.fate(), "connection ends");
        }
        drop(guard);
    });
}

/// The rules that peers may be under.
#[derive(Clone, Debug)]
struct RuleSets {
    /// Secrets are served.
    open: Arc<Rules>,
    /// As the configuration says of peers that nobody has authenticated.
    closed: Arc<Rules>,
}

impl RuleSets {
    /// Who has shown a certificate of an authority is authenticated; who is on this machine, over loopback or a Unix
    /// socket, is as good as that.
    fn rules_for(&self, peer: &Peer, local: bool) -> &Arc<Rules> {
        let authenticated = local || peer.source == Source::Unix || peer.certificate.is_some();
        if authenticated { &self.open } else { &self.closed }
    }
}

/// What a connection is served with, before it is known who its peer is.
struct Entrance<H> {
    shared: Arc<Context>,
    rules: RuleSets,
    health: HealthServer<H>,
    connection: Arc<Connection>,
    http2: Arc<http2::Limits>,
    source: Source,
    /// Whether it came to an address of this machine that no other reaches.
    local: bool,
}

impl<H: Health> Entrance<H> {
    fn services(self, certificate: Option<Box<Certificate>>) -> (Services<H>, Arc<http2::Limits>) {
        let peer = Peer { source: self.source, certificate };
        let services = Services {
            rules: Arc::clone(self.rules.rules_for(&peer, self.local)),
            shared: self.shared,
            health: self.health,
            connection: self.connection,
            peer: Arc::new(peer),
        };
        (services, self.http2)
    }
}

async fn serve_tcp<H: Health>(socket: TcpStream, entrance: Entrance<H>) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let (services, http2) = entrance.services(None);
    match first_words(&socket, &services).await? {
        // In a box, so that connections over HTTP/2 do not keep the room for it.
        Some(Speech::Http1) => Box::pin(serve_http1(socket, services)).await,
        Some(Speech::Http2) => serve_http2(socket, services, http2).await,
        Some(other) => refuse(&socket, other),
        None => Ok(()),
    }
}

async fn serve_unix<H: Health>(socket: UnixStream, entrance: Entrance<H>) -> anyhow::Result<()> {
    let (services, http2) = entrance.services(None);
    match first_words(&socket, &services).await? {
        Some(Speech::Http1) => serve_http1::<_, Boxed>(Box::new(socket), services).await,
        Some(Speech::Http2) => serve_http2::<_, Boxed>(Box::new(socket), services, http2).await,
        Some(other) => refuse(&socket, other),
        None => Ok(()),
    }
}

impl Tls {
    async fn serve<H: Health>(
        self,
        socket: impl Transport + 'static,
        entrance: Entrance<H>,
    ) -> anyhow::Result<()> {
        let source = entrance.source;
        // In a box, so that a connection does not keep the room that its handshake took.
        let Some(mut socket) = Box::pin(self.shake_hands(socket, &entrance.connection, source)).await? else {
            return Ok(());
        };
        let (_, session) = socket.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let certificate = match shown.map(|der| Certificate::from_der(der)) {
            None => None,
            Some(Some(certificate)) => Some(Box::new(certificate)),
            Some(None) => {
                telemetry::tls_handshake("bad_certificate");
                anyhow::bail!("its certificate was verified, but what it says of the client cannot be read");
            }
        };
        telemetry::tls_handshake("ok");
        let (services, http2) = entrance.services(certificate);
        if is_http2 {
            return serve_http2::<_, Boxed>(socket, services, http2).await;
        }
        // What serves HTTP/1 lets the first request take as long as any.
        let limit = services.shared.limits.first_request_timeout;
        let connection = Arc::clone(&services.connection);
        tokio::select! {
            began = tokio::time::timeout(limit, socket.fill_buf()) => {
                began.map_err(|_| anyhow::anyhow!("nothing came within {limit:?}"))??;
            }
            () = connection.until_closing() => return Ok(()),
        }
        Box::pin(serve_http1::<_, Boxed>(socket, services)).await
    }

    /// The connection once both sides agree; `None` where it is to close before that.
    async fn shake_hands<IO: Transport>(
        &self,
        socket: IO,
        connection: &Connection,
        source: Source,
    ) -> anyhow::Result<Option<Box<TlsStream<IO>>>> {
        let limit = self.handshakes.timeout;
        let handshake = self.handshakes.take_turns(TlsAcceptor::from(self.config.load()).accept(socket));
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(limit, handshake) => shaken,
            () = connection.until_closing() => {
                telemetry::tls_handshake("draining");
                return Ok(None);
            }
        };
        let (result, error) = match shaken {
            Ok(Ok(socket)) => return Ok(Some(Box::new(socket))),
            Ok(Err(error)) => (tls::server::failure(&error), anyhow::Error::from(error)),
            Err(_) => {
                ("timeout", anyhow::anyhow!("not done within {limit:?} (downstream.handshake_timeout)"))
            }
        };
        telemetry::tls_handshake(result);
        if let Some(unsaid) = self.complaints.lock().say(Instant::now()) {
            tracing::info!(%source, result, %error, unsaid, "a client's TLS handshake failed");
        }
        Err(error.context("TLS handshake"))
    }
}

/// Waits for what comes first. Until then there is no protocol, and none that would time out. `None` where the
/// connection is to close before.
async fn first_words<H>(socket: &impl Peek, services: &Services<H>) -> anyhow::Result<Option<Speech>> {
    let limit = services.shared.limits.first_request_timeout;
    tokio::select! {
        speech = tokio::time::timeout(limit, Speech::on(socket)) => {
            Ok(Some(speech.map_err(|_| anyhow::anyhow!("nothing came within {limit:?}"))??))
        }
        () = services.connection.until_closing() => Ok(None),
    }
}

fn refuse(socket: &impl Peek, speech: Speech) -> anyhow::Result<()> {
    // A socket that is closed with something unread in it is reset.
    socket.discard();
    if speech == Speech::Tls {
        telemetry::tls_handshake("to_cleartext");
        anyhow::bail!("a TLS handshake, and this listener has no `tls`")
    }
    anyhow::bail!("neither HTTP/1 nor HTTP/2")
}

async fn serve_http2<H: Health, IO: Transport>(
    socket: IO,
    services: Services<H>,
    http2: Arc<http2::Limits>,
) -> anyhow::Result<()> {
    let connection = Arc::clone(&services.connection);
    let mut serve = Serve::new(socket, http2, move |request| services.clone().answer(request));
    fulfil(&connection, &mut serve, Serve::shut_down).await
}

async fn serve_http1<H: Health, IO: Transport>(socket: IO, services: Services<H>) -> anyhow::Result<()> {
    let connection = Arc::clone(&services.connection);
    let mut builder = http1::Builder::new();
    // The first request has begun to come; the wait for the next one is a client's pause between two polls.
    builder.timer(TokioTimer::new()).header_read_timeout(services.shared.polls.idle_timeout);
    let socket = Stalling::new(socket, services.shared.limits.stall_timeout);
    let service = service_fn(move |request| services.clone().answer(request).map(Ok::<_, Infallible>));
    let mut serve = builder.serve_connection(TokioIo::new(socket), service);
    fulfil(&connection, &mut serve, |serve| Pin::new(serve).graceful_shutdown()).await
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

/// Polls what serves a connection, and tells it when it is to close.
async fn fulfil<S, E>(connection: &Connection, serve: &mut S, close: impl Fn(&mut S)) -> anyhow::Result<()>
where
    S: Future<Output = Result<(), E>> + Unpin,
    E: Into<anyhow::Error>,
{
    let mut closing = false;
    std::future::poll_fn(|cx| {
        connection.register(cx.waker());
        match connection.fate() {
            Fate::Closes if !closing => {
                closing = true;
                close(serve);
            }
            Fate::Dies => return Poll::Ready(Err(anyhow::anyhow!("it does not close"))),
            Fate::Stays | Fate::Closes => {}
        }
        Pin::new(&mut *serve).poll(cx).map_err(Into::into)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn secrets_are_for_who_is_known_or_on_this_machine() {
        let closed = Arc::new(Rules::default());
        let open = Arc::new(Rules { serve_secrets: true, ..Rules::default() });
        let rules = RuleSets { open, closed };
        let serves = |peer: &Peer, local| rules.rules_for(peer, local).serve_secrets;
        let mut peer = Peer::unproven(Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))));
        assert!(!serves(&peer, false), "over the network, without a certificate");
        assert!(serves(&peer, true));
        peer.certificate = Some(Box::default());
        assert!(serves(&peer, false));
        assert!(serves(&Peer::unproven(Source::Unix), false));
    }
}
