//! Clients that look on: they are told what is held for others, and nothing is asked upstream because of them.

use deltafan::cache::{Interest, Protocol};
use deltafan::limit::Limit;
use deltafan::proto::DeltaDiscoveryRequest;
use deltafan::resource::{Name, Pattern, Patterns, Scope};
use deltafan::subscription::{Code, Denied, NextStep, OBSERVER, Permissions};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};

fn observer(fixture: &Fixture, protocol: Protocol) -> Client {
    fixture.client_with(&[OBSERVER], protocol)
}

/// Names to be asked upstream now, without those that are not.
fn interest(fixture: &Fixture) -> Vec<Interest> {
    let interest = fixture.cache.take_interest().into_iter().map(|wanted| wanted.interest);
    interest.filter(|interest| interest.wildcard || !interest.names.is_empty()).collect()
}

fn wanted(names: &[(&str, bool)]) -> Vec<Interest> {
    let names = names.iter().map(|(name, is_wanted)| (Name::from(*name), *is_wanted)).collect();
    vec![Interest { wildcard: false, names, proof: false, refreshed: Vec::new() }]
}

#[test]
fn an_observer_of_a_name_that_nobody_asks_for_is_told_so_in_a_moment() {
    for names in ["*", "e", "known e"] {
        let mut fixture = Fixture::new().with_named("eds known:1");
        let mut observer = observer(&fixture, Protocol::Delta);
        observer.change(&fixture, "eds", names);
        let told = observer.acked(&fixture);
        assert_eq!(told.is_empty(), names != "known e", "what is held is told first: {told:?}");
        let NextStep::Wait(Some(until)) = observer.next(&fixture) else {
            panic!("it waits for what is on its way")
        };
        fixture.now = until;
        let NextStep::Close(refusal) = observer.next(&fixture) else {
            panic!("{names}: it would wait for ever")
        };
        assert_eq!(refusal.code, Code::Unavailable);
        assert!(refusal.message.contains("no client of it asks for it"), "{refusal}");
        assert_eq!(interest(&fixture), []);
    }
}

#[test]
fn names_of_clients_are_told_upstream_though_an_observer_looks_on() {
    let fixture = Fixture::new();
    let mut observer = observer(&fixture, Protocol::Delta);
    observer.change(&fixture, "eds", "e");
    assert_eq!(interest(&fixture), []);
    let mut client = fixture.delta_of("eds", "e");
    assert_eq!(interest(&fixture), wanted(&[("e", true)]), "the first client is the first");
    client.change(&fixture, "eds", "-e");
    assert_eq!(interest(&fixture), wanted(&[("e", false)]), "the last one is the last");
    observer.change(&fixture, "eds", "f -e");
    client.change(&fixture, "eds", "*");
    let all = Interest { wildcard: true, names: Vec::new(), proof: false, refreshed: Vec::new() };
    assert_eq!(interest(&fixture), [all]);
    assert_eq!(interest(&fixture), []);
    drop(client);
    let nothing = fixture.cache.take_interest();
    assert!(nothing.iter().all(|wanted| !wanted.interest.wildcard), "{nothing:?}");
    observer.change(&fixture, "eds", "*");
    drop(observer);
    assert!(fixture.cache.take_interest().is_empty(), "nobody is even woken");
}

/// Its view is filled from what is held for others, as that of a client with the same rights is.
#[test]
fn an_observer_that_may_not_see_all_sees_its_part() {
    for names in ["*", "web hidden"] {
        let mut fixture = Fixture::knowing(&["cds"]);
        let (_all, _one) = (fixture.delta_of("cds", "*"), fixture.delta_of("cds", "web hidden"));
        fixture.fill();
        fixture.origin("cds web:1 other:1");
        fixture.named("cds web:1 hidden:1");
        let scope = Scope::only(Patterns::from_iter([Pattern::of_names("web").unwrap()]));
        fixture.rules.permissions = Permissions { names: scope, ..Permissions::default() };
        let mut observer = observer(&fixture, Protocol::Delta);
        observer.change(&fixture, "cds", names);
        for wanted in fixture.cache.take_interest() {
            let as_it_was: Vec<_> = (names != "*").then(|| ("web".into(), true)).into_iter().collect();
            let as_it_was =
                Interest { wildcard: true, names: as_it_was, proof: false, refreshed: Vec::new() };
            assert_eq!(wanted.interest, as_it_was);
            fixture.writer.fill(&wanted, fixture.now);
        }
        let expected = if names == "*" { "cds web:1" } else { "cds web:1 -hidden" };
        assert_eq!(observer.acked(&fixture), [expected]);
        fixture.origin("cds web:2 other:2");
        fixture.named("cds web:2 hidden:2");
        assert_eq!(observer.acked(&fixture), ["cds web:2"]);
    }
}

#[test]
fn an_observer_has_the_rights_and_the_limits_of_any_client() {
    let mut fixture = Fixture::knowing(&["cds"]);
    fixture.rules.serve_secrets = false;
    fixture.rules.max_names = 1;
    let refused = |fixture: &Fixture, short: &str, names: &[&str]| {
        let request = DeltaDiscoveryRequest {
            type_url: url(short).as_str().to_owned(),
            resource_names_subscribe: strings(names),
            ..DeltaDiscoveryRequest::default()
        };
        observer(fixture, Protocol::Delta).on_delta_request(fixture, request).expect_err("it is refused")
    };
    assert_eq!(refused(&fixture, "sds", &["s"]).denied, Some(Denied::Secret));
    assert_eq!(refused(&fixture, "cds", &["a", "b"]).limit, Some(Limit::Names));
    fixture.rules.permissions = Permissions::nothing();
    assert_eq!(refused(&fixture, "cds", &["a"]).code, Code::PermissionDenied);
}

#[test]
fn where_looking_on_is_not_offered_the_marker_means_nothing() {
    let mut fixture = Fixture::new();
    fixture.rules.observers = false;
    let mut observer = observer(&fixture, Protocol::Delta);
    observer.change(&fixture, "eds", "e");
    assert_eq!(interest(&fixture), wanted(&[("e", true)]));
}
