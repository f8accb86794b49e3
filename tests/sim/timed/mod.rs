//! Histories with time: origins as they are, links as they are, the whole pure core of the relay between them and clients of every
//! kind, with each timer at its default.

mod client;
mod disk;
mod flavor;
mod found;
mod groups;
mod judge;
mod net;
mod origin;
mod plan;
mod queue;
mod quiet;
mod reading;
mod relay;
mod servers;
mod sotw;
mod stores;
mod trouble;
mod truth;
mod wiring;
mod world;

use crate::harness;
use world::{
    FailoverWorld, GroupsWorld, PeculiarWorld, SotwWorld, ThinWorld, WarmFailoverWorld, WarmWorld, World,
};

#[test]
fn histories_that_found_a_defect_find_none() {
    harness::play_kept::<World>(found::FOUND);
}

#[test]
fn nothing_live_is_lost_and_every_change_arrives() {
    harness::play::<World>();
}

#[test]
fn nothing_is_lost_behind_an_origin_that_speaks_state_of_the_world() {
    harness::play::<SotwWorld>();
}

#[test]
fn each_node_group_is_shown_its_own_world() {
    harness::play::<GroupsWorld>();
}

#[test]
fn a_first_answer_over_a_thin_link_takes_nothing_away() {
    harness::play::<ThinWorld>();
}

#[test]
fn r_up_08_nothing_is_lost_between_control_planes_with_equal_versions() {
    harness::play::<FailoverWorld>();
}

#[test]
fn r_relay_06_nothing_is_lost_when_a_relay_is_killed_and_starts_from_its_disk() {
    harness::play::<WarmWorld>();
}

#[test]
fn r_up_04_versions_of_a_disk_are_told_to_their_control_plane_alone() {
    harness::play::<WarmFailoverWorld>();
}

/// Control planes that end the stream for a type (O8), or send a part of the state of the world (O7).
#[test]
fn one_type_that_ends_the_stream_and_partial_states_take_nothing_away() {
    harness::play::<PeculiarWorld>();
}
