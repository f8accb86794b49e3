//! Holds `Cargo.lock` against the bans of `deny.toml`: crates that may not be there at all, and versions below which a peer
//! could use a known hole. cargo-deny checks the same and more; this needs neither it nor a network. [`circles`] holds the
//! source files against circles of imports.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod circles;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

type Version = [u64; 3];

/// Floors that may be raised and not be lost.
const FLOORS: [(&str, Version); 9] = [
    ("bytes", [1, 11, 1]),
    ("crossbeam-channel", [0, 5, 15]),
    ("h2", [0, 4, 17]),
    ("hyper", [1, 5, 1]),
    ("rustls", [0, 23, 18]),
    ("rustls-webpki", [0, 103, 13]),
    ("slab", [0, 4, 11]),
    ("tokio", [1, 44, 2]),
    ("tonic", [0, 12, 3]),
];
const ABSENT: [&str; 5] = ["aws-lc-rs", "aws-lc-sys", "openssl", "protobuf", "rustls-pemfile"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn version(text: &str) -> Version {
    let mut numbers = text.split(['-', '+']).next().unwrap().split('.').map(|number| number.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap_or(0))
}

/// The text between the quotes behind `key = "`.
fn quoted<'t>(line: &'t str, key: &str) -> Option<&'t str> {
    line.split_once(&format!("{key} = \""))?.1.split('"').next()
}

/// What `deny.toml` bans: each crate with the version from which on it is allowed, or none.
fn bans() -> BTreeMap<String, Option<Version>> {
    let text = read("deny.toml");
    let list = text.split_once("\ndeny = [").expect("a list of bans").1.split_once("\n]").unwrap().0;
    let entry = |line: &str| {
        assert!(quoted(line, "reason").is_some_and(|reason| reason.len() > 10), "no reason: {line}");
        let named = quoted(line, "crate").unwrap();
        match named.split_once('@') {
            Some((name, below)) => (name.to_owned(), Some(version(below.strip_prefix('<').unwrap()))),
            None => (named.to_owned(), None),
        }
    };
    list.lines().map(str::trim).filter(|line| line.starts_with('{')).map(entry).collect()
}

/// All packages of a lock file.
fn locked(path: &str) -> Vec<(String, Version)> {
    let text = read(path);
    let package =
        |part: &str| (quoted(part, "name").unwrap().to_owned(), version(quoted(part, "version").unwrap()));
    text.split("[[package]]").skip(1).map(package).collect()
}

#[test]
fn nothing_banned_is_locked() {
    let bans = bans();
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let packages = locked(lock);
        assert!(packages.len() > 100, "{} packages in {lock}", packages.len());
        for (name, version) in packages {
            match bans.get(&name) {
                None => {}
                Some(Some(floor)) => {
                    assert!(version >= *floor, "{lock}: {name} {version:?} is below {floor:?}")
                }
                Some(None) => panic!("{lock}: {name} is banned"),
            }
        }
    }
}

#[test]
fn the_floors_are_kept() {
    let bans = bans();
    for (name, floor) in FLOORS {
        let banned = bans.get(name).copied().flatten();
        assert!(banned.is_some_and(|banned| banned >= floor), "{name} below {floor:?}: {banned:?}");
    }
    for name in ABSENT {
        assert_eq!(bans.get(name), Some(&None), "{name}");
    }
}
