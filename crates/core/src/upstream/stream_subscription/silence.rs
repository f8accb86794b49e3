//! Subscriptions that the origin has left unanswered on one stream.

use super::super::quiet_clock::QuietInstant;
use super::{Awaited, StreamSubscription};

/// Subscriptions of one type that one stream has not heard an answer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::upstream) struct Silence {
    /// Subscriptions without an answer: names, and the wildcard as one.
    pub(in crate::upstream) count: usize,
    /// When the first of them was asked for.
    pub(in crate::upstream) since: Option<QuietInstant>,
    /// Whether anything else of the type was answered.
    pub(in crate::upstream) answered: bool,
}

impl StreamSubscription {
    /// Subscriptions without an answer. Where versions were told, silence is an answer (R-Up-02).
    pub(in crate::upstream) fn silence(&self) -> Silence {
        let is_heard = self.arrival.has_begun();
        let mut silence = Silence { answered: self.wildcard.is_some() && is_heard, ..Silence::default() };
        let names = self.names.values().filter(|asked| !asked.dropped);
        let unanswered = names.filter_map(|asked| match asked.awaited {
            Awaited::Answer => Some(asked.at),
            Awaited::Claimed => None,
            Awaited::No => {
                silence.answered = true;
                None
            }
        });
        let (mut count, mut since) = (0, None::<QuietInstant>);
        for at in unanswered.chain(self.wildcard_asked().filter(|_| self.covers_wildcard())) {
            count += 1;
            since = Some(since.map_or(at, |first| first.min(at)));
        }
        Silence { count, since, ..silence }
    }
}
