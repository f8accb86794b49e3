//! Compares the committed code with the code that the files of `proto/` generate.

use std::fs;
use std::path::Path;

/// Overwrites the files instead of comparing.
const WRITE: &str = "DELTAFAN_WRITE_PROTO";

fn generate(file: &str, package: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let descriptors = protox::compile([folder.join(file)], [folder]).unwrap();
    let output = tempfile::tempdir().unwrap();
    prost_build::Config::new().bytes(["."]).out_dir(output.path()).compile_fds(descriptors).unwrap();
    fs::read_to_string(output.path().join(format!("{package}.rs"))).unwrap()
}

#[test]
fn the_messages_are_those_of_the_proto_files() {
    for (name, package) in [("discovery", "deltafan.xds"), ("status", "deltafan.status")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/proto/{name}.rs"));
        let generated = generate(&format!("{name}.proto"), package);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&path, &generated).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap();
        assert!(kept == generated, "src/proto/{name}.rs is stale: run `make proto`");
    }
}
