//! Unanswered subscriptions, and when to log them.
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

    fn silent_since(&self) -> Option<Instant> {
        self.silent.values().min().copied()
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

/// Decides when to log a silent control plane: after `SILENT`, then ever more rarely, then when it
/// answers.
#[derive(Debug, Default)]
pub struct SilenceLog {
    /// Time of the last line, and the wait after it.
    told: Option<(Instant, Duration)>,
    /// Start of the silence of the first type in the log.
    since: Option<Instant>,
}

/// Line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceEvent {
    /// These types are unanswered.
    Silent {
        /// Their common names.
        types: String,
        /// Time since the first was requested.
        waited: Duration,
    },
    /// The control plane answers again.
    Over {
        /// Time since the first was requested.
        waited: Duration,
    },
}

impl SilenceLog {
    const FIRST: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(60 * 60);

    /// Evaluates the unanswered subscriptions, given the time of the last answer.
    pub fn look(
        &mut self,
        unanswered: &Unanswered,
        last_answer: Option<Instant>,
        now: Instant,
    ) -> Option<SilenceEvent> {
        let (Some(since), Some(types)) = (unanswered.silent_since(), unanswered.types()) else {
            let (told, since) = (self.told.take()?.0, self.since.take()?);
            // Without requests there is silence, but no answer.
            let has_answered = last_answer.is_some_and(|answer| answer >= told);
            return has_answered.then(|| SilenceEvent::Over { waited: now.saturating_duration_since(since) });
        };
        let waited = now.saturating_duration_since(since);
        let is_due = self.told.is_none_or(|(told, wait)| now >= told + wait);
        if waited < SILENT || !is_due {
            return None;
        }
        let wait = self.told.map_or(Self::FIRST, |(_, wait)| (wait * 2).min(Self::LONGEST));
        self.told = Some((now, wait));
        self.since.get_or_insert(since);
        Some(SilenceEvent::Silent { types, waited })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent(kinds: &[Kind], since: Instant) -> Unanswered {
        let silent = kinds.iter().map(|kind| (TypeUrl::from(*kind), since)).collect();
        Unanswered { count: kinds.len(), since: Some(since), silent }
    }

    #[test]
    fn a_silent_type_is_told_after_ten_seconds_then_ever_more_seldom() {
        let (mut silence_log, start) = (SilenceLog::default(), Instant::now());
        let unanswered = silent(&[Kind::Cluster, Kind::Listener, Kind::Route], start);
        let told: Vec<u64> = (0..=1000)
            .filter(|second| {
                let told = silence_log.look(&unanswered, None, start + Duration::from_secs(*second));
                assert!(!matches!(told, Some(SilenceEvent::Over { .. })));
                told.is_some()
            })
            .collect();
        assert_eq!(told, [10, 70, 190, 430, 910]);
        assert_eq!(unanswered.types().as_deref(), Some("CDS (and 2 more types)"));
        assert_eq!(silent(&[Kind::Secret], start).types().as_deref(), Some("SDS"));
    }

    #[test]
    fn the_end_of_a_silence_is_told_if_it_is_an_answer() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (answer, told) in [(Some(20), true), (None, false)] {
            let mut silence_log = SilenceLog::default();
            let unanswered = silent(&[Kind::Cluster], start);
            assert!((0..12).any(|second| silence_log.look(&unanswered, None, after(second)).is_some()));
            let last = silence_log.look(&Unanswered::default(), answer.map(after), after(30));
            assert_eq!(last, told.then_some(SilenceEvent::Over { waited: Duration::from_secs(30) }));
            assert_eq!(silence_log.look(&Unanswered::default(), None, after(31)), None);
        }
    }
}
