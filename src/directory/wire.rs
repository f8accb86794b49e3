//! Takes protobuf messages apart by field and puts them together again, without a schema and without copying.
//! Knows no message.

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// One field of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    /// Content of a length-delimited field; `None` for numbers.
    pub(super) bytes: Option<&'a [u8]>,
    /// The whole field with its tag, as it came.
    pub(super) raw: &'a [u8],
}

/// The bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedError;

/// The fields of a message, in the order they came. Groups, which no xDS message has, count as malformed.
pub(super) fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<Field<'_>, MalformedError>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = split_field(&mut rest);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

/// Appends a length-delimited field.
pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn split_field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, MalformedError> {
    let start = *rest;
    let (number, wire_type) = decode_key(rest).map_err(|_| MalformedError)?;
    let bytes = match wire_type {
        WireType::Varint => {
            decode_varint(rest).map_err(|_| MalformedError)?;
            None
        }
        WireType::SixtyFourBit => {
            take(rest, 8)?;
            None
        }
        WireType::ThirtyTwoBit => {
            take(rest, 4)?;
            None
        }
        WireType::LengthDelimited => {
            let length = decode_varint(rest).map_err(|_| MalformedError)?;
            Some(take(rest, length)?)
        }
        WireType::StartGroup | WireType::EndGroup => return Err(MalformedError),
    };
    Ok(Field { number, bytes, raw: &start[..start.len() - rest.len()] })
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], MalformedError> {
    let length = usize::try_from(length).map_err(|_| MalformedError)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(MalformedError)?;
    *rest = after;
    Ok(taken)
}
