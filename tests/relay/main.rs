//! The relay over real sockets: the binary, and its upstream side alone, between scripted control planes and scripted clients.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admin;
mod admin_commands;
mod authorization;
mod check;
mod client_status;
mod completions;
mod config_dump;
mod downstream;
mod drain;
mod end_to_end;
mod failover;
mod fleet;
mod get;
mod group_streams;
mod groups;
mod history;
mod limits;
mod metrics;
mod operators;
mod orders;
mod page;
mod parameters;
mod rejections;
mod reload;
mod rest;
mod rollout;
mod sotw_origin;
mod status;
mod tiers;
mod tls;
mod troubleshooting;
mod upstream;
mod upstream_tls;
mod warm_restart;
