//! Ends of conversations with a server, in words that say what to try.

use std::error::Error as _;

use http::StatusCode;
use tonic::{Code, Status};

use super::transport::Transport;
use crate::upstream::{CLOSED, NOT_HTTP2, NotGrpcError, status_text};

/// End of a conversation with a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// No connection, with the cause.
    #[error("{0}")]
    NoConnection(String),
    /// Not an error of the protocol.
    #[error("the server ended the stream")]
    InOrder,
    /// Status of a call.
    #[error("the server answered {:?}: {}", .0.code(), .0.message())]
    Refused(Status),
    /// Connection that broke, with the cause.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// Answer in HTTP that is none of gRPC.
    #[error("{0}")]
    NotGrpc(NotGrpcError),
    /// Answer to a poll, with its words.
    #[error("the server answered {0}: {1}")]
    Http(StatusCode, String),
    /// Words of a server that has no answer to a poll yet. It may be polled again.
    #[error("{0}")]
    NotYet(String),
    /// Answer that cannot be read.
    #[error("{0:#}")]
    Faulty(anyhow::Error),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        match status.source().and_then(|source| source.downcast_ref::<NotGrpcError>()) {
            Some(error) => Self::NotGrpc(error.clone()),
            // Servers give no cause: this status was made here.
            None if status.source().is_some() => Self::Lost(status_text(&status)),
            None => Self::Refused(status),
        }
    }
}

impl Ended {
    /// Whether a relay, or another server, says that it has no answer yet.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code() == Code::Unavailable)
    }

    /// The error, and what to try with this transport.
    pub(crate) fn explain(self, transport: Transport) -> anyhow::Error {
        let text = self.to_string();
        match self.remedy(transport) {
            Some(remedy) => anyhow::anyhow!("{text}; {remedy}"),
            None => anyhow::Error::msg(text),
        }
    }

    fn remedy(&self, transport: Transport) -> Option<&'static str> {
        const OTHER_PORT: &str = "check that --server has the port of xDS, and not one of an admin page or of a gateway without a \
                                  route for it; for a server of REST-JSON use --transport rest";
        const NO_REST: &str =
            "it serves no REST-JSON here; use --transport delta or sotw, or check the port of --server";
        match (self, transport) {
            (Self::NoConnection(why), Transport::Delta | Transport::Sotw)
                if [NOT_HTTP2, CLOSED].iter().any(|text| why.contains(text)) =>
            {
                Some("for a server of REST-JSON use --transport rest")
            }
            (Self::NotGrpc(_), _) => Some(OTHER_PORT),
            (Self::Refused(status), _) if status.code() == Code::Unimplemented => Some(match transport {
                Transport::Delta => "it may have no delta xDS; use --transport sotw or rest",
                Transport::Sotw | Transport::Rest => {
                    "it may have no state-of-the-world ADS; use --transport delta or rest"
                }
            }),
            (Self::Http(status, _), _) if matches!(status.as_u16(), 404 | 405 | 415 | 426 | 501 | 505) => {
                Some(NO_REST)
            }
            (Self::Faulty(_), Transport::Rest) => Some(NO_REST),
            _ => None,
        }
    }
}
