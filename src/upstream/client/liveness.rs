//! Question to a silent control plane whether it is there.
//!
//! Owns when it is asked on a connection, and how long its answer may take. Knows nothing of the streams.
//!
//! A process that is stopped, and one that hangs, have a kernel that answers for them: TCP finds out nothing. Two things need to know:
//! what a control plane leaves unanswered is taken for absent in the end, which only one that lives can have meant; and where there
//! are other servers, they are to be used. HTTP/2 PINGs do not find it out in time: gRPC servers allow one in five minutes while they send
//! nothing, and end the connection after the third that came sooner. Calls they allow, so their health is asked for. Any answer
//! will do, UNIMPLEMENTED too.

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
    /// At any time: there are other servers.
    Always,
}

/// Whether the server of one connection is there, as far as one client needs to know.
pub(super) struct Liveness {
    channel: Channel,
    pulse: Arc<Pulse>,
    times: LivenessTimes,
    begun: Instant,
    call: Option<Call>,
    /// Purpose of a call that the connection refused before it reached the server.
    refused: Option<Purpose>,
    /// When a trial began that stayed unanswered, until something shows what that means.
    failed: Option<Instant>,
}

/// Outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Nothing tells that the server is not there.
    Fine,
    /// It is not there. `is_first`: no other client has found that on the connection.
    Gone {
        /// See above.
        is_first: bool,
    },
    /// It was there, and left a trial unanswered.
    Mute,
    /// It is to be asked, and takes no more calls on the connection.
    Closed,
}

/// Call under way.
struct Call {
    begun: Instant,
    purpose: Purpose,
    /// Time that it takes: the sum of the times between looks, of which a pause of this process is one. Time in which responses were
    /// on their way does not count.
    waited: Duration,
    answer: BoxFuture<'static, bool>,
}

impl Liveness {
    pub(super) const fn new(channel: Channel, pulse: Arc<Pulse>, times: LivenessTimes, now: Instant) -> Self {
        Self { channel, pulse, times, begun: now, call: None, refused: None, failed: None }
    }

    /// Notes that something came from the server. That says nothing of whether it answers checks: a trial goes on.
    pub(super) fn heard(&mut self, now: Instant) {
        self.call.take_if(|call| call.purpose == Purpose::Judge);
        self.pulse.heard(now);
    }

    /// Notes time in which responses were on their way: the answer to a trial may be behind them.
    pub(super) fn transferred(&mut self, time: Duration, now: Instant) {
        self.heard(now);
        if let Some(call) = &mut self.call {
            call.waited = call.waited.saturating_sub(time);
        }
    }

    /// Looks, `every` so often, and asks for this purpose if it is time to.
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

    /// Whether the server was heard on this connection since it left a trial unanswered. Told once.
    pub(super) fn is_mute(&mut self) -> bool {
        let heard = self.pulse.last_heard();
        self.failed.take_if(|asked| heard.is_some_and(|heard| heard > *asked)).is_some()
    }

    /// Whether a trial is not judged yet: it is under way, was refused, or stayed unanswered.
    pub(super) fn tries(&self) -> bool {
        let purpose = self.call.as_ref().map(|call| call.purpose).or(self.refused);
        purpose == Some(Purpose::Try) || self.failed.is_some()
    }

    /// The answer. Cancel-safe.
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

/// Asks, and waits for the head of the answer. Returns whether it came from the server. After a GOAWAY this process itself refuses calls,
/// while streams go on.
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
