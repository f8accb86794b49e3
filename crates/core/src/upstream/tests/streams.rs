//! R-Relay-03 and O1: wildcard and names of one type never share a stream, and a wildcard is not let go on one that lives.

use super::*;

/// Wildcard on the primary, a name on the secondary, both answered.
fn mixed() -> Fixture {
    let mut fixture = Fixture::asking("wild", CDS, &["*"]).heard(&Answer::of(CDS, "1").set("m", "v1"));
    fixture.pass(500);
    assert!(!fixture.mux.wants_secondary());
    fixture.client("named", CDS, &["odcds"]);
    assert!(fixture.mux.wants_secondary());
    assert_eq!(fixture.requests(Primary), []);
    fixture.open(Secondary);
    assert_eq!(fixture.request(Secondary).resource_names_subscribe, ["odcds"]);
    fixture.hear(Secondary, &Answer::of(CDS, "1").set("odcds", "v1"));
    fixture
}

#[test]
fn r_relay_03_a_name_that_is_no_member_is_not_shown_to_the_wildcard() {
    let fixture = mixed();
    assert_eq!(fixture.members(CDS), set(&["m@v1"]));
    assert_eq!(fixture.seen(CDS, "odcds"), "v1");
}

#[test]
fn r_relay_03_each_stream_removes_from_its_own_view() {
    let mut fixture = mixed();
    fixture.client("named", CDS, &["odcds", "m"]);
    fixture.pass(10);
    fixture.requests(Secondary);
    fixture.hear(Secondary, &Answer::of(CDS, "2").set("m", "v1"));
    fixture.hear(Primary, &Answer::of(CDS, "2").remove("m").remove("odcds"));
    assert_eq!(fixture.members(CDS), set(&[]));
    assert_eq!(fixture.see(CDS, ["m", "odcds"]), ["v1", "v1"]);
    fixture.hear(Secondary, &Answer::of(CDS, "3").remove("m"));
    assert_eq!(fixture.seen(CDS, "m"), "absent");
}

#[test]
fn r_relay_03_the_view_that_comes_second_goes_to_the_secondary() {
    let mut fixture = Fixture::connected();
    fixture.client("named", CDS, &["odcds"]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, ["odcds"]);
    fixture.client("wild", CDS, &["*"]);
    fixture.open(Secondary);
    fixture.pass(10);
    assert_eq!(fixture.requests(Primary), []);
    assert!(fixture.request(Secondary).resource_names_subscribe.is_empty());
    fixture.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1"));
    fixture.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    assert_eq!(fixture.members(CDS), set(&["m@v1"]));

    fixture.reconnect();
    fixture.open(Secondary);
    assert!(fixture.request(Primary).resource_names_subscribe.is_empty(), "a clean layout after a reconnect");
    assert_eq!(fixture.request(Secondary).resource_names_subscribe, ["odcds"]);
}

#[test]
fn o1_a_wildcard_that_nobody_wants_is_kept_while_its_stream_lives() {
    let mut fixture = mixed();
    fixture.leave_for("wild", 120_000);
    assert_eq!(fixture.requests(Primary), [], "some origins do not hear that it is let go");
    fixture.hear(Primary, &Answer::of(CDS, "2").set("m", "v2").set("n", "v1"));
    fixture.client("wild", CDS, &["*"]);
    fixture.pass(10);
    assert_eq!(fixture.requests(Primary), [], "and some do not answer when it is asked for again");
    assert_eq!(fixture.members(CDS), set(&["m@v2", "n@v1"]));
    assert!(fixture.snapshot(CDS).wildcard_known());
    assert_eq!(fixture.seen(CDS, "odcds"), "v1");
    fixture.pass(1_000_000);
    assert_eq!(fixture.renewed, []);
}

#[test]
fn o1_the_rest_of_a_type_is_asked_for_on_a_new_stream_in_the_end() {
    let mut fixture = mixed();
    fixture.leave_for("wild", 659_999);
    assert_eq!(fixture.renewed, []);
    fixture.pass(1);
    let now = fixture.now;
    assert_eq!(fixture.renewed, [(now, Primary)], "the linger time, and ten times more");
    assert_eq!(fixture.members(CDS), set(&[]), "forgotten");
    assert!(!fixture.snapshot(CDS).wildcard_known());
    assert_eq!(fixture.seen(CDS, "odcds"), "v1", "and nothing else");
    assert!(!fixture.mux.wants_secondary(), "names have the primary to themselves");
    let request = fixture.request(Primary);
    assert_eq!(request.resource_names_subscribe, ["odcds"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    fixture.pass(1_000_000);
    assert_eq!(fixture.renewed.len(), 1);
}

/// Names on the primary, the wildcard on the secondary and known.
fn reversed() -> Fixture {
    let mut fixture = Fixture::asking("named", CDS, &["odcds", "m"]);
    fixture.client("wild", CDS, &["*"]);
    fixture.ask_on_secondary();
    fixture.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1").set("n", "v1"));
    fixture.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1").set("m", "v1"));
    fixture.pass(500);
    fixture
}

#[test]
fn o1_a_secondary_on_which_nothing_is_wanted_is_closed() {
    let mut fixture = reversed();
    fixture.leave_for("wild", 59_999);
    assert!(fixture.mux.wants_secondary());
    fixture.pass(1);
    assert!(!fixture.mux.wants_secondary());
    assert_eq!(fixture.requests(Secondary), []);
    fixture.mux.closed(Secondary);
    fixture.pass(10);
    assert_eq!((fixture.members(CDS), fixture.snapshot(CDS).wildcard_known()), (set(&[]), false));
    assert_eq!(fixture.see(CDS, ["odcds", "m"]), ["v1", "v1"]);
    fixture.client("wild", CDS, &["*"]);
    assert!(fixture.mux.wants_secondary());
    fixture.open(Secondary);
    assert!(
        fixture.request(Secondary).resource_names_subscribe.is_empty(),
        "a first request, as to any origin"
    );
}

#[test]
fn o1_a_wildcard_wanted_again_while_its_secondary_closes_is_not_lost() {
    let mut fixture = reversed();
    fixture.leave_for("wild", 60_000);
    // It joins, and the secondary closes before the mux hears of it.
    let of = fixture.cache.of(&CDS.into()).expect("few types");
    let _late = of.join(Subscription::new(true, []), DELTA, &Arc::new(WakeHandle::default()));
    fixture.mux.closed(Secondary);
    fixture.look();
    assert_eq!(fixture.members(CDS), set(&["m@v1", "n@v1"]));
    assert!(fixture.mux.wants_secondary());
    fixture.open(Secondary);
    assert_eq!(fixture.request(Secondary).initial_resource_versions.len(), 2);
}

#[test]
fn r_relay_03_the_views_stay_where_they_are_when_one_is_left() {
    let mut fixture = reversed();
    fixture.leave_for("named", 60_000);
    assert_eq!(sorted(&fixture.request(Primary).resource_names_unsubscribe), ["m", "odcds"]);
    fixture.pass(100_000);
    assert!(fixture.mux.wants_secondary());
    assert_eq!((fixture.requests(Primary), fixture.requests(Secondary)), (Vec::new(), Vec::new()));
    fixture.hear(Secondary, &Answer::of(CDS, "2").set("m", "v2").remove("n"));
    assert_eq!(fixture.members(CDS), set(&["m@v2"]));
}

#[test]
fn r_relay_03_a_lost_secondary_is_resumed_with_its_versions() {
    let mut fixture = mixed();
    fixture.mux.closed(Secondary);
    assert_eq!(fixture.seen(CDS, "odcds"), "v1");
    assert!(fixture.mux.wants_secondary());
    fixture.open(Secondary);
    let request = fixture.request(Secondary);
    assert_eq!(request.resource_names_subscribe, ["odcds"]);
    assert_eq!(fixture.requests(Primary), []);
}

/// The origin never says that a name does not exist.
#[test]
fn o2_the_end_of_a_member_is_an_answer_to_clients_that_asked_for_its_name_meanwhile() {
    let mut fixture = mixed();
    fixture.client("named", CDS, &["odcds", "m"]);
    fixture.pass(10);
    fixture.requests(Secondary);
    fixture.pass(1_000);
    assert_eq!(fixture.seen(CDS, "m"), "v1", "as a member");
    fixture.hear(Primary, &Answer::of(CDS, "2").remove("m").remove("odcds"));
    assert_eq!(fixture.see(CDS, ["m", "odcds"]), ["absent", "v1"]);
    fixture.hear(Secondary, &Answer::of(CDS, "3").set("m", "v2"));
    assert_eq!((fixture.seen(CDS, "m"), fixture.members(CDS)), ("v2".to_owned(), set(&[])));
}

/// go-control-plane ends the stream when it has no cache for a type.
fn ends_stream_for(fixture: &mut Fixture, bad: &str) -> Vec<String> {
    fixture.pass(10);
    let asked: Vec<String> = fixture.requests(Primary).into_iter().map(|request| request.type_url).collect();
    if asked.iter().any(|type_url| type_url == bad) {
        fixture.mux.ended_by_server(fixture.now);
        fixture.close();
        fixture.pass(100);
        fixture.open(Primary);
    }
    asked
}

#[test]
fn o8_a_type_at_which_the_stream_ends_twice_is_asked_for_less_and_less_often() {
    let bad = TypeUrl::from(Kind::Listener);
    let mut fixture = Fixture::asking("a", CDS, &["*"]).heard(&Answer::of(CDS, "1").set("c1", "v1"));
    fixture.client("b", Kind::Listener, &["*"]);
    fixture.pass(10);
    assert_eq!(ends_stream_for(&mut fixture, bad.as_str()), [bad.as_str()]);
    assert_eq!(ends_stream_for(&mut fixture, bad.as_str()).len(), 2);
    // From here on it is asked for once the stream has answered for the other type.
    let clusters = TypeUrl::from(CDS);
    for minutes in [1, 2] {
        assert_eq!(ends_stream_for(&mut fixture, bad.as_str()), [clusters.as_str()]);
        fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
        assert_eq!(ends_stream_for(&mut fixture, bad.as_str()), [bad.as_str()]);
        assert_eq!(ends_stream_for(&mut fixture, bad.as_str()), [clusters.as_str()]);
        fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
        fixture.pass(minutes * 60_000 - 1_000);
        assert_eq!(fixture.requests(Primary), []);
        if minutes == 1 {
            fixture.reconnect();
            fixture.pass(1_000);
        }
    }
    fixture.pass(2_000);
    // The control plane serves it now.
    assert_eq!(fixture.request(Primary).type_url, bad.as_str());
    fixture.hear(Primary, &Answer::of(Kind::Listener, "1").set("l1", "v1"));
    fixture.reconnect();
    assert_eq!(fixture.requests(Primary).len(), 2, "it is as good as any other type");
}

/// A relay that restarts while a client asks for such a type, and is not answered for any before the stream ends.
#[test]
fn o8_where_any_of_several_types_may_end_the_stream_they_are_tried_one_by_one() {
    let bad = TypeUrl::from(Kind::Listener);
    let mut fixture = Fixture::connected();
    for (who, kind) in [("a", CDS), ("b", Kind::Listener), ("c", Kind::Route)] {
        fixture.client(who, kind, if kind == Kind::Route { &["r1"] } else { &["*"] });
    }
    assert_eq!(ends_stream_for(&mut fixture, bad.as_str()).len(), 3);
    assert_eq!(ends_stream_for(&mut fixture, bad.as_str()).len(), 3);
    let mut asked = Vec::new();
    for round in 0..30 {
        let types = ends_stream_for(&mut fixture, bad.as_str());
        let lives = !types.iter().any(|type_url| *type_url == bad.as_str());
        if lives && types.iter().any(|type_url| *type_url == TypeUrl::from(CDS).as_str()) {
            fixture.hear(Primary, &Answer::of(CDS, &round.to_string()).set("c1", "v1"));
        }
        asked.extend(types);
        // Nothing exists of routes, and nobody says so.
        fixture.pass(300);
    }
    let route = TypeUrl::from(Kind::Route);
    assert_eq!(asked.iter().filter(|type_url| **type_url == bad.as_str()).count(), 1, "{asked:?}");
    assert!(asked.iter().any(|type_url| *type_url == route.as_str()), "{asked:?}");
    assert_eq!(fixture.members(CDS).len(), 1);
}

#[test]
fn o8_a_type_that_was_answered_since_is_blamed_no_more() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.client("b", Kind::Listener, &["*"]);
    fixture.pass(10);
    assert_eq!(fixture.requests(Primary).len(), 2);
    fixture.mux.ended_by_server(fixture.now);
    fixture.ask_anew();
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1"));
    fixture.hear(Primary, &Answer::of(Kind::Listener, "1").set("l1", "v1"));
    fixture.leave("b");
    fixture.reconnect();
    assert_eq!(fixture.requests(Primary).len(), 2, "it lingers, and is kept up to date");
}

#[test]
fn o8_streams_on_which_nothing_is_answered_say_nothing_of_a_type() {
    let listeners = TypeUrl::from(Kind::Listener);
    let mut fixture = Fixture::connected();
    fixture.client("a", Kind::Listener, &["l1"]);
    for _ in 0..100 {
        assert_eq!(ends_stream_for(&mut fixture, listeners.as_str()), [listeners.as_str()]);
    }
    // The control plane is ready.
    fixture.pass(10);
    assert_eq!(fixture.request(Primary).type_url, listeners.as_str());
}
