//! Aliases and virtual hosts on demand: R-Delta-21 to R-Delta-23, R-Relay-20.

use deltafan::subscription::{NextStep, Upstream};
use deltafan_test_support::fixture::Client;
use deltafan_test_support::whole::{Primary, Whole};

/// Nothing said.
const NONE: [&str; 0] = [];

/// Responses to a client, all of them ACKed.
fn told(client: &mut Client, whole: &Whole) -> Vec<String> {
    client.acked(&whole.fixture)
}

/// A relay that holds `r/v` for who asks for its alias `r/a`, and that client.
fn resolved() -> (Whole, Client) {
    let mut whole = Whole::new();
    let mut client = whole.asking("vhds", "r/a");
    assert_eq!(whole.asked(Primary), "r/a");
    whole.says(Primary, "vhds r/v:1=r/a,r/b");
    assert_eq!(told(&mut client, &whole), ["vhds r/v:1"]);
    (whole, client)
}

#[test]
fn r_delta_21_an_alias_goes_over_the_wire_as_it_came() {
    let (whole, client) = resolved();
    let frame = {
        let mut late = whole.delta();
        late.change(&whole.fixture, "vhds", "r/a");
        let NextStep::Send(outgoing) = late.next(&whole.fixture) else { panic!("an answer") };
        deltafan_test_support::wire::message_in(&outgoing.frame)
    };
    let has = |text: &[u8]| frame.windows(text.len()).any(|part| part == text);
    assert!(has(b"\x22\x03r/a\x22\x03r/b"), "both aliases, in their order");
    drop(client);
}

#[test]
fn r_delta_21_a_name_is_let_go_by_either_name() {
    let (mut whole, mut by_alias) = resolved();
    let mut by_name = whole.asking("vhds", "r/v");
    assert_eq!(whole.asked(Primary), "r/v");
    whole.says(Primary, "vhds r/v:1=r/a,r/b");
    told(&mut by_name, &whole);
    by_alias.change(&whole.fixture, "vhds", "-r/v");
    by_name.change(&whole.fixture, "vhds", "-r/b");
    whole.says(Primary, "vhds r/v:2=r/a,r/b");
    assert_eq!([told(&mut by_alias, &whole), told(&mut by_name, &whole)], [NONE, NONE]);
    whole.requests(Primary);
    whole.pass(60_000);
    assert_eq!(whole.asked(Primary), "-r/a -r/v", "by the strings that were subscribed to");
    assert_eq!(whole.entries("vhds"), 0);
}

#[test]
fn r_delta_21_a_resource_held_by_another_name_is_not_taken_from_a_client() {
    let mut whole = Whole::new();
    let mut client = whole.delta();
    client.resume(&whole.fixture, "vhds", &["r/a", "r/x"], &[("r/v", "1"), ("r/gone", "1")]);
    assert_eq!(whole.asked(Primary), "r/a r/x");
    whole.says(Primary, "vhds -r/x");
    assert_eq!(told(&mut client, &whole), NONE, "r/a may be either of them");
    whole.says(Primary, "vhds r/v:1=r/a");
    assert_eq!(told(&mut client, &whole), ["vhds r/v:1 -r/gone -r/x"]);

    let mut again = whole.delta();
    again.resume(&whole.fixture, "vhds", &["r/a"], &[("r/v", "1"), ("r/gone", "1")]);
    assert_eq!(told(&mut again, &whole), ["vhds r/v:1 -r/gone"]);

    // While the origin is away it cannot be found out.
    whole.fixture.upstream = Upstream::Away;
    let mut late = whole.delta();
    late.resume(&whole.fixture, "vhds", &["r/a", "r/b"], &[("r/w", "1")]);
    assert_eq!(told(&mut late, &whole), NONE);
    whole.pass(60_000);
    assert!(matches!(late.next(&whole.fixture), NextStep::Close(_)), "it may turn to another server");
}

#[test]
fn r_relay_20_versions_are_claimed_upstream_by_the_own_name() {
    let (mut whole, mut client) = resolved();
    whole.reconnect();
    let requests = whole.requests(Primary);
    assert_eq!(requests[0].resource_names_subscribe, ["r/a"]);
    let held: Vec<_> = requests[0].initial_resource_versions.iter().collect();
    assert_eq!(held, [(&"r/v".to_owned(), &"1".to_owned())]);
    whole.says(Primary, "vhds -r/v");
    assert_eq!(told(&mut client, &whole), ["vhds -r/v"]);
}

#[test]
fn r_relay_20_aliases_that_nobody_asked_for_leave_no_trace() {
    let (mut whole, _client) = resolved();
    let aliases: Vec<String> = (0..10_000).map(|number| format!("r/{number}")).collect();
    whole.says(Primary, &format!("vhds r/v:2=r/a,{}", aliases.join(",")));
    assert_eq!(whole.entries("vhds"), 1);
    whole.says(Primary, "vhds r/other:1=r/unknown r/unknown:?=r/unknown");
    assert_eq!(whole.entries("vhds"), 1);
    assert_eq!(whole.mux.counters().unrequested_resources.get(), 2, "nothing covers them");
}

#[test]
fn r_delta_22_it_is_no_version_to_be_claimed_and_forgotten_with_its_last_client() {
    let mut whole = Whole::new();
    let client = whole.asking("vhds", "r/a");
    whole.asked(Primary);
    whole.says(Primary, "vhds r/a:?=r/a");
    whole.reconnect();
    let requests = whole.requests(Primary);
    assert_eq!(requests[0].resource_names_subscribe, ["r/a"]);
    assert!(requests[0].initial_resource_versions.is_empty());
    drop(client);
    whole.requests(Primary);
    whole.pass(60_000);
    assert_eq!(whole.asked(Primary), "-r/a");
    assert_eq!(whole.entries("vhds"), 0);
}

#[test]
fn r_delta_23_names_of_virtual_hosts_are_not_taken_apart() {
    let mut whole = Whole::new();
    let names = ["a/b/c/host:443", "a/b/*.example", "//", "xdstp", "a/"];
    let mut client = whole.asking("vhds", &names.join(" "));
    assert_eq!(whole.requests(Primary)[0].resource_names_subscribe.len(), names.len());
    whole.says(Primary, &format!("vhds a/b/c/v:1={}", names.join(",")));
    assert_eq!(told(&mut client, &whole), ["vhds a/b/c/v:1"]);
}
