//! Accepting connections and serving them.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::connection::{Connection, Connections, Fate};
use super::service::{Context, Services};
use super::stall::Stalling;
use crate::http2::{self, Serve};
use crate::identity::{Peer, Source};
use crate::telemetry;

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
    pub(super) fn http2(&self) -> http2::Limits {
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

/// A bound address.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
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
        Ok(Self { address: socket.local_addr()?, socket })
    }

    /// The address, with the port that was chosen where none was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then accepts no more; connections that are open live on in `connections`.
    pub async fn serve<H: Health>(
        self,
        shared: Arc<Context>,
        health: HealthServer<H>,
        connections: Arc<Connections>,
        stop: CancellationToken,
    ) {
        let mut complaints = telemetry::Sparingly::default();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            let (socket, peer) = match accepted {
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
            let guard = connections.open(shared.policy.load().limits.max_connection_age, Instant::now());
            let identity = Peer::unproven(Source::of(peer.ip()));
            guard.identify(identity.clone());
            // Loaded after it is known who this is: a reload finds the connection, or the connection the reload.
            let policy = shared.policy.load_full();
            let services = Services {
                shared: Arc::clone(&shared),
                rules: policy.rules_for(&identity),
                policy,
                health: health.clone(),
                connection: Arc::clone(&guard.connection),
                peer: peer.ip(),
            };
            tokio::spawn(async move {
                let _open = telemetry::ConnectionGauge::open();
                let connection = Arc::clone(&guard.connection);
                if let Err(error) = serve_connection(socket, services).await {
                    tracing::debug!(%peer, %error, fate = ?connection.fate(), "connection ends");
                }
                drop(guard);
            });
        }
    }
}

/// Serves a connection until it ends by itself or its fate is fulfilled.
async fn serve_connection<H: Health>(socket: TcpStream, services: Services<H>) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let connection = Arc::clone(&services.connection);
    let policy = Arc::clone(&services.policy);
    let limit = policy.limits.first_request_timeout;
    // Until something comes there is no protocol, and none that would time out.
    let speech = tokio::select! {
        speech = tokio::time::timeout(limit, Speech::on(&socket)) => speech,
        () = std::future::poll_fn(|cx| {
            connection.register(cx.waker());
            if connection.is_closing() { Poll::Ready(()) } else { Poll::Pending }
        }) => return Ok(()),
    };
    match speech.map_err(|_| anyhow::anyhow!("nothing came within {limit:?}"))?? {
        Speech::Http1 => {}
        Speech::Http2 => {
            let http2 = Arc::clone(&policy.http2);
            let mut serve = Serve::new(socket, http2, move |request| services.clone().answer(request));
            return fulfil(&connection, &mut serve, Serve::shut_down).await;
        }
        Speech::Other => {
            // A socket that is closed with something unread in it is reset.
            _ = socket.try_read(&mut [0; 1024]);
            anyhow::bail!("neither HTTP/1 nor HTTP/2")
        }
    }
    let mut builder = http1::Builder::new();
    // The first request has begun to come; the wait for the next one is a client's pause between two polls.
    builder.timer(TokioTimer::new()).header_read_timeout(policy.polls.idle_timeout);
    let socket = Stalling::new(socket, policy.limits.stall_timeout);
    let service = service_fn(move |request| services.clone().answer(request).map(Ok::<_, Infallible>));
    let mut serve = builder.serve_connection(TokioIo::new(socket), service);
    fulfil(&connection, &mut serve, |serve| Pin::new(serve).graceful_shutdown()).await
}

/// What a connection speaks, by what comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Http1,
    Http2,
    /// Nothing that is served here, as a TLS handshake.
    Other,
}

impl Speech {
    /// Enough to tell HTTP/2 from every method of HTTP/1.
    const TOLD_BY: usize = 3;

    fn of(start: [u8; Self::TOLD_BY]) -> Self {
        match &start {
            b"PRI" => Self::Http2,
            b"GET" | b"HEA" | b"POS" | b"PUT" | b"DEL" | b"CON" | b"OPT" | b"TRA" | b"PAT" => Self::Http1,
            _ => Self::Other,
        }
    }

    /// Looks at what comes first. It stays where it is.
    async fn on(socket: &TcpStream) -> io::Result<Self> {
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
