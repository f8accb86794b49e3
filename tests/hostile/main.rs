//! Attacks of hostile peers on the relay, and on those that mean well.
//!
//! Each attack runs against the real binary while a control plane changes a resource at a steady pace and an honest
//! client hears of it. Asserted of each, in the same run: memory grows by no more than 64 MiB, nothing panics, and when the
//! attack is over, so are its connections, its streams and its harm. In builds that are optimized the honest client's 99th
//! percentile is at most doubled, too (`hostile/fixture.rs` says what is allowed for noise). At the end of a row of attacks
//! the bystanders that were there before are served on the streams they had, a newcomer is let in and has of everything of
//! which there is only so much, and, in long runs, memory is back (`hostile/aftermath.rs`).
//!
//! `make attacks` runs them for longer and prints the figures that docs/security.md sums up. Attacks connect by a
//! [`peer::Connector`], so that the same ones can be run through TLS.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod aftermath;
mod answered;
mod fixture;
mod floods;
mod groups;
mod honest;
mod malice;
mod origins;
mod peer;
mod requests;
mod slow;
mod tls;
mod turns;
