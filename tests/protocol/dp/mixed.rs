//! Dynamic parameters of one client that differ from name to name or change (R-DP-*).

use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Change, Limits, Op, OriginError, View};
use deltafan::subscription::NextStep;
use deltafan_test_support::fixture::{Client, Fixture, url};
use deltafan_test_support::wire::parameters;

use super::{list, listing, locate, locating};

#[test]
fn stores_of_mixed_parameters_that_nobody_has_any_more_are_dropped() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta();
    for number in 0..200 {
        let name = format!("n{number}");
        locate(&mut client, &fixture, "eds", &["a"], &[(&name, "v=2")]);
        fixture.fill();
    }
    fixture.seen("", View::Named, "eds a:1");
    fixture.fill();
    let mixed = fixture.cache.types().iter().filter(|of| of.parameter_view().as_uniform().is_none()).count();
    assert!(mixed <= 2, "{mixed} stores for one client, each of them updated with each change");
}

#[test]
fn an_error_of_a_located_name_is_told() {
    let mut fixture = Fixture::new();
    let mut client = locating(&fixture, "eds", &[], &[("a", "v=1")]);
    fixture.fill();
    let fail = Op::Fail { name: "a".into(), failure: Arc::new(OriginError::new(5, "no")), listed: false };
    let change = Change { ops: vec![fail], ..Change::default() };
    fixture.writer.apply_with_parameters(&url("eds"), &parameters("v=1"), change, fixture.now).unwrap();
    assert_eq!(client.acked(&fixture), ["eds -a{} !a:5"]);
    assert!(!matches!(client.next(&fixture), NextStep::Close(_)));
}

/// Reads until there is nothing more: bodies, then removals, by identity. No response exceeds the limit for responses by
/// more than one name.
fn told_in_parts(client: &mut Client, fixture: &Fixture, cut: usize) -> [Vec<String>; 2] {
    let [mut is, mut gone] = [Vec::new(), Vec::new()];
    while let Some(told) = client.poll(fixture) {
        let names = told.resources.iter().map(|(name, _)| name).chain(&told.removed);
        let bytes: usize = names.map(String::len).sum();
        assert!(bytes < cut + 2000, "{bytes} bytes of names in one response");
        client.ack(fixture, &told, &[]);
        is.extend(told.resources.into_iter().map(|(name, _)| name));
        gone.extend(told.removed);
    }
    [is, gone]
}

#[test]
fn r_up_23_a_response_by_locator_is_cut_by_the_size_of_its_constraints() {
    const CUT: usize = 20_000;
    let mut fixture = Fixture::with_limits(Limits { response_bytes: CUT, ..Limits::default() });
    let pairs = format!("v={}", "x".repeat(300));
    let names: Vec<String> = (0..200).map(|number| format!("n{number:03}")).collect();
    let all = |form: &dyn Fn(&String) -> String| {
        format!("eds {}", names.iter().map(form).collect::<Vec<_>>().join(" "))
    };
    let located: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), pairs.as_str())).collect();
    let mut client = locating(&fixture, "eds", &[], &located);
    fixture.seen(&pairs, View::Named, &all(&|name| format!("{name}:1[{pairs}]")));
    let [is, gone] = told_in_parts(&mut client, &fixture, CUT);
    assert_eq!((is.len(), gone.len()), (200, 0));
    // Variants that were replaced go with what takes their place.
    fixture.seen(&pairs, View::Named, &all(&|name| format!("{name}:2[{pairs},!q]")));
    let [is, gone] = told_in_parts(&mut client, &fixture, CUT);
    assert_eq!((is.len(), gone.len()), (200, 200));
    fixture.seen(&pairs, View::Named, &all(&|name| format!("-{name}")));
    let [is, gone] = told_in_parts(&mut client, &fixture, CUT);
    assert_eq!((is.len(), gone.len()), (0, 400), "both variants of each");
    locate(&mut client, &fixture, "eds", &[], &located);
    let [is, gone] = told_in_parts(&mut client, &fixture, CUT);
    assert_eq!((is.len(), gone.len()), (0, 600), "and its name alone");
    let mut newcomer = locating(&fixture, "eds", &[], &located);
    let [is, gone] = told_in_parts(&mut newcomer, &fixture, CUT);
    assert_eq!((is.len(), gone.len()), (0, 600));
}

/// Each name is seen through other parameters than the rest, so that each request leads to another store.
#[test]
fn r_sotw_18_a_list_of_locators_that_changes_holds_back_known_names_for_a_bounded_time() {
    let mut fixture = Fixture::knowing(&["cds"]);
    (fixture.rules.cold_deadline, fixture.rules.detection_time) = (Duration::from_secs(1), Duration::ZERO);
    fixture.named("cds a:0");
    let mut client = listing(&fixture, "cds", &["a"], &[]);
    let told = client.poll(&fixture).unwrap();
    client.ack(&fixture, &told, &["a"]);
    let mut told = Vec::new();
    for number in 1..50 {
        fixture.after(Duration::from_millis(500));
        list(&mut client, &fixture, "cds", &["a"], &[(&format!("n{number}"), "v=2")]);
        fixture.fill();
        fixture.named(&format!("cds a:{number}"));
        fixture.fill();
        told.extend(client.told(&fixture));
    }
    assert!(told.len() > 5, "{} of 49 changes: {told:?}", told.len());
}

/// A name that becomes unknown with its new parameters is waited for as long as any, however long the client waits for
/// others.
#[test]
fn r_relay_04_a_held_name_that_new_parameters_make_unknown_is_waited_for_anew() {
    let mut fixture = Fixture::knowing(&["cds"]);
    (fixture.rules.cold_deadline, fixture.rules.detection_time) = (Duration::from_secs(1), Duration::ZERO);
    let step = Duration::from_millis(250);
    let mut client = fixture.sotw();
    fixture.seen("v=1", View::Named, "cds a:1[v=1]");
    fixture.named("cds other:1");
    list(&mut client, &fixture, "cds", &["b"], &[("a", "v=1")]);
    fixture.fill();
    fixture.named("cds b:1");
    fixture.fill();
    assert_eq!(client.told(&fixture), [r#"cds a{v = "1"}:1 b:1"#]);
    list(&mut client, &fixture, "cds", &["b"], &[("a", "v=1"), ("silent", "v=3")]);
    fixture.fill();
    fixture.after(Duration::from_millis(2500));
    assert!(client.poll(&fixture).is_none());
    list(&mut client, &fixture, "cds", &["b"], &[("a", "v=2"), ("silent", "v=3")]);
    fixture.fill();
    for _ in 0..8 {
        fixture.after(step);
        assert_eq!(client.told(&fixture), [""; 0], "`a` is unknown, and held");
    }
    fixture.seen("v=2", View::Named, "cds a:2[v=2]");
    fixture.fill();
    fixture.after(Duration::from_secs(1));
    assert_eq!(client.told(&fixture), [r#"cds a{v = "2"}:2 b:1"#]);
}
