//! The listener's HTTP/2 under h2spec, which plays every client that RFC 9113 and RFC 7541 speak of.

use std::process::Command;

use crate::bed::{in_repository, require};
use crate::support::process::Process;

/// Of the version in tests/interop/h2spec/go.mod; a run that leaves some out is no proof.
const CASES: usize = 146;
/// Answers a GET, with 405, when the request is whole and not before.
const PATH: &str = "/v3/discovery:clusters";

#[test]
fn h2spec_finds_no_fault() {
    let program = in_repository("tests/interop/bin/h2spec");
    if require(program.exists(), "no h2spec").is_none() {
        return;
    }
    let relay = Process::start(&[], "");
    let run = Command::new(program).args([&relay.listener.port().to_string(), PATH]).output().unwrap();
    let report = String::from_utf8_lossy(&run.stdout);
    let expected = format!("{CASES} tests, {CASES} passed, 0 skipped, 0 failed");
    assert!(run.status.success() && report.contains(&expected), "{report}");
    assert_eq!(relay.admin_get("/healthz").0, 200);
}
