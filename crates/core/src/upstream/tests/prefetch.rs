//! Endpoints that are asked for before a client does.

use super::*;

/// Body of an EDS cluster, whose endpoints have another name if one is given.
fn cluster(name: &str, service: &str) -> String {
    const EDS_TYPE: [u8; 2] = [2 << 3, 3];
    let config = if service.is_empty() { Vec::new() } else { field(3, &field(2, service.as_bytes())) };
    let body = [field(1, name.as_bytes()), EDS_TYPE.to_vec(), config].concat();
    String::from_utf8(body).expect("tags and names are ASCII")
}

impl Answer {
    fn cluster(self, name: &str, version: &str, service: &str) -> Self {
        self.set_body(name, version, &cluster(name, service))
    }
}

/// A relay whose client holds the cluster and endpoints `a`.
fn with(settings: Settings) -> Fixture {
    let mut fixture = Fixture::connected_with(settings);
    fixture.client("a", CDS, &["*"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "1").cluster("a", "1", ""));
    fixture.client("b", EDS, &["a"]);
    fixture.pass(10);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, ["a"]);
    fixture.hear(Primary, &Answer::of(EDS, "2").set("a", "1"));
    fixture.pass(100);
    fixture
}

/// Names that the origin is asked for next, and that it is asked for no more.
fn asks(fixture: &mut Fixture) -> (Vec<String>, Vec<String>) {
    let requests = fixture.requests(Primary);
    let of = requests.into_iter().filter(|request| request.type_url == TypeUrl::from(EDS).as_str());
    of.fold(Default::default(), |(mut more, mut less): (Vec<_>, Vec<_>), request| {
        more.extend(request.resource_names_subscribe);
        less.extend(request.resource_names_unsubscribe);
        (more, less)
    })
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn endpoints_of_new_clusters_are_asked_for_with_the_ack() {
    let mut fixture = with(Settings::default());
    fixture.deliver(
        Primary,
        &Answer::of(CDS, "3").cluster("b", "1", "").cluster("c", "1", "other").set("static", "1"),
    );
    assert_eq!(asks(&mut fixture), (names(&["b", "other"]), names(&[])));
    fixture.hear(Primary, &Answer::of(EDS, "4").set("b", "1").set("other", "1"));
    assert_eq!(fixture.seen(EDS, "b"), "1", "a client that comes now is answered at once");
    fixture.deliver(Primary, &Answer::of(CDS, "5").cluster("b", "2", "").cluster("c", "2", "b"));
    assert_eq!(asks(&mut fixture), Default::default(), "these are asked for already");
    fixture.pass(10);
    fixture.deliver(Primary, &Answer::of(CDS, "6").cluster("c", "3", "third"));
    assert_eq!(asks(&mut fixture), (names(&["third"]), names(&[])), "it has other endpoints");
    assert_eq!(fixture.mux.counters().prefetched.get(), 3);
}

#[test]
fn endpoints_that_nobody_asks_for_are_let_go_and_not_asked_for_again() {
    let mut fixture = with(Settings::default());
    fixture.deliver(Primary, &Answer::of(CDS, "3").cluster("b", "1", "").cluster("c", "1", ""));
    asks(&mut fixture);
    fixture.hear(Primary, &Answer::of(EDS, "4").set("b", "1").set("c", "1"));
    fixture.pass(30_000);
    fixture.client("c", EDS, &["c"]);
    assert_eq!(asks(&mut fixture), Default::default(), "it is subscribed to");
    fixture.pass(31_000);
    assert_eq!(asks(&mut fixture), (names(&[]), names(&["b"])));
    // The origin sends everything again, as after a reconnect.
    fixture.deliver(
        Primary,
        &Answer::of(CDS, "5").cluster("a", "2", "").cluster("b", "2", "").cluster("c", "2", ""),
    );
    assert_eq!(asks(&mut fixture), Default::default(), "no cluster is new");
}

#[test]
fn endpoints_are_asked_for_ahead_where_clients_ask_for_endpoints_only() {
    let clusters = Answer::of(CDS, "3").cluster("b", "1", "");
    let mut fixture = with(Settings {
        tuning: Tuning { prefetch_endpoints: false, ..Tuning::default() },
        ..Settings::default()
    });
    fixture.deliver(Primary, &clusters);
    assert_eq!(asks(&mut fixture), Default::default(), "it is switched off");

    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.deliver(Primary, &clusters);
    assert_eq!(asks(&mut fixture), Default::default(), "nobody asks for endpoints");

    let mut fixture = with(Settings { max_lingering: 2, ..Settings::default() });
    fixture.deliver(Primary, &clusters);
    fixture.deliver(Primary, &Answer::of(CDS, "4").cluster("c", "1", ""));
    assert_eq!(asks(&mut fixture), (names(&["b"]), names(&[])), "there is room for one");
    assert_eq!(fixture.mux.counters().crowded_out.get(), 0);
}

/// It would be unsubscribed from before its answer, and the client that asks for it next met with silence.
#[test]
fn names_asked_for_ahead_are_kept_for_a_while_where_others_are_let_go_at_once() {
    let mut fixture = with(Settings { linger: Duration::ZERO, ..Settings::default() });
    fixture.deliver(Primary, &Answer::of(CDS, "3").cluster("b", "1", ""));
    assert_eq!(asks(&mut fixture), (names(&["b"]), names(&[])));
    fixture.pass(500);
    assert_eq!(asks(&mut fixture), Default::default());
    fixture.client("c", EDS, &["b"]);
    fixture.pass(5_000);
    assert_eq!(asks(&mut fixture), Default::default());
    fixture.leave_for("c", 10);
    assert_eq!(asks(&mut fixture), (names(&[]), names(&["b"])));
}

#[test]
fn no_name_of_a_client_is_let_go_for_names_asked_for_ahead() {
    let mut fixture = with(Settings { max_lingering: 4, ..Settings::default() });
    fixture.client("left", EDS, &["old"]);
    fixture.leave_for("left", 10);
    let mut clusters = Answer::of(CDS, "3");
    for name in ["b", "c", "d", "e"] {
        clusters = clusters.cluster(name, "1", "");
    }
    fixture.deliver(Primary, &clusters);
    fixture.leave_for("b", 10);
    assert_eq!(fixture.mux.counters().crowded_out.get(), 0);
    assert_eq!(asks(&mut fixture), (names(&["old", "b"]), names(&[])));
}

/// Each set of parameters of which names linger takes a topic, and there is a limit of those.
#[test]
fn no_set_of_parameters_is_let_go_for_names_asked_for_ahead() {
    let mut fixture = Fixture::connected_with(Settings { max_lingering_sets: 2, ..Settings::default() });
    fixture.client_with("left", EDS, "env=dev", &["old"]);
    fixture.client_with("clusters", CDS, "env=prod", &["*"]);
    fixture.subscribe_with("endpoints", EDS, "env=prod", &["a"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("old", "1").set("a", "1"));
    let leave = |fixture: &mut Fixture, who| {
        fixture.leave(who);
        fixture.flush(1_000);
    };
    leave(&mut fixture, "left");
    fixture.hear(Primary, &Answer::of(CDS, "2").cluster("b", "1", ""));
    fixture.client_with("leaves", EDS, "env=test", &["other"]);
    leave(&mut fixture, "leaves");
    assert_eq!(fixture.mux.counters().crowded_out.get(), 0);
    fixture.flush(60_000);
    fixture.hear(Primary, &Answer::of(CDS, "3").cluster("c", "1", ""));
    assert_eq!(fixture.mux.counters().prefetched.get(), 1, "there is room again");
}

/// They go by one stream, and clients of many clusters ask for them in parts.
#[test]
fn a_client_does_not_wait_behind_the_endpoints_of_many_new_clusters() {
    let mut fixture = with(Settings::default());
    let new = |at: usize| format!("outbound|80||service-{at}.default.svc.cluster.local");
    let clusters = (0..10_000).fold(Answer::of(CDS, "3"), |answer, at| answer.cluster(&new(at), "1", ""));
    fixture.deliver(Primary, &clusters);
    fixture.client("c", EDS, &["z"]);
    let began = fixture.now;
    while !asks(&mut fixture).0.contains(&"z".to_owned()) {
        fixture.pass(1);
    }
    let waited = fixture.now - began;
    assert!(waited <= 2 * Settings::default().request_interval, "{waited:?}");
}
