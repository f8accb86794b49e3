//! The listener's HTTP/2 under h2spec, which plays every client that RFC 9113 and RFC 7541 speak of.

use std::process::Command;

use deltafan_test_support::certificates::{Authority, put};
use deltafan_test_support::process::{Process, SHARED_LISTENER};

use crate::fixture::{in_repository, require};

/// Cases of the version in tests/interop/h2spec/go.mod; a run that leaves some out is no proof.
const CASES: usize = 146;
/// Answers a GET with 405, and a POST that has no body with 400, when the request is whole and not before.
const PATH: &str = "/v3/discovery:clusters";

/// Runs all cases. What the relay is started with is made in a folder.
fn finds_no_fault(transport: &str, method: &str) {
    let program = in_repository("tests/interop/bin/h2spec");
    if require(program.exists(), "no h2spec").is_none() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let relay = match transport {
        "tls" => {
            let server = Authority::new("servers").server();
            let cert = put(home.path(), "cert.pem", &server.cert_pem);
            let key = put(home.path(), "key.pem", &server.key_pem);
            let (cert, key) = (cert.display(), key.display());
            let listeners =
                format!("[{{address: \"127.0.0.1:0\", tls: {{cert_file: {cert}, key_file: {key}}}}}]");
            Process::listening(&listeners, &[], "")
        }
        _ => Process::listening(SHARED_LISTENER, &[], ""),
    };
    let port = relay.listener.port().to_string();
    let run = Command::new(program).args([&port, PATH, transport, method]).output().unwrap();
    let report = String::from_utf8_lossy(&run.stdout);
    let expected = format!("{CASES} tests, {CASES} passed, 0 skipped, 0 failed");
    assert!(run.status.success() && report.contains(&expected), "{report}");
    assert_eq!(relay.admin_get("/healthz").0, 200);
}

#[test]
fn h2spec_finds_no_fault() {
    // A POST has a body that is read.
    for (transport, method) in [("cleartext", "GET"), ("tls", "GET"), ("cleartext", "POST")] {
        finds_no_fault(transport, method);
    }
}
