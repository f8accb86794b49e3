//! A whole relay in the process of the test, which so can take its CPU time away.

use std::path::Path;
use std::task::Poll;
use std::time::{Duration, Instant};

use deltafan_test_support::client::{CDS, DELTA_ADS, Delta, connect};
use futures_util::poll;
use metrics_exporter_prometheus::PrometheusBuilder;
use tonic::transport::Channel;

use super::*;
use crate::downstream::{Permit, PermitRequest};
use crate::fairness::{COLD_HANDICAP, LONGEST_FIRST_ANSWER_WAIT};

/// Relay with one cluster.
async fn relay(folder: &Path) -> Relay {
    let cluster = "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: one\n";
    std::fs::write(folder.join("one.yaml"), cluster).unwrap();
    let config = format!(
        "upstream: {{directory: {folder:?}}}\n\
         downstream: {{listeners: [{{address: \"127.0.0.1:0\"}}]}}\n\
         admin: {{address: \"127.0.0.1:0\"}}\n"
    );
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    Relay::start(&Config::parse(&config, "test").unwrap(), metrics, None).await.unwrap()
}

async fn connect_to(relay: &Relay) -> Channel {
    connect(&format!("http://{}", relay.addresses[0])).await
}

/// Asks for all clusters, and waits until the first one is there.
async fn answer(channel: &Channel) {
    let mut stream = Delta::open(channel, DELTA_ADS).await;
    stream.subscribe("warm", CDS, &[]).await;
    while stream.response().await.resources.is_empty() {}
}

/// Waits for the permit as a connection that came then.
async fn permit_as_of(scheduler: &FairScheduler, came: Instant) -> Permit {
    let mut request = scheduler.request_permit();
    std::future::poll_fn(|cx| request.poll_since(came, cx)).await
}

/// The only permit, and one who waits for it all the time, so that there are more clients than can be served.
struct Storm<'r> {
    relay: &'r Relay,
    permit: Permit,
    _waits: PermitRequest,
}

impl<'r> Storm<'r> {
    async fn begin(relay: &'r Relay) -> Self {
        let scheduler = &relay.status.drain.server.scheduler;
        let permit = permit_as_of(scheduler, Instant::now()).await;
        let mut waits = scheduler.request_permit();
        let last = Instant::now() + Duration::from_secs(3600);
        let place = std::future::poll_fn(|cx| Poll::Ready(waits.poll_since(last, cx).is_pending())).await;
        assert!(place);
        Self { relay, permit, _waits: waits }
    }

    /// Lends the permit to connections that came before `until`.
    async fn lend(self, until: Instant) -> Self {
        let mut next = Box::pin(permit_as_of(&self.relay.status.drain.server.scheduler, until));
        assert!(poll!(&mut next).is_pending());
        self.permit.end();
        Self { permit: next.await, ..self }
    }

    /// Has a client without resources ask for them, and waits until it waits for its turn.
    async fn hear(mut self, stream: &Delta) -> Self {
        stream.subscribe("cold", CDS, &[]).await;
        while !self.relay.status.drain.connections.any_awaits_first_answer() {
            // Its connection may need the permit to read the request. With the answer it is behind this.
            self = self.lend(Instant::now() + COLD_HANDICAP / 2).await;
        }
        self
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_first_answer_waits_for_its_turn_and_is_refused_when_that_comes_too_late() {
    let folder = tempfile::tempdir().unwrap();
    let relay = relay(folder.path()).await;
    // The relay has read its folder then.
    answer(&connect_to(&relay).await).await;
    let [first, second] = [connect_to(&relay).await, connect_to(&relay).await];
    let mut in_time = Delta::open(&first, DELTA_ADS).await;
    let mut late = Delta::open(&second, DELTA_ADS).await;
    let soon = || Instant::now() + COLD_HANDICAP * 2;

    let storm = Storm::begin(&relay).await.hear(&in_time).await;
    in_time.silence().await;
    let storm = storm.lend(soon()).await;
    assert_eq!(in_time.response().await.resources.len(), 1);

    let storm = storm.hear(&late).await;
    late.silence().await;
    tokio::time::sleep(LONGEST_FIRST_ANSWER_WAIT).await;
    let storm = storm.lend(soon()).await;
    let refusal = late.end().await;
    assert_eq!(refusal.code(), tonic::Code::ResourceExhausted, "{refusal}");
    let after = refusal.metadata().get("grpc-retry-pushback-ms").expect("a time to come again");
    let after = Duration::from_millis(after.to_str().unwrap().parse().unwrap());
    assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&after), "{after:?}");

    drop(storm);
    answer(&second).await;
}
