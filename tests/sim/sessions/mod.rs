//! Histories of the cache and its sessions: an origin that says anything that the protocol allows, a dozen clients of every kind,
//! and after each response the question whether it could have been that one.

mod checks;
mod client;
mod origin;
mod poller;
mod subscription;
mod world;

use crate::harness;
use world::World;

#[test]
fn a_million_steps_find_no_difference() {
    harness::play::<World>();
}
