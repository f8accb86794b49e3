//! Dynamic parameters, towards clients (R-DP-*).

use std::sync::Arc;

use deltafan::cache::{Change, Limits, Op, Protocol, Resend, View};
use deltafan::node_field::NodeField;
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use deltafan::subscription::{Code, NextStep, NodeParameterRules, Rule};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};
use deltafan_test_support::wire::{parameters, read};

use crate::bounds::QUADRATIC;
use crate::cost::cpu;

mod mixed;

fn locator(name: &str, pairs: &str) -> ResourceLocator {
    let dynamic_parameters =
        parameters(pairs).iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    ResourceLocator { name: name.to_owned(), dynamic_parameters }
}

pub(crate) fn locate(
    client: &mut Client,
    fixture: &Fixture,
    short: &str,
    plain: &[&str],
    located: &[(&str, &str)],
) {
    let request = DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_names_subscribe: strings(plain),
        resource_locators_subscribe: located.iter().map(|(name, pairs)| locator(name, pairs)).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    client.on_delta_request(fixture, request).unwrap();
}

pub(crate) fn locating(fixture: &Fixture, short: &str, plain: &[&str], located: &[(&str, &str)]) -> Client {
    let mut client = fixture.delta();
    locate(&mut client, fixture, short, plain, located);
    client
}

fn unlocate(client: &mut Client, fixture: &Fixture, short: &str, located: &[(&str, &str)]) {
    let request = DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_locators_unsubscribe: located.iter().map(|(name, pairs)| locator(name, pairs)).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    client.on_delta_request(fixture, request).unwrap();
}

fn list(client: &mut Client, fixture: &Fixture, short: &str, plain: &[&str], located: &[(&str, &str)]) {
    let nonce = client.nonce(short);
    let request = DiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_names: strings(plain),
        resource_locators: located.iter().map(|(name, pairs)| locator(name, pairs)).collect(),
        response_nonce: nonce,
        ..DiscoveryRequest::default()
    };
    client.on_sotw_request(fixture, request).unwrap();
}

pub(crate) fn listing(fixture: &Fixture, short: &str, plain: &[&str], located: &[(&str, &str)]) -> Client {
    let mut client = fixture.sotw();
    list(&mut client, fixture, short, plain, located);
    client
}

#[test]
fn r_dp_07_and_08_a_client_that_asks_by_locator_is_told_the_constraints() {
    let mut fixture = Fixture::new();
    let mut client =
        locating(&fixture, "eds", &[], &[("a", "env=prod"), ("b", "env=prod"), ("c", "env=prod")]);
    fixture.seen("env=prod", View::Named, "eds a:1[env=prod] b:1 -c");
    assert_eq!(client.acked(&fixture), [r#"eds a{env = "prod"}:1 b{}:1 -c{}"#]);
    fixture.seen("env=prod", View::Named, "eds -a -b");
    assert_eq!(client.acked(&fixture), [r#"eds -a{env = "prod"} -b{}"#]);
}

#[test]
fn r_dp_09_a_client_that_asks_by_plain_names_is_told_plain_names() {
    let mut fixture = Fixture::new();
    fixture.rules.given = given("env", NodeField::Id);
    let mut client = fixture.delta();
    client.node.as_mut().unwrap().id = "prod".to_owned();
    client.change(&fixture, "eds", "a");
    fixture.seen("env=prod", View::Named, "eds a:1[env=prod]");
    assert_eq!(client.acked(&fixture), ["eds a:1"]);
    fixture.seen("env=prod", View::Named, "eds -a");
    assert_eq!(client.acked(&fixture), ["eds -a"]);
}

fn given(key: &str, from: NodeField) -> NodeParameterRules {
    NodeParameterRules::new(vec![Rule { key: key.into(), from, pattern: None, default: None }], 100)
}

#[test]
fn r_dp_17_parameters_given_by_the_node_choose_the_variant_on_every_protocol() {
    let mut fixture = Fixture::new();
    fixture.rules.given = given("env", NodeField::Cluster);
    for pairs in ["env=prod", "env=dev"] {
        fixture.known_to(pairs, "cds");
    }
    let mut clients = Vec::new();
    for env in ["prod", "dev"] {
        for mut client in [fixture.sotw(), fixture.delta()] {
            client.node.as_mut().unwrap().cluster = env.to_owned();
            client.ask_or_change(&fixture, "cds", "*");
            clients.push((env, client));
        }
    }
    fixture.seen("env=prod", View::Wildcard, "cds a:1[env=prod] b:1");
    fixture.seen("env=dev", View::Wildcard, "cds a:2[env=dev] b:1");
    for (env, client) in &mut clients {
        let told = client.acked(&fixture);
        let expected = if *env == "prod" { "cds a:1 b:1" } else { "cds a:2 b:1" };
        assert_eq!(told.last().map(String::as_str), Some(expected));
    }
    fixture.seen("env=prod", View::Wildcard, "cds a:3[env=prod]");
    for (env, client) in &mut clients {
        assert_eq!(client.acked(&fixture).is_empty(), *env == "dev", "others are not even woken");
    }
}

#[test]
fn r_dp_10_one_request_may_mix_plain_names_and_locators() {
    let mut fixture = Fixture::new();
    let mut client = locating(&fixture, "eds", &["a"], &[("b", "v=2"), ("c", "v=3")]);
    fixture.fill();
    fixture.seen("", View::Named, "eds a:1 b:wrong c:wrong");
    fixture.seen("v=2", View::Named, "eds a:wrong b:2[v=2] c:wrong");
    fixture.seen("v=3", View::Named, "eds a:wrong b:wrong c:3[v=3]");
    assert_eq!(client.acked(&fixture), [r#"eds a:1 b{v = "2"}:2 c{v = "3"}:3"#]);
    let mut late = locating(&fixture, "eds", &["c"], &[("b", "v=2")]);
    fixture.fill();
    assert_eq!(late.acked(&fixture), [r#"eds b{v = "2"}:2 c:wrong"#], "filled from what is held");
}

#[test]
fn r_dp_11_over_state_of_the_world_locators_are_answered_wrapped_and_in_full() {
    let mut fixture = Fixture::new();
    let mut client = listing(&fixture, "eds", &[], &[("a", "v=1"), ("b", "v=1")]);
    fixture.seen("v=1", View::Named, "eds a:1[v=1] b:1");
    assert_eq!(client.told(&fixture), [r#"eds a{v = "1"}:1 b{}:1"#]);
    list(&mut client, &fixture, "eds", &[], &[("b", "v=1")]);
    fixture.seen("v=1", View::Named, "eds a:2[v=1]");
    assert!(client.told(&fixture).is_empty(), "it was let go");
    fixture.seen("v=1", View::Named, "eds b:2");
    assert_eq!(client.told(&fixture), ["eds b{}:2"]);
}

#[test]
fn r_dp_12_new_parameters_of_a_name_are_a_change_and_unsubscribing_takes_the_exact_ones() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta();
    fixture.seen("v=1", View::Named, "eds a:1[v=1] b:1");
    fixture.seen("v=2", View::Named, "eds a:2[v=2] b:1");
    locate(&mut client, &fixture, "eds", &[], &[("a", "v=1")]);
    assert_eq!(client.acked(&fixture), [r#"eds a{v = "1"}:1"#]);
    locate(&mut client, &fixture, "eds", &[], &[("a", "v=2")]);
    assert_eq!(client.acked(&fixture), [r#"eds a{v = "2"}:2 -a{v = "1"}"#], "the old identity ends with it");
    unlocate(&mut client, &fixture, "eds", &[("a", "v=1")]);
    fixture.seen("v=2", View::Named, "eds a:3[v=2]");
    assert_eq!(client.acked(&fixture), [r#"eds a{v = "2"}:3"#], "still subscribed to");
    unlocate(&mut client, &fixture, "eds", &[("a", "v=2")]);
    fixture.seen("v=2", View::Named, "eds a:4[v=2]");
    assert!(client.acked(&fixture).is_empty());
}

#[test]
fn r_delta_12_new_parameters_of_a_name_leave_others_as_they_are() {
    for fills_between in [false, true] {
        let mut fixture = Fixture::new().with_named("eds a:1 b:1 c:1 d:1 e:1");
        fixture.seen("v=2", View::Named, "eds a:2[v=2] b:2[v=2]");
        let mut client = fixture.delta_of("eds", "a b c d e");
        assert_eq!(client.acked(&fixture), ["eds a:1 b:1 c:1 d:1 e:1"]);
        locate(&mut client, &fixture, "eds", &[], &[("a", "v=2")]);
        if fills_between {
            fixture.fill();
            assert_eq!(client.acked(&fixture), [r#"eds a{v = "2"}:2"#], "and no other name");
        }
        // Once more, be the first view filled or not; `c` changes meanwhile, and `d` is asked for again.
        locate(&mut client, &fixture, "eds", &["d"], &[("b", "v=2")]);
        fixture.named("eds c:2 -e");
        fixture.fill();
        let told = client.acked(&fixture).join(" ");
        let word = |word: &str| told.split(' ').filter(|other| *other == word).count();
        let words = ["c:1", "c:2", "d:1", "-e"].map(word);
        assert_eq!(words, [0, 1, 1, 1], "{told}");
        assert!(told.contains(r#"b{v = "2"}:2"#), "{told}");
        fixture.named("eds d:2");
        fixture.fill();
        assert_eq!(client.acked(&fixture), ["eds d:2"]);
        assert!(client.acked(&fixture).is_empty());
    }
}

/// A variant of other parameters is held no longer once the client was told otherwise, though the answer goes on.
#[test]
fn r_delta_12_a_change_back_within_an_answer_in_parts_is_told() {
    let mut fixture = Fixture::with_limits(Limits { response_bytes: 500, ..Limits::default() });
    let names: Vec<String> = (0..20).map(|n| format!("{n:0>100}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let all = |version: u8| {
        let words: Vec<String> = names.iter().map(|name| format!("{name}:{version}")).collect();
        format!("eds {}", words.join(" "))
    };
    fixture.named(&all(1));
    fixture.seen("v=2", View::Named, "eds a:2[v=2]");
    let mut client = fixture.delta_of("eds", &names.join(" "));
    client.acked(&fixture);
    locate(&mut client, &fixture, "eds", &[], &[("a", "v=2")]);
    fixture.named(&all(2));
    fixture.fill();
    let first = loop {
        let part = client.poll(&fixture).unwrap();
        client.ack(&fixture, &part, &[]);
        if let Some((name, _)) = part.resources.iter().find(|(name, _)| name.len() == 100) {
            break name.clone();
        }
    };
    fixture.named(&format!("eds {first}:1"));
    fixture.fill();
    let rest = client.acked(&fixture).join(" ");
    assert!(rest.contains(&format!("{first}:1")), "{rest}");
    assert_eq!(rest.matches(":1").count(), 1, "{rest}");
}

#[test]
fn r_dp_12_parameters_without_a_variant_take_away_the_held_one() {
    // Whether anything was heard with the new parameters before makes no difference.
    for others in [true, false] {
        let mut fixture = Fixture::new();
        let mut client = fixture.delta();
        fixture.seen("v=1", View::Named, "eds a:1[v=1]");
        if others {
            fixture.seen("v=2", View::Named, "eds b:1");
        }
        locate(&mut client, &fixture, "eds", &[], &[("a", "v=1")]);
        assert_eq!(client.acked(&fixture), [r#"eds a{v = "1"}:1"#]);
        locate(&mut client, &fixture, "eds", &[], &[("a", "v=2")]);
        assert!(client.acked(&fixture).is_empty(), "unknown is not absent");
        fixture.seen("v=2", View::Named, "eds -a");
        assert_eq!(client.acked(&fixture), [r#"eds -a{v = "1"}"#]);
    }
}

#[test]
fn r_dp_12_the_wildcard_with_new_parameters_is_told_by_its_differences() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta();
    for pairs in ["v=1", "v=2"] {
        fixture.known_to(pairs, "cds");
    }
    let same = deltafan_test_support::wire::resource(&url("cds"), "same", "1", 0);
    for pairs in ["v=1", "v=2"] {
        let (view, resource) = (View::Wildcard, Arc::clone(&same));
        let set = Op::Set { view, resource, resend: Resend::Answer, lease: None };
        let change = Change { ops: vec![set], ..Change::default() };
        fixture.writer.apply_with_parameters(&url("cds"), &parameters(pairs), change, fixture.now).unwrap();
    }
    fixture.seen("v=1", View::Wildcard, "cds a:1[v=1] gone:1[v=1]");
    fixture.seen("v=2", View::Wildcard, "cds a:1[v=2]");
    locate(&mut client, &fixture, "cds", &[], &[("*", "v=1")]);
    assert_eq!(client.acked(&fixture), [r#"cds a{v = "1"}:1 gone{v = "1"}:1 same{}:1"#]);
    locate(&mut client, &fixture, "cds", &[], &[("*", "v=2")]);
    let told = client.acked(&fixture);
    assert_eq!(
        told,
        [r#"cds a{v = "2"}:1 -a{v = "1"} -gone{v = "1"}"#],
        "the same version of another variant is told"
    );
}

/// The store of a client that mixes parameters is filled from others, and forgets a name when nothing is known there.
#[test]
fn r_dp_13_the_identity_that_was_told_is_taken_back_though_the_name_was_forgotten_meanwhile() {
    let mut fixture = Fixture::new();
    let mut client = locating(&fixture, "eds", &[], &[("a", "v=1"), ("b", "v=2")]);
    fixture.seen("v=1", View::Wildcard, "eds a:1[env]");
    assert_eq!(client.acked(&fixture), ["eds a{exists(env)}:1"]);
    let forget = Op::Forget { view: View::Wildcard, name: "a".into() };
    let change = Change { ops: vec![forget], ..Change::default() };
    fixture.writer.apply_with_parameters(&url("eds"), &parameters("v=1"), change, fixture.now).unwrap();
    fixture.seen("v=1", View::Named, "eds -a");
    let told = client.acked(&fixture).join("");
    assert!(told.contains("-a{exists(env)}"), "{told}");
}

/// It goes and comes back as another variant for other parameters, all before the client is told of any.
#[test]
fn r_dp_12_a_variant_that_went_before_the_parameters_changed_is_taken_back() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta();
    for pairs in ["v=1", "v=2"] {
        fixture.known_to(pairs, "cds");
    }
    fixture.seen("v=1", View::Wildcard, "cds a:1");
    locate(&mut client, &fixture, "cds", &[], &[("*", "v=1")]);
    assert_eq!(client.acked(&fixture), ["cds a{}:1"]);
    fixture.seen("v=1", View::Wildcard, "cds -a");
    fixture.seen("v=2", View::Wildcard, "cds a:2[v=2]");
    locate(&mut client, &fixture, "cds", &[], &[("*", "v=2")]);
    assert_eq!(client.acked(&fixture), [r#"cds a{v = "2"}:2 -a{}"#]);
}

/// Removals wait for the ACK of the additions, and one more is among them by then.
#[test]
fn r_dp_12_a_variant_taken_back_after_the_parameters_changed_may_have_had_no_constraints() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta();
    for pairs in ["v=1", "v=2"] {
        fixture.known_to(pairs, "cds");
    }
    fixture.seen("v=1", View::Wildcard, "cds a:1[v=1] b:1");
    fixture.seen("v=2", View::Wildcard, "cds a:2");
    locate(&mut client, &fixture, "cds", &[], &[("*", "v=1")]);
    client.acked(&fixture);
    locate(&mut client, &fixture, "cds", &[], &[("*", "v=2")]);
    let additions = client.poll(&fixture).unwrap();
    fixture.seen("v=2", View::Wildcard, "cds -a");
    client.ack(&fixture, &additions, &[]);
    let told = client.acked(&fixture).join("");
    assert!(told.contains("-a{}"), "{told}");
}

#[test]
fn r_dp_13_variants_that_replace_another_are_one_update_of_one_resource() {
    let mut fixture = Fixture::new();
    fixture.rules.given = given("v", NodeField::Id);
    for pairs in ["v=1", "v=2"] {
        fixture.known_to(pairs, "cds");
    }
    fixture.seen("v=1", View::Wildcard, "cds a:1[env]");
    fixture.seen("v=2", View::Wildcard, "cds a:1[env]");
    let mut plain = [fixture.sotw(), fixture.delta()];
    for client in &mut plain {
        client.node.as_mut().unwrap().id = "1".to_owned();
        client.ask_or_change(&fixture, "cds", "*");
        assert_eq!(client.acked(&fixture), ["cds a:1"]);
    }
    let mut located = locating(&fixture, "cds", &[], &[("*", "v=1")]);
    assert_eq!(located.acked(&fixture), ["cds a{exists(env)}:1"]);
    fixture.seen("v=1", View::Wildcard, "cds a:2[env,v=1]");
    for client in &mut plain {
        assert_eq!(client.acked(&fixture), ["cds a:2"], "never without it");
    }
    let told = located.acked(&fixture);
    assert_eq!(
        told,
        [r#"cds a{(v = "1" and exists(env))}:2 -a{exists(env)}"#],
        "the old identity ends with it"
    );
}

#[test]
fn r_dp_14_versions_brought_count_for_the_variant_that_the_client_would_get() {
    let mut fixture = Fixture::new();
    fixture.rules.given = given("v", NodeField::Id);
    fixture.known_to("v=1", "cds");
    fixture.seen("v=1", View::Wildcard, "cds a:1[v=1] b:2");
    fixture.known("cds");
    fixture.origin("cds a:9");
    let mut client = fixture.delta();
    client.node.as_mut().unwrap().id = "1".to_owned();
    client.resume(&fixture, "cds", &["*"], &[("a", "1"), ("b", "1"), ("c", "1")]);
    assert_eq!(client.acked(&fixture), ["cds b:2", "cds -c"]);
}

#[test]
fn parameters_are_bounded_and_so_are_their_sets() {
    let fixture = Fixture::with_limits(deltafan::cache::Limits { parameter_sets: 2, ..Default::default() });
    let mut clients: Vec<Client> = Vec::new();
    let mut ask = |pairs: &str| {
        let mut client = fixture.delta();
        let request = DeltaDiscoveryRequest {
            type_url: url("eds").as_str().to_owned(),
            resource_locators_subscribe: vec![locator("a", pairs)],
            ..DeltaDiscoveryRequest::default()
        };
        let heard = client.on_delta_request(&fixture, request);
        clients.push(client);
        heard.map_err(|refusal| refusal.code)
    };
    let many: Vec<String> = (0..65).map(|number| format!("k{number}=v")).collect();
    assert_eq!(ask(&many.join(" ")), Err(Code::ResourceExhausted));
    assert_eq!(ask(&format!("k={}", "x".repeat(20_000))), Err(Code::InvalidArgument));
    let many: Vec<String> = (0..17).map(|number| format!("v={number}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|pairs| (pairs.as_str(), pairs.as_str())).collect();
    let roomy = Fixture::new();
    let mut client = roomy.delta();
    locate(&mut client, &roomy, "eds", &[], &many[..16]);
    let request = DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_locators_subscribe: vec![locator("one more", "v=16")],
        ..DeltaDiscoveryRequest::default()
    };
    assert_eq!(
        client.on_delta_request(&roomy, request).map_err(|refusal| refusal.code),
        Err(Code::ResourceExhausted)
    );
    assert!(ask("v=1").is_ok() && ask("v=2").is_ok() && ask("v=1").is_ok());
    assert_eq!(ask("v=3"), Err(Code::ResourceExhausted));
    clients.clear();
    fixture.cache.take_interest();
    let _client = locating(&fixture, "eds", &[], &[("a", "v=3")]);
}

#[test]
fn many_located_names_that_do_not_exist_are_told_in_linear_time() {
    let mut fixture = Fixture::new();
    let names: Vec<String> = (0..80_000).map(|number| format!("n{number}")).collect();
    let located: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v=1")).collect();
    let gone = names.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(" ");
    fixture.seen("v=1", View::Named, &format!("eds {gone}"));
    let mut client = locating(&fixture, "eds", &[], &located);
    let start = cpu();
    let NextStep::Send(outgoing) = client.next(&fixture) else { panic!("they do not exist") };
    let took = cpu() - start;
    let told = read(Protocol::Delta, &outgoing.frame);
    assert_eq!(told.removed.len(), names.len());
    assert!(took < QUADRATIC, "{took:?}");
}
