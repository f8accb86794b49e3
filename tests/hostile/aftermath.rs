//! Questions at the end of a row of attacks: is everybody still there, and is everything free again?

use std::time::{Duration, Instant};

use deltafan::proto::{DeltaDiscoveryRequest, ResourceLocator};
use deltafan_test_support::client::{CDS, DELTA_ADS, Delta, EDS, connect, subscription};
use deltafan_test_support::http1::Http1;
use deltafan_test_support::process::Process;
use tokio::runtime::Runtime;

/// Connections of those that mean well, have what they want and say nothing.
const BYSTANDERS: usize = 20;
/// Memory in use that a row of attacks may leave behind: no more than one of them may take.
const LEFT: f64 = (64 << 20) as f64;
/// How long names linger that were asked for, by default, and as long again.
const LINGER: Duration = Duration::from_secs(120);

/// Clients that are told nothing while others are attacked.
#[derive(Debug)]
pub(crate) struct Bystanders {
    runtime: Runtime,
    open: Vec<Delta>,
    asked: usize,
    /// Memory that the relay had in use when they had connected.
    in_use: f64,
}

impl Bystanders {
    pub(crate) fn connect(relay: &Process) -> Self {
        // On a thread of its own, so that pings are answered.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut bystanders = Self { runtime, open: Vec::new(), asked: 0, in_use: 0.0 };
        for number in 0..BYSTANDERS {
            let uri = relay.uri();
            let stream = bystanders.runtime.block_on(async {
                let stream = Delta::open(&connect(&uri).await, DELTA_ADS).await;
                stream.send(subscription(&format!("bystander {number}"), EDS, &["quiet"])).await;
                stream
            });
            bystanders.open.push(stream);
        }
        bystanders.hear();
        bystanders.in_use = in_use(relay);
        bystanders
    }

    fn hear(&mut self) {
        let Self { runtime, open, .. } = self;
        runtime.block_on(async {
            for stream in open {
                stream.take().await;
            }
        });
    }

    /// Each asks for something more on the stream that it has, and is answered.
    pub(crate) fn are_served(&mut self) {
        self.asked += 1;
        let more = format!("more {}", self.asked);
        let Self { runtime, open, .. } = self;
        runtime.block_on(async {
            for stream in open {
                let resource_names_subscribe = vec![more.clone()];
                let type_url = EDS.to_owned();
                stream
                    .send(DeltaDiscoveryRequest { type_url, resource_names_subscribe, ..Default::default() })
                    .await;
            }
        });
        self.hear();
    }

    /// Asks a relay that all clients have left but these and the honest one.
    pub(crate) fn ask(&mut self, relay: &Process, is_long: bool) {
        self.are_served();
        let number = self.asked;
        let uri = relay.uri();
        self.runtime.block_on(newcomer(&uri, number, is_long));
        let body = format!(
            "{{\"node\": {{\"id\": \"new\", \"metadata\": {{\"m\": \"{}\"}}}}}}",
            "m".repeat(3 << 20)
        );
        // A busy machine may be why a poll is not whole in time, and why the set of clusters is not known yet (R-REST-09): the
        // client comes again.
        relay.wait_for("answer to a large poll of a newcomer", || {
            let status = Http1::connect(relay.listener).poll("clusters", &body).status;
            assert!([200, 408, 503].contains(&status), "a large poll of a newcomer: {status}");
            status == 200
        });
        relay.wait_for("polls that are held to end", || relay.metric("deltafan_held_polls") == 0.0);
        if is_long {
            self.wait_for_memory(relay);
        }
    }

    fn wait_for_memory(&self, relay: &Process) {
        let until = Instant::now() + LINGER;
        let left = || in_use(relay) - self.in_use;
        while left() > LEFT {
            assert!(Instant::now() < until, "{:.1} MiB are still held", left() / f64::from(1 << 20));
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Memory that is not the allocator's to give back.
fn in_use(relay: &Process) -> f64 {
    relay.metric("deltafan_memory_bytes{what=\"in_use\"}")
}

/// Somebody who comes now is let in, and has of everything of which there is only so much: a connection, streams, names, a
/// type and a set of parameters that nobody else has. What attackers had of the last two may linger.
async fn newcomer(uri: &str, number: usize, is_long: bool) {
    let channel = connect(uri).await;
    let mut everything = Delta::open(&channel, DELTA_ADS).await;
    everything.send(subscription("newcomer", CDS, &["*"])).await;
    assert!(!everything.response().await.resources.is_empty(), "a newcomer is told what there is");

    let unknown = format!("type.googleapis.com/newcomer.T{number}");
    let parameters = [("newcomer".to_owned(), number.to_string())].into();
    let locator = ResourceLocator { name: "mine".to_owned(), dynamic_parameters: parameters };
    let own = DeltaDiscoveryRequest {
        resource_locators_subscribe: vec![locator],
        ..subscription("newcomer", EDS, &[])
    };
    for (what, request) in [("a type", subscription("newcomer", &unknown, &["mine"])), ("parameters", own)] {
        let until = Instant::now() + LINGER;
        loop {
            let mut stream = Delta::open(&channel, DELTA_ADS).await;
            stream.send(request.clone()).await;
            match stream.next_message().await {
                Ok(Some(_)) => break,
                ended => assert!(is_long && Instant::now() < until, "{what} of a newcomer's own: {ended:?}"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
