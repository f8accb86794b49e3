//! Admin address: page for people, readiness, liveness, metrics, state of control planes and clients.
//!
//! Owns its HTTP, and gRPC for CSDS. [`RelayStatus`] has the answers; only a POST changes anything. Loopback by
//! default, without authentication.

mod admin_orders;
mod admin_report;
mod answer_lane;
mod csds_service;
mod host_check;
mod page;
mod relay_status;
mod status_checks;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;

use self::answer_lane::Lane;
pub use self::relay_status::{LoadedConfig, Ready, RelayStatus};
use crate::downstream::{WireProtocol, WriteTimeout};
use crate::fleet::LookError;
use crate::grpc::NOT_XDS;
use crate::http2::{Limits, Serve};
use crate::routes::POLLED;

/// Open connections. A browser opens six, probes and Prometheus one each; each costs xDS clients a
/// descriptor.
const MOST: usize = 64;
/// For a connection's first bytes, and for a request's head.
const FIRST_BYTES: Duration = Duration::from_secs(10);
/// Without a request; then an HTTP/2 connection is asked to close.
const IDLE: Duration = Duration::from_secs(60);
/// A peer must take 32 KiB of waiting bytes in this time.
const STALL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Lanes {
    looks: Lane,
    /// Separate: a scrape waits for no look, nor for the room of answers to looks.
    scrapes: Lane,
}

#[derive(Debug)]
struct Shared {
    lanes: Arc<Lanes>,
    /// Besides those that no site can have.
    hosts: Box<[String]>,
}

#[derive(Debug)]
pub struct Admin {
    socket: TcpListener,
    /// With the chosen port instead of 0.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Admin {
    /// `hosts` are names of the address.
    ///
    /// # Errors
    ///
    /// Error of the system if the address cannot be bound.
    pub async fn bind(address: SocketAddr, hosts: &[String]) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let shared = Shared { lanes: Arc::default(), hosts: hosts.into() };
        Ok(Self { address: socket.local_addr()?, socket, shared: Arc::new(shared) })
    }

    /// Serves until `stop`. Beyond 64 open connections, others wait in the kernel.
    pub async fn serve(self, report: Arc<RelayStatus>, stop: CancellationToken) {
        let (places, http2) = (Arc::new(Semaphore::new(MOST)), Arc::new(http2_limits()));
        let accept = async || {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, self.socket.accept().await)
        };
        loop {
            let (place, accepted) = tokio::select! {
                () = stop.cancelled() => return,
                accepted = accept() => accepted,
            };
            let Ok((socket, peer)) = accepted else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (report, shared, http2) = (Arc::clone(&report), Arc::clone(&self.shared), Arc::clone(&http2));
            tokio::spawn(async move {
                let _place = place;
                if let Err(error) = serve_connection(socket, peer, report, shared, http2).await {
                    tracing::debug!(%error, "admin connection ends");
                }
            });
        }
    }
}

const fn http2_limits() -> Limits {
    Limits {
        max_streams: 16,
        stream_window: 64 << 10,
        connection_window: 1 << 20,
        max_head_bytes: 16 << 10,
        head_timeout: FIRST_BYTES,
        idle_timeout: IDLE,
        keepalive_interval: FIRST_BYTES,
        keepalive_timeout: FIRST_BYTES,
        stall_timeout: STALL,
    }
}

/// Serves HTTP/1, or HTTP/2 after its preface.
async fn serve_connection(
    mut socket: TcpStream,
    peer: SocketAddr,
    report: Arc<RelayStatus>,
    shared: Arc<Shared>,
    http2: Arc<Limits>,
) -> anyhow::Result<()> {
    let (protocol, start) = timeout(FIRST_BYTES, WireProtocol::sniff(&mut socket)).await??;
    if protocol == WireProtocol::Http2 {
        let answer = move |request| respond(request, peer, Arc::clone(&report), Arc::clone(&shared));
        return Ok(Serve::new(socket, http2, answer).behind(&start).await?);
    }
    let answer = move |request: Request<Incoming>| {
        respond(request, peer, Arc::clone(&report), Arc::clone(&shared)).map(Ok::<_, Infallible>)
    };
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(FIRST_BYTES);
    let socket = WriteTimeout::new(start, socket, STALL);
    Ok(http1.serve_connection(TokioIo::new(socket), service_fn(answer)).await?)
}

async fn respond<B>(
    request: Request<B>,
    peer: SocketAddr,
    report: Arc<RelayStatus>,
    shared: Arc<Shared>,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let is_head = request.method() == Method::HEAD;
    let response = if let Err(reason) = host_check::check(&request, &shared.hosts) {
        plain(text(StatusCode::FORBIDDEN, reason))
    } else if csds_service::is_call(&request) {
        csds_service::answer(request, report, Arc::clone(&shared.lanes)).await
    } else if is_grpc(&request) {
        // Before its requests end: mostly an xDS client has the wrong port.
        Status::unimplemented(format!("{NOT_XDS}; CSDS is the only gRPC service here")).into_http()
    } else {
        let (head, body) = request.into_parts();
        plain(match pass_over(body).await {
            Err(refusal) => refusal,
            Ok(()) if head.uri.path().starts_with(POLLED) => {
                text(StatusCode::NOT_FOUND, format!("{NOT_XDS}\n"))
            }
            Ok(()) if head.method == Method::POST => {
                order(&head, &report, peer).unwrap_or_else(|| not_allowed("GET, HEAD"))
            }
            Ok(()) => answer(&head, report, &shared.lanes).await,
        })
    };
    if is_head { without_body(response) } else { response }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content = request.headers().get(header::CONTENT_TYPE);
    content.is_some_and(|content| content.as_bytes().starts_with(b"application/grpc"))
}

/// Reads and ignores a request's body. Otherwise HTTP/2 resets the stream, which may lose the answer.
async fn pass_over<B>(body: B) -> Result<(), Response<Full<Bytes>>>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    const LARGEST: usize = 64 << 10;
    const WITHIN: Duration = Duration::from_secs(10);
    match timeout(WITHIN, Limited::new(body, LARGEST).collect()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(text(StatusCode::PAYLOAD_TOO_LARGE, "requests have no body here\n")),
        Err(_) => Err(text(StatusCode::REQUEST_TIMEOUT, "the body of the request has not come\n")),
    }
}

fn without_body(mut response: Response<Body>) -> Response<Body> {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response.map(|_| Body::empty())
}

fn plain(response: Response<Full<Bytes>>) -> Response<Body> {
    response.map(Body::new)
}

fn not_allowed(allowed: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(
        StatusCode::METHOD_NOT_ALLOWED,
        "pages are read with GET, orders are given with POST, and CSDS is gRPC; this path takes none of these but the one in `allow`\n",
    );
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

async fn answer(request: &Parts, report: Arc<RelayStatus>, lanes: &Lanes) -> Response<Full<Bytes>> {
    if admin_orders::is_order(request.uri.path()) {
        return not_allowed("POST");
    }
    if request.method != Method::GET && request.method != Method::HEAD {
        return not_allowed("GET, HEAD");
    }
    if let Some(file) = page::answer(request) {
        return file;
    }
    match request.uri.path() {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/ready" => match report.ready() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
        },
        "/metrics" => {
            let text = lanes.scrapes.run(move |unread| Ok(unread.hold(report.metrics()))).await;
            answered(text, "text/plain; version=0.0.4; charset=utf-8")
        }
        path => {
            let (path, query) = (path.to_owned(), request.uri.query().unwrap_or_default().to_owned());
            // Small, and wanted when other looks are slow.
            let is_short = matches!(&*path, "/upstreams" | "/status") && query.is_empty();
            let lane = if is_short { &lanes.scrapes } else { &lanes.looks };
            let look = lane.run(move |unread| {
                let none = || Err(LookError::Missing(NO_PAGE.to_owned()));
                report.look(&path, &query).unwrap_or_else(none).map(|document| unread.hold(document))
            });
            answered(look.await, JSON)
        }
    }
}

const JSON: &str = "application/json";

const NO_PAGE: &str = "no such page; there are /, /ready, /healthz, /metrics, /server_info, /status, /upstreams, /clients, /clients/ID, /nacks, /resources, \
                       /history, /config_dump and /rollout";

/// Follows an operator's order, if the request is one. Refuses orders from a page of another site.
fn order(request: &Parts, report: &RelayStatus, peer: SocketAddr) -> Option<Response<Full<Bytes>>> {
    let path = request.uri.path();
    if admin_orders::is_order(path) && is_of_other_site(request) {
        let reason = "an order of a page of another site (`origin`, `sec-fetch-site`) is not followed\n";
        return Some(text(StatusCode::FORBIDDEN, reason));
    }
    let ordered = admin_orders::follow(report, path, request.uri.query().unwrap_or_default(), peer)?;
    Some(answered(ordered, JSON))
}

/// Whether a page of another site made a browser send this. Not every browser sends `origin` with a form, or
/// `sec-fetch-site`.
fn is_of_other_site(request: &Parts) -> bool {
    let site = request.headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        return true;
    }
    let Some(origin) = request.headers.get(header::ORIGIN) else { return false };
    let own = request.headers.get(header::HOST).map(HeaderValue::as_bytes);
    own.is_none_or(|own| origin.as_bytes().strip_prefix(b"http://") != Some(own))
}

fn answered(look: Result<impl Into<Bytes>, LookError>, kind: &'static str) -> Response<Full<Bytes>> {
    let error = match look {
        Ok(document) => {
            let mut response = text(StatusCode::OK, document);
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            return response;
        }
        Err(error) => error,
    };
    let status = match error {
        LookError::Wrong(_) | LookError::TooLarge(_) => StatusCode::BAD_REQUEST,
        LookError::Missing(_) => StatusCode::NOT_FOUND,
        LookError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        LookError::Busy => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = text(status, format!("{error}\n"));
    if error == LookError::Busy {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    // It has names and texts of peers: no browser may take it for a page.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
