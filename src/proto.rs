//! The generated xDS messages of `proto/discovery.proto`.

#![allow(missing_docs, unreachable_pub, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/deltafan.xds.rs"));
