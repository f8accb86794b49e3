//! Client status discovery service (CSDS) as gRPC on the admin address.
//!
//! Owns paths and framing. Requests and responses are bytes; a [`Report`] knows their meaning.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Status, Streaming};

use super::answer_lane::Refusal;
use super::{BUSY, Lanes, Report};
use crate::grpc::BytesCodec;

const SERVICE: &str = "/envoy.service.status.v3.ClientStatusDiscoveryService/";
/// Seconds for which the relay's resources may be out of date.
const STALE: &str = "x-deltafan-stale-seconds";
/// Bytes.
const LARGEST_REQUEST: usize = 64 << 10;

#[derive(Debug)]
struct Service<R> {
    report: Arc<R>,
    lanes: Arc<Lanes>,
}

impl<R> Clone for Service<R> {
    fn clone(&self) -> Self {
        Self { report: Arc::clone(&self.report), lanes: Arc::clone(&self.lanes) }
    }
}

impl<R: Report> Service<R> {
    async fn answer(self, request: Bytes) -> Result<Bytes, Status> {
        let Self { report, lanes } = self;
        let look = lanes.looks.run(move |unread| Ok(unread.hold(report.client_status(&request)?)));
        look.await.unwrap_or_else(|refusal| {
            Err(match refusal {
                Refusal::Busy => Status::unavailable(BUSY),
                Refusal::Failed(reason) => Status::internal(reason),
            })
        })
    }

    fn response<T>(&self, message: T) -> tonic::Response<T> {
        let mut response = tonic::Response::new(message);
        let stale = self.report.stale_seconds().map(|seconds| format!("{seconds:.3}"));
        if let Some(value) = stale.and_then(|text| MetadataValue::try_from(text).ok()) {
            response.metadata_mut().insert(STALE, value);
        }
        response
    }
}

impl<R: Report> UnaryService<Bytes> for Service<R> {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<tonic::Response<Bytes>, Status>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let answer = service.clone().answer(request.into_inner()).await?;
            Ok(service.response(answer))
        })
    }
}

/// One per request, with the state when it is read.
type Answers = BoxStream<'static, Result<Bytes, Status>>;

impl<R: Report> StreamingService<Bytes> for Service<R> {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<'static, Result<tonic::Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let service = self.clone();
        let response = self.response(());
        Box::pin(async move {
            let requests = request.into_inner();
            let answers = requests.then(move |request| {
                let service = service.clone();
                async move { service.answer(request?).await }
            });
            Ok(response.map(|()| answers.boxed()))
        })
    }
}

pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path().starts_with(SERVICE)
}

pub(super) async fn answer<B>(
    request: Request<B>,
    report: Arc<impl Report>,
    lanes: Arc<Lanes>,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let unread = lanes.looks.unread().clone();
    let service = Service { report, lanes };
    let mut grpc = Grpc::new(BytesCodec).max_decoding_message_size(LARGEST_REQUEST);
    let response = match request.uri().path().strip_prefix(SERVICE) {
        Some("FetchClientStatus") => grpc.unary(service, request).await,
        Some("StreamClientStatus") => grpc.streaming(service, request).await,
        _ => Status::unimplemented("the service has FetchClientStatus and StreamClientStatus").into_http(),
    };
    // The codec copies messages: count their bytes anew.
    let count = move |frame: Frame<Bytes>| frame.map_data(|bytes| unread.hold(bytes));
    response.map(|body| Body::new(body.map_frame(count)))
}
