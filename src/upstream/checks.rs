//! Whether unanswered health checks of a server show that it is gone.
//!
//! A live server may leave them unanswered: gRPC with a thread pool has no thread left if streams take all. A
//! connection given up for want of an answer only raises that suspicion, because a replica may have hung. So
//! the next connection is tried as soon as its streams are answered. If that check stays unanswered, later
//! messages show that the server lives. Without any, a new stream decides. If the server answers it, checks
//! are ignored for a while.
//!
//! Owns that judgement. Knows nothing of connections.

use std::time::{Duration, Instant};

/// Time for which checks are ignored after a failed trial. Then there is another trial.
const IGNORED: Duration = Duration::from_secs(600);
/// Time after which a trial was lost with its connection. Longer than an answer may take.
const LOST: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Checks {
    /// A server that leaves one unanswered is gone.
    #[default]
    Heeded,
    /// Still heeded, but a connection was given up.
    Suspected,
    /// A server that answers its streams is being checked, since then.
    Tried(Instant),
    /// It left a check unanswered at that time. The connection will show whether it still answers its
    /// streams.
    Failed(Instant),
    /// Checks are useless until then.
    Ignored(Instant),
}

/// Streams of a client on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// At least one answer came.
    Answered,
    /// A request waits, and no answer came.
    Unanswered,
    /// No request waits for an answer.
    Idle,
}

/// Purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Finds out whether the server is there.
    Judge,
    /// Finds out whether the server answers checks.
    Try,
}

impl Checks {
    /// Purpose of a check now, if any, on a connection with these streams.
    pub(super) fn purpose(&mut self, streams: Streams, now: Instant) -> Option<Purpose> {
        let is_over = |since: Instant, time| now.saturating_duration_since(since) >= time;
        match *self {
            Self::Tried(since) | Self::Failed(since) if is_over(since, LOST) => *self = Self::Suspected,
            Self::Ignored(until) if now >= until => *self = Self::Suspected,
            _ => {}
        }
        match (&*self, streams) {
            (Self::Suspected, Streams::Answered) => {
                *self = Self::Tried(now);
                Some(Purpose::Try)
            }
            (Self::Heeded, _) | (Self::Suspected | Self::Failed(_), Streams::Unanswered) => {
                Some(Purpose::Judge)
            }
            // The server sent SETTINGS when the connection began, and a hang is harmless before a request.
            // Answers before the failed trial prove nothing about the present.
            (Self::Suspected, Streams::Idle)
            | (Self::Failed(_), Streams::Answered | Streams::Idle)
            | (Self::Tried(_) | Self::Ignored(_), _) => None,
        }
    }

    pub(super) const fn failed(&mut self, now: Instant) {
        *self = Self::Failed(now);
    }

    /// Notes that the server sent something after the unanswered check, so it answers its streams. Returns
    /// whether that is new: another replica may have answered a check meanwhile.
    pub(super) fn are_mute(&mut self, now: Instant) -> bool {
        let is_open = matches!(self, Self::Failed(_));
        if is_open {
            *self = Self::Ignored(now + IGNORED);
        }
        is_open
    }

    /// Notes that a trial ended undecided with its connection.
    pub(super) const fn trial_lost(&mut self) {
        if let Self::Tried(_) | Self::Failed(_) = self {
            *self = Self::Suspected;
        }
    }

    pub(super) const fn answered(&mut self) {
        *self = Self::Heeded;
    }

    /// Notes that a connection was given up for want of an answer.
    pub(super) const fn gave_up(&mut self) {
        *self = Self::Suspected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_answers_streams_and_no_checks_is_not_judged_by_them() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut checks = Checks::default();
        assert_eq!(checks.purpose(Streams::Answered, at(30)), Some(Purpose::Judge));
        checks.gave_up();
        assert_eq!(checks.purpose(Streams::Idle, at(41)), None, "nothing shows whether it is well");
        assert_eq!(checks.purpose(Streams::Unanswered, at(41)), Some(Purpose::Judge), "it may hang still");
        assert_eq!(checks.purpose(Streams::Answered, at(42)), Some(Purpose::Try));
        assert_eq!(checks.purpose(Streams::Answered, at(43)), None, "another client tries");
        checks.failed(at(52));
        assert!(checks.are_mute(at(52)) && !checks.are_mute(at(53)), "it is told once");
        assert_eq!(checks.purpose(Streams::Answered, at(651)), None);
        assert_eq!(checks.purpose(Streams::Unanswered, at(651)), None, "it may be slow");
        assert_eq!(checks.purpose(Streams::Answered, at(652)), Some(Purpose::Try));
        assert_eq!(checks.purpose(Streams::Answered, at(771)), None);
        assert_eq!(
            checks.purpose(Streams::Answered, at(772)),
            Some(Purpose::Try),
            "the connection of the last one was lost"
        );
    }

    /// It answered once, and hangs before, or while, it is tried.
    #[test]
    fn a_server_of_which_nothing_is_heard_is_judged_by_its_streams() {
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut checks = Checks::Ignored(at(600));
        assert_eq!(checks.purpose(Streams::Answered, at(600)), Some(Purpose::Try));
        checks.failed(at(611));
        assert_eq!(checks.purpose(Streams::Answered, at(611)), None, "another client was answered before");
        assert_eq!(checks.purpose(Streams::Unanswered, at(611)), Some(Purpose::Judge));
        assert!(checks.are_mute(at(616)));
        assert_eq!(checks.purpose(Streams::Unanswered, at(617)), None);
        // A connection of which nothing was heard by then.
        assert_eq!(checks.purpose(Streams::Unanswered, at(1216)), Some(Purpose::Judge));
        // Another server may be there now.
        checks.failed(at(1300));
        checks.trial_lost();
        assert_eq!(checks.purpose(Streams::Answered, at(1301)), Some(Purpose::Try));
        // Nothing was asked that shows how it is.
        checks.failed(at(1400));
        assert_eq!(checks.purpose(Streams::Answered, at(1520)), Some(Purpose::Try));
    }

    #[test]
    fn a_trial_that_is_lost_with_its_connection_is_made_on_the_next() {
        let now = Instant::now();
        let mut checks = Checks::Suspected;
        assert_eq!(checks.purpose(Streams::Answered, now), Some(Purpose::Try));
        checks.trial_lost();
        assert_eq!(checks.purpose(Streams::Answered, now), Some(Purpose::Try));
    }

    /// Each in the place of one that hung, at one address.
    #[test]
    fn replicas_that_answer_are_judged_however_often_one_hangs() {
        let begun = Instant::now();
        let mut checks = Checks::default();
        for hang in 1..10 {
            let now = begun + Duration::from_secs(hang * 100);
            assert_eq!(checks.purpose(Streams::Answered, now), Some(Purpose::Judge));
            checks.gave_up();
            assert_eq!(checks.purpose(Streams::Answered, now + Duration::from_secs(1)), Some(Purpose::Try));
            checks.answered();
        }
    }
}
