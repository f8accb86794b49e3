//! Protocol of the control plane, and messages in it.

use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;

use super::super::StreamId;
use super::super::response::{self, ProtocolError};
use super::super::sotw::{self, SotwStream};
use super::super::topic::OriginTraits;
use super::Mux;
use super::messages::Incoming;
use crate::cache::Protocol;

impl Mux {
    /// Sets the protocol for streams that are opened from now on. No stream may be open.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        let speaks_sotw = protocol == Protocol::Sotw;
        self.set_traits(OriginTraits { speaks_sotw, ..self.traits });
    }

    /// Whether anything was requested on an open stream.
    pub fn has_asked(&self, stream: StreamId) -> bool {
        self.streams[stream as usize].as_ref().is_some_and(|open| open.node_sent)
    }

    pub(super) fn decode(&self, stream: StreamId, message: Bytes) -> Result<Incoming, ProtocolError> {
        let open = self.streams[stream as usize].as_ref();
        match open.and_then(|open| open.sotw.as_ref()) {
            Some(_) => sotw::decode(message).map(Incoming::Sotw),
            None => response::decode(message).map(Incoming::Delta),
        }
    }

    /// Returns the next request of a stream, encoded in its protocol.
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
