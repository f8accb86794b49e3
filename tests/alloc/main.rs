//! Bytes that the relay allocates, as the allocator of this test program counts them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod encode_once;
mod footprint;

use std::alloc::System;

use parking_lot::Mutex;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The allocator counts for the whole program: one measurement at a time.
static ALONE: Mutex<()> = Mutex::new(());
