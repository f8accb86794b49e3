//! Admin address: readiness, liveness, metrics, and the state of the control planes and of the clients.
//!
//! Owns its HTTP. The answers come from a [`Report`]; no request changes anything. Loopback by default,
//! because it has no authentication.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Source of the answers.
pub trait Report: Send + Sync + 'static {
    /// Whether clients should be sent here, or the reason against it.
    ///
    /// # Errors
    ///
    /// Reason against it, for operators.
    fn ready(&self) -> Result<(), String>;

    /// Metrics in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// State of the control planes and of the snapshot on disk.
    fn upstreams(&self) -> serde_json::Value;

    /// Answer to another path, which may take long, with the query behind it; `None` if there is no such page. Called on a
    /// thread of its own.
    fn look(&self, path: &str, query: &str) -> Option<Page>;
}

/// Answer to a look.
#[derive(Debug)]
pub enum Page {
    /// A document in JSON.
    Json(Vec<u8>),
    /// The query is wrong, with the reason.
    BadRequest(String),
    /// There is no such thing, with its name.
    NotFound(String),
    /// The relay failed, with the reason.
    Failed(String),
}

/// Bound admin address.
#[derive(Debug)]
pub struct Admin {
    socket: TcpListener,
    address: SocketAddr,
}

impl Admin {
    /// Binds an address.
    ///
    /// # Errors
    ///
    /// Error of the system if the address cannot be bound.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        Ok(Self { address: socket.local_addr()?, socket })
    }

    /// Returns the address, with the port that was chosen for port 0.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop`.
    pub async fn serve(self, report: Arc<impl Report>, stop: CancellationToken) {
        // Looks may take long and much memory: one at a time.
        let looks = Arc::new(Semaphore::new(1));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.socket.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (report, looks) = (Arc::clone(&report), Arc::clone(&looks));
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let (report, looks) = (Arc::clone(&report), Arc::clone(&looks));
                    async move { Ok::<_, Infallible>(answer(&request, report, &looks).await) }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(Duration::from_secs(10))
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "admin connection ends");
                }
            });
        }
    }
}

async fn answer(
    request: &Request<Incoming>,
    report: Arc<impl Report>,
    looks: &Semaphore,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/ready" => match report.ready() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
        },
        "/metrics" => {
            let mut response = text(StatusCode::OK, report.metrics());
            let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, format);
            response
        }
        "/upstreams" => json(format!("{:#}\n", report.upstreams())),
        path => {
            let (path, query) = (path.to_owned(), request.uri().query().unwrap_or_default().to_owned());
            match look(looks, move || report.look(&path, &query)).await {
                Some(Page::Json(document)) => json(document),
                Some(Page::BadRequest(reason)) => text(StatusCode::BAD_REQUEST, reason + "\n"),
                Some(Page::NotFound(reason)) => text(StatusCode::NOT_FOUND, reason + "\n"),
                Some(Page::Failed(reason)) => text(StatusCode::INTERNAL_SERVER_ERROR, reason + "\n"),
                None => text(StatusCode::NOT_FOUND, NO_PAGE),
            }
        }
    }
}

const NO_PAGE: &str = "no such page; there are /ready, /healthz, /metrics, /upstreams, /clients, /clients/ID, /nacks and /resources\n";

/// Runs a look on a thread of its own: the threads that serve clients do not wait for it.
async fn look(looks: &Semaphore, work: impl FnOnce() -> Option<Page> + Send + 'static) -> Option<Page> {
    let _turn = looks.acquire().await.ok()?;
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = move || drop(tell.send(work()));
    if let Err(error) = std::thread::Builder::new().name("admin".to_owned()).spawn(work) {
        return Some(Page::Failed(format!("there is no thread to be had: {error}")));
    }
    told.await.unwrap_or_else(|_| Some(Page::Failed("the relay failed; its log says why".to_owned())))
}

fn json(document: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::OK, document);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
