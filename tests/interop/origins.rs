//! Control planes as they are: each is asked directly, and docs/origins.md has to say what it answers. Wildcards by
//! state of the world are asked for through a relay.

mod call;
mod census;
mod end_mark;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    fs, thread,
    time::Duration,
};

use deltafan::{proto::DeltaDiscoveryRequest, resource::Envelope};
use deltafan_test_support::client::{connect, names, node};
use tokio::{runtime::Runtime, time::timeout};
use tonic::transport::Channel;

use self::call::Delta;

use crate::fixture::{
    ControlPlane, Fixture, PATIENCE, eventually, in_repository,
    resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES, numbered},
};

/// Nothing has come for so long: probably nothing will.
const HASTY: Duration = Duration::from_millis(200);
/// Nothing has come for so long: nothing will.
const PATIENT: Duration = Duration::from_secs(2);
/// On a machine that is overloaded.
const DOGGED: Duration = Duration::from_secs(10);
const DOCUMENT: &str = "docs/origins.md";
/// The end mark: a name that no control plane has. The answer to it ends the answer to the request.
const MARK: &str = "deltafan/end-of-answer";

/// A step of an experiment; each request is about one type.
#[derive(Clone, Copy)]
enum Step {
    /// A new stream, whose first request has these versions of other times.
    Stream(&'static [&'static str]),
    /// Adds the versions that the origin has now.
    Held(&'static [&'static str]),
    /// A request without names.
    Empty,
    Subscribe(&'static [&'static str]),
    Unsubscribe(&'static [&'static str]),
    /// The origin changes a resource, or has a new one.
    Change(&'static str),
    Delete(&'static str),
}

use Step::{Change, Delete, Empty, Held, Stream, Subscribe, Unsubscribe};

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

/// Control planes that are to answer alike, and the type that each is asked for.
type Column = (&'static str, &'static [(ControlPlane, &'static str)]);

const COLUMNS: &[Column] = &[
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
    Table { corner: "steps", columns: COLUMNS, rows: EXPERIMENTS, ask: experiment }.is_in_the_document();
}

/// A table of the document, whose columns are control planes.
#[derive(Clone, Copy)]
struct Table<R: 'static> {
    corner: &'static str,
    columns: &'static [Column],
    rows: &'static [(&'static str, R)],
    /// Asks for a type on a connection, with this silence for the end of an answer.
    ask: fn(Asked<'_>, &R) -> String,
}

/// The control plane that is asked.
#[derive(Clone, Copy)]
struct Asked<'a> {
    fixture: &'a Fixture,
    runtime: &'a Runtime,
    plane: ControlPlane,
    type_url: &'static str,
    silence: Duration,
}

impl Asked<'_> {
    async fn connect(self) -> Channel {
        connect(&format!("http://127.0.0.1:{}", self.fixture.origin.port())).await
    }
}

impl<R: Copy + Send + Sync> Table<R> {
    fn is_in_the_document(self) {
        let document = fs::read_to_string(in_repository(DOCUMENT)).unwrap();
        let headings: Vec<_> = self.columns.iter().map(|(heading, _)| *heading).collect();
        let mut table = vec![format!("| {} | {} |", self.corner, headings.join(" | "))];
        let (_, from) = document.split_once(&format!("\n{}", table[0])).unwrap_or_default();
        let written: Vec<_> = from.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
        let asked: Vec<_> = self
            .columns
            .iter()
            .enumerate()
            .flat_map(|(at, (_, planes))| {
                let expected = self.column(&written, at + 1);
                planes.iter().map(move |(plane, type_url)| (*plane, *type_url, expected.clone()))
            })
            .map(|(plane, type_url, expected)| {
                thread::spawn(move || self.answers(plane, type_url, &expected))
            })
            .collect();
        let mut answers = asked.into_iter().map(|thread| thread.join().unwrap());

        table.extend(self.rows.iter().map(|(what, _)| format!("| {what} |")));
        for (heading, planes) in self.columns {
            // Without one of them there is no table to compare.
            let Some(of_planes) = answers.by_ref().take(planes.len()).collect::<Option<Vec<_>>>() else {
                return;
            };
            for (other, plane) in of_planes.iter().zip(*planes) {
                assert_eq!(other, &of_planes[0], "all of {heading} answer the same: {plane:?}");
            }
            for (row, answer) in table[1..].iter_mut().zip(&of_planes[0]) {
                write!(row, " {answer} |").unwrap();
            }
        }
        let is_missing = |row: &&String| !written.iter().any(|line| line == row);
        let missing = table[1..].iter().filter(is_missing).count();
        assert!(missing == 0, "{missing} rows are not in {DOCUMENT}, but should be:\n{}", table.join("\n"));
    }

    /// Cells of this column of the document, one for each row.
    fn column(&self, written: &[&str], at: usize) -> Vec<String> {
        let cell = |(what, _): &(&str, R)| {
            let row = written.iter().find(|line| line.starts_with(&format!("| {what} |")))?;
            Some(row.split(" | ").nth(at)?.trim_end_matches(" |").to_owned())
        };
        self.rows.iter().map(|row| cell(row).unwrap_or_default()).collect()
    }

    /// Asks for each row; `None` where the control plane is not installed.
    fn answers(
        self,
        plane: ControlPlane,
        type_url: &'static str,
        expected: &[String],
    ) -> Option<Vec<String>> {
        let fixture = Fixture::start_relays(plane, 0, "auto", "")?;
        let runtime = &Runtime::new().unwrap();
        let asked = |silence| {
            fixture.origin.delete(type_url, "x");
            HAS.iter().for_each(|name| fixture.origin.put(&numbered(type_url, name, 1)));
            Asked { fixture: &fixture, runtime, plane, type_url, silence }
        };
        // A JVM takes its time for the first of them.
        eventually(PATIENCE, "the control plane answers", || {
            match experiment(asked(PATIENT), &&[Subscribe(&["a"])][..]) {
                silence if silence == "silence" => Err(silence),
                _ => Ok(()),
            }
        });
        let answer = |((_, row), expected): (&(&str, R), &String)| {
            let answer = |silence| (self.ask)(asked(silence), row);
            let is_expected = |answer: &String| answer == expected;
            // A loaded machine may have taken its time.
            let hurried = [HASTY, PATIENT].into_iter().map(answer).find(is_expected);
            hurried.unwrap_or_else(|| answer(DOGGED))
        };
        Some(self.rows.iter().zip(expected).map(answer).collect())
    }
}

#[test]
fn a_snapshot_cache_is_silent_to_a_node_that_it_does_not_know() {
    let plane = ControlPlane::Go("v0.14.0", &["--cache", "snapshot", "--node", "another"]);
    let Some(fixture) = Fixture::start_relays(plane, 0, "auto", "") else { return };
    let runtime = &Runtime::new().unwrap();
    let asked = Asked { fixture: &fixture, runtime, plane, type_url: CLUSTER, silence: PATIENT };
    for steps in [&[Empty][..], &[Stream(&[MARK]), Empty]] {
        assert_eq!(experiment(asked, &steps), "silence");
    }
}

/// `*` by state of the world is answered by the newest go-control-plane only, and the empty list by each: a relay asks with that.
#[test]
fn r_up_05_wildcards_of_each_type_are_answered_by_state_of_the_world() {
    for version in ["v0.12.0", "v0.13.4", "v0.14.0"] {
        for cache in [&["--cache", "mux"], &["--cache", "snapshot"]] {
            let plane = ControlPlane::Go(version, cache);
            let Some(fixture) = Fixture::start_relays(plane, 1, "sotw", "") else { return };
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
    let mut call = Delta::open(connect(&format!("http://127.0.0.1:{port}")).await);
    call.send(&mut first_request(type_url, &["*"]));
    let mut got = BTreeSet::new();
    while got.len() < HAS.len() {
        let Ok(Some(response)) = timeout(PATIENCE, call.responses.recv()).await else { break };
        got.extend(names(&response));
    }
    got
}

/// Goes through the steps on a stream of its own. Returns the answer to the last, in words.
fn experiment(asked: Asked<'_>, steps: &&[Step]) -> String {
    asked.runtime.block_on(async { take(asked, asked.connect().await, steps).await })
}

async fn take(asked: Asked<'_>, channel: Channel, steps: &[Step]) -> String {
    let Asked { fixture, type_url, silence, .. } = asked;
    let mut call = Delta::open(channel.clone());
    let mut request = first_request(type_url, &[]);
    let mut answer = String::new();
    for step in steps {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        match step {
            Stream(held) => {
                request.initial_resource_versions =
                    held.iter().map(|name| ((*name).to_owned(), "old".to_owned())).collect();
                continue;
            }
            Held(names) => {
                request.initial_resource_versions.extend(versions(channel.clone(), type_url, names).await);
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

fn first_request(type_url: &str, names: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Some(node("asking")),
        type_url: type_url.to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

/// Versions that the origin gives to these resources, all of which it has.
async fn versions(channel: Channel, type_url: &str, names: &[&str]) -> HashMap<String, String> {
    let mut call = Delta::open(channel);
    call.send(&mut first_request(type_url, names));
    let mut versions = HashMap::new();
    while !names.iter().all(|name| versions.contains_key(*name)) {
        let response = timeout(PATIENCE, call.responses.recv()).await.unwrap().unwrap();
        let type_url = response.type_url.as_str().into();
        versions.extend(response.resources.iter().map(|resource| {
            let envelope = Envelope::parse(resource, &type_url).unwrap();
            (envelope.name.to_owned(), envelope.version.to_owned())
        }));
    }
    versions.retain(|name, _| names.contains(&name.as_str()));
    versions
}
