//! Health check of a silent control plane: when it is sent, and whether no answer means that the server is gone.
//!
//! The kernel answers for a stopped or hung process, so TCP notices nothing. The relay must know for two
//! reasons. Unanswered names end as absent, which only a live control plane can mean; and other servers
//! should be used. HTTP/2 PINGs are too slow: idle gRPC servers allow one in five minutes, and end the
//! connection after the third early one. They allow calls, so the relay calls their health service. Any
//! answer will do, even UNIMPLEMENTED.
//!
//! A live server may leave checks unanswered: gRPC with a thread pool has no thread left if streams take all. A
//! connection given up for want of an answer only raises that suspicion, because a replica may have hung. So
//! the next connection is tried as soon as its streams are answered. If that check stays unanswered, later
//! messages show that the server lives. Without any, a new stream decides. If the server answers it, checks
//! are ignored for a while.
//!
//! Owns that judgement for a server ([`Checks`]), signs of life of a connection for all clients that share it
//! ([`Pulse`]), and the check of one client ([`Liveness`]). Knows nothing of the streams.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan_transport::call::{call, is_of_server};
use deltafan_transport::transfer::Transfers;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, stream};
use http::HeaderMap;
use parking_lot::Mutex;
use prost::Message as _;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;

use super::wait::now;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 10;

/// Liveness of one connection's server, as far as one client needs it.
pub(super) struct Liveness {
    channel: Channel,
    pulse: Arc<Pulse>,
    times: LivenessTimes,
    pub(super) begun: Instant,
    call: Option<Call>,
    /// Purpose of a call that the connection refused before it reached the server.
    refused: Option<Purpose>,
    /// Start of an unanswered trial, until something shows its meaning.
    failed: Option<Instant>,
}

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Nothing shows that the server is gone.
    Fine,
    /// It is gone. `is_first`: no other client has found that on the connection.
    Gone {
        /// First to find it.
        is_first: bool,
    },
    /// It was there, and left a trial unanswered.
    Mute,
    /// A check is due, and the connection takes no more calls.
    Closed,
}

struct Call {
    begun: Instant,
    purpose: Purpose,
    /// Sum of the times between checks, of which a pause of this process is one. Transfers of responses do
    /// not count.
    waited: Duration,
    answer: BoxFuture<'static, bool>,
}

impl Liveness {
    pub(super) const fn new(channel: Channel, pulse: Arc<Pulse>, times: LivenessTimes, now: Instant) -> Self {
        Self { channel, pulse, times, begun: now, call: None, refused: None, failed: None }
    }

    /// Notes that something came from the server. A trial goes on, because that is no answer to a check.
    pub(super) fn received(&mut self, now: Instant) {
        self.call.take_if(|call| call.purpose == Purpose::Judge);
        self.pulse.received(now);
    }

    /// Notes time of transfers: the answer to a trial may be behind them.
    pub(super) fn transferred(&mut self, time: Duration, now: Instant) {
        self.received(now);
        if let Some(call) = &mut self.call {
            call.waited = call.waited.saturating_sub(time);
        }
    }

    /// Checks at intervals of `every`, and calls for this purpose if due. A client needs to know since then
    /// whether the server is there; `None` if it does not.
    pub(super) fn look(
        &mut self,
        since: Option<Instant>,
        purpose: impl FnOnce() -> Option<Purpose>,
        now: Instant,
        every: Duration,
    ) -> Sign {
        let LivenessTimes { after, timeout } = self.times;
        let mut is_first = false;
        if self.refused.is_some() {
            return Sign::Closed;
        }
        // A trial would end with the connection, and keep other checks away.
        if self.pulse.is_gone() {
            return Sign::Gone { is_first };
        }
        if let Some(call) = &mut self.call {
            call.waited += every;
            if call.waited > timeout {
                let Call { begun, purpose, .. } = *call;
                self.call = None;
                if purpose == Purpose::Try {
                    self.failed = Some(begun);
                    return Sign::Mute;
                }
                is_first = self.pulse.unanswered(begun);
            }
        } else if let Some(purpose) = purpose()
            && (purpose == Purpose::Try || since.is_some_and(|since| self.pulse.is_due(since, after, now)))
        {
            let answer = check(self.channel.clone()).boxed();
            self.call = Some(Call { begun: now, purpose, waited: Duration::ZERO, answer });
        }
        if self.pulse.is_gone() { Sign::Gone { is_first } } else { Sign::Fine }
    }

    /// Whether something came on this connection after an unanswered trial. True once.
    pub(super) fn is_mute(&mut self) -> bool {
        let received = self.pulse.last_received();
        self.failed.take_if(|asked| received.is_some_and(|received| received > *asked)).is_some()
    }

    /// Whether a trial is undecided: it is under way, was refused, or stayed unanswered.
    pub(super) fn tries(&self) -> bool {
        let purpose = self.call.as_ref().map(|call| call.purpose).or(self.refused);
        purpose == Some(Purpose::Try) || self.failed.is_some()
    }

    /// Waits for the answer. Cancel-safe.
    pub(super) async fn next(&mut self) {
        let Some(call) = &mut self.call else { return pending().await };
        let (is_of_server, purpose) = ((&mut call.answer).await, call.purpose);
        self.call = None;
        if is_of_server {
            self.failed = None;
            self.received(now());
        } else {
            self.refused = Some(purpose);
            pending().await
        }
    }
}

/// Calls, and waits for the head of the answer. Returns whether it came from the server. After a GOAWAY this
/// process refuses calls, while streams go on.
async fn check(channel: Channel) -> bool {
    let request = stream::iter([Bytes::from(HealthCheckRequest::default().encode_to_vec())]);
    let transfer = Transfers::default().of_stream();
    let answer = call(channel, CHECK, HeaderMap::new(), request, MAX_ANSWER, transfer).await;
    answer.map_or_else(|status| is_of_server(&status), |_| true)
}

/// Times of the health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivenessTimes {
    /// Silence before the check.
    pub after: Duration,
    /// Longest time for its answer.
    pub timeout: Duration,
}

impl Default for LivenessTimes {
    fn default() -> Self {
        Self { after: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pulse(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Time of the last message or check.
    newest: Option<Instant>,
    /// Time of the last message.
    received: Option<Instant>,
    is_gone: bool,
}

impl Pulse {
    pub(super) fn received(&self, now: Instant) {
        let mut state = self.0.lock();
        (state.newest, state.received) = (Some(now), Some(now));
    }

    pub(super) fn last_received(&self) -> Option<Instant> {
        self.0.lock().received
    }

    /// Whether the caller must check: nothing came for `after` since then, and no other client checks.
    pub(super) fn is_due(&self, since: Instant, after: Duration, now: Instant) -> bool {
        let mut state = self.0.lock();
        let is_due = now >= state.newest.map_or(since, |newest| newest.max(since)) + after;
        if is_due {
            state.newest = Some(now);
        }
        is_due
    }

    /// Notes that a check of that time is unanswered. A later message to another client disproves it. Returns
    /// whether this call finds the server gone.
    pub(super) fn unanswered(&self, asked: Instant) -> bool {
        let mut state = self.0.lock();
        let is_first = !state.is_gone && state.newest.is_none_or(|newest| newest <= asked);
        state.is_gone |= is_first;
        is_first
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.lock().is_gone
    }
}

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

    /// On a stream with much to say every answer would come too late.
    #[tokio::test]
    async fn a_trial_goes_on_whatever_the_streams_bring() {
        let (channel, now) = (Channel::from_static("http://127.0.0.1:1").connect_lazy(), now());
        let times = LivenessTimes { after: Duration::ZERO, ..LivenessTimes::default() };
        let mut liveness = Liveness::new(channel, Arc::default(), times, now);
        let mut is_asked_after = |purpose| {
            liveness.call = None;
            assert_eq!(liveness.look(Some(now), || Some(purpose), now, Duration::ZERO), Sign::Fine);
            assert!(liveness.call.is_some());
            liveness.received(now);
            liveness.call.is_some()
        };
        assert!(!is_asked_after(Purpose::Judge));
        assert!(is_asked_after(Purpose::Try));
    }

    /// Over 100 kB/s the answer comes 45 s after 4.5 MB.
    #[tokio::test]
    async fn a_trial_waits_for_responses_that_its_answer_is_behind() {
        let (channel, begun) = (Channel::from_static("http://127.0.0.1:1").connect_lazy(), now());
        let mut liveness = Liveness::new(channel, Arc::default(), LivenessTimes::default(), begun);
        let second = Duration::from_secs(1);
        let look = |liveness: &mut Liveness, count| {
            let signs = (0..count).map(|_| liveness.look(None, || Some(Purpose::Try), begun, second));
            signs.last().expect("there are some")
        };
        for _ in 0..45 {
            assert_eq!(look(&mut liveness, 1), Sign::Fine);
            liveness.transferred(second, begun);
        }
        assert_eq!(look(&mut liveness, 10), Sign::Fine);
        assert_eq!(look(&mut liveness, 1), Sign::Mute, "nothing else comes either");
    }

    /// Another client has found it out, and its connection ends within a second.
    #[tokio::test]
    async fn nothing_is_tried_on_a_connection_whose_server_is_gone() {
        let (channel, begun) = (Channel::from_static("http://127.0.0.1:1").connect_lazy(), now());
        let pulse: Arc<Pulse> = Arc::default();
        assert!(pulse.unanswered(begun + Duration::from_secs(1)), "it is the first");
        let mut liveness = Liveness::new(channel, pulse, LivenessTimes::default(), begun);
        let sign = liveness.look(Some(begun), || unreachable!("a trial"), begun, Duration::ZERO);
        assert_eq!(sign, Sign::Gone { is_first: false });
    }

    #[test]
    fn one_of_several_clients_asks() {
        let (pulse, begun, after) = (Pulse::default(), Instant::now(), Duration::from_secs(30));
        let at = |second| begun + Duration::from_secs(second);
        assert!(!pulse.is_due(begun, after, at(29)));
        assert!(pulse.is_due(begun, after, at(30)));
        assert!(!pulse.is_due(begun, after, at(31)), "another one asks");
        pulse.received(at(32));
        assert!(!pulse.is_due(begun, after, at(61)));
        assert!(!pulse.is_due(at(40), after, at(69)), "it was asked for something since");
        assert!(pulse.is_due(at(40), after, at(70)));
    }

    #[test]
    fn a_server_that_another_client_hears_is_there() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        assert!(pulse.is_due(begun, Duration::from_secs(30), at(30)));
        pulse.received(at(35));
        assert!(!pulse.unanswered(at(30)) && !pulse.is_gone());
        assert!(pulse.is_due(begun, Duration::from_secs(30), at(65)));
        assert!(pulse.unanswered(at(65)) && pulse.is_gone());
        assert!(!pulse.unanswered(at(65)), "it is found once");
    }

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
