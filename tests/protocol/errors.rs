//! Errors of single resources: R-Err.

use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Limits, Op, OriginError, Protocol, TtlSupport};
use deltafan::proto;
use deltafan::subscription::{NextStep, Upstream};
use deltafan_test_support::fixture::{Client, Fixture, fail, strings, url};

const NOTHING: [&str; 0] = [];

// google.rpc.Code
pub(crate) const NOT_FOUND: i32 = 5;
pub(crate) const DENIED: i32 = 7;
pub(crate) const UNAVAILABLE: i32 = 14;

fn failure(code: i32, message: &str) -> Arc<OriginError> {
    Arc::new(OriginError::new(code, message))
}

#[test]
fn r_err_01_an_error_is_told_once_and_an_equal_one_is_no_news() {
    let mut fixture = Fixture::new().with_named("eds a:1 b:1");
    let mut delta = fixture.delta_of("eds", "a b");
    let mut sotw = fixture.sotw_of("eds", &["a", "b"]);
    let names = [("eds", &["a", "b"][..])];
    assert_eq!(delta.acked(&fixture), ["eds a:1 b:1"]);
    assert_eq!(sotw.acked_with(&fixture, &names), ["eds a:1 b:1"]);
    let version = sotw.newest("eds").version.clone();

    fixture.fail("eds", "a", UNAVAILABLE);
    assert_eq!(delta.acked(&fixture), ["eds !a:14"]);
    assert_eq!(sotw.acked_with(&fixture, &names), ["eds !a:14"]);
    assert_eq!(delta.newest("eds").errors, [("a".to_owned(), UNAVAILABLE, "why".to_owned())]);
    assert_eq!(sotw.newest("eds").version, version, "an error is no version");
    fixture.fail("eds", "a", UNAVAILABLE);
    fixture.named("eds b:2");
    assert_eq!(delta.acked(&fixture), ["eds b:2"]);
    assert_eq!(sotw.acked_with(&fixture, &names), ["eds b:2"]);
    fixture.fail("eds", "a", 13);
    assert_eq!(delta.acked(&fixture), ["eds !a:13"]);
    assert_eq!(sotw.acked_with(&fixture, &names), ["eds !a:13"]);
}

#[test]
fn r_err_01_a_cohort_shares_the_frame_of_an_error() {
    let mut fixture = Fixture::new().with_named("eds a:1");
    let mut clients: Vec<_> = (0..20).map(|_| fixture.delta_of("eds", "a")).collect();
    for client in &mut clients {
        client.acked(&fixture);
    }
    let before = fixture.cache.encoder().encodes();
    fixture.fail("eds", "a", UNAVAILABLE);
    for client in &mut clients {
        assert_eq!(client.acked(&fixture), ["eds !a:14"]);
    }
    assert_eq!(fixture.cache.encoder().encodes() - before, 1);
}

#[test]
fn r_err_03_a_name_with_an_error_keeps_no_one_waiting() {
    let mut fixture = Fixture::new().with_named("cds a:1");
    let mut client = fixture.sotw();
    let first = proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        resource_names: strings(&["a", "b"]),
        version_info: "of an earlier stream".to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(&fixture, first).unwrap();
    let names = [("cds", &["a", "b"][..])];
    assert_eq!(client.acked_with(&fixture, &names), NOTHING);
    fixture.fail("cds", "b", UNAVAILABLE);
    assert_eq!(client.acked_with(&fixture, &names), ["cds a:1 !b:14"]);
    fixture.named("cds b:1");
    assert_eq!(client.acked_with(&fixture, &names), ["cds a:1 b:1"]);

    // Nor is a stream without anything else cold.
    fixture.fail("eds", "e", UNAVAILABLE);
    fixture.upstream = Upstream::Away;
    let mut cold = fixture.delta_of("eds", "e");
    assert_eq!(cold.acked(&fixture), ["eds !e:14"]);
    fixture.after(Duration::from_secs(60));
    assert!(matches!(cold.next(&fixture), NextStep::Wait(_)));
}

#[test]
fn r_err_04_a_full_state_with_an_error_holds_all_that_there_is() {
    let mut fixture = Fixture::new().with_named("cds a:1 b:1 c:1");
    let names = [("cds", &["a", "b", "c", "d"][..])];
    let mut client = fixture.sotw_of("cds", names[0].1);
    fixture.fail("cds", "d", UNAVAILABLE);
    assert_eq!(client.acked_with(&fixture, &names), ["cds a:1 b:1 c:1 !d:14"]);
    let version = client.newest("cds").version.clone();
    fixture.fail("cds", "a", UNAVAILABLE);
    assert_eq!(
        client.acked_with(&fixture, &names),
        ["cds a:1 b:1 c:1 !a:14"],
        "who ignores errors keeps `a`"
    );
    assert_eq!(client.newest("cds").version, version);
    fixture.fail("cds", "b", NOT_FOUND);
    assert_eq!(client.acked_with(&fixture, &names), ["cds a:1 c:1 !b:5"]);
    fixture.named("cds c:2");
    assert_eq!(client.acked_with(&fixture, &names), ["cds a:1 c:2"], "told once");
    let mut late = fixture.sotw_of("cds", names[0].1);
    assert_eq!(late.acked_with(&fixture, &names), ["cds a:1 c:2 !b:5 !d:14", "cds a:1 c:2 !a:14"]);
}

const GLOB: &str = "xdstp://a/t/foo/*?k=v";
const X: &str = "xdstp://a/t/foo/x?k=v";
const Y: &str = "xdstp://a/t/foo/y?k=v";

#[test]
fn r_xt_08_errors_of_a_glob_and_of_its_members() {
    let mut fixture = Fixture::new();
    fixture.fail("eds", GLOB, UNAVAILABLE);
    let spelled = "xdstp://a/t/foo/%2A?k=v";
    let mut client = fixture.delta_of("eds", GLOB);
    let mut other = fixture.delta_of("eds", spelled);
    assert_eq!(client.acked(&fixture), [format!("eds !{GLOB}:14")]);
    assert_eq!(other.acked(&fixture), [format!("eds !{spelled}:14")], "by the name that it asked for");
    fixture.named(&format!("eds {X}:1"));
    let listed = |name: &str, code| Op::Fail { name: name.into(), failure: failure(code, ""), listed: true };
    fixture.ops("eds", vec![Op::Complete { name: GLOB.into() }, listed(Y, UNAVAILABLE)]);
    assert_eq!(client.acked(&fixture), [format!("eds {X}:1 !{Y}:14")]);
    assert_eq!(
        fixture.delta_of("eds", GLOB).acked(&fixture),
        [format!("eds {X}:1 !{Y}:14")],
        "the glob's is over"
    );
    client.change(&fixture, "eds", GLOB);
    assert_eq!(client.acked(&fixture), [format!("eds {X}:1 !{Y}:14")]);
    fixture.ops("eds", vec![listed(X, NOT_FOUND), listed("xdstp://a/t/foo/never?k=v", NOT_FOUND)]);
    assert_eq!(client.acked(&fixture), [format!("eds -{GLOB} -{X} !{X}:5")]);
    assert_eq!(fixture.delta_of("eds", GLOB).acked(&fixture), [format!("eds -{GLOB} !{Y}:14")]);
    assert_eq!(
        fixture.delta_of("eds", X).acked(&fixture),
        NOTHING,
        "the origin was not asked for it by name"
    );
}

#[test]
fn r_err_07_not_found_waits_with_the_removal_that_it_is() {
    let mut fixture = Fixture::new().with_named("cds a:1").with_named("rds r:1");
    let mut client = fixture.delta_of("cds", "a");
    client.change(&fixture, "rds", "r");
    client.acked(&fixture);
    let mut sotw = fixture.sotw_of("cds", &["a"]);
    sotw.ask(&fixture, "rds", &["r"]);
    let names = [("cds", &["a"][..]), ("rds", &["r"][..])];
    sotw.acked_with(&fixture, &names);
    fixture.fail("cds", "a", NOT_FOUND);
    fixture.named("rds r:2");
    assert_eq!(client.acked(&fixture), ["rds r:2", "cds -a !a:5"], "R-ADS-03");
    assert_eq!(sotw.acked_with(&fixture, &names), ["rds r:2", "cds !a:5"]);
    fixture.named("cds a:1");
    client.acked(&fixture);
    client.change(&fixture, "cds", "b");
    fixture.fail("cds", "a", NOT_FOUND);
    fixture.named("cds b:1");
    fixture.named("rds r:3");
    assert_eq!(
        client.acked(&fixture),
        ["cds b:1", "rds r:3", "cds -a !a:5"],
        "not with an addition of its own type"
    );
}

#[test]
fn r_err_01_errors_are_bounded_in_one_response_and_the_rest_follows() {
    let mut fixture = Fixture::new();
    let names: Vec<String> = (0..2500).map(|number| format!("n{number}")).collect();
    fixture.ops("eds", names.iter().map(|name| fail(name, UNAVAILABLE)).collect());
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let count = |client: &mut Client, fixture: &Fixture, repeat: &[&str]| {
        let mut counts = Vec::new();
        while let Some(told) = client.poll(fixture) {
            client.ack(fixture, &told, repeat);
            counts.push(told.errors.len());
        }
        counts
    };
    let mut delta = fixture.delta_of("eds", &all.join(" "));
    assert_eq!(count(&mut delta, &fixture, &[]), [1000, 1000, 500]);
    let mut sotw = fixture.sotw_of("eds", &all);
    assert_eq!(count(&mut sotw, &fixture, &all), [1000, 1000, 500]);

    let mut fixture = Fixture::with_limits(Limits { response_bytes: 4000, ..Limits::default() });
    let long = "é".repeat(5000);
    let ops = all[..20].iter().map(|name| Op::Fail {
        name: (*name).into(),
        failure: failure(UNAVAILABLE, &long),
        listed: false,
    });
    fixture.ops("eds", ops.collect());
    let mut delta = fixture.delta_of("eds", &all[..20].join(" "));
    assert_eq!(count(&mut delta, &fixture, &[]), [4, 4, 4, 4, 4]);
    assert_eq!(delta.newest("eds").errors[0].2, "é".repeat(512), "and so is a message");
}

#[test]
fn r_rest_12_a_poll_sees_no_errors_and_nothing_that_is_denied() {
    use deltafan::cache::{StreamProfile, Subscription};
    let mut fixture = Fixture::new().with_named("eds a:1 b:1");
    let profile = StreamProfile { protocol: Protocol::Sotw, aggregated: false, ttl: TtlSupport::Unsupported };
    let of = fixture.cache.of(&url("eds")).unwrap();
    let join = |names: &[&str]| {
        of.join(Subscription::new(false, names.iter().map(|name| (*name).into())), profile, &Arc::default())
    };
    let (both, cold) = (join(&["a", "b"]), join(&["c"]));
    let before = of.set_state(both.cohort()).version;
    fixture.fail("eds", "a", UNAVAILABLE);
    fixture.fail("eds", "c", UNAVAILABLE);
    assert_eq!(of.set_state(both.cohort()).version, before);
    let set_state = of.set_state(cold.cohort());
    assert!(
        set_state.unknown_name && !set_state.knows_something,
        "unknown is not shown as empty (R-REST-09)"
    );
    fixture.fail("eds", "a", DENIED);
    let names: Vec<_> =
        of.set_contents(both.cohort()).resources.iter().map(|found| found.name().to_string()).collect();
    assert_eq!(names, ["b"]);
    assert!(of.set_state(both.cohort()).unknown_name);
}
