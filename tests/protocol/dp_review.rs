//! What a review of locators towards clients found amiss.

use super::*;
use std::time::Duration;

use deltafan::cache::OriginError;
use deltafan::subscription::NextStep;

fn star_and_name(bed: &Bed, short: &str) -> Client {
    let mut client = bed.delta();
    locate(&mut client, bed, short, &["*"], &[("a", "v=2")]);
    client
}

#[test]
fn p01_a_name_asked_for_by_locator_beside_a_wildcard_is_the_variant_of_its_own_parameters() {
    let mut bed = Bed::new();
    let mut client = star_and_name(&bed, "cds");
    bed.fill();
    bed.seen("v=2", View::Named, "cds a:2[v=2]");
    bed.seen("", View::Wildcard, "cds a:1[!v] b:1");
    bed.known("cds");
    let told = client.acked(&bed).join(" ");
    assert!(
        told.contains(r#"a{v = "2"}:2"#) && !told.contains(":1 b") && !told.contains("not exists"),
        "{told}"
    );
}

#[test]
fn p01b_the_same_over_state_of_the_world() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    list(&mut client, &bed, "cds", &["*"], &[("a", "v=2")]);
    bed.fill();
    bed.seen("v=2", View::Named, "cds a:2[v=2]");
    bed.seen("", View::Wildcard, "cds a:1[!v] b:1");
    bed.known("cds");
    let told = client.told(&bed);
    assert_eq!(told, [r#"cds a{v = "2"}:2 b:1"#]);
}

#[test]
fn p02_a_store_of_mixed_parameters_is_filled_with_its_own_wildcard() {
    let mut bed = Bed::new();
    // Somebody has the wildcard with v=2.
    let mut other = bed.delta();
    locate(&mut other, &bed, "cds", &[], &[("*", "v=2")]);
    bed.fill();
    bed.seen("v=2", View::Wildcard, "cds x:2[v=2] y:2[v=2]");
    bed.known_to("v=2", "cds");
    // This one has it with v=1, and one name with v=2.
    let mut client = bed.sotw();
    list(&mut client, &bed, "cds", &[], &[("*", "v=1"), ("a", "v=2")]);
    bed.fill();
    bed.seen("v=2", View::Named, "cds a:2[v=2]");
    let told = client.told(&bed);
    assert!(told.is_empty(), "its wildcard is not known: {told:?}");
}

#[test]
fn p03_a_removal_that_was_not_told_yet_is_told_after_a_change_of_parameters() {
    let mut bed = Bed::new();
    for pairs in ["v=1", "v=2"] {
        bed.known_to(pairs, "cds");
        bed.seen(pairs, View::Wildcard, "cds a:1 b:1");
    }
    let mut client = bed.delta();
    locate(&mut client, &bed, "cds", &[], &[("*", "v=1")]);
    let told = client.poll(&bed).unwrap();
    bed.seen("v=1", View::Wildcard, "cds -a");
    bed.seen("v=2", View::Wildcard, "cds -a");
    assert!(client.poll(&bed).is_none(), "the ACK is awaited");
    locate(&mut client, &bed, "cds", &[], &[("*", "v=2")]);
    client.ack(&bed, &told, &[]);
    assert!(client.acked(&bed).join(" ").contains("-a"), "it holds `a`");
}

#[test]
fn p04_stores_of_mixed_parameters_that_nobody_has_any_more_are_dropped() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    for number in 0..200 {
        let name = format!("n{number}");
        locate(&mut client, &bed, "eds", &["a"], &[(&name, "v=2")]);
        bed.fill();
    }
    bed.seen("", View::Named, "eds a:1");
    bed.fill();
    let mixed = bed.cache.types().iter().filter(|of| of.parameter_view().as_uniform().is_none()).count();
    assert!(mixed <= 2, "{mixed} stores for one client, each of them updated with each change");
}

#[test]
fn p07_who_comes_when_nothing_is_there_any_more_is_told_of_the_name() {
    let mut bed = Bed::new();
    bed.seen("v=1", View::Named, "eds a:1[env]");
    bed.seen("v=1", View::Named, "eds -a");
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &[("a", "v=1")]);
    assert_eq!(client.acked(&bed), ["eds -a{exists(env)} -a{}"]);
}

#[test]
fn p11_what_was_held_with_the_old_parameters_is_removed_by_its_identity() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    bed.seen("v=1", View::Named, "eds a:1[v=1]");
    locate(&mut client, &bed, "eds", &[], &[("a", "v=1")]);
    client.acked(&bed);
    bed.seen("v=2", View::Named, "eds -a");
    locate(&mut client, &bed, "eds", &[], &[("a", "v=2")]);
    let told = client.acked(&bed).join(" ");
    assert!(told.contains(r#"-a{v = "1"}"#), "{told}");
}

#[test]
fn p24b_nor_when_the_store_was_filled_before() {
    let mut bed = Bed::new();
    bed.seen("v=1", View::Named, "eds a:1");
    bed.seen("v=2", View::Named, "eds b:2");
    let mut first = bed.delta();
    locate(&mut first, &bed, "eds", &[], &[("a", "v=1"), ("b", "v=2")]);
    bed.fill();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &[("a", "v=1")]);
    client.acked(&bed);
    locate(&mut client, &bed, "eds", &[], &[("b", "v=2")]);
    assert_eq!(client.acked(&bed), ["eds b{}:2"]);
}

#[test]
fn p30_an_error_of_a_located_name_is_told_and_nothing_panics() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &[("a", "v=1")]);
    bed.fill();
    let fail = Op::Fail { name: "a".into(), failure: Arc::new(OriginError::new(5, "no")), listed: false };
    let change = Change { ops: vec![fail], ..Change::default() };
    bed.writer.apply_seen(&url("eds"), &parameters("v=1"), change, bed.now).unwrap();
    assert_eq!(client.acked(&bed), ["eds -a{} !a:5"]);
    assert!(!matches!(client.next(&bed), NextStep::Close(_)));
}

/// Prints what it costs the one writer that one client asks for names one after the other.
#[test]
fn p04b_cost_of_one_client_that_mixes() {
    for count in [25, 50, 100] {
        let mut bed = Bed::new();
        let mut client = bed.delta();
        let start = std::time::Instant::now();
        for number in 0..count {
            locate(&mut client, &bed, "eds", &["a"], &[(&format!("n{number}"), "v=2")]);
            bed.fill();
        }
        eprintln!("COST {count} names: {:?}", start.elapsed());
        let mut bed = Bed::new();
        let mut client = bed.delta();
        let start = std::time::Instant::now();
        for number in 0..count {
            locate(&mut client, &bed, "eds", &[], &[(&format!("n{number}"), "v=2")]);
            bed.fill();
        }
        eprintln!("COST {count} names, not mixed: {:?}", start.elapsed());
    }
}

#[test]
fn p25_what_was_told_before_the_wildcard_was_asked_for_is_taken_back_after_a_change_of_parameters() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &["x"], &[("a", "env=prod v=2")]);
    bed.fill();
    bed.seen("env=prod v=2", View::Named, "eds a:1[env=prod]");
    bed.seen("", View::Named, "eds x:1");
    let told = client.poll(&bed).unwrap();
    bed.seen("env=prod v=2", View::Named, "eds a:2[v=2]");
    assert!(client.poll(&bed).is_none(), "the ACK is awaited");
    locate(&mut client, &bed, "eds", &["*"], &[]);
    bed.fill();
    locate(&mut client, &bed, "eds", &[], &[("m", "env=prod")]);
    bed.fill();
    bed.known("eds");
    client.ack(&bed, &told, &[]);
    let told = client.acked(&bed).join(" ");
    assert!(told.contains(r#"a{v = "2"}:2"#) && told.contains(r#"-a{env = "prod"}"#), "{told}");
}

/// Reads until there is nothing more: bodies, then removals, by identity. No response exceeds the limit for responses by
/// more than one name.
fn told_in_parts(client: &mut Client, bed: &Bed, cut: usize) -> [Vec<String>; 2] {
    let [mut is, mut gone] = [Vec::new(), Vec::new()];
    while let Some(told) = client.poll(bed) {
        let names = told.resources.iter().map(|(name, _)| name).chain(&told.removed);
        let bytes: usize = names.map(String::len).sum();
        assert!(bytes < cut + 2000, "{bytes} bytes of names in one response");
        client.ack(bed, &told, &[]);
        is.extend(told.resources.into_iter().map(|(name, _)| name));
        gone.extend(told.removed);
    }
    [is, gone]
}

#[test]
fn r_up_23_what_is_told_by_locator_is_cut_by_what_its_constraints_take() {
    const CUT: usize = 20_000;
    let mut bed = Bed::with_limits(Limits { response_bytes: CUT, ..Limits::default() });
    let pairs = format!("v={}", "x".repeat(300));
    let names: Vec<String> = (0..200).map(|number| format!("n{number:03}")).collect();
    let all = |form: &dyn Fn(&String) -> String| {
        format!("eds {}", names.iter().map(form).collect::<Vec<_>>().join(" "))
    };
    let located: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), pairs.as_str())).collect();
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &located);
    bed.seen(&pairs, View::Named, &all(&|name| format!("{name}:1[{pairs}]")));
    let [is, gone] = told_in_parts(&mut client, &bed, CUT);
    assert_eq!((is.len(), gone.len()), (200, 0));
    // Variants that were replaced go with what takes their place.
    bed.seen(&pairs, View::Named, &all(&|name| format!("{name}:2[{pairs},!q]")));
    let [is, gone] = told_in_parts(&mut client, &bed, CUT);
    assert_eq!((is.len(), gone.len()), (200, 200));
    bed.seen(&pairs, View::Named, &all(&|name| format!("-{name}")));
    let [is, gone] = told_in_parts(&mut client, &bed, CUT);
    assert_eq!((is.len(), gone.len()), (0, 400), "both variants of each");
    locate(&mut client, &bed, "eds", &[], &located);
    let [is, gone] = told_in_parts(&mut client, &bed, CUT);
    assert_eq!((is.len(), gone.len()), (0, 600), "and its name alone");
    let mut newcomer = bed.delta();
    locate(&mut newcomer, &bed, "eds", &[], &located);
    let [is, gone] = told_in_parts(&mut newcomer, &bed, CUT);
    assert_eq!((is.len(), gone.len()), (0, 600));
}

/// Each name is seen through other parameters than the rest, so that each request leads to another store.
#[test]
fn r_sotw_18_a_list_of_locators_that_changes_holds_back_what_is_known_for_a_bounded_time() {
    let mut bed = Bed::knowing(&["cds"]);
    (bed.rules.cold_deadline, bed.rules.dead_unnoticed) = (Duration::from_secs(1), Duration::ZERO);
    bed.named("cds a:0");
    let mut client = bed.sotw();
    list(&mut client, &bed, "cds", &["a"], &[]);
    let told = client.poll(&bed).unwrap();
    client.ack(&bed, &told, &["a"]);
    let mut told = Vec::new();
    for number in 1..50 {
        bed.after(Duration::from_millis(500));
        list(&mut client, &bed, "cds", &["a"], &[(&format!("n{number}"), "v=2")]);
        bed.fill();
        bed.named(&format!("cds a:{number}"));
        bed.fill();
        told.extend(client.told(&bed));
    }
    assert!(told.len() > 5, "{} of 49 changes: {told:?}", told.len());
}

/// A name that becomes unknown with its new parameters is waited for as long as any, however long the client waits for
/// others.
#[test]
fn r_relay_04_a_held_name_that_new_parameters_make_unknown_is_waited_for_anew() {
    let mut bed = Bed::knowing(&["cds"]);
    (bed.rules.cold_deadline, bed.rules.dead_unnoticed) = (Duration::from_secs(1), Duration::ZERO);
    let step = Duration::from_millis(250);
    let mut client = bed.sotw();
    bed.seen("v=1", View::Named, "cds a:1[v=1]");
    bed.named("cds other:1");
    list(&mut client, &bed, "cds", &["b"], &[("a", "v=1")]);
    bed.fill();
    bed.named("cds b:1");
    bed.fill();
    assert_eq!(client.told(&bed), [r#"cds a{v = "1"}:1 b:1"#]);
    list(&mut client, &bed, "cds", &["b"], &[("a", "v=1"), ("silent", "v=3")]);
    bed.fill();
    bed.after(Duration::from_millis(2500));
    assert!(client.poll(&bed).is_none());
    list(&mut client, &bed, "cds", &["b"], &[("a", "v=2"), ("silent", "v=3")]);
    bed.fill();
    for _ in 0..8 {
        bed.after(step);
        assert_eq!(client.told(&bed), [""; 0], "`a` is unknown, and held");
    }
    bed.seen("v=2", View::Named, "cds a:2[v=2]");
    bed.fill();
    bed.after(Duration::from_secs(1));
    assert_eq!(client.told(&bed), [r#"cds a{v = "2"}:2 b:1"#]);
}

#[test]
fn many_located_names_that_do_not_exist_are_told_in_linear_time() {
    let mut bed = Bed::new();
    let names: Vec<String> = (0..80_000).map(|number| format!("n{number}")).collect();
    let located: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v=1")).collect();
    let gone = names.iter().map(|name| format!("-{name}")).collect::<Vec<_>>().join(" ");
    bed.seen("v=1", View::Named, &format!("eds {gone}"));
    let mut client = bed.delta();
    locate(&mut client, &bed, "eds", &[], &located);
    let start = std::time::Instant::now();
    let NextStep::Say(outgoing) = client.next(&bed) else { panic!("they do not exist") };
    let took = start.elapsed();
    let told = crate::wire::read(deltafan::cache::Protocol::Delta, &outgoing.frame);
    assert_eq!(told.removed.len(), names.len());
    // Far more than it takes on a busy machine, far less than it takes when it grows with the square.
    assert!(took < Duration::from_secs(4), "{took:?}");
}
