//! Compares `discovery.rs` with the code that `proto/discovery.proto` generates.

use std::fs;
use std::path::Path;

/// Overwrites the file instead of comparing.
const WRITE: &str = "DELTAFAN_WRITE_PROTO";

fn generate() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let descriptors = protox::compile([folder.join("discovery.proto")], [folder]).unwrap();
    let output = tempfile::tempdir().unwrap();
    prost_build::Config::new().bytes(["."]).out_dir(output.path()).compile_fds(descriptors).unwrap();
    fs::read_to_string(output.path().join("deltafan.xds.rs")).unwrap()
}

#[test]
fn the_messages_are_those_of_the_proto_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/proto/discovery.rs");
    let generated = generate();
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert!(kept == generated, "src/proto/discovery.rs is stale: run `make proto`");
}
