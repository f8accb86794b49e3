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
use super::status::report;
use crate::http2::{self, Serve};
use crate::identity::{Peer, Source};
use crate::subscription::Rules;
use crate::telemetry::{self, Limit};

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
    fn http2(&self) -> http2::Limits {
        http2::Limits {
            max_streams: self.max_streams_per_connection,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            max_head_bytes: 16 << 10,
            head_timeout: self.first_request_timeout,
            idle_timeout: self.idle_timeout,
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
        let open_rules = Arc::new(Rules { serve_secrets: true, ..shared.rules.clone() });
        let rules = Arc::new(shared.rules.clone());
        let http2 = Arc::new(shared.limits.http2());
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
            let source = Source::of(peer.ip());
            let mut slot = match shared.admission.by_source(source) {
                Ok(slot) => slot,
                Err(refused) => {
                    refused.turn_away(&socket, &peer);
                    continue;
                }
            };
            // Only who is on this machine is as good as authenticated where nobody has to show a certificate.
            let local = socket.local_addr().is_ok_and(|address| address.ip().is_loopback());
            let rules = Arc::clone(if local { &open_rules } else { &rules });
            let guard = connections.open(shared.limits.max_connection_age, Instant::now());
            let services = Services {
                shared: Arc::clone(&shared),
                rules,
                health: health.clone(),
                connection: Arc::clone(&guard.connection),
                peer: peer.ip(),
            };
            let http2 = Arc::clone(&http2);
            tokio::spawn(async move {
                if let Err(refused) = slot.identified(&Peer::unproven(source)) {
                    refused.turn_away(&socket, &peer);
                    return;
                }
                let _open = (telemetry::ConnectionGauge::open(), slot);
                let connection = Arc::clone(&guard.connection);
                if let Err(error) = serve_connection(socket, services, http2).await {
                    tracing::debug!(%peer, %error, fate = ?connection.fate(), "connection ends");
                }
                drop(guard);
            });
        }
    }
}

/// Serves a connection until it ends by itself or its fate is fulfilled.
async fn serve_connection<H: Health>(
    socket: TcpStream,
    services: Services<H>,
    http2: Arc<http2::Limits>,
) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let connection = Arc::clone(&services.connection);
    let limit = services.shared.limits.first_request_timeout;
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
            let mut serve = Serve::new(socket, http2, move |request| services.clone().answer(request));
            let mut stuck = None;
            return fulfil(&connection, &mut serve, Serve::shut_down, |serve| {
                if serve.stuck() != stuck {
                    stuck = serve.stuck();
                    connection.set_stuck(stuck);
                }
                note_limits(serve.take_refused(), serve.take_idle());
                if connection.takes_look() {
                    serve.look();
                    return true;
                }
                false
            })
            .await;
        }
        Speech::Other => {
            // A socket that is closed with something unread in it is reset.
            _ = socket.try_read(&mut [0; 1024]);
            anyhow::bail!("neither HTTP/1 nor HTTP/2")
        }
    }
    let mut builder = http1::Builder::new();
    // The first request has begun to come; the wait for the next one is a client's pause between two polls.
    builder.timer(TokioTimer::new()).header_read_timeout(services.shared.polls.idle_timeout);
    let socket = Stalling::new(socket, services.shared.limits.stall_timeout).telling(&connection);
    let service = service_fn(move |request| services.clone().answer(request).map(Ok::<_, Infallible>));
    let mut serve = builder.serve_connection(TokioIo::new(socket), service);
    fulfil(&connection, &mut serve, |serve| Pin::new(serve).graceful_shutdown(), |_| false).await
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

/// Polls what serves a connection, and tells it when it is to close. What is polled is looked at afterwards, and polled
/// again if that says so.
async fn fulfil<S, E>(
    connection: &Connection,
    serve: &mut S,
    close: impl Fn(&mut S),
    mut look: impl FnMut(&mut S) -> bool,
) -> anyhow::Result<()>
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
        let mut polled = Pin::new(&mut *serve).poll(cx);
        while look(serve) && polled.is_pending() {
            polled = Pin::new(&mut *serve).poll(cx);
        }
        polled.map_err(Into::into)
    })
    .await
}
