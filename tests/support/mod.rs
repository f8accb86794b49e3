//! What tests over real sockets share.

#![allow(dead_code, unreachable_pub, missing_debug_implementations, clippy::expect_used, clippy::unwrap_used)]

pub mod authority;
pub mod certificates;
pub mod client;
pub mod front;
pub mod http1;
pub mod origin;
pub mod process;

use std::time::Duration;

/// Long enough for anything that is to happen, on a machine however busy.
pub const PATIENCE: Duration = Duration::from_secs(120);
