//! For how long a refused response is told of.

use super::sotw::World;
use super::*;

/// A relay that was sent two names in a response that it refuses.
fn refusing() -> Fixture {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.client("b", EDS, &["e3"]);
    fixture.requests(Primary);
    let answer = Answer::of(EDS, "1").set("e1", "v").set("e1", "w").remove("e2").set("unasked", "v");
    refuse(&mut fixture, &answer);
    fixture
}

fn refuse(fixture: &mut Fixture, answer: &Answer) {
    fixture.deliver(Primary, answer);
    let requests = fixture.requests(Primary);
    assert!(requests.iter().any(|request| request.error_detail.is_some()), "{requests:?}");
}

fn faults(fixture: &Fixture) -> Vec<String> {
    fixture.mux.refusals().iter().map(|refusal| refusal.fault.to_string()).collect()
}

#[test]
fn r_up_13_a_refusal_lasts_until_each_of_its_names_came_in_a_response_that_is_accepted() {
    let mut fixture = refusing();
    let since = fixture.now;
    assert!(faults(&fixture)[0].contains("`e1` is in one response twice"), "{:?}", faults(&fixture));
    fixture.pass(5_000);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e3", "v"));
    fixture.hear(Primary, &Answer::of(EDS, "3").set("e2", "v"));
    refuse(&mut fixture, &Answer::of(EDS, "4").raw(vec![0xff; 8]));
    let refusals = fixture.mux.refusals();
    assert_eq!((refusals.len(), refusals[0].since), (1, since), "the first one counts");
    assert!(refusals[0].fault.contains("decoded"), "the newest fault is told: {refusals:?}");
    fixture.hear(Primary, &Answer::of(EDS, "5").remove("e1"));
    assert_eq!(faults(&fixture), [""; 0]);
}

#[test]
fn a_refusal_without_names_lasts_until_the_next_response_of_its_type() {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &["e1"]);
    fixture.subscribe("b", Kind::Cluster, &["*"]);
    refuse(&mut fixture, &Answer::of(EDS, "1").raw(vec![0xff; 8]));
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "2").set("c", "v"));
    assert_eq!(fixture.mux.refusals().len(), 1);
    fixture.hear(Primary, &Answer::of(EDS, "3").set("e1", "v"));
    assert_eq!(faults(&fixture), [""; 0]);
}

#[test]
fn a_refusal_of_what_nobody_asked_for_is_none() {
    let mut fixture = Fixture::asking("a", EDS, &["e1"]);
    refuse(&mut fixture, &Answer::of(EDS, "1").set("unasked", "v").set("unasked", "w"));
    assert_eq!(faults(&fixture), [""; 0]);
}

#[test]
fn a_refusal_of_what_nobody_wants_any_more_is_over() {
    let mut fixture = refusing();
    fixture.client("a", EDS, &["e2"]);
    fixture.pass(1_000);
    assert_eq!(fixture.mux.refusals().len(), 1, "names linger");
    fixture.client("a", EDS, &["e4"]);
    fixture.pass(61_000);
    assert_eq!(faults(&fixture), [""; 0], "of e1 and e2 nobody is left");
}

#[test]
fn a_refusal_outlives_its_stream_and_ends_with_the_next_one() {
    let mut fixture = refusing();
    fixture.close();
    fixture.pass(1_000);
    assert_eq!(fixture.mux.refusals().len(), 1, "what is served is still what was there before");
    fixture.open(Primary);
    assert_eq!(faults(&fixture), [""; 0]);
}

#[test]
fn names_of_a_refusal_take_bounded_memory() {
    let mut fixture = Fixture::asking("a", EDS, &["*"]);
    let mut names: Vec<String> = (0..9).map(|n| format!("{n}{}", "n".repeat(8 << 10))).collect();
    let answer = names.iter().fold(Answer::of(EDS, "1"), |answer, name| answer.set(name, "v"));
    refuse(&mut fixture, &answer.set(&names[0], "v"));
    // The last one is not waited for.
    names.pop();
    names.pop();
    let told = names.iter().fold(Answer::of(EDS, "2"), |answer, name| answer.set(name, "w"));
    fixture.hear(Primary, &told);
    assert_eq!(faults(&fixture), [""; 0]);
}

#[test]
fn a_refusal_in_state_of_the_world_lasts_until_the_next_response_of_its_type() {
    let mut fixture = Fixture::new();
    fixture.open_sotw(Primary);
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.says(Primary);
    let refused = fixture.told(Primary, &World::of(EDS, "1", &[("e1", "a"), ("e1", "b")]));
    assert!(refused.error_detail.is_some());
    assert_eq!(fixture.mux.refusals().len(), 1);
    fixture.takes(Primary, &World::of(EDS, "2", &[("e2", "a")]));
    assert_eq!(faults(&fixture), [""; 0]);
}
