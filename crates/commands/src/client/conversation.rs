//! Conversation with a server: over gRPC about any number of subscriptions, over any transport about one.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use deltafan_core::cache::Protocol;
use deltafan_transport::stream::OpenStream;
use deltafan_transport::transfer::Transfers;
use futures_util::StreamExt as _;
use http::HeaderMap;
use tokio::sync::mpsc::error::TrySendError;

use super::Transport;
use super::client_request::{Asker, Query};
use super::client_response::Update;
use super::conversation_end::Ended;
use super::rest_polls::Polls;
use super::subscribed_names::Subscription;

/// Largest response in bytes.
const MAX_MESSAGE: usize = 256 << 20;

/// On one connection, or over several polls.
pub(super) struct Conversation {
    via: Via,
    asked: Subscription,
}

enum Via {
    Stream(AdsStream),
    Polls(Box<Polls>),
}

impl Conversation {
    /// Connects. `held` has the client's versions; only delta can send them.
    pub(super) async fn open(query: &Query, held: &HashMap<String, String>) -> Result<Self, Ended> {
        let Query { server, transport, asker, asked } = query;
        let protocol = match transport {
            Transport::Delta => Some(Protocol::Delta),
            Transport::Sotw => Some(Protocol::Sotw),
            Transport::Rest => None,
        };
        let via = match protocol {
            Some(protocol) => {
                let channel = server.connect().await?;
                Via::Stream(AdsStream::open(channel, protocol, asker, vec![asked.clone()], held))
            }
            None => Via::Polls(Box::new(Polls::open(query.clone()).await?)),
        };
        Ok(Self { via, asked: asked.clone() })
    }

    /// Returns the next response. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the conversation, or [`Ended::NotYet`], after which it goes on.
    pub(super) async fn next(&mut self) -> Result<Update, Ended> {
        let update = match &mut self.via {
            Via::Stream(stream) => {
                let message = stream.message().await?;
                stream.take(message)
            }
            Via::Polls(polls) => polls.next().await,
        };
        update?.expect_type(&self.asked.type_url).map_err(Ended::Faulty)
    }

    /// Returns the next response, or `None` after a silence without even a part of one.
    pub(super) async fn next_unless_quiet(&mut self, quiet: Duration) -> Option<Result<Update, Ended>> {
        let transfers = self.transfers();
        let next = self.next();
        tokio::pin!(next);
        loop {
            // Two halves: after a pause of this process the first ends at once, and the second leaves time to
            // read.
            for _ in 0..2 {
                if let Ok(next) = tokio::time::timeout(quiet / 2, &mut next).await {
                    return Some(next);
                }
            }
            if !transfers.is_under_way() {
                return None;
            }
        }
    }

    pub(super) fn transfers(&self) -> Transfers {
        match &self.via {
            Via::Stream(stream) => stream.transfers.clone(),
            Via::Polls(polls) => polls.transfers(),
        }
    }
}

/// gRPC ADS stream of a client. ACKs every response.
pub(crate) struct AdsStream {
    open: OpenStream,
    protocol: Protocol,
    subscriptions: Vec<Subscription>,
    /// ACK without room in the transport.
    waiting: Option<Bytes>,
    transfers: Transfers,
}

impl AdsStream {
    /// Opens a stream. `held` has the versions of all held resources; state of the world cannot send them.
    pub(crate) fn open(
        channel: tonic::transport::Channel,
        protocol: Protocol,
        asker: &Asker,
        subscriptions: Vec<Subscription>,
        held: &HashMap<String, String>,
    ) -> Self {
        let first = subscriptions.iter().enumerate().map(|(at, subscription)| {
            let node = (at == 0).then_some(asker);
            match protocol {
                Protocol::Delta => subscription.delta(node, held.clone()),
                Protocol::Sotw => subscription.sotw(node, "", ""),
            }
        });
        let transfers = Transfers::default();
        let open = OpenStream::open(
            channel,
            protocol,
            HeaderMap::new(),
            Some(first.collect()),
            MAX_MESSAGE,
            &transfers,
        );
        Self { open, protocol, subscriptions, waiting: None, transfers }
    }

    /// Returns the next response, for [`Self::take`]. May be dropped while it waits.
    pub(crate) async fn message(&mut self) -> Result<Bytes, Ended> {
        if self.waiting.is_some() {
            // Fails if the stream has ended; the read below has the cause.
            if let Ok(room) = self.open.outgoing.reserve().await
                && let Some(ack) = self.waiting.take()
            {
                room.send(ack);
            }
        }
        Ok(self.open.incoming.next().await.ok_or(Ended::InOrder)??)
    }

    /// Reads and ACKs a response.
    pub(crate) fn take(&mut self, message: Bytes) -> Result<Update, Ended> {
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
        if let Some(Err(TrySendError::Full(ack))) = ack.map(|ack| self.open.outgoing.try_send(ack)) {
            self.waiting = Some(ack);
        }
        Ok(update)
    }
}
