//! Conversation with a server about one subscription, over any transport.

use std::collections::HashMap;
use std::time::Duration;

use super::Transport;
use super::ads_stream::AdsStream;
use super::client_request::Asker;
use super::client_response::Update;
use super::conversation_end::Ended;
use super::rest_polls::Polls;
use super::server_address::Server;
use super::subscribed_names::Subscription;
use crate::cache::Protocol;
use deltafan_transport::transfer::Transfers;

#[derive(Clone, Debug)]
pub struct Query {
    pub server: Server,
    pub transport: Transport,
    pub asker: Asker,
    pub asked: Subscription,
}

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
    ///
    /// # Errors
    ///
    /// Server that cannot be reached.
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
            None => Via::Polls(Box::new(Polls::open(server.clone(), asker.clone(), asked.clone()).await?)),
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
            Via::Stream(stream) => stream.next().await,
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
            Via::Stream(stream) => stream.transfers(),
            Via::Polls(polls) => polls.transfers(),
        }
    }
}
