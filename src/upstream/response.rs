//! Reading a response of the origin: what of it can be used, or why none of it can.
//!
//! Owns the checks of the envelope (R-Up-13). Knows nothing of subscriptions, and looks into no resource (R-Up-14):
//! a fault is told by names and types, never by content.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::{HashSet, HashSetExt};
use prost::Message;

use crate::cache::Failure;
use crate::proto::DeltaDiscoveryResponse;
use crate::resource::{Envelope, TypeUrl, normal_form};

/// How much of a fault is told to the origin: names are its own and may be as long as it likes.
const FAULT_CHARS: usize = 500;
/// google.rpc.Code
const OK: i32 = 0;

/// The origin broke the protocol in a way that leaves nothing to answer; the stream has to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// There is no nonce to refuse.
    #[error(
        "the control plane sent a message that is no DeltaDiscoveryResponse: check that the URI is that of a delta-ADS server"
    )]
    Undecodable,
    /// Requests pile up.
    #[error("the control plane sends responses but does not read their ACKs: {0} bytes of ACKs wait")]
    AcksUnread(usize),
}

/// Why a response was refused: the text of the NACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault(String);

impl Fault {
    fn new(text: impl ToString) -> Self {
        Self(text.to_string().chars().take(FAULT_CHARS).collect())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// Decodes a message; the resources in it stay bytes.
pub(super) fn decode(message: Bytes) -> Result<DeltaDiscoveryResponse, ProtocolError> {
    DeltaDiscoveryResponse::decode(message).map_err(|_| ProtocolError::Undecodable)
}

/// Takes the resources of a response apart, all or none.
pub(super) fn envelopes<'a>(
    response: &'a DeltaDiscoveryResponse,
    type_url: &TypeUrl,
) -> Result<Vec<Envelope<'a>>, Fault> {
    let mut seen = HashSet::with_capacity(response.resources.len());
    let removed: HashSet<Cow<'_, str>> = removed(response).collect();
    let mut envelopes = Vec::with_capacity(response.resources.len());
    for bytes in &response.resources {
        let envelope = Envelope::parse(bytes, type_url).map_err(Fault::new)?;
        // Variants of one name differ in their constraints, which is what makes them different resources.
        if !envelope.constrained {
            let name = normal_form(envelope.name);
            if removed.contains(&name) {
                return Err(Fault::new(format_args!(
                    "resource `{}` is both sent and removed in one response",
                    envelope.name
                )));
            }
            if !seen.insert(name) {
                return Err(Fault::new(format_args!(
                    "resource `{}` is in one response twice",
                    envelope.name
                )));
            }
        }
        envelopes.push(envelope);
    }
    Ok(envelopes)
}

/// The names of what does not exist, in their normal form.
pub(super) fn removed(response: &DeltaDiscoveryResponse) -> impl Iterator<Item = Cow<'_, str>> {
    response.removed_resources.iter().map(|name| normal_form(name))
}

/// What the origin says of a name in place of a resource (R-Err-01).
#[derive(Debug)]
pub(super) struct Report<'a> {
    /// In its normal form.
    pub(super) name: Cow<'a, str>,
    pub(super) failure: Arc<Failure>,
}

impl Report<'_> {
    /// Says it in the log; the message is the origin's and may hold anything.
    pub(super) fn complain(&self, type_url: &TypeUrl, unsaid: u64) {
        let name: String = self.name.chars().take(FAULT_CHARS).collect();
        let code = self.failure.code();
        tracing::warn!(%type_url, name, code, unsaid, "the control plane reports an error of a resource");
    }
}

/// The errors of a response whose resources are these, all or none. With a removal an error may go together (R-Err-07).
pub(super) fn reports<'a>(
    response: &'a DeltaDiscoveryResponse,
    envelopes: &[Envelope<'_>],
) -> Result<Vec<Report<'a>>, Fault> {
    if response.resource_errors.is_empty() {
        return Ok(Vec::new());
    }
    let plain = envelopes.iter().filter(|envelope| !envelope.constrained);
    let sent: HashSet<Cow<'_, str>> = plain.map(|envelope| normal_form(envelope.name)).collect();
    let report = |error: &'a crate::proto::ResourceError| {
        let name = error.resource_name.as_ref().map_or("", |name| name.name.as_str());
        if name.is_empty() {
            return Err(Fault::new("a resource error has no name"));
        }
        let Some(status) = error.error_detail.as_ref().filter(|status| status.code != OK) else {
            return Err(Fault::new(format_args!("the error of resource `{name}` is none: its code is OK")));
        };
        let normal = normal_form(name);
        if sent.contains(&normal) {
            return Err(Fault::new(format_args!(
                "resource `{name}` is both sent and in error in one response"
            )));
        }
        Ok(Report { name: normal, failure: Arc::new(Failure::new(status.code, &status.message)) })
    };
    response.resource_errors.iter().map(report).collect()
}
