//! TLS in front of a server that speaks cleartext.
//!
//! It accepts with the configuration of the moment, and passes on what comes.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Identity};

/// Certificate that a server shows, and the one that it asks for.
pub struct Shown<'a> {
    pub leaf: &'a Identity,
    /// Authority that has to have certified clients; `None` asks for no certificate.
    pub clients: Option<&'a Authority>,
    pub alpn: &'a [&'a str],
    pub versions: &'a [&'static SupportedProtocolVersion],
}

impl<'a> Shown<'a> {
    pub const fn new(leaf: &'a Identity) -> Self {
        Self { leaf, clients: None, alpn: &["h2"], versions: rustls::ALL_VERSIONS }
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.versions)
            .unwrap();
        let builder = match self.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(self.leaf.chain(), self.leaf.key()).unwrap();
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A listening front. Dropping it closes everything.
#[derive(Debug)]
pub struct Front {
    port: u16,
    config: Arc<Mutex<Arc<ServerConfig>>>,
    cut: watch::Sender<u32>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Front {
    pub async fn start(behind: SocketAddr, shown: &Shown<'_>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Arc::new(Mutex::new(shown.config()));
        let cut = watch::Sender::new(0);
        let (current, cutting) = (Arc::clone(&config), cut.subscribe());
        let accepting = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let config = Arc::clone(&current.lock());
                let mut cutting = cutting.clone();
                cutting.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = cutting.changed() => {}
                        _ = serve(socket, config, behind) => {}
                    }
                });
            }
        });
        Self { port, config, cut, accepting }
    }

    /// Its URI, by this name or address of it.
    pub fn uri(&self, host: &str) -> String {
        format!("https://{host}:{}", self.port)
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// New connections are accepted so.
    pub fn show(&self, shown: &Shown<'_>) {
        *self.config.lock() = shown.config();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(socket: TcpStream, config: Arc<ServerConfig>, behind: SocketAddr) -> std::io::Result<()> {
    let mut outer = TlsAcceptor::from(config).accept(socket).await?;
    let mut inner = TcpStream::connect(behind).await?;
    tokio::io::copy_bidirectional(&mut outer, &mut inner).await?;
    Ok(())
}
