//! A control plane that others have written, in a version of the test's choice, and relays of it.

use std::{fs, process::Command};

use super::{ControlPlane, Logs, Origin, Relay, is_direct};

pub(crate) struct ForeignBed {
    // Dropped in this order: clients belong to the test, so relays are next, then the origin.
    relays: Vec<Relay>,
    pub(crate) origin: Origin,
    _logs: Logs,
}

impl ForeignBed {
    /// Starts the origin and so many relays of it; `None` where it is not installed.
    pub(crate) fn start(control_plane: ControlPlane, relays: usize) -> Option<Self> {
        control_plane.require()?;
        let logs = Logs::new();
        let origin = Origin::start_as(control_plane, logs.dir());
        let start = |number: usize| {
            let dir = logs.dir().join(format!("relay-{number}"));
            fs::create_dir(&dir).unwrap();
            Relay::start(&dir, origin.port())
        };
        let relays = if is_direct() { Vec::new() } else { (0..relays).map(start).collect() };
        Some(Self { relays, origin, _logs: logs })
    }

    /// The port that clients of a relay connect to.
    pub(crate) fn port(&self, relay: usize) -> u16 {
        self.relays.get(relay).map_or_else(|| self.origin.port(), Relay::port)
    }
}

/// The output of `deltafan get` from a server on this port.
pub(crate) fn get(port: u16, resource_type: &str) -> String {
    let server = format!("http://127.0.0.1:{port}");
    let program = env!("CARGO_BIN_EXE_deltafan");
    let output = Command::new(program).args(["get", resource_type, "--server", &server]).output().unwrap();
    assert!(output.status.success(), "deltafan get {resource_type}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
