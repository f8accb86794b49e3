//! Conversation with a server: over gRPC about any number of subscriptions, over any transport about one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use deltafan_core::cache::Protocol;
use deltafan_core::resource::TypeUrl;
use deltafan_transport::stream::OpenStream;
use deltafan_transport::transfer::Transfers;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http::HeaderMap;

use super::Transport;
use super::client_request::{Asker, Query};
use super::client_response::Update;
use super::conversation_end::Ended;
use super::rest_polls::Polls;
use super::subscribed_names::Subscription;
use super::watched_resources::Held;

/// Largest response in bytes.
const MAX_MESSAGE: usize = 256 << 20;

/// On one connection, or over several polls.
pub(super) struct Conversation {
    updates: BoxStream<'static, Result<Update, Ended>>,
    pub(super) transfers: Transfers,
    type_url: TypeUrl,
}

impl Conversation {
    /// Connects. Only delta can send the versions of held resources.
    pub(super) async fn open(query: &Query, held: &Held) -> Result<Self, Ended> {
        let Query { server, transport, asker, asked } = query;
        let (transfers, type_url) = (Transfers::default(), asked.type_url.clone());
        let protocol = match transport {
            Transport::Delta => Protocol::Delta,
            Transport::Sotw => Protocol::Sotw,
            Transport::Rest => {
                let polls = Polls::open(query.clone(), transfers.clone()).await?;
                let next = |mut polls: Polls| async move { Some((polls.next().await, polls)) };
                return Ok(Self { updates: stream::unfold(polls, next).boxed(), transfers, type_url });
            }
        };
        let versions = held.found.iter().map(|(name, found)| (name.clone(), found.version.clone())).collect();
        let asked = vec![asked.clone()];
        let stream = AdsStream::open(server.connect().await?, protocol, asker, asked, versions, &transfers);
        let next = |mut stream: AdsStream| async move {
            let next = stream.next().await.map(|(update, _)| update);
            Some((next, stream))
        };
        Ok(Self { updates: stream::unfold(stream, next).boxed(), transfers, type_url })
    }

    /// Returns the next response, or `None` after a silence without even a part of one. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the conversation, or [`Ended::NotYet`], after which it goes on.
    pub(super) async fn next(&mut self, quiet: Duration) -> Result<Option<Update>, Ended> {
        loop {
            // Two halves: after a pause of this process the first ends at once, and the second leaves time to
            // read.
            for _ in 0..2 {
                if let Ok(next) = tokio::time::timeout(quiet / 2, self.updates.next()).await {
                    let update = next.unwrap_or(Err(Ended::InOrder))?;
                    return update.expect_type(&self.type_url).map(Some).map_err(Ended::Faulty);
                }
            }
            if !self.transfers.is_under_way() {
                return Ok(None);
            }
        }
    }
}

/// gRPC ADS stream of a client. ACKs every response.
pub(crate) struct AdsStream {
    open: OpenStream,
    protocol: Protocol,
    subscriptions: Vec<Subscription>,
}

impl AdsStream {
    /// Opens a stream. `held` has the versions of resources of the first subscription; state of the world cannot send
    /// them.
    pub(crate) fn open(
        channel: tonic::transport::Channel,
        protocol: Protocol,
        asker: &Asker,
        subscriptions: Vec<Subscription>,
        mut held: HashMap<String, String>,
        transfers: &Transfers,
    ) -> Self {
        let first = subscriptions.iter().enumerate().map(|(at, subscription)| {
            let node = (at == 0).then_some(asker);
            match protocol {
                Protocol::Delta => subscription.delta(node, std::mem::take(&mut held)),
                Protocol::Sotw => subscription.sotw(node, "", ""),
            }
        });
        let first = Some(first.collect());
        let open = OpenStream::open(channel, protocol, HeaderMap::new(), first, MAX_MESSAGE, transfers);
        Self { open, protocol, subscriptions }
    }

    /// Returns the next response, with the time of its arrival.
    pub(crate) async fn next(&mut self) -> Result<(Update, Instant), Ended> {
        let message = self.open.incoming.next().await.ok_or(Ended::InOrder)??;
        // Before parsing, which takes this process time.
        let arrived = Instant::now();
        let read = match self.protocol {
            Protocol::Delta => Update::of_delta(message),
            Protocol::Sotw => Update::of_sotw(message, None),
        };
        let update = read.map_err(Ended::Faulty)?;
        let ack = match self.protocol {
            Protocol::Delta => Some(update.delta_ack()),
            // An ACK repeats the names, so an unrequested type gets none.
            Protocol::Sotw => {
                let of = self.subscriptions.iter().find(|asked| asked.type_url == update.type_url);
                of.map(|asked| asked.sotw(None, &update.version, &update.nonce))
            }
        };
        if let Some(ack) = ack {
            // Fails if the stream has ended; the next read has the cause.
            _ = self.open.outgoing.send(ack).await;
        }
        Ok((update, arrived))
    }
}
