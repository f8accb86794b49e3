//! Resource errors (TP3), which the origin sends in place of a resource.
//!
//! Owns the error, its effect on a held body, the errors of an update, and their encoding. Knows neither source
//! nor clients. A name has only its last error.
//!
//! Invariants:
//! - A transient error takes nothing away (R-Err-02).
//! - A body goes before the error of its name, and in the same response only in a full state (R-Err-06).
//! - Errors in a response are bounded; the rest follows.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use prost::Message as _;

use super::Generation;
use super::position::Class;
use crate::proto::{ResourceError, ResourceName, Status};
use crate::resource::{Name, wire};

/// Longest message kept.
const MESSAGE_BYTES: usize = 1 << 10;
// google.rpc.Code
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;

/// Error of the origin: a google.rpc.Status without details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginError {
    code: i32,
    message: Box<str>,
}

impl OriginError {
    /// Creates an error with a message cut to 1 KiB.
    pub fn new(code: i32, message: &str) -> Self {
        Self { code, message: message[..message.floor_char_boundary(MESSAGE_BYTES)].into() }
    }

    pub const fn code(&self) -> i32 {
        self.code
    }

    /// Explanation of the origin, cut to 1 KiB.
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
}

#[derive(Clone, Debug)]
pub(super) struct ErrorRecord {
    pub(super) failure: Arc<OriginError>,
    /// When it became news for clients that asked by name.
    pub(super) at: Generation,
    /// Since when newcomers are denied the body; zero until the change is stamped. Only the resource itself ends
    /// this.
    pub(super) denied: Option<Generation>,
}

impl ErrorRecord {
    pub(super) fn new(failure: Arc<OriginError>, before: Option<&Self>) -> Self {
        let was = before.filter(|_| !failure.is_not_found());
        let denied =
            was.and_then(|was| was.denied).or_else(|| failure.is_denial().then_some(Generation::ZERO));
        Self { failure, at: Generation::ZERO, denied }
    }

    pub(super) fn stamp(&mut self, at: Generation) {
        self.at = at;
        self.denied = self.denied.map(|denied| if denied == Generation::ZERO { at } else { denied });
    }
}

#[derive(Debug, Default)]
pub(super) struct UpdateErrors {
    pub(super) sent: Vec<(Name, Arc<OriginError>)>,
    /// Those that explain removals.
    pub(super) lost: Vec<(Name, Arc<OriginError>)>,
    /// Names whose errors come in another response.
    pub(super) later: Vec<Name>,
}

impl UpdateErrors {
    /// Encodes them as `resource_errors` elements with this field number, with the client's spellings.
    pub(super) fn encode(
        &self,
        class: Class,
        number: u8,
        spelled: Option<&BTreeMap<Name, Name>>,
    ) -> BytesMut {
        let mut out = BytesMut::new();
        let lost = self.lost.iter().filter(|_| class == Class::Both);
        for (name, failure) in self.sent.iter().chain(lost) {
            let name = spelled.and_then(|spelled| spelled.get(name)).unwrap_or(name);
            let (code, message) = (failure.code, failure.message.to_string());
            let error = ResourceError {
                resource_name: Some(ResourceName { name: name.to_string(), ..ResourceName::default() }),
                error_detail: Some(Status { code, message }),
            };
            wire::put_field(&mut out, number, &error.encode_to_vec());
        }
        out
    }

    pub(super) fn contains(&self, name: &Name) -> bool {
        self.sent.iter().chain(&self.lost).any(|(sent, _)| sent == name)
    }

    pub(super) fn weight(&self) -> usize {
        self.sent.iter().chain(&self.lost).map(|(name, failure)| error_size(name, failure)).sum()
    }
}

/// Approximate size of an error on the wire, in bytes.
pub(super) fn error_size(name: &Name, failure: &OriginError) -> usize {
    name.as_str().len() + failure.message().len() + 16
}
