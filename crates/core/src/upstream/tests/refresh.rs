//! Orders to ask for a resource anew.

use super::*;

impl Fixture {
    /// An operator orders it, and the stream is opened anew.
    fn refresh(&mut self, kind: Kind, name: &str) {
        assert!(self.cache.refresh(&kind.into(), &name.into()), "a client asks for it");
        self.look();
        let before = self.renewed.len();
        self.pass(2_000);
        assert_eq!(self.renewed.len(), before + 1, "one stream");
    }
}

/// Names of which a request tells the versions.
fn claimed(request: &DeltaDiscoveryRequest) -> BTreeSet<String> {
    request.initial_resource_versions.keys().cloned().collect()
}

/// Clients that ask for two names, which are there.
fn named() -> Fixture {
    let mut fixture = Fixture::asking("one", EDS, &["a", "b"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "v1").set("b", "v1"));
    fixture.pass(500);
    fixture
}

/// A client that asks for everything, which is two clusters.
fn wildcard() -> Fixture {
    let mut fixture = Fixture::asking("one", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("a", "v1").set("b", "v1"));
    fixture.pass(500);
    fixture
}

#[test]
fn only_its_version_is_kept_back_and_only_once() {
    for (mut fixture, kind) in [(named(), EDS), (wildcard(), CDS)] {
        fixture.refresh(kind, "b");
        assert_eq!(claimed(&fixture.request(Primary)), set(&["a"]), "{kind:?}");
        assert_eq!(fixture.seen(kind, "b"), "v1", "served meanwhile");
        fixture.hear(Primary, &Answer::of(kind, "1").set("b", "v1"));
        fixture.pass(60_000);
        assert_eq!(fixture.renewed.len(), 1, "{kind:?}: it was answered");
        fixture.reconnect();
        assert_eq!(claimed(&fixture.request(Primary)), set(&["a", "b"]), "{kind:?}");
    }
}

/// An origin that says where its answer ends has said by that that it is gone. The silence of another one says nothing.
#[test]
fn a_resource_that_the_origin_leaves_out_is_gone_if_its_answer_has_an_end() {
    for (mut fixture, kind) in [(named(), EDS), (wildcard(), CDS)] {
        fixture.refresh(kind, "a");
        fixture.requests(Primary);
        fixture.pass(120_000);
        assert_eq!(fixture.seen(kind, "a"), "v1", "{kind:?}: silence is no answer");
        fixture.hear(Primary, &Answer::of(kind, "2").remove(Name::END_MARK));
        assert_ne!(fixture.seen(kind, "a"), "v1", "{kind:?}");
    }
}

#[test]
fn an_order_while_the_origin_is_away_waits_for_it() {
    let mut fixture = named();
    fixture.close();
    assert!(fixture.cache.refresh(&EDS.into(), &"a".into()));
    fixture.look();
    fixture.pass(60_000);
    fixture.open(Primary);
    assert_eq!(claimed(&fixture.request(Primary)), set(&["b"]));
}

#[test]
fn nothing_is_asked_for_that_no_client_asks_for() {
    let mut fixture = named();
    assert!(!fixture.cache.refresh(&EDS.into(), &"c".into()));
    assert!(!fixture.cache.refresh(&CDS.into(), &"a".into()));
    fixture.leave("one");
    assert!(!fixture.cache.refresh(&EDS.into(), &"a".into()), "it lingers");
    assert!(!fixture.cache.has_interest());
}

/// java-control-plane answers no end mark, and a set that is known needs no census.
#[test]
fn an_order_soon_after_a_reconnect_waits_for_no_evidence() {
    let mut fixture = wildcard();
    fixture.answers_inquiries = true;
    fixture.ask_anew();
    fixture.hear(Primary, &Answer::of(CDS, "2").set("a", "v1").set("b", "v1"));
    fixture.pass(1_500);
    fixture.refresh(CDS, "a");
}

#[test]
fn an_order_is_kept_until_it_is_answered() {
    for (mut fixture, kind) in [(named(), EDS), (wildcard(), CDS)] {
        fixture.refresh(kind, "b");
        assert_eq!(claimed(&fixture.request(Primary)), set(&["a"]), "{kind:?}");
        fixture.reconnect();
        assert_eq!(claimed(&fixture.request(Primary)), set(&["a"]), "{kind:?}: it was not answered");
    }
}
