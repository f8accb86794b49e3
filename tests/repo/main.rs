//! The repository itself: documents, the tables of rules, dependencies, and the corpus of the fuzzer.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(unreachable_pub, reason = "the fuzz targets use it as a library")]
#[path = "../../fuzz/bodies/mod.rs"]
mod bodies;
mod book;
mod budget;
mod corpus;
mod dependencies;
mod deploy;
mod dist;
mod docs;
mod examples;
mod matrix;
