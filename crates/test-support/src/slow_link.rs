//! TCP link with a latency, whose far end can be moved to another server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Link that delivers every byte `latency` after it was sent, in each direction, without a limit on bandwidth. Dropping it ends
/// all of its connections.
#[derive(Debug)]
pub struct SlowLink {
    address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl SlowLink {
    pub async fn to(server: SocketAddr, latency: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = Arc::new(Mutex::new(server));
        let target = Arc::clone(&to);
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let server = *target.lock();
                connections.spawn(async move {
                    let Ok(far) = TcpStream::connect(server).await else { return };
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::select! {
                        () = carry(near_in, far_out, latency) => {}
                        () = carry(far_in, near_out, latency) => {}
                    }
                });
            }
        });
        Self { address, to, accepting }
    }

    pub fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Leads new connections to another server.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.to.lock() = server;
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, latency: Duration) {
    let (sent, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if sent.send((Instant::now() + latency, buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((at, bytes)) = arriving.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
