//! Ends of a connection.

use std::time::Duration;

use http::Uri;
use tonic::{Code, Status};

use super::super::call::{is_of_server, is_reset};
use super::super::error_text::status_text;
use crate::cache::Protocol;

pub(super) enum Ended {
    /// No connection. The back-off grows.
    Unreachable(String),
    /// No response, or a malformed one. The back-off grows.
    Failed(String),
    /// The server reset the stream before any response. The back-off grows.
    Reset(String),
    /// The server does not implement ADS in this protocol. The back-off grows, and retrying helps little.
    Unfit(Protocol),
    /// Connection error after responses. The back-off restarts.
    Lost(String),
    /// Stream error after responses, on an open connection. The back-off restarts.
    Broken(String),
    /// Orderly end after responses (gRFC A57). The back-off restarts.
    Closed(String),
}

impl Ended {
    /// Returns the end of a stream by a status. `is_answered`: after responses.
    pub(super) fn by(status: &Status, protocol: Protocol, is_answered: bool) -> Self {
        match status.code() {
            Code::Unimplemented => Self::Unfit(protocol),
            _ if !is_answered && is_reset(status) => Self::Reset(status_text(status)),
            _ if !is_answered => Self::Failed(status_text(status)),
            _ if is_of_server(status) => Self::Broken(status_text(status)),
            _ => Self::Lost(status_text(status)),
        }
    }

    pub(super) fn orderly(is_answered: bool) -> Self {
        let reason = "it closed the stream without an error".to_owned();
        if is_answered { Self::Closed(reason) } else { Self::Failed(reason) }
    }

    pub(super) fn reason(self, server: &Uri) -> String {
        match self {
            Self::Unreachable(why)
            | Self::Failed(why)
            | Self::Reset(why)
            | Self::Lost(why)
            | Self::Broken(why)
            | Self::Closed(why) => why,
            Self::Unfit(Protocol::Delta) => format!(
                "the control plane at {server} does not implement delta ADS (UNIMPLEMENTED): have it serve AggregatedDiscoveryService.DeltaAggregatedResources, set upstream.servers[].protocol to auto or sotw, or set another server in upstream.servers",
            ),
            Self::Unfit(Protocol::Sotw) => format!(
                "the control plane at {server} does not implement ADS (UNIMPLEMENTED): have it serve AggregatedDiscoveryService.DeltaAggregatedResources, or StreamAggregatedResources with upstream.servers[].protocol set to auto or sotw, or set another server in upstream.servers",
            ),
        }
    }
}

pub(super) fn in_words(wait: Duration) -> String {
    format!("{:.1} s", wait.as_secs_f64())
}
