//! How long what nobody wants is kept (R-Relay-16, R-Relay-17).

use super::*;
use crate::cache::{Claim, ClientScope};
use crate::resource::Parameters;

fn fixture() -> Fixture {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.subscribe("b", EDS, &["e1", "e2"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").remove("e2"));
    fixture.pass(500);
    fixture
}

#[test]
fn r_relay_16_an_unwanted_name_is_let_go_after_the_linger_time() {
    let mut fixture = fixture();
    fixture.leave("a");
    fixture.leave_for("b", 59_999);
    assert_eq!(fixture.requests(Primary), []);
    assert_eq!(fixture.members(CDS).len(), 2);
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    fixture.pass(1);
    let requests = fixture.requests(Primary);
    let [eds] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(sorted(&eds.resource_names_unsubscribe), ["e1", "e2"]);
    assert_eq!(fixture.members(CDS).len(), 2, "a wildcard is kept for as long as its stream lives (O1)");
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["unknown", "unknown"]);
}

#[test]
fn r_relay_16_the_names_of_one_client_are_let_go_in_parts() {
    let mut fixture = fixture();
    let names: Vec<String> = (0..2_000).map(|n| format!("n{n}")).collect();
    fixture.client("many", EDS, &names.iter().map(String::as_str).collect::<Vec<_>>());
    fixture.look_at_all();
    fixture.leave("many");
    fixture.look_at_all();
    let wanted = |fixture: &Fixture| {
        fixture.mux.topic_sets[&EDS.into()].topics[&Parameters::NONE].names.wanted().count()
    };
    fixture.now += Duration::from_secs(60);
    let mut before = wanted(&fixture);
    assert_eq!(before, 2_002);
    while fixture.mux.next_deadline().is_some_and(|at| at <= fixture.now) {
        fixture.mux.on_deadline(fixture.now);
        let left = wanted(&fixture);
        assert!(before - left <= 500, "{} at once", before - left);
        before = left;
    }
    assert_eq!(before, 2, "and all of it, before time goes on");
}

#[test]
fn r_relay_16_held_resources_are_kept_while_the_origin_is_away() {
    let mut fixture = fixture();
    fixture.close();
    fixture.leave("a");
    fixture.client("b", EDS, &["e2", "e3"]);
    fixture.client("c", EDS, &["never-answered"]);
    fixture.leave_for("c", 600_000);
    assert_eq!(fixture.members(CDS).len(), 2);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "absent"]);
    assert!(fixture.snapshot(CDS).wildcard_known());
    fixture.open(Primary);
    let requests = fixture.requests(Primary);
    let [_, eds] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(sorted(&eds.resource_names_subscribe), ["e1", "e2", "e3"], "and not what was never known");
    fixture.pass(60_000);
    assert_eq!(fixture.seen(EDS, "e1"), "unknown", "back, the linger ends as ever");
    fixture.close();
    assert_eq!(fixture.members(CDS).len(), 2);
    fixture.open(Primary);
    assert_eq!(fixture.members(CDS), set(&[]), "and a wildcard that nobody wants with its stream");
}

#[test]
fn r_relay_17_a_name_wanted_again_in_time_costs_nothing_upstream() {
    let mut fixture = fixture();
    let generation = fixture.snapshot(EDS).generation();
    for _ in 0..5 {
        fixture.leave("a");
        fixture.leave_for("b", 40_000);
        fixture.client("a", CDS, &["*"]);
        fixture.client("b", EDS, &["e1", "e2"]);
        fixture.client("c", EDS, &["e1"]);
        fixture.pass(40_000);
        fixture.leave("c");
    }
    assert_eq!(fixture.requests(Primary), []);
    assert_eq!(fixture.snapshot(EDS).generation(), generation);
    assert!(fixture.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_16_a_client_of_the_last_moment_keeps_the_name() {
    let mut fixture = fixture();
    fixture.leave("a");
    fixture.leave_for("b", 59_000);
    // They join, and the deadline passes before the wake handle is looked into.
    let join = |kind: Kind, subscription| {
        let of = fixture.cache.of(&kind.into()).expect("few types");
        of.join(subscription, DELTA, &Arc::new(WakeHandle::default()))
    };
    let _late = (join(EDS, Subscription::new(false, ["e1".into()])), join(CDS, Subscription::new(true, [])));
    fixture.pass(1000);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "unknown"]);
    assert_eq!(fixture.members(CDS).len(), 2);
    fixture.look();
    fixture.pass(100_000);
    assert_eq!(fixture.request(Primary).resource_names_unsubscribe, ["e2"]);
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
}

#[test]
fn o1_streams_are_opened_anew_at_a_pace() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").ttl("t", "v1", 1, true));
    // The origin goes on saying that `t` is there, and never sends it again.
    for beat in 0..300 {
        fixture.flush(1_000);
        fixture.hear(Primary, &Answer::of(CDS, &beat.to_string()).set("c1", "v1").ttl("t", "v1", 1, false));
    }
    let apart: Vec<_> = fixture.renewed.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs()).collect();
    assert!((5..12).contains(&fixture.renewed.len()), "{apart:?}");
    assert!(apart.windows(2).all(|pair| pair[1] + 1 >= pair[0]), "{apart:?}");
}

#[test]
fn a_spent_type_leaves_nothing_behind() {
    let mut fixture = fixture();
    fixture.clients.clear();
    fixture.look();
    fixture.pass(60_000);
    fixture.reconnect();
    fixture.pass(10);
    assert_eq!(fixture.requests(Primary), []);
    fixture.close();
    assert!(fixture.mux.topic_sets.is_empty());
    assert_eq!(fixture.mux.next_deadline(), None);
}

#[test]
fn r_relay_17_a_type_that_is_subscribed_to_keeps_its_place_though_it_is_empty() {
    let mut fixture = Fixture::with_limits(Settings::default(), Limits { types: 2, ..Limits::default() });
    fixture.open(Primary);
    fixture.client("a", Kind::Runtime, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(Kind::Runtime, "1"));
    fixture.pass(500);
    fixture.leave("a");
    for number in 0..20 {
        fixture.cache.of(&format!("t/other-{number}").as_str().into()).ok();
    }
    fixture.client("a", Kind::Runtime, &["*"]);
    fixture.pass(500);
    assert!(fixture.snapshot(Kind::Runtime).wildcard_known(), "nobody will say so again");
}

#[test]
fn the_types_of_the_protocol_have_room_whatever_else_is_asked_for() {
    let (cache, _writer) = Cache::new(Limits { types: 2, ..Limits::default() });
    let other = |number: u32| cache.of(&format!("t/other-{number}").as_str().into());
    let held = [other(0), other(1)];
    assert!(held.iter().all(Result::is_ok) && other(2).is_err());
    assert!(Kind::known().all(|kind| cache.of(&kind.into()).is_ok()));
}

#[test]
fn types_that_nobody_asks_for_in_one_group_leave_room_for_those_of_another() {
    let limits = Limits { types: 2, ..Limits::default() };
    let budget = Budget::new(limits.encoded_bytes);
    let mut groups = [(); 2].map(|()| Fixture::within(Settings::default(), limits, &budget));
    groups.iter_mut().for_each(|group| group.open(Primary));
    let [one, other] = &mut groups;
    let made_up = |number: u32| TypeUrl::from(format!("t/made-up-{number}").as_str());
    one.client("a", made_up(0), &["x"]);
    one.client("b", made_up(1), &["x"]);
    one.pass(100);
    one.requests(Primary);
    assert!(other.cache.of(&made_up(2)).is_err(), "all places are taken");
    one.leave("a");
    one.leave("b");
    assert!(other.cache.of(&made_up(2)).is_err(), "the origin is still asked for them");
    one.pass(61_000);
    one.requests(Primary);
    other.client("c", made_up(2), &["x"]);
    other.client("d", made_up(3), &["x"]);
}

#[test]
fn r_relay_16_ever_new_names_make_room_for_each_other() {
    let mut fixture = Fixture::connected_with(Settings { max_lingering: 3, ..Settings::default() });
    fixture.client("a", EDS, &["kept"]);
    let mut subscribed = BTreeSet::new();
    let mut come_and_go = |fixture: &mut Fixture, names: &[&'static str]| {
        for name in names {
            fixture.client("b", EDS, &["kept", name]);
            fixture.leave_for("b", 10);
            for request in fixture.requests(Primary) {
                subscribed.extend(request.resource_names_subscribe);
                request.resource_names_unsubscribe.iter().for_each(|name| assert!(subscribed.remove(name)));
            }
            assert!(
                fixture.mux.topic_sets[&EDS.into()]
                    .topics
                    .values()
                    .all(|topic| topic.names.wanted().count() <= 4)
            );
        }
        subscribed.clone()
    };
    assert_eq!(come_and_go(&mut fixture, &["e1", "e2", "e3"]), set(&["e1", "e2", "e3", "kept"]));
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1").set("kept", "v1"));
    // The linger of a name that comes back in time begins anew.
    assert_eq!(come_and_go(&mut fixture, &["e1", "e4", "e5"]), set(&["e1", "e4", "e5", "kept"]));
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "unknown"]);
    assert_eq!(fixture.mux.counters().crowded_out.get(), 2);

    // While the origin is away, what is known is kept for longer, and not for ever more.
    fixture.close();
    come_and_go(&mut fixture, &["e6", "e7", "e8", "e9"]);
    assert_eq!(fixture.see(EDS, ["kept", "e1"]), ["v1", "unknown"]);
}

#[test]
fn topics_of_parameters_that_nobody_has_are_bounded_and_end() {
    let mut fixture = Fixture::connected_with(Settings { max_lingering_sets: 10, ..Settings::default() });
    let topics = |fixture: &Fixture| {
        fixture.mux.topic_sets.get(&CDS.into()).map_or(0, |topic_set| topic_set.topics.len())
    };
    for number in 0..50 {
        let given = [("k", number.to_string())].into_iter().collect();
        let allotted = ClientScope { given, ..ClientScope::default() };
        let subscription = Subscription::new(true, ["c".into()]);
        let of = fixture
            .cache
            .claim_store(Claim::ANYBODY, &CDS.into(), &subscription.parameter_view(&allotted))
            .expect("nobody holds the others");
        let client = of.join(subscription, DELTA, &Arc::new(WakeHandle::default()));
        fixture.look();
        drop((client, of));
        fixture.look();
        fixture.flush(500);
        // Beside those that linger, what was left so lately that an answer may be under way.
        assert!(topics(&fixture) <= 14, "{} topics after {number}", topics(&fixture));
    }
    assert!(topics(&fixture) >= 10);
    fixture.flush(61_000);
    fixture.flush(2000);
    assert_eq!(topics(&fixture), 0);
}

/// java-control-plane forgets the subscription of a name that is gone.
#[test]
fn o3_a_name_that_is_gone_is_subscribed_to_once_more_and_no_more_than_that() {
    let mut fixture = fixture();
    fixture.deliver(Primary, &Answer::of(EDS, "gone").remove("e1"));
    fixture.pass(10);
    let asked = |fixture: &mut Fixture| -> Vec<String> { fixture.asked() };
    assert_eq!(asked(&mut fixture), ["e1"]);
    fixture.deliver(Primary, &Answer::of(EDS, "again").remove("e1"));
    fixture.pass(10_000);
    assert!(asked(&mut fixture).is_empty(), "an origin that answers it must not be asked for ever");
    assert_eq!((fixture.seen(EDS, "e1"), fixture.renewed.len()), ("absent".to_owned(), 0));
    fixture.hear(Primary, &Answer::of(EDS, "back").set("e1", "v2"));
    assert_eq!(fixture.seen(EDS, "e1"), "v2");
}

/// The two streams are not heard in one order: the member may be newer than what was said of its name.
#[test]
fn r_relay_04_a_member_outlives_its_wildcard_under_a_name_that_was_absent_before_it_came() {
    let mut fixture = Fixture::asking("b", CDS, &["c1"]);
    fixture.client("w", CDS, &["*"]);
    fixture.ask_on_secondary();
    fixture.hear(Primary, &Answer::of(CDS, "1").remove("c1"));
    fixture.hear(Secondary, &Answer::of(CDS, "2").set("c1", "v1"));
    fixture.flush(10_000);
    fixture.leave_for("w", 70_000);
    assert!(!fixture.mux.wants_secondary());
    fixture.mux.closed(Secondary);
    assert_eq!(fixture.seen(CDS, "c1"), "v1");
    fixture.pass(1_000);
    let requests = fixture.requests(Primary);
    assert!(requests.iter().any(|request| request.resource_names_subscribe == ["c1"]), "{requests:?}");
    fixture.hear(Primary, &Answer::of(CDS, "3").remove("c1"));
    assert_eq!(fixture.seen(CDS, "c1"), "absent");
}
