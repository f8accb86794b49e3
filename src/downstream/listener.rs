//! Accepting connections and serving them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic_health::pb::health_server::{Health, HealthServer};

use super::connection::{Connections, Fate};
use super::service::{Context, Services};
use crate::subscription::Rules;
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
            // Only who is on this machine is as good as authenticated where nobody has to show a certificate.
            let local = socket.local_addr().is_ok_and(|address| address.ip().is_loopback());
            let rules = Arc::clone(if local { &open_rules } else { &rules });
            let guard = connections.open(shared.limits.max_connection_age, Instant::now());
            let services = Services {
                shared: Arc::clone(&shared),
                rules,
                health: health.clone(),
                connection: Arc::clone(&guard.connection),
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

async fn serve_connection<H: Health>(socket: TcpStream, services: Services<H>) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let limits = services.shared.limits.clone();
    let state = Arc::clone(&services.connection);
    // Until something comes there is no protocol, and none that would time out.
    let mut first = [0];
    tokio::select! {
        first = tokio::time::timeout(limits.first_request_timeout, socket.peek(&mut first)) => {
            first.map_err(|_| anyhow::anyhow!("nothing came within {:?}", limits.first_request_timeout))??;
        }
        () = state.news.notified() => return Ok(()),
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.first_request_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(64 << 10)
        // Half of it is the budget of small frames, which ACKs are (h2 0.4.16 and later).
        .initial_connection_window_size(1 << 20)
        .max_concurrent_streams(limits.max_streams_per_connection)
        .max_send_buf_size(64 << 10)
        .max_header_list_size(16 << 10)
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout);
    let service = service_fn(move |request| services.clone().answer(request));
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut closing = false;
    loop {
        tokio::select! {
            served = connection.as_mut() => return served.map_err(|error| anyhow::anyhow!(error)),
            () = state.news.notified() => match state.fate() {
                Fate::Stays => {}
                Fate::Closes if closing => {}
                Fate::Closes => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                Fate::Dies => anyhow::bail!("nothing moved for {:?}", limits.stall_timeout),
            },
        }
    }
}
