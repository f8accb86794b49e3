//! Names that one address makes up, and how soon the control plane is asked for those of another one.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use deltafan::proto::DeltaDiscoveryRequest;
use deltafan::resource::TypeUrl;
use deltafan_test_support::PATIENCE;
use deltafan_test_support::client::{DELTA_ADS, Delta, EDS, connect_from, node};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response};
use deltafan_test_support::process::{Process, SHARED_LISTENER};
use tokio::sync::mpsc;

/// Connections of the address that makes names up, names on each, and names in each request: so few that no request is a large one.
const CONNECTIONS: u8 = 6;
const NAMES: usize = 90_000;
const AT_ONCE: usize = 400;
/// New names of the client at another address, one after the other.
const QUESTIONS: usize = 15;
/// Made-up names that may go upstream between a question and its name: those of 20 requests, while the relay reads what it is asked.
const BETWEEN: usize = 10_000;

fn ask(names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Some(node("client")),
        type_url: EDS.to_owned(),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}

/// A control plane that says nothing of names that do not exist, as go-control-plane. Counts them, and tells which others it is asked for.
async fn serve(mut stream: OriginStream, made_up: Arc<AtomicUsize>, tell: mpsc::UnboundedSender<String>) {
    let eds = TypeUrl::from(EDS);
    while let Some(request) = stream.next_request().await {
        let mut answer = response(&eds, "n");
        for name in request.resource_names_subscribe {
            if name.starts_with("made-up") {
                made_up.fetch_add(1, Ordering::Relaxed);
            } else {
                answer.resources.push(resource(&eds, &name, "1", b""));
                _ = tell.send(name);
            }
        }
        if !answer.resources.is_empty() {
            stream.send(&answer);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_name_does_not_wait_behind_made_up_ones_of_another_address() {
    let mut origin = Origin::start().await;
    let uri = origin.uri();
    let (tell, mut asked) = mpsc::unbounded_channel();
    let made_up = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made_up);
    tokio::spawn(async move {
        while let Some(stream) = origin.next_stream().await {
            tokio::spawn(serve(stream, Arc::clone(&count), tell.clone()));
        }
    });
    let relay = Process::unready_on(SHARED_LISTENER, &uri);
    let relay_uri = relay.uri();
    for number in 0..CONNECTIONS {
        let channel = connect_from(&relay_uri, IpAddr::from([127, 0, 0, 2])).await;
        let mut stream = Delta::open(&channel, DELTA_ADS).await;
        tokio::spawn(async move {
            let names: Vec<String> = (0..NAMES).map(|n| format!("made-up-{number}-{n:040}")).collect();
            for some in names.chunks(AT_ONCE) {
                stream.send(ask(some.to_vec())).await;
            }
            while let Ok(Some(_)) = stream.next_message().await {}
        });
    }

    let channel = connect_from(&relay_uri, IpAddr::from([127, 0, 0, 3])).await;
    let stream = Delta::open(&channel, DELTA_ADS).await;
    let (mut between, mut longest) = (Vec::new(), Duration::ZERO);
    for question in 0..QUESTIONS {
        let (before, begun) = (made_up.load(Ordering::Relaxed), Instant::now());
        stream.send(ask(vec![format!("mine-{question}")])).await;
        let name = tokio::time::timeout(PATIENCE, asked.recv()).await.expect("it is asked for").unwrap();
        assert_eq!(name, format!("mine-{question}"));
        between.push(made_up.load(Ordering::Relaxed) - before);
        longest = longest.max(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("made-up names in between: {between:?}; {longest:?} at most");
    between.sort_unstable();
    assert!(between[QUESTIONS / 2] < BETWEEN, "{between:?}");
}
