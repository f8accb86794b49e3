//! TLS on the connections of clients.

use std::sync::Arc;
use std::time::Instant;

use rustls::ServerConfig;
use tokio::io::AsyncBufReadExt as _;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};
use tonic_health::pb::health_server::Health;

use super::connection::{Connection, Credentials};
use super::connections::Connections;
use super::handshake::{HandshakeGivenUp, Handshakes};
use super::read_budget::ReadBudget;
use super::serve::{ConnectionError, PendingConnection, first_bytes_timed_out, serve_http1, serve_http2};
use super::server_state::ServerState;
use super::transport::{BoxedTransport, Peek, Transport};
use crate::fairness::LONGEST_HANDSHAKE_WAIT;
use crate::identity::{Certificate, Source};
use crate::telemetry;
use crate::tls;
use crate::tls::reload::Reloaded;
use crate::tls::server::{ServerTls, Shown};

#[derive(Clone, Debug)]
pub(super) struct TlsListener {
    settings: Reloaded<ServerTls>,
    handshakes: Handshakes,
    /// By result, so that one fault does not hide another.
    throttle: Arc<telemetry::LogThrottle<&'static str>>,
}

impl TlsListener {
    pub(super) fn new(settings: Reloaded<ServerTls>, handshakes: Handshakes) -> Self {
        Self { settings, handshakes, throttle: Arc::default() }
    }

    pub(super) async fn serve<H: Health>(
        self,
        socket: impl Transport + Peek + 'static,
        pending: PendingConnection<H>,
    ) -> Result<(), ConnectionError> {
        let source = pending.source;
        let settings = self.settings.load();
        // Boxed, so that a connection does not keep the memory of its handshake.
        let handshake = self.handshake(socket, settings.config(), &pending.connection, source);
        let Some(mut socket) = Box::pin(handshake).await? else { return Ok(()) };
        let (_, session) = socket.get_ref();
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let shown = session.peer_certificates().and_then(Shown::now);
        let certificate = match shown.as_ref().map(|shown| Certificate::from_der(shown.own())) {
            None => None,
            Some(Some(certificate)) => Some(Arc::new(certificate)),
            Some(None) => {
                telemetry::tls_handshake("bad_certificate");
                return Err("the client certificate was verified, but its subject cannot be parsed".into());
            }
        };
        if let Some(shown) = shown {
            let credentials = Credentials { shown, judge: self.settings.clone() };
            let credentials = pending.connections.admit(&pending.connection, credentials);
            // Loaded after the credentials are set: either the reload sees the connection, or the connection
            // sees the new settings.
            let now = self.settings.load();
            if !Arc::ptr_eq(&now, &settings) && !now.would_accept(&credentials.shown) {
                telemetry::tls_handshake("revoked");
                return Err(
                    "the client certificate was revoked, or its CA removed, since the handshake began".into(),
                );
            }
        }
        telemetry::tls_handshake("ok");
        let (services, _slot) = pending.services(certificate)?;
        if is_http2 {
            return serve_http2::<_, BoxedTransport>(socket, services).await;
        }
        // hyper has no timeout for the first request of an HTTP/1 connection.
        let limit = services.policy.limits.first_request_timeout;
        let connection = Arc::clone(&services.connection);
        tokio::select! {
            began = tokio::time::timeout(limit, socket.fill_buf()) => {
                began.map_err(|_| first_bytes_timed_out(limit))??;
            }
            () = connection.until_closing() => return Ok(()),
        }
        Box::pin(serve_http1::<_, BoxedTransport>(socket, services)).await
    }

    /// Closes connections with certificates no longer accepted, whenever the client CA or the revocation list
    /// is replaced; never returns.
    pub(super) async fn close_revoked(self, server: Arc<ServerState>, connections: Arc<Connections>) {
        let mut judged = self.settings.load();
        loop {
            let now = self.settings.replaced(&judged).await;
            let is_alike = now.judges_like(&judged);
            judged = now;
            if is_alike {
                continue;
            }
            let window = server.policy.load().drain();
            let (all, judge) = (Arc::clone(&connections), self.settings.clone());
            // On a blocking thread: verifying thousands of certificates takes seconds.
            let Ok((count, closing)) =
                tokio::task::spawn_blocking(move || all.close_unaccepted(&judge, window)).await
            else {
                continue;
            };
            if count > 0 {
                tracing::info!(
                    connections = count,
                    ?window,
                    "closing connections whose client certificates are not accepted any more"
                );
                // Spawned, so that the next reload does not wait for the pacing.
                tokio::spawn(closing);
            }
        }
    }

    /// Performs the handshake; `None` if the connection must close first.
    async fn handshake<IO: Transport + Peek>(
        &self,
        socket: IO,
        config: Arc<ServerConfig>,
        connection: &Connection,
        source: Source,
    ) -> Result<Option<Box<TlsStream<ReadBudget<IO>>>>, ConnectionError> {
        let limit = self.handshakes.timeout;
        let socket = ReadBudget::new(socket);
        let has_left = |accept: &Accept<ReadBudget<IO>>| {
            accept.get_ref().is_some_and(|socket| socket.get_ref().has_left())
        };
        let handshake = self.handshakes.schedule(TlsAcceptor::from(config).accept(socket), has_left);
        let done = tokio::select! {
            done = handshake => done,
            () = connection.until_closing() => {
                telemetry::tls_handshake("draining");
                return Ok(None);
            }
        };
        let (result, error) = match done {
            Ok(Ok(socket)) => return Ok(Some(Box::new(socket))),
            Ok(Err(error)) => (tls::server::failure(&error), ConnectionError::from(error)),
            Err(HandshakeGivenUp::TimedOut) => {
                ("timeout", format!("not done within {limit:?} (downstream.handshake_timeout)").into())
            }
            Err(HandshakeGivenUp::Waited) => {
                let wait = LONGEST_HANDSHAKE_WAIT;
                let text = format!(
                    "not begun within {wait:?}: too many clients connect at once; it has to come again"
                );
                ("waited", text.into())
            }
            Err(HandshakeGivenUp::Left) => {
                ("left", "the client closed the connection before its turn".into())
            }
        };
        telemetry::tls_handshake(result);
        if let Some(suppressed) = self.throttle.say(result, Instant::now()) {
            tracing::info!(%source, result, %error, suppressed, "TLS handshake of a client failed");
        }
        Err(format!("TLS handshake: {error}").into())
    }
}
