//! The relay between Envoys and a control plane that the test itself plays, for what go-control-plane has no words for.

use super::{Envoy, Logs, Relay, Seats, Transport, require};

pub(crate) struct ScriptedBed {
    // Dropped in this order: clients belong to the test, so the relay is next.
    relay: Relay,
    logs: Logs,
    _seats: Seats,
}

impl ScriptedBed {
    /// Starts the relay of an origin on this port, with room for so many Envoys; `None` without Envoy.
    pub(crate) fn start(envoys: usize, origin: u16) -> Option<Self> {
        require(Envoy::program().is_some(), "no Envoy")?;
        let seats = Seats::take(envoys);
        let logs = Logs::new();
        Some(Self { relay: Relay::start(logs.dir(), origin), logs, _seats: seats })
    }

    pub(crate) fn start_envoy(&self, id: &str, transport: Transport) -> Envoy {
        Envoy::start(self.logs.dir(), id, transport, self.relay.port(), &[])
    }
}
