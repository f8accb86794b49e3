//! The census: a throw-away stream asks by state of the world, beside a delta stream that lives on the same connection.

use super::{Asked, Change, Column, Delete, Delta, HAS, Step, Table, call::Sotw, first_request};
use crate::fixture::{
    ControlPlane, Fixture,
    resources::{CLUSTER, ENDPOINTS, LISTENER, SCOPED_ROUTES, numbered},
};

/// Steps while the delta stream lives, the type that is asked for, and its names.
type Question = (&'static [Step], &'static str, &'static [&'static str]);

const QUESTIONS: &[(&str, Question)] = &[
    ("CDS", (&[], CLUSTER, &[])),
    ("CDS, a changes, c goes, x comes", (&[Change("a"), Delete("c"), Change("x")], CLUSTER, &[])),
    ("CDS, of nothing", (&[Delete("a"), Delete("b"), Delete("c")], CLUSTER, &[])),
    ("LDS", (&[], LISTENER, &[])),
    ("SRDS", (&[], SCOPED_ROUTES, &[])),
    ("EDS", (&[], ENDPOINTS, &[])),
    ("EDS `[a b c]`", (&[], ENDPOINTS, &["a", "b", "c"])),
    ("EDS `[a b]`", (&[], ENDPOINTS, &["a", "b"])),
    ("EDS `[a x]`", (&[], ENDPOINTS, &["a", "x"])),
    ("EDS `[x]`", (&[], ENDPOINTS, &["x"])),
];

const COLUMNS: &[Column] = &[
    (
        "Linear",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "linear"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "linear"]), CLUSTER),
        ],
    ),
    (
        "Mux",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "mux"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "mux"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "mux"]), CLUSTER),
        ],
    ),
    (
        "Snapshot",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "snapshot"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "snapshot"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "snapshot"]), CLUSTER),
        ],
    ),
    (
        "Snapshot, `ads`",
        &[
            (ControlPlane::Go("v0.12.0", &["--cache", "snapshot", "--ads"]), CLUSTER),
            (ControlPlane::Go("v0.13.4", &["--cache", "snapshot", "--ads"]), CLUSTER),
            (ControlPlane::Go("v0.14.0", &["--cache", "snapshot", "--ads"]), CLUSTER),
        ],
    ),
    ("java", &[(ControlPlane::Java("v1.0.49"), CLUSTER)]),
];

#[test]
fn the_document_has_the_answers_to_the_census() {
    Table { corner: "census", columns: COLUMNS, rows: QUESTIONS, ask }.is_in_the_document();
}

/// The answer to the census, if it left the living stream as it was.
fn ask(asked: Asked<'_>, (steps, type_url, names): &Question) -> String {
    let Asked { fixture: Fixture { origin, .. }, silence, .. } = asked;
    if !asked.plane.serves(type_url) {
        return "–".to_owned();
    }
    HAS.iter().for_each(|name| origin.put(&numbered(type_url, name, 1)));
    asked.runtime.block_on(async {
        let channel = asked.connect().await;
        let mut living = Delta::open(channel.clone());
        living.send(&mut first_request(CLUSTER, &[]));
        living.heard(silence).await;
        for step in *steps {
            match step {
                Change(name) => origin.put(&numbered(type_url, name, 2)),
                Delete(name) => origin.delete(type_url, name),
                _ => unreachable!("no step on the stream that lives"),
            }
        }
        living.heard(silence).await;
        let answer = Sotw::first(channel, type_url, names, silence).await;
        let meanwhile = living.heard(silence).await;
        origin.put(&numbered(CLUSTER, "a", 3));
        match (meanwhile.as_str(), living.heard(silence).await.as_str()) {
            ("silence", "a") => answer,
            heard => format!("{answer}, and the living stream hears {heard:?}"),
        }
    })
}
