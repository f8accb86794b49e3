//! Histories of dynamic parameters: an origin that publishes variants, the upstream side and the cache, and clients that ask with
//! parameters in every way there is, against a naive evaluator (R-DP-*).

mod client;
mod connection;
mod origin;
mod poller;
mod rule;
mod stores;
mod world;

use crate::harness;
use world::World;

/// Seeds that found a defect.
const FOUND: &[(u64, &str)] = &[
    (70, "a variant that went while the origin was away is served for good by a name with parameters"),
    (384, "the same for a client that brought it along and does not ask for it any more"),
    (316, "a wildcard with parameters shows a name that is no member"),
    (689, "an identity that a client was told is not taken back where it mixes parameters"),
    (5372, "one without constraints is not, after the parameters of the wildcard changed"),
    (7911, "what was said to be gone before a name was asked for stays there for good"),
    (2026, "a loan of what is not answered goes on because another topic has another variant"),
    (11418, "nothing for one set of parameters takes what is there from another that asked later"),
    (9319, "a variant takes away another one that is there for the same parameters"),
    (15058, "a member that is said to be gone stays under its name when its wildcard is let go"),
    (4358, "a change for the plain wildcard is taken for the whole of one with parameters"),
    (3163, "a locator that nobody reads stays unnoticed when the plain name beside it is let go"),
    (5590, "a plain wildcard that waits for a new stream misses what changes meanwhile"),
    (7484, "the nonce of additions is that of another generation"),
    (465, "a wildcard that was let go counts as known again before the origin is told"),
    (15596, "a name that is seen as a member is absent when its wildcard is let go"),
    (14042, "what a client brings along and lets go in one request counts as held"),
    (608, "identities that are gone are forgotten while only additions are told"),
    (15906, "the secondary stream is opened anew for ever for a wildcard that nobody wants"),
    (38, "the end of the answer to a wildcard that was let go makes its set complete"),
    (66, "a plain removal for some clients ends a variant that others have not been answered for"),
    (251, "the end mark beside a plain wildcard does not count for a wildcard with parameters"),
];

#[test]
fn histories_that_found_a_defect_find_none() {
    harness::play_kept::<World>(FOUND);
}

#[test]
fn every_client_has_the_variants_that_are_for_it() {
    harness::play::<World>();
}
