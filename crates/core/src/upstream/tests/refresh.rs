//! Resources that an operator has asked for anew.

use super::super::Refresh;
use super::*;

impl Fixture {
    fn refresh(&mut self, kind: Kind, name: Option<&str>) {
        let what = Refresh { type_url: kind.into(), name: name.map(Into::into) };
        self.mux.refresh(&what);
        self.renew();
    }

    /// A client of these, to which `a`, `b` and `c` were sent at version 1.
    fn holding(names: &[&str]) -> Self {
        let mut fixture = Self::connected();
        fixture.client("envoy", Kind::Cluster, names);
        fixture.requests(Primary);
        let answer = Answer::of(Kind::Cluster, "1").set("a", "1").set("b", "1").set("c", "1");
        fixture.hear(Primary, &answer);
        fixture.pass(10_000);
        fixture.renewed.clear();
        fixture
    }

    fn claims(&mut self) -> Vec<String> {
        let mut claims: Vec<String> = self.request(Primary).initial_resource_versions.into_keys().collect();
        claims.sort_unstable();
        claims
    }
}

#[test]
fn the_version_of_one_resource_is_not_told_until_it_comes() {
    for names in [&["a", "b", "c"][..], &["*"]] {
        let mut fixture = Fixture::holding(names);
        fixture.refresh(Kind::Cluster, Some("a"));
        assert_eq!(fixture.renewed.len(), 1, "the stream is opened anew");
        assert_eq!(fixture.claims(), ["b", "c"]);
        // The stream ends before the answer.
        fixture.close();
        fixture.open(Primary);
        assert_eq!(fixture.claims(), ["b", "c"]);
        fixture.hear(Primary, &Answer::of(Kind::Cluster, "2").set_body("a", "1", "another body"));
        let snapshot = fixture.snapshot(Kind::Cluster);
        let body = snapshot.by_name("a").present().unwrap().body().to_vec();
        assert!(String::from_utf8_lossy(&body).contains("another body"), "at the same version");
        fixture.close();
        fixture.open(Primary);
        let claims = fixture.claims();
        assert_eq!(claims.len(), 2, "one is kept back, as ever: {claims:?}");
    }
}

#[test]
fn a_type_is_asked_for_without_any_version() {
    for names in [&["a", "b", "c"][..], &["*"]] {
        let mut fixture = Fixture::holding(names);
        fixture.refresh(Kind::Cluster, None);
        assert!(fixture.claims().is_empty());
        let snapshot = fixture.snapshot(Kind::Cluster);
        assert_eq!(snapshot.held_in_all().resources, 3, "nothing is taken away");
    }
}

/// An answer without it is no evidence: its version is told on the next stream, so that the origin says itself that it is gone.
#[test]
fn a_resource_that_does_not_come_is_asked_for_by_its_version() {
    let mut fixture = Fixture::holding(&["a", "b", "c"]);
    fixture.refresh(Kind::Cluster, Some("a"));
    assert_eq!(fixture.claims(), ["b", "c"]);
    fixture.hear(Primary, &Answer::of(Kind::Cluster, "2").set("b", "2"));
    fixture.pass(60_000);
    assert_eq!(fixture.seen(Kind::Cluster, "a"), "1");
    assert!(fixture.renewed.len() > 1, "{:?}", fixture.renewed);
    let asked = fixture.requests(Primary);
    assert!(asked[0].initial_resource_versions.contains_key("a"), "{asked:?}");
}

#[test]
fn nothing_is_opened_anew_for_what_nobody_asks_for() {
    let mut fixture = Fixture::holding(&["a", "b", "c"]);
    fixture.refresh(Kind::Cluster, Some("d"));
    fixture.refresh(Kind::Endpoint, None);
    fixture.pass(10_000);
    assert!(fixture.renewed.is_empty(), "{:?}", fixture.renewed);
}

#[test]
fn orders_in_a_row_open_few_streams() {
    let mut fixture = Fixture::holding(&["a", "b", "c"]);
    for _ in 0..100 {
        fixture.refresh(Kind::Cluster, Some("a"));
        fixture.pass(100);
    }
    assert!(fixture.renewed.len() <= 5, "{:?}", fixture.renewed);
}
