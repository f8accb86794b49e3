//! Conversation about one subscription, over any transport.

use std::collections::HashMap;

use super::ended::Ended;
use super::request::{Asker, Subscription};
use super::response::Update;
use super::rest::Polls;
use super::server::Server;
use super::stream::AdsStream;
use super::transport::Transport;
use crate::cache::Protocol;

/// Conversation with a server.
pub(super) enum Conversation {
    Stream(AdsStream),
    Polls(Box<Polls>),
}

impl Conversation {
    /// Connects. `held` has the versions that the client holds; only delta has a place for them.
    ///
    /// # Errors
    ///
    /// Server that cannot be reached.
    pub(super) async fn open(
        server: &Server,
        transport: Transport,
        asker: &Asker,
        asked: &Subscription,
        held: &HashMap<String, String>,
    ) -> Result<Self, Ended> {
        let protocol = match transport {
            Transport::Delta => Protocol::Delta,
            Transport::Sotw => Protocol::Sotw,
            Transport::Rest => {
                let polls = Polls::new(server.clone(), asker.clone(), asked.clone())?;
                return Ok(Self::Polls(Box::new(polls)));
            }
        };
        let channel = server.connect().await?;
        Ok(Self::Stream(AdsStream::open(channel, protocol, asker, vec![asked.clone()], held)))
    }

    /// The next response about what was asked for. May be dropped while it waits.
    ///
    /// # Errors
    ///
    /// End of the conversation.
    pub(super) async fn next(&mut self, asked: &Subscription) -> Result<Update, Ended> {
        let update = match self {
            Self::Stream(stream) => stream.next().await,
            Self::Polls(polls) => polls.next().await,
        };
        update?.expect_type(&asked.type_url).map_err(Ended::Faulty)
    }
}
