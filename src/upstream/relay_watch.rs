//! Report of a relay at the other end whether its own control plane answers it.
//!
//! Owns when its health service is watched on a connection, and the wait for the first report. A report holds
//! until the next one. Knows nothing of its consequences.

use std::future::pending;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan_transport::call::call;
use deltafan_transport::transfer::Transfers;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use futures_util::{Stream, TryFutureExt as _, future};
use http::HeaderMap;
use prost::Message as _;
use tonic::Status;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::wait::now;
use crate::grpc::UPSTREAM_SERVICE;

const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Longest report, in bytes.
const MAX_WORD: usize = 1 << 10;

/// Wait before a watch that ended, or made room for other streams, restarts.
const AGAIN: Duration = Duration::from_secs(5);

/// Longest wait for the first report. Another implementation may leave the watch open and silent.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// State of the server's own control plane, which decides whether its resources may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is no relay, its control plane has answered on this connection, or it does not report.
    Answered,
    /// It is a relay, and may still report.
    Unsaid,
    /// It is a relay that was cut off since this connection began.
    CutOff,
}

pub(super) struct RelayWatch {
    channel: Channel,
    /// `None` while nothing is watched.
    words: Option<BoxStream<'static, bool>>,
    has_word: bool,
    /// Time at which the server was found to be a relay.
    is_relay_since: Option<Instant>,
    /// Whether it reported an answer of its control plane, or does not report.
    is_answered: bool,
}

impl RelayWatch {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, words: None, has_word: false, is_relay_since: None, is_answered: false }
    }

    /// Watches a relay, unless it already does. Returns whether it begins.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.words.is_none();
        if begins {
            // Its report is awaited from now on, also on a stream that was reopened earlier.
            self.is_relay_since = Some(now());
            self.words = Some(watch(self.channel.clone(), Duration::ZERO).boxed());
        }
        begins
    }

    /// Makes room for a reopened stream, on which another server may answer: a server may allow few streams.
    /// After a report, the new server is watched a little later. Otherwise its first message shows whether it
    /// is a relay.
    pub(super) fn restart(&mut self) {
        self.words = self.has_word.then(|| watch(self.channel.clone(), AGAIN).boxed());
    }

    /// Ends the watch, because the server is no relay. Returns whether an outdated report existed.
    pub(super) fn end(&mut self) -> bool {
        (self.words, self.is_relay_since, self.is_answered) = (None, None, false);
        std::mem::take(&mut self.has_word)
    }

    pub(super) const fn is_open(&self) -> bool {
        self.words.is_some()
    }

    /// Whether the server speaks for a control plane: it is no relay, or has reported.
    pub(super) const fn vouches(&self) -> bool {
        self.is_relay_since.is_none() || self.has_word
    }

    pub(super) fn standing(&self, now: Instant) -> Standing {
        match self.is_relay_since {
            Some(_) if self.has_word && !self.is_answered => Standing::CutOff,
            Some(since) if !self.is_answered && now < since + FIRST_WORD => Standing::Unsaid,
            _ => Standing::Answered,
        }
    }

    /// Next report; `None` once if the relay does not report. Cancel-safe. A watch that ends after a report
    /// restarts.
    pub(super) async fn next(&mut self) -> Option<bool> {
        loop {
            let Some(words) = &mut self.words else { return pending().await };
            if let Some(word) = words.next().await {
                self.has_word = true;
                self.is_answered |= word;
                return Some(word);
            }
            if !self.has_word {
                self.words = Some(stream::pending().boxed());
                self.is_answered = true;
                return None;
            }
            self.words = Some(watch(self.channel.clone(), AGAIN).boxed());
        }
    }
}

/// Reports of the server, now and at each change. Ends where it does not report, or no longer.
fn watch(channel: Channel, wait: Duration) -> impl Stream<Item = bool> + Send {
    let request = HealthCheckRequest { service: UPSTREAM_SERVICE.to_owned() };
    let request = stream::iter([Bytes::from(request.encode_to_vec())]);
    let call = async move {
        tokio::time::sleep(wait).await;
        let (_, words) =
            call(channel, WATCH, HeaderMap::new(), request, MAX_WORD, Transfers::default().of_stream())
                .await?;
        Ok::<_, Status>(words)
    };
    let says =
        |word: Bytes| Some(HealthCheckResponse::decode(word).ok()?.status() != ServingStatus::NotServing);
    call.try_flatten_stream().scan((), move |(), word| future::ready(word.ok().and_then(says)))
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    /// The first response on the new stream has its word to wait for, as the one on the last stream had.
    #[tokio::test]
    async fn the_word_is_waited_for_anew_on_a_stream_that_is_opened_anew() {
        let mut watch = RelayWatch::new(Endpoint::from_static("http://127.0.0.1:1").connect_lazy());
        let begun = now();
        watch.begin();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let later = now() + FIRST_WORD - Duration::from_millis(1);
        assert_eq!(watch.standing(later), Standing::Answered, "{:?}", later - begun);
        watch.restart();
        assert!(!watch.vouches());
        watch.begin();
        assert_eq!(watch.standing(later), Standing::Unsaid);
    }
}
