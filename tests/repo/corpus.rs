//! Runs every fuzz target over its kept corpus: what the fuzzer found once, and what its seeds say, on any toolchain and
//! without a network.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bodies;

/// The corpus is part of the repository and stays small.
const MAX_FILES: usize = 300;
const MAX_BYTES: usize = 4096;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn entries(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Bytes of a tar header, and the unit that the contents are padded to.
const BLOCK: usize = 512;

/// Name and content of each file in a tar archive whose entries are plain files with short names (`make corpus`).
fn unpack(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let text = |field: &[u8]| field.iter().take_while(|byte| **byte != 0).map(|byte| *byte as char).collect();
    let (mut files, mut rest) = (Vec::new(), archive);
    // The archive ends with blocks of zeros.
    while let Some((header, after)) = rest.split_at_checked(BLOCK).filter(|(header, _)| header[0] != 0) {
        let name: String = text(&header[..100]);
        let size: String = text(&header[124..136]);
        let size = usize::from_str_radix(size.trim(), 8).unwrap_or_else(|error| panic!("{name}: {error}"));
        files.push((name, after[..size].to_vec()));
        rest = &after[size.next_multiple_of(BLOCK)..];
    }
    files
}

/// Seeds of a target, which are files, and findings of the fuzzer, which are packed.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let seeds = entries(&corpus().join(target));
    let mut inputs: Vec<_> =
        seeds.into_iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect();
    let packed = corpus().join(target).with_extension("tar");
    if packed.exists() {
        let findings = unpack(&fs::read(&packed).unwrap());
        assert!(!findings.is_empty(), "{} is empty", packed.display());
        let named = |(name, data)| (format!("{name} in {}", packed.display()), data);
        inputs.extend(findings.into_iter().map(named));
    }
    inputs
}

/// Runs all inputs of a target, and names the one that fails.
fn replay(target: &str) {
    let body = bodies::body(target);
    let inputs = inputs(target);
    assert!((3..=MAX_FILES).contains(&inputs.len()), "{} inputs of {target}", inputs.len());
    for (name, data) in inputs {
        assert!(data.len() <= MAX_BYTES, "{name} is large");
        let ran = std::panic::catch_unwind(|| body(&data));
        assert!(ran.is_ok(), "{name} fails, for the reason above");
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

replays!(envelope http2 json names origin rest);

#[test]
fn a_packed_corpus_is_read_whole() {
    let mut archive = Vec::new();
    for (name, content) in [("empty", &b""[..]), ("block", &[1; BLOCK]), ("more", &[2; BLOCK + 1])] {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        archive.extend(header);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    let files = unpack(&archive);
    let sizes: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), content.len())).collect();
    assert_eq!(sizes, [("empty", 0), ("block", BLOCK), ("more", BLOCK + 1)]);
    assert!(files[2].1.iter().all(|byte| *byte == 2));
}

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
