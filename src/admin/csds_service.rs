//! Client status discovery service (CSDS) as gRPC on the admin address.
//!
//! Owns paths and framing. Requests and responses are bytes; [`RelayStatus`] knows their meaning.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::server::Grpc;
use tonic::{Status, Streaming};

use super::Lanes;
use super::relay_status::RelayStatus;
use crate::fleet::LookError;
use crate::grpc::BytesCodec;

const SERVICE: &str = "/envoy.service.status.v3.ClientStatusDiscoveryService/";
/// Seconds for which the relay's resources may be out of date.
const STALE: &str = "x-deltafan-stale-seconds";
/// Bytes.
const LARGEST_REQUEST: usize = 64 << 10;

pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path().starts_with(SERVICE)
}

async fn client_status(report: Arc<RelayStatus>, lanes: Arc<Lanes>, request: Bytes) -> Result<Bytes, Status> {
    let look = lanes.looks.run(move |unread| report.client_status(&request).map(|found| unread.hold(found)));
    look.await.map_err(|error| match error {
        LookError::TooLarge(why) => Status::resource_exhausted(why),
        LookError::Busy => Status::unavailable(error.to_string()),
        LookError::Failed(reason) => Status::internal(reason),
        LookError::Wrong(_) | LookError::Missing(_) => Status::invalid_argument(error.to_string()),
    })
}

pub(super) async fn answer<B>(
    request: Request<B>,
    report: Arc<RelayStatus>,
    lanes: Arc<Lanes>,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let (unread, stale) = (lanes.looks.unread.clone(), report.stale_seconds());
    // An answer per request, with the state when it is read.
    let service = tower::service_fn(move |requests: tonic::Request<Streaming<Bytes>>| {
        let (report, lanes) = (Arc::clone(&report), Arc::clone(&lanes));
        let one = move |request| client_status(Arc::clone(&report), Arc::clone(&lanes), request);
        let answers = requests.into_inner().and_then(one);
        let mut response = tonic::Response::new(answers);
        let stale = stale.map(|seconds| format!("{seconds:.3}"));
        if let Some(value) = stale.and_then(|text| MetadataValue::try_from(text).ok()) {
            response.metadata_mut().insert(STALE, value);
        }
        std::future::ready(Ok(response))
    });
    let mut grpc = Grpc::new(BytesCodec).max_decoding_message_size(LARGEST_REQUEST);
    let response = match request.uri().path().strip_prefix(SERVICE) {
        // To one request, a stream of answers has one.
        Some("FetchClientStatus" | "StreamClientStatus") => grpc.streaming(service, request).await,
        _ => Status::unimplemented("the service has FetchClientStatus and StreamClientStatus").into_http(),
    };
    // The codec copies messages: count their bytes anew.
    let count = move |frame: Frame<Bytes>| frame.map_data(|bytes| unread.hold(bytes));
    response.map(|body| Body::new(body.map_frame(count)))
}
