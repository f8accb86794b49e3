//! Cursor over the chunks of an outgoing message.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::connection::Connection;
use super::unsent_memory::{Sending, Unsent};
use crate::cache::Frame;
use crate::json::JsonResponse;
use crate::subscription::Outgoing;

/// Message whose bytes are shared with others.
pub(super) trait Chunks {
    fn chunks(&self) -> &[Bytes];
}

impl Chunks for Frame {
    fn chunks(&self) -> &[Bytes] {
        self.chunks()
    }
}

impl Chunks for Outgoing {
    fn chunks(&self) -> &[Bytes] {
        self.frame.chunks()
    }
}

impl Chunks for JsonResponse {
    fn chunks(&self) -> &[Bytes] {
        self.chunks()
    }
}

/// Message and the number of chunks taken. Its connection is charged until this is dropped.
#[derive(Debug)]
pub(super) struct SendCursor<M> {
    /// Before the message: the charge ends while the bytes exist.
    _sending: Sending,
    message: M,
    taken: usize,
}

impl<M: Chunks> SendCursor<M> {
    pub(super) fn new(message: M, connection: &Arc<Connection>, unsent: &Arc<Unsent>, now: Instant) -> Self {
        Self { _sending: unsent.begin(message.chunks(), connection, now), message, taken: 0 }
    }

    /// Takes the next chunk; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let chunk = self.message.chunks().get(self.taken)?;
        self.taken += 1;
        Some(chunk.clone())
    }

    pub(super) fn rest(&self) -> &[Bytes] {
        self.message.chunks().get(self.taken..).unwrap_or_default()
    }

    pub(super) const fn message(&self) -> &M {
        &self.message
    }
}
