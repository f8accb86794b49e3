//! Word of a relay at the other end on whether its own control plane answers it.
//!
//! Owns when its health service is watched for that on a connection, and that a word holds until the next one. Knows nothing of
//! what follows from a word.

use std::future::pending;
use std::time::Duration;

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
use crate::grpc::UPSTREAM_SERVICE;

const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Longest word, in bytes.
const MAX_WORD: usize = 1 << 10;

/// Wait before a watch that ended, or that made room for other streams, begins again.
const AGAIN: Duration = Duration::from_secs(5);

/// Watch on one connection.
pub(super) struct RelayWatch {
    channel: Channel,
    /// `None` while nothing is watched.
    words: Option<BoxStream<'static, bool>>,
    has_word: bool,
    /// Whether the server is a relay.
    is_of_relay: bool,
}

impl RelayWatch {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, words: None, has_word: false, is_of_relay: false }
    }

    /// Watches, unless it does: the server is a relay. Returns whether it begins.
    pub(super) fn begin(&mut self) -> bool {
        let begins = self.words.is_none();
        self.is_of_relay = true;
        if begins {
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
        (self.words, self.is_of_relay) = (None, false);
        std::mem::take(&mut self.has_word)
    }

    /// Whether the words of the server are those of a control plane: it is no relay, or has said how it stands with its own.
    pub(super) const fn vouches(&self) -> bool {
        !self.is_of_relay || self.has_word
    }

    /// Next word. Cancel-safe. The end of a watch is none: one that said nothing is of a relay that does not say, and any other
    /// begins again.
    pub(super) async fn next(&mut self) -> bool {
        loop {
            let Some(words) = &mut self.words else { return pending().await };
            if let Some(word) = words.next().await {
                self.has_word = true;
                return word;
            }
            self.words = Some(match self.has_word {
                true => watch(self.channel.clone(), AGAIN).boxed(),
                false => stream::pending().boxed(),
            });
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
