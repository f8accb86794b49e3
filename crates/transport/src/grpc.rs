//! Codecs of the relay's gRPC calls. Messages arrive as bytes, so that readers decide how much to parse. They
//! leave encoded by prost, or as ready bytes.

use bytes::{Buf, BufMut as _, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Header of a relay's gRPC streams. In responses it has the relay's version: a relay behind it learns that
/// its control plane answers each name, perhaps late. In requests it has the relay's identity: a relay
/// refuses its own requests (R-Relay-24), and recognizes another relay that shows a client's node.
pub const RELAY_HEADER: &str = "x-deltafan-relay";

/// Name in `grpc.health.v1` for whether the control plane answers. A relay behind this one watches it:
/// silence meanwhile does not prove that a resource is absent.
pub const UPSTREAM_SERVICE: &str = "deltafan.upstream";

/// Beginning of the answer of an admin address to an xDS client.
pub const NOT_XDS: &str =
    "this is the admin address of the relay; xDS is served at the addresses of `downstream.listeners`";

/// Precedes each message of a body.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    pub is_compressed: bool,
    /// Bytes of the message.
    pub length: usize,
}

impl Prefix {
    pub const LENGTH: usize = 5;

    /// Reads a prefix; `None` if there are too few bytes.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let [compressed, length @ ..] = *bytes.first_chunk::<{ Self::LENGTH }>()?;
        Some(Self { is_compressed: compressed != 0, length: u32::from_be_bytes(length) as usize })
    }
}

/// Bytes written together.
const WRITE_SIZE: usize = 32 << 10;

/// Sends encoded messages of any type, and returns received ones as bytes.
#[derive(Clone, Copy, Debug)]
pub struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.reserve(item.len());
        dst.put(item);
        Ok(())
    }

    /// Allocates for sending only. By default each call keeps 8 KiB, and each node group has a call.
    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(0, WRITE_SIZE)
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining())))
    }
}
