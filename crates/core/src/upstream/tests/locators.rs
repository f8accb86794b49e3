//! Dynamic parameters towards the origin (R-DP-*, R-Up-18).

use super::*;
use crate::cache::{Claim, ParameterView};
use crate::proto::{ResourceLocator, ResourceName};
use crate::resource::Parameters;
use crate::upstream::Locators;

fn parameters(text: &str) -> Parameters {
    text.split_whitespace().filter_map(|pair| pair.split_once('=')).collect()
}

/// Constraints: all of these have to hold, `env=prod,v=1`.
fn constraints(rule: &str) -> Vec<u8> {
    let single = |part: &str| {
        let (key, value) = part.split_once('=').expect("key=value");
        field(1, &field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat()))
    };
    field(3, &rule.split(',').map(single).collect::<Vec<_>>().concat())
}

impl Answer {
    pub(super) fn variant(self, name: &str, rule: &str, version: &str) -> Self {
        self.constrained(name, &constraints(rule), version)
    }

    fn constrained(self, name: &str, constraints: &[u8], version: &str) -> Self {
        self.located(name, constraints, version, &[])
    }

    fn variant_ttl(self, name: &str, rule: &str, version: &str, seconds: u8) -> Self {
        self.located(name, &constraints(rule), version, &field(6, &[8, seconds]))
    }

    fn variant_alias(self, name: &str, rule: &str, version: &str, alias: &str) -> Self {
        self.located(name, &constraints(rule), version, &field(4, alias.as_bytes()))
    }

    /// A variant with further fields of its wrapper.
    fn located(self, name: &str, constraints: &[u8], version: &str, further: &[u8]) -> Self {
        let any = field(2, &any(&self.1, version));
        let named = field(8, &[field(1, name.as_bytes()), field(2, constraints)].concat());
        self.raw([&named, &field(1, version.as_bytes()), further, &any].concat())
    }

    fn remove_variant(mut self, name: &str, rule: &str) -> Self {
        let name =
            ResourceName { name: name.to_owned(), dynamic_parameter_constraints: constraints(rule).into() };
        self.0.removed_resource_names.push(name);
        self
    }
}

impl Fixture {
    pub(super) fn client_with(&mut self, who: &'static str, kind: Kind, pairs: &str, names: &[&str]) {
        let of = self.store_with(kind, pairs);
        self.join(who, &of, names, DELTA);
    }

    pub(super) fn subscribe_with(&mut self, who: &'static str, kind: Kind, pairs: &str, names: &[&str]) {
        self.client_with(who, kind, pairs, names);
        self.flush(20);
    }

    pub(super) fn asking_with(who: &'static str, kind: Kind, pairs: &str, names: &[&str]) -> Self {
        let mut fixture = Self::connected();
        fixture.client_with(who, kind, pairs, names);
        fixture.requests(Primary);
        fixture
    }

    /// A relay that asks by plain names.
    fn plain() -> Self {
        Self::connected_with(Settings { locators: Locators::Plain, ..Settings::default() })
    }

    fn store_with(&self, kind: Kind, pairs: &str) -> Arc<TypeCache> {
        let parameter_view = ParameterView::uniform(parameters(pairs));
        self.cache.claim_store(Claim::ANYBODY, &kind.into(), &parameter_view).expect("few parameters")
    }

    fn snapshot_with(&self, kind: Kind, pairs: &str) -> Arc<Snapshot> {
        self.store_with(kind, pairs).snapshot()
    }

    /// Names with parameters that the primary stream subscribes to now.
    fn asked_locators(&mut self) -> Vec<String> {
        let requests = self.requests(Primary);
        let all: Vec<_> = requests.into_iter().flat_map(|r| r.resource_locators_subscribe).collect();
        located(&all)
    }

    pub(super) fn seen_with(&self, kind: Kind, pairs: &str, name: &str) -> String {
        match self.snapshot_with(kind, pairs).by_name(name) {
            VisibleState::Present(resource) => resource.version().to_owned(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    pub(super) fn members_with(&self, kind: Kind, pairs: &str) -> Vec<String> {
        let snapshot = self.snapshot_with(kind, pairs);
        snapshot.members().map(|member| format!("{}:{}", member.name(), member.version())).collect()
    }
}

/// Locators as `name{k=v}`, sorted.
fn located(locators: &[ResourceLocator]) -> Vec<String> {
    let text = |locator: &ResourceLocator| {
        let pairs: Parameters = locator.dynamic_parameters.clone().into_iter().collect();
        format!("{}{{{pairs}}}", locator.name)
    };
    let mut texts: Vec<String> = locators.iter().map(text).collect();
    texts.sort();
    texts
}

/// One client with these parameters, and the first answer to its request.
fn answered(kind: Kind, pairs: &str, names: &[&str], first: impl FnOnce(Answer) -> Answer) -> Fixture {
    Fixture::asking_with("one", kind, pairs, names).heard(&first(Answer::of(kind, "1")))
}

/// The stream ends and another begins after so many milliseconds; its first requests.
fn reconnect(fixture: &mut Fixture, away: u64) -> Vec<DeltaDiscoveryRequest> {
    fixture.close();
    fixture.pass(away);
    fixture.open(Primary);
    fixture.pass(20);
    fixture.requests(Primary)
}

/// `asked` and `let go` of the one request that there is.
fn exchange(fixture: &mut Fixture, stream: StreamId) -> (Vec<String>, Vec<String>) {
    let request = fixture.request(stream);
    (located(&request.resource_locators_subscribe), located(&request.resource_locators_unsubscribe))
}

#[test]
fn r_dp_16_names_are_asked_for_with_the_parameters_of_their_clients() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", EDS, &["a"]);
    fixture.client_with("prod", EDS, "env=prod", &["a"]);
    fixture.client_with("dev", EDS, "env=dev", &["a", "b"]);
    fixture.pass(20);
    let requests = fixture.requests(Primary);
    let plain: Vec<&str> =
        requests.iter().flat_map(|request| &request.resource_names_subscribe).map(String::as_str).collect();
    let all: Vec<ResourceLocator> =
        requests.iter().flat_map(|request| request.resource_locators_subscribe.clone()).collect();
    assert_eq!(plain, ["a"]);
    assert_eq!(located(&all), ["a{env=dev}", "a{env=prod}", "b{env=dev}"]);
    let answer =
        Answer::of(EDS, "1").set("b", "1").variant("a", "env=prod", "1").variant("a", "env=dev", "2");
    fixture.hear(Primary, &answer);
    assert_eq!(fixture.seen_with(EDS, "env=prod", "a"), "1");
    assert_eq!(fixture.seen_with(EDS, "env=dev", "a"), "2");
    assert_eq!(fixture.seen_with(EDS, "env=dev", "b"), "1");
    assert_eq!(fixture.seen(EDS, "a"), "unknown");
    fixture.hear(Primary, &Answer::of(EDS, "2").remove("a"));
    assert_eq!(fixture.seen(EDS, "a"), "absent", "nothing is for those without parameters");
    assert_eq!(fixture.seen_with(EDS, "env=prod", "a"), "1", "another identity");
}

#[test]
fn r_dp_16_a_live_variant_serves_all_that_it_is_for_until_their_own_answer() {
    let mut fixture = answered(EDS, "env=prod v=1", &["a"], |first| first.variant("a", "env=prod", "1"));
    fixture.client_with("two", EDS, "env=prod v=2", &["a"]);
    fixture.pass(50);
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "1");
    assert_eq!(exchange(&mut fixture, Primary).0, ["a{env=prod, v=2}"]);
    fixture.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod", "2"));
    assert_eq!(fixture.seen_with(EDS, "env=prod v=2", "a"), "2", "it is kept up to date");
    fixture.client_with("dev", EDS, "env=dev", &["a"]);
    fixture.pass(50);
    assert_eq!(exchange(&mut fixture, Primary).0, ["a{env=dev}"], "it is not for these");
}

#[test]
fn r_dp_13_a_variant_that_is_replaced_is_one_change_for_each_client_that_sees_it() {
    let mut fixture =
        answered(CDS, "env=prod v=1", &["*"], |first| first.variant("a", "env=prod", "1").set("b", "1"));
    fixture.pass(1_000);
    let before = fixture.snapshot_with(CDS, "env=prod v=1");
    assert!(before.wildcard_known());
    let split = Answer::of(CDS, "2")
        .remove_variant("a", "env=prod")
        .variant("a", "env=prod,v=2", "3")
        .variant("a", "env=prod,v=1", "2");
    fixture.hear(Primary, &split);
    let after = fixture.snapshot_with(CDS, "env=prod v=1");
    assert_eq!(fixture.members_with(CDS, "env=prod v=1"), ["a:2", "b:1"]);
    assert_eq!(after.generation(), before.generation().next(), "one change");
    fixture.hear(Primary, &Answer::of(CDS, "3").remove_variant("a", "env=prod,v=2"));
    assert_eq!(fixture.members_with(CDS, "env=prod v=1"), ["a:2", "b:1"], "a variant of others");
    fixture.hear(Primary, &Answer::of(CDS, "4").remove_variant("a", "env=prod,v=1"));
    assert_eq!(fixture.members_with(CDS, "env=prod v=1"), ["b:1"]);
}

/// A control plane that sends all variants to whoever asks for the wildcard repeats those that others have.
#[test]
fn r_relay_21_an_answer_to_one_set_of_parameters_is_no_resend_to_others() {
    let mut fixture = Fixture::connected();
    fixture.client_with("prod", CDS, "env=prod", &["*"]);
    exchange(&mut fixture, Primary);
    let all = |nonce| {
        let answer = Answer::of(CDS, nonce).variant("a", "env=prod", "1").variant("a", "env=test", "2");
        answer.set("b", "1")
    };
    fixture.hear(Primary, &all("1"));
    fixture.pass(60_000);
    let before = fixture.snapshot_with(CDS, "env=prod").generation();
    fixture.client_with("test", CDS, "env=test", &["*"]);
    fixture.pass(20);
    exchange(&mut fixture, Primary);
    fixture.hear(Primary, &all("2"));
    assert_eq!(fixture.members_with(CDS, "env=test"), ["a:2", "b:1"]);
    assert_eq!(fixture.snapshot_with(CDS, "env=prod").generation(), before);
    fixture.pass(60_000);
    fixture.hear(Primary, &all("3"));
    assert!(fixture.snapshot_with(CDS, "env=prod").generation() > before, "this one is for the clients");
}

#[test]
fn the_wildcard_is_asked_for_with_each_set_of_parameters_and_known_for_each_by_itself() {
    let mut fixture = Fixture::connected();
    fixture.client_with("prod", CDS, "env=prod", &["*"]);
    assert_eq!(exchange(&mut fixture, Primary).0, ["*{env=prod}"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").variant("a", "env=prod", "1").set("b", "1"));
    fixture.pass(1_000);
    fixture.client_with("dev", CDS, "env=dev", &["*"]);
    fixture.pass(20);
    assert_eq!(exchange(&mut fixture, Primary).0, ["*{env=dev}"]);
    fixture.hear(Primary, &Answer::of(CDS, "2").variant("a", "env=prod", "2"));
    fixture.pass(1_000);
    assert!(!fixture.snapshot_with(CDS, "env=dev").wildcard_known(), "what came was for others");
    fixture.hear(Primary, &Answer::of(CDS, "3").variant("a", "env=dev", "3").set("b", "1"));
    fixture.pass(2_000);
    assert!(fixture.snapshot_with(CDS, "env=dev").wildcard_known());
    assert_eq!(fixture.members_with(CDS, "env=dev"), ["a:3", "b:1"]);
    assert_eq!(fixture.members_with(CDS, "env=prod"), ["a:2", "b:1"]);
    fixture.leave_for("dev", 61_000);
    assert_eq!(exchange(&mut fixture, Primary).1, ["*{env=dev}"]);
    assert_eq!(fixture.members_with(CDS, "env=prod"), ["a:2", "b:1"]);
}

#[test]
fn r_dp_02_constraints_that_are_not_understood_cost_that_resource_only() {
    let mut fixture = Fixture::asking_with("prod", EDS, "env=prod", &["a", "b"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").variant("a", "env=prod", "1"));
    let bomb = (0..100).fold(constraints("env=prod"), |inner, _| field(4, &inner));
    for bad in [vec![0xff], field(9, b"x"), field(1, &field(1, b"env")), bomb] {
        let count = fixture.mux.counters().refused_resources.get();
        let answer = Answer::of(EDS, "2").constrained("a", &bad, "2").set("b", "2");
        fixture.hear(Primary, &answer);
        assert_eq!(fixture.seen_with(EDS, "env=prod", "a"), "1", "the old one is kept");
        assert_eq!(
            fixture.seen_with(EDS, "env=prod", "b"),
            "2",
            "the others are taken, and the response ACKed"
        );
        assert_eq!(fixture.mux.counters().refused_resources.get(), count + 1);
    }
}

#[test]
fn r_dp_04_ambiguous_variants_are_counted_and_one_is_seen_whatever_their_order() {
    for backwards in [false, true] {
        let mut fixture = Fixture::asking_with("one", EDS, "env=prod v=1", &["a"]);
        let both = |nonce: &str, version: &str| {
            let answer = Answer::of(EDS, nonce);
            let (v, env) = (format!("v{version}"), format!("env{version}"));
            if backwards {
                answer.variant("a", "v=1", &v).variant("a", "env=prod", &env)
            } else {
                answer.variant("a", "env=prod", &env).variant("a", "v=1", &v)
            }
        };
        fixture.hear(Primary, &both("1", "1"));
        assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "v1", "the lowest encoding");
        assert!(fixture.mux.counters().ambiguous.get() > 0);
        fixture.hear(Primary, &Answer::of(EDS, "2").variant("a", "env=prod", "env2"));
        assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "v1", "what is held is kept");
        fixture.hear(Primary, &Answer::of(EDS, "3").remove_variant("a", "v=1"));
        assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "env2", "the other is still there");
        fixture.hear(Primary, &Answer::of(EDS, "4").variant("a", "v=1", "v4"));
        assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "env2", "also if a lower one comes");
        fixture
            .hear(Primary, &Answer::of(EDS, "5").remove_variant("a", "env=prod").remove_variant("a", "v=1"));
        assert_eq!(fixture.seen_with(EDS, "env=prod v=1", "a"), "absent");
    }
}

#[test]
fn r_dp_05_volunteered_variants_that_are_for_nobody_reach_nobody() {
    let mut fixture = Fixture::connected();
    fixture.client_with("one", EDS, "env=prod", &["a"]);
    fixture.subscribe("plain", EDS, &["a"]);
    let answer = Answer::of(EDS, "1").variant("a", "env=dev", "1").variant("a", "env=test", "2");
    fixture.hear(Primary, &answer);
    assert_eq!(fixture.seen_with(EDS, "env=prod", "a"), "unknown");
    assert_eq!(fixture.seen(EDS, "a"), "unknown");
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 2);
}

#[test]
fn r_up_13_an_identity_twice_is_a_fault_and_a_name_twice_is_not() {
    let nacked = |answer: Answer| {
        let mut fixture = Fixture::asking_with("one", EDS, "v=1", &["a"]);
        fixture.deliver(Primary, &answer);
        fixture.requests(Primary).iter().any(|request| request.error_detail.is_some())
    };
    let of = || Answer::of(EDS, "1");
    assert!(!nacked(of().variant("a", "v=1", "1").variant("a", "v=2", "1").set("a", "1")));
    assert!(!nacked(of().variant("a", "v=1", "1").remove("a")));
    assert!(nacked(of().variant("a", "v=1", "1").variant("a", "v=1,v=1", "2")), "equal once canonical");
    assert!(nacked(of().variant("a", "v=1", "1").remove_variant("a", "v=1")));
}

#[test]
fn r_dp_14_versions_of_variants_are_not_told_after_a_reconnect() {
    let mut fixture = Fixture::connected();
    fixture.client("plain", EDS, &["a", "b"]);
    fixture.subscribe_with("one", EDS, "v=1", &["a"]);
    let not_v = field(4, &field(1, &[field(1, b"v"), vec![26, 0]].concat()));
    fixture.hear(
        Primary,
        &Answer::of(EDS, "1").set("b", "1").constrained("a", &not_v, "1").variant("a", "v=1", "2"),
    );
    assert_eq!(
        (fixture.seen(EDS, "a"), fixture.seen_with(EDS, "v=1", "a")),
        ("1".to_owned(), "2".to_owned())
    );
    fixture.reconnect();
    let request = fixture.request(Primary);
    assert!(request.initial_resource_versions.is_empty(), "claims go by names alone");
    assert_eq!(located(&request.resource_locators_subscribe), ["a{v=1}"]);
    assert_eq!(sorted(&request.resource_names_subscribe), ["a", "b"]);
}

#[test]
fn r_dp_14_a_variant_of_an_earlier_stream_gives_way_to_the_answer_on_a_new_one() {
    for (answer, expected) in
        [(Answer::of(EDS, "2").remove("a"), "absent"), (Answer::of(EDS, "2").set("a", "2"), "2")]
    {
        let mut fixture = Fixture::asking_with("one", EDS, "v=1", &["a"]);
        fixture.hear(Primary, &Answer::of(EDS, "1").variant("a", "v=1", "1"));
        fixture.ask_anew();
        assert_eq!(fixture.seen_with(EDS, "v=1", "a"), "1", "kept until the answer");
        fixture.hear(Primary, &answer);
        assert_eq!(fixture.seen_with(EDS, "v=1", "a"), expected);
    }
}

#[test]
fn r_up_18_an_origin_that_does_not_answer_locators_is_asked_by_plain_names() {
    let mut fixture = Fixture::connected();
    fixture.client_with("one", EDS, "v=1", &["a"]);
    fixture.subscribe_with("star", CDS, "v=1", &["*"]);
    fixture.pass(4_000);
    assert!(fixture.requests(Primary).is_empty());
    fixture.pass(1_500);
    let requests = fixture.requests(Primary);
    assert_eq!(fixture.renewed.len(), 1, "on a new stream: it may have understood the wildcard on this one");
    let eds = requests.iter().find(|r| r.type_url == EDS.url().expect("a url")).expect("endpoints");
    assert_eq!(eds.resource_names_subscribe, ["a"]);
    let cds = requests.iter().find(|r| r.type_url == CDS.url().expect("a url")).expect("clusters");
    assert_eq!(cds.resource_names_subscribe, ["*"]);
    assert_eq!(fixture.mux.counters().locators_ignored.get(), 1);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("a", "1"));
    fixture.hear(Primary, &Answer::of(CDS, "2").set("c", "1"));
    fixture.pass(1_000);
    assert_eq!(fixture.seen_with(EDS, "v=1", "a"), "1");
    assert_eq!(fixture.members_with(CDS, "v=1"), ["c:1"]);
    // A client that comes now shares the plain names, and leaving takes nothing from others.
    fixture.client_with("two", EDS, "v=2", &["a", "b"]);
    fixture.pass(20);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, ["b"], "`a` is answered");
    fixture.leave_for("one", 61_000);
    let requests = fixture.requests(Primary);
    assert!(requests.iter().all(|request| request.resource_names_unsubscribe.is_empty()), "{requests:?}");
    fixture.hear(Primary, &Answer::of(EDS, "3").set("a", "2"));
    assert_eq!(fixture.seen_with(EDS, "v=2", "a"), "2", "it is still subscribed to");
    fixture.reconnect();
    let again = fixture.requests(Primary);
    assert!(
        again.iter().any(|r| !r.resource_locators_subscribe.is_empty()),
        "another connection, another try"
    );
}

#[test]
fn r_up_18_an_origin_that_knows_constraints_may_be_slow() {
    let mut fixture = answered(EDS, "v=1", &["a", "b"], |first| first.variant("a", "v=1", "1"));
    fixture.pass(60_000);
    assert!(fixture.requests(Primary).is_empty());
    let mut fixture = answered(EDS, "v=1", &["a", "b"], |first| first.set("a", "1").remove("b"));
    fixture.pass(60_000);
    assert!(fixture.requests(Primary).is_empty(), "nothing is left unanswered");
}

#[test]
fn r_up_18_plain_asks_by_names_from_the_start() {
    let mut fixture = Fixture::plain();
    fixture.client_with("one", EDS, "v=1", &["a"]);
    assert_eq!(fixture.request(Primary).resource_names_subscribe, ["a"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").variant("a", "v=1", "1").variant("a", "v=2", "2"));
    assert_eq!(fixture.seen_with(EDS, "v=1", "a"), "1", "what comes is matched here");
}

mod away;
mod copies;
mod doubts;
mod sets;
mod variants;
