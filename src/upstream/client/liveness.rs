//! Health check of a silent control plane.
//!
//! Owns when it is sent on a connection, and how long the answer may take. Knows nothing of the streams.
//!
//! The kernel answers for a stopped or hung process, so TCP notices nothing. The relay must know for two
//! reasons. Unanswered names end as absent, which only a live control plane can mean; and other servers
//! should be used. HTTP/2 PINGs are too slow: idle gRPC servers allow one in five minutes, and end the
//! connection after the third early one. They allow calls, so the relay calls their health service. Any
//! answer will do, even UNIMPLEMENTED.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, stream};
use http::HeaderMap;
use prost::Message as _;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;

use super::super::call::{call, is_of_server};
use super::super::checks::Purpose;
use super::super::pulse::{LivenessTimes, Pulse};
use super::super::transfer::Transfers;
use super::super::wait::now;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 10;

/// When a client needs to know whether the server is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Never, or the server allows no further calls.
    None,
    /// Something has been unanswered, or a message incomplete, since then.
    Since(Instant),
    /// Always, because there are other servers.
    Always,
}

/// Liveness of one connection's server, as far as one client needs it.
pub(super) struct Liveness {
    channel: Channel,
    pulse: Arc<Pulse>,
    times: LivenessTimes,
    begun: Instant,
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
    pub(super) fn heard(&mut self, now: Instant) {
        self.call.take_if(|call| call.purpose == Purpose::Judge);
        self.pulse.heard(now);
    }

    /// Notes time of transfers: the answer to a trial may be behind them.
    pub(super) fn transferred(&mut self, time: Duration, now: Instant) {
        self.heard(now);
        if let Some(call) = &mut self.call {
            call.waited = call.waited.saturating_sub(time);
        }
    }

    /// Checks at intervals of `every`, and calls for this purpose if due.
    pub(super) fn look(
        &mut self,
        need: Need,
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
        } else if let Some(purpose) = purpose() {
            let since = match need {
                Need::Always => Some(self.begun),
                Need::Since(since) => Some(since),
                Need::None => None,
            };
            if purpose == Purpose::Try || since.is_some_and(|since| self.pulse.is_due(since, after, now)) {
                let answer = check(self.channel.clone()).boxed();
                self.call = Some(Call { begun: now, purpose, waited: Duration::ZERO, answer });
            }
        }
        if self.pulse.is_gone() { Sign::Gone { is_first } } else { Sign::Fine }
    }

    /// Whether something came on this connection after an unanswered trial. True once.
    pub(super) fn is_mute(&mut self) -> bool {
        let heard = self.pulse.last_heard();
        self.failed.take_if(|asked| heard.is_some_and(|heard| heard > *asked)).is_some()
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
            self.heard(now());
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
            assert_eq!(liveness.look(Need::Always, || Some(purpose), now, Duration::ZERO), Sign::Fine);
            assert!(liveness.call.is_some());
            liveness.heard(now);
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
            let signs = (0..count).map(|_| liveness.look(Need::None, || Some(Purpose::Try), begun, second));
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
        let sign = liveness.look(Need::Always, || unreachable!("a trial"), begun, Duration::ZERO);
        assert_eq!(sign, Sign::Gone { is_first: false });
    }
}
