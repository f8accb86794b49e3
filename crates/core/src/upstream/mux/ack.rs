//! Answer to a response of the origin: an ACK, or a NACK with its fault.

use crate::resource::TypeUrl;

/// Bytes that an ACK takes beside its texts.
const ACK_OVERHEAD: usize = 128;

/// Answer that is owed for a response.
#[derive(Debug)]
pub(super) struct Ack {
    pub(super) type_url: TypeUrl,
    pub(super) nonce: String,
    pub(super) fault: Option<String>,
}

impl Ack {
    pub(super) fn weight(&self) -> usize {
        ACK_OVERHEAD + self.nonce.len() + self.fault.as_ref().map_or(0, String::len)
    }
}
