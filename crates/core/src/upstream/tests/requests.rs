//! Requests of the relay: for what, when, and in which form.

use super::*;

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;

#[test]
fn r_up_01_the_node_is_in_the_first_message_of_each_stream_only() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    assert_eq!(rig.request(Primary).node.map(|node| node.id), Some("relay".to_owned()));
    rig.client("b", CDS, &["odcds"]);
    rig.open(Secondary);
    rig.client("c", EDS, &["e"]);
    rig.pass(10);
    assert_eq!(rig.request(Primary).node, None);
    assert!(rig.request(Secondary).node.is_some());
    rig.close();
    rig.open(Primary);
    let requests = rig.requests(Primary);
    assert!(requests[0].node.is_some() && requests[1].node.is_none());
}

#[test]
fn r_up_02_a_new_stream_starts_with_everything_wanted_and_the_versions_held() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.client("b", EDS, &["e1", "e2", "e3", "e4"]);
    rig.pass(10);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v2"));
    rig.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1").set("e2", "").remove("e3"));
    rig.pass(5_500);
    // An ACK that was never taken by the old stream.
    rig.mux.on_message(Primary, Answer::of(EDS, "late").bytes(), rig.now).expect("a response");
    rig.close();
    rig.pass(1000);
    rig.open(Primary);
    let requests = rig.requests(Primary);
    assert!(
        requests.iter().all(|request| request.response_nonce.is_empty()),
        "R-Up-02: nonces are forgotten"
    );
    let [cds, eds] = &requests[..] else { panic!("two types: {requests:?}") };
    assert!(cds.resource_names_subscribe.is_empty(), "R-Up-05");
    assert_eq!(cds.initial_resource_versions, [("c2", "v2")].map(owned).into(), "one is kept back");
    assert_eq!(sorted(&eds.resource_names_subscribe), ["e1", "e2", "e3", "e4"]);
    // R-Up-03, R-Up-17: not what was removed, never came, or has no version of the origin's.
    assert_eq!(eds.initial_resource_versions, [("e1", "v1")].map(owned).into());

    rig.client("c", EDS, &["e5"]);
    rig.pass(20);
    let more = rig.request(Primary);
    assert_eq!(more.resource_names_subscribe, ["e5"]);
    assert!(more.initial_resource_versions.is_empty(), "versions go into the first request only");
}

#[test]
fn r_up_03_a_named_stream_claims_only_resources_that_it_brought_itself() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(CDS, "1").set("member", "v1"));
    rig.pass(500);
    rig.client("b", CDS, &["member", "other"]);
    rig.open(Secondary);
    let request = rig.request(Secondary);
    assert_eq!(sorted(&request.resource_names_subscribe), ["member", "other"]);
    assert!(request.initial_resource_versions.is_empty(), "{request:?}");
    rig.hear(Secondary, &Answer::of(CDS, "2").set("member", "v1").set("other", "v2"));
    rig.close();
    rig.open(Primary);
    rig.open(Secondary);
    assert!(rig.request(Primary).initial_resource_versions.is_empty(), "the only one is kept back");
    let named = rig.request(Secondary).initial_resource_versions;
    assert_eq!(named, [("member", "v1")].map(owned).into());
}

#[test]
fn r_up_05_a_wildcard_alone_is_asked_for_in_the_form_that_old_servers_know() {
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    for _ in 0..2 {
        let request = rig.request(Primary);
        assert_eq!(request.type_url, CDS.url().expect("a known type"));
        assert!(request.resource_names_subscribe.is_empty());
        assert!(request.resource_names_unsubscribe.is_empty());
        rig.close();
        rig.open(Primary);
    }
}

#[test]
fn r_up_06_types_are_asked_for_in_flush_order() {
    let mut rig = Rig::new();
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
        rig.client(who, kind, &["n"]);
    }
    rig.open(Primary);
    let asked: Vec<Kind> =
        rig.requests(Primary).iter().map(|request| Kind::of_url(&request.type_url)).collect();
    assert_eq!(asked, order);
}

#[test]
fn r_up_10_acks_go_before_subscriptions_and_may_carry_them() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &["e1"]);
    rig.requests(Primary);
    rig.pass(100);
    rig.client("b", CDS, &["*"]);
    rig.pass(10);
    rig.client("c", EDS, &["e2"]);
    rig.pass(10);
    rig.mux.on_message(Primary, Answer::of(EDS, "n1").set("e1", "v").bytes(), rig.now).expect("a response");
    rig.mux.on_message(Primary, Answer::of(EDS, "n2").set("e1", "w").bytes(), rig.now).expect("a response");
    let requests = rig.requests(Primary);
    let [first, second, third] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((&*first.response_nonce, &first.resource_names_subscribe[..]), ("n1", &["e2".to_owned()][..]));
    assert_eq!(first.error_detail, None);
    assert_eq!(second.response_nonce, "n2");
    assert_eq!(Kind::of_url(&third.type_url), CDS);
}

#[test]
fn r_up_19_a_name_let_go_and_wanted_again_before_it_was_said_is_subscribed_to_again() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &["e1", "e2"]);
    rig.requests(Primary);
    rig.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    rig.client("a", EDS, &["e2"]);
    rig.pass(60_000);
    assert_eq!(rig.seen(EDS, "e1"), "unknown");
    // Covered by no subscription of ours in the meantime.
    rig.mux.on_message(Primary, Answer::of(EDS, "2").set("e1", "v2").bytes(), rig.now).expect("a response");
    assert_eq!(rig.seen(EDS, "e1"), "unknown");
    rig.client("a", EDS, &["e1", "e2"]);
    rig.pass(10);
    let requests = rig.requests(Primary);
    let subscribed: Vec<&String> = requests.iter().flat_map(|r| &r.resource_names_subscribe).collect();
    assert_eq!(subscribed, ["e1"]);
    assert!(requests.iter().all(|request| request.resource_names_unsubscribe.is_empty()));
}

#[test]
fn r_up_19_a_name_that_was_never_asked_for_is_not_unsubscribed_from() {
    let mut rig = Rig::with(Settings { linger: Duration::ZERO, ..Settings::default() });
    rig.open(Primary);
    rig.client("a", EDS, &["e1"]);
    rig.requests(Primary);
    rig.client("b", EDS, &["e2"]);
    rig.leave("b");
    rig.pass(100);
    assert_eq!(rig.requests(Primary), []);
}

#[test]
fn r_up_20_the_first_change_goes_at_once_and_later_ones_together() {
    let mut rig = Rig::connected();
    rig.client("a", EDS, &["e0"]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["e0"]);
    let who = ["c1", "c2", "c3"];
    for (who, name) in who.into_iter().zip(["e1", "e2", "e3"]) {
        rig.client(who, EDS, &[name]);
        rig.pass(3);
        assert_eq!(rig.requests(Primary), [], "within the tick");
    }
    rig.pass(1);
    assert_eq!(sorted(&rig.request(Primary).resource_names_subscribe), ["e1", "e2", "e3"]);
    rig.pass(50);
    rig.client("d", EDS, &["e4"]);
    assert_eq!(rig.request(Primary).resource_names_subscribe, ["e4"], "idle again: at once");
}

#[test]
fn r_up_20_a_request_is_cut_before_it_is_too_long_for_a_server() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..40_000).map(|n| format!("{n:060}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    rig.client("a", EDS, &names);
    while rig.cache.has_interest() {
        rig.look();
    }
    let all = |rig: &mut Rig| {
        rig.open(Primary);
        let mut requests = rig.requests(Primary);
        assert_eq!(requests.len(), 1, "others are heard between two pieces");
        while rig.mux.next_deadline().is_some_and(|at| at <= rig.now + Duration::from_millis(10)) {
            rig.pass(10);
            requests.extend(rig.requests(Primary));
        }
        let asked: BTreeSet<&String> = requests.iter().flat_map(|r| &r.resource_names_subscribe).collect();
        assert_eq!(asked.len(), names.len());
        requests
    };
    let requests = all(&mut rig);
    assert!(requests.iter().all(|request| request.encoded_len() < 32 << 10), "nothing is held of it");
    rig.hear(Primary, &Answer::of(EDS, "1").set(names[0], "v1"));
    rig.close();
    let requests = all(&mut rig);
    assert!(requests[0].encoded_len() > 900 << 10, "what comes with versions is cut as late as it can be");
    assert!(requests[0].encoded_len() < 2 << 20);
    assert!(requests.iter().skip(1).all(|request| request.encoded_len() < 32 << 10));
}

#[test]
fn r_up_20_names_have_their_turn_though_others_go_on_asking_for_earlier_ones() {
    let mut rig = Rig::connected();
    rig.client("first", EDS, &["e"]);
    rig.requests(Primary);
    let names = |start: &str, count: usize| (0..count).map(|n| format!("{start}{n:060}")).collect::<Vec<_>>();
    let ask = |rig: &mut Rig, who: &'static str, names: &[String]| {
        rig.client(who, EDS, &names.iter().map(String::as_str).collect::<Vec<_>>());
    };
    ask(&mut rig, "many", &names("m", 400));
    rig.client("last", EDS, &["z"]);
    for who in ["a9", "a8", "a7", "a6", "a5", "a4", "a3", "a2", "a1", "a0"] {
        ask(&mut rig, who, &names(who, 400));
        rig.pass(10);
        let asked = rig.requests(Primary).into_iter().flat_map(|request| request.resource_names_subscribe);
        if asked.into_iter().any(|name| name == "z") {
            return;
        }
    }
    panic!("names that come first in the alphabet were asked for again and again");
}

#[test]
fn r_relay_14_a_client_cannot_make_the_relay_ask_for_the_wildcard_by_a_name() {
    let mut rig = Rig::connected();
    let of = rig.cache.of(&CDS.into()).expect("few types");
    let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Untold };
    let names = ["*".into(), "".into()];
    let _client = of.join(Subscription::new(false, names), profile, &Arc::new(WakeHandle::default()));
    rig.look();
    rig.pass(100);
    assert_eq!(rig.requests(Primary), []);
}

fn owned((name, version): (&str, &str)) -> (String, String) {
    (name.to_owned(), version.to_owned())
}

#[test]
fn r_up_02_versions_beyond_one_request_are_told_on_another_stream_where_they_are_in_doubt() {
    const COUNT: usize = 100_000;
    let mut rig = Rig::connected();
    rig.client("a", CDS, &["*"]);
    rig.requests(Primary);
    let name = |number| format!("a-cluster-with-a-name-of-the-usual-length-{number:05}");
    let all = |nonce, count: usize| {
        (0..count).fold(Answer::of(CDS, nonce), |answer, number| answer.set(&name(number), "v1"))
    };
    rig.hear(Primary, &all("1", COUNT));
    rig.pass(5_500);
    rig.close();
    rig.open(Primary);
    let request = rig.request(Primary);
    assert!(request.encoded_len() < 4 << 20, "{} bytes", request.encoded_len());
    let claimed = request.initial_resource_versions.len();
    assert!(claimed > COUNT / 2 && claimed < COUNT, "{claimed} versions");
    // The origin sends what was not claimed, but for the last, which was deleted meanwhile.
    let rest =
        (claimed..COUNT - 1).fold(Answer::of(CDS, "2"), |answer, number| answer.set(&name(number), "v1"));
    rig.hear(Primary, &rest);
    rig.pass(5_500);
    assert_eq!(rig.snapshot(CDS).member_count(), COUNT, "missing once is no evidence");
    assert_eq!(rig.renewed.len(), 1);
    let again = rig.request(Primary);
    assert!(again.initial_resource_versions.contains_key(&name(COUNT - 1)));
    rig.hear(Primary, &Answer::of(CDS, "3").remove(&name(COUNT - 1)));
    assert_eq!(rig.snapshot(CDS).member_count(), COUNT - 1);
}

#[test]
fn r_up_02_names_beyond_the_first_request_are_told_with_their_versions_where_they_are_in_doubt() {
    const COUNT: usize = 30_000;
    let mut rig = Rig::connected();
    let name = |number| format!("endpoints-with-a-name-of-the-usual-length-{number:05}");
    let names: Vec<&'static str> = (0..COUNT).map(|number| &*name(number).leak()).collect();
    rig.client("a", EDS, &names);
    let mut asked = 0;
    while asked < COUNT {
        rig.look();
        rig.pass(10);
        asked += rig.requests(Primary).iter().map(|r| r.resource_names_subscribe.len()).sum::<usize>();
    }
    rig.hear(Primary, &names.iter().fold(Answer::of(EDS, "1"), |answer, name| answer.set(name, "v1")));
    rig.close();
    rig.open(Primary);
    let first = rig.request(Primary);
    let claimed = first.initial_resource_versions.len();
    assert!(claimed > 1000 && claimed < COUNT, "{claimed} versions");
    asked = claimed;
    while asked < COUNT {
        rig.pass(10);
        asked += rig.requests(Primary).iter().map(|r| r.resource_names_subscribe.len()).sum::<usize>();
    }
    let is_claimed = |name: &&str| first.initial_resource_versions.contains_key(*name);
    let dead = *names.last().expect("some");
    let rest = names.iter().filter(|name| !is_claimed(name) && **name != dead);
    rig.hear(Primary, &rest.fold(Answer::of(EDS, "2"), |answer, name| answer.set(name, "v1")));
    rig.pass(5_500);
    assert_eq!(rig.seen(EDS, dead), "v1", "missing once is no evidence");
    assert_eq!(rig.renewed.len(), 1);
    assert!(rig.requests(Primary)[0].initial_resource_versions.contains_key(dead));
    rig.hear(Primary, &Answer::of(EDS, "3").remove(dead));
    assert_eq!(rig.seen(EDS, dead), "absent");
}
