//! Ports for programs that must come back on the same one after a restart.

use std::{
    net::TcpListener,
    process,
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
};

// Below the range that outgoing connections take their ports from: there, a client that retries a dead server
// may be given the server's port, or connect to itself.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
    // Test runs side by side start at different places.
    let offset = process::id().wrapping_mul(7_919) % u32::from(COUNT);
    AtomicU16::new(u16::try_from(offset).unwrap())
});

/// A port that nobody listens on, and that no other caller of this process is given.
pub(crate) fn free_port() -> u16 {
    for _ in 0..COUNT {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}
