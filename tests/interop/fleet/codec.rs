//! prost messages over tonic, without generated services.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

pub(super) struct ProstCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for ProstCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Default + 'static> Codec for ProstCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Outgoing<T>;
    type Decoder = Incoming<U>;

    fn encoder(&mut self) -> Self::Encoder {
        Outgoing(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        Incoming(PhantomData)
    }
}

pub(super) struct Outgoing<T>(PhantomData<fn(T)>);

impl<T: Message> Encoder for Outgoing<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

pub(super) struct Incoming<U>(PhantomData<fn() -> U>);

impl<U: Message + Default> Decoder for Incoming<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = U::decode(buffer.copy_to_bytes(buffer.remaining()));
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
