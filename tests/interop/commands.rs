//! `deltafan watch` and `load` at a control plane that others have written, without a relay between.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use deltafan_test_support::process::program;
use serde_json::Value;

use crate::fixture::{
    ControlPlane, Fixture, PATIENCE, eventually,
    resources::{CLUSTER, numbered},
};

const CLIENTS: usize = 50;
const TRANSPORTS: [&str; 2] = ["delta", "sotw"];

/// Program that runs, and the lines that it prints.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(command: &str, transport: &str, fixture: &Fixture, args: &[&str]) -> Self {
        let server = format!("http://127.0.0.1:{}", fixture.origin.port());
        let fixed = [command, "cds", "--transport", transport, "--server", &server];
        let mut child =
            Command::new(program()).args(fixed).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // Ends with the program.
        thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// Event and name of the next change.
    fn change(&self) -> (String, String) {
        let line = self.lines.recv_timeout(PATIENCE).expect("a change in time");
        let change: Value = serde_json::from_str(&line).unwrap();
        (change["event"].as_str().unwrap().to_owned(), change["name"].as_str().unwrap().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn start() -> Option<Fixture> {
    let fixture = Fixture::start_relays(ControlPlane::USUAL, 0, "auto", "")?;
    fixture.origin.put(&numbered(CLUSTER, "a", 1));
    Some(fixture)
}

#[test]
fn a_watch_sees_each_change() {
    TRANSPORTS.into_iter().for_each(watch);
}

fn watch(transport: &str) {
    let Some(fixture) = start() else { return };
    let watch = Running::start("watch", transport, &fixture, &["-o", "json"]);
    let is = |event: &str, name: &str| assert_eq!(watch.change(), (event.to_owned(), name.to_owned()));
    is("added", "a");
    fixture.origin.put(&numbered(CLUSTER, "b", 1));
    is("added", "b");
    fixture.origin.put(&numbered(CLUSTER, "a", 2));
    is("changed", "a");
    fixture.origin.delete(CLUSTER, "b");
    is("removed", "b");
}

#[test]
fn a_load_measures_a_change() {
    TRANSPORTS.into_iter().for_each(load);
}

fn load(transport: &str) {
    let Some(fixture) = start() else { return };
    let clients = CLIENTS.to_string();
    let args = ["--clients", &clients, "--rate", "200", "--duration", "4s", "-o", "json"];
    let mut load = Running::start("load", transport, &fixture, &args);
    eventually(PATIENCE, "all clients are there", || {
        let open = fixture.origin.stats().open_streams;
        if open == CLIENTS { Ok(()) } else { Err(format!("{open} streams")) }
    });
    // The measurement begins half a second after the last first answer.
    thread::sleep(Duration::from_millis(1500));
    fixture.origin.put(&numbered(CLUSTER, "a", 2));
    let report: String = load.lines.iter().collect();
    assert!(load.child.wait().unwrap().success(), "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    for (key, figure) in [
        ("answered", CLIENTS),
        ("failed_attempts", 0),
        ("lost_streams", 0),
        ("changes", 1),
        ("changes_at_all_clients", 1),
    ] {
        assert_eq!(report[key], figure, "{key}: {report:#}");
    }
    assert_eq!(report["spread"]["count"], CLIENTS - 1, "{report:#}");
}
