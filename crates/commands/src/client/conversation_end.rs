//! Ends of conversations with a server, with remedies.

use std::error::Error as _;

use deltafan_transport::call::{NotGrpcError, status_text};
use deltafan_transport::dial::{CLOSED, NOT_HTTP2};
use deltafan_transport::grpc::NOT_XDS;
use deltafan_transport::terminal::in_one_line;
use http::StatusCode;
use tonic::{Code, Status};

use super::Transport;
use crate::http1_client::NOT_HTTP1;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("{0}")]
    NoConnection(String),
    #[error("the server ended the stream")]
    InOrder,
    #[error("{}", answered(format!("{:?}", .0.code()), &in_one_line(.0.message().as_bytes())))]
    Refused(Status),
    /// Broken connection, with the cause.
    #[error("the connection was lost: {0}")]
    Lost(String),
    #[error("{0}")]
    NotGrpc(NotGrpcError),
    /// Answer to a poll, as one line.
    #[error("{}", answered(.0.to_string(), .1))]
    Http(StatusCode, String),
    /// Text of a server without an answer yet. It may be polled again.
    #[error("{0}")]
    NotYet(String),
    #[error("{}", in_one_line(format!("{:#}", .0).as_bytes()))]
    NotRest(anyhow::Error),
    #[error("{}", in_one_line(format!("{:#}", .0).as_bytes()))]
    Faulty(anyhow::Error),
}

/// Status of a server, and its text if any.
fn answered(status: String, words: &str) -> String {
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    format!("the server answered {status}{words}")
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        match status.source().and_then(|source| source.downcast_ref::<NotGrpcError>()) {
            Some(error) => Self::NotGrpc(error.clone()),
            // A server's status has no cause: this one was made here.
            None if status.source().is_some() => Self::Lost(status_text(&status)),
            None => Self::Refused(status),
        }
    }
}

impl Ended {
    /// Whether a server, such as a relay, has no answer yet.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == Code::Unavailable)
    }

    /// Whether stream or connection ended without a fault in earlier responses.
    pub(crate) const fn is_end(&self) -> bool {
        matches!(self, Self::InOrder | Self::Lost(_))
    }

    pub(crate) fn explain(self, transport: Transport) -> anyhow::Error {
        let text = self.to_string();
        // That text has the remedy.
        match self.remedy(transport).filter(|_| !text.contains(NOT_XDS)) {
            Some(remedy) => anyhow::anyhow!("{}; {remedy}", text.trim_end_matches('.')),
            None => anyhow::Error::msg(text),
        }
    }

    fn remedy(&self, transport: Transport) -> Option<&'static str> {
        const OTHER_PORT: &str = "check that --server has the port of xDS, and not one of an admin page or of a gateway without a \
                                  route for it; for a server of REST-JSON use --transport rest";
        const NO_REST: &str = "the server has no REST-JSON at this address; use --transport delta or sotw, or check the port of --server";
        let is_grpc = transport != Transport::Rest;
        match self {
            Self::NoConnection(why)
                if is_grpc && [NOT_HTTP2, CLOSED].iter().any(|text| why.contains(text)) =>
            {
                Some("for a server of REST-JSON use --transport rest")
            }
            Self::NoConnection(why)
                if !is_grpc && [NOT_HTTP1, CLOSED].iter().any(|text| why.contains(text)) =>
            {
                Some("for a server of gRPC use --transport delta or sotw")
            }
            Self::NotGrpc(_) => Some(OTHER_PORT),
            Self::Refused(status) if status.code() == Code::Unimplemented => Some(match transport {
                Transport::Delta => "it may have no delta xDS; use --transport sotw or rest",
                Transport::Sotw | Transport::Rest => {
                    "it may have no state-of-the-world ADS; use --transport delta or rest"
                }
            }),
            // Some TLS servers answer in cleartext.
            Self::Http(StatusCode::BAD_REQUEST, words) if words.contains("HTTPS") => Some("write https://"),
            Self::Http(status, _) if matches!(status.as_u16(), 404 | 405 | 415 | 426 | 501 | 505) => {
                Some(NO_REST)
            }
            Self::NotRest(_) => Some(NO_REST),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(ended: Ended, transport: Transport) -> String {
        ended.explain(transport).to_string()
    }

    #[test]
    fn an_error_is_one_line_with_one_remedy() {
        let http = |status: u16, text: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            explained(Ended::Http(status, in_one_line(text.as_bytes())), Transport::Rest)
        };
        assert_eq!(http(401, ""), "the server answered 401 Unauthorized");
        assert_eq!(
            http(404, "<html>\n<head><title>404 Not Found</title></head></html>"),
            "the server answered 404 Not Found: a page with the title `404 Not Found`; the server has no REST-JSON at this address; use \
             --transport delta or sotw, or check the port of --server"
        );
        let plain = "Client sent an HTTP request to an HTTPS server.\n";
        assert_eq!(
            http(400, plain),
            "the server answered 400 Bad Request: Client sent an HTTP request to an HTTPS server; write https://"
        );
        let status = Status::unavailable(format!("upstream\r\n{}", "long ".repeat(1_000)));
        let shown = explained(status.into(), Transport::Delta);
        assert!(shown.starts_with("the server answered Unavailable: upstream long long "), "{shown}");
        assert!(shown.chars().count() < 500 && shown.ends_with('…'), "{shown}");
    }

    #[test]
    fn an_admin_address_gives_the_only_remedy() {
        let words = format!("{NOT_XDS}, and more");
        let refused = Status::unimplemented(words.clone()).into();
        assert_eq!(
            explained(refused, Transport::Delta),
            format!("the server answered Unimplemented: {words}")
        );
        let refused = Ended::Http(StatusCode::NOT_FOUND, words.clone());
        assert_eq!(
            explained(refused, Transport::Rest),
            format!("the server answered 404 Not Found: {words}")
        );
    }
}
