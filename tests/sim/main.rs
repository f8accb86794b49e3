//! Random histories, each of which follows from a seed, against models and time lines. One harness plays them; a scenario is a
//! family of histories:
//!
//! | Scenario | Histories of |
//! |---|---|
//! | `timed` | whole relays, chains of them, node groups, clients and origins as they are, with slow links, pauses and outages |
//! | `sessions` | an origin that says anything that is allowed, and a dozen clients of every kind; no links |
//! | `variants` | dynamic parameters, from an origin that publishes variants to clients that ask with parameters |
//! | `aliases` | resources that come under other names, through the whole core |
//! | `errors` | errors of single resources |
//! | `ttl` | resources that end, and heartbeats |
//! | `rollout` | good and bad changes that are tried on a canary first |
//! | `swaps` | routes that move between clusters, at Envoys that have to warm these |
//!
//! A failure prints how to play its history again, up to the step that failed and with everything that was said:
//! `DELTAFAN_SEED=… DELTAFAN_STEPS=… cargo test --test sim SCENARIO::`. `DELTAFAN_STEPS` alone looks for longer, from the seed
//! `DELTAFAN_FIRST` on, in histories of `DELTAFAN_LENGTH` steps each; with `DELTAFAN_SURVEY=1` it goes on after failures.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod aliases;
mod common;
mod errors;
mod harness;
mod rollout;
mod sessions;
mod swaps;
mod timed;
mod ttl;
mod variants;
