//! Runs every fuzz target over its kept corpus: what the fuzzer found once, and what its seeds say, on any toolchain and
//! without a network. One of them is also run over random input: the one that compares the HTTP/2 server with another.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(unreachable_pub, reason = "the fuzz targets use it as a library")]
#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// The corpus is part of the repository and stays small.
const MAX_FILES: usize = 300;
const MAX_BYTES: u64 = 4096;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Runs all inputs of a target, and names the one that fails.
fn replay(target: &str) {
    let body = bodies::body(target);
    let files = entries(&corpus().join(target));
    assert!((3..=MAX_FILES).contains(&files.len()), "{} files of {target}", files.len());
    for file in files {
        let data = fs::read(&file).unwrap();
        assert!(data.len() as u64 <= MAX_BYTES, "{} is large", file.display());
        let ran = std::panic::catch_unwind(|| body(&data));
        assert!(ran.is_ok(), "{} fails, for the reason above", file.display());
    }
}

macro_rules! replays {
    ($($target:ident)+) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })+

        const REPLAYED: &[&str] = &[$(stringify!($target)),+];
    };
}

replays!(against_h2 assembler config constraints envelope http2 json names origin rest session);

#[test]
fn every_target_has_a_corpus_that_is_replayed() {
    let targets: Vec<&str> = bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(targets, REPLAYED);
    let named = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let folders: BTreeSet<String> = entries(&corpus()).into_iter().map(named).collect();
    assert!(folders.iter().eq(&targets), "{folders:?}");
    let binaries = corpus().with_file_name("targets");
    assert!(entries(&binaries).into_iter().map(named).eq(targets));
}

/// Connections that a seed makes up, so that a run finds what the run before would have.
const CONNECTIONS: u64 = 20_000;

#[test]
fn random_connections_come_out_as_with_h2() {
    let body = bodies::body("against_h2");
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("DELTAFAN_SEED").unwrap_or_default();
    let count = number("DELTAFAN_STEPS").unwrap_or(CONNECTIONS);
    for seed in first..first + count {
        let mut random = StdRng::seed_from_u64(seed);
        let mut data = vec![0; random.random_range(20..1000)];
        random.fill(&mut data[..]);
        let ran = std::panic::catch_unwind(|| body(&data));
        assert!(ran.is_ok(), "DELTAFAN_SEED={seed} DELTAFAN_STEPS=1 fails, for the reason above");
    }
}
