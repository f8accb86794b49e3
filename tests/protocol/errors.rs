//! Errors of single resources: R-Err.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Change, Limits, Op, OriginError, Protocol, Resend, TtlSupport, View};
use deltafan::proto;
use deltafan::subscription::{NextStep, Upstream};

use crate::support::{Bed, Client, show, strings, url};
use crate::wire;

const NOTHING: [&str; 0] = [];

// google.rpc.Code
pub(crate) const NOT_FOUND: i32 = 5;
pub(crate) const DENIED: i32 = 7;
pub(crate) const UNAVAILABLE: i32 = 14;

fn failure(code: i32, message: &str) -> Arc<OriginError> {
    Arc::new(OriginError::new(code, message))
}

pub(crate) fn fail(name: &str, code: i32) -> Op {
    Op::Fail { name: name.into(), failure: failure(code, "why"), listed: false }
}

impl Bed {
    pub(crate) fn ops(&mut self, short: &str, ops: Vec<Op>) {
        self.apply(short, Change { ops, ..Change::default() });
    }

    fn fail(&mut self, short: &str, name: &str, code: i32) {
        self.ops(short, vec![fail(name, code)]);
    }

    fn delta_of(&self, short: &str, names: &str) -> Client {
        let mut client = self.delta();
        client.change(self, short, names);
        client
    }

    fn sotw_of(&self, short: &str, names: &[&str]) -> Client {
        let mut client = self.sotw();
        client.ask(self, short, names);
        client
    }
}

#[test]
fn r_err_01_an_error_is_told_once_and_an_equal_one_is_no_news() {
    let mut bed = Bed::new();
    bed.named("eds a:1 b:1");
    let mut delta = bed.delta_of("eds", "a b");
    let mut sotw = bed.sotw_of("eds", &["a", "b"]);
    let names = [("eds", &["a", "b"][..])];
    assert_eq!(
        (delta.acked(&bed), sotw.acked_with(&bed, &names)),
        (vec!["eds a:1 b:1".into()], vec!["eds a:1 b:1".into()])
    );
    let version = sotw.newest("eds").version.clone();

    bed.fail("eds", "a", UNAVAILABLE);
    assert_eq!(
        (delta.acked(&bed), sotw.acked_with(&bed, &names)),
        (vec!["eds !a:14".into()], vec!["eds !a:14".into()])
    );
    assert_eq!(delta.newest("eds").errors, [("a".to_owned(), UNAVAILABLE, "why".to_owned())]);
    assert_eq!(sotw.newest("eds").version, version, "an error is no version");
    bed.fail("eds", "a", UNAVAILABLE);
    bed.named("eds b:2");
    assert_eq!(
        (delta.acked(&bed), sotw.acked_with(&bed, &names)),
        (vec!["eds b:2".into()], vec!["eds b:2".into()])
    );
    bed.fail("eds", "a", 13);
    assert_eq!(
        (delta.acked(&bed), sotw.acked_with(&bed, &names)),
        (vec!["eds !a:13".into()], vec!["eds !a:13".into()])
    );
}

#[test]
fn r_err_01_the_resource_ends_its_error_unchanged_too() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    let mut delta = bed.delta_of("eds", "a");
    delta.acked(&bed);
    bed.fail("eds", "a", UNAVAILABLE);
    assert_eq!(delta.acked(&bed), ["eds !a:14"]);
    bed.named("eds a:1");
    assert_eq!(delta.acked(&bed), ["eds a:1"], "what ends the error at the client");
    assert_eq!(bed.delta_of("eds", "a").acked(&bed), ["eds a:1"], "and here");
    bed.fail("eds", "a", UNAVAILABLE);
    assert_eq!(delta.acked(&bed), ["eds !a:14"], "a new one");
}

#[test]
fn r_err_01_who_subscribes_again_is_told_again() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    bed.fail("eds", "b", UNAVAILABLE);
    let mut delta = bed.delta_of("eds", "a b");
    assert_eq!(delta.acked(&bed), ["eds a:1 !b:14"]);
    delta.change(&bed, "eds", "b");
    assert_eq!(delta.acked(&bed), ["eds !b:14"]);
    bed.fail("eds", "a", UNAVAILABLE);
    assert_eq!(delta.acked(&bed), ["eds !a:14"]);
    delta.change(&bed, "eds", "a");
    assert_eq!(delta.acked(&bed), ["eds a:1", "eds !a:14"]);
}

#[test]
fn r_err_01_a_cohort_shares_the_frame_of_an_error() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    let mut clients: Vec<_> = (0..20).map(|_| bed.delta_of("eds", "a")).collect();
    for client in &mut clients {
        client.acked(&bed);
    }
    let before = bed.cache.encoder().encodes();
    bed.fail("eds", "a", UNAVAILABLE);
    for client in &mut clients {
        assert_eq!(client.acked(&bed), ["eds !a:14"]);
    }
    assert_eq!(bed.cache.encoder().encodes() - before, 1);
}

#[test]
fn r_err_01_an_error_waits_for_its_gate() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    let mut delta = bed.delta_of("eds", "a");
    let told = delta.poll(&bed).unwrap();
    bed.fail("eds", "a", UNAVAILABLE);
    assert!(delta.poll(&bed).is_none());
    delta.ack(&bed, &told, &[]);
    assert_eq!(delta.acked(&bed), ["eds !a:14"]);
}

#[test]
fn r_err_02_a_transient_error_takes_nothing_away() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    for code in [14, 13, 2, 4, 99] {
        bed.fail("eds", "a", code);
        let mut late = bed.delta_of("eds", "a");
        assert_eq!(late.acked(&bed), ["eds a:1".to_owned(), format!("eds !a:{code}")]);
        let mut sotw = bed.sotw_of("eds", &["a"]);
        let names = [("eds", &["a"][..])];
        assert_eq!(sotw.acked_with(&bed, &names), ["eds a:1".to_owned(), format!("eds !a:{code}")]);
    }
}

#[test]
fn r_err_03_not_found_is_does_not_exist() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    let mut delta = bed.delta_of("eds", "a");
    let mut sotw = bed.sotw_of("eds", &["a"]);
    let names = [("eds", &["a"][..])];
    delta.acked(&bed);
    sotw.acked_with(&bed, &names);
    bed.fail("eds", "a", NOT_FOUND);
    assert_eq!(delta.acked(&bed), ["eds -a !a:5"], "R-Err-07");
    assert_eq!(sotw.acked_with(&bed, &names), ["eds !a:5"], "the only sign there is");
    assert_eq!(bed.delta_of("eds", "a").acked(&bed), ["eds -a !a:5"]);
    assert_eq!(bed.sotw_of("eds", &["a"]).acked_with(&bed, &names), ["eds !a:5"]);
    bed.named("eds -a");
    assert_eq!(delta.acked(&bed), NOTHING, "it says the same");
    bed.named("eds a:1");
    assert_eq!(
        (delta.acked(&bed), sotw.acked_with(&bed, &names)),
        (vec!["eds a:1".into()], vec!["eds a:1".into()])
    );
}

#[test]
fn r_err_03_a_name_with_an_error_keeps_no_one_waiting() {
    let mut bed = Bed::new();
    bed.named("cds a:1");
    let mut client = bed.sotw();
    let first = proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        resource_names: strings(&["a", "b"]),
        version_info: "of an earlier stream".to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(&bed, first).unwrap();
    let names = [("cds", &["a", "b"][..])];
    assert_eq!(client.acked_with(&bed, &names), NOTHING);
    bed.fail("cds", "b", UNAVAILABLE);
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 !b:14"]);
    bed.named("cds b:1");
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 b:1"]);

    // Nor is a stream without anything else cold.
    bed.fail("eds", "e", UNAVAILABLE);
    bed.upstream = Upstream::Away;
    let mut cold = bed.delta_of("eds", "e");
    assert_eq!(cold.acked(&bed), ["eds !e:14"]);
    bed.after(Duration::from_secs(60));
    assert!(matches!(cold.next(&bed), NextStep::Wait(_)));
}

#[test]
fn r_err_03_a_removal_without_an_error_ends_it() {
    let mut bed = Bed::new();
    bed.fail("eds", "a", UNAVAILABLE);
    let mut delta = bed.delta_of("eds", "a");
    assert_eq!(delta.acked(&bed), ["eds !a:14"]);
    bed.named("eds -a");
    assert_eq!(delta.acked(&bed), ["eds -a"]);
    assert_eq!(bed.delta_of("eds", "a").acked(&bed), ["eds -a"]);
    bed.fail("eds", "a", UNAVAILABLE);
    assert_eq!(delta.acked(&bed), ["eds !a:14"]);
    bed.ops("eds", vec![Op::Forget { view: View::Named, name: "a".into() }]);
    assert_eq!(bed.delta_of("eds", "a").acked(&bed), NOTHING, "unknown again");
    assert_eq!(bed.cache.of(&url("eds")).unwrap().snapshot().entries().count(), 0);
}

#[test]
fn r_err_04_a_full_state_with_an_error_holds_all_that_there_is() {
    let mut bed = Bed::new();
    bed.named("cds a:1 b:1 c:1");
    let names = [("cds", &["a", "b", "c", "d"][..])];
    let mut client = bed.sotw_of("cds", names[0].1);
    bed.fail("cds", "d", UNAVAILABLE);
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 b:1 c:1 !d:14"]);
    let version = client.newest("cds").version.clone();
    bed.fail("cds", "a", UNAVAILABLE);
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 b:1 c:1 !a:14"], "who ignores errors keeps `a`");
    assert_eq!(client.newest("cds").version, version);
    bed.fail("cds", "b", NOT_FOUND);
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 c:1 !b:5"]);
    bed.named("cds c:2");
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 c:2"], "told once");
    let mut late = bed.sotw_of("cds", names[0].1);
    assert_eq!(late.acked_with(&bed, &names), ["cds a:1 c:2 !b:5 !d:14", "cds a:1 c:2 !a:14"]);
}

#[test]
fn r_err_04_a_name_that_is_listed_later_has_its_error_after_it() {
    let mut bed = Bed::new();
    bed.named("cds a:1 b:1");
    bed.fail("cds", "b", UNAVAILABLE);
    bed.fail("cds", "c", UNAVAILABLE);
    let mut client = bed.sotw_of("cds", &["a"]);
    assert_eq!(client.acked_with(&bed, &[("cds", &["a"])]), ["cds a:1"]);
    let names = [("cds", &["a", "b", "c"][..])];
    client.ask(&bed, "cds", names[0].1);
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1 b:1", "cds a:1 b:1 !b:14 !c:14"]);
}

#[test]
fn r_err_05_the_wildcard_is_told_of_no_errors() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1 b:1");
    let mut wildcard = bed.delta_of("cds", "*");
    let mut sotw = bed.sotw_of("cds", &[]);
    let mut both = bed.delta_of("cds", "* a");
    wildcard.acked(&bed);
    sotw.acked(&bed);
    both.acked(&bed);
    bed.fail("cds", "a", UNAVAILABLE);
    bed.fail("cds", "c", UNAVAILABLE);
    assert_eq!(wildcard.acked(&bed), NOTHING);
    assert_eq!(sotw.acked(&bed), NOTHING);
    assert_eq!(both.acked(&bed), ["cds !a:14"], "who also asks by name is");
    bed.fail("cds", "a", NOT_FOUND);
    assert_eq!(both.acked(&bed), NOTHING, "as a member it exists");
    bed.origin("cds -a");
    assert_eq!((wildcard.acked(&bed), both.acked(&bed)), (vec!["cds -a".into()], vec!["cds -a !a:5".into()]));
}

const GLOB: &str = "xdstp://a/t/foo/*?k=v";
const X: &str = "xdstp://a/t/foo/x?k=v";
const Y: &str = "xdstp://a/t/foo/y?k=v";

#[test]
fn r_xt_08_errors_of_a_glob_and_of_its_members() {
    let mut bed = Bed::new();
    bed.fail("eds", GLOB, UNAVAILABLE);
    let spelled = "xdstp://a/t/foo/%2A?k=v";
    let mut client = bed.delta_of("eds", GLOB);
    let mut other = bed.delta_of("eds", spelled);
    assert_eq!(client.acked(&bed), [format!("eds !{GLOB}:14")]);
    assert_eq!(other.acked(&bed), [format!("eds !{spelled}:14")], "by the name that it asked for");
    bed.named(&format!("eds {X}:1"));
    let listed = |name: &str, code| Op::Fail { name: name.into(), failure: failure(code, ""), listed: true };
    bed.ops("eds", vec![Op::Complete { name: GLOB.into() }, listed(Y, UNAVAILABLE)]);
    assert_eq!(client.acked(&bed), [format!("eds {X}:1 !{Y}:14")]);
    assert_eq!(bed.delta_of("eds", GLOB).acked(&bed), [format!("eds {X}:1 !{Y}:14")], "the glob's is over");
    client.change(&bed, "eds", GLOB);
    assert_eq!(client.acked(&bed), [format!("eds {X}:1 !{Y}:14")]);
    bed.ops("eds", vec![listed(X, NOT_FOUND), listed("xdstp://a/t/foo/never?k=v", NOT_FOUND)]);
    assert_eq!(client.acked(&bed), [format!("eds -{GLOB} -{X} !{X}:5")]);
    assert_eq!(bed.delta_of("eds", GLOB).acked(&bed), [format!("eds -{GLOB} !{Y}:14")]);
    assert_eq!(bed.delta_of("eds", X).acked(&bed), NOTHING, "the origin was not asked for it by name");
}

#[test]
fn r_err_06_who_holds_what_is_denied_keeps_it_and_newcomers_do_not_get_it() {
    let mut bed = Bed::new();
    bed.named("eds a:1 b:1");
    let mut holder = bed.delta_of("eds", "a b");
    holder.acked(&bed);
    bed.fail("eds", "a", DENIED);
    assert_eq!(holder.acked(&bed), ["eds !a:7"], "and no removal");
    let names = [("eds", &["a", "b"][..])];
    assert_eq!(bed.delta_of("eds", "a b").acked(&bed), ["eds b:1 !a:7"]);
    assert_eq!(bed.sotw_of("eds", names[0].1).acked_with(&bed, &names), ["eds b:1 !a:7"]);
    let mut newcomer = bed.delta_of("eds", "b");
    newcomer.acked(&bed);
    newcomer.change(&bed, "eds", "a");
    assert_eq!(newcomer.acked(&bed), ["eds !a:7"]);
    bed.fail("eds", "a", UNAVAILABLE);
    assert_eq!(newcomer.acked(&bed), ["eds !a:14"], "what is transient permits nothing");
    assert_eq!(bed.delta_of("eds", "a").acked(&bed), ["eds !a:14"]);
    bed.named("eds a:1");
    assert_eq!((newcomer.acked(&bed), holder.acked(&bed)), (vec!["eds a:1".into()], vec!["eds a:1".into()]));
}

#[test]
fn r_err_06_full_states_of_holders_have_what_is_denied_and_those_of_newcomers_do_not() {
    let mut bed = Bed::new();
    bed.named("cds a:1 b:1");
    let names = [("cds", &["a", "b"][..])];
    let mut holder = bed.sotw_of("cds", names[0].1);
    holder.acked_with(&bed, &names);
    let mut narrow = bed.sotw_of("cds", &["b"]);
    narrow.acked_with(&bed, &[("cds", &["b"])]);
    bed.fail("cds", "a", DENIED);
    assert_eq!(holder.acked_with(&bed, &names), ["cds a:1 b:1 !a:7"]);
    let mut newcomer = bed.sotw_of("cds", names[0].1);
    assert_eq!(newcomer.acked_with(&bed, &names), ["cds b:1 !a:7"]);
    narrow.ask(&bed, "cds", names[0].1);
    assert_eq!(narrow.acked_with(&bed, &names), ["cds b:1", "cds b:1 !a:7"]);
    bed.named("cds b:2");
    assert_eq!(holder.acked_with(&bed, &names), ["cds a:1 b:2"]);
    assert_eq!(newcomer.acked_with(&bed, &names), ["cds b:2"]);
    assert_eq!(narrow.acked_with(&bed, &names), ["cds b:2"]);
    assert_ne!(holder.newest("cds").version, newcomer.newest("cds").version);
    bed.named("cds a:1");
    for client in [&mut holder, &mut newcomer, &mut narrow] {
        assert_eq!(client.acked_with(&bed, &names), ["cds a:1 b:2"]);
    }
    bed.fail("cds", "a", DENIED);
    bed.named("cds b:3");
    assert_eq!(newcomer.acked_with(&bed, &names), ["cds a:1 b:3 !a:7"], "now it holds it");
}

#[test]
fn r_err_06_a_late_subscriber_gets_the_body_and_then_the_error() {
    let mut bed = Bed::new();
    bed.named("eds a:1");
    bed.fail("eds", "a", UNAVAILABLE);
    let mut late = bed.delta_of("eds", "a");
    let told = late.poll(&bed).unwrap();
    assert_eq!(show(&told), "eds a:1");
    assert!(late.poll(&bed).is_none(), "one response at a time");
    late.ack(&bed, &told, &[]);
    assert_eq!(late.acked(&bed), ["eds !a:14"]);
    let mut resumed = bed.delta();
    resumed.resume(&bed, "eds", &["a"], &[("a", "1")]);
    assert_eq!(resumed.acked(&bed), ["eds a:1", "eds !a:14"]);
    // Before it was told, the resource came again.
    let mut late = bed.delta_of("eds", "a");
    let told = late.poll(&bed).unwrap();
    bed.named("eds a:2");
    late.ack(&bed, &told, &[]);
    assert_eq!(late.acked(&bed), ["eds a:2"]);
}

#[test]
fn r_err_07_not_found_waits_with_the_removal_that_it_is() {
    let mut bed = Bed::new();
    bed.named("cds a:1");
    bed.named("rds r:1");
    let mut client = bed.delta_of("cds", "a");
    client.change(&bed, "rds", "r");
    client.acked(&bed);
    let mut sotw = bed.sotw_of("cds", &["a"]);
    sotw.ask(&bed, "rds", &["r"]);
    let names = [("cds", &["a"][..]), ("rds", &["r"][..])];
    sotw.acked_with(&bed, &names);
    bed.fail("cds", "a", NOT_FOUND);
    bed.named("rds r:2");
    assert_eq!(client.acked(&bed), ["rds r:2", "cds -a !a:5"], "R-ADS-03");
    assert_eq!(sotw.acked_with(&bed, &names), ["rds r:2", "cds !a:5"]);
    bed.named("cds a:1");
    client.acked(&bed);
    client.change(&bed, "cds", "b");
    bed.fail("cds", "a", NOT_FOUND);
    bed.named("cds b:1");
    bed.named("rds r:3");
    assert_eq!(
        client.acked(&bed),
        ["cds b:1", "rds r:3", "cds -a !a:5"],
        "not with an addition of its own type"
    );
}

#[test]
fn r_err_01_errors_are_bounded_in_one_response_and_the_rest_follows() {
    let mut bed = Bed::new();
    let names: Vec<String> = (0..2500).map(|number| format!("n{number}")).collect();
    bed.ops("eds", names.iter().map(|name| fail(name, UNAVAILABLE)).collect());
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let count = |client: &mut Client, bed: &Bed, repeat: &[&str]| {
        let mut counts = Vec::new();
        while let Some(told) = client.poll(bed) {
            client.ack(bed, &told, repeat);
            counts.push(told.errors.len());
        }
        counts
    };
    let mut delta = bed.delta_of("eds", &all.join(" "));
    assert_eq!(count(&mut delta, &bed, &[]), [1000, 1000, 500]);
    let mut sotw = bed.sotw_of("eds", &all);
    assert_eq!(count(&mut sotw, &bed, &all), [1000, 1000, 500]);

    let mut bed = Bed::with_limits(Limits { response_bytes: 4000, ..Limits::default() });
    let long = "é".repeat(5000);
    let ops = all[..20].iter().map(|name| Op::Fail {
        name: (*name).into(),
        failure: failure(UNAVAILABLE, &long),
        listed: false,
    });
    bed.ops("eds", ops.collect());
    let mut delta = bed.delta_of("eds", &all[..20].join(" "));
    assert_eq!(count(&mut delta, &bed, &[]), [4, 4, 4, 4, 4]);
    assert_eq!(delta.newest("eds").errors[0].2, "é".repeat(512), "and so is a message");
}

#[test]
fn r_err_06_answers_in_parts_have_their_errors_after_their_bodies() {
    let mut bed = Bed::with_limits(Limits { response_bytes: 2000, ..Limits::default() });
    let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
    let set = |name: &String| Op::Set {
        view: View::Named,
        resource: wire::resource(&url("eds"), name, "1", 900),
        resend: Resend::Answer,
        lease: None,
    };
    bed.ops("eds", names.iter().map(set).collect());
    bed.ops("eds", names.iter().step_by(2).map(|name| fail(name, UNAVAILABLE)).collect());
    let mut client = bed.delta_of("eds", &names.join(" "));
    let (mut bodies, mut errors) = (BTreeSet::new(), BTreeSet::new());
    while let Some(told) = client.poll(&bed) {
        client.ack(&bed, &told, &[]);
        for (name, ..) in &told.errors {
            assert!(bodies.contains(name) && errors.insert(name.clone()), "{name}");
        }
        bodies.extend(told.resources.into_iter().map(|(name, _)| name));
    }
    assert_eq!((bodies.len(), errors.len()), (9, 5));
}

#[test]
fn r_rest_12_a_poll_sees_no_errors_and_nothing_that_is_denied() {
    use deltafan::cache::{StreamProfile, Subscription};
    let mut bed = Bed::new();
    bed.named("eds a:1 b:1");
    let profile = StreamProfile { protocol: Protocol::Sotw, aggregated: false, ttl: TtlSupport::Untold };
    let of = bed.cache.of(&url("eds")).unwrap();
    let join = |names: &[&str]| {
        of.join(Subscription::new(false, names.iter().map(|name| (*name).into())), profile, &Arc::default())
    };
    let (both, cold) = (join(&["a", "b"]), join(&["c"]));
    let before = of.set_state(both.cohort()).version;
    bed.fail("eds", "a", UNAVAILABLE);
    bed.fail("eds", "c", UNAVAILABLE);
    assert_eq!(of.set_state(both.cohort()).version, before);
    let set_state = of.set_state(cold.cohort());
    assert!(
        set_state.unknown_name && !set_state.knows_something,
        "unknown is not shown as empty (R-REST-09)"
    );
    bed.fail("eds", "a", DENIED);
    let names: Vec<_> =
        of.found(both.cohort()).resources.iter().map(|found| found.name().to_string()).collect();
    assert_eq!(names, ["b"]);
    assert!(of.set_state(both.cohort()).unknown_name);
}
