//! NACKs of a stream of state of the world that wait.
//!
//! An origin by state of the world may answer each NACK with the response that was refused, since the request says another version
//! than its own (R-SotW-08). So the first NACK of a type goes at once, and further ones in a row wait: 1 s, then 2 s, 4 s, and in
//! the end 64 s.
//!
//! Owns the NACKs that wait, one for each type at most. Knows neither requests nor the clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::ack::Ack;
use crate::resource::TypeUrl;

const FIRST: Duration = Duration::from_secs(1);
/// The wait doubles so many times.
const DOUBLINGS: u32 = 6;

/// Refused responses by type.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<TypeUrl, Refused>);

#[derive(Debug)]
struct Refused {
    /// Number of waits so far.
    waits: u32,
    held: Option<(Instant, Ack)>,
}

impl Refusals {
    /// Takes in the answer to the newest response of a type, and returns it if it may go at once. A NACK that still waits is for an
    /// older response, and is dropped.
    pub(super) fn admit(&mut self, ack: Ack, now: Instant) -> Option<Ack> {
        if ack.fault.is_none() {
            self.0.remove(&ack.type_url);
            return Some(ack);
        }
        let Some(refused) = self.0.get_mut(&ack.type_url) else {
            self.0.insert(ack.type_url.clone(), Refused { waits: 0, held: None });
            return Some(ack);
        };
        // The time of a NACK that waits already stays, though a later response has taken its place.
        let at = refused.held.take().map(|(at, _)| at).unwrap_or_else(|| {
            let wait = FIRST * 2_u32.pow(refused.waits.min(DOUBLINGS));
            refused.waits += 1;
            now + wait
        });
        refused.held = Some((at, ack));
        None
    }

    /// Takes out the NACKs that have waited long enough.
    pub(super) fn due(&mut self, now: Instant) -> impl Iterator<Item = Ack> {
        self.0
            .values_mut()
            .filter_map(move |refused| refused.held.take_if(|(at, _)| *at <= now))
            .map(|(_, ack)| ack)
    }

    /// Time of the next one.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().filter_map(|refused| refused.held.as_ref()).map(|(at, _)| *at).min()
    }
}
