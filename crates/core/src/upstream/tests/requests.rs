//! Requests of the relay: for what, when, and in which form.

use super::*;
use crate::identity::{Peer, Source};
use crate::pool::Tenant;
use crate::resource::Name;

#[test]
fn r_up_01_the_node_is_in_the_first_message_of_each_stream_only() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    assert_eq!(fixture.request(Primary).node.map(|node| node.id), Some("relay".to_owned()));
    fixture.client("b", CDS, &["odcds"]);
    fixture.open(Secondary);
    fixture.client("c", EDS, &["e"]);
    fixture.pass(10);
    assert_eq!(fixture.request(Primary).node, None);
    assert!(fixture.request(Secondary).node.is_some());
    fixture.reconnect();
    let requests = fixture.requests(Primary);
    assert!(requests[0].node.is_some() && requests[1].node.is_none());
}

#[test]
fn r_up_02_a_new_stream_starts_with_everything_wanted_and_the_versions_held() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    fixture.subscribe("b", EDS, &["e1", "e2", "e3", "e4"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v2"));
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1").set("e2", "").remove("e3"));
    fixture.pass(5_500);
    // An ACK that was never taken by the old stream.
    fixture.deliver(Primary, &Answer::of(EDS, "late"));
    fixture.close();
    fixture.pass(1000);
    fixture.open(Primary);
    let requests = fixture.requests(Primary);
    assert!(
        requests.iter().all(|request| request.response_nonce.is_empty()),
        "R-Up-02: nonces are forgotten"
    );
    let [cds, eds] = &requests[..] else { panic!("two types: {requests:?}") };
    assert!(cds.resource_names_subscribe.is_empty(), "R-Up-05");
    assert_eq!(cds.initial_resource_versions, [("c1", "v1"), ("c2", "v2")].map(owned).into());
    assert_eq!(sorted(&eds.resource_names_subscribe), ["e1", "e2", "e3", "e4"]);
    // R-Up-03, R-Up-17: not what was removed, never came, or has no version of the origin's.
    assert_eq!(eds.initial_resource_versions, [("e1", "v1")].map(owned).into());

    fixture.client("c", EDS, &["e5"]);
    fixture.pass(20);
    let more = fixture.request(Primary);
    assert_eq!(more.resource_names_subscribe, ["e5"]);
    assert!(more.initial_resource_versions.is_empty(), "versions go into the first request only");
}

/// A control plane that changes bodies under a version may do so while it is away: it would take the relay for current.
#[test]
fn r_up_02_a_version_that_several_bodies_had_is_not_told() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    let answer = |nonce, body| {
        let answer = Answer::of(CDS, nonce).set("c1", "v1").set("c2", "v1");
        answer.set_body("c3", "v1", body)
    };
    fixture.hear(Primary, &answer("1", "one"));
    fixture.reconnect();
    assert_eq!(fixture.request(Primary).initial_resource_versions.len(), 3);
    fixture.hear(Primary, &answer("2", "two"));
    fixture.reconnect();
    let claimed = fixture.request(Primary).initial_resource_versions;
    assert_eq!(claimed, ["c1", "c2"].map(|name| owned((name, "v1"))).into(), "the third comes in any case");
}

#[test]
fn r_up_03_a_named_stream_claims_only_resources_that_it_brought_itself() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]).heard(&Answer::of(CDS, "1").set("member", "v1"));
    fixture.pass(500);
    fixture.client("b", CDS, &["member", "other"]);
    fixture.open(Secondary);
    let request = fixture.request(Secondary);
    assert_eq!(sorted(&request.resource_names_subscribe), ["member", "other"]);
    assert!(request.initial_resource_versions.is_empty(), "{request:?}");
    fixture.hear(Secondary, &Answer::of(CDS, "2").set("member", "v1").set("other", "v2"));
    fixture.reconnect();
    fixture.open(Secondary);
    assert_eq!(fixture.request(Primary).initial_resource_versions, [("member", "v1")].map(owned).into());
    let named = fixture.request(Secondary).initial_resource_versions;
    assert_eq!(named, [("member", "v1"), ("other", "v2")].map(owned).into());
}

#[test]
fn r_up_05_a_wildcard_alone_is_asked_for_in_the_form_that_old_servers_know() {
    let mut fixture = Fixture::connected();
    fixture.client("a", CDS, &["*"]);
    for _ in 0..2 {
        let request = fixture.request(Primary);
        assert_eq!(request.type_url, CDS.url().expect("a known type"));
        assert!(request.resource_names_subscribe.is_empty());
        assert!(request.resource_names_unsubscribe.is_empty());
        fixture.reconnect();
    }
}

/// Servers that follow R-SotW-14, relays among them, take an empty request for nothing.
#[test]
fn r_up_05_a_wildcard_is_spelled_out_for_types_without_a_legacy_one() {
    for kind in [EDS, Kind::Route, Kind::Secret] {
        let mut fixture = Fixture::connected();
        fixture.client("a", kind, &["*"]);
        for _ in 0..2 {
            assert_eq!(fixture.request(Primary).resource_names_subscribe, ["*"], "{kind:?}");
            fixture.reconnect();
        }
    }
}

#[test]
fn r_up_06_types_are_asked_for_in_flush_order() {
    let mut fixture = Fixture::new();
    let order = [
        CDS,
        EDS,
        Kind::Listener,
        Kind::ScopedRoute,
        Kind::Route,
        Kind::VirtualHost,
        Kind::Secret,
        Kind::ExtensionConfig,
        Kind::Runtime,
    ];
    let who = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for (who, kind) in who.into_iter().zip(order.into_iter().rev()) {
        fixture.client(who, kind, &["n"]);
    }
    fixture.open(Primary);
    let asked: Vec<Kind> =
        fixture.requests(Primary).iter().map(|request| Kind::of_url(&request.type_url)).collect();
    assert_eq!(asked, order);
}

#[test]
fn r_up_10_acks_go_before_subscriptions_and_the_newest_may_carry_them() {
    let mut fixture = Fixture::asking("a", EDS, &["e1"]);
    fixture.pass(100);
    fixture.client("b", CDS, &["*"]);
    fixture.pass(10);
    fixture.client("c", EDS, &["e2"]);
    fixture.pass(10);
    fixture.deliver(Primary, &Answer::of(EDS, "n1").set("e1", "v"));
    fixture.deliver(Primary, &Answer::of(EDS, "n2").set("e1", "w"));
    let requests = fixture.requests(Primary);
    let [first, second, third] = &requests[..] else { panic!("{requests:?}") };
    // istiod, which has sent n2 since, would drop the names in an ACK of n1.
    assert_eq!((&*first.response_nonce, &first.resource_names_subscribe[..]), ("n1", &[][..]));
    assert_eq!(first.error_detail, None);
    assert_eq!(
        (&*second.response_nonce, &second.resource_names_subscribe[..]),
        ("n2", &["e2".to_owned()][..])
    );
    assert_eq!(Kind::of_url(&third.type_url), CDS);
}

/// istiod looks at nothing else in a NACK.
#[test]
fn r_up_10_a_nack_carries_no_subscriptions() {
    let mut fixture = Fixture::asking("a", EDS, &["e1"]);
    fixture.pass(10);
    fixture.client("b", EDS, &["e2"]);
    fixture.pass(10);
    let twice = Answer::of(EDS, "n1").set("e1", "v").set("e1", "w");
    fixture.deliver(Primary, &twice);
    let requests = fixture.requests(Primary);
    let [nack, names] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((nack.response_nonce.as_str(), nack.error_detail.is_some()), ("n1", true));
    assert_eq!(nack.resource_names_subscribe, [""; 0]);
    assert_eq!((names.response_nonce.as_str(), &names.error_detail), ("", &None));
    assert_eq!(names.resource_names_subscribe, ["e2"]);
}

#[test]
fn r_up_19_a_name_let_go_and_wanted_again_before_it_was_said_is_subscribed_to_again() {
    let mut fixture = Fixture::asking("a", EDS, &["e1", "e2"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    fixture.client("a", EDS, &["e2"]);
    fixture.pass(60_000);
    assert_eq!(fixture.seen(EDS, "e1"), "unknown");
    // Covered by no subscription of ours in the meantime.
    fixture.deliver(Primary, &Answer::of(EDS, "2").set("e1", "v2"));
    assert_eq!(fixture.seen(EDS, "e1"), "unknown");
    fixture.client("a", EDS, &["e1", "e2"]);
    fixture.pass(10);
    let requests = fixture.requests(Primary);
    let subscribed: Vec<&String> = requests.iter().flat_map(|r| &r.resource_names_subscribe).collect();
    assert_eq!(subscribed, ["e1"]);
    assert!(requests.iter().all(|request| request.resource_names_unsubscribe.is_empty()));
}

#[test]
fn r_up_19_a_name_that_was_never_asked_for_is_not_unsubscribed_from() {
    let mut fixture = Fixture::lingering(Duration::ZERO);
    fixture.client("a", EDS, &["e1"]);
    fixture.requests(Primary);
    fixture.client("b", EDS, &["e2"]);
    fixture.leave_for("b", 100);
    assert_eq!(fixture.requests(Primary), []);
}

#[test]
fn r_up_20_the_first_change_goes_at_once_and_later_ones_together() {
    let mut fixture = Fixture::connected();
    fixture.client("a", EDS, &["e0"]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, ["e0"]);
    let who = ["c1", "c2", "c3"];
    for (who, name) in who.into_iter().zip(["e1", "e2", "e3"]) {
        fixture.client(who, EDS, &[name]);
        fixture.pass(3);
        assert_eq!(fixture.requests(Primary), [], "within the tick");
    }
    fixture.pass(1);
    assert_eq!(sorted(&fixture.request(Primary).resource_names_subscribe), ["e1", "e2", "e3"]);
    fixture.pass(50);
    fixture.client("d", EDS, &["e4"]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, ["e4"], "idle again: at once");
}

#[test]
fn r_up_20_a_request_is_cut_before_it_is_too_long_for_a_server() {
    let mut fixture = Fixture::new();
    let names: Vec<String> = (0..40_000).map(|n| format!("{n:060}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fixture.client("a", EDS, &names);
    fixture.look_at_all();
    let all = |fixture: &mut Fixture| {
        fixture.open(Primary);
        let mut requests = fixture.requests(Primary);
        assert_eq!(requests.len(), 1, "others are heard between two pieces");
        while fixture.mux.next_deadline().is_some_and(|at| at <= fixture.now + Duration::from_millis(10)) {
            fixture.pass(10);
            requests.extend(fixture.requests(Primary));
        }
        let asked: BTreeSet<&String> = requests.iter().flat_map(|r| &r.resource_names_subscribe).collect();
        assert_eq!(asked.len(), names.len());
        requests
    };
    let requests = all(&mut fixture);
    assert!(requests.iter().all(|request| request.encoded_len() < 32 << 10), "nothing is held of it");
    fixture.hear(Primary, &Answer::of(EDS, "1").set(names[0], "v1"));
    fixture.close();
    let requests = all(&mut fixture);
    assert!(requests[0].encoded_len() > 900 << 10, "what comes with versions is cut as late as it can be");
    assert!(requests[0].encoded_len() < 2 << 20);
    assert!(requests.iter().skip(1).all(|request| request.encoded_len() < 32 << 10));
}

#[test]
fn r_up_20_names_have_their_turn_though_others_go_on_asking_for_earlier_ones() {
    let mut fixture = Fixture::asking("first", EDS, &["e"]);
    let names = |start: &str, count: usize| (0..count).map(|n| format!("{start}{n:060}")).collect::<Vec<_>>();
    let ask = |fixture: &mut Fixture, who: &'static str, names: &[String]| {
        fixture.client(who, EDS, &names.iter().map(String::as_str).collect::<Vec<_>>());
    };
    ask(&mut fixture, "many", &names("m", 400));
    fixture.client("last", EDS, &["z"]);
    for who in ["a9", "a8", "a7", "a6", "a5", "a4", "a3", "a2", "a1", "a0"] {
        ask(&mut fixture, who, &names(who, 400));
        fixture.pass(10);
        let asked =
            fixture.requests(Primary).into_iter().flat_map(|request| request.resource_names_subscribe);
        if asked.into_iter().any(|name| name == "z") {
            return;
        }
    }
    panic!("names that come first in the alphabet were asked for again and again");
}

/// Whether they come in one request or in many small ones.
#[test]
fn r_up_20_each_peer_has_its_turn_in_every_request() {
    for piece in [20_000, 400] {
        let mut fixture = Fixture::asking("first", EDS, &["e"]);
        let peer = |address: u8| {
            let peer = Peer::unproven(Source::of([10, 0, 0, address].into()));
            Arc::new(WakeHandle::of(Some(Tenant::new(&peer, address.into()))))
        };
        let (of, profile) = (fixture.cache.of(&EDS.into()).expect("few types"), DELTA);
        let made_up: Vec<Name> = (0..20_000).map(|n| format!("made-up-{n:060}").into()).collect();
        let mut flood = of.join(Subscription::new(false, []), profile, &peer(1));
        for end in (piece..=made_up.len()).step_by(piece) {
            flood.change(Subscription::new(false, made_up[..end].iter().cloned()));
        }
        for name in ["a", "z"] {
            let _client = of.join(Subscription::new(false, [name.into()]), profile, &peer(2));
            fixture.look();
            fixture.pass(10);
            let request = fixture.request(Primary);
            assert!(request.resource_names_subscribe.iter().any(|asked| asked == name), "{name}, by {piece}");
            assert!(request.resource_names_subscribe.len() > 100, "the others go on");
            assert!(request.encoded_len() < 20 << 10);
        }
    }
}

#[test]
fn r_up_20_a_new_name_does_not_wait_behind_those_that_a_new_stream_repeats() {
    let mut fixture = Fixture::new();
    let names: Vec<String> = (0..10_000).map(|n| format!("{n:060}")).collect();
    fixture.client("many", EDS, &names.iter().map(String::as_str).collect::<Vec<_>>());
    fixture.look_at_all();
    fixture.open(Primary);
    fixture.requests(Primary);
    for name in ["z", "y", "x"] {
        fixture.client(name, EDS, &[name]);
        fixture.pass(10);
        let asked = fixture.request(Primary).resource_names_subscribe;
        assert!(asked.iter().any(|asked| asked == name), "{name}");
        assert!(asked.len() > 100, "the others go on");
    }
}

#[test]
fn r_relay_14_a_client_cannot_make_the_relay_ask_for_the_wildcard_by_a_name() {
    let mut fixture = Fixture::connected();
    let of = fixture.cache.of(&CDS.into()).expect("few types");
    let names = ["*".into(), "".into()];
    let _client = of.join(Subscription::new(false, names), DELTA, &Arc::new(WakeHandle::default()));
    fixture.look();
    fixture.pass(100);
    assert_eq!(fixture.requests(Primary), []);
}

fn owned((name, version): (&str, &str)) -> (String, String) {
    (name.to_owned(), version.to_owned())
}
