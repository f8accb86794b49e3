//! Resource errors (TP3): what the origin says of a name in place of the resource.
//!
//! Owns what an error is, what it means for a body that is held, which errors an update tells, and their encoding. Knows
//! neither where they come from nor how far a client has been told. A name has one error at most, the last one.
//!
//! Invariants:
//! - A transient error takes nothing away (R-Err-02).
//! - A body goes before the error of its name, and never in the same response but for a full state (R-Err-06).
//! - What a response holds of them is bounded; the rest follows.

use std::sync::Arc;

use bytes::BytesMut;

use super::Generation;
use crate::resource::wire;

/// No more of a message is kept.
const MESSAGE_BYTES: usize = 1 << 10;
// google.rpc.Code
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;

/// An error of the origin: a google.rpc.Status without its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginError {
    code: i32,
    message: Box<str>,
}

impl OriginError {
    /// The error, with as much of its message as is kept.
    pub fn new(code: i32, message: &str) -> Self {
        let mut end = message.len().min(MESSAGE_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        Self { code, message: message.split_at(end).0.into() }
    }

    /// A google.rpc.Code.
    pub const fn code(&self) -> i32 {
        self.code
    }

    /// Explanation by the origin, cut to 1 KiB.
    pub const fn message(&self) -> &str {
        &self.message
    }

    /// Whether it means that the resource does not exist (R-Err-03).
    pub const fn is_not_found(&self) -> bool {
        self.code == NOT_FOUND
    }

    const fn is_denial(&self) -> bool {
        self.code == PERMISSION_DENIED
    }

    /// As a `resource_errors` element of this number.
    pub(super) fn put(&self, out: &mut BytesMut, number: u8, name: &str) {
        let code = i64::from(self.code).cast_unsigned();
        let message = if self.message.is_empty() { 0 } else { wire::field_len(self.message.len()) };
        let status = 1 + wire::varint_len(code) + message;
        let resource_name = wire::field_len(name.len());
        wire::put_header(out, number, wire::field_len(resource_name) + wire::field_len(status));
        wire::put_header(out, 1, resource_name);
        wire::put_field(out, 1, name.as_bytes());
        wire::put_header(out, 2, status);
        out.extend_from_slice(&[1 << 3]);
        wire::put_varint(out, code);
        wire::put_field(out, 2, self.message.as_bytes());
    }
}

/// The error of a name, as an entry keeps it.
#[derive(Clone, Debug)]
pub(super) struct ErrorRecord {
    pub(super) failure: Arc<OriginError>,
    /// When clients that asked by name had to learn of it.
    pub(super) at: Generation,
    /// Since when the body is not for newcomers; zero where it is. Only the resource itself ends that, no other error.
    pub(super) denied: Generation,
    is_denial: bool,
}

impl ErrorRecord {
    /// The next error of a name.
    pub(super) fn new(failure: Arc<OriginError>, before: Option<&Self>) -> Self {
        let was = before.filter(|_| !failure.is_not_found());
        let is_denial = failure.is_denial() || was.is_some_and(|was| was.is_denial);
        let denied = was.map_or(Generation::ZERO, |was| was.denied);
        Self { failure, at: Generation::ZERO, denied, is_denial }
    }

    /// It became known.
    pub(super) fn stamp(&mut self, at: Generation) {
        self.at = at;
        if self.is_denial && self.denied == Generation::ZERO {
            self.denied = at;
        }
    }

    /// Whether the body is kept from newcomers.
    pub(super) const fn is_denial(&self) -> bool {
        self.is_denial
    }
}
