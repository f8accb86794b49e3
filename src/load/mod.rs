//! Load generator: `deltafan load`, thousands of xDS clients for any server.
//!
//! Owns the clients, their pace, and the measures. The relay does not use it.
//!
//! Propagation is measured in this process alone, so any server will do: from the first client that receives a version to each of the
//! others. The time from the control plane to the first client is not part of it.

mod load_client;
mod load_measures;
mod load_phases;
mod load_progress;
mod load_report;

use std::num::NonZeroU32;
use std::time::Duration;

pub use load_phases::load;
pub use load_report::Report;

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
    fn transport(&self) -> Transport {
        match self.protocol {
            Protocol::Delta => Transport::Delta,
            Protocol::Sotw => Transport::Sotw,
        }
    }
}
