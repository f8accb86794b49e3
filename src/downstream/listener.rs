//! Listeners: binding addresses and accepting connections.
//!
//! Owns the file of a Unix socket. It replaces only a socket without a listener, and is removed with its own
//! listener unless another process has replaced it.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use super::connections::{ConnectionGuard, Connections};
use super::grpc_status::report;
use super::serve::{ConnectionError, PendingConnection, REFUSED, TlsListener, serve_http};
use super::server_state::ServerState;
use super::transport::BoxedTransport;
use crate::fairness::{ACCEPTED_IN_A_ROW, LONGEST_ACCEPT_PAUSE};
use crate::identity::{Peer, Source};
use crate::limit::Limit;
use crate::pool::Share;
use crate::tls::reload::Reloaded;
use crate::tls::server::ServerTls;
use crate::{http2, telemetry};

/// Length of the kernel's accept queue. A fleet reconnects all at once, and tokio's default is too short for
/// that.
const BACKLOG: i32 = 4096;
/// Bytes that a socket takes beyond those on their way to the peer. By default the kernel keeps up to
/// `tcp_wmem` (4 MiB) of outdated data for a slow peer, which no watermark here sees. The socket reports room
/// when half is free, which is [`http2::MIN_BYTES`].
const UNSENT: usize = 2 * http2::MIN_BYTES;

#[derive(Debug)]
pub struct Listener {
    socket: Bound,
    tls: Option<TlsListener>,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    /// The file is removed with its listener.
    Unix(UnixListener, #[expect(dead_code, reason = "it is removed on drop")] SocketFile),
}

enum AcceptedSocket {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    /// Binds a TCP address.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM.nonblocking().cloexec(),
            Some(socket2::Protocol::TCP),
        )?;
        // A restarted relay binds its port while old connections are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        // Accepted sockets inherit it.
        socket.set_tcp_notsent_lowat(UNSENT as u32)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        Ok(Self { socket: Bound::Tcp(socket), tls: None })
    }

    /// Binds the path of a Unix socket. The file is removed when the listener is dropped.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound, or another process listens on it.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        let address = socket2::SockAddr::unix(path)?;
        remove_stale(path, &address)?;
        let socket = new_socket()?;
        socket.bind(&address)?;
        let found = std::fs::symlink_metadata(path)?;
        let file = SocketFile { path: path.to_owned(), identity: (found.dev(), found.ino()) };
        // The mode is set before `listen`, so that no client connects with another one.
        let mode = found.permissions().mode() & MODE;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket: Bound::Unix(UnixListener::from_std(socket.into())?, file), tls: None })
    }

    /// Adds TLS. Each connection begins with the settings then in force.
    /// `handshake_timeout` excludes the wait for a turn.
    pub fn with_tls(self, settings: Reloaded<ServerTls>, handshake_timeout: Duration) -> Self {
        Self { tls: Some(TlsListener::new(settings, handshake_timeout)), ..self }
    }

    /// Returns the TCP address with its actual port; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Bound::Tcp(socket) => socket.local_addr().ok(),
            Bound::Unix(..) => None,
        }
    }

    async fn accept(&self) -> io::Result<AcceptedSocket> {
        match &self.socket {
            Bound::Tcp(socket) => {
                let (socket, peer) = socket.accept().await?;
                _ = socket.set_nodelay(true);
                Ok(AcceptedSocket::Tcp(socket, peer))
            }
            Bound::Unix(listener, _) => {
                listener.accept().await.map(|(socket, _)| AcceptedSocket::Unix(socket))
            }
        }
    }

    /// Accepts connections until `stop`. Open connections stay in `connections`.
    pub async fn serve(
        self,
        server: Arc<ServerState>,
        connections: Arc<Connections>,
        stop: CancellationToken,
    ) {
        if let Some(tls) = &self.tls {
            let follow = tls.clone().close_revoked(Arc::clone(&server), Arc::clone(&connections));
            tokio::spawn(stop.clone().run_until_cancelled_owned(follow));
        }
        let throttle = telemetry::LogThrottle::default();
        for count in 1_usize.. {
            if count % ACCEPTED_IN_A_ROW == 0 {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = tokio::time::timeout(LONGEST_ACCEPT_PAUSE, server.scheduler.yield_to_waiting()) => {}
                }
            }
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.accept() => accepted,
            };
            let accepted = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    telemetry::count(telemetry::ACCEPT_FAILURES, &[], 1);
                    if let Some(suppressed) = throttle.allow((), Instant::now()) {
                        tracing::warn!(%error, suppressed, "cannot accept a connection; is the limit on open files (ulimit -n) reached?");
                    }
                    // Without file descriptors, an immediate retry would spin.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let source = match &accepted {
                AcceptedSocket::Tcp(_, peer) => Source::of(peer.ip()),
                AcceptedSocket::Unix(_) => Source::Unix,
            };
            let slot = match server.admission.by_source(source) {
                Ok(slot) => slot,
                Err(refused) => {
                    accepted.reject(refused);
                    continue;
                }
            };
            let guard = connections.open(server.policy.load().limits.max_connection_age, Instant::now());
            let pending = PendingConnection {
                server: Arc::clone(&server),
                connection: Arc::clone(&guard.connection),
                connections: Arc::clone(&connections),
                source,
            };
            let (held, unproven) = ((guard, slot), Arc::new(Peer::unproven(source)));
            // Separate futures, so that none is as large as the largest.
            match (accepted, &self.tls) {
                (AcceptedSocket::Tcp(socket, _), None) => {
                    spawn(held, source, serve_http(socket, pending.services(unproven)));
                }
                (AcceptedSocket::Unix(socket), None) => {
                    let socket: BoxedTransport = Box::new(socket);
                    spawn(held, source, serve_http(socket, pending.services(unproven)));
                }
                (AcceptedSocket::Tcp(socket, _), Some(tls)) => {
                    spawn(held, source, tls.clone().serve(socket, pending));
                }
                (AcceptedSocket::Unix(socket), Some(tls)) => {
                    spawn(held, source, tls.clone().serve(socket, pending));
                }
            }
        }
    }
}

impl AcceptedSocket {
    /// Resets it before any byte was sent. It leaves nothing here, not even a socket in TIME_WAIT, because there
    /// may be many.
    fn reject(&self, limit: Limit) {
        let (socket, peer): (_, &dyn Display) = match self {
            Self::Tcp(socket, peer) => (socket2::SockRef::from(socket), peer),
            Self::Unix(socket) => (socket2::SockRef::from(socket), &Source::Unix),
        };
        _ = socket.set_linger(Some(Duration::ZERO));
        report(limit, peer, REFUSED);
    }
}

fn spawn(
    held: (ConnectionGuard, Share),
    source: Source,
    serving: impl Future<Output = Result<(), ConnectionError>> + Send + 'static,
) {
    // An async block would keep room for the future twice: where it was captured, and where it is polled.
    tokio::spawn(serving.map(move |result| {
        if let Err(error) = result {
            tracing::debug!(%source, %error, state = ?held.0.connection.state(), "connection ends");
        }
        drop(held);
    }));
}

/// Mode of the file, less the umask: its owner and its group may connect.
const MODE: u32 = 0o660;

/// File of a Unix socket, removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

fn new_socket() -> io::Result<socket2::Socket> {
    let kind = socket2::Type::STREAM.nonblocking().cloexec();
    socket2::Socket::new(socket2::Domain::UNIX, kind, None)
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path, address: &socket2::SockAddr) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let problem = "the file there is not a socket; remove it, or choose another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    match new_socket()?.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A socket whose queue is full has a listener too.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(()) | Err(_) => {
            let problem = "another process listens there; stop it, or choose another path";
            Err(io::Error::new(io::ErrorKind::AddrInUse, problem))
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have put its own socket there.
        let found = std::fs::symlink_metadata(&self.path).ok().map(|found| (found.dev(), found.ino()));
        if found == Some(self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the file of the Unix socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_gives_way_and_nothing_else_does() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a socket without a listener is left behind");
        let first = Listener::bind_unix(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o117, 0);
        let error = Listener::bind_unix(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        drop(first);
        assert!(!path.exists(), "the file goes with the listener");

        std::fs::write(&path, "precious").unwrap();
        let error = Listener::bind_unix(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_file_that_is_another_ones_by_now_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("s");
        let first = Listener::bind_unix(&path).unwrap();
        let (aside, mine) = (home.path().join("aside"), path.clone());
        std::fs::rename(&path, &aside).unwrap();
        let second = Listener::bind_unix(&mine).unwrap();
        drop(first);
        assert!(path.exists(), "this one is the second's");
        drop(second);
        assert!(!path.exists());
    }
}
