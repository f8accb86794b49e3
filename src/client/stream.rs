//! ADS stream of a client over gRPC. Every response is ACKed.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc::error::TrySendError;

use super::ended::Ended;
use super::request::{Asker, Subscription};
use super::response::Update;
use crate::cache::Protocol;
use crate::upstream::OpenStream;

/// Bytes of the largest response that is taken.
const MAX_MESSAGE: usize = 256 << 20;

/// Open stream, with the subscriptions on it.
pub(crate) struct AdsStream {
    open: OpenStream,
    protocol: Protocol,
    subscriptions: Vec<Subscription>,
    /// ACK that the transport has had no room for.
    waiting: Option<Bytes>,
}

impl AdsStream {
    /// Opens a stream. `held` has versions of resources that the client holds, of all types; state of the world has no place for
    /// them.
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
        let open = OpenStream::of_client(channel, protocol, first.collect(), MAX_MESSAGE);
        Self { open, protocol, subscriptions, waiting: None }
    }

    /// The next response. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the stream.
    pub(super) async fn next(&mut self) -> Result<Update, Ended> {
        let message = self.message().await?;
        self.take(message)
    }

    /// The next response, which is to be given to [`Self::take`]. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the stream.
    pub(crate) async fn message(&mut self) -> Result<Bytes, Ended> {
        if self.waiting.is_some() {
            // Fails when the stream has ended, which the read below tells with its cause.
            if let Ok(room) = self.open.outgoing.reserve().await
                && let Some(ack) = self.waiting.take()
            {
                room.send(ack);
            }
        }
        Ok(self.open.incoming.next().await.ok_or(Ended::InOrder)??)
    }

    /// Reads a response, and ACKs it.
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
            // An ACK repeats the names, so there is none for a type that was not asked for.
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
