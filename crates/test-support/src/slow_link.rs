//! TCP link with a latency and a bandwidth, which can stall or break, and whose far end can be moved to another server.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Most bytes that travel together.
const PIECE: usize = 64 << 10;

/// Link that delivers every byte `latency` after it was sent, in each direction. Dropping it ends all of its connections.
#[derive(Debug)]
pub struct SlowLink {
    address: SocketAddr,
    state: watch::Sender<State>,
    accepting: tokio::task::JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    to: SocketAddr,
    latency: Duration,
    /// `None`: no limit.
    bytes_per_second: Option<usize>,
    is_stalled: bool,
    /// Times that all connections were broken.
    breaks: usize,
}

impl SlowLink {
    pub async fn to(server: SocketAddr, latency: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, current) = watch::channel(State {
            to: server,
            latency,
            bytes_per_second: None,
            is_stalled: false,
            breaks: 0,
        });
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                connections.spawn(connect(near, current.clone()));
            }
        });
        Self { address, state, accepting }
    }

    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Leads new connections to another server.
    pub fn lead_to(&self, server: SocketAddr) {
        self.state.send_modify(|state| state.to = server);
    }

    /// Changes the latency of bytes that are sent from now on.
    pub fn delay(&self, latency: Duration) {
        self.state.send_modify(|state| state.latency = latency);
    }

    /// Carries so many bytes in a second in each direction of a connection.
    pub fn narrow(&self, bytes_per_second: usize) {
        self.state.send_modify(|state| state.bytes_per_second = Some(bytes_per_second));
    }

    /// Delivers nothing until it goes on: lost packets, for as long as it takes to send them again.
    pub fn stall(&self) {
        self.state.send_modify(|state| state.is_stalled = true);
    }

    pub fn go_on(&self) {
        self.state.send_modify(|state| state.is_stalled = false);
    }

    /// Resets all connections. New ones are accepted.
    pub fn break_connections(&self) {
        self.state.send_modify(|state| state.breaks += 1);
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connect(mut near: TcpStream, mut state: watch::Receiver<State>) {
    let State { to, breaks, .. } = *state.borrow();
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let is_broken = {
        let ((near_in, near_out), (far_in, far_out)) = (near.split(), far.split());
        tokio::select! {
            () = carry(near_in, far_out, state.clone()) => false,
            () = carry(far_in, near_out, state.clone()) => false,
            _ = state.wait_for(|state| state.breaks != breaks) => true,
        }
    };
    if is_broken {
        // Reset, not closed.
        near.set_zero_linger().unwrap();
        far.set_zero_linger().unwrap();
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
) {
    let (sent, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let current = state.clone();
    let read = async move {
        let mut buffer = vec![0; PIECE];
        loop {
            let State { latency, bytes_per_second, .. } = *current.borrow();
            let most = bytes_per_second.map_or(PIECE, |bytes| bytes.div_ceil(50).min(PIECE));
            let Ok(length @ 1..) = from.read(&mut buffer[..most]).await else { return };
            if sent.send((Instant::now() + latency, buffer[..length].to_vec())).await.is_err() {
                return;
            }
            if let Some(bytes) = bytes_per_second {
                sleep(Duration::from_secs(1) * length as u32 / bytes as u32).await;
            }
        }
    };
    let write = async {
        while let Some((at, bytes)) = arriving.recv().await {
            sleep_until(at).await;
            if state.wait_for(|state| !state.is_stalled).await.is_err() || to.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
