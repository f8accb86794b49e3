//! gRPC ADS stream of a client. ACKs every response.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::HeaderMap;
use tokio::sync::mpsc::error::TrySendError;

use super::client_request::Asker;
use super::client_response::Update;
use super::conversation_end::Ended;
use super::subscribed_names::Subscription;
use crate::cache::Protocol;
use deltafan_transport::stream::OpenStream;
use deltafan_transport::transfer::Transfers;

/// Largest response in bytes.
const MAX_MESSAGE: usize = 256 << 20;

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

    pub(super) fn transfers(&self) -> Transfers {
        self.transfers.clone()
    }

    /// Returns the next response. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the stream.
    pub(super) async fn next(&mut self) -> Result<Update, Ended> {
        let message = self.message().await?;
        self.take(message)
    }

    /// Returns the next response, for [`Self::take`]. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the stream.
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
    ///
    /// # Errors
    ///
    /// Fault of the server.
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
