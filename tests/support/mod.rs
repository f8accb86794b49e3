//! What tests over real sockets share.

#![allow(dead_code, unreachable_pub, clippy::expect_used)]

pub mod origin;
