//! A control plane that others have written, in a version of the test's choice, and relays of it.

use std::{fs, process::Command};

use super::{ControlPlane, Envoy, Logs, Origin, Relay, Seats, Transport, is_direct, require};

pub(crate) struct ForeignBed {
    // Dropped in this order: clients belong to the test, so relays are next, then the origin.
    relays: Vec<Relay>,
    pub(crate) origin: Origin,
    logs: Logs,
    _seats: Seats,
}

impl ForeignBed {
    /// Starts the origin and so many relays of it; `None` where it is not installed.
    pub(crate) fn start(control_plane: ControlPlane, relays: usize) -> Option<Self> {
        control_plane.require()?;
        Some(Self::launch(control_plane, relays, Seats::take(0)))
    }

    /// Starts the origin and one relay, with room for so many Envoys.
    pub(crate) fn start_for_envoys(control_plane: ControlPlane, envoys: usize) -> Option<Self> {
        control_plane.require()?;
        require(Envoy::program().is_some(), "no Envoy")?;
        Some(Self::launch(control_plane, 1, Seats::take(envoys)))
    }

    fn launch(control_plane: ControlPlane, relays: usize, seats: Seats) -> Self {
        let logs = Logs::new();
        let origin = Origin::start_as(control_plane, logs.dir());
        let start = |number: usize| {
            let dir = logs.dir().join(format!("relay-{number}"));
            fs::create_dir(&dir).unwrap();
            Relay::start(&dir, origin.port())
        };
        let relays = if is_direct() { Vec::new() } else { (0..relays).map(start).collect() };
        Self { relays, origin, logs, _seats: seats }
    }

    /// The port that clients of a relay connect to.
    pub(crate) fn port(&self, relay: usize) -> u16 {
        self.relays.get(relay).map_or_else(|| self.origin.port(), Relay::port)
    }

    pub(crate) fn start_envoy(&self, id: &str, transport: Transport, server: u16) -> Envoy {
        Envoy::start(self.logs.dir(), id, transport, server, &[])
    }
}

/// Looks with `deltafan get` at what a server on this port has. It may have nothing to show.
pub(crate) fn get(port: u16, resource_type: &str) {
    let server = format!("http://127.0.0.1:{port}");
    Command::new(deltafan_test_support::process::program())
        .args(["get", resource_type, "--server", &server])
        .output()
        .unwrap();
}
