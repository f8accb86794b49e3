//! Subscriptions that the origin leaves unanswered, as the core knows them.

use super::*;
use crate::upstream::Unanswered;

/// How many subscriptions are unanswered, since how many milliseconds, and the types that are silent altogether.
fn unanswered(fixture: &mut Fixture) -> (usize, Option<u128>, Vec<Kind>) {
    let Unanswered { count, since, silent } = fixture.mux.unanswered(fixture.now);
    let since = since.map(|since| fixture.now.duration_since(since).as_millis());
    (count, since, silent.keys().map(TypeUrl::kind).collect())
}

#[test]
fn a_name_is_unanswered_until_something_is_said_of_it() {
    let mut fixture = Fixture::connected();
    assert_eq!(unanswered(&mut fixture), (0, None, vec![]));
    fixture.client("wild", CDS, &["*"]);
    fixture.client("named", EDS, &["a", "b"]);
    assert_eq!(unanswered(&mut fixture), (0, None, vec![]), "nothing was sent yet");
    fixture.requests(Primary);
    fixture.flush(10);
    fixture.pass(2990);
    assert_eq!(unanswered(&mut fixture), (3, Some(3000), vec![CDS, EDS]));
    fixture.hear(Primary, &Answer::of(CDS, "1"));
    assert_eq!(unanswered(&mut fixture), (2, Some(2990), vec![EDS]), "an empty set is an answer");
    fixture.hear(Primary, &Answer::of(EDS, "2").set("a", "v1"));
    assert_eq!(unanswered(&mut fixture), (1, Some(2990), vec![]), "a name that may not exist");
    fixture.hear(Primary, &Answer::of(EDS, "3").remove("b"));
    assert_eq!(unanswered(&mut fixture), (0, None, vec![]));
}

#[test]
fn a_name_that_is_let_go_is_not_waited_for() {
    let mut fixture = Fixture::lingering(Duration::ZERO);
    fixture.client("named", EDS, &["a", "b"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("b", "v1"));
    fixture.leave_for("named", 1000);
    assert_eq!(unanswered(&mut fixture), (0, None, vec![]));
}

#[test]
fn silence_is_an_answer_where_versions_were_told() {
    let mut fixture = Fixture::connected();
    fixture.client("wild", CDS, &["*"]);
    fixture.client("named", EDS, &["a"]);
    fixture.requests(Primary);
    fixture.flush(10);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
    fixture.pass(3000);
    fixture.close();
    assert_eq!(unanswered(&mut fixture), (0, None, vec![]));
    fixture.client("later", EDS, &["b"]);
    fixture.open(Primary);
    let claimed = fixture
        .requests(Primary)
        .iter()
        .map(|request| request.initial_resource_versions.len())
        .sum::<usize>();
    assert_eq!(claimed, 2);
    // Of the end mark something is to be said, whatever is held.
    assert_eq!(unanswered(&mut fixture), (2, Some(0), vec![CDS, EDS]));
    fixture.hear(Primary, &Answer::of(CDS, "1").remove(Name::END_MARK));
    assert_eq!(unanswered(&mut fixture), (1, Some(0), vec![EDS]));
    fixture.hear(Primary, &Answer::of(EDS, "1").remove(Name::END_MARK));
    assert_eq!(unanswered(&mut fixture), (0, None, vec![]), "`b` does not exist");
}

/// Clients that get no answer go. The answer to what they asked for is the first sign that the origin is well.
#[test]
fn a_wildcard_that_was_asked_for_stays_until_anything_was_ever_answered() {
    for is_heard in [false, true] {
        let mut fixture = Fixture::connected();
        fixture.client("wild", CDS, &["*"]);
        fixture.client("named", EDS, &["a"]);
        fixture.requests(Primary);
        fixture.flush(10);
        if is_heard {
            fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
        }
        fixture.leave_for("wild", 60 * 60 * 1000);
        assert_eq!(!fixture.renewed.is_empty(), is_heard, "the stream is renewed to let go of it");
        let (_, _, silent) = unanswered(&mut fixture);
        assert_eq!(silent.contains(&CDS), !is_heard, "{silent:?}");
    }
}

#[test]
fn a_name_kept_without_a_linger_is_not_looked_at_again_at_once() {
    let mut fixture = Fixture::lingering(Duration::ZERO);
    fixture.client("named", EDS, &["a"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1"));
    fixture.close();
    fixture.leave("named");
    fixture.mux.on_deadline(fixture.now);
    assert!(fixture.mux.next_deadline().is_some_and(|at| at >= fixture.now + Duration::from_secs(1)));
    assert_eq!(fixture.seen(EDS, "a"), "v1");
}
