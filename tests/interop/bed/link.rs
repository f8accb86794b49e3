//! A link between clients and their server that can be cut.

use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    task::{JoinHandle, JoinSet},
};

use super::free_port;

pub(crate) struct Link {
    port: u16,
    behind: u16,
    runtime: Runtime,
    /// None while it is cut.
    carrying: Mutex<Option<JoinHandle<()>>>,
}

impl Link {
    /// Carries connections to a port.
    pub(crate) fn to(behind: u16) -> Self {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let link = Self { port: free_port(), behind, runtime, carrying: Mutex::default() };
        link.mend();
        link
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Ends all connections and refuses new ones.
    pub(crate) fn cut(&self) {
        let carrying = self.carrying.lock().take().expect("it is not cut already");
        carrying.abort();
        // It ends with an error, as it was aborted; then the port is closed.
        self.runtime.block_on(carrying).unwrap_err();
    }

    /// Carries connections again.
    pub(crate) fn mend(&self) {
        let listener = self.runtime.block_on(TcpListener::bind(("127.0.0.1", self.port))).unwrap();
        let behind = self.behind;
        let carrying = self.runtime.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut outer, _) = listener.accept().await.unwrap();
                connections.spawn(async move {
                    let mut inner = TcpStream::connect(("127.0.0.1", behind)).await?;
                    copy_bidirectional(&mut outer, &mut inner).await
                });
            }
        });
        *self.carrying.lock() = Some(carrying);
    }
}
