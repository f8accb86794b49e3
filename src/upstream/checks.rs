//! Whether health checks of a server tell that it is there.
//!
//! A server may be well and leave them unanswered: one of gRPC with a pool of threads, each of which a stream takes, has none left for a
//! health service. A connection that was given up for want of an answer is a suspicion of that, and no more: a replica may have hung, and
//! another one have taken its place at the same address. So the next connection is tried as soon as its streams are
//! answered, and not judged before something is asked on them. A check that stays unanswered then may be one of a server that hangs by
//! now. It does not if anything was heard of it since. If nothing was, a stream is to be opened anew, and the server is judged by that.
//! Where it answers, no check is heeded for a while.
//!
//! Owns that judgement. Knows nothing of connections.

use std::time::{Duration, Instant};

/// Time for which checks are not heeded where a server answers its streams and no checks. Then there is another trial.
const IGNORED: Duration = Duration::from_secs(600);
/// Time after which a trial has been lost with its connection. Longer than an answer may take.
const LOST: Duration = Duration::from_secs(120);

/// Standing of the checks of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Checks {
    /// A server that leaves one unanswered is not there.
    #[default]
    Heeded,
    /// Heeded still, but a connection was given up.
    Suspected,
    /// A server that answers its streams is asked, since then.
    Tried(Instant),
    /// It left a check unanswered by then. Whether it still answers its streams is to be seen on the connection of that check.
    Failed(Instant),
    /// Asking is of no use until then.
    Ignored(Instant),
}

/// Streams of a client on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// Something was answered on them.
    Answered,
    /// Something was asked, and nothing answered.
    Unanswered,
    /// Nothing was asked that waits for an answer.
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
    /// Purpose of a check that begins now, if there is any, on a connection of which this was heard.
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
            // It sent its settings at the beginning of the connection. A hang does no harm before something is asked. An answer of before
            // the failed trial says nothing of what it does now.
            (Self::Suspected, Streams::Idle)
            | (Self::Failed(_), Streams::Answered | Streams::Idle)
            | (Self::Tried(_) | Self::Ignored(_), _) => None,
        }
    }

    /// Notes that a trial failed.
    pub(super) const fn failed(&mut self, now: Instant) {
        *self = Self::Failed(now);
    }

    /// Notes that the server was heard since the check that it left unanswered: it answers its streams. Returns whether that is
    /// news: another replica may have answered a check meanwhile.
    pub(super) fn are_mute(&mut self, now: Instant) -> bool {
        let is_open = matches!(self, Self::Failed(_));
        if is_open {
            *self = Self::Ignored(now + IGNORED);
        }
        is_open
    }

    /// Notes that a trial ended with its connection, before it was judged.
    pub(super) const fn trial_lost(&mut self) {
        if let Self::Tried(_) | Self::Failed(_) = self {
            *self = Self::Suspected;
        }
    }

    /// Notes that a check was answered.
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
