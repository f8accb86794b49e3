//! Encoded messages as proto3 JSON, written straight from their bytes.
//!
//! Owns the form of each field, and of the messages that have a form of their own. Builds no tree, which would take up to 65
//! times the bytes. Beside the text it takes a few words for each field that a message has, and for each key of a map.
//!
//! Fields come in the order of their numbers, the keys of a map sorted. Of a field that is there twice the last one counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write as _;

use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};
use serde::Serialize;

use super::{ANY, DescriptorError, MAX_DEPTH, message_in, message_name, parse};
use crate::resource::wire::{self, Value};

/// Bytes of a message that must be put together first, because it came in pieces: no encoder does that. Also of messages that
/// the library writes, which are a few bytes.
const WHOLE: usize = 64 << 10;

type Result<T = ()> = std::result::Result<T, DescriptorError>;

/// Writes the JSON of an encoded `google.protobuf.Any`. Ends soon after `limit` bytes.
pub(super) fn write_any(pool: &DescriptorPool, any: &[u8], limit: usize, out: &mut Vec<u8>) -> Result {
    let limit = out.len().saturating_add(limit);
    Writer { out, limit }.message(&message_in(pool, ANY)?, any, 0)
}

/// Field or extension of a message.
struct Field {
    name: String,
    kind: Kind,
    shape: Shape,
    /// Whether its default is written.
    has_presence: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    One,
    List,
    Map,
}

impl Field {
    /// Returns the field of this number. One without a descriptor is not written.
    fn of(message: &MessageDescriptor, number: u32) -> Option<Self> {
        let shape = |is_map, is_list| match (is_map, is_list) {
            (true, _) => Shape::Map,
            (false, true) => Shape::List,
            (false, false) => Shape::One,
        };
        if let Some(field) = message.get_field(number) {
            let (name, shape) = (field.json_name().to_owned(), shape(field.is_map(), field.is_list()));
            return Some(Self { name, kind: field.kind(), shape, has_presence: field.supports_presence() });
        }
        let field = message.get_extension(number)?;
        let (name, shape) = (field.json_name().to_owned(), shape(field.is_map(), field.is_list()));
        Some(Self { name, kind: field.kind(), shape, has_presence: true })
    }
}

/// Part of a message from the first to the last occurrence of a field. Others may lie between.
#[derive(Clone, Copy)]
struct Span<'b> {
    number: u32,
    bytes: &'b [u8],
}

impl<'b> Span<'b> {
    fn occurrences(self) -> impl Iterator<Item = wire::Field<'b>> {
        wire::fields(self.bytes)
            .filter_map(|field| field.ok())
            .filter(move |field| field.number == self.number)
    }
}

/// Finds the fields of a message, by number. Of a oneof the last one is there.
fn spans<'b>(message: &MessageDescriptor, bytes: &'b [u8]) -> Result<BTreeMap<u32, (Field, Span<'b>)>> {
    let mut found: BTreeMap<u32, (Field, usize, usize)> = BTreeMap::new();
    let (mut at, mut last) = (0, 0);
    for field in wire::fields(bytes) {
        let field = field.map_err(|_| malformed(message, NOT_WHOLE))?;
        let (number, start) = (field.number, at);
        at += field.raw.len();
        if let Some((_, _, end)) = found.get_mut(&number) {
            *end = at;
        } else if let Some(known) = Field::of(message, number) {
            found.insert(number, (known, start, at));
        }
        if number != last {
            let oneof = message.get_field(number).and_then(|field| field.containing_oneof());
            let others =
                oneof.iter().flat_map(|oneof| oneof.fields()).filter(|other| other.number() != number);
            others.for_each(|other| drop(found.remove(&other.number())));
        }
        last = number;
    }
    let span = |(number, (field, start, end))| (number, (field, Span { number, bytes: &bytes[start..end] }));
    Ok(found.into_iter().map(span).collect())
}

/// Value of a field that is no message, as it is encoded.
#[derive(Clone, Copy)]
enum Scalar<'b> {
    Varint(u64),
    Four([u8; 4]),
    Eight([u8; 8]),
    Bytes(&'b [u8]),
}

impl<'b> Scalar<'b> {
    fn of(field: &wire::Field<'b>) -> Self {
        match field.value {
            Value::Varint(number) => Self::Varint(number),
            Value::Bytes(bytes) => Self::Bytes(bytes),
            Value::Fixed => match (field.raw.first().map(|tag| tag & 7), field.raw) {
                (Some(1), [.., a, b, c, d, e, f, g, h]) => Self::Eight([*a, *b, *c, *d, *e, *f, *g, *h]),
                (_, [.., a, b, c, d]) => Self::Four([*a, *b, *c, *d]),
                _ => Self::Bytes(&[]),
            },
        }
    }

    /// Takes the first number of a packed list.
    fn unpack(kind: &Kind, rest: &mut &'b [u8]) -> Option<Self> {
        let (first, after) = match kind {
            Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => {
                rest.split_first_chunk().map(|(bytes, after)| (Self::Four(*bytes), after))?
            }
            Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => {
                rest.split_first_chunk().map(|(bytes, after)| (Self::Eight(*bytes), after))?
            }
            _ => wire::varint(rest).map(|(number, after)| (Self::Varint(number), after))?,
        };
        *rest = after;
        Some(first)
    }

    /// Returns the default of a kind, which is no message.
    const fn default_of(kind: &Kind) -> Self {
        match kind {
            Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => Self::Four([0; 4]),
            Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => Self::Eight([0; 8]),
            Kind::String | Kind::Bytes => Self::Bytes(&[]),
            _ => Self::Varint(0),
        }
    }

    /// Whether it is zero, false or empty.
    fn is_default(self, kind: &Kind) -> bool {
        match (kind, self) {
            (Kind::Float, Self::Four(bytes)) => f32::from_le_bytes(bytes) == 0.0,
            (Kind::Double, Self::Eight(bytes)) => f64::from_le_bytes(bytes) == 0.0,
            (Kind::Int32 | Kind::Uint32 | Kind::Sint32 | Kind::Enum(_), Self::Varint(number)) => {
                number as u32 == 0
            }
            (_, Self::Varint(number)) => number == 0,
            (_, Self::Four(bytes)) => bytes == [0; 4],
            (_, Self::Eight(bytes)) => bytes == [0; 8],
            (_, Self::Bytes(bytes)) => bytes.is_empty(),
        }
    }
}

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// Length of `out` at which writing ends.
    limit: usize,
}

impl Writer<'_> {
    fn message(&mut self, message: &MessageDescriptor, bytes: &[u8], depth: usize) -> Result {
        if depth > MAX_DEPTH {
            return Err(DescriptorError::TooDeep);
        }
        self.check_length()?;
        let name = message.full_name();
        if name == ANY {
            return self.any(message, bytes, depth);
        }
        if has_own_form(name) {
            return self.own_form(message, bytes, depth);
        }
        self.out.push(b'{');
        self.fields(message, bytes, depth, true)?;
        self.out.push(b'}');
        Ok(())
    }

    fn any(&mut self, any: &MessageDescriptor, bytes: &[u8], depth: usize) -> Result {
        let (mut type_url, mut value) = (&[][..], &[][..]);
        for field in wire::fields(bytes) {
            let field = field.map_err(|_| malformed(any, NOT_WHOLE))?;
            match (field.number, field.value) {
                (1, Value::Bytes(bytes)) => type_url = bytes,
                (2, Value::Bytes(bytes)) => value = bytes,
                (1 | 2, _) => return Err(malformed(any, WIRE_TYPE)),
                _ => {}
            }
        }
        let type_url = std::str::from_utf8(type_url).map_err(|_| malformed(any, NOT_UTF8))?;
        let inner = message_in(any.parent_pool(), message_name(type_url)?)?;
        self.out.extend_from_slice(b"{\"@type\":");
        self.json(type_url);
        if inner.full_name() == ANY || has_own_form(inner.full_name()) {
            self.out.extend_from_slice(b",\"value\":");
            self.message(&inner, value, depth + 1)?;
        } else if depth == MAX_DEPTH {
            return Err(DescriptorError::TooDeep);
        } else {
            self.fields(&inner, value, depth + 1, false)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Writes the fields of a message. `is_first` says that nothing comes before them.
    fn fields(
        &mut self,
        message: &MessageDescriptor,
        bytes: &[u8],
        depth: usize,
        mut is_first: bool,
    ) -> Result {
        for (field, span) in spans(message, bytes)?.into_values() {
            let (start, was_first) = (self.out.len(), is_first);
            self.comma(&mut is_first);
            self.json(&field.name);
            self.out.push(b':');
            if !self.field(message, &field, span, depth + 1)? {
                self.out.truncate(start);
                is_first = was_first;
            }
        }
        Ok(())
    }

    /// Writes the value of a field. Returns `false` for a default, which is left out.
    fn field(
        &mut self,
        message: &MessageDescriptor,
        field: &Field,
        span: Span<'_>,
        depth: usize,
    ) -> Result<bool> {
        match field.shape {
            Shape::One => self.one(message, field, span, depth),
            Shape::List => self.list(message, field, span, depth),
            Shape::Map => self.map(message, field, span, depth).map(|()| true),
        }
    }

    fn one(
        &mut self,
        message: &MessageDescriptor,
        field: &Field,
        span: Span<'_>,
        depth: usize,
    ) -> Result<bool> {
        if let Kind::Message(inner) = &field.kind {
            let mut pieces = span.occurrences();
            let bytes = match (pieces.next(), pieces.next()) {
                (Some(only), None) => Cow::Borrowed(payload(message, &only)?),
                _ if span.bytes.len() > WHOLE => return Err(not_whole(message)),
                _ => {
                    let mut whole = Vec::new();
                    for piece in span.occurrences() {
                        whole.extend_from_slice(payload(message, &piece)?);
                    }
                    Cow::Owned(whole)
                }
            };
            return self.message(inner, &bytes, depth).map(|()| true);
        }
        let last = span.occurrences().last().map(|last| Scalar::of(&last));
        let Some(last) = last.filter(|last| field.has_presence || !last.is_default(&field.kind)) else {
            return Ok(false);
        };
        self.scalar(message, &field.kind, last).map(|()| true)
    }

    fn list(
        &mut self,
        message: &MessageDescriptor,
        field: &Field,
        span: Span<'_>,
        depth: usize,
    ) -> Result<bool> {
        let mut is_first = true;
        self.out.push(b'[');
        for item in span.occurrences() {
            match (&field.kind, Scalar::of(&item)) {
                (Kind::Message(inner), _) => {
                    self.comma(&mut is_first);
                    self.message(inner, payload(message, &item)?, depth)?;
                }
                (Kind::String | Kind::Bytes, one) => {
                    self.comma(&mut is_first);
                    self.scalar(message, &field.kind, one)?;
                }
                (kind, Scalar::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        let one = Scalar::unpack(kind, &mut packed);
                        self.comma(&mut is_first);
                        self.scalar(message, kind, one.ok_or_else(|| malformed(message, NOT_WHOLE))?)?;
                    }
                }
                (kind, one) => {
                    self.comma(&mut is_first);
                    self.scalar(message, kind, one)?;
                }
            }
        }
        self.out.push(b']');
        Ok(!is_first)
    }

    fn map(&mut self, message: &MessageDescriptor, field: &Field, span: Span<'_>, depth: usize) -> Result {
        let Kind::Message(entry) = &field.kind else { return Err(malformed(message, WIRE_TYPE)) };
        let (key, value) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
        let mut entries = BTreeMap::new();
        for item in span.occurrences() {
            let bytes = payload(message, &item)?;
            entries.insert(key_of(entry, &key, bytes)?, bytes);
        }
        let mut is_first = true;
        self.out.push(b'{');
        for (name, bytes) in entries {
            self.comma(&mut is_first);
            self.json(&*name);
            self.out.push(b':');
            self.whole_field(entry, 2, &value, bytes, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Writes a field of a message, or its default.
    fn whole_field(
        &mut self,
        message: &MessageDescriptor,
        number: u32,
        kind: &Kind,
        bytes: &[u8],
        depth: usize,
    ) -> Result {
        let found = spans(message, bytes)?.remove(&number);
        if let Some((field, span)) = found
            && self.field(message, &field, span, depth)?
        {
            return Ok(());
        }
        match kind {
            Kind::Message(inner) => self.message(inner, &[], depth),
            _ => self.scalar(message, kind, Scalar::default_of(kind)),
        }
    }

    /// Writes a message of `google.protobuf` whose JSON is no object of its fields.
    fn own_form(&mut self, message: &MessageDescriptor, bytes: &[u8], depth: usize) -> Result {
        let start = self.out.len();
        match message.name() {
            "Duration" | "FieldMask" | "Timestamp" => return self.by_library(message, bytes),
            "Struct" | "ListValue" => {
                let fields = spans(message, bytes)?.remove(&1);
                if let Some((field, span)) = fields
                    && self.field(message, &field, span, depth + 1)?
                {
                    return Ok(());
                }
                self.out.truncate(start);
                self.out.extend_from_slice(if message.name() == "Struct" { b"{}" } else { b"[]" });
            }
            "Value" => match spans(message, bytes)?.pop_first() {
                Some((_, (field, span))) => _ = self.field(message, &field, span, depth + 1)?,
                None => self.out.extend_from_slice(b"null"),
            },
            // Of a scalar.
            _ => {
                let Some(value) = message.get_field(1) else { return Err(malformed(message, WIRE_TYPE)) };
                self.whole_field(message, 1, &value.kind(), bytes, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Writes a short message that the library has a text for.
    fn by_library(&mut self, message: &MessageDescriptor, bytes: &[u8]) -> Result {
        if bytes.len() > WHOLE {
            return Err(not_whole(message));
        }
        let parsed = parse(message, bytes)?;
        serde_json::to_writer(&mut *self.out, &parsed)
            .map_err(|error| not_showable(message, &error.to_string()))
    }

    fn scalar(&mut self, message: &MessageDescriptor, kind: &Kind, scalar: Scalar<'_>) -> Result {
        self.check_length()?;
        match (kind, scalar) {
            (Kind::Bool, Scalar::Varint(number)) => self.json(&(number != 0)),
            (Kind::Int32, Scalar::Varint(number)) => self.json(&(number as i32)),
            (Kind::Uint32, Scalar::Varint(number)) => self.json(&(number as u32)),
            (Kind::Sint32, Scalar::Varint(number)) => self.json(&(zigzag(u64::from(number as u32)) as i32)),
            (Kind::Fixed32, Scalar::Four(bytes)) => self.json(&u32::from_le_bytes(bytes)),
            (Kind::Sfixed32, Scalar::Four(bytes)) => self.json(&i32::from_le_bytes(bytes)),
            (Kind::Int64, Scalar::Varint(number)) => self.json(&(number as i64).to_string()),
            (Kind::Uint64, Scalar::Varint(number)) => self.json(&number.to_string()),
            (Kind::Sint64, Scalar::Varint(number)) => self.json(&zigzag(number).to_string()),
            (Kind::Fixed64, Scalar::Eight(bytes)) => self.json(&u64::from_le_bytes(bytes).to_string()),
            (Kind::Sfixed64, Scalar::Eight(bytes)) => self.json(&i64::from_le_bytes(bytes).to_string()),
            (Kind::Float, Scalar::Four(bytes)) => {
                let number = f32::from_le_bytes(bytes);
                self.number(message, &number, number.into())?;
            }
            (Kind::Double, Scalar::Eight(bytes)) => {
                let number = f64::from_le_bytes(bytes);
                self.number(message, &number, number)?;
            }
            (Kind::Enum(values), Scalar::Varint(number)) => match values.get_value(number as i32) {
                _ if values.full_name() == "google.protobuf.NullValue" => self.out.extend_from_slice(b"null"),
                Some(value) => self.json(value.name()),
                None => self.json(&(number as i32)),
            },
            (Kind::String, Scalar::Bytes(bytes)) => {
                self.json(std::str::from_utf8(bytes).map_err(|_| malformed(message, NOT_UTF8))?);
            }
            (Kind::Bytes, Scalar::Bytes(bytes)) => {
                // Writing to memory cannot fail.
                _ = write!(self.out, "\"{}\"", Base64Display::new(bytes, &BASE64_STANDARD));
            }
            _ => return Err(malformed(message, WIRE_TYPE)),
        }
        Ok(())
    }

    /// Writes a number, or the word that proto3 JSON has for it.
    fn number(&mut self, message: &MessageDescriptor, number: &impl Serialize, value: f64) -> Result {
        if value.is_finite() {
            self.json(number);
        } else if has_own_form(message.full_name()) {
            // Readers of these take no words.
            return Err(not_showable(message, "a number in it is not finite"));
        } else {
            let words = if value.is_nan() { "NaN" } else { "Infinity" };
            self.json(&format!("{}{words}", if value < 0.0 { "-" } else { "" }));
        }
        Ok(())
    }

    fn json(&mut self, value: &(impl Serialize + ?Sized)) {
        // Writing a text or a number to memory cannot fail.
        _ = serde_json::to_writer(&mut *self.out, value);
    }

    fn comma(&mut self, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.out.push(b',');
        }
    }

    const fn check_length(&self) -> Result {
        if self.out.len() > self.limit { Err(DescriptorError::TooLong) } else { Ok(()) }
    }
}

/// Text of the key of a map's entry.
fn key_of<'b>(entry: &MessageDescriptor, kind: &Kind, bytes: &'b [u8]) -> Result<Cow<'b, str>> {
    let mut key = Scalar::default_of(kind);
    for field in wire::fields(bytes) {
        let field = field.map_err(|_| malformed(entry, NOT_WHOLE))?;
        if field.number == 1 {
            key = Scalar::of(&field);
        }
    }
    if let (Kind::String, Scalar::Bytes(text)) = (kind, key) {
        return std::str::from_utf8(text).map(Cow::Borrowed).map_err(|_| malformed(entry, NOT_UTF8));
    }
    let mut out = Vec::new();
    Writer { out: &mut out, limit: usize::MAX }.scalar(entry, kind, key)?;
    Ok(String::from_utf8_lossy(&out).trim_matches('"').to_owned().into())
}

fn payload<'b>(message: &MessageDescriptor, field: &wire::Field<'b>) -> Result<&'b [u8]> {
    field.bytes().map_err(|_| malformed(message, WIRE_TYPE))
}

const fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Whether JSON writes the message as something else than an object of its fields.
fn has_own_form(name: &str) -> bool {
    let Some(name) = name.strip_prefix("google.protobuf.") else { return false };
    matches!(
        name,
        "Duration"
            | "FieldMask"
            | "ListValue"
            | "Struct"
            | "Timestamp"
            | "Value"
            | "BoolValue"
            | "BytesValue"
            | "DoubleValue"
            | "FloatValue"
            | "Int32Value"
            | "Int64Value"
            | "StringValue"
            | "UInt32Value"
            | "UInt64Value"
    )
}

const NOT_WHOLE: &str = "it is cut short or damaged";
const NOT_UTF8: &str = "a text is not UTF-8";
const WIRE_TYPE: &str = "a field has another type";

fn malformed(message: &MessageDescriptor, reason: &str) -> DescriptorError {
    DescriptorError::Malformed { type_name: message.full_name().to_owned(), reason: reason.to_owned() }
}

fn not_showable(message: &MessageDescriptor, reason: &str) -> DescriptorError {
    DescriptorError::NotShowable { type_name: message.full_name().to_owned(), reason: reason.to_owned() }
}

fn not_whole(message: &MessageDescriptor) -> DescriptorError {
    not_showable(message, "a message in pieces, or a path, of more than 64 KiB")
}

#[cfg(test)]
mod tests;
