//! Histories of the cache and its sessions: an origin that says anything that the protocol allows, a dozen clients of every kind,
//! and after each response the question whether it could have been that one.

mod checks;
mod client;
mod origin;
mod subscription;
mod world;

use crate::harness;
use world::World;

#[test]
fn no_session_differs() {
    harness::play::<World>();
}
