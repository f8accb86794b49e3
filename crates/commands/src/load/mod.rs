//! Load generator: `deltafan load`, thousands of xDS clients for any server.
//!
//! Owns the clients, their pace, and the measures.
//!
//! Measures propagation from the first client with a version to each other one. This process sees both, so
//! any server will do. Excludes the way from the control plane to the first client.

mod load_client;
mod load_measures;
mod load_phases;
mod load_report;

use std::num::NonZeroU32;
use std::time::Duration;

use deltafan_core::cache::Protocol;

pub(crate) use load_phases::load;

use crate::client::{Asker, Server, Subscription, Transport};

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub server: Server,
    pub protocol: Protocol,
    /// The ID of each client ends with its number.
    pub asker: Asker,
    pub asked: Vec<Subscription>,
    pub clients: usize,
    pub rate: NonZeroU32,
    /// Longest wait for first answers after the last client begins to connect.
    pub patience: Duration,
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
