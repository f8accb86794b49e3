//! Names of the form `xdstp://…`: R-XT.

use std::sync::Arc;

use deltafan::cache::{Change, Interest, Limits, Op, Protocol, StreamProfile, Subscription, TtlSupport};
use deltafan::proto;
use deltafan::subscription::NextStep;

use crate::support::{Bed, strings, url};

const NORMAL: &str = "xdstp://auth/t/web?a=2&b=1";
const OTHER: &str = "xdstp://auth/t/web?b=1&a=2";
const ESCAPED: &str = "xdstp://auth/t/%77eb?a=%32&b=1";

/// What is wanted upstream of endpoints, where that changed.
fn interest(bed: &Bed) -> Vec<(String, bool)> {
    let of_eds = bed.cache.take_interest().into_iter().find(|wanted| wanted.type_url == url("eds"));
    let Interest { names, .. } = of_eds.map_or_else(|| panic!("it changed"), |wanted| wanted.interest);
    names.into_iter().map(|(name, wanted)| (name.to_string(), wanted)).collect()
}

#[test]
fn r_xt_01_spellings_of_one_name_share_a_resource_and_a_subscription() {
    let mut bed = Bed::new();
    let mut clients = [NORMAL, OTHER, ESCAPED].map(|name| {
        let mut client = bed.delta();
        client.change(&bed, "eds", name);
        (name, client)
    });
    let mut sotw = bed.sotw();
    sotw.ask(&bed, "eds", &[OTHER, ESCAPED]);
    assert_eq!(interest(&bed), [(NORMAL.to_owned(), true)]);

    bed.named(&format!("eds {NORMAL}:1"));
    for (name, client) in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds {name}:1")]);
    }
    assert_eq!(
        sotw.acked_with(&bed, &[("eds", &[OTHER, ESCAPED])]),
        [format!("eds {NORMAL}:1")],
        "as it is inside"
    );
    bed.named(&format!("eds -{NORMAL}"));
    for (name, client) in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds -{name}")]);
    }

    drop(clients);
    sotw.ask(&bed, "eds", &[]);
    assert_eq!(interest(&bed), [(NORMAL.to_owned(), false)]);
}

#[test]
fn r_xt_01_a_subscription_is_ended_and_repeated_by_any_spelling() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {NORMAL}:1"));
    let mut client = bed.delta();
    client.change(&bed, "eds", &format!("{OTHER} -{ESCAPED}"));
    assert_eq!(client.acked(&bed), Vec::<String>::new(), "subscribed to and unsubscribed from");
    client.change(&bed, "eds", OTHER);
    assert_eq!(client.acked(&bed), [format!("eds {OTHER}:1")]);
    client.change(&bed, "eds", ESCAPED);
    assert_eq!(client.acked(&bed), [format!("eds {ESCAPED}:1")], "by the name asked for last (R-Delta-04)");
    client.change(&bed, "eds", NORMAL);
    assert_eq!(client.acked(&bed), [format!("eds {NORMAL}:1")]);
    client.change(&bed, "eds", &format!("-{OTHER}"));
    bed.named(&format!("eds {NORMAL}:2"));
    assert_eq!(client.acked(&bed), Vec::<String>::new());
}

#[test]
fn r_xt_01_versions_held_count_by_any_spelling() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin(&format!("cds {NORMAL}:1 plain:1"));
    let mut client = bed.delta();
    client.resume(&bed, "cds", &["*"], &[(OTHER, "1"), ("plain", "1")]);
    assert_eq!(client.acked(&bed), ["cds"], "it holds both");
    let mut older = bed.delta();
    older.resume(&bed, "cds", &["*"], &[(OTHER, "0"), ("plain", "1")]);
    assert_eq!(older.acked(&bed), [format!("cds {NORMAL}:1")]);
}

#[test]
fn r_xt_01_clients_of_one_spelling_share_frames() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {NORMAL}:1"));
    let mut clients: Vec<_> = (0..20).map(|_| bed.delta()).collect();
    for client in &mut clients {
        client.change(&bed, "eds", OTHER);
        client.acked(&bed);
    }
    let before = bed.cache.encoder().encodes();
    bed.named(&format!("eds {NORMAL}:2"));
    for client in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds {OTHER}:2")]);
    }
    assert_eq!(bed.cache.encoder().encodes() - before, 1);
}

#[test]
fn r_xt_02_directives_are_not_asked_for() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    client.change(&bed, "eds", &format!("{OTHER}#entry=x"));
    assert_eq!(interest(&bed), [(NORMAL.to_owned(), true)]);
    bed.named(&format!("eds {NORMAL}:1"));
    assert_eq!(client.acked(&bed), [format!("eds {OTHER}:1")]);
    let request = proto::DiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_names: strings(&[&format!("{NORMAL}#alt=y")]),
        ..proto::DiscoveryRequest::default()
    };
    let mut sotw = bed.sotw();
    sotw.on_sotw_request(&bed, request).unwrap();
    assert_eq!(sotw.told(&bed), [format!("eds {NORMAL}:1")]);
}

const GLOB: &str = "xdstp://a/t/foo/*?k=v";
const X: &str = "xdstp://a/t/foo/x?k=v";
const Y: &str = "xdstp://a/t/foo/y?k=v";
const Z: &str = "xdstp://a/t/foo/z?k=v";
/// Names that the collection does not cover.
const BARE: &str = "xdstp://a/t/foo/x";
const DEEP: &str = "xdstp://a/t/foo/x/y?k=v";

impl Bed {
    fn op(&mut self, short: &str, op: Op) {
        self.apply(short, Change { ops: vec![op], ..Change::default() });
    }

    /// All members have been heard.
    fn complete(&mut self, short: &str, name: &str) {
        self.op(short, Op::Complete { name: name.into() });
    }

    fn withdraw(&mut self, short: &str, name: &str) {
        self.op(short, Op::Withdraw { name: name.into() });
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn r_xt_03_a_glob_is_a_subscription_to_its_members() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    client.change(&bed, "eds", GLOB);
    assert_eq!(interest(&bed), [(GLOB.to_owned(), true)]);
    assert_eq!(client.acked(&bed), NOTHING);
    bed.named(&format!("eds {X}:1 {BARE}:1 {DEEP}:1"));
    assert_eq!(client.acked(&bed), [format!("eds {X}:1")], "at once, complete or not");
    bed.complete("eds", GLOB);
    assert_eq!(client.acked(&bed), NOTHING);
    bed.named(&format!("eds {Y}:1 {X}:2"));
    assert_eq!(client.acked(&bed), [format!("eds {X}:2 {Y}:1")]);
    bed.withdraw("eds", X);
    assert_eq!(client.acked(&bed), [format!("eds -{X}")]);
    bed.named(&format!("eds {X}:2"));
    assert_eq!(client.acked(&bed), [format!("eds {X}:2")]);
    client.change(&bed, "eds", &format!("-{GLOB}"));
    bed.named(&format!("eds {X}:3"));
    assert_eq!(client.acked(&bed), NOTHING);
}

#[test]
fn r_xt_03_a_glob_that_is_asked_for_later_or_again_is_answered_in_full() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {X}:1 {Y}:1 e:1"));
    bed.complete("eds", GLOB);
    let mut client = bed.delta();
    client.change(&bed, "eds", &format!("e {X}"));
    assert_eq!(client.acked(&bed), [format!("eds e:1 {X}:1")]);
    client.change(&bed, "eds", GLOB);
    assert_eq!(client.acked(&bed), [format!("eds {X}:1 {Y}:1")]);
    client.change(&bed, "eds", GLOB);
    assert_eq!(client.acked(&bed), [format!("eds {X}:1 {Y}:1")], "R-Delta-04");
    client.change(&bed, "eds", &format!("-{GLOB}"));
    bed.named(&format!("eds {X}:2 {Y}:2"));
    assert_eq!(client.acked(&bed), [format!("eds {X}:2")], "still asked for by its name");

    let mut sotw = bed.sotw();
    sotw.ask(&bed, "eds", &["e"]);
    assert_eq!(sotw.acked_with(&bed, &[("eds", &["e"])]), ["eds e:1"]);
    sotw.ask(&bed, "eds", &["e", GLOB]);
    assert_eq!(sotw.acked_with(&bed, &[("eds", &["e", GLOB])]), [format!("eds {X}:2 {Y}:2")]);
    bed.named(&format!("eds {Z}:1"));
    assert_eq!(sotw.acked_with(&bed, &[("eds", &["e", GLOB])]), [format!("eds {Z}:1")]);
}

#[test]
fn r_xt_03_a_full_state_waits_until_a_glob_is_complete() {
    let mut bed = Bed::new();
    bed.named(&format!("cds {X}:1"));
    let mut client = bed.sotw();
    let names = [("cds", &[GLOB][..])];
    let first = proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        resource_names: strings(&[GLOB]),
        version_info: "of an earlier stream".to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(&bed, first).unwrap();
    assert_eq!(client.acked_with(&bed, &names), NOTHING);
    bed.named(&format!("cds {Y}:1 {BARE}:1"));
    bed.complete("cds", GLOB);
    assert_eq!(client.acked_with(&bed, &names), [format!("cds {X}:1 {Y}:1")]);
    bed.withdraw("cds", X);
    assert_eq!(client.acked_with(&bed, &names), [format!("cds {Y}:1")]);
    bed.withdraw("cds", Y);
    assert_eq!(client.acked_with(&bed, &names), ["cds"]);
}

#[test]
fn r_xt_03_a_members_removal_follows_what_is_added_meanwhile() {
    let mut bed = Bed::knowing(&["rds"]);
    bed.named(&format!("cds {X}:1"));
    bed.complete("cds", GLOB);
    let names = [("cds", &[GLOB][..]), ("rds", &["r"][..])];
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[GLOB]);
    client.ask(&bed, "rds", &["r"]);
    bed.named("rds r:1");
    assert_eq!(client.acked_with(&bed, &names), [format!("cds {X}:1"), "rds r:1".to_owned()]);
    bed.named(&format!("cds {Y}:1"));
    bed.named("rds r:2");
    bed.withdraw("cds", X);
    assert_eq!(
        client.acked_with(&bed, &names),
        [format!("cds {X}:1 {Y}:1"), "rds r:2".to_owned(), format!("cds {Y}:1")],
        "R-ADS-03"
    );
}

#[test]
fn r_xt_04_an_empty_glob_is_told_by_its_name() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    client.change(&bed, "eds", GLOB);
    bed.complete("eds", GLOB);
    assert_eq!(client.acked(&bed), [format!("eds -{GLOB}")]);
    bed.named(&format!("eds {X}:1"));
    assert_eq!(client.acked(&bed), [format!("eds {X}:1")]);
    bed.withdraw("eds", X);
    assert_eq!(client.acked(&bed), [format!("eds -{GLOB} -{X}")]);
    let mut late = bed.delta();
    late.change(&bed, "eds", GLOB);
    assert_eq!(late.acked(&bed), [format!("eds -{GLOB}")]);
    bed.named(&format!("eds {X}:1"));
    assert_eq!(
        (client.acked(&bed), late.acked(&bed)),
        (vec![format!("eds {X}:1")], vec![format!("eds {X}:1")])
    );
}

#[test]
fn r_xt_04_what_left_a_glob_is_unknown_to_who_asks_for_it_by_name() {
    let mut bed = Bed::new();
    let mut client = bed.delta();
    client.change(&bed, "eds", GLOB);
    bed.named(&format!("eds {X}:1"));
    client.acked(&bed);
    bed.withdraw("eds", X);
    client.acked(&bed);
    let mut other = bed.delta();
    other.change(&bed, "eds", X);
    assert_eq!(other.acked(&bed), NOTHING, "the origin was not asked for it (R-Relay-04)");
    bed.named(&format!("eds -{X}"));
    assert_eq!(other.acked(&bed), [format!("eds -{X}")]);
}

#[test]
fn r_xt_05_the_clients_of_a_glob_are_one_cohort() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {X}:1 {Y}:1"));
    bed.complete("eds", GLOB);
    let spelled = "xdstp://a/t/foo/%2A?k=v";
    let before = bed.cache.encoder().encodes();
    let mut clients: Vec<_> = (0..50).map(|_| bed.delta()).collect();
    for client in &mut clients {
        client.change(&bed, "eds", GLOB);
        assert_eq!(client.acked(&bed), [format!("eds {X}:1 {Y}:1")]);
    }
    // Of a cohort of one nothing is kept: the second makes it again.
    assert!(bed.cache.encoder().encodes() - before <= 2);
    let before = bed.cache.encoder().encodes();
    bed.named(&format!("eds {X}:2"));
    for client in &mut clients {
        assert_eq!(client.acked(&bed), [format!("eds {X}:2")]);
    }
    assert_eq!(bed.cache.encoder().encodes() - before, 1);
    let mut other = bed.delta();
    other.change(&bed, "eds", spelled);
    assert_eq!(other.acked(&bed), [format!("eds {X}:2 {Y}:1")], "members have no spelling of the client's");
}

#[test]
fn r_xt_05_who_resumes_is_told_what_differs_in_a_glob() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {X}:1 {Y}:2"));
    let mut client = bed.delta();
    client.resume(&bed, "eds", &[GLOB], &[(X, "1"), (Y, "1"), (Z, "1"), (BARE, "1")]);
    assert_eq!(client.acked(&bed), NOTHING, "what is gone is not known before the collection is complete");
    bed.complete("eds", GLOB);
    assert_eq!(client.acked(&bed), [format!("eds {Y}:2 -{BARE} -{Z}")]);
    bed.named(&format!("eds {X}:3"));
    assert_eq!(client.acked(&bed), [format!("eds {X}:3")]);
}

#[test]
fn r_xt_05_what_left_a_glob_is_remembered_within_a_bound() {
    let mut bed = Bed::with_limits(Limits { tombstones: 8, ..Limits::default() });
    bed.complete("eds", GLOB);
    bed.complete("eds", "xdstp://a/t/bar/*");
    let mut clients = [GLOB, "xdstp://a/t/bar/*"].map(|name| {
        let mut client = bed.delta();
        client.change(&bed, "eds", name);
        assert_eq!(client.acked(&bed), [format!("eds -{name}")]);
        client
    });
    for number in 0..40 {
        let name = format!("xdstp://a/t/foo/n{number}?k=v");
        bed.named(&format!("eds {name}:1"));
        bed.withdraw("eds", &name);
    }
    let held = bed.cache.of(&url("eds")).unwrap().snapshot().entries().count();
    assert!(held <= 12, "{held} entries");
    assert!(matches!(clients[0].next(&bed), NextStep::Close(_)), "it has to resume with its versions");
    bed.named("eds xdstp://a/t/bar/x:1");
    assert_eq!(clients[1].acked(&bed), ["eds xdstp://a/t/bar/x:1"], "nothing of its own was lost");
}

#[test]
fn r_xt_05_a_poll_sees_the_members_of_a_glob() {
    let mut bed = Bed::new();
    bed.named(&format!("eds {X}:1 {BARE}:1 {Y}:1"));
    bed.complete("eds", GLOB);
    let subscription = Subscription::new(false, [GLOB, X].map(Into::into));
    let profile = StreamProfile { protocol: Protocol::Sotw, aggregated: false, ttl: TtlSupport::Untold };
    let of = bed.cache.of(&url("eds")).unwrap();
    let poll = of.join(subscription, profile, &Arc::default());
    let names = |bed: &Bed| -> Vec<String> {
        let found = bed.cache.of(&url("eds")).unwrap().found(poll.cohort());
        found.resources.iter().map(|resource| resource.name().to_string()).collect()
    };
    let before = of.set_state(poll.cohort());
    assert_eq!(names(&bed), [X, Y]);
    assert!(before.knows_something && !before.unknown_name);
    bed.withdraw("eds", Y);
    assert_eq!(names(&bed), [X]);
    assert_ne!(of.set_state(poll.cohort()).version, before.version);
}
