//! Compiles `proto/discovery.proto` without `protoc`, and names the commit the binary was built from.

use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/discovery.proto");
    println!("cargo:rerun-if-changed=.git/HEAD");
    let descriptors = protox::compile(["proto/discovery.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;

    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output()
        .ok()
        .filter(|out| out.status.success())
        .and_then(|out| String::from_utf8(out.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned());
    println!("cargo:rustc-env=DELTAFAN_COMMIT={commit}");
    Ok(())
}
