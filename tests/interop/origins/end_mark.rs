//! The end mark: a first request claims a name that cannot exist, and the answer to that ends the answer to the request.

use std::{collections::BTreeSet, time::Instant};

use deltafan_test_support::client::{connect, names};
use tokio::{runtime::Runtime, time::timeout};

use super::{
    Column, Delete, Delta, Empty, HAS, Held, MARK, Step, Stream, Subscribe, Table, experiment, first_request,
};
use crate::fixture::{
    ControlPlane, Fixture, PATIENCE,
    resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES, SCOPED_ROUTES, numbered},
};

/// First requests, all with the mark. `n@` claims n at its version, `n@old` at one that it does not have.
const EXPERIMENTS: &[(&str, &[Step])] = &[
    ("legacy", &[Stream(&[MARK]), Empty]),
    ("`+*`", &[Stream(&[MARK]), Subscribe(&["*"])]),
    ("legacy, of one", &[Delete("b"), Delete("c"), Stream(&[MARK]), Empty]),
    ("legacy, of nothing", &[Delete("a"), Delete("b"), Delete("c"), Stream(&[MARK]), Empty]),
    ("legacy, `a@ b@ c@`", &[Stream(&[MARK]), Held(&HAS), Empty]),
    ("legacy, `a@ b@ c@`, b has gone", &[Stream(&[MARK]), Held(&HAS), Delete("b"), Empty]),
    ("legacy, `a@`, b has gone", &[Stream(&[MARK]), Held(&["a"]), Delete("b"), Empty]),
    ("legacy, `a@ b@old x@old`", &[Stream(&[MARK, "b", "x"]), Held(&["a"]), Empty]),
    ("`+* +a +x +mark`, `x@old`", &[Stream(&[MARK, "x"]), Subscribe(&["*", "a", "x", MARK])]),
    ("`+a +x +mark`, `x@old`", &[Stream(&[MARK, "x"]), Subscribe(&["a", "x", MARK])]),
    ("`+a +x +mark`", &[Stream(&[MARK]), Subscribe(&["a", "x", MARK])]),
    ("`+x +mark`, `x@old`", &[Stream(&[MARK, "x"]), Subscribe(&["x", MARK])]),
    ("`+a +mark`, `a@`", &[Stream(&[MARK]), Held(&["a"]), Subscribe(&["a", MARK])]),
    (
        "`+a +b +mark`, `a@ b@`, b has gone",
        &[Stream(&[MARK]), Held(&["a", "b"]), Delete("b"), Subscribe(&["a", "b", MARK])],
    ),
    ("`+mark`", &[Stream(&[MARK]), Subscribe(&[MARK])]),
    (
        "`+a +mark`, then `+x +mark`, `x@old`",
        &[Stream(&[MARK]), Subscribe(&["a", MARK]), Stream(&[MARK, "x"]), Subscribe(&["x", MARK])],
    ),
    (
        "`+xdstp://g/* +mark`, `xdstp://g/*@old`",
        &[Stream(&[MARK, "xdstp://g/*"]), Subscribe(&["xdstp://g/*", MARK])],
    ),
];

const COLUMNS: &[Column] = &[
    (
        "go-control-plane",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.12.0", &["--cache", "mux"]), ENDPOINTS),
            (ControlPlane::Go("v0.12.0", &["--cache", "snapshot"]), LISTENER),
            (ControlPlane::Go("v0.12.0", &["--cache", "snapshot", "--ads"]), ENDPOINTS),
            (ControlPlane::Go("v0.13.4", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "mux"]), ROUTES),
            (ControlPlane::Go("v0.13.4", &["--cache", "snapshot"]), ENDPOINTS),
            (ControlPlane::Go("v0.13.4", &["--cache", "snapshot", "--ads"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "mux"]), ENDPOINTS),
            (ControlPlane::Go("v0.14.0", &["--cache", "snapshot"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "snapshot", "--ads"]), SCOPED_ROUTES),
        ],
    ),
    ("java CDS", &[(ControlPlane::Java("v1.0.49"), CLUSTER)]),
    ("java EDS", &[(ControlPlane::Java("v1.0.49"), ENDPOINTS)]),
];

#[test]
fn the_document_has_the_answers_to_the_end_mark() {
    Table { corner: "first request, with the mark", columns: COLUMNS, rows: EXPERIMENTS, ask: experiment }
        .is_in_the_document();
}

/// A relay that has just started answers once it knows the set itself.
#[test]
fn a_relay_answers_the_end_mark_of_a_wildcard_when_all_is_said() {
    let plane = ControlPlane::Go("v0.14.0", &["--cache", "mux"]);
    let Some(fixture) = Fixture::start_relays(plane, 2 * (HAS.len() + 1), "auto", "") else { return };
    let runtime = Runtime::new().unwrap();
    for has in 0..=HAS.len() {
        let all = &HAS[..has];
        all.iter().for_each(|name| fixture.origin.put(&numbered(CLUSTER, name, 1)));
        for (at, subscribed) in [&[][..], &["*"]].into_iter().enumerate() {
            let port = fixture.port(2 * has + at);
            let heard = runtime.block_on(until_the_mark(port, subscribed));
            assert_eq!(
                heard,
                BTreeSet::from_iter(all.iter().map(|name| (*name).to_owned())),
                "{subscribed:?}"
            );
        }
    }
}

/// Names that come before the mark is answered, or with the answer to it.
async fn until_the_mark(port: u16, subscribed: &[&str]) -> BTreeSet<String> {
    let mut call = Delta::open(connect(&format!("http://127.0.0.1:{port}")).await);
    let mut request = first_request(CLUSTER, subscribed);
    request.initial_resource_versions.insert(MARK.to_owned(), "0".to_owned());
    call.send(&mut request);
    let mut heard = BTreeSet::new();
    let since = Instant::now();
    loop {
        let response =
            timeout(PATIENCE, call.responses.recv()).await.expect("an answer to the mark").unwrap();
        heard.extend(names(&response));
        if response.removed_resources.iter().any(|name| name == MARK) {
            return heard;
        }
        assert!(since.elapsed() < PATIENCE, "{heard:?} and no answer to the mark");
    }
}
