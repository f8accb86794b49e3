//! Settings of a load.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::cache::Protocol;
use crate::client::{Asker, Server, Subscription, Transport};

/// Settings of a load.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server.
    pub server: Server,
    /// Protocol of the clients, over gRPC.
    pub protocol: Protocol,
    /// Node of the clients; the ID of each ends with its number.
    pub asker: Asker,
    /// Subscriptions of each client.
    pub asked: Vec<Subscription>,
    /// Number of clients.
    pub clients: usize,
    /// Clients that connect per second.
    pub rate: NonZeroU32,
    /// Longest wait for first answers after the last client has begun to connect.
    pub patience: Duration,
    /// Time of the measurement of changes.
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
