//! Trials of types at which the control plane may end the stream.

use std::time::Instant;

use super::super::StreamId;
use super::super::suspects::Suspect;
use super::super::topic_set::TopicSet;
use super::Mux;
use crate::resource::TypeUrl;

impl Mux {
    pub fn ended_by_server(&mut self, now: Instant) {
        let (quiet, timeout) = (self.clock.at(now), self.settings.answer_timeout);
        let is_blamed = |topic_set: &TopicSet| {
            let asked = topic_set.unanswered_on(StreamId::Primary);
            topic_set.control_plane().is_none() && asked.is_some_and(|asked| asked + timeout >= quiet)
        };
        let was_answered =
            self.streams[StreamId::Primary as usize].as_ref().is_some_and(|open| open.is_answered);
        let blamed = self.topic_sets.iter().filter(|(_, topic_set)| is_blamed(topic_set));
        let blamed = blamed.map(|(type_url, _)| type_url.clone()).collect();
        for (type_url, wait) in self.suspects.ended(blamed, was_answered, now) {
            tracing::warn!(
                %type_url,
                node = %self.settings.node.id.escape_debug(),
                retry_in = format!("{} s", wait.as_secs()),
                "the control plane ends the stream when this type is asked for, so it is not asked for a while; have the control \
                 plane serve it, or find the clients that ask for it: deltafan clients --type"
            );
        }
    }

    fn is_wanted_now(&self, type_url: &TypeUrl) -> bool {
        self.topic_sets.get(type_url).is_some_and(TopicSet::is_wanted_now)
    }

    /// Suspect that is on trial or next, and when its trial ends or begins. A trial waits until the
    /// stream has answered another type, or left it unanswered for long.
    fn next_suspect(&self) -> Option<(&TypeUrl, Instant)> {
        let open = self.streams[StreamId::Primary as usize].as_ref()?;
        let patience = self.settings.answer_timeout;
        let is_asked = |(type_url, of): (&TypeUrl, &TopicSet)| {
            !(self.suspects.withholds(type_url) || of.wants_nothing())
        };
        let suspects = self.suspects.0.iter();
        let on_trial = suspects.clone().find_map(|(type_url, suspect)| match suspect {
            Suspect::Tried(since, _) => Some((type_url, *since + patience)),
            Suspect::Blamed | Suspect::Waits(..) => None,
        });
        let waits = suspects.filter_map(|(type_url, suspect)| match suspect {
            Suspect::Waits(until, _) => Some((type_url, *until)),
            Suspect::Blamed | Suspect::Tried(..) => None,
        });
        on_trial.or_else(|| {
            let waits = waits.filter(|(type_url, _)| self.is_wanted_now(type_url));
            let (type_url, until) = waits.min_by_key(|(_, until)| *until)?;
            let is_free = open.is_answered || !self.topic_sets.iter().any(is_asked);
            Some((type_url, if is_free { until } else { until.max(open.opened + patience) }))
        })
    }

    /// Time of the next call of [`try_suspects`](Self::try_suspects).
    pub(super) fn next_trial(&self) -> Option<Instant> {
        self.next_suspect().map(|(_, at)| at)
    }

    /// Clears the suspect whose trial is over, and tries the next one that is due.
    pub(super) fn try_suspects(&mut self, now: Instant) {
        while let Some((type_url, _)) = self.next_suspect().filter(|(_, at)| *at <= now) {
            let type_url = type_url.clone();
            if let Some(Suspect::Waits(_, failures)) = self.suspects.0.remove(&type_url) {
                self.suspects.0.insert(type_url, Suspect::Tried(now, failures));
            }
        }
    }
}
