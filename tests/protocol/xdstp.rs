//! Names of the form `xdstp://…`: R-XT.

use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Interest, Limits, Protocol, StreamProfile, Subscription, TtlSupport};
use deltafan::proto;
use deltafan::subscription::NextStep;
use deltafan_test_support::fixture::{Fixture, strings, url};

const NORMAL: &str = "xdstp://auth/t/web?a=2&b=1";
const OTHER: &str = "xdstp://auth/t/web?b=1&a=2";
const ESCAPED: &str = "xdstp://auth/t/%77eb?a=%32&b=1";

/// Endpoints that are wanted upstream, where that changed.
fn interest(fixture: &Fixture) -> Vec<(String, bool)> {
    let of_eds = fixture.cache.take_interest().into_iter().find(|wanted| wanted.type_url == url("eds"));
    let Interest { names, .. } = of_eds.map_or_else(|| panic!("it changed"), |wanted| wanted.interest);
    names.into_iter().map(|(name, wanted)| (name.to_string(), wanted)).collect()
}

#[test]
fn r_xt_01_spellings_of_one_name_share_a_resource_and_a_subscription() {
    let mut fixture = Fixture::new();
    let mut clients = [NORMAL, OTHER, ESCAPED].map(|name| {
        let client = fixture.delta_of("eds", name);
        (name, client)
    });
    let mut sotw = fixture.sotw_of("eds", &[OTHER, ESCAPED]);
    assert_eq!(interest(&fixture), [(NORMAL.to_owned(), true)]);

    fixture.named(&format!("eds {NORMAL}:1"));
    for (name, client) in &mut clients {
        assert_eq!(client.acked(&fixture), [format!("eds {name}:1")]);
    }
    assert_eq!(
        sotw.acked_with(&fixture, &[("eds", &[OTHER, ESCAPED])]),
        [format!("eds {NORMAL}:1")],
        "as it is inside"
    );
    fixture.named(&format!("eds -{NORMAL}"));
    for (name, client) in &mut clients {
        assert_eq!(client.acked(&fixture), [format!("eds -{name}")]);
    }

    drop(clients);
    sotw.ask(&fixture, "eds", &[]);
    assert_eq!(interest(&fixture), [(NORMAL.to_owned(), false)]);
}

#[test]
fn r_xt_01_a_subscription_is_ended_and_repeated_by_any_spelling() {
    let mut fixture = Fixture::new().with_named(&format!("eds {NORMAL}:1"));
    let mut client = fixture.delta_of("eds", &format!("{OTHER} -{ESCAPED}"));
    assert_eq!(client.acked(&fixture), Vec::<String>::new(), "subscribed to and unsubscribed from");
    client.change(&fixture, "eds", OTHER);
    assert_eq!(client.acked(&fixture), [format!("eds {OTHER}:1")]);
    client.change(&fixture, "eds", ESCAPED);
    assert_eq!(
        client.acked(&fixture),
        [format!("eds {ESCAPED}:1")],
        "by the name asked for last (R-Delta-04)"
    );
    client.change(&fixture, "eds", NORMAL);
    assert_eq!(client.acked(&fixture), [format!("eds {NORMAL}:1")]);
    client.change(&fixture, "eds", &format!("-{OTHER}"));
    fixture.named(&format!("eds {NORMAL}:2"));
    assert_eq!(client.acked(&fixture), Vec::<String>::new());
}

#[test]
fn r_xt_01_versions_held_count_by_any_spelling() {
    let fixture = Fixture::knowing(&["cds"]).with_members(&format!("cds {NORMAL}:1 plain:1"));
    let mut client = fixture.delta();
    client.resume(&fixture, "cds", &["*"], &[(OTHER, "1"), ("plain", "1")]);
    assert_eq!(client.acked(&fixture), ["cds"], "it holds both");
    let mut older = fixture.delta();
    older.resume(&fixture, "cds", &["*"], &[(OTHER, "0"), ("plain", "1")]);
    assert_eq!(older.acked(&fixture), [format!("cds {NORMAL}:1")]);
}

#[test]
fn r_xt_02_directives_are_not_asked_for() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta_of("eds", &format!("{OTHER}#entry=x"));
    assert_eq!(interest(&fixture), [(NORMAL.to_owned(), true)]);
    fixture.named(&format!("eds {NORMAL}:1"));
    assert_eq!(client.acked(&fixture), [format!("eds {OTHER}:1")]);
    let request = proto::DiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_names: strings(&[&format!("{NORMAL}#alt=y")]),
        ..proto::DiscoveryRequest::default()
    };
    let mut sotw = fixture.sotw();
    sotw.on_sotw_request(&fixture, request).unwrap();
    assert_eq!(sotw.told(&fixture), [format!("eds {NORMAL}:1")]);
}

const GLOB: &str = "xdstp://a/t/foo/*?k=v";
const X: &str = "xdstp://a/t/foo/x?k=v";
const Y: &str = "xdstp://a/t/foo/y?k=v";
const Z: &str = "xdstp://a/t/foo/z?k=v";
/// Names that the collection does not cover.
const BARE: &str = "xdstp://a/t/foo/x";
const DEEP: &str = "xdstp://a/t/foo/x/y?k=v";

const NOTHING: [&str; 0] = [];

#[test]
fn r_xt_03_a_glob_is_a_subscription_to_its_members() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta_of("eds", GLOB);
    assert_eq!(interest(&fixture), [(GLOB.to_owned(), true)]);
    assert_eq!(client.acked(&fixture), NOTHING);
    fixture.named(&format!("eds {X}:1 {BARE}:1 {DEEP}:1"));
    assert_eq!(client.acked(&fixture), [format!("eds {X}:1")], "at once, complete or not");
    fixture.complete("eds", GLOB);
    assert_eq!(client.acked(&fixture), NOTHING);
    fixture.named(&format!("eds {Y}:1 {X}:2"));
    assert_eq!(client.acked(&fixture), [format!("eds {X}:2 {Y}:1")]);
    fixture.withdraw("eds", X);
    assert_eq!(client.acked(&fixture), [format!("eds -{X}")]);
    fixture.named(&format!("eds {X}:2"));
    assert_eq!(client.acked(&fixture), [format!("eds {X}:2")]);
    client.change(&fixture, "eds", &format!("-{GLOB}"));
    fixture.named(&format!("eds {X}:3"));
    assert_eq!(client.acked(&fixture), NOTHING);
}

#[test]
fn r_xt_03_a_glob_that_is_asked_for_later_or_again_is_answered_in_full() {
    let mut fixture = Fixture::new().with_named(&format!("eds {X}:1 {Y}:1 e:1"));
    fixture.complete("eds", GLOB);
    let mut client = fixture.delta_of("eds", &format!("e {X}"));
    assert_eq!(client.acked(&fixture), [format!("eds e:1 {X}:1")]);
    client.change(&fixture, "eds", GLOB);
    assert_eq!(client.acked(&fixture), [format!("eds {X}:1 {Y}:1")]);
    client.change(&fixture, "eds", GLOB);
    assert_eq!(client.acked(&fixture), [format!("eds {X}:1 {Y}:1")], "R-Delta-04");
    client.change(&fixture, "eds", &format!("-{GLOB}"));
    fixture.named(&format!("eds {X}:2 {Y}:2"));
    assert_eq!(client.acked(&fixture), [format!("eds {X}:2")], "still asked for by its name");

    let mut sotw = fixture.sotw_of("eds", &["e"]);
    assert_eq!(sotw.acked_with(&fixture, &[("eds", &["e"])]), ["eds e:1"]);
    sotw.ask(&fixture, "eds", &["e", GLOB]);
    assert_eq!(sotw.acked_with(&fixture, &[("eds", &["e", GLOB])]), [format!("eds {X}:2 {Y}:2")]);
    fixture.named(&format!("eds {Z}:1"));
    assert_eq!(sotw.acked_with(&fixture, &[("eds", &["e", GLOB])]), [format!("eds {Z}:1")]);
}

#[test]
fn r_xt_03_a_full_state_waits_until_a_glob_is_complete() {
    let mut fixture = Fixture::new().with_named(&format!("cds {X}:1"));
    let mut client = fixture.sotw();
    let names = [("cds", &[GLOB][..])];
    client.come_back(&fixture, "cds", &[GLOB], "of an earlier stream");
    assert_eq!(client.acked_with(&fixture, &names), NOTHING);
    fixture.named(&format!("cds {Y}:1 {BARE}:1"));
    fixture.complete("cds", GLOB);
    assert_eq!(client.acked_with(&fixture, &names), [format!("cds {X}:1 {Y}:1")]);
    fixture.withdraw("cds", X);
    assert_eq!(client.acked_with(&fixture, &names), [format!("cds {Y}:1")]);
    fixture.withdraw("cds", Y);
    assert_eq!(client.acked_with(&fixture, &names), ["cds"]);
}

#[test]
fn r_xt_03_a_members_removal_follows_additions_from_meanwhile() {
    let mut fixture = Fixture::knowing(&["rds"]).with_named(&format!("cds {X}:1"));
    fixture.complete("cds", GLOB);
    let names = [("cds", &[GLOB][..]), ("rds", &["r"][..])];
    let mut client = fixture.sotw_of("cds", &[GLOB]);
    client.ask(&fixture, "rds", &["r"]);
    fixture.named("rds r:1");
    assert_eq!(client.acked_with(&fixture, &names), [format!("cds {X}:1"), "rds r:1".to_owned()]);
    fixture.named(&format!("cds {Y}:1"));
    fixture.named("rds r:2");
    fixture.withdraw("cds", X);
    assert_eq!(
        client.acked_with(&fixture, &names),
        [format!("cds {X}:1 {Y}:1"), "rds r:2".to_owned(), format!("cds {Y}:1")],
        "R-ADS-03"
    );
}

/// That a glob is complete takes 5 s to know (R-Relay-05).
#[test]
fn r_xt_03_a_glob_that_has_begun_holds_listeners_for_a_second() {
    for (short, settles) in [("cds", true), ("leds", false)] {
        let mut fixture = Fixture::knowing(&["lds"]).with_members("lds l:1");
        let mut client = fixture.delta_of(short, GLOB);
        client.change(&fixture, "lds", "*");
        fixture.after(Duration::from_secs(1));
        assert_eq!(client.acked(&fixture), NOTHING, "{short}: nothing of it has come");
        fixture.named(&format!("{short} {X}:1"));
        let members = format!("{short} {X}:1");
        if settles {
            assert_eq!(client.acked(&fixture), [members]);
            // The next part, over a slow link.
            fixture.after(Duration::from_millis(700));
            fixture.named(&format!("{short} {Y}:1"));
            assert_eq!(client.acked(&fixture), [format!("{short} {Y}:1")]);
            fixture.after(Duration::from_millis(999));
            assert_eq!(client.acked(&fixture), NOTHING);
            fixture.after(Duration::from_millis(1));
            assert_eq!(client.acked(&fixture), ["lds l:1"]);
        } else {
            assert_eq!(client.acked(&fixture), [members, "lds l:1".to_owned()]);
        }
    }
}

/// Another name of the type, of which nothing is known, has its own time.
#[test]
fn r_xt_03_a_glob_that_has_begun_does_not_speak_for_other_names() {
    let mut fixture = Fixture::knowing(&["lds"]).with_members("lds l:1");
    let mut client = fixture.delta_of("cds", &format!("{GLOB} other"));
    client.change(&fixture, "lds", "*");
    fixture.named(&format!("cds {X}:1"));
    assert_eq!(client.acked(&fixture), [format!("cds {X}:1")]);
    fixture.after(Duration::from_secs(2));
    assert_eq!(client.acked(&fixture), NOTHING);
    fixture.named("cds other:1");
    assert_eq!(client.acked(&fixture), ["cds other:1"]);
    fixture.after(Duration::from_secs(1));
    assert_eq!(client.acked(&fixture), ["lds l:1"]);
}

/// Clusters and their endpoints stay for a while, for routes that may be on their way.
#[test]
fn r_ads_03_an_endpoint_that_left_its_collection_is_not_kept_for_routes() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]).with_members("cds a:1 b:1").with_members("lds l:1");
    fixture.named(&format!("leds {X}:1 {Y}:1"));
    fixture.complete("leds", GLOB);
    let mut client = fixture.delta();
    for (short, name) in [("cds", "*"), ("leds", GLOB), ("lds", "*")] {
        client.change(&fixture, short, name);
    }
    let told = client.acked(&fixture);
    assert_eq!(told, ["cds a:1 b:1".to_owned(), format!("leds {X}:1 {Y}:1"), "lds l:1".to_owned()]);
    fixture.withdraw("leds", X);
    assert_eq!(client.acked(&fixture), [format!("leds -{X}")]);
    fixture.origin("cds -b");
    assert_eq!(client.acked(&fixture), NOTHING);
    fixture.after(Duration::from_secs(2));
    assert_eq!(client.acked(&fixture), ["cds -b"]);
}

#[test]
fn r_xt_04_an_empty_glob_is_told_by_its_name() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta_of("eds", GLOB);
    fixture.complete("eds", GLOB);
    assert_eq!(client.acked(&fixture), [format!("eds -{GLOB}")]);
    fixture.named(&format!("eds {X}:1"));
    assert_eq!(client.acked(&fixture), [format!("eds {X}:1")]);
    fixture.withdraw("eds", X);
    assert_eq!(client.acked(&fixture), [format!("eds -{GLOB} -{X}")]);
    let mut late = fixture.delta_of("eds", GLOB);
    assert_eq!(late.acked(&fixture), [format!("eds -{GLOB}")]);
    fixture.named(&format!("eds {X}:1"));
    assert_eq!(
        (client.acked(&fixture), late.acked(&fixture)),
        (vec![format!("eds {X}:1")], vec![format!("eds {X}:1")])
    );
}

#[test]
fn r_xt_04_a_member_that_left_a_glob_is_unknown_to_a_client_that_asks_for_it_by_name() {
    let mut fixture = Fixture::new();
    let mut client = fixture.delta_of("eds", GLOB);
    fixture.named(&format!("eds {X}:1"));
    client.acked(&fixture);
    fixture.withdraw("eds", X);
    client.acked(&fixture);
    let mut other = fixture.delta_of("eds", X);
    assert_eq!(other.acked(&fixture), NOTHING, "the origin was not asked for it (R-Relay-04)");
    fixture.named(&format!("eds -{X}"));
    assert_eq!(other.acked(&fixture), [format!("eds -{X}")]);
}

#[test]
fn r_xt_05_the_clients_of_a_glob_are_one_cohort() {
    let mut fixture = Fixture::new().with_named(&format!("eds {X}:1 {Y}:1"));
    fixture.complete("eds", GLOB);
    let spelled = "xdstp://a/t/foo/%2A?k=v";
    let before = fixture.cache.encoder().encodes();
    let mut clients: Vec<_> = (0..50).map(|_| fixture.delta()).collect();
    for client in &mut clients {
        client.change(&fixture, "eds", GLOB);
        assert_eq!(client.acked(&fixture), [format!("eds {X}:1 {Y}:1")]);
    }
    // A cohort of one keeps no update: the second client makes it again.
    assert!(fixture.cache.encoder().encodes() - before <= 2);
    let before = fixture.cache.encoder().encodes();
    fixture.named(&format!("eds {X}:2"));
    for client in &mut clients {
        assert_eq!(client.acked(&fixture), [format!("eds {X}:2")]);
    }
    assert_eq!(fixture.cache.encoder().encodes() - before, 1);
    let mut other = fixture.delta_of("eds", spelled);
    assert_eq!(
        other.acked(&fixture),
        [format!("eds {X}:2 {Y}:1")],
        "members have no spelling of the client's"
    );
}

#[test]
fn r_xt_05_a_client_that_resumes_is_told_the_differences_in_a_glob() {
    let mut fixture = Fixture::new().with_named(&format!("eds {X}:1 {Y}:2"));
    let mut client = fixture.delta();
    client.resume(&fixture, "eds", &[GLOB], &[(X, "1"), (Y, "1"), (Z, "1"), (BARE, "1")]);
    assert_eq!(
        client.acked(&fixture),
        NOTHING,
        "what is gone is not known before the collection is complete"
    );
    fixture.complete("eds", GLOB);
    assert_eq!(client.acked(&fixture), [format!("eds {Y}:2 -{BARE} -{Z}")]);
    fixture.named(&format!("eds {X}:3"));
    assert_eq!(client.acked(&fixture), [format!("eds {X}:3")]);
}

#[test]
fn r_xt_05_members_that_left_a_glob_are_remembered_within_a_bound() {
    let mut fixture = Fixture::with_limits(Limits { tombstones: 8, ..Limits::default() });
    fixture.complete("eds", GLOB);
    fixture.complete("eds", "xdstp://a/t/bar/*");
    let mut clients = [GLOB, "xdstp://a/t/bar/*"].map(|name| {
        let mut client = fixture.delta_of("eds", name);
        assert_eq!(client.acked(&fixture), [format!("eds -{name}")]);
        client
    });
    for number in 0..40 {
        let name = format!("xdstp://a/t/foo/n{number}?k=v");
        fixture.named(&format!("eds {name}:1"));
        fixture.withdraw("eds", &name);
    }
    let held = fixture.cache.of(&url("eds")).unwrap().snapshot().entries().count();
    assert!(held <= 12, "{held} entries");
    assert!(matches!(clients[0].next(&fixture), NextStep::Close(_)), "it has to resume with its versions");
    fixture.named("eds xdstp://a/t/bar/x:1");
    assert_eq!(clients[1].acked(&fixture), ["eds xdstp://a/t/bar/x:1"], "nothing of its own was lost");
}

#[test]
fn r_xt_05_a_poll_sees_the_members_of_a_glob() {
    let mut fixture = Fixture::new().with_named(&format!("eds {X}:1 {BARE}:1 {Y}:1"));
    fixture.complete("eds", GLOB);
    let subscription = Subscription::new(false, [GLOB, X].map(Into::into));
    let profile = StreamProfile { protocol: Protocol::Sotw, aggregated: false, ttl: TtlSupport::Unsupported };
    let of = fixture.cache.of(&url("eds")).unwrap();
    let poll = of.join(subscription, profile, &Arc::default());
    let names = |fixture: &Fixture| -> Vec<String> {
        let found = fixture.cache.of(&url("eds")).unwrap().set_contents(poll.cohort());
        found.resources.iter().map(|resource| resource.name().to_string()).collect()
    };
    let before = of.set_state(poll.cohort());
    assert_eq!(names(&fixture), [X, Y]);
    assert!(before.knows_something && !before.unknown_name);
    fixture.withdraw("eds", Y);
    assert_eq!(names(&fixture), [X]);
    assert_ne!(of.set_state(poll.cohort()).version, before.version);
}
