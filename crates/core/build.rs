//! Compiles `proto/discovery.proto` without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PROTO: &str = "../../proto";
    println!("cargo:rerun-if-changed={PROTO}/discovery.proto");
    let descriptors = protox::compile([format!("{PROTO}/discovery.proto")], [PROTO])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
