//! Subscriptions that the origin leaves unanswered, as the core knows them.

use super::*;
use crate::upstream::Unanswered;

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;

/// How many subscriptions are unanswered, since how many milliseconds, and the types that are silent altogether.
fn unanswered(rig: &Rig) -> (usize, Option<u128>, Vec<Kind>) {
    let Unanswered { count, since, silent } = rig.mux.unanswered();
    let since = since.map(|since| rig.now.duration_since(since).as_millis());
    (count, since, silent.keys().map(TypeUrl::kind).collect())
}

#[test]
fn a_name_is_unanswered_until_something_is_said_of_it() {
    let mut rig = Rig::connected();
    assert_eq!(unanswered(&rig), (0, None, vec![]));
    rig.client("wild", CDS, &["*"]);
    rig.client("named", EDS, &["a", "b"]);
    assert_eq!(unanswered(&rig), (0, None, vec![]), "nothing was sent yet");
    rig.requests(Primary);
    rig.pass(10);
    rig.requests(Primary);
    rig.pass(2990);
    assert_eq!(unanswered(&rig), (3, Some(3000), vec![CDS, EDS]));
    rig.hear(Primary, &Answer::of(CDS, "1"));
    assert_eq!(unanswered(&rig), (2, Some(2990), vec![EDS]), "an empty set is an answer");
    rig.hear(Primary, &Answer::of(EDS, "2").set("a", "v1"));
    assert_eq!(unanswered(&rig), (1, Some(2990), vec![]), "a name that may not exist");
    rig.hear(Primary, &Answer::of(EDS, "3").remove("b"));
    assert_eq!(unanswered(&rig), (0, None, vec![]));
}

#[test]
fn a_name_that_is_let_go_is_not_waited_for() {
    let mut rig = Rig::with(Settings { linger: Duration::ZERO, ..Settings::default() });
    rig.open(Primary);
    rig.client("named", EDS, &["a", "b"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("b", "v1"));
    rig.leave("named");
    rig.pass(1000);
    assert_eq!(unanswered(&rig), (0, None, vec![]));
}

#[test]
fn silence_is_an_answer_where_versions_were_told() {
    let mut rig = Rig::connected();
    rig.client("wild", CDS, &["*"]);
    rig.client("named", EDS, &["a"]);
    rig.requests(Primary);
    rig.pass(10);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
    rig.pass(3000);
    rig.close();
    assert_eq!(unanswered(&rig), (0, None, vec![]));
    rig.client("later", EDS, &["b"]);
    rig.open(Primary);
    let claimed =
        rig.requests(Primary).iter().map(|request| request.initial_resource_versions.len()).sum::<usize>();
    assert_eq!(claimed, 0, "the only one of each type is kept back");
    assert_eq!(unanswered(&rig), (3, Some(0), vec![CDS, EDS]));
    rig.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
    assert_eq!(unanswered(&rig), (1, Some(0), vec![]), "`b` is not held");
}

/// Clients that get no answer go. The answer to what they asked for is the first sign that the origin is well.
#[test]
fn a_wildcard_that_was_asked_for_stays_until_anything_was_ever_answered() {
    for is_heard in [false, true] {
        let mut rig = Rig::connected();
        rig.client("wild", CDS, &["*"]);
        rig.client("named", EDS, &["a"]);
        rig.requests(Primary);
        rig.pass(10);
        rig.requests(Primary);
        if is_heard {
            rig.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
        }
        rig.leave("wild");
        rig.pass(60 * 60 * 1000);
        assert_eq!(!rig.renewed.is_empty(), is_heard, "the stream is renewed to let go of it");
        let (_, _, silent) = unanswered(&rig);
        assert_eq!(silent.contains(&CDS), !is_heard, "{silent:?}");
    }
}

#[test]
fn a_name_kept_without_a_linger_is_not_looked_at_again_at_once() {
    let mut rig = Rig::with(Settings { linger: Duration::ZERO, ..Settings::default() });
    rig.open(Primary);
    rig.client("named", EDS, &["a"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
    rig.close();
    rig.leave("named");
    rig.mux.on_deadline(rig.now);
    assert!(rig.mux.next_deadline().is_some_and(|at| at >= rig.now + Duration::from_secs(1)));
    assert_eq!(rig.seen(EDS, "a"), "v1");
}
