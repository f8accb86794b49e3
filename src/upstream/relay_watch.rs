//! Word of a relay at the other end on whether its own control plane answers it.
//!
//! Owns when its health service is watched for that on a connection, that a word holds until the next one, and for how long the first
//! one is waited for. Knows nothing of what follows from a word.

use std::future::pending;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use futures_util::{Stream, TryFutureExt as _, future};
use http::HeaderMap;
use prost::Message as _;
use tonic::Status;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::call::call;
use super::transfer::Transfers;
use super::wait::now;
use crate::grpc::UPSTREAM_SERVICE;

const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Longest word, in bytes.
const MAX_WORD: usize = 1 << 10;

/// Wait before a watch that ended, or that made room for other streams, begins again.
const AGAIN: Duration = Duration::from_secs(5);

/// Longest wait for the first word. A relay of another make may leave the watch open and say nothing.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// How the server stands with its own control plane, as far as that decides whether its resources may be old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is no relay, its own control plane has answered it during this connection, or it does not say.
    Answered,
    /// It is a relay, and may still say.
    Unsaid,
    /// It is a relay that was cut off from the beginning of this connection on.
    CutOff,
}

/// Watch on one connection.
pub(super) struct RelayWatch {
    channel: Channel,
    /// `None` while nothing is watched.
    words: Option<BoxStream<'static, bool>>,
    has_word: bool,
    /// Time at which the server was found to be a relay, if it is one.
    is_relay_since: Option<Instant>,
    /// Whether it has said that its own control plane answers it, or does not say.
    is_answered: bool,
}

impl RelayWatch {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, words: None, has_word: false, is_relay_since: None, is_answered: false }
    }

    /// Watches, unless it does: the server is a relay. Returns whether it begins.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.words.is_none();
        if begins {
            // Its word is waited for from now on, also on a stream that was opened anew before there was one.
            self.is_relay_since = Some(now());
            self.words = Some(watch(self.channel.clone(), Duration::ZERO).boxed());
        }
        begins
    }

    /// Makes room for a stream that is opened anew, on which another server may answer: a server may allow few streams. Where there
    /// was a word, that of the new server is asked for a little later; else its first message says whether it is a relay.
    pub(super) fn restart(&mut self) {
        self.words = self.has_word.then(|| watch(self.channel.clone(), AGAIN).boxed());
    }

    /// Ends the watch, as the server is no relay. Returns whether there was a word, which holds no more.
    pub(super) fn end(&mut self) -> bool {
        (self.words, self.is_relay_since, self.is_answered) = (None, None, false);
        std::mem::take(&mut self.has_word)
    }

    /// Whether it takes a stream of the connection.
    pub(super) const fn is_open(&self) -> bool {
        self.words.is_some()
    }

    /// Whether the words of the server are those of a control plane: it is no relay, or has said how it stands with its own.
    pub(super) const fn vouches(&self) -> bool {
        self.is_relay_since.is_none() || self.has_word
    }

    /// How the server stands with its own control plane.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        match self.is_relay_since {
            Some(_) if self.has_word && !self.is_answered => Standing::CutOff,
            Some(since) if !self.is_answered && now < since + FIRST_WORD => Standing::Unsaid,
            _ => Standing::Answered,
        }
    }

    /// Next word; `None` once if the server is a relay that does not say. Cancel-safe. The end of a watch that had a word is none: it
    /// begins again.
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

/// Words of the server: now, and whenever they change. Ends where the server does not say, or no longer.
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
