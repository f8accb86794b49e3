//! Dynamic parameters, towards clients (R-DP-*).

use std::sync::Arc;

use deltafan::cache::{Change, Completeness, Limits, Op, Resend, View};
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceLocator};
use deltafan::subscription::{Code, NodeField, NodeParameterRules, Rule};

use crate::support::{Bed, Client, strings, url};
use crate::wire::{parameters, variant};

/// What the control plane says to clients with some parameters: `a:1[env=prod]` is a variant, `a:1` is for everybody.
fn op(short: &str, view: View, item: &str) -> Op {
    if let Some(name) = item.strip_prefix('-') {
        return Op::Remove { view, name: name.into() };
    }
    let (name, rest) = item.split_once(':').unwrap();
    let resource = match rest.trim_end_matches(']').split_once('[') {
        Some((version, rule)) => variant(&url(short), name, version, rule),
        None => crate::wire::resource(&url(short), name, rest, 0),
    };
    Op::Set { view, resource, resend: Resend::Unsolicited, lease: None }
}

impl Bed {
    fn seen(&mut self, pairs: &str, view: View, text: &str) {
        let (short, items) = text.split_once(' ').unwrap();
        let ops = items.split(' ').map(|item| op(short, view, item)).collect();
        let change = Change { ops, ..Change::default() };
        self.writer.apply_seen(&url(short), &parameters(pairs), change, self.now).unwrap();
    }

    fn known_to(&mut self, pairs: &str, short: &str) {
        let change = Change { wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.writer.apply_seen(&url(short), &parameters(pairs), change, self.now).unwrap();
    }
}

fn locator(name: &str, pairs: &str) -> ResourceLocator {
    let dynamic_parameters =
        parameters(pairs).iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    ResourceLocator { name: name.to_owned(), dynamic_parameters }
}

fn locate(client: &mut Client, bed: &Bed, short: &str, plain: &[&str], located: &[(&str, &str)]) {
    let request = DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_names_subscribe: strings(plain),
        resource_locators_subscribe: located.iter().map(|(name, pairs)| locator(name, pairs)).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    client.on_delta_request(bed, request).unwrap();
}

fn unlocate(client: &mut Client, bed: &Bed, short: &str, located: &[(&str, &str)]) {
    let request = DeltaDiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_locators_unsubscribe: located.iter().map(|(name, pairs)| locator(name, pairs)).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    client.on_delta_request(bed, request).unwrap();
}

fn list(client: &mut Client, bed: &Bed, short: &str, plain: &[&str], located: &[(&str, &str)]) {
    let nonce = client.nonce(short);
    let request = DiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        resource_names: strings(plain),
        resource_locators: located.iter().map(|(name, pairs)| locator(name, pairs)).collect(),
        response_nonce: nonce,
        ..DiscoveryRequest::default()
    };
    client.on_sotw_request(bed, request).unwrap();
}

#[test]
fn r_dp_07_and_08_who_asks_by_locator_is_told_the_constraints() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &[("a", "env=prod"), ("b", "env=prod"), ("c", "env=prod")]);
    bed.seen("env=prod", View::Named, "eds a:1[env=prod] b:1 -c");
    assert_eq!(client.acked(&bed), [r#"eds a{env = "prod"}:1 b{}:1 -c{}"#]);
    bed.seen("env=prod", View::Named, "eds -a -b");
    assert_eq!(client.acked(&bed), [r#"eds -a{env = "prod"} -b{}"#]);
}

#[test]
fn r_dp_09_who_asks_by_plain_names_is_told_plain_names() {
    let mut bed = Bed::new();
    bed.rules.given = given("env", NodeField::Id);
    let mut client = bed.delta();
    client.node.as_mut().unwrap().id = "prod".to_owned();
    client.change(&bed, "eds", "a");
    bed.seen("env=prod", View::Named, "eds a:1[env=prod]");
    assert_eq!(client.acked(&bed), ["eds a:1"]);
    bed.seen("env=prod", View::Named, "eds -a");
    assert_eq!(client.acked(&bed), ["eds -a"]);
}

fn given(key: &str, from: NodeField) -> NodeParameterRules {
    NodeParameterRules::new(vec![Rule { key: key.into(), from, pattern: None, default: None }], 100)
}

#[test]
fn r_dp_17_parameters_given_by_the_node_choose_the_variant_on_every_protocol() {
    let mut bed = Bed::new();
    bed.rules.given = given("env", NodeField::Cluster);
    for pairs in ["env=prod", "env=dev"] {
        bed.known_to(pairs, "cds");
    }
    let mut clients = Vec::new();
    for env in ["prod", "dev"] {
        for mut client in [bed.sotw(), bed.delta()] {
            client.node.as_mut().unwrap().cluster = env.to_owned();
            client.ask_or_change(&bed, "cds", "*");
            clients.push((env, client));
        }
    }
    bed.seen("env=prod", View::Wildcard, "cds a:1[env=prod] b:1");
    bed.seen("env=dev", View::Wildcard, "cds a:2[env=dev] b:1");
    for (env, client) in &mut clients {
        let told = client.acked(&bed);
        let expected = if *env == "prod" { "cds a:1 b:1" } else { "cds a:2 b:1" };
        assert_eq!(told.last().map(String::as_str), Some(expected));
    }
    bed.seen("env=prod", View::Wildcard, "cds a:3[env=prod]");
    for (env, client) in &mut clients {
        assert_eq!(client.acked(&bed).is_empty(), *env == "dev", "others are not even woken");
    }
}

#[test]
fn r_dp_10_one_request_may_mix_plain_names_and_locators() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &["a"], &[("b", "v=2"), ("c", "v=3")]);
    bed.fill();
    bed.seen("", View::Named, "eds a:1 b:wrong c:wrong");
    bed.seen("v=2", View::Named, "eds a:wrong b:2[v=2] c:wrong");
    bed.seen("v=3", View::Named, "eds a:wrong b:wrong c:3[v=3]");
    assert_eq!(client.acked(&bed), [r#"eds a:1 b{v = "2"}:2 c{v = "3"}:3"#]);
    let mut late = bed.delta();
    locate(&mut late, &bed, "eds", &["c"], &[("b", "v=2")]);
    bed.fill();
    assert_eq!(late.acked(&bed), [r#"eds b{v = "2"}:2 c:wrong"#], "filled from what is held");
}

#[test]
fn r_dp_11_over_state_of_the_world_locators_are_answered_wrapped_and_the_list_is_the_full_set() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    list(&mut client, &bed, "eds", &[], &[("a", "v=1"), ("b", "v=1")]);
    bed.seen("v=1", View::Named, "eds a:1[v=1] b:1");
    assert_eq!(client.told(&bed), [r#"eds a{v = "1"}:1 b{}:1"#]);
    list(&mut client, &bed, "eds", &[], &[("b", "v=1")]);
    bed.seen("v=1", View::Named, "eds a:2[v=1]");
    assert!(client.told(&bed).is_empty(), "it was let go");
    bed.seen("v=1", View::Named, "eds b:2");
    assert_eq!(client.told(&bed), ["eds b{}:2"]);
}

#[test]
fn r_dp_12_new_parameters_of_a_name_are_a_change_and_unsubscribing_takes_the_exact_ones() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    bed.seen("v=1", View::Named, "eds a:1[v=1] b:1");
    bed.seen("v=2", View::Named, "eds a:2[v=2] b:1");
    locate(&mut client, &bed, "eds", &[], &[("a", "v=1")]);
    assert_eq!(client.acked(&bed), [r#"eds a{v = "1"}:1"#]);
    locate(&mut client, &bed, "eds", &[], &[("a", "v=2")]);
    assert_eq!(client.acked(&bed), [r#"eds a{v = "2"}:2 -a{v = "1"}"#], "the old identity ends with it");
    unlocate(&mut client, &bed, "eds", &[("a", "v=1")]);
    bed.seen("v=2", View::Named, "eds a:3[v=2]");
    assert_eq!(client.acked(&bed), [r#"eds a{v = "2"}:3"#], "still subscribed to");
    unlocate(&mut client, &bed, "eds", &[("a", "v=2")]);
    bed.seen("v=2", View::Named, "eds a:4[v=2]");
    assert!(client.acked(&bed).is_empty());
}

#[test]
fn r_delta_12_new_parameters_of_a_name_leave_others_as_they_are() {
    for fills_between in [false, true] {
        let mut bed = Bed::new();
        bed.named("eds a:1 b:1 c:1 d:1 e:1");
        bed.seen("v=2", View::Named, "eds a:2[v=2] b:2[v=2]");
        let mut client = bed.delta();
        client.change(&bed, "eds", "a b c d e");
        assert_eq!(client.acked(&bed), ["eds a:1 b:1 c:1 d:1 e:1"]);
        locate(&mut client, &bed, "eds", &[], &[("a", "v=2")]);
        if fills_between {
            bed.fill();
            assert_eq!(client.acked(&bed), [r#"eds a{v = "2"}:2"#], "and no other name");
        }
        // Once more, be the first view filled or not; `c` changes meanwhile, and `d` is asked for again.
        locate(&mut client, &bed, "eds", &["d"], &[("b", "v=2")]);
        bed.named("eds c:2 -e");
        bed.fill();
        let told = client.acked(&bed).join(" ");
        let word = |word: &str| told.split(' ').filter(|other| *other == word).count();
        let words = ["c:1", "c:2", "d:1", "-e"].map(word);
        assert_eq!(words, [0, 1, 1, 1], "{told}");
        assert!(told.contains(r#"b{v = "2"}:2"#), "{told}");
        bed.named("eds d:2");
        bed.fill();
        assert_eq!(client.acked(&bed), ["eds d:2"]);
        assert!(client.acked(&bed).is_empty());
    }
}

/// A variant of other parameters is held no longer once the client was told otherwise, though the answer goes on.
#[test]
fn r_delta_12_what_changes_back_within_an_answer_in_parts_is_told() {
    let mut bed = Bed::with_limits(Limits { response_bytes: 500, ..Limits::default() });
    let names: Vec<String> = (0..20).map(|n| format!("{n:0>100}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let all = |version: u8| {
        let words: Vec<String> = names.iter().map(|name| format!("{name}:{version}")).collect();
        format!("eds {}", words.join(" "))
    };
    bed.named(&all(1));
    bed.seen("v=2", View::Named, "eds a:2[v=2]");
    let mut client = bed.delta();
    client.change(&bed, "eds", &names.join(" "));
    client.acked(&bed);
    locate(&mut client, &bed, "eds", &[], &[("a", "v=2")]);
    bed.named(&all(2));
    bed.fill();
    let first = loop {
        let part = client.poll(&bed).unwrap();
        client.ack(&bed, &part, &[]);
        if let Some((name, _)) = part.resources.iter().find(|(name, _)| name.len() == 100) {
            break name.clone();
        }
    };
    bed.named(&format!("eds {first}:1"));
    bed.fill();
    let rest = client.acked(&bed).join(" ");
    assert!(rest.contains(&format!("{first}:1")), "{rest}");
    assert_eq!(rest.matches(":1").count(), 1, "{rest}");
}

#[test]
fn r_dp_12_parameters_without_a_variant_take_away_what_was_held() {
    // Whether anything was heard with the new parameters before makes no difference.
    for others in [true, false] {
        let mut bed = Bed::new();
        let mut client = bed.delta();
        bed.seen("v=1", View::Named, "eds a:1[v=1]");
        if others {
            bed.seen("v=2", View::Named, "eds b:1");
        }
        locate(&mut client, &bed, "eds", &[], &[("a", "v=1")]);
        assert_eq!(client.acked(&bed), [r#"eds a{v = "1"}:1"#]);
        locate(&mut client, &bed, "eds", &[], &[("a", "v=2")]);
        assert!(client.acked(&bed).is_empty(), "unknown is not absent");
        bed.seen("v=2", View::Named, "eds -a");
        assert_eq!(client.acked(&bed), [r#"eds -a{v = "1"}"#]);
    }
}

#[test]
fn r_dp_12_the_wildcard_with_new_parameters_is_told_by_what_differs() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    for pairs in ["v=1", "v=2"] {
        bed.known_to(pairs, "cds");
    }
    let same = crate::wire::resource(&url("cds"), "same", "1", 0);
    for pairs in ["v=1", "v=2"] {
        let (view, resource) = (View::Wildcard, Arc::clone(&same));
        let set = Op::Set { view, resource, resend: Resend::Answer, lease: None };
        let change = Change { ops: vec![set], ..Change::default() };
        bed.writer.apply_seen(&url("cds"), &parameters(pairs), change, bed.now).unwrap();
    }
    bed.seen("v=1", View::Wildcard, "cds a:1[v=1] gone:1[v=1]");
    bed.seen("v=2", View::Wildcard, "cds a:1[v=2]");
    locate(&mut client, &bed, "cds", &[], &[("*", "v=1")]);
    assert_eq!(client.acked(&bed), [r#"cds a{v = "1"}:1 gone{v = "1"}:1 same{}:1"#]);
    locate(&mut client, &bed, "cds", &[], &[("*", "v=2")]);
    let told = client.acked(&bed);
    assert_eq!(
        told,
        [r#"cds a{v = "2"}:1 -a{v = "1"} -gone{v = "1"}"#],
        "the same version of another variant is told"
    );
}

/// The store of a client that mixes parameters is filled from others, and forgets a name when nothing is known there.
#[test]
fn r_dp_13_the_identity_that_was_told_is_taken_back_though_the_name_was_forgotten_meanwhile() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &[("a", "v=1"), ("b", "v=2")]);
    bed.seen("v=1", View::Wildcard, "eds a:1[env]");
    assert_eq!(client.acked(&bed), ["eds a{exists(env)}:1"]);
    let forget = Op::Forget { view: View::Wildcard, name: "a".into() };
    let change = Change { ops: vec![forget], ..Change::default() };
    bed.writer.apply_seen(&url("eds"), &parameters("v=1"), change, bed.now).unwrap();
    bed.seen("v=1", View::Named, "eds -a");
    let told = client.acked(&bed).join("");
    assert!(told.contains("-a{exists(env)}"), "{told}");
}

/// It goes and comes back as another variant for other parameters, all before the client is told of any.
#[test]
fn r_dp_12_what_went_before_the_parameters_changed_is_taken_back() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    for pairs in ["v=1", "v=2"] {
        bed.known_to(pairs, "cds");
    }
    bed.seen("v=1", View::Wildcard, "cds a:1");
    locate(&mut client, &bed, "cds", &[], &[("*", "v=1")]);
    assert_eq!(client.acked(&bed), ["cds a{}:1"]);
    bed.seen("v=1", View::Wildcard, "cds -a");
    bed.seen("v=2", View::Wildcard, "cds a:2[v=2]");
    locate(&mut client, &bed, "cds", &[], &[("*", "v=2")]);
    assert_eq!(client.acked(&bed), [r#"cds a{v = "2"}:2 -a{}"#]);
}

/// Removals wait for the ACK of the additions, and one more is among them by then.
#[test]
fn r_dp_12_what_is_taken_back_after_the_parameters_changed_may_have_had_no_constraints() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    for pairs in ["v=1", "v=2"] {
        bed.known_to(pairs, "cds");
    }
    bed.seen("v=1", View::Wildcard, "cds a:1[v=1] b:1");
    bed.seen("v=2", View::Wildcard, "cds a:2");
    locate(&mut client, &bed, "cds", &[], &[("*", "v=1")]);
    client.acked(&bed);
    locate(&mut client, &bed, "cds", &[], &[("*", "v=2")]);
    let additions = client.poll(&bed).unwrap();
    bed.seen("v=2", View::Wildcard, "cds -a");
    client.ack(&bed, &additions, &[]);
    let told = client.acked(&bed).join("");
    assert!(told.contains("-a{}"), "{told}");
}

#[test]
fn r_dp_13_variants_that_replace_another_are_one_update_of_one_resource() {
    let mut bed = Bed::new();
    bed.rules.given = given("v", NodeField::Id);
    for pairs in ["v=1", "v=2"] {
        bed.known_to(pairs, "cds");
    }
    bed.seen("v=1", View::Wildcard, "cds a:1[env]");
    bed.seen("v=2", View::Wildcard, "cds a:1[env]");
    let mut plain = [bed.sotw(), bed.delta()];
    for client in &mut plain {
        client.node.as_mut().unwrap().id = "1".to_owned();
        client.ask_or_change(&bed, "cds", "*");
        assert_eq!(client.acked(&bed), ["cds a:1"]);
    }
    let mut located = bed.delta();
    locate(&mut located, &bed, "cds", &[], &[("*", "v=1")]);
    assert_eq!(located.acked(&bed), ["cds a{exists(env)}:1"]);
    bed.seen("v=1", View::Wildcard, "cds a:2[env,v=1]");
    for client in &mut plain {
        assert_eq!(client.acked(&bed), ["cds a:2"], "never without it");
    }
    let told = located.acked(&bed);
    assert_eq!(
        told,
        [r#"cds a{(v = "1" and exists(env))}:2 -a{exists(env)}"#],
        "the old identity ends with it"
    );
}

#[test]
fn r_dp_14_versions_brought_count_for_the_variant_that_the_client_would_get() {
    let mut bed = Bed::new();
    bed.rules.given = given("v", NodeField::Id);
    bed.known_to("v=1", "cds");
    bed.seen("v=1", View::Wildcard, "cds a:1[v=1] b:2");
    bed.known("cds");
    bed.origin("cds a:9");
    let mut client = bed.delta();
    client.node.as_mut().unwrap().id = "1".to_owned();
    client.resume(&bed, "cds", &["*"], &[("a", "1"), ("b", "1"), ("c", "1")]);
    assert_eq!(client.acked(&bed), ["cds b:2 -c"]);
}

#[test]
fn parameters_are_bounded_and_so_are_their_sets() {
    let bed = Bed::with_limits(deltafan::cache::Limits { parameter_sets: 2, ..Default::default() });
    let mut clients: Vec<Client> = Vec::new();
    let mut ask = |pairs: &str| {
        let mut client = bed.delta();
        let request = DeltaDiscoveryRequest {
            type_url: url("eds").as_str().to_owned(),
            resource_locators_subscribe: vec![locator("a", pairs)],
            ..DeltaDiscoveryRequest::default()
        };
        let heard = client.on_delta_request(&bed, request);
        clients.push(client);
        heard.map_err(|refusal| refusal.code)
    };
    let many: Vec<String> = (0..65).map(|number| format!("k{number}=v")).collect();
    assert_eq!(ask(&many.join(" ")), Err(Code::ResourceExhausted));
    assert_eq!(ask(&format!("k={}", "x".repeat(20_000))), Err(Code::InvalidArgument));
    let many: Vec<String> = (0..17).map(|number| format!("v={number}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|pairs| (pairs.as_str(), pairs.as_str())).collect();
    let roomy = Bed::new();
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
    bed.cache.take_interest();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &[("a", "v=3")]);
}

#[path = "dp_review.rs"]
mod review;
