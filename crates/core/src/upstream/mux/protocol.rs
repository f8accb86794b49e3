//! Protocol that the origin speaks: messages in it, and increments, which all else of the mux deals in.

use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;

use super::super::StreamId;
use super::super::response::{self, DecodedResponse, ProtocolError, ResponseError};
use super::super::sotw::{self, Reading, SotwStream};
use super::super::topic::OriginHabits;
use super::Mux;
use super::stream::Stream;
use crate::cache::Protocol;
use crate::proto::{DeltaDiscoveryResponse, DiscoveryResponse};
use crate::resource::TypeUrl;

/// Response as it came.
#[derive(Debug)]
pub(super) enum Incoming {
    Delta(DeltaDiscoveryResponse),
    Sotw(DiscoveryResponse),
}

impl Incoming {
    pub(super) fn type_url(&self) -> TypeUrl {
        TypeUrl::from(match self {
            Self::Delta(response) => response.type_url.as_str(),
            Self::Sotw(response) => response.type_url.as_str(),
        })
    }

    pub(super) fn nonce(&self) -> &str {
        match self {
            Self::Delta(response) => &response.nonce,
            Self::Sotw(response) => &response.nonce,
        }
    }

    /// Works out what the response changes of what came on its stream.
    pub(super) fn into_increments(
        self,
        sotw: Option<&mut SotwStream>,
        type_url: &TypeUrl,
    ) -> Result<Increments, ResponseError> {
        match (self, sotw) {
            (Self::Sotw(response), Some(sotw)) => sotw.read(response, type_url).map(Increments::Sotw),
            (Self::Delta(response), _) => Ok(Increments::Delta(response)),
            (Self::Sotw(_), None) => Err(ResponseError::new("the stream has ended")),
        }
    }
}

/// Response as increments.
#[derive(Debug)]
pub(super) enum Increments {
    Delta(DeltaDiscoveryResponse),
    Sotw(Reading),
}

impl Increments {
    pub(super) fn read(
        &self,
        type_url: &TypeUrl,
        tells_errors: bool,
    ) -> Result<DecodedResponse<'_>, ResponseError> {
        match self {
            Self::Delta(response) => response::read(response, type_url, tells_errors),
            Self::Sotw(Reading { response, is_whole, .. }) => {
                let mut reading = response::read(response, type_url, tells_errors)?;
                reading.is_whole = *is_whole;
                Ok(reading)
            }
        }
    }
}

impl Stream {
    /// Whether a request is encoded that waits for room.
    pub(super) fn has_encoded(&self) -> bool {
        self.sotw.as_ref().is_some_and(SotwStream::has_next)
    }
}

impl Mux {
    /// Sets the protocol of the origin. It holds for streams that are opened from now on; until then none is open.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        let speaks_sotw = protocol == Protocol::Sotw;
        self.set_habits(OriginHabits { speaks_sotw, ..self.habits });
    }

    pub(super) fn decode(&self, stream: StreamId, message: Bytes) -> Result<Incoming, ProtocolError> {
        let open = self.streams[stream as usize].as_ref();
        match open.and_then(|open| open.sotw.as_ref()) {
            Some(_) => sotw::decode(message).map(Incoming::Sotw),
            None => response::decode(message).map(Incoming::Delta),
        }
    }

    /// Next request for a stream that can take one, encoded in the protocol of the stream.
    pub fn next_message(&mut self, stream: StreamId, now: Instant) -> Option<Bytes> {
        loop {
            let open = self.streams[stream as usize].as_mut()?;
            if let Some(encoded) = open.sotw.as_mut().and_then(SotwStream::next) {
                return Some(encoded);
            }
            let request = self.next_request(stream, now)?;
            let open = self.streams[stream as usize].as_mut()?;
            match &mut open.sotw {
                Some(sotw) => sotw.ask(request),
                None => return Some(request.encode_to_vec().into()),
            }
        }
    }
}
