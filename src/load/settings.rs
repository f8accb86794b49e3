//! Settings of a load.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::cache::Protocol;
use crate::client::{Asker, Server, Subscription, Transport};

/// A load, and the server that it is for.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server.
    pub server: Server,
    /// Protocol of the clients, over gRPC.
    pub protocol: Protocol,
    /// Node of the clients; each has a number behind its ID.
    pub asker: Asker,
    /// Subscriptions of each client.
    pub asked: Vec<Subscription>,
    /// Number of clients.
    pub clients: usize,
    /// Clients that connect in a second.
    pub rate: NonZeroU32,
    /// Time for the first answers, once the last client has begun to connect.
    pub patience: Duration,
    /// Time for which changes are measured after that.
    pub duration: Duration,
}

impl Load {
    pub(super) fn transport(&self) -> Transport {
        match self.protocol {
            Protocol::Delta => Transport::Delta,
            Protocol::Sotw => Transport::Sotw,
        }
    }
}
