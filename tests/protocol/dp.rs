//! Dynamic parameters, towards clients (R-DP-*).

use deltafan::cache::{Protocol, View};
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
