//! The codecs of gRPC calls that the relay makes: messages come in as bytes, so that their reader decides what of them is looked
//! at, and go out encoded by prost or as the bytes that their writer made.

use bytes::{Buf, BufMut as _, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Header of a relay's gRPC streams. In responses it has the relay's version: a relay behind it learns by this that its origin answers
/// for each name, perhaps late. In requests it has the relay's identity: a relay that is asked by itself refuses (R-Relay-24), and knows
/// another one that shows the node of one of its clients.
pub const RELAY_HEADER: &str = "x-deltafan-relay";

/// Name under which the health service (`grpc.health.v1`) says whether the control plane answers. A relay behind this one watches
/// it: what it is not told of meanwhile is not known to be absent.
pub const UPSTREAM_SERVICE: &str = "deltafan.upstream";

/// Bytes before each message of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix {
    pub(crate) is_compressed: bool,
    /// Bytes of the message behind it.
    pub(crate) length: usize,
}

impl Prefix {
    /// Its own bytes.
    pub(crate) const LENGTH: usize = 5;

    /// Reads the prefix at the start of these bytes; `None` if they are too few.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let [compressed, length @ ..] = *bytes.first_chunk::<{ Self::LENGTH }>()?;
        Some(Self { is_compressed: compressed != 0, length: u32::from_be_bytes(length) as usize })
    }
}

/// Codec that encodes messages with prost and hands on received ones as bytes.
#[derive(Debug)]
pub struct RawCodec<T>(std::marker::PhantomData<T>);

impl<T> Default for RawCodec<T> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<T: Message + 'static> Codec for RawCodec<T> {
    type Encode = T;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = BytesCodec;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> BytesCodec {
        BytesCodec
    }
}

impl<T: Message> Encoder for RawCodec<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.reserve(item.encoded_len());
        item.encode(dst).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Bytes of messages that are written together.
const WRITE_SIZE: usize = 32 << 10;

/// Codec that takes encoded messages, of whatever type, and hands on received ones as bytes.
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

    /// Allocates for what is sent. By default a call keeps 8 KiB for as long as it lasts, and each node group has one.
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
