//! Errors of single resources.

use super::*;
use crate::cache::OriginError;
use crate::proto::ResourceError;

// google.rpc.Code
const NOT_FOUND: i32 = 5;
const DENIED: i32 = 7;
const UNAVAILABLE: i32 = 14;

impl Fixture {
    /// The code of the error of a name.
    fn code(&self, kind: Kind, name: &str) -> Option<i32> {
        self.snapshot(kind).get(name)?.failure().map(OriginError::code)
    }

    fn refuses(&mut self, answer: &Answer) -> String {
        self.deliver(Primary, answer);
        let requests = self.requests(Primary);
        let refused = requests.into_iter().find_map(|request| request.error_detail);
        refused.expect("a NACK").message
    }
}

fn fixture(names: &[&str]) -> Fixture {
    Fixture::asking("a", EDS, names)
}

#[test]
fn r_err_01_the_last_error_is_kept_until_the_resource_comes() {
    let mut fixture = fixture(&["e1", "e2"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").fail("e2", UNAVAILABLE));
    assert_eq!(fixture.see(EDS, ["e1", "e2"]), ["v1", "failed"]);
    assert_eq!(fixture.code(EDS, "e2"), Some(UNAVAILABLE));
    fixture.hear(Primary, &Answer::of(EDS, "2").fail("e1", 13));
    assert_eq!((fixture.seen(EDS, "e1"), fixture.code(EDS, "e1")), ("v1".to_owned(), Some(13)));
    let before = fixture.snapshot(EDS).generation();
    fixture.hear(Primary, &Answer::of(EDS, "3").fail("e1", 13));
    assert_eq!(fixture.snapshot(EDS).generation(), before, "no news");
    fixture.hear(Primary, &Answer::of(EDS, "4").set("e1", "v1").set("e2", "v1"));
    assert_eq!((fixture.code(EDS, "e1"), fixture.code(EDS, "e2")), (None, None));
    assert_eq!(fixture.mux.counters().resource_errors.get(), 3);
}

#[test]
fn r_err_01_a_name_is_not_both_sent_and_in_error() {
    let mut fixture = fixture(&["e1", "xdstp://a/t/x?a=1&b=2"]);
    let fault = fixture.refuses(&Answer::of(EDS, "1").set("e1", "v1").fail("e1", UNAVAILABLE));
    assert!(fault.contains("`e1` is both sent and in error"), "{fault}");
    let spelled =
        Answer::of(EDS, "2").set("xdstp://a/t/x?a=1&b=2", "v1").fail("xdstp://a/t/x?b=2&a=1", DENIED);
    assert!(fixture.refuses(&spelled).contains("both sent and in error"));
    let fault = fixture.refuses(&Answer::of(EDS, "3").set("e1", "v1").fail("", UNAVAILABLE));
    assert!(fault.contains("no name"), "{fault}");
    assert!(fixture.refuses(&Answer::of(EDS, "4").fail("e1", 0)).contains("OK"));
    let mut nothing = Answer::of(EDS, "5");
    nothing.0.resource_errors.push(ResourceError::default());
    assert!(fixture.refuses(&nothing).contains("no name"));
    assert_eq!(fixture.seen(EDS, "e1"), "unknown", "nothing of them was applied");
}

#[test]
fn r_err_01_an_error_that_no_subscription_covers_is_ignored() {
    let mut fixture = fixture(&["e1"]);
    fixture
        .hear(Primary, &Answer::of(EDS, "1").fail("e2", UNAVAILABLE).fail("e3", NOT_FOUND).fail("*", DENIED));
    assert_eq!(fixture.snapshot(EDS).entries().count(), 0);
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 3);
}

#[test]
fn r_err_01_an_error_answers_a_request() {
    let mut fixture = fixture(&["e1"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").fail("e1", UNAVAILABLE));
    fixture.hear(Primary, &Answer::of(EDS, "2").set("e1", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "3").set("e1", "v1"));
    assert_eq!(fixture.mux.counters().unsolicited.get(), 1, "the third was not asked for");
}

#[test]
fn r_err_03_not_found_makes_a_name_absent() {
    let mut fixture = fixture(&["e1", "e2"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1"));
    // As R-Err-07 has it, and without.
    fixture.hear(Primary, &Answer::of(EDS, "2").fail("e1", NOT_FOUND).remove("e1").fail("e2", NOT_FOUND));
    for name in ["e1", "e2"] {
        assert_eq!(
            (fixture.seen(EDS, name), fixture.code(EDS, name)),
            ("absent".to_owned(), Some(NOT_FOUND))
        );
    }
    let before = fixture.snapshot(EDS).generation();
    fixture.hear(Primary, &Answer::of(EDS, "3").fail("e1", NOT_FOUND).remove("e1").fail("e2", NOT_FOUND));
    assert_eq!(fixture.snapshot(EDS).generation(), before, "no news");
}

#[test]
fn r_err_05_on_the_wildcard_only_a_removal_counts() {
    let mut fixture = Fixture::asking("w", CDS, &["*"]);
    fixture.hear(Primary, &Answer::of(CDS, "1").set("c1", "v1").set("c2", "v1"));
    fixture.hear(Primary, &Answer::of(CDS, "2").fail("*", UNAVAILABLE).fail("c1", DENIED).fail("other", 13));
    assert_eq!(fixture.members(CDS), set(&["c1@v1", "c2@v1"]));
    assert_eq!((fixture.code(CDS, "c1"), fixture.snapshot(CDS).entries().count()), (None, 2));
    fixture.hear(Primary, &Answer::of(CDS, "3").fail("c1", NOT_FOUND).fail("other", NOT_FOUND));
    assert_eq!(fixture.members(CDS), set(&["c2@v1"]));
    assert_eq!(fixture.mux.counters().unrequested_resources.get(), 3);
}

#[test]
fn r_err_06_a_denied_resource_stays_held() {
    let mut fixture = fixture(&["e1"]);
    fixture.hear(Primary, &Answer::of(EDS, "1").set("e1", "v1"));
    fixture.hear(Primary, &Answer::of(EDS, "2").fail("e1", DENIED));
    assert_eq!(fixture.seen(EDS, "e1"), "denied v1");
    fixture.leave_for("a", 60_000);
    assert_eq!(fixture.snapshot(EDS).entries().count(), 0, "forgotten with its error");
}

#[test]
fn r_err_07_switched_off_only_not_found_counts() {
    let mut fixture = Fixture::connected_with(Settings {
        tuning: Tuning { resource_errors: false, ..Tuning::default() },
        ..Settings::default()
    });
    let glob = "xdstp://a/t/foo/*";
    fixture.client("a", EDS, &["e1", "e2", "e3", glob]);
    fixture.requests(Primary);
    fixture
        .hear(Primary, &Answer::of(EDS, "1").set("e1", "v1").set("e2", "v1").set("xdstp://a/t/foo/x", "v1"));
    let errors = Answer::of(EDS, "2").fail("e1", NOT_FOUND).fail("e2", DENIED).fail("e3", UNAVAILABLE);
    fixture.hear(Primary, &errors.fail("xdstp://a/t/foo/x", NOT_FOUND));
    let seen = ["e1", "e2", "e3"].map(|name| fixture.seen(EDS, name));
    assert_eq!(seen, ["absent", "v1", "unknown"]);
    assert_eq!(fixture.named(EDS, "xdstp://a/t/foo/x"), "gone");
    assert!(["e1", "e2", "e3", "xdstp://a/t/foo/x"].iter().all(|name| fixture.code(EDS, name).is_none()));
}

#[test]
fn r_xt_08_errors_of_globs_and_members_are_kept_while_the_glob_is() {
    let (glob, x, y) = ("xdstp://a/t/foo/*?k=v", "xdstp://a/t/foo/x?k=v", "xdstp://a/t/foo/y?k=v");
    let mut fixture = fixture(&[glob]);
    fixture.hear(Primary, &Answer::of(EDS, "1").fail(glob, UNAVAILABLE));
    assert_eq!((fixture.seen(EDS, glob), fixture.code(EDS, glob)), ("failed".to_owned(), Some(UNAVAILABLE)));
    fixture.hear(Primary, &Answer::of(EDS, "2").set(x, "v1").fail(y, DENIED));
    fixture.pass(5_000);
    assert_eq!((fixture.seen(EDS, glob), fixture.code(EDS, glob)), ("collection".to_owned(), None));
    assert_eq!((fixture.seen(EDS, y), fixture.code(EDS, y)), ("failed".to_owned(), Some(DENIED)));
    fixture.hear(Primary, &Answer::of(EDS, "3").fail(x, NOT_FOUND));
    assert_eq!((fixture.named(EDS, x), fixture.code(EDS, x)), ("gone".to_owned(), Some(NOT_FOUND)));
    fixture.hear(Primary, &Answer::of(EDS, "4").set(x, "v2").fail(glob, 13));
    fixture.hear(Primary, &Answer::of(EDS, "5").fail(glob, NOT_FOUND));
    assert_eq!((fixture.seen(EDS, glob), fixture.code(EDS, glob)), ("absent".to_owned(), Some(NOT_FOUND)));
    assert_eq!(fixture.named(EDS, x), "gone", "a glob that does not exist has no members");
    fixture.leave_for("a", 60_000);
    let left: Vec<_> = fixture.snapshot(EDS).entries().map(|entry| entry.name().to_string()).collect();
    assert_eq!(left, [x], "the memory that it left the glob");
}
