//! Unanswered subscriptions.
//!
//! Owns the difference between a name and a type without an answer. Many control planes never
//! answer a name that does not exist. A silent type is a fault: most often the control plane does
//! not know the node. Pure, as [`Mux`](super::Mux) is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::answer::Silence;
use super::quiet_clock::QuietClock;
use crate::resource::{Kind, TypeUrl};

/// Unanswered subscriptions of the present connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// Number of names, with each wildcard counted as one. Requests on both streams count twice.
    pub count: usize,
    /// Time of the first one.
    pub since: Option<Instant>,
    /// Types without any answer, with the time of their first subscription.
    pub silent: BTreeMap<TypeUrl, Instant>,
}

impl Unanswered {
    pub(super) fn add(&mut self, type_url: &TypeUrl, silence: Silence, clock: &QuietClock) {
        let Some(since) = silence.since.map(|since| clock.when(since)) else { return };
        self.count += silence.count;
        self.since = Some(self.since.map_or(since, |first| first.min(since)));
        if !silence.answered {
            self.silent.insert(type_url.clone(), since);
        }
    }

    /// Type that has been silent for longest, and the number of others: `CDS (and 2 more types)`.
    pub fn types(&self) -> Option<String> {
        let (type_url, _) = self.silent.iter().min_by_key(|(_, since)| **since)?;
        Some(match self.silent.len() - 1 {
            0 => word(type_url),
            1 => format!("{} (and 1 more type)", word(type_url)),
            more => format!("{} (and {more} more types)", word(type_url)),
        })
    }

    /// Start of the longest silence of a type, once it is worth a warning.
    pub fn silent_since(&self, now: Instant) -> Option<Instant> {
        self.silent.values().min().copied().filter(|since| now.saturating_duration_since(*since) >= SILENT)
    }
}

/// Common name of a type. Other type URLs come from clients, and stay out of the text.
fn word(type_url: &TypeUrl) -> String {
    match type_url.kind() {
        Kind::Other => "a type without a short name".to_owned(),
        kind => kind.short().to_uppercase(),
    }
}

/// Silence that is worth a warning, and makes a relay without any answer unready.
pub(super) const SILENT: Duration = Duration::from_secs(10);
