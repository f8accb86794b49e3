//! The protobuf wire format, as far as the relay reads and splices it without decoding messages.
//!
//! Reading is over borrowed bytes and allocates nothing; a malformed input is an error, never a panic.

use bytes::{BufMut, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint};
pub use prost::encoding::{encode_varint, encoded_len_varint};

/// Bytes that are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a protobuf message")]
pub struct MalformedError;

impl From<prost::DecodeError> for MalformedError {
    fn from(_: prost::DecodeError) -> Self {
        Self
    }
}

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 2: strings, bytes, messages.
    Bytes(&'a [u8]),
    /// Wire types 1 and 5, which nothing that the relay reads uses.
    Fixed,
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u32,
    pub value: Value<'a>,
    /// Tag and value as they came.
    pub raw: &'a [u8],
}

impl<'a> Field<'a> {
    /// Payload of a length-delimited field.
    ///
    /// # Errors
    ///
    /// [`MalformedError`] for another wire type.
    pub const fn bytes(&self) -> Result<&'a [u8], MalformedError> {
        let Value::Bytes(bytes) = self.value else { return Err(MalformedError) };
        Ok(bytes)
    }

    /// Payload of a string field.
    ///
    /// # Errors
    ///
    /// [`MalformedError`] for another wire type, or text that is not UTF-8.
    pub fn text(&self) -> Result<&'a str, MalformedError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MalformedError)
    }
}

/// The fields of one message, in the order in which they were sent.
pub const fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

/// Payloads of the well-formed fields with this number.
pub fn payloads(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    fields(message)
        .flatten()
        .filter(move |field| field.number == number)
        .filter_map(|field| field.bytes().ok())
}

/// See [`fields`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<Field<'a>, MalformedError> {
        let whole = self.rest;
        let (number, wire_type) = decode_key(&mut self.rest)?;
        let value = match wire_type {
            WireType::Varint => Value::Varint(decode_varint(&mut self.rest)?),
            WireType::SixtyFourBit => self.take(8).map(|_| Value::Fixed)?,
            WireType::LengthDelimited => {
                let len = decode_varint(&mut self.rest)?;
                Value::Bytes(self.take(usize::try_from(len).map_err(|_| MalformedError)?)?)
            }
            WireType::ThirtyTwoBit => self.take(4).map(|_| Value::Fixed)?,
            // Groups are not part of proto3.
            WireType::StartGroup | WireType::EndGroup => return Err(MalformedError),
        };
        Ok(Field { number, value, raw: &whole[..whole.len() - self.rest.len()] })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], MalformedError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(MalformedError)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, MalformedError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Splits a varint off.
pub fn varint(mut bytes: &[u8]) -> Option<(u64, &[u8])> {
    let value = decode_varint(&mut bytes).ok()?;
    Some((value, bytes))
}

/// Bytes of a length-delimited field with a number below 16.
pub const fn field_len(payload: usize) -> usize {
    1 + encoded_len_varint(payload as u64) + payload
}

/// Writes a length-delimited field up to its payload.
pub fn put_header(out: &mut BytesMut, number: u8, payload: usize) {
    debug_assert!((1..16).contains(&number), "one-byte tags only");
    out.put_u8((number << 3) | 2);
    encode_varint(payload as u64, out);
}

/// Writes a length-delimited field; an empty one is left out, as proto3 has it.
pub fn put_field(out: &mut BytesMut, number: u8, payload: &[u8]) {
    if !payload.is_empty() {
        put_header(out, number, payload.len());
        out.put_slice(payload);
    }
}

/// Writes a length-delimited field of any number, also an empty one.
pub fn put_bytes(out: &mut impl BufMut, number: u32, payload: &[u8]) {
    encode_varint(u64::from(number) << 3 | 2, out);
    encode_varint(payload.len() as u64, out);
    out.put_slice(payload);
}

#[cfg(test)]
pub use tests::field;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        put_field(&mut out, number, payload);
        out.to_vec()
    }

    proptest! {
        #[test]
        fn numbers_of_fields_are_those_of_protobuf(number in 1_u64..1 << 40) {
            let mut out = BytesMut::new();
            encode_varint(number << 3, &mut out);
            encode_varint(7, &mut out);
            let read = fields(&out).next().and_then(Result::ok).map(|field| u64::from(field.number));
            prop_assert_eq!(read, (number < 1 << 29).then_some(number));
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes: Vec<u8>) {
            let mut covered = 0;
            for field in fields(&bytes) {
                match field {
                    Ok(field) => covered += field.raw.len(),
                    Err(MalformedError) => return Ok(()),
                }
            }
            prop_assert_eq!(covered, bytes.len());
        }
    }
}
