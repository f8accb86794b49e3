//! R-Relay-03 and O1: wildcard and names of one type never share a stream, and a wildcard is not let go on one that lives.

use super::*;

const CDS: Kind = Kind::Cluster;

/// Wildcard on the primary, a name on the secondary, both answered.
fn mixed() -> Rig {
    let mut rig = Rig::connected();
    rig.client("wild", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("m", "v1"));
    rig.pass(500);
    assert!(!rig.mux.wants_secondary());
    rig.client("named", CDS, &["odcds"]);
    assert!(rig.mux.wants_secondary());
    assert_eq!(rig.requests(Primary), []);
    rig.open(Secondary);
    assert_eq!(rig.request(Secondary).resource_names_subscribe, ["odcds"]);
    rig.hear(Secondary, &Answer::of(CDS, "1").set("odcds", "v1"));
    rig
}

#[test]
fn r_relay_03_a_name_that_is_no_member_is_not_shown_to_the_wildcard() {
    let rig = mixed();
    assert_eq!(rig.members(CDS), set(&["m@v1"]));
    assert_eq!(rig.seen(CDS, "odcds"), "v1");
}

#[test]
fn r_relay_03_each_stream_removes_from_its_own_view() {
    let mut rig = mixed();
    rig.client("named", CDS, &["odcds", "m"]);
    rig.pass(10);
    rig.requests(Secondary);
    rig.hear(Secondary, &Answer::of(CDS, "2").set("m", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "2").remove("m").remove("odcds"));
    assert_eq!(rig.members(CDS), set(&[]));
    assert_eq!((rig.seen(CDS, "m"), rig.seen(CDS, "odcds")), ("v1".to_owned(), "v1".to_owned()));
    rig.hear(Secondary, &Answer::of(CDS, "3").remove("m"));
    assert_eq!(rig.seen(CDS, "m"), "absent");
}

#[test]
fn r_relay_03_the_view_that_comes_second_goes_to_the_secondary() {
    let mut rig = Rig::connected();
    rig.client("named", CDS, &["odcds"]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["odcds"]);
    rig.client("wild", CDS, &["*"]);
    rig.open(Secondary);
    rig.pass(10);
    assert_eq!(rig.requests(Primary), []);
    assert!(rig.request(Secondary).resource_names_subscribe.is_empty());
    rig.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    assert_eq!(rig.members(CDS), set(&["m@v1"]));

    rig.close();
    rig.open(Primary);
    rig.open(Secondary);
    assert!(rig.request(Primary).resource_names_subscribe.is_empty(), "a clean layout after a reconnect");
    assert_eq!(rig.request(Secondary).resource_names_subscribe, ["odcds"]);
}

#[test]
fn o1_a_wildcard_that_nobody_wants_is_kept_while_its_stream_lives() {
    let mut rig = mixed();
    rig.leave("wild");
    rig.pass(120_000);
    assert_eq!(rig.requests(Primary), [], "some origins do not hear that it is let go");
    rig.hear(Primary, &Answer::of(CDS, "2").set("m", "v2").set("n", "v1"));
    rig.client("wild", CDS, &["*"]);
    rig.pass(10);
    assert_eq!(rig.requests(Primary), [], "and some do not answer when it is asked for again");
    assert_eq!(rig.members(CDS), set(&["m@v2", "n@v1"]));
    assert!(rig.snapshot(CDS).wildcard_known());
    assert_eq!(rig.seen(CDS, "odcds"), "v1");
    rig.pass(1_000_000);
    assert_eq!(rig.renewed, []);
}

#[test]
fn o1_the_rest_of_a_type_is_asked_for_on_a_new_stream_in_the_end() {
    let mut rig = mixed();
    rig.leave("wild");
    rig.pass(659_999);
    assert_eq!(rig.renewed, []);
    rig.pass(1);
    let now = rig.now;
    assert_eq!(rig.renewed, [(now, Primary)], "the linger time, and ten times more");
    assert_eq!(rig.members(CDS), set(&[]), "forgotten");
    assert!(!rig.snapshot(CDS).wildcard_known());
    assert_eq!(rig.seen(CDS, "odcds"), "v1", "and nothing else");
    assert!(!rig.mux.wants_secondary(), "names have the primary to themselves");
    let request = rig.request(Primary);
    assert_eq!(request.resource_names_subscribe, ["odcds"]);
    rig.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1"));
    rig.pass(1_000_000);
    assert_eq!(rig.renewed.len(), 1);
}

/// Names on the primary, the wildcard on the secondary and known.
fn reversed() -> Rig {
    let mut rig = Rig::connected();
    rig.client("named", CDS, &["odcds", "m"]);
    rig.requests(Primary);
    rig.client("wild", CDS, &["*"]);
    rig.open(Secondary);
    rig.pass(10);
    rig.requests(Secondary);
    rig.hear(Secondary, &Answer::of(CDS, "1").set("m", "v1").set("n", "v1"));
    rig.hear(Primary, &Answer::of(CDS, "1").set("odcds", "v1").set("m", "v1"));
    rig.pass(500);
    rig
}

#[test]
fn o1_a_secondary_on_which_nothing_is_wanted_is_closed() {
    let mut rig = reversed();
    rig.leave("wild");
    rig.pass(59_999);
    assert!(rig.mux.wants_secondary());
    rig.pass(1);
    assert!(!rig.mux.wants_secondary());
    assert_eq!(rig.requests(Secondary), []);
    rig.mux.closed(Secondary);
    rig.pass(10);
    assert_eq!((rig.members(CDS), rig.snapshot(CDS).wildcard_known()), (set(&[]), false));
    assert_eq!((rig.seen(CDS, "odcds"), rig.seen(CDS, "m")), ("v1".to_owned(), "v1".to_owned()));
    rig.client("wild", CDS, &["*"]);
    assert!(rig.mux.wants_secondary());
    rig.open(Secondary);
    assert!(rig.request(Secondary).resource_names_subscribe.is_empty(), "a first request, as to any origin");
}

#[test]
fn o1_a_wildcard_wanted_again_while_its_secondary_closes_is_not_lost() {
    let mut rig = reversed();
    rig.leave("wild");
    rig.pass(60_000);
    // It joins, and the secondary closes before the mux hears of it.
    let of = rig.cache.of(&CDS.into()).expect("few types");
    let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Untold };
    let _late = of.join(Subscription::new(true, []), profile, &Arc::new(WakeHandle::default()));
    rig.mux.closed(Secondary);
    rig.look();
    assert_eq!(rig.members(CDS), set(&["m@v1", "n@v1"]));
    assert!(rig.mux.wants_secondary());
    rig.open(Secondary);
    assert_eq!(rig.request(Secondary).initial_resource_versions.len(), 1, "one is kept back");
}

#[test]
fn r_relay_03_the_views_stay_where_they_are_when_one_is_left() {
    let mut rig = reversed();
    rig.leave("named");
    rig.pass(60_000);
    assert_eq!(sorted(&rig.request(Primary).resource_names_unsubscribe), ["m", "odcds"]);
    rig.pass(100_000);
    assert!(rig.mux.wants_secondary());
    assert_eq!((rig.requests(Primary), rig.requests(Secondary)), (Vec::new(), Vec::new()));
    rig.hear(Secondary, &Answer::of(CDS, "2").set("m", "v2").remove("n"));
    assert_eq!(rig.members(CDS), set(&["m@v2"]));
}

#[test]
fn r_relay_03_a_lost_secondary_is_resumed_with_its_versions() {
    let mut rig = mixed();
    rig.mux.closed(Secondary);
    assert_eq!(rig.seen(CDS, "odcds"), "v1");
    assert!(rig.mux.wants_secondary());
    rig.open(Secondary);
    let request = rig.request(Secondary);
    assert_eq!(request.resource_names_subscribe, ["odcds"]);
    assert_eq!(rig.requests(Primary), []);
}

/// Of an origin that never says that a name does not exist.
#[test]
fn o2_the_end_of_a_member_is_an_answer_to_clients_that_asked_for_its_name_meanwhile() {
    let mut rig = mixed();
    rig.client("named", CDS, &["odcds", "m"]);
    rig.pass(10);
    rig.requests(Secondary);
    rig.pass(1_000);
    assert_eq!(rig.seen(CDS, "m"), "v1", "as a member");
    rig.hear(Primary, &Answer::of(CDS, "2").remove("m").remove("odcds"));
    assert_eq!((rig.seen(CDS, "m"), rig.seen(CDS, "odcds")), ("absent".to_owned(), "v1".to_owned()));
    rig.hear(Secondary, &Answer::of(CDS, "3").set("m", "v2"));
    assert_eq!((rig.seen(CDS, "m"), rig.members(CDS)), ("v2".to_owned(), set(&[])));
}

#[test]
fn a_link_that_broke_often_puts_off_nothing_that_needs_a_new_stream() {
    let mut rig = Rig::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    for _ in 0..8 {
        rig.open(Primary);
        rig.pass(1_000);
        rig.close();
    }
    rig.open(Primary);
    for round in ["1", "2"] {
        rig.client("one", Kind::Endpoint, &["a"]);
        rig.pass(20);
        assert_eq!(rig.request(Primary).resource_names_subscribe, ["a"]);
        if round == "1" {
            rig.hear(Primary, &Answer::of(Kind::Endpoint, round).set("a", "1"));
            rig.leave("one");
            rig.pass(2_000);
            rig.requests(Primary);
        }
    }
    rig.pass(4_000);
    assert_eq!(rig.renewed.len(), 1, "the origin may believe that it has answered");
}

#[test]
fn a_stream_that_waits_for_its_renewal_has_no_deadline_that_never_passes() {
    let mut rig = Rig::with(Settings { linger: Duration::from_secs(1), ..Settings::default() });
    rig.open(Primary);
    rig.client("other", Kind::Endpoint, &["b"]);
    for _ in 0..20 {
        rig.client("one", Kind::Endpoint, &["a"]);
        rig.pass(20);
        rig.requests(Primary);
        rig.hear(Primary, &Answer::of(Kind::Endpoint, "1").set("a", "1").set("b", "1"));
        rig.leave("one");
        rig.pass(2_000);
        rig.requests(Primary);
        // It is not answered, and the stream is not opened anew at once.
        rig.client("one", Kind::Endpoint, &["a"]);
        rig.pass(20);
        rig.requests(Primary);
        rig.pass(4_000);
        rig.requests(Primary);
    }
    assert!((1..12).contains(&rig.renewed.len()), "{:?}", rig.renewed);
}
