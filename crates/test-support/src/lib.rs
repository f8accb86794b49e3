//! Scripted control planes, clients and certificates, over real sockets and over the pure core (`fixture`, `whole`), and the
//! relay's binary as a process.
//!
//! Owns what tests of several crates need, so that it is compiled once. Knows nothing of what a test proves.

#![allow(
    missing_debug_implementations,
    clippy::missing_errors_doc,
    clippy::new_without_default,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "values of tests, and tests that panic where they cannot go on"
)]

pub mod bell;
pub mod certificates;
pub mod client;
pub mod fixture;
pub mod frames;
pub mod front;
pub mod http1;
pub mod origin;
pub mod process;
pub mod slow_link;
pub mod small_disk;
pub mod whole;
pub mod wire;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Long enough for anything that is to happen, on a machine however busy.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Loopback address of its own for a server. Others may go on connecting to one that has ended: at a shared address its port may
/// be given to the server of another test.
pub fn own_loopback() -> Ipv4Addr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    // 127.0 has the shared address. Test programs that run side by side mostly differ here.
    let process = 1 + (std::process::id() % 254) as u8;
    Ipv4Addr::new(127, process, high, low)
}

/// Waits until something holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "no {what} in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
