//! Bodies of the fuzz targets: each runs an input and checks what has to hold whatever the input is.
//!
//! The targets in `fuzz/targets` run these bodies under libFuzzer, and `tests/repo/corpus.rs` runs them over the kept corpus.
//! They use the library from outside, so that what they find is what a peer could cause.

mod envelope;
mod http2;
mod input;
mod json;
mod names;
mod origin;
mod rest;

/// Runs one input; panics where something does not hold.
pub type Body = fn(&[u8]);

/// All targets by name: that of a binary, and of a folder in `fuzz/corpus`.
pub const TARGETS: [(&str, Body); 6] = [
    ("envelope", envelope::run),
    ("http2", http2::run),
    ("json", json::run),
    ("names", names::run),
    ("origin", origin::run),
    ("rest", rest::run),
];

/// The body of a target.
pub fn body(target: &str) -> Body {
    TARGETS
        .iter()
        .find(|(name, _)| *name == target)
        .map_or_else(|| panic!("no target {target}"), |(_, body)| *body)
}
