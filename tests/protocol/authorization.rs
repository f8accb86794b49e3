//! Permissions of a peer, on every transport and in every order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Change, Completeness, Limits, Op, OriginError, Resend, View, VisibleState};
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node, ResourceLocator};
use deltafan::resource::{Pattern, Patterns, Scope};
use deltafan::subscription::{
    Code, Denied, HiddenCounts, Permissions, Poll, PollHistory, PollVerdict, SessionError,
};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};
use deltafan_test_support::wire::{self, variant};

fn patterns(texts: &[&str]) -> Patterns {
    texts.iter().map(|text| Pattern::of_names(text).unwrap()).collect()
}

fn may_see(texts: &[&str]) -> Permissions {
    Permissions { names: Scope::only(patterns(texts)), ..Permissions::default() }
}

fn may_send(key: &str, values: &[&str]) -> Permissions {
    let values: BTreeSet<String> = values.iter().map(|value| (*value).into()).collect();
    Permissions { parameters: BTreeMap::from([(key.into(), values)]), ..Permissions::default() }
}

/// A fixture whose clients, from here on, may no more than this.
fn fixture(permissions: Permissions) -> Fixture {
    let mut fixture = Fixture::knowing(&["cds", "eds", "lds", "rds"]);
    fixture.rules.permissions = permissions;
    fixture
}

/// A delta client of these names, whose stores are filled.
fn filled(fixture: &mut Fixture, short: &str, names: &str) -> Client {
    let client = fixture.delta_of(short, names);
    fixture.fill();
    client
}

fn denied(result: Result<impl std::fmt::Debug, SessionError>) -> Option<Denied> {
    let refusal = result.expect_err("it is refused");
    assert_eq!(refusal.code, Code::PermissionDenied, "{refusal}");
    refusal.denied
}

fn poll(fixture: &Fixture, short: &str, names: &[&str], node: Option<Node>) -> Result<Poll, SessionError> {
    let request = DiscoveryRequest { node, resource_names: strings(names), ..DiscoveryRequest::default() };
    fixture.poll(&PollHistory::default(), short, request, Duration::from_secs(1))
}

/// The names of what a poll is answered with; `None` where it is not answered.
fn answered(fixture: &Fixture, poll: &Poll) -> Option<Vec<String>> {
    match poll.next(fixture.now, fixture.upstream) {
        PollVerdict::Answer(_) => {
            Some(poll.found().resources.iter().map(|found| found.name().to_string()).collect())
        }
        _ => None,
    }
}

#[test]
fn a_refused_name_is_answered_as_absent_and_nobody_upstream_hears_of_it() {
    let mut fixture = fixture(may_see(&["mine/**"]));
    let mut client = fixture.delta_of("eds", "mine/a theirs/b");
    let wanted: Vec<_> = fixture.cache.take_interest();
    let asked: Vec<String> = wanted
        .iter()
        .flat_map(|wanted| wanted.interest.names.iter().map(|(name, _)| name.to_string()))
        .collect();
    assert_eq!(asked, ["mine/a"]);
    wanted.iter().for_each(|wanted| fixture.writer.fill(wanted, fixture.now));
    assert_eq!(client.acked(&fixture), ["eds -theirs/b"]);
    assert_eq!(client.session.take_hidden(), HiddenCounts { names: 1, wildcards: 0 });
    assert_eq!(client.session.take_hidden(), HiddenCounts::default(), "it is counted once");

    // It exists, for others; it comes, changes and goes, and this client hears nothing of it.
    fixture.named("eds mine/a:1 theirs/b:1");
    assert_eq!(client.acked(&fixture), ["eds mine/a:1"]);
    fixture.named("eds theirs/b:2");
    assert_eq!(client.acked(&fixture), Vec::<String>::new());
    fixture.named("eds -theirs/b");
    assert_eq!(client.acked(&fixture), Vec::<String>::new());

    // Asked for once more, the answer is the same.
    fixture.named("eds theirs/b:3");
    client.change(&fixture, "eds", "theirs/b");
    fixture.fill();
    assert_eq!(client.acked(&fixture), ["eds -theirs/b"]);
}

#[test]
fn r_relay_05_a_client_that_may_see_some_waits_for_the_set_as_all_others_do() {
    let mut fixture = Fixture::new();
    fixture.rules.permissions = may_see(&["mine/**"]);
    fixture.origin("cds mine/a:1 theirs/b:1");
    fixture.know("cds", Completeness::Presumed);
    let (mut fresh, mut back) = (fixture.sotw_of("cds", &[]), fixture.sotw());
    back.come_back(&fixture, "cds", &[], "of an earlier stream");
    fixture.fill();
    assert_eq!(fresh.acked(&fixture), ["cds mine/a:1"]);
    assert!(back.told(&fixture).is_empty());
    fixture.origin("cds mine/c:1");
    fixture.known("cds");
    assert_eq!(fresh.acked(&fixture), ["cds mine/a:1 mine/c:1"]);
    assert_eq!(back.told(&fixture), ["cds mine/a:1 mine/c:1"]);

    // A store that is filled later inherits what is known by then.
    fixture.know("cds", Completeness::Presumed);
    fixture.rules.permissions = may_see(&["theirs/**"]);
    let mut other = fixture.sotw_of("cds", &[]);
    fixture.fill();
    assert_eq!(other.acked(&fixture), ["cds theirs/b:1"]);
}

#[test]
fn r_relay_07_that_a_name_may_not_be_seen_says_nothing_of_the_others() {
    let mut fixture = fixture(may_see(&["mine/**"]));
    fixture.upstream = deltafan::subscription::Upstream::Away;
    let mut sotw = fixture.sotw_of("cds", &["mine/a", "theirs/b"]);
    let polled = poll(&fixture, "cds", &["mine/a", "theirs/b"], None).unwrap();
    fixture.fill();
    fixture.after(fixture.rules.settle * 2);
    assert_eq!(sotw.told(&fixture), Vec::<String>::new());
    assert_eq!(answered(&fixture, &polled), None);
    fixture.named("cds mine/a:1");
    assert_eq!(sotw.told(&fixture), ["cds mine/a:1"]);
}

#[test]
fn resources_of_some_never_reach_clients_that_may_see_less() {
    let mut fixture = fixture(Permissions::default());
    fixture.origin("cds mine/a:1 theirs/b:1");
    let mut all = fixture.delta();
    fixture.rules.permissions = may_see(&["mine/**"]);
    let mut some = fixture.delta();
    let mut same = fixture.delta();
    for client in [&mut all, &mut some, &mut same] {
        client.change(&fixture, "cds", "* theirs/b");
    }
    fixture.fill();
    assert_eq!(all.acked(&fixture), ["cds mine/a:1 theirs/b:1"]);
    assert_eq!(some.acked(&fixture), ["cds mine/a:1 -theirs/b"]);
    assert_eq!(same.acked(&fixture), ["cds mine/a:1 -theirs/b"]);
    let before = fixture.cache.encoder().encodes();
    fixture.origin("cds mine/a:2 theirs/b:2");
    assert_eq!(all.acked(&fixture), ["cds mine/a:2 theirs/b:2"]);
    assert_eq!(some.acked(&fixture), ["cds mine/a:2"]);
    assert_eq!(same.acked(&fixture), ["cds mine/a:2"]);
    assert_eq!(
        fixture.cache.encoder().encodes() - before,
        2,
        "those who may see the same share what they are told"
    );
}

#[test]
fn another_name_of_a_hidden_resource_shows_nothing() {
    let mut fixture = fixture(may_see(&["mine/**"]));
    let mut client = filled(&mut fixture, "vhds", "mine/alias");
    let resource = wire::resource(&url("vhds"), "theirs/b", "1", 0);
    let alias = |resource| Op::Alias { name: "mine/alias".into(), resource, resend: Resend::Unsolicited };
    let change = Change { ops: vec![alias(resource)], ..Change::default() };
    fixture.apply("vhds", change);
    assert_eq!(client.acked(&fixture), ["vhds -mine/alias"]);
    // It stands for something else now.
    let resource = wire::resource(&url("vhds"), "mine/c", "1", 0);
    fixture.apply("vhds", Change { ops: vec![alias(resource)], ..Change::default() });
    assert_eq!(client.acked(&fixture), ["vhds mine/c:1"]);
}

#[test]
fn a_collection_shows_the_members_that_may_be_seen() {
    let mut fixture = fixture(may_see(&["xdstp://mine/**", "xdstp://shared/envoy.E/foo/a*"]));
    let mut client = fixture.delta();
    let (shared, theirs) = ("xdstp://shared/envoy.E/foo/*", "xdstp://theirs/envoy.E/foo/*");
    client.change(&fixture, "eds", &format!("{shared} {theirs}"));
    fixture.fill();
    assert_eq!(client.acked(&fixture), [format!("eds -{theirs}")]);
    let text =
        "xdstp://shared/envoy.E/foo/a1:1 xdstp://shared/envoy.E/foo/b1:1 xdstp://theirs/envoy.E/foo/a1:1";
    fixture.named(&format!("eds {text}"));
    assert_eq!(client.acked(&fixture), ["eds xdstp://shared/envoy.E/foo/a1:1"]);
}

#[test]
fn another_spelling_is_the_same_name() {
    let mut fixture = fixture(may_see(&["xdstp://mine/envoy.E/a"]));
    let mut client = fixture.delta();
    // The one name is spelled with an escape; the other hides a segment.
    client.change(&fixture, "eds", "xdstp://mine/envoy.E/%61 xdstp://mine/envoy.E/a%2F..%2Fb");
    fixture.fill();
    assert_eq!(client.acked(&fixture), ["eds -xdstp://mine/envoy.E/a%2F..%2Fb"]);
    fixture.named("eds xdstp://mine/envoy.E/a:1");
    assert_eq!(client.acked(&fixture), ["eds xdstp://mine/envoy.E/%61:1"]);
}

#[test]
fn neither_context_parameters_nor_dot_segments_lead_out_of_a_pattern() {
    let mut fixture = fixture(may_see(&["xdstp://mine/envoy.E/foo/*", "plain/**"]));
    let mut client = fixture.delta();
    let hidden = ["plain/../theirs", "xdstp://mine/envoy.E/foo/..", "xdstp://mine/envoy.E/foo/x?env=prod"];
    client.change(&fixture, "eds", &hidden.join(" "));
    fixture.fill();
    assert_eq!(client.acked(&fixture), [format!("eds -{}", hidden.join(" -"))]);
    fixture.named("eds plain/../theirs:1 xdstp://mine/envoy.E/foo/x?env=prod:1");
    assert_eq!(client.acked(&fixture), [""; 0], "nor if the control plane tells them");
}

#[test]
fn an_error_of_a_hidden_resource_is_not_told() {
    let mut fixture = fixture(may_see(&["mine/**"]));
    let mut client = fixture.client_with(&["xds.config.resource-in-sotw"], deltafan::cache::Protocol::Delta);
    client.change(&fixture, "eds", "mine/a theirs/b");
    fixture.fill();
    client.acked(&fixture);
    let failure = |name: &str| Op::Fail {
        name: name.into(),
        failure: Arc::new(OriginError::new(7, "the owner is somebody")),
        listed: false,
    };
    fixture.apply("eds", Change { ops: vec![failure("theirs/b"), failure("mine/a")], ..Change::default() });
    assert_eq!(client.acked(&fixture), ["eds !mine/a:7"]);
}

#[test]
fn names_that_are_let_go_leave_nothing_behind() {
    let mut fixture = fixture(may_see(&["mine/**"]));
    let _stays = fixture.delta_of("eds", "mine/a");
    let mut client = fixture.delta_of("eds", "mine/a");
    for round in 0..20 {
        let names: Vec<String> = (0..50).map(|at| format!("theirs/{round}-{at}")).collect();
        client.change(&fixture, "eds", &names.join(" "));
        fixture.fill();
        client.acked(&fixture);
        let gone: Vec<String> = names.iter().map(|name| format!("-{name}")).collect();
        client.change(&fixture, "eds", &gone.join(" "));
        fixture.fill();
        client.acked(&fixture);
    }
    let held: usize = fixture.cache.types().iter().map(|of| of.snapshot().entries().count()).sum();
    assert!(held < 10, "{held} names are still known");
}

#[test]
fn a_node_that_may_not_be_claimed_ends_the_stream_whatever_comes_first() {
    let permissions = Permissions {
        node_ids: Some(patterns(&["prod-*"])),
        clusters: Some(patterns(&["edge"])),
        ..Permissions::default()
    };
    let node =
        |id: &str, cluster: &str| Node { id: id.to_owned(), cluster: cluster.to_owned(), ..Node::default() };
    let fixture = fixture(permissions);
    let delta = |client: &mut Client, node: Option<Node>| {
        client.node = node;
        let type_url = url("cds").as_str().to_owned();
        client.on_delta_request(&fixture, DeltaDiscoveryRequest { type_url, ..Default::default() })
    };
    for (id, cluster, expected) in [
        ("dev-1", "edge", Some(Denied::NodeId)),
        ("", "edge", Some(Denied::NodeId)),
        ("prod-1", "core", Some(Denied::Cluster)),
        ("prod-1", "edge", None),
    ] {
        let node = node(id, cluster);
        let mut client = fixture.sotw();
        client.node = Some(node.clone());
        let type_url = url("cds").as_str().to_owned();
        let heard =
            client.on_sotw_request(&fixture, DiscoveryRequest { type_url, ..DiscoveryRequest::default() });
        let polled = poll(&fixture, "cds", &[], Some(node.clone()));
        let changed = delta(&mut fixture.delta(), Some(node));
        if let Some(expected) = expected {
            assert_eq!(denied(heard), Some(expected));
            assert_eq!(denied(changed), Some(expected));
            assert_eq!(denied(polled), Some(expected));
        } else {
            assert!(heard.is_ok() && changed.is_ok() && polled.is_ok());
        }
    }
    assert_eq!(denied(poll(&fixture, "cds", &[], None)), Some(Denied::NodeId), "saying nothing is no way in");
    // The first request says which node a stream is: another node later changes nothing (R-EP-05).
    let mut client = fixture.delta();
    delta(&mut client, Some(node("prod-1", "edge"))).unwrap();
    delta(&mut client, Some(node("dev-1", "core"))).unwrap();
    assert_eq!(client.session.client().unwrap().node_id, "prod-1");
}

#[test]
fn secrets_are_not_had_by_another_url_of_their_type() {
    let mut fixture = fixture(Permissions::default());
    fixture.rules.serve_secrets = false;
    for type_url in [
        url("sds").as_str(),
        "example.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "envoy.extensions.transport_sockets.tls.v3.Secret",
        "type.googleapis.com/envoy.api.v2.auth.Secret",
        "type.googleapis.com//envoy.api.v2.auth.Secret",
    ] {
        let request = DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: strings(&["s"]),
            ..DeltaDiscoveryRequest::default()
        };
        assert_eq!(
            denied(fixture.delta().on_delta_request(&fixture, request)),
            Some(Denied::Secret),
            "{type_url}"
        );
    }
}

fn locate(
    client: &mut Client,
    fixture: &Fixture,
    name: &str,
    pairs: &str,
) -> Result<impl std::fmt::Debug + use<>, SessionError> {
    let parameters = wire::parameters(pairs);
    let dynamic_parameters =
        parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let request = DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_locators_subscribe: vec![ResourceLocator { name: name.to_owned(), dynamic_parameters }],
        ..DeltaDiscoveryRequest::default()
    };
    client.on_delta_request(fixture, request)
}

#[test]
fn r_dp_17_parameters_of_others_can_neither_be_sent_nor_evaded() {
    let mut fixture = fixture(may_send("env", &["prod"]));
    let set = |rule: &str, version: &str| Op::Set {
        view: View::Named,
        resource: variant(&url("eds"), "a", version, rule),
        resend: Resend::Unsolicited,
        lease: None,
    };
    // Another's, and one for all who do not say that they are of production.
    let mut client = fixture.delta();
    assert_eq!(denied(locate(&mut client, &fixture, "a", "env=dev")), Some(Denied::Parameters));
    assert_eq!(denied(locate(&mut fixture.delta(), &fixture, "a", "env=")), Some(Denied::Parameters));
    let mut client = fixture.delta();
    locate(&mut client, &fixture, "a", "v=1").unwrap();
    let mut plain = fixture.sotw_of("eds", &["a"]);
    fixture.fill();
    for (pairs, op) in [("env=prod", set("env=prod", "1")), ("", set("!env=prod", "2"))] {
        let change = Change { ops: vec![op], ..Change::default() };
        fixture
            .writer
            .apply_with_parameters(&url("eds"), &wire::parameters(pairs), change, fixture.now)
            .unwrap();
    }
    let change = Change { ops: vec![set("env=prod", "1")], ..Change::default() };
    fixture
        .writer
        .apply_with_parameters(&url("eds"), &wire::parameters("env=prod v=1"), change, fixture.now)
        .unwrap();
    assert_eq!(client.acked(&fixture).len(), 1, "what it leaves out it is given");
    assert_eq!(plain.acked_with(&fixture, &[("eds", &["a"])]), ["eds a:1"]);

    // Where more than one value is allowed, one has to be said.
    fixture.rules.permissions = may_send("env", &["prod", "canary"]);
    assert_eq!(denied(locate(&mut fixture.delta(), &fixture, "a", "v=1")), Some(Denied::Parameters));
    locate(&mut fixture.delta(), &fixture, "a", "env=canary").unwrap();
    assert_eq!(denied(poll(&fixture, "eds", &["a"], None)), Some(Denied::Parameters));
}

/// State of a client, as it goes by its responses.
#[derive(Default)]
struct Holding {
    names: BTreeSet<String>,
    wildcard: bool,
    held: BTreeMap<String, String>,
}

impl Holding {
    fn change(&mut self, client: &mut Client, fixture: &Fixture, name: &str) {
        match name.strip_prefix('-') {
            Some("*") => self.wildcard = false,
            Some(name) => drop(self.names.remove(name)),
            None if name == "*" => self.wildcard = true,
            None => drop(self.names.insert(name.to_owned())),
        }
        client.change(fixture, "cds", name);
        let (names, wildcard) = (&self.names, self.wildcard);
        self.held.retain(|name, _| wildcard || names.contains(name));
    }

    fn hear(&mut self, client: &mut Client, fixture: &Fixture) {
        while let Some(told) = client.poll(fixture) {
            told.resources.iter().for_each(|(name, text)| drop(self.held.insert(name.clone(), text.clone())));
            told.removed.iter().for_each(|name| drop(self.held.remove(name)));
            client.ack(fixture, &told, &[]);
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    /// Whatever happens, who may see less holds what who may see all holds of it, and nothing else.
    #[test]
    fn a_client_that_may_see_less_holds_its_share_of_the_common_set(
        steps in proptest::collection::vec((0_u8..8, 0_usize..4, 0_u8..4), 1..40),
    ) {
        const NAMES: [&str; 4] = ["mine/a", "mine/b", "theirs/a", "theirs/b"];
        let mut fixture = fixture(Permissions::default());
        let mut all = (fixture.delta(), Holding::default());
        fixture.rules.permissions = may_see(&["mine/**"]);
        let mut some = (fixture.delta(), Holding::default());
        for (what, at, version) in steps {
            let name = NAMES[at];
            match what {
                0 => fixture.origin(&format!("cds {name}:{version}")),
                1 => fixture.origin(&format!("cds -{name}")),
                2 => fixture.named(&format!("cds {name}:{version}")),
                3 => fixture.named(&format!("cds -{name}")),
                _ => {
                    let change = ["*", "-*", name, &format!("-{name}")][usize::from(what) - 4].to_owned();
                    for (client, holding) in [&mut all, &mut some] {
                        holding.change(client, &fixture, &change);
                    }
                }
            }
            if version > 0 {
                fixture.fill();
            }
            for (client, holding) in [&mut all, &mut some] {
                holding.hear(client, &fixture);
            }
        }
        fixture.fill();
        // In the end the origin answers for each name: a client that was told of a member by its name keeps it until then.
        for name in NAMES {
            if matches!(fixture.cache.of(&url("cds")).unwrap().snapshot().by_name(name), VisibleState::Unknown) {
                fixture.named(&format!("cds -{name}"));
            }
        }
        for (client, holding) in [&mut all, &mut some] {
            holding.hear(client, &fixture);
        }
        let expected: BTreeMap<_, _> =
            all.1.held.iter().filter(|(name, _)| name.starts_with("mine/")).collect();
        proptest::prop_assert_eq!(some.1.held.iter().collect::<BTreeMap<_, _>>(), expected);
    }
}

/// A rule's own views are as many as there are rules: clients that choose parameters leave room for them.
#[test]
fn views_that_the_rules_impose_have_room_whatever_clients_choose() {
    let mut fixture = Fixture::with_limits(Limits { parameter_sets: 1, ..Limits::default() });
    let mut greedy = fixture.delta();
    locate(&mut greedy, &fixture, "mine/a", "env=1").unwrap();
    let refusal = locate(&mut fixture.delta(), &fixture, "mine/a", "env=2").err().unwrap();
    assert_eq!(refusal.code, Code::ResourceExhausted);
    for permissions in [may_see(&["mine/**"]), may_send("env", &["prod"])] {
        fixture.rules.permissions = permissions;
        fixture.delta().change(&fixture, "eds", "mine/a");
    }
    // A parameter that is imposed on a client has room, one that it chooses has none.
    assert!(locate(&mut fixture.delta(), &fixture, "mine/a", "env=prod").is_ok());
    fixture.rules.permissions = may_send("env", &["prod", "test"]);
    let refusal = locate(&mut fixture.delta(), &fixture, "mine/a", "env=test").err().unwrap();
    assert_eq!(refusal.code, Code::ResourceExhausted);
}

/// A rule imposes a view, and a client chooses the types all the same.
#[test]
fn made_up_types_are_bounded_whatever_the_rules_impose() {
    let mut fixture = Fixture::with_limits(Limits { types: 5, ..Limits::default() });
    fixture.rules.permissions = may_send("env", &["prod"]);
    let asked = |number: u32| DeltaDiscoveryRequest {
        type_url: format!("t/{number}"),
        resource_names_subscribe: strings(&["a"]),
        ..DeltaDiscoveryRequest::default()
    };
    let mut client = fixture.delta();
    assert!((0..5).all(|number| client.on_delta_request(&fixture, asked(number)).is_ok()));
    assert_eq!(client.on_delta_request(&fixture, asked(5)).unwrap_err().code, Code::ResourceExhausted);
    drop(client);
    fixture.cache.take_interest();
    assert!(fixture.delta().on_delta_request(&fixture, asked(6)).is_ok(), "what nobody uses makes room");
}
