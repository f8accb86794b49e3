//! Connecting until the server has sent its first frame.
//!
//! Owns the meaning of "connected". A TCP connection proves nothing: the kernel of a frozen server completes
//! it, and so does a proxy. With TLS 1.3 the handshake of a client ends before the server has judged its
//! certificate. An HTTP/2 server always begins with SETTINGS.
//!
//! Owns also each address's share of the time, so that one that hangs does not hide the others. After a useless
//! attempt the next one begins with another address.
//!
//! Example: a name with three addresses and 5 s. The first accepts the connection and stays silent for its
//! 1.7 s. The second refuses at once. The third has 3.3 s. If it stays silent too, the next attempt begins
//! with the first again.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::call::reasons;
use crate::tls::client::ClientTls;
use crate::tls::diagnosis::Http;

#[derive(Clone, Debug)]
pub enum Target {
    Cleartext,
    Tls(Arc<ClientTls>),
    /// Unix socket, whatever address the endpoint has.
    Unix(PathBuf),
}

/// Connects, and waits for the server's first frame within the endpoint's connect timeout. Each address of a
/// name is tried.
///
/// # Errors
///
/// Failed stage, its cause and the remedy, for operators.
pub async fn dial(endpoint: Endpoint, target: Target) -> Result<Channel, String> {
    dial_from(endpoint, target, 0).await.map(|dialed| dialed.channel).map_err(|failed| failed.why)
}

#[derive(Debug)]
pub struct Dialed {
    pub channel: Channel,
    /// Facts that the socket sees.
    pub facts: Arc<Facts>,
    /// Number of the address among those of the server.
    pub address: usize,
    pub has_others: bool,
}

/// Like [`dial`], from the address of this number. The name look-up may take as long as the attempt.
///
/// # Errors
///
/// As of [`dial`], with facts for the next attempt.
pub async fn dial_from(endpoint: Endpoint, target: Target, first: usize) -> Result<Dialed, Unreached> {
    if (endpoint.uri().scheme() == Some(&http::uri::Scheme::HTTPS)) != matches!(target, Target::Tls(_)) {
        let why = format!("{} and its TLS settings do not go together", endpoint.uri());
        return Err(Unreached { why, tried: 0, is_refused: false });
    }
    let limit = endpoint.get_connect_timeout().unwrap_or(Duration::MAX);
    let unresolved = |why, is_refused| Unreached { why, tried: 0, is_refused };
    let addresses = if matches!(target, Target::Unix(_)) {
        // The path is the address.
        vec![SocketAddr::from(([0, 0, 0, 0], 0))]
    } else {
        match tokio::time::timeout(limit, resolve(endpoint.uri())).await {
            // A headless service without endpoints has no address.
            Ok(found) => found.map_err(|why| unresolved(why, true))?,
            Err(_) => return Err(unresolved(format!("its name was not resolved within {limit:?}"), false)),
        }
    };
    let attempt = |address, share| dial_at(endpoint.clone(), target.clone(), address, share);
    let ((channel, facts), address) = try_each(&addresses, first, limit, attempt).await?;
    Ok(Dialed { channel, facts, address, has_others: addresses.len() > 1 })
}

/// Least time for an address, if available: a TLS handshake over a slow link takes several round trips.
/// Skipped addresses come first in the next attempt.
const LEAST: Duration = Duration::from_secs(1);

/// Host of a server without brackets, and its port.
pub fn host_and_port(uri: &Uri) -> (&str, u16) {
    let is_tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    (uri.host().unwrap_or_default().trim_matches(['[', ']']), port)
}

/// Returns the addresses of a server, each once.
///
/// # Errors
///
/// Name without an address.
pub async fn resolve(uri: &Uri) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = host_and_port(uri);
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| format!("dns error: cannot look up `{host}`: {error}"))?;
    let mut addresses = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(format!("dns error: `{host}` has no address")) } else { Ok(addresses) }
}

/// Failure of all addresses that were tried.
#[derive(Debug)]
pub struct Unreached {
    /// The reason; with several addresses, each with its reason.
    pub why: String,
    pub tried: usize,
    /// Whether no server was reached, and none may have been busy: no connection was established, and
    /// no attempt timed out.
    pub is_refused: bool,
}

/// Tries addresses in turn from the number `first`, until `limit` is over. Each attempt receives its own
/// time. Returns the first success, and the number of its address.
async fn try_each<T, F: Future<Output = Result<T, Unreached>>>(
    addresses: &[SocketAddr],
    first: usize,
    limit: Duration,
    attempt: impl Fn(SocketAddr, Duration) -> F,
) -> Result<(T, usize), Unreached> {
    let count = addresses.len();
    if let [address] = addresses {
        return attempt(*address, limit).await.map(|by| (by, 0));
    }
    let begun = Instant::now();
    let (mut reasons, mut is_refused) = (Vec::new(), true);
    for turn in 0..count {
        let left = limit.saturating_sub(begun.elapsed());
        if left.as_millis() == 0 && turn > 0 {
            break;
        }
        let share = left / u32::try_from(count - turn).unwrap_or(u32::MAX);
        let address = (first + turn) % count;
        // Whole milliseconds, for people to read.
        let share = Duration::from_millis(share.max(LEAST).min(left).as_millis() as u64);
        match attempt(addresses[address], share).await {
            Ok(by) => return Ok((by, address)),
            Err(failed) => {
                reasons.push(format!("{}: {}", addresses[address], failed.why));
                is_refused &= failed.is_refused;
            }
        }
    }
    Err(Unreached { why: reasons.join("; "), tried: reasons.len(), is_refused })
}

/// First stage of an attempt.
const NOT_ACCEPTED: &str = "the connection is not accepted";

/// Connects to one address, and waits for the server's first frame, within `limit`.
async fn dial_at(
    endpoint: Endpoint,
    target: Target,
    address: SocketAddr,
    limit: Duration,
) -> Result<(Channel, Arc<Facts>), Unreached> {
    let (silence, facts) = (target.closed(), Arc::<Facts>::default());
    // The timeout is enforced below, where the stage of the connection is known.
    let endpoint = endpoint.connect_timeout(limit.saturating_add(Duration::from_secs(60)));
    let (verdict_to, mut verdict_from) = oneshot::channel();
    let verdict_to = Mutex::new(Some(verdict_to));
    let stage = Arc::new(Mutex::new(NOT_ACCEPTED));
    let progress = Arc::clone(&stage);
    let seen = Arc::clone(&facts);
    let connector = tower::service_fn(move |_: Uri| {
        let (target, stage, verdict_to) = (target.clone(), Arc::clone(&progress), verdict_to.lock().take());
        let facts = Arc::clone(&seen);
        async move {
            // A channel would silently replace a lost connection, also for other users.
            if verdict_to.is_none() {
                facts.close();
                return Err("the connection has ended".into());
            }
            let accepted = || *stage.lock() = "the TLS handshake is not done";
            match (open(address, &target, Http::Two, accepted).await, verdict_to) {
                (Ok(socket), verdict_to) => {
                    *stage.lock() = "no HTTP/2 SETTINGS have come";
                    Ok(TokioIo::new(FirstFrameProbe { socket, target, head: Vec::new(), verdict_to, facts }))
                }
                (Err(why), verdict_to) => {
                    // Sent from here, without tonic's added words. The receiver is gone after a timeout.
                    _ = verdict_to.map(|sender| sender.send(Err(why.clone())));
                    Err::<_, tower::BoxError>(why.into())
                }
            }
        }
    });
    let connect = async {
        match endpoint.connect_with_connector(connector).await {
            Ok(channel) => match (&mut verdict_from).await {
                Ok(verdict) => verdict.map(|()| channel),
                Err(_) => Err(silence),
            },
            Err(error) => match verdict_from.try_recv() {
                Ok(Err(why)) => Err(why),
                _ => Err(reasons(&error)),
            },
        }
    };
    let failed = |why, is_refused| Unreached { why, tried: 1, is_refused };
    match tokio::time::timeout(limit, connect).await {
        Ok(Ok(channel)) => Ok((channel, facts)),
        Ok(Err(why)) => Err(failed(why, *stage.lock() == NOT_ACCEPTED)),
        Err(_) => {
            Err(failed(format!("the server has not answered within {limit:?}: {}", *stage.lock()), false))
        }
    }
}

/// Facts about a connection that its socket sees.
#[derive(Debug, Default)]
pub struct Facts {
    is_closed: AtomicBool,
    /// Allowed concurrent streams plus one; 0 without a limit.
    streams: AtomicU32,
}

impl Facts {
    /// Whether the connection is lost, or takes no more streams.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Allowed concurrent streams; `None` without a limit.
    pub fn max_streams(&self) -> Option<u32> {
        self.streams.load(Ordering::Acquire).checked_sub(1)
    }

    /// Reads the stream limit from the payload of a SETTINGS frame.
    fn read_settings(&self, payload: &[u8]) {
        const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];
        for setting in payload.chunks_exact(SETTING) {
            if let [high, low, value @ ..] = setting
                && [*high, *low] == MAX_CONCURRENT_STREAMS
                && let Ok(value) = <[u8; 4]>::try_from(value)
            {
                self.streams.store(u32::from_be_bytes(value).saturating_add(1), Ordering::Release);
            }
        }
    }
}

impl Target {
    /// Error for a server that closed the connection at once.
    pub fn closed(&self) -> String {
        match self {
            Self::Tls(tls) => tls.diagnosis.closed(),
            Self::Cleartext => format!("{CLOSED}: it may expect TLS (https://)"),
            Self::Unix(_) => CLOSED.to_owned(),
        }
    }
}

/// Opens a socket to an address, which a Unix socket ignores. Calls `accepted` before a TLS handshake.
///
/// # Errors
///
/// Cause and remedy, for operators.
pub async fn open(
    address: impl ToSocketAddrs,
    target: &Target,
    http: Http,
    accepted: impl FnOnce(),
) -> Result<Box<dyn Socket>, String> {
    if let Target::Unix(path) = target {
        let socket = UnixStream::connect(path).await.map_err(|error| error.to_string())?;
        return Ok(Box::new(socket));
    }
    let connected = TcpStream::connect(address).await;
    let socket = connected.map_err(|error| format!("tcp connect error: {error}"))?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    probe_peer(&socket);
    let Target::Tls(tls) = target else { return Ok(Box::new(socket)) };
    accepted();
    Ok(Box::new(tls.connect(socket, http).await?))
}

/// Has the kernel notice in 30 s that the peer is gone, or takes no data (R-Up-09). Servers do not see these
/// probes. Kernels without them leave only PINGs.
fn probe_peer(socket: &TcpStream) {
    const SILENCE: Duration = Duration::from_secs(20);
    const EVERY: Duration = Duration::from_secs(10);
    let socket = socket2::SockRef::from(socket);
    let probes = socket2::TcpKeepalive::new().with_time(SILENCE).with_interval(EVERY);
    _ = socket.set_tcp_keepalive(&probes);
    _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

/// Connection to a server, with TLS or without.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Bytes of the head of an HTTP/2 frame.
const HEAD: usize = 9;
const SETTINGS: u8 = 4;
const SETTING: usize = 6;
/// Settings that are waited for; servers send a handful.
const MAX_SETTINGS: usize = 64;

/// Socket, above any TLS, that reports once whether the server's first frame is SETTINGS.
struct FirstFrameProbe {
    socket: Box<dyn Socket>,
    target: Target,
    /// Start of the first frame.
    head: Vec<u8>,
    verdict_to: Option<oneshot::Sender<Result<(), String>>>,
    facts: Arc<Facts>,
}

impl FirstFrameProbe {
    fn receive(&mut self, bytes: &[u8]) {
        self.head.extend(bytes.iter().take(HEAD + MAX_SETTINGS * SETTING - self.head.len()));
        match self.head.as_slice() {
            [a, b, c, SETTINGS, _, 0, 0, 0, 0, payload @ ..] => {
                let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                let payload_length = length.min(MAX_SETTINGS * SETTING);
                if let Some(payload) = payload.get(..payload_length) {
                    self.facts.read_settings(payload);
                    self.report(Ok(()));
                }
            }
            short if short.len() < HEAD => {}
            other => self.report(Err(not_http2(other))),
        }
    }

    fn end(&mut self) {
        let why = match self.head.as_slice() {
            [] | [_, _, _, SETTINGS, _, 0, 0, 0, 0, ..] => self.target.closed(),
            other => not_http2(other),
        };
        self.report(Err(why));
    }

    fn fail(&mut self, error: &io::Error) {
        let why = match &self.target {
            Target::Tls(tls) => tls.diagnosis.of(error, Http::Two),
            target => format!("{}: {error}", target.closed()),
        };
        self.report(Err(why));
    }

    fn report(&mut self, verdict: Result<(), String>) {
        if let Some(verdict_to) = self.verdict_to.take() {
            // The receiver is gone after a timeout.
            _ = verdict_to.send(verdict);
        }
    }

    /// Hides write errors until the first frame: the reason can be read soon.
    fn written<T>(&self, result: io::Result<T>, all: T) -> Poll<io::Result<T>> {
        Poll::Ready(if self.verdict_to.is_some() { result.or(Ok(all)) } else { result })
    }
}

/// Judges what came so far, because the reader may give up before the end.
impl Drop for FirstFrameProbe {
    fn drop(&mut self) {
        self.end();
        self.facts.close();
    }
}

/// Error for a cleartext server that closed the connection at once.
pub const CLOSED: &str = "the server closed the connection before it said anything";

pub const NOT_HTTP2: &str = "the server does not speak HTTP/2";

/// Error for a server that answers cleartext in TLS.
pub const ANSWERS_IN_TLS: &str = "the server answers in TLS; write https://";

/// Whether a server's first bytes are a TLS alert or handshake, since version 3.0.
pub fn is_tls(head: &[u8]) -> bool {
    [[0x15, 3], [0x16, 3]].iter().any(|record| head.starts_with(record))
}

fn not_http2(head: &[u8]) -> String {
    if is_tls(head) { ANSWERS_IN_TLS } else { NOT_HTTP2 }.to_owned()
}

impl AsyncRead for FirstFrameProbe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        let read = ready!(Pin::new(&mut this.socket).poll_read(cx, buffer));
        if this.verdict_to.is_some() {
            match (&read, &buffer.filled()[before..]) {
                (Err(error), _) => this.fail(error),
                (Ok(()), []) if room > 0 => this.end(),
                (Ok(()), bytes) => this.receive(bytes),
            }
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for FirstFrameProbe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.socket).poll_write(cx, bytes));
        self.written(result, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.socket).poll_flush(cx));
        self.written(result, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
