//! Control planes that are told, by a NACK, of a change that the rollout guard holds: none of them answers that, and each still sends
//! the correction.

use std::{collections::BTreeSet, thread, time::Duration};

use bytes::Bytes;
use deltafan::resource::{Envelope, TypeUrl};
use deltafan_test_support::client::{DELTA_ADS, Delta, connect};
use tokio::runtime::Runtime;

use crate::fixture::{
    ControlPlane, Fixture, PATIENCE, eventually, require_relay,
    resources::{CLUSTER, numbered},
};

const GUARD: &str = "rollout: {types: [cds], share: 0%, window: 1s, report: nack}\n";
/// Nothing has come for so long: nothing will.
const QUIET: Duration = Duration::from_secs(3);
/// Subscriptions of the canary, each behind a relay of its own.
const ASKED: [&[&str]; 2] = [&["*"], &["a", "b"]];

macro_rules! each_control_plane {
    ($($test:ident: $control_plane:expr;)*) => {
        $(mod $test {
            use super::{ControlPlane, a_report_is_not_answered};

            #[test]
            fn is_told_by_delta() {
                a_report_is_not_answered($control_plane, "delta");
            }

            #[test]
            fn is_told_by_state_of_the_world() {
                a_report_is_not_answered($control_plane, "sotw");
            }
        })*
    };
}

crate::fixture::with_each_control_plane!(each_control_plane);

fn a_report_is_not_answered(control_plane: ControlPlane, protocol: &str) {
    let Some(()) = require_relay() else { return };
    let relays = ASKED.len();
    let Some(fixture) = Fixture::start_relays(control_plane, relays, protocol, GUARD) else {
        return;
    };
    for name in ["a", "b"] {
        fixture.origin.put(&numbered(CLUSTER, name, 1));
    }
    let runtime = Runtime::new().unwrap();
    let start =
        |(relay, asked): (usize, &&[&str])| runtime.block_on(Canary::start(fixture.port(relay), asked));
    let mut canaries: Vec<Canary> = ASKED.iter().enumerate().map(start).collect();

    fixture.origin.put(&numbered(CLUSTER, "a", 2));
    for canary in &mut canaries {
        runtime.block_on(canary.reject());
    }
    let event = |relay: usize, event: &str| {
        fixture.metric(relay, &format!("deltafan_upstream_events_total{{event=\"{event}\"}}"))
    };
    // A state of the world that may be a part is followed by a new stream, on which there is one request, its response and the ACK.
    let beside_renewals = |name: &str, on_each: f64| -> Vec<f64> {
        (0..relays).map(|relay| event(relay, name) - on_each * event(relay, "renewal")).collect()
    };
    let (responses, requests) = (|| beside_renewals("response", 1.0), || beside_renewals("request", 2.0));
    // The trial goes on for a second.
    let responses_before = responses();
    for relay in 0..relays {
        eventually(PATIENCE, "the control plane is told", || match event(relay, "hold_reported") {
            0.0 => Err("nothing was said".to_owned()),
            _ => Ok(()),
        });
    }
    let requests_before = requests();
    thread::sleep(QUIET);
    assert_eq!(responses(), responses_before, "a report is answered");
    assert_eq!(requests(), requests_before);
    // The one in Java keeps no record.
    if !matches!(control_plane, ControlPlane::Java(_)) {
        let stats = fixture.origin.stats();
        let nacks = stats.nacks();
        assert_eq!(nacks.len(), relays, "{nacks:?}");
        for text in nacks {
            assert!(text.starts_with("held after canaries rejected it: a at version "), "{text}");
            assert!(text.ends_with(" (1 of 1 canaries): rejected by the test"), "{text}");
        }
    }
    fixture.origin.put(&numbered(CLUSTER, "a", 3));
    for canary in &mut canaries {
        runtime.block_on(canary.correction());
    }
    drop(runtime);
}

/// The first client of a relay.
struct Canary {
    client: Delta,
    /// Contents of `a` so far.
    seen: BTreeSet<Bytes>,
}

impl Canary {
    async fn start(port: u16, asked: &[&str]) -> Self {
        let channel = connect(&format!("http://127.0.0.1:{port}")).await;
        let client = Delta::open(&channel, DELTA_ADS).await;
        client.subscribe("canary", CLUSTER, asked).await;
        let mut canary = Self { client, seen: BTreeSet::new() };
        canary.next(true).await;
        canary
    }

    /// Waits for another content of `a`, and accepts or rejects it.
    async fn next(&mut self, accepts: bool) {
        loop {
            let told = self.client.response().await;
            let content = told.resources.iter().filter_map(content_of_a);
            let is_new = content.into_iter().any(|content| self.seen.insert(content));
            if accepts || !is_new {
                self.client.ack(&told).await;
            } else {
                self.client.nack(&told).await;
            }
            if is_new {
                return;
            }
        }
    }

    async fn reject(&mut self) {
        self.next(false).await;
    }

    /// It is given back the last good content meanwhile, which it has seen.
    async fn correction(&mut self) {
        self.next(true).await;
    }
}

fn content_of_a(resource: &Bytes) -> Option<Bytes> {
    let envelope = Envelope::parse(resource, &TypeUrl::from(CLUSTER)).unwrap();
    (envelope.name == "a").then(|| resource.clone())
}
