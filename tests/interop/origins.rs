//! Control planes as they are: each is asked directly, over delta ADS, and docs/origins.md has to say what it answers. Wildcards by
//! state of the world are asked for through a relay.

use std::{collections::BTreeSet, fmt::Write as _, fs, thread, time::Duration};

use deltafan::{
    grpc::RawCodec,
    proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
};
use deltafan_test_support::client::{DELTA_ADS, connect, names, node};
use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::{
    runtime::Runtime,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;

use crate::fixture::{
    ControlPlane, ForeignFixture, PATIENCE, eventually, in_repository,
    resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES, numbered},
};

/// Nothing has come for so long: probably nothing will.
const HASTY: Duration = Duration::from_millis(200);
/// Nothing has come for so long: nothing will.
const PATIENT: Duration = Duration::from_secs(2);
/// After so many responses to one step there is no end to them.
const ENDLESS: usize = 10;
const DOCUMENT: &str = "docs/origins.md";

/// A step of an experiment; each request is about one type.
#[derive(Clone, Copy)]
enum Step {
    /// A new stream, whose first request has these versions of other times.
    Stream(&'static [&'static str]),
    /// A request without names.
    Empty,
    Subscribe(&'static [&'static str]),
    Unsubscribe(&'static [&'static str]),
    /// The origin changes a resource, or has a new one.
    Change(&'static str),
    Delete(&'static str),
}

use Step::{Change, Delete, Empty, Stream, Subscribe, Unsubscribe};

/// Resources of the origin when an experiment begins.
const HAS: [&str; 3] = ["a", "b", "c"];

/// Steps on a stream, in the words of the document. The answer is that to the last step.
const EXPERIMENTS: &[(&str, &[Step])] = &[
    ("legacy", &[Empty]),
    ("legacy, `-*`, a changes", &[Empty, Unsubscribe(&["*"]), Change("a")]),
    ("legacy, `-*`, `+b`", &[Empty, Unsubscribe(&["*"]), Subscribe(&["b"])]),
    ("legacy, `-*`, `+*`", &[Empty, Unsubscribe(&["*"]), Subscribe(&["*"])]),
    ("legacy, `-*`, `+b`, `+*`", &[Empty, Unsubscribe(&["*"]), Subscribe(&["b"]), Subscribe(&["*"])]),
    ("legacy, `-*`, b goes, `+*`", &[Empty, Unsubscribe(&["*"]), Delete("b"), Subscribe(&["*"])]),
    ("`+*`", &[Subscribe(&["*"])]),
    ("`+*`, `-*`, a changes", &[Subscribe(&["*"]), Unsubscribe(&["*"]), Change("a")]),
    ("`+*`, `-*`, `+b`", &[Subscribe(&["*"]), Unsubscribe(&["*"]), Subscribe(&["b"])]),
    ("`+*`, `-*`, `+*`", &[Subscribe(&["*"]), Unsubscribe(&["*"]), Subscribe(&["*"])]),
    (
        "`+*`, `-*`, `+b`, `+*`",
        &[Subscribe(&["*"]), Unsubscribe(&["*"]), Subscribe(&["b"]), Subscribe(&["*"])],
    ),
    ("`+*`, `-*`, b goes, `+*`", &[Subscribe(&["*"]), Unsubscribe(&["*"]), Delete("b"), Subscribe(&["*"])]),
    ("`+a +b`", &[Subscribe(&["a", "b"])]),
    ("`+a +b`, `+a`", &[Subscribe(&["a", "b"]), Subscribe(&["a"])]),
    ("`+a +b`, `+*`", &[Subscribe(&["a", "b"]), Subscribe(&["*"])]),
    ("`+a +b`, `-a`, `+a`", &[Subscribe(&["a", "b"]), Unsubscribe(&["a"]), Subscribe(&["a"])]),
    ("`+a`, `-a`, `+a`", &[Subscribe(&["a"]), Unsubscribe(&["a"]), Subscribe(&["a"])]),
    (
        "`+a +b`, `-a`, b changes, `+a`",
        &[Subscribe(&["a", "b"]), Unsubscribe(&["a"]), Change("b"), Subscribe(&["a"])],
    ),
    (
        "`+a +b`, `-a`, a changes, `+a`",
        &[Subscribe(&["a", "b"]), Unsubscribe(&["a"]), Change("a"), Subscribe(&["a"])],
    ),
    ("`+a +b`, a goes", &[Subscribe(&["a", "b"]), Delete("a")]),
    (
        "`+a +b`, `-a`, a goes, `+a`",
        &[Subscribe(&["a", "b"]), Unsubscribe(&["a"]), Delete("a"), Subscribe(&["a"])],
    ),
    ("`+a +b`, a goes, `+a`", &[Subscribe(&["a", "b"]), Delete("a"), Subscribe(&["a"])]),
    ("`+a +b`, a goes, a comes", &[Subscribe(&["a", "b"]), Delete("a"), Change("a")]),
    (
        "`+a +b`, a goes, `+a`, a comes",
        &[Subscribe(&["a", "b"]), Delete("a"), Subscribe(&["a"]), Change("a")],
    ),
    ("`+x`", &[Subscribe(&["x"])]),
    ("`+x`, x comes", &[Subscribe(&["x"]), Change("x")]),
    ("legacy with a version of x", &[Stream(&["x"]), Empty]),
    ("`+a +x` with a version of x", &[Stream(&["x"]), Subscribe(&["a", "x"])]),
    ("`+a` with a version of x", &[Stream(&["x"]), Subscribe(&["a"])]),
    ("legacy, of nothing", &[Delete("a"), Delete("b"), Delete("c"), Empty]),
];

/// The columns of the document's table, in its order, and who is asked about what for each of them.
const COLUMNS: &[(&str, &[(ControlPlane, &str)])] = &[
    (
        "0.12.0 Linear, Mux",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.12.0", &["--cache", "mux"]), ENDPOINTS),
        ],
    ),
    (
        "0.12.0 Snapshot, 0.13.4",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "snapshot"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "mux"]), ENDPOINTS),
            (ControlPlane::Go("v0.13.4", &["--cache", "snapshot"]), LISTENER),
        ],
    ),
    (
        "0.14.0 Linear, Mux",
        &[
            (ControlPlane::Go("v0.14.0", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "mux"]), ENDPOINTS),
        ],
    ),
    ("0.14.0 Snapshot", &[(ControlPlane::Go("v0.14.0", &["--cache", "snapshot"]), CLUSTER)]),
    ("java CDS, LDS", &[(ControlPlane::Java("v1.0.49"), CLUSTER), (ControlPlane::Java("v1.0.49"), LISTENER)]),
    ("java EDS, RDS", &[(ControlPlane::Java("v1.0.49"), ENDPOINTS), (ControlPlane::Java("v1.0.49"), ROUTES)]),
];

#[test]
fn the_document_has_the_answers_of_control_planes() {
    let document = fs::read_to_string(in_repository(DOCUMENT)).unwrap();
    let asked: Vec<_> = COLUMNS
        .iter()
        .enumerate()
        .flat_map(|(at, (_, planes))| {
            let expected = column(&document, at + 1);
            planes.iter().map(move |(plane, type_url)| (*plane, *type_url, expected.clone()))
        })
        .map(|(plane, type_url, expected)| thread::spawn(move || ask(plane, type_url, &expected)))
        .collect();
    let mut answers = asked.into_iter().map(|thread| thread.join().unwrap());

    let headings: Vec<_> = COLUMNS.iter().map(|(heading, _)| *heading).collect();
    let mut table = vec![format!("| | {} |", headings.join(" | "))];
    table.extend(EXPERIMENTS.iter().map(|(what, _)| format!("| {what} |")));
    for (heading, planes) in COLUMNS {
        let mut of_planes = answers.by_ref().take(planes.len());
        // Without one of them there is no table to compare.
        let Some(Some(first)) = of_planes.next() else { return };
        for other in of_planes {
            assert_eq!(other.as_ref(), Some(&first), "all of {heading} answer the same");
        }
        for (row, answer) in table[1..].iter_mut().zip(first) {
            write!(row, " {answer} |").unwrap();
        }
    }
    let missing = table.iter().filter(|row| !document.contains(&format!("\n{row}\n"))).count();
    assert!(missing == 0, "{missing} rows are not in {DOCUMENT}, but should be:\n{}", table.join("\n"));
}

#[test]
fn a_snapshot_cache_is_silent_to_a_node_that_it_does_not_know() {
    let plane = ControlPlane::Go("v0.14.0", &["--cache", "snapshot", "--node", "another"]);
    let Some(fixture) = ForeignFixture::start(plane, 0) else { return };
    let heard = Runtime::new().unwrap().block_on(experiment(&fixture, CLUSTER, &[Empty], PATIENT));
    assert_eq!(heard, "silence");
}

/// `*` by state of the world is answered by the newest go-control-plane only, and the empty list by each: a relay asks with that.
#[test]
fn r_up_05_wildcards_of_each_type_are_answered_by_state_of_the_world() {
    for version in ["v0.12.0", "v0.13.4", "v0.14.0"] {
        for cache in [&["--cache", "mux"], &["--cache", "snapshot"]] {
            let plane = ControlPlane::Go(version, cache);
            let Some(fixture) = ForeignFixture::start_speaking(plane, 1, "sotw") else { return };
            let runtime = Runtime::new().unwrap();
            for type_url in [ENDPOINTS, ROUTES] {
                HAS.iter().for_each(|name| fixture.origin.put(&numbered(type_url, name, 1)));
                let got = runtime.block_on(all(fixture.port(0), type_url));
                assert_eq!(got, BTreeSet::from(HAS.map(str::to_owned)), "{plane:?}, {type_url}");
            }
        }
    }
}

/// Names that a delta client is sent that asks for all, once it has as many as the origin.
async fn all(port: u16, type_url: &str) -> BTreeSet<String> {
    let mut call = Call::start(port).await;
    let mut request = DeltaDiscoveryRequest {
        node: Some(node("asking")),
        type_url: type_url.to_owned(),
        resource_names_subscribe: vec!["*".to_owned()],
        ..Default::default()
    };
    call.send(&mut request);
    let mut got = BTreeSet::new();
    while got.len() < HAS.len() {
        let Ok(Some(response)) = timeout(PATIENCE, call.responses.recv()).await else { break };
        got.extend(names(&response));
    }
    got
}

/// Cells of this column of the document, one for each experiment.
fn column(document: &str, at: usize) -> Vec<String> {
    let cell = |(what, _): &(&str, _)| {
        let row = document.lines().find(|line| line.starts_with(&format!("| {what} |")))?;
        Some(row.split(" | ").nth(at)?.trim_end_matches(" |").to_owned())
    };
    EXPERIMENTS.iter().map(|experiment| cell(experiment).unwrap_or_default()).collect()
}

/// Makes all experiments; `None` where the control plane is not installed.
fn ask(plane: ControlPlane, type_url: &'static str, expected: &[String]) -> Option<Vec<String>> {
    let fixture = ForeignFixture::start(plane, 0)?;
    let runtime = Runtime::new().unwrap();
    let answer = |steps: &[Step], silence| {
        fixture.origin.delete(type_url, "x");
        HAS.iter().for_each(|name| fixture.origin.put(&numbered(type_url, name, 1)));
        runtime.block_on(experiment(&fixture, type_url, steps, silence))
    };
    // A JVM takes its time for the first of them.
    eventually(PATIENCE, "the control plane answers", || match answer(&[Subscribe(&["a"])], PATIENT) {
        silence if silence == "silence" => Err(silence),
        _ => Ok(()),
    });
    let answer = |((_, steps), expected): (&(&str, &[Step]), &String)| {
        let quick = answer(steps, HASTY);
        // A loaded machine may have taken its time.
        if quick == *expected { quick } else { answer(steps, PATIENT) }
    };
    Some(EXPERIMENTS.iter().zip(expected).map(answer).collect())
}

async fn experiment(fixture: &ForeignFixture, type_url: &str, steps: &[Step], silence: Duration) -> String {
    let mut call = Call::start(fixture.origin.port()).await;
    let mut request = DeltaDiscoveryRequest {
        node: Some(node("asking")),
        type_url: type_url.to_owned(),
        ..Default::default()
    };
    let mut answer = String::new();
    for step in steps {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        match step {
            Stream(held) => {
                request.initial_resource_versions =
                    held.iter().map(|name| ((*name).to_owned(), "old".to_owned())).collect();
                continue;
            }
            Change(name) => fixture.origin.put(&numbered(type_url, name, 2)),
            Delete(name) => fixture.origin.delete(type_url, name),
            Empty => call.send(&mut request),
            Subscribe(subscribed) => {
                request.resource_names_subscribe = names(subscribed);
                call.send(&mut request);
            }
            Unsubscribe(unsubscribed) => {
                request.resource_names_unsubscribe = names(unsubscribed);
                call.send(&mut request);
            }
        }
        answer = call.heard(silence).await;
    }
    answer
}

/// A call of a server that may say nothing at all, not even that it takes the call.
struct Call {
    requests: UnboundedSender<DeltaDiscoveryRequest>,
    responses: UnboundedReceiver<DeltaDiscoveryResponse>,
}

impl Call {
    async fn start(port: u16) -> Self {
        let channel = connect(&format!("http://127.0.0.1:{port}")).await;
        let (requests, outgoing) = unbounded_channel();
        let (incoming, responses) = unbounded_channel();
        tokio::spawn(async move {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await?;
            let outgoing = tonic::Request::new(UnboundedReceiverStream::new(outgoing));
            let path = PathAndQuery::from_static(DELTA_ADS);
            let call = grpc.streaming(outgoing, path, RawCodec::<DeltaDiscoveryRequest>::default()).await?;
            let mut call = call.into_inner();
            while let Some(response) = call.message().await? {
                incoming.send(DeltaDiscoveryResponse::decode(response)?)?;
            }
            anyhow::Ok(())
        });
        Self { requests, responses }
    }

    /// Sends a request, and leaves an empty one of the same type.
    fn send(&self, request: &mut DeltaDiscoveryRequest) {
        let next = DeltaDiscoveryRequest { type_url: request.type_url.clone(), ..Default::default() };
        self.requests.send(std::mem::replace(request, next)).unwrap();
    }

    /// Everything that comes until nothing comes any more, in words; all of it is accepted.
    async fn heard(&mut self, silence: Duration) -> String {
        let mut heard = Vec::new();
        while let Ok(response) = timeout(silence, self.responses.recv()).await {
            let Some(response) = response else { return "the end of the stream".to_owned() };
            heard.push(in_words(&response));
            if heard.len() == ENDLESS {
                return format!("{} without end", heard[0]);
            }
            let DeltaDiscoveryResponse { type_url, nonce: response_nonce, .. } = response;
            let ack = DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() };
            self.requests.send(ack).unwrap();
        }
        if heard.is_empty() { "silence".to_owned() } else { heard.join("; ") }
    }
}

fn in_words(response: &DeltaDiscoveryResponse) -> String {
    let mut words = names(response);
    words.sort();
    let mut removed = response.removed_resources.clone();
    removed.sort();
    words.extend(removed.iter().map(|name| format!("−{name}")));
    if words.is_empty() { "an empty response".to_owned() } else { words.join(" ") }
}
