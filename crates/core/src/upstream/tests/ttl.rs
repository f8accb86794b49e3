//! Resources that end by themselves.

use super::*;
use crate::cache::Completeness::{Complete, Settled};
use crate::cache::TtlSupport;

impl Answer {
    /// A resource with a TTL, or its heartbeat.
    pub(super) fn ttl(self, name: &str, version: &str, seconds: u64, with_body: bool) -> Self {
        let body = if with_body { field(2, &any(&self.1, name)) } else { Vec::new() };
        let mut ttl = BytesMut::from(&[8][..]);
        wire::encode_varint(seconds, &mut ttl);
        self.raw([field(3, name.as_bytes()), field(1, version.as_bytes()), body, field(6, &ttl)].concat())
    }
}

impl Fixture {
    /// When the clients of a type last had something to learn: those that are told no times, and those that are.
    fn marks(&self, kind: Kind) -> [crate::cache::Generation; 2] {
        let of = self.cache.of(&kind.into()).expect("few types");
        let clients = self.clients.values().filter(|client| Arc::ptr_eq(client.of(), &of));
        let mark = |told: bool| {
            let clients = clients.clone().filter(|client| client.profile().receives_ttls() == told);
            clients.map(|client| client.cohort().touched()).max().unwrap_or_default()
        };
        [mark(false), mark(true)]
    }

    /// A client that is told times.
    fn timed(&mut self, who: &'static str, kind: Kind, names: &[&str]) {
        let subscription = Subscription::new(false, names.iter().map(|name| (*name).into()));
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Heartbeats };
        let of = self.cache.of(&kind.into()).expect("few types");
        self.clients.insert(who, of.join(subscription, profile, &Arc::new(WakeHandle::default())));
        self.look();
    }
}

fn fixture() -> Fixture {
    Fixture::asking("a", EDS, &["e1", "e2"])
}

#[test]
fn r_ttl_01_a_resource_ends_with_its_ttl_unless_it_comes_again() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").ttl("e1", "v1", 10, true).ttl("e2", "v1", 20, true));
    fixture.pass(9_999);
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    fixture.hear(Primary, &Answer::of(EDS, "2").ttl("e1", "v1", 10, true));
    fixture.pass(9_999);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "v1"]);
    fixture.pass(1);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["absent", "v1"]);
    fixture.pass(1);
    assert_eq!(fixture.seen(EDS, "e2"), "absent");
    assert_eq!(fixture.mux.counters().expired.get(), 2);
}

#[test]
fn r_ttl_01_a_resource_without_a_ttl_ends_the_timer_of_the_one_before() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").ttl("e1", "v1", 10, true).ttl("e2", "v1", 10, true));
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", "v2").remove("e2"));
    fixture.hear(Primary, &Answer::of(EDS, "3").set("e2", "v1"));
    fixture.pass(60_000);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v2", "v1"]);
}

#[test]
fn r_ttl_01_any_ttl_is_read_or_refused() {
    let mut fixture = fixture();
    // Farther than a clock goes, and negative.
    fixture.hear(
        Primary,
        &Answer::of(EDS, "1").ttl("e1", "v1", i64::MAX as u64, true).ttl("e2", "v1", u64::MAX, true),
    );
    fixture.pass(1);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "absent"]);
    let garbage = [field(3, b"e1"), field(6, &[0xff])].concat();
    fixture.deliver(Primary, &Answer::of(EDS, "2").raw(garbage));
    assert!(fixture.requests(Primary).iter().any(|request| request.error_detail.is_some()));
}

#[test]
fn r_ttl_02_a_heartbeat_moves_the_end_or_takes_it_away() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").ttl("e1", "v1", 10, true).ttl("e2", "v1", 10, true));
    fixture.pass(5_000);
    fixture.timed("t", EDS, &["e1", "e2"]);
    let [untold, told] = fixture.marks(EDS);
    let unset = [field(3, b"e2"), field(1, b"v1")].concat();
    fixture.hear(Primary, &Answer::of(EDS, "2").ttl("e1", "v1", 10, false).raw(unset));
    let [untold_after, told_after] = fixture.marks(EDS);
    assert_eq!(untold_after, untold, "nothing that most clients have to learn of");
    assert!(told_after > told, "but those that are told times");
    fixture.pass(9_999);
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    fixture.pass(60_000);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["absent", "v1"]);
}

#[test]
fn r_ttl_09_an_expired_resource_is_removed_for_everybody() {
    let mut fixture = Fixture::asking("w", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").ttl("c1", "v1", 10, true).set("c2", "v1"));
    fixture.pass(10_000);
    assert_eq!(fixture.members(CDS), set(&["c2@v1"]));
    fixture.hear(Primary, &Answer::of(CDS, "2").ttl("c1", "v1", 10, false));
    assert_eq!(fixture.members(CDS), set(&["c2@v1"]), "a heartbeat of what is not held brings nothing");
    fixture.hear(Primary, &Answer::of(CDS, "3").ttl("c1", "v1", 10, true));
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c2@v1"]));
}

#[test]
fn r_ttl_09_an_expired_resource_is_asked_for_again_without_a_version() {
    let mut fixture = fixture();
    fixture.hear(Primary, &Answer::of(EDS, "1").ttl("e1", "v1", 10, true).set("e2", "v1"));
    fixture.pass(10_000);
    let request = fixture.request(Primary);
    assert_eq!(
        (request.resource_names_subscribe, request.initial_resource_versions.len()),
        (vec!["e1".into()], 0)
    );
    fixture.hear(Primary, &Answer::of(EDS, "2").ttl("e1", "v1", 10, true));
    assert_eq!(fixture.seen(EDS, "e1"), "v1");
    assert_eq!(fixture.mux.counters().unsolicited.get(), 0, "an answer");
}

#[test]
fn r_ttl_09_an_end_comes_while_the_origin_is_away_too() {
    let mut fixture = fixture();
    fixture.subscribe("a", EDS, &["e1", "e2", "e3"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").ttl("e1", "v1", 10, true).set("e2", "v1").set("e3", "v1"));
    fixture.close();
    fixture.pass(10_000);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["absent", "v1"]);
    fixture.open(Primary);
    let request = fixture.request(Primary);
    assert_eq!(sorted(&request.resource_names_subscribe), ["e1", "e2", "e3"]);
    assert_eq!(request.initial_resource_versions.len(), 2, "R-Up-03");
}

#[test]
fn r_ttl_09_a_resource_that_is_let_go_has_no_timer() {
    let mut fixture = fixture();
    fixture.subscribe("w", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").ttl("e1", "v1", 86_400, true));
    fixture.hear(Primary, &Answer::of(CDS, "1").ttl("c1", "v1", 86_400, true));
    fixture.leave("a");
    fixture.leave("w");
    fixture.flush(60_000);
    fixture.flush(600_000);
    fixture.pass(1_000);
    assert_eq!(fixture.mux.next_deadline(), None);
    fixture.pass(86_400_000);
    assert_eq!(fixture.mux.counters().expired.get(), 0);
}

/// R-TTL-08: what is unset is there still, be the version there or be none to say, as long as it is the one held.
#[test]
fn r_ttl_08_a_heartbeat_keeps_held_resources_and_nothing_else() {
    let mut fixture = fixture();
    fixture.timed("t", EDS, &["e1", "e2"]);
    let unversioned = field(3, b"e2");
    let any = any(&EDS.into(), "e2@");
    let mut first = Answer::of(EDS, "1").ttl("e1", "v1", 10, true);
    first = first.raw([unversioned.clone(), field(2, &any), field(6, &[8, 10])].concat());
    fixture.hear(Primary, &first);
    let held = fixture.seen(EDS, "e2");
    assert!(held.starts_with("h:"), "R-Up-17: {held}");
    fixture.pass(9_000);
    let [_, before] = fixture.marks(EDS);
    fixture.hear(Primary, &Answer::of(EDS, "2").ttl("e1", "v1", 10, false).ttl("e2", "", 10, false));
    assert!(fixture.marks(EDS)[1] > before);
    fixture.pass(9_999);
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", &held]);
    fixture.hear(Primary, &Answer::of(EDS, "3").ttl("e1", "v0", 10, false).raw(unversioned));
    assert_eq!(fixture.seen(EDS, "e2"), "absent", "R-Up-16: no heartbeat");
    assert_eq!(fixture.seen(EDS, "e1"), "v1", "one of another version, which the origin takes for delivered");
    fixture.pass(1_000);
    assert_eq!(fixture.renewed.len(), 1, "is to be had on another stream");
}

#[test]
fn r_ttl_02_a_resource_that_had_no_ttl_and_gets_none_is_no_change() {
    let mut fixture = fixture();
    fixture.timed("t", EDS, &["e1", "e2"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    let before = fixture.snapshot(EDS).generation();
    fixture.hear(Primary, &Answer::of(EDS, "2").raw([field(3, b"e1"), field(1, b"v1")].concat()));
    assert_eq!(fixture.snapshot(EDS).generation(), before);
    fixture.hear(Primary, &Answer::of(EDS, "3").ttl("e1", "v1", 10, false));
    assert!(fixture.snapshot(EDS).generation() > before, "now it has one");
    assert!(fixture.snapshot(EDS).is_leased("e1") && !fixture.snapshot(EDS).is_leased("e2"));
    fixture.pass(10_000);
    assert_eq!(
        (fixture.seen(EDS, "e1"), fixture.snapshot(EDS).is_leased("e1")),
        ("absent".to_owned(), false)
    );
}

/// A heartbeat that was under way when the time ended: the origin takes the resource for delivered.
#[test]
fn r_ttl_09_a_resource_that_ended_too_early_is_had_back_on_another_stream() {
    let mut fixture = fixture();
    fixture.subscribe("w", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").ttl("c1", "v1", 2, true).set("c2", "v1").set("c3", "v1"));
    fixture.pass(5_500);
    assert_eq!(fixture.members(CDS), set(&["c2@v1", "c3@v1"]));
    fixture.hear(Primary, &Answer::of(CDS, "2").ttl("c1", "v1", 2, false));
    fixture.pass(1_000);
    assert_eq!(fixture.renewed.len(), 1);
    let requests = fixture.requests(Primary);
    let cds = requests.iter().find(|request| request.type_url == TypeUrl::from(CDS).as_str());
    let claimed: BTreeSet<String> = cds.expect("the set").initial_resource_versions.keys().cloned().collect();
    assert_eq!(claimed, set(&["c2", "c3"]), "so that the origin sends the other in full");
}

/// The origin was silent for as long: what had not come yet is as unknown as before.
#[test]
fn r_relay_04_a_set_of_which_all_came_to_its_end_is_not_known_to_be_empty() {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").ttl("c1", "v1", 3, true).ttl("c2", "v1", 3, true));
    fixture.pass(6_000);
    assert_eq!((fixture.snapshot(CDS).member_count(), fixture.snapshot(CDS).completeness()), (0, Settled));
    assert_eq!(fixture.renewed.len(), 1);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "2").remove(Name::END_MARK));
    assert_eq!(fixture.snapshot(CDS).completeness(), Complete, "now it is");
}
