//! gRPC call to the control plane: encoded requests go out, encoded responses come in.
//!
//! Owns the framing of messages in HTTP/2 bodies, the final status, and errors as text. Knows nothing of the
//! messages' content.
//!
//! Invariant: nothing is held between two responses. tonic's reader keeps a buffer as large as the largest
//! one: 800 MiB with 2,000 node groups and responses of 400 KiB. It also panics if the details of a status
//! are not base64.

use std::error::Error;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use h2::Reason;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version, response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use percent_encoding::percent_decode;
use tonic::body::Body;
use tonic::codec::EncodeBody;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::Service as _;

use crate::grpc::{BytesCodec, Prefix};
use crate::transfer::{Transfer, now};

const GRPC: &str = "application/grpc";
const GRPC_STATUS: &str = "grpc-status";
const GRPC_MESSAGE: &str = "grpc-message";

/// HTTP answer without gRPC: the source of its status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is none of gRPC: HTTP status {status}, content-type `{content_type}`", status = .status.as_u16())]
pub struct NotGrpcError {
    status: StatusCode,
    /// Escaped.
    content_type: String,
}

/// Bytes behind a message that are copied, so that they do not keep its allocation.
const SHORT: usize = 1 << 10;

/// Makes a call with these headers beside those of gRPC. Returns the response's headers and messages of at
/// most `max_message` bytes. `transfer` notes arrived parts.
///
/// # Errors
///
/// A status if the server cannot be reached, or answers with only a status, or not by gRPC.
pub async fn call(
    mut channel: Channel,
    path: &'static str,
    headers: HeaderMap,
    requests: impl Stream<Item = Bytes> + Send + 'static,
    max_message: usize,
    transfer: Transfer,
) -> Result<(HeaderMap, impl Stream<Item = Result<Bytes, Status>> + Send), Status> {
    let requests = EncodeBody::new_client(BytesCodec, requests.map(Ok), None, None);
    let mut request = Request::new(Body::new(requests));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = Uri::from_static(path);
    *request.headers_mut() = headers;
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));

    let ready = poll_fn(|context| channel.poll_ready(context)).await;
    ready.map_err(unreachable)?;
    let response = channel.call(request).await.map_err(|error| Status::from_error(error.into()))?;
    let (head, body) = response.into_parts();
    let is_over = check(&head)?;
    let messages = Messages { body, is_over, buffer: Buffer::new(max_message), transfer };
    Ok((head.headers, stream::try_unfold(messages, Messages::next)))
}

fn unreachable(error: tonic::transport::Error) -> Status {
    let mut status = Status::unavailable(reasons(&error));
    status.set_source(Arc::new(error));
    status
}

/// Whether the server sent this status: in headers, in trailers, by RST_STREAM or as another HTTP answer.
/// False for the end of the connection and faults of this process.
pub fn is_of_server(status: &Status) -> bool {
    status.source().is_none()
        || causes(status).any(|cause| cause.is::<NotGrpcError>())
        || h2_error(status).is_some_and(h2::Error::is_reset)
}

/// Whether the server reset a call, but not because it was too busy to look at it.
pub fn is_reset(status: &Status) -> bool {
    let is_busy = |error: &h2::Error| {
        matches!(error.reason(), Some(Reason::REFUSED_STREAM | Reason::ENHANCE_YOUR_CALM))
    };
    h2_error(status).is_some_and(|error| error.is_reset() && error.is_remote() && !is_busy(error))
}

fn h2_error(status: &Status) -> Option<&h2::Error> {
    causes(status).find_map(|cause| cause.downcast_ref())
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |&error| error.source())
}

/// Whether the call ends with this gRPC response head.
fn check(head: &response::Parts) -> Result<bool, Status> {
    if let Some(status) = final_status(&head.headers) {
        return status.map(|()| true);
    }
    let content = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let format = content.strip_prefix(GRPC.as_bytes()).map(<[u8]>::first);
    // `application/grpc+proto`, but not `application/grpc-web`, which frames messages differently.
    let is_grpc = matches!(format, Some(None | Some(b'+' | b';')));
    if head.status != StatusCode::OK || !is_grpc {
        let error = NotGrpcError { status: head.status, content_type: content.escape_ascii().to_string() };
        let mut status = Status::new(code_of(head.status), error.to_string());
        status.set_source(Arc::new(error));
        return Err(status);
    }
    Ok(false)
}

/// Status in headers or trailers.
fn final_status(headers: &HeaderMap) -> Option<Result<(), Status>> {
    let code = Code::from_bytes(headers.get(GRPC_STATUS)?.as_bytes());
    if code == Code::Ok {
        return Some(Ok(()));
    }
    let message = headers.get(GRPC_MESSAGE).map(HeaderValue::as_bytes).unwrap_or_default();
    Some(Err(Status::new(code, percent_decode(message).decode_utf8_lossy())))
}

/// gRPC code for an HTTP answer (grpc/doc/http-grpc-status-mapping.md). But 404 is not UNIMPLEMENTED: it
/// comes from a gateway without a route, not from the control plane.
const fn code_of(status: StatusCode) -> Code {
    match status {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    }
}

struct Messages {
    body: Body,
    is_over: bool,
    buffer: Buffer,
    transfer: Transfer,
}

impl Messages {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Status> {
        let mut came = 0;
        loop {
            let message = self.buffer.take()?;
            self.transfer.read(came, !self.buffer.bytes.is_empty(), now());
            if let Some(message) = message {
                return Ok(Some((message, self)));
            }
            if self.is_over {
                return Ok(None);
            }
            let frame = self.body.frame().await.transpose()?;
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => {
                    came = data.len();
                    self.buffer.bytes.extend_from_slice(&data);
                }
                end => {
                    let trailers = end.and_then(|frame| frame.err()?.into_trailers().ok());
                    let status = trailers.as_ref().and_then(final_status);
                    status.unwrap_or_else(|| Err(Status::unknown("the call ended without a status")))?;
                    if !self.buffer.bytes.is_empty() {
                        return Err(Status::internal("the call ended within a message"));
                    }
                    return Ok(None);
                }
            }
        }
    }
}

/// Arrived bytes that are no message yet.
struct Buffer {
    bytes: BytesMut,
    max_message: usize,
}

impl Buffer {
    fn new(max_message: usize) -> Self {
        Self { bytes: BytesMut::new(), max_message }
    }

    /// First message, if complete.
    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(Prefix { is_compressed, length }) = Prefix::of(&self.bytes) else { return Ok(None) };
        if is_compressed {
            return Err(Status::internal(
                "a message is compressed, or none of gRPC; no compression was offered",
            ));
        }
        if length > self.max_message {
            return Err(Status::out_of_range(format!(
                "a message has {length} bytes; the limit is {} bytes",
                self.max_message
            )));
        }
        if self.bytes.len() - Prefix::LENGTH < length {
            return Ok(None);
        }
        self.bytes.advance(Prefix::LENGTH);
        let message = self.bytes.split_to(length).freeze();
        if self.bytes.len() < SHORT {
            // Gives the allocation to the message alone.
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        Ok(Some(message))
    }
}

/// Formats a status as `UNAVAILABLE: message`, with its causes.
pub fn status_text(status: &Status) -> String {
    let mut code = String::new();
    for (at, letter) in format!("{:?}", status.code()).char_indices() {
        if letter.is_uppercase() && at > 0 {
            code.push('_');
        }
        code.push(letter.to_ascii_uppercase());
    }
    let mut text = match status.message() {
        "" => code,
        message => format!("{code}: {message}"),
    };
    add_causes(&mut text, status);
    text
}

/// Formats an error with its causes: tonic's own text is often just "transport error".
pub fn reasons(error: &dyn Error) -> String {
    let mut text = error.to_string();
    add_causes(&mut text, error);
    text
}

fn add_causes(text: &mut String, error: &dyn Error) {
    let mut cause = error.source();
    while let Some(error) = cause {
        let reason = error.to_string();
        if !text.contains(&reason) {
            write!(text, ": {reason}").ok();
        }
        cause = error.source();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("it is short");
        [&[0], &length.to_be_bytes()[..], message].concat()
    }

    proptest! {
        #[test]
        fn messages_are_read_however_they_are_cut(messages: Vec<Vec<u8>>, cut in 1_usize..20) {
            let sent: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            let (mut buffer, mut read) = (Buffer::new(1000), Vec::new());
            for part in sent.chunks(cut) {
                buffer.bytes.extend_from_slice(part);
                while let Some(message) = buffer.take().expect("all are within the limit") {
                    read.push(message);
                }
            }
            prop_assert_eq!(read, messages);
            prop_assert_eq!(buffer.bytes.capacity(), 0, "nothing is held between messages");
        }
    }

    #[test]
    fn a_message_over_the_limit_is_refused_by_its_prefix() {
        let mut buffer = Buffer::new(3);
        buffer.bytes.extend_from_slice(&framed(b"abc"));
        assert_eq!(buffer.take().expect("within the limit"), Some(Bytes::from("abc")));
        buffer.bytes.extend_from_slice(&framed(b"abcd")[..Prefix::LENGTH]);
        assert_eq!(buffer.take().expect_err("over the limit").code(), Code::OutOfRange);
    }

    #[test]
    fn an_answer_that_is_not_grpc_is_told_with_its_http_status() {
        let head = |status: u16, headers: &[(&'static str, &str)]| {
            let mut response = http::Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            check(&response.body(()).expect("good headers").into_parts().0)
        };
        let grpc = ("content-type", "application/grpc+proto");
        assert!(!head(200, &[grpc]).expect("a call that goes on"));
        assert!(head(200, &[grpc, ("grpc-status", "0")]).expect("a call that is over"));
        let refused = head(200, &[("grpc-status", "12"), ("grpc-message", "no%20%FF")]);
        let refused = refused.expect_err("a status");
        assert_eq!((refused.code(), refused.message()), (Code::Unimplemented, "no \u{fffd}"));
        let web = head(200, &[("content-type", "application/grpc-web+proto")]);
        assert_eq!(web.expect_err("no gRPC").code(), Code::Unknown);
        assert_eq!(head(404, &[grpc]).expect_err("no gRPC").code(), Code::Unavailable);
        let gateway = head(503, &[("content-type", "text/html")]).expect_err("no gRPC");
        assert_eq!(gateway.code(), Code::Unavailable);
        assert_eq!(
            gateway.message(),
            "the answer is none of gRPC: HTTP status 503, content-type `text/html`"
        );
        assert_eq!(head(200, &[]).expect_err("no gRPC").code(), Code::Unknown);
    }

    #[test]
    fn a_status_is_told_in_words() {
        let status = Status::deadline_exceeded("too late");
        assert_eq!(status_text(&status), "DEADLINE_EXCEEDED: too late");
        let cause = std::io::Error::other("connection reset by peer");
        let mut status = Status::unknown("h2 protocol error");
        status.set_source(std::sync::Arc::new(cause));
        assert_eq!(status_text(&status), "UNKNOWN: h2 protocol error: connection reset by peer");
        assert_eq!(status_text(&Status::unavailable("")), "UNAVAILABLE");
    }
}
