//! ACKs and NACKs to send.
//!
//! In SotW NACKs wait: a control plane may answer each with the rejected response, as the request
//! has another version than its own (R-SotW-08). So the first NACK of a type goes at once, and
//! further ones in a row after the `pace`. Knows neither requests nor the clock.

use std::collections::BTreeMap;
use std::time::Instant;

use super::super::backoff::pace;
use crate::resource::TypeUrl;

/// Bytes of an ACK beside its texts.
const ACK_OVERHEAD: usize = 128;

/// ACK, or NACK with its fault.
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

/// Rejected responses by type.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<TypeUrl, Refused>);

#[derive(Debug)]
struct Refused {
    waits: u32,
    held: Option<(Instant, Ack)>,
}

impl Refusals {
    /// Returns the answer to the newest response of a type if it may go at once. It replaces a NACK
    /// that still waits.
    pub(super) fn admit(&mut self, ack: Ack, now: Instant) -> Option<Ack> {
        if ack.fault.is_none() {
            self.0.remove(&ack.type_url);
            return Some(ack);
        }
        let Some(refused) = self.0.get_mut(&ack.type_url) else {
            self.0.insert(ack.type_url.clone(), Refused { waits: 0, held: None });
            return Some(ack);
        };
        // The new NACK keeps the time of the one that it replaces.
        let at = refused.held.take().map(|(at, _)| at).unwrap_or_else(|| {
            let wait = pace(refused.waits);
            refused.waits += 1;
            now + wait
        });
        refused.held = Some((at, ack));
        None
    }

    /// Takes the NACKs that have waited long enough.
    pub(super) fn due(&mut self, now: Instant) -> impl Iterator<Item = Ack> {
        self.0
            .values_mut()
            .filter_map(move |refused| refused.held.take_if(|(at, _)| *at <= now))
            .map(|(_, ack)| ack)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|refused| refused.held.as_ref()).map(|(at, _)| *at).min()
    }
}
