//! Bounds on the cost of a client: time that grows with what it sends, and memory that does not grow without end.

use std::time::Duration;

use deltafan::cache::{Budget, Cache, Change, Limits, Op, Protocol, View};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{Code, RequestKind};
use deltafan_test_support::fixture::{Fixture, strings, url};

use crate::cost::cpu;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("name-{number}")).collect()
}

/// CPU time far above that of a linear algorithm with names in tens of thousands, and far below that of a quadratic one.
pub(crate) const QUADRATIC: Duration = Duration::from_secs(4);

#[test]
fn many_names_that_are_gone_are_told_in_linear_time() {
    let fixture = Fixture::knowing(&["thing"]);
    let names = names(100_000);
    let mut client = fixture.delta();
    let held: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let start = cpu();
    client.resume(&fixture, "thing", &["*"], &held);
    let mut told = 0;
    while let Some(part) = client.poll(&fixture) {
        told += part.removed.len();
        client.ack(&fixture, &part, &[]);
    }
    let took = cpu() - start;
    assert!(took < QUADRATIC, "{took:?}");
    assert_eq!(told, names.len());
}

#[test]
fn many_absent_names_are_answered_again_in_linear_time() {
    let mut fixture = Fixture::knowing(&["thing"]);
    let names = names(50_000);
    let gone = |name: &String| Op::Remove { view: View::Named, name: name.as_str().into() };
    fixture.apply("thing", Change { ops: names.iter().map(gone).collect(), ..Change::default() });
    let mut client = fixture.delta();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let start = cpu();
    for _ in 0..2 {
        let request = proto::DeltaDiscoveryRequest {
            type_url: url("thing").as_str().to_owned(),
            resource_names_subscribe: strings(&names),
            ..proto::DeltaDiscoveryRequest::default()
        };
        client.on_delta_request(&fixture, request).unwrap();
        let told = client.poll(&fixture).unwrap();
        assert_eq!(told.removed.len(), names.len());
        client.ack(&fixture, &told, &[]);
    }
    let took = cpu() - start;
    assert!(took < QUADRATIC, "{took:?}");
}

#[test]
fn names_that_are_let_go_beside_a_wildcard_do_not_pile_up() {
    let mut fixture = Fixture::knowing(&["thing"]);
    fixture.rules.max_names = 10;
    let mut client = fixture.delta_of("thing", "*");
    client.poll(&fixture).unwrap();
    // The answer is not ACKed, so nothing can be told.
    let request = |add: Vec<String>, end: Vec<String>| proto::DeltaDiscoveryRequest {
        type_url: url("thing").as_str().to_owned(),
        resource_names_subscribe: add,
        resource_names_unsubscribe: end,
        ..proto::DeltaDiscoveryRequest::default()
    };
    let refused = (0..100).any(|round| {
        let names: Vec<String> = (0..5).map(|n| format!("{round}-{n}")).collect();
        client.on_delta_request(&fixture, request(names.clone(), names)).is_err()
    });
    assert!(refused, "it owes answers for more names than a client may have");
}

#[test]
fn a_rejection_that_is_repeated_is_none_of_another_response() {
    let mut fixture = Fixture::knowing(&["cds"]);
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        fixture.origin("cds a:1");
        let mut client = fixture.client(protocol, None);
        match protocol {
            Protocol::Sotw => client.ask(&fixture, "cds", &[]),
            Protocol::Delta => client.change(&fixture, "cds", "*"),
        };
        for version in ["cds a:2", "cds a:3"] {
            let told = client.poll(&fixture).unwrap();
            let is_nack = |heard| matches!(heard, RequestKind::Nack { .. });
            assert!(is_nack(client.nack(&fixture, &told, &[])));
            assert!(!is_nack(client.nack(&fixture, &told, &[])), "each one is logged");
            fixture.origin(version);
        }
    }
}

#[test]
fn a_node_of_a_megabyte_is_refused() {
    let fixture = Fixture::knowing(&["cds"]);
    for field in 0..3 {
        let mut node = proto::Node::default();
        *[&mut node.id, &mut node.cluster, &mut node.user_agent_name][field] = "n".repeat(1 << 20);
        let mut client = fixture.delta();
        client.node = Some(node);
        let request = proto::DeltaDiscoveryRequest {
            type_url: url("cds").as_str().to_owned(),
            ..proto::DeltaDiscoveryRequest::default()
        };
        let refusal = client.on_delta_request(&fixture, request).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidArgument);
        assert!(refusal.message.len() < 200);
    }
}

#[test]
fn a_large_removal_closes_no_client_that_is_up_to_date() {
    let mut fixture = Fixture::with_limits(Limits { tombstones: 4, ..Limits::default() });
    fixture.known("thing");
    let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    let all = |text: &dyn Fn(&String) -> String| names.iter().map(text).collect::<Vec<_>>().join(" ");
    fixture.origin(&format!("thing {}", all(&|name| format!("{name}:1"))));
    let mut client = fixture.delta_of("thing", "*");
    client.acked(&fixture);
    fixture.origin(&format!("thing {}", all(&|name| format!("-{name}"))));
    let told = client.poll(&fixture).unwrap();
    assert_eq!(told.removed.len(), names.len());
    client.ack(&fixture, &told, &[]);
    // The next change forgets them.
    fixture.origin("thing a:1");
    assert_eq!(fixture.cache.of(&url("thing")).unwrap().snapshot().entries().count(), 1 + 3);
    assert_eq!(client.acked(&fixture), ["other a:1"]);
}

#[test]
fn caches_of_one_budget_have_one_bound_and_give_back_what_they_took() {
    let limits = Limits { types: 2, ..Limits::default() };
    let budget = Budget::new(1 << 20);
    let [one, other] = [(); 2].map(|()| Cache::guarded(limits, &budget, None));
    let held = ["example.v1.A", "example.v1.B"].map(|of| one.0.of(&TypeUrl::from(of)).expect("two types"));
    assert!(other.0.of(&TypeUrl::from("example.v1.C")).is_err(), "the other cache has all there are");
    drop((held, one));
    assert!(other.0.of(&TypeUrl::from("example.v1.C")).is_ok());
}
