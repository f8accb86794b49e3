//! Clients that look on: they are told what is held for others, and nothing is asked upstream because of them.

use std::time::Duration;

use deltafan::cache::{Interest, Protocol};
use deltafan::config::name_pattern;
use deltafan::limit::Limit;
use deltafan::proto::DeltaDiscoveryRequest;
use deltafan::resource::{Name, Patterns, Scope};
use deltafan::subscription::{Code, Denied, NextStep, OBSERVER, Permissions};

use crate::support::{Bed, Client, strings, url};

fn observer(bed: &Bed, protocol: Protocol) -> Client {
    bed.client_with(&[OBSERVER], protocol)
}

/// Names to be asked upstream now, without those that are not.
fn interest(bed: &Bed) -> Vec<Interest> {
    let interest = bed.cache.take_interest().into_iter().map(|wanted| wanted.interest);
    interest.filter(|interest| interest.wildcard || !interest.names.is_empty()).collect()
}

fn wanted(names: &[(&str, bool)]) -> Vec<Interest> {
    let names = names.iter().map(|(name, is_wanted)| (Name::from(*name), *is_wanted)).collect();
    vec![Interest { wildcard: false, names, proof: false }]
}

#[test]
fn an_observer_is_told_what_is_held_and_its_changes() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut bed = Bed::knowing(&["cds", "eds"]);
        bed.origin("cds a:1");
        bed.named("eds e:1");
        let mut observer = observer(&bed, protocol);
        observer.ask_or_change(&bed, "cds", "*");
        assert_eq!(observer.acked(&bed), ["cds a:1"]);
        observer.ask_or_change(&bed, "eds", "e");
        assert_eq!(observer.acked_with(&bed, &[("eds", &["e"])]), ["eds e:1"]);
        assert_eq!(interest(&bed), [], "{protocol:?}");
        bed.named("eds e:2");
        bed.origin("cds a:2");
        let told = observer.acked_with(&bed, &[("eds", &["e"])]);
        assert_eq!(told.len(), 2, "{told:?}");
        bed.after(Duration::from_secs(60));
        assert!(matches!(observer.next(&bed), NextStep::Wait(_)), "all is known: it may stay");
    }
}

#[test]
fn an_observer_of_what_nobody_asks_for_is_told_so_in_a_moment() {
    for names in ["*", "e", "known e"] {
        let mut bed = Bed::new();
        bed.named("eds known:1");
        let mut observer = observer(&bed, Protocol::Delta);
        observer.change(&bed, "eds", names);
        let told = observer.acked(&bed);
        assert_eq!(told.is_empty(), names != "known e", "what is held is told first: {told:?}");
        let NextStep::Wait(Some(until)) = observer.next(&bed) else {
            panic!("it waits for what is on its way")
        };
        bed.now = until;
        let NextStep::Close(refusal) = observer.next(&bed) else { panic!("{names}: it would wait for ever") };
        assert_eq!(refusal.code, Code::Unavailable);
        assert!(refusal.message.contains("no client of it asks for it"), "{refusal}");
        assert_eq!(interest(&bed), []);
    }
}

#[test]
fn what_clients_want_is_told_upstream_whoever_looks_on() {
    let bed = Bed::new();
    let mut observer = observer(&bed, Protocol::Delta);
    observer.change(&bed, "eds", "e");
    assert_eq!(interest(&bed), []);
    let mut client = bed.delta();
    client.change(&bed, "eds", "e");
    assert_eq!(interest(&bed), wanted(&[("e", true)]), "the first client is the first");
    client.change(&bed, "eds", "-e");
    assert_eq!(interest(&bed), wanted(&[("e", false)]), "the last one is the last");
    observer.change(&bed, "eds", "f -e");
    client.change(&bed, "eds", "*");
    let all = Interest { wildcard: true, names: Vec::new(), proof: false };
    assert_eq!(interest(&bed), [all]);
    assert_eq!(interest(&bed), []);
    drop(client);
    let nothing = bed.cache.take_interest();
    assert!(nothing.iter().all(|wanted| !wanted.interest.wildcard), "{nothing:?}");
    observer.change(&bed, "eds", "*");
    drop(observer);
    assert!(bed.cache.take_interest().is_empty(), "nobody is even woken");
}

/// Its view is filled from what is held for others, as that of a client with the same rights is.
#[test]
fn an_observer_that_may_not_see_all_sees_what_it_may() {
    for names in ["*", "web hidden"] {
        let mut bed = Bed::knowing(&["cds"]);
        let (mut all, mut one) = (bed.delta(), bed.delta());
        all.change(&bed, "cds", "*");
        one.change(&bed, "cds", "web hidden");
        bed.fill();
        bed.origin("cds web:1 other:1");
        bed.named("cds web:1 hidden:1");
        let scope = Scope::only(Patterns::from_iter([name_pattern("web").unwrap()]));
        bed.rules.permissions = Permissions { names: scope, ..Permissions::default() };
        let mut observer = observer(&bed, Protocol::Delta);
        observer.change(&bed, "cds", names);
        for wanted in bed.cache.take_interest() {
            let as_it_was = Interest { wildcard: true, names: Vec::new(), proof: false };
            assert_eq!(wanted.interest, as_it_was);
            bed.writer.fill(&wanted, bed.now).unwrap();
        }
        let expected = if names == "*" { "cds web:1" } else { "cds web:1 -hidden" };
        assert_eq!(observer.acked(&bed), [expected]);
        bed.origin("cds web:2 other:2");
        bed.named("cds web:2 hidden:2");
        assert_eq!(observer.acked(&bed), ["cds web:2"]);
    }
}

#[test]
fn an_observer_has_the_rights_and_the_limits_of_any_client() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.rules.serve_secrets = false;
    bed.rules.max_names = 1;
    let refused = |bed: &Bed, short: &str, names: &[&str]| {
        let request = DeltaDiscoveryRequest {
            type_url: url(short).as_str().to_owned(),
            resource_names_subscribe: strings(names),
            ..DeltaDiscoveryRequest::default()
        };
        observer(bed, Protocol::Delta).on_delta_request(bed, request).expect_err("it is refused")
    };
    assert_eq!(refused(&bed, "sds", &["s"]).denied, Some(Denied::Secret));
    assert_eq!(refused(&bed, "cds", &["a", "b"]).limit, Some(Limit::Names));
    bed.rules.permissions = Permissions::nothing();
    assert_eq!(refused(&bed, "cds", &["a"]).code, Code::PermissionDenied);
}

#[test]
fn where_looking_on_is_not_offered_the_marker_means_nothing() {
    let mut bed = Bed::new();
    bed.rules.observers = false;
    let mut observer = observer(&bed, Protocol::Delta);
    observer.change(&bed, "eds", "e");
    assert_eq!(interest(&bed), wanted(&[("e", true)]));
}
