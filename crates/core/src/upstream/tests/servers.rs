//! Several control planes with the same names: versions belong to the one that gave them.

use super::super::ServerId;
use super::*;
use crate::cache::View;
use crate::resource::{Name, Parameters};
use crate::snapshot_content::{Clock, Content, Selection, StoreContent, StoreId, record_of, wildcard_kept};

const A: &str = "http://a";
const B: &str = "http://b";

impl Fixture {
    /// The connection is lost, and one to this server stands.
    fn move_to(&mut self, server: &str) -> DeltaDiscoveryRequest {
        self.close();
        self.mux.connected(&ServerId::from(server));
        self.mux.opened(Primary, self.now);
        self.request(Primary)
    }

    /// The process ends, and the next one starts from a snapshot of its clusters.
    fn restart(&mut self, settings: Settings) {
        let snapshot = self.snapshot(Kind::Cluster);
        let clock = Clock { now: self.now, unix: Duration::from_secs(1_800_000_000) };
        let type_url = TypeUrl::from(Kind::Cluster);
        let record = |name: &Name| {
            let record = record_of(&type_url, &snapshot, name.as_str(), Selection::default(), clock)?;
            Some((name.clone(), record))
        };
        let records = snapshot.entries().filter_map(|entry| record(entry.name())).collect();
        let (completeness, members) = wildcard_kept(&snapshot, self.now);
        let id = StoreId { type_url: type_url.clone(), parameters: Parameters::NONE };
        let content = Content { stores: vec![StoreContent { id, completeness, members, records }] };
        let (from, now) = (self.mux.source().cloned(), self.now);
        *self = Self::with(settings);
        self.now = now;
        self.mux.restore(content, from, clock);
        self.client("envoy", Kind::Cluster, &["*"]);
    }

    /// A client of the wildcard, connected to A, and told of these.
    fn at_a(settings: Settings, names: &[&str], versions: &[(&str, &str)]) -> Self {
        let mut fixture = Self::with(settings);
        fixture.client("envoy", Kind::Cluster, names);
        assert_eq!(fixture.move_to(A).initial_resource_versions.len(), 0);
        let answer = versions
            .iter()
            .fold(Answer::of(Kind::Cluster, "a1"), |all, (name, version)| all.set(name, version));
        fixture.hear(Primary, &answer);
        fixture.pass(10_000);
        fixture
    }
}

fn versions(request: &DeltaDiscoveryRequest) -> Vec<String> {
    let pairs = request.initial_resource_versions.iter();
    let mut pairs: Vec<String> = pairs.map(|(name, version)| format!("{name}@{version}")).collect();
    pairs.sort_unstable();
    pairs
}

#[test]
fn r_up_04_versions_of_one_server_are_not_offered_to_another() {
    let held = [("x", "7"), ("y", "7"), ("z", "7")];
    let mut fixture = Fixture::at_a(Settings::default(), &["*"], &held);
    assert!(versions(&fixture.move_to(B)).is_empty());
    // An equal version, and another content.
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "b1").set_body("x", "7", "of b").set("y", "7"));
    fixture.close();
    // B's own are offered to it, and those of A are not, nor a version that two contents had.
    let again = fixture.move_to(B);
    assert_eq!(versions(&again), ["y@7"], "{again:?}");
    assert!(versions(&fixture.move_to(A)).is_empty());
    assert_eq!(fixture.members(Kind::Cluster).len(), 3, "nothing is gone because the server changed");
}

#[test]
fn versions_are_offered_to_another_server_where_both_give_the_same() {
    let settings = Settings { same_versions: true, ..Settings::default() };
    let mut fixture = Fixture::at_a(settings, &["*"], &[("x", "7"), ("y", "7"), ("z", "7")]);
    assert_eq!(versions(&fixture.move_to(B)).len(), 3);
}

#[test]
fn r_up_08_a_member_that_another_server_lacks_is_gone_once_its_answer_is_whole() {
    for ends in [true, false] {
        let mut fixture = Fixture::at_a(Settings::default(), &["*"], &[("x", "1"), ("y", "1")]);
        fixture.move_to(B);
        fixture.pass(14_000);
        assert_eq!(fixture.members(Kind::Cluster), set(&["x@1", "y@1"]), "B is silent");
        let answer = Answer::of(Kind::Cluster, "b1").set("x", "5");
        fixture.hear(Primary, &if ends { answer.remove(Name::END_MARK) } else { answer });
        fixture.pass(600_000);
        let left: &[&str] = if ends { &["x@5"] } else { &["x@5", "y@1"] };
        assert_eq!(fixture.members(Kind::Cluster), set(left));
    }
}

#[test]
fn a_name_that_another_server_leaves_unanswered_stays() {
    let mut fixture = Fixture::at_a(Settings::default(), &["x", "y"], &[("x", "1"), ("y", "1")]);
    let request = fixture.move_to(B);
    assert_eq!(sorted(&request.resource_names_subscribe), ["x", "y"]);
    assert!(versions(&request).is_empty());
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "b1").set("x", "5"));
    fixture.pass(600_000);
    assert_eq!(fixture.see(Kind::Cluster, ["x", "y"]), ["5", "1"]);
    assert!(fixture.renewed.is_empty(), "B is not asked again and again");
}

#[test]
fn r_up_04_clients_can_tell_versions_of_two_servers_apart() {
    let settings = Settings { first_server: Some(ServerId::from(A)), ..Settings::default() };
    let mut fixture = Fixture::at_a(settings, &["*"], &[("equal", "7"), ("other", "7")]);
    fixture.move_to(B);
    let equal = |fixture: &Fixture| {
        let snapshot = fixture.snapshot(Kind::Cluster);
        Arc::clone(snapshot.held(View::Wildcard, "equal").expect("held"))
    };
    let before = equal(&fixture);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "b1").set("equal", "7").set_body("other", "7", "of b"));
    let members = fixture.members(Kind::Cluster);
    let marked = format!("other@7{}", ServerId::from(B).mark());
    assert_eq!(
        members,
        set(&["equal@7", &*marked]),
        "a client that comes back with 7 is sent the other content"
    );
    assert!(Arc::ptr_eq(&equal(&fixture), &before), "equal content in an equal version is no news");
    // B is told its own version, without the mark.
    let again = fixture.move_to(B);
    let claimed = versions(&again);
    assert_eq!(claimed, ["equal@7", "other@7"]);
    // Equal content in an equal version is no news on the way back either.
    fixture.move_to(A);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "a2").set("equal", "7").set_body("other", "7", "of b"));
    assert_eq!(fixture.members(Kind::Cluster), members);
}

/// The list of servers is another one after the restart.
#[test]
fn r_up_04_versions_of_a_server_that_follows_a_restart_are_told_from_those_of_the_snapshot() {
    let mut fixture = Fixture::at_a(Settings::default(), &["*"], &[("equal", "7"), ("gone", "7")]);
    fixture.restart(Settings::default());
    assert_eq!(fixture.members(Kind::Cluster), set(&["equal@7", "gone@7"]));
    fixture.move_to(B);
    let of_b = Answer::of(Kind::Cluster, "b1").set("equal", "7").remove("gone").set("other", "7");
    fixture.hear(Primary, &of_b);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "b2").set_body("gone", "7", "of b"));
    let mark = ServerId::from(B).mark();
    let [gone, other] = ["gone", "other"].map(|name| format!("{name}@7{mark}"));
    let members = set(&["equal@7", &*gone, &*other]);
    assert_eq!(fixture.members(Kind::Cluster), members, "a client may hold `gone` in version 7 of A");
    // Its versions stay marked: clients may be away for longer than one process runs.
    fixture.pass(10_000);
    fixture.restart(Settings::default());
    assert_eq!(fixture.members(Kind::Cluster), members);
    fixture.move_to(B);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "b3").set("equal", "8"));
    assert!(fixture.members(Kind::Cluster).contains(&*format!("equal@8{mark}")));
}

#[test]
fn after_a_restart_versions_of_the_same_server_are_told_as_they_are() {
    let mut fixture = Fixture::at_a(Settings::default(), &["*"], &[("x", "7")]);
    fixture.restart(Settings::default());
    fixture.move_to(A);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "a2").set("x", "8"));
    assert_eq!(fixture.members(Kind::Cluster), set(&["x@8"]));
}

#[test]
fn versions_are_marked_though_nothing_is_left_of_what_another_server_gave() {
    let mut fixture = Fixture::at_a(Settings::default(), &["*"], &[("x", "7")]);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "a2").remove("x"));
    fixture.pass(10_000);
    fixture.restart(Settings::default());
    fixture.move_to(B);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "b1").set_body("x", "7", "of b"));
    let marked = format!("x@7{}", ServerId::from(B).mark());
    assert_eq!(
        fixture.members(Kind::Cluster),
        set(&[&*marked]),
        "a client may not have heard of the removal"
    );
}
