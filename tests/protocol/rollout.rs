//! Rollout guard: canaries are sent a change first, and the other clients only once these have not rejected it.

use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{
    Change, Completeness, Note, Op, Order, Phase, Protocol, RolloutSettings, RolloutStatus, View,
};

use deltafan_test_support::fixture::{Client, Fixture, url};

use crate::dp::locate;

mod brake;
mod holds;
mod orders;
mod proof;
mod reports;
mod steps;
mod verdicts;

const WINDOW: Duration = Duration::from_secs(30);
/// Longer than a trial with the time in which changes are gathered, shorter than two.
const TRIAL: Duration = Duration::from_secs(32);
const SECOND: Duration = Duration::from_secs(1);

fn guarded(types: &[&str]) -> Fixture {
    sharing(types, 0.0)
}

/// A guard of clusters, with all clients for canaries.
fn all_canaries() -> Fixture {
    sharing(&["cds"], 1.0)
}

fn sharing(types: &[&str], share: f64) -> Fixture {
    guarded_by(types, share, [0; 16])
}

fn keyed(key: [u8; 16], share: f64) -> Fixture {
    guarded_by(&["cds"], share, key)
}

fn guarded_by(types: &[&str], share: f64, key: [u8; 16]) -> Fixture {
    Fixture::guarded(RolloutSettings { shares: vec![share], key, ..settings(types) })
}

/// Names in a version, as a response is written: ` a:2 b:2`.
fn versions(names: &[&str], version: u64) -> String {
    names.iter().map(|name| format!(" {name}:{version}")).collect()
}

fn settings(types: &[&str]) -> RolloutSettings {
    RolloutSettings {
        types: types.iter().map(|short| url(short)).collect(),
        named: None,
        shares: vec![0.0],
        key: [0; 16],
        window: WINDOW,
        threshold: 0.1,
        max_removed: None,
        reports: false,
        counts: Arc::default(),
    }
}

/// The origin's first answer, which is whole.
fn begin(fixture: &mut Fixture, text: &str) {
    fixture.origin(text);
    fixture.known(text.split(' ').next().unwrap());
}

/// The first client is the canary, where the share has none.
fn canary_and_other(fixture: &Fixture, protocol: Protocol) -> [Client; 2] {
    ["canary", "other"].map(|id| fixture.client_named(id, protocol))
}

/// Both of them, which have all clusters.
fn with_all_clusters(fixture: &Fixture, protocol: Protocol) -> [Client; 2] {
    canary_and_other(fixture, protocol).map(|mut client| {
        client.ask_or_change(fixture, "cds", "*");
        client.acked(fixture);
        client
    })
}

/// So many clients, which have all clusters.
fn fleet(fixture: &Fixture, count: usize) -> Vec<Client> {
    let ids = (0..count).map(|at| format!("envoy-{at}"));
    let mut clients: Vec<_> = ids.map(|id| fixture.client_named(&id, Protocol::Delta)).collect();
    clients.iter_mut().for_each(|client| drop(client.change(fixture, "cds", "*")));
    clients.iter_mut().for_each(|client| drop(client.acked(fixture)));
    clients
}

fn status(fixture: &Fixture) -> RolloutStatus {
    fixture.cache.rollout().unwrap().status(fixture.now)
}

/// Names and versions that are held.
fn held_changes(fixture: &Fixture) -> Vec<String> {
    let show = |version: Option<&str>| version.unwrap_or("gone").to_owned();
    let held = status(fixture).held;
    held.iter().map(|held| format!("{}:{}", held.name, show(held.version.as_deref()))).collect()
}

/// The origin sends a change; a second later it is on trial.
fn try_change(fixture: &mut Fixture, text: &str) {
    fixture.origin(text);
    fixture.roll_out(SECOND);
}

const BOTH: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

/// It answers before its own clients do, and may show the node of one of them.
#[test]
fn a_relay_is_no_canary() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1");
    let [mut relay, mut other] = canary_and_other(&fixture, Protocol::Delta);
    relay.session = relay.session.of_relay(true);
    for client in [&mut relay, &mut other] {
        client.ask_or_change(&fixture, "cds", "*");
        client.acked(&fixture);
    }
    try_change(&mut fixture, "cds a:2");
    assert_eq!(relay.acked(&fixture), [""; 0]);
    assert_eq!(other.acked(&fixture), ["cds a:2"]);
}

/// Has the canary reject `a:2`, with a fixture in which it is held.
fn held(protocol: Protocol) -> (Fixture, [Client; 2]) {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1 b:1");
    let mut clients = with_all_clusters(&fixture, protocol);
    try_change(&mut fixture, "cds a:2");
    let told = clients[0].poll(&fixture).unwrap();
    clients[0].nack_saying(&fixture, &told, &[], "Error adding/updating cluster(s) a: no such thing");
    fixture.roll_out(TRIAL);
    (fixture, clients)
}

#[test]
fn a_change_that_canaries_reject_is_held_until_the_origin_corrects_it() {
    for protocol in BOTH {
        let (mut fixture, [mut canary, mut other]) = held(protocol);
        assert_eq!((status(&fixture).phase, held_changes(&fixture)), (Phase::Held, vec!["a:2".to_owned()]));
        // Nor is anything else tried meanwhile, however long that is: it may need what is held.
        fixture.origin("cds b:2");
        canary.acked(&fixture);
        fixture.roll_out(10 * TRIAL);
        assert_eq!(other.acked(&fixture), [""; 0]);
        // Clients that come are sent the last good version of it, canaries too.
        drop(canary);
        let mut late = fixture.client_named("canary", protocol);
        late.ask_or_change(&fixture, "cds", "*");
        assert_eq!(late.acked(&fixture), ["cds a:1 b:1"]);
        // The correction is tried in its turn, with what waited.
        let mut canary = late;
        try_change(&mut fixture, "cds a:3");
        let status = status(&fixture);
        let trying = Phase::Trying { seconds_left: WINDOW.as_secs_f64(), step: 1 };
        assert_eq!((status.phase, status.trying), (trying, 2));
        assert_eq!(canary.acked(&fixture), ["cds a:3 b:2"]);
        fixture.roll_out(TRIAL);
        assert_eq!(other.acked(&fixture), ["cds a:3 b:2"]);
    }
}

#[test]
fn what_an_operator_discards_is_taken_back_and_never_spreads() {
    for protocol in BOTH {
        let (mut fixture, [mut canary, mut other]) = held(protocol);
        let b2 = if protocol == Protocol::Delta { "cds b:2" } else { "cds a:1 b:2" };
        let back = if protocol == Protocol::Delta { "cds a:1" } else { "cds a:1 b:1" };
        assert_eq!(canary.acked(&fixture), [back]);
        assert!(fixture.order(Order::Discard(None, Note::default())));
        fixture.roll_out(2 * SECOND);
        let status = status(&fixture);
        assert_eq!((status.phase, status.held.len(), status.kept_back), (Phase::Idle, 0, 1));
        // The origin sends it again: after a reconnect, say.
        fixture.answer(View::Wildcard, "cds a:2");
        try_change(&mut fixture, "cds b:2");
        assert_eq!(canary.acked(&fixture), [b2]);
        fixture.roll_out(TRIAL);
        assert_eq!(other.acked(&fixture), [b2]);
        let newcomer = &mut fixture.client_named("canary", protocol);
        newcomer.ask_or_change(&fixture, "cds", "*");
        assert_eq!(newcomer.acked(&fixture), ["cds a:1 b:2"]);
        // Another version of it is another change.
        try_change(&mut fixture, "cds a:3");
        canary.acked(&fixture);
        fixture.roll_out(TRIAL);
        let a3 = if protocol == Protocol::Delta { "cds a:3" } else { "cds a:3 b:2" };
        assert_eq!(other.acked(&fixture), [a3]);
    }
}

#[test]
fn removals_and_additions_are_tried_with_what_they_belong_to() {
    let mut fixture = guarded(&["cds", "rds"]);
    fixture.rules.warm_wait = Duration::ZERO;
    begin(&mut fixture, "cds old:1");
    fixture.named("rds r:1");
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    for client in &mut clients {
        client.change(&fixture, "cds", "*");
        client.change(&fixture, "rds", "r");
        assert_eq!(client.acked(&fixture), ["cds old:1", "rds r:1"]);
    }
    let [canary, other] = &mut clients;
    fixture.origin("cds new:1");
    fixture.named("rds r:2");
    try_change(&mut fixture, "cds -old");
    assert_eq!(canary.acked(&fixture), ["cds new:1", "rds r:2", "cds -old"]);
    fixture.roll_out(WINDOW - SECOND);
    assert_eq!(other.acked(&fixture), [""; 0]);
    fixture.roll_out(SECOND);
    assert_eq!(other.acked(&fixture), ["cds new:1", "rds r:2", "cds -old"], "make before break");
}

#[test]
fn a_change_during_a_trial_is_for_the_next_one() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1 b:1");
    let mut clients = with_all_clusters(&fixture, Protocol::Delta);
    let [canary, other] = &mut clients;
    try_change(&mut fixture, "cds a:2");
    canary.acked(&fixture);
    fixture.roll_out(10 * SECOND);
    fixture.origin("cds a:3 b:2");
    assert!(canary.poll(&fixture).is_none(), "canaries have one content to judge");
    fixture.roll_out(20 * SECOND);
    assert_eq!(other.acked(&fixture), ["cds a:2"]);
    // Rejected: that takes nothing from a:2.
    let told = canary.poll(&fixture).unwrap();
    canary.nack_saying(&fixture, &told, &[], "a: bad");
    fixture.roll_out(TRIAL);
    assert_eq!(other.acked(&fixture), [""; 0]);
    assert_eq!(canary.acked(&fixture), ["cds a:2 b:2"], "what no text names is tried by itself");
    fixture.roll_out(2 * SECOND);
    let told = canary.poll(&fixture).unwrap();
    canary.nack_saying(&fixture, &told, &[], "a: bad");
    fixture.roll_out(2 * SECOND);
    let status = status(&fixture);
    assert_eq!((status.phase, status.held.len()), (Phase::Held, 1));
    // The origin goes back to the version that was good.
    fixture.origin("cds a:2");
    fixture.roll_out(TRIAL + 2 * SECOND);
    assert_eq!(other.acked(&fixture), ["cds b:2"]);
}

#[test]
fn a_few_that_reject_do_not_hold_a_change() {
    for (rejecting, phase) in [(1, Phase::Idle), (2, Phase::Held)] {
        let mut fixture = all_canaries();
        begin(&mut fixture, "cds a:1");
        let mut clients = fleet(&fixture, 10);
        try_change(&mut fixture, "cds a:2");
        for (at, client) in clients.iter_mut().enumerate() {
            let told = client.poll(&fixture).unwrap();
            if at < rejecting {
                client.nack(&fixture, &told, &[]);
            } else {
                client.ack(&fixture, &told, &[]);
            }
        }
        fixture.roll_out(TRIAL);
        assert_eq!(status(&fixture).phase, phase);
    }
}

/// Types that are not guarded go to all at once, and so do first answers.
#[test]
fn what_is_not_known_is_not_held_back() {
    let mut fixture = guarded(&["rds"]);
    fixture.known("cds");
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    for client in &mut clients {
        client.change(&fixture, "cds", "*");
        client.change(&fixture, "rds", "r s");
        client.acked(&fixture);
    }
    fixture.origin("cds a:1");
    fixture.named("rds r:1 -s");
    for client in &mut clients {
        assert_eq!(client.acked(&fixture), ["cds a:1", "rds r:1 -s"]);
    }
    fixture.origin("cds a:2");
    // It did not exist: nobody who asks for it has anything better.
    fixture.named("rds s:1");
    for client in &mut clients {
        assert_eq!(client.acked(&fixture), ["cds a:2", "rds s:1"]);
    }
}

/// Parts of a first answer, of which a slow origin sends more.
#[test]
fn members_that_come_before_the_set_is_complete_are_no_change() {
    let mut fixture = guarded(&["cds"]);
    fixture.know("cds", Completeness::Settled);
    fixture.origin("cds a:1");
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    clients.iter_mut().for_each(|client| drop(client.change(&fixture, "cds", "*")));
    clients.iter_mut().for_each(|client| drop(client.acked(&fixture)));
    fixture.origin("cds b:1");
    for client in &mut clients {
        assert_eq!(client.acked(&fixture), ["cds b:1"]);
    }
}

/// Clients with parameters, and others that may not see all, have stores of their own, which follow their tracks.
#[test]
fn clients_with_parameters_have_tracks_too() {
    let mut fixture = guarded(&["cds"]);
    fixture.seen("env=prod", View::Wildcard, "cds a:1[env=prod]");
    fixture.known_to("env=prod", "cds");
    fixture.seen("env=dev", View::Named, "cds b:1[env=dev]");
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    for client in &mut clients {
        locate(client, &fixture, "cds", &[], &[("*", "env=prod"), ("b", "env=dev")]);
        fixture.fill();
        let told = client.acked(&fixture);
        assert_eq!(told, [r#"cds a{env = "prod"}:1 b{env = "dev"}:1"#]);
    }
    fixture.seen("env=prod", View::Wildcard, "cds a:2[env=prod]");
    fixture.seen("env=dev", View::Named, "cds b:2[env=dev]");
    fixture.roll_out(SECOND);
    let change = [r#"cds a{env = "prod"}:2 b{env = "dev"}:2"#];
    let [canary, other] = &mut clients;
    assert_eq!(canary.acked(&fixture), change);
    assert_eq!(other.acked(&fixture), [""; 0]);
    fixture.roll_out(TRIAL);
    let mut told = other.acked(&fixture);
    assert!(told.len() <= 2, "{told:?}");
    told.sort_unstable();
    assert_eq!(told.concat().matches(":2").count(), 2, "{told:?}");
}

/// The origin forgets a name while a change of it is tried: nobody asks for it any more.
#[test]
fn a_name_that_is_let_go_during_a_trial_does_not_come_back() {
    let mut fixture = guarded(&["rds"]);
    let mut clients = canary_and_other(&fixture, Protocol::Delta);
    for client in &mut clients {
        client.change(&fixture, "rds", "r");
        client.acked(&fixture);
    }
    fixture.named("rds r:1");
    clients.iter_mut().for_each(|client| drop(client.acked(&fixture)));
    fixture.named("rds r:2");
    fixture.roll_out(5 * SECOND);
    drop(clients);
    let forget = deltafan::cache::Op::Forget { view: View::Named, name: "r".into() };
    fixture.apply("rds", Change { ops: vec![forget], ..Change::default() });
    fixture.roll_out(2 * TRIAL);
    for of in fixture.cache.types().iter().filter(|of| *of.type_url() == url("rds")) {
        assert!(of.snapshot().get("r").is_none(), "{:?}", of.parameter_view());
    }
}

/// Heartbeats come with the newest version; the others go on with the one that they have.
#[test]
fn the_last_good_version_is_kept_for_as_long_as_the_origin_keeps_the_newest() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1@5000");
    let mut canary = fixture.client_named("canary", Protocol::Delta);
    canary.change(&fixture, "cds", "*");
    canary.acked(&fixture);
    let mut other = fixture.client_with(&["xds.config.supports-resource-ttl"], Protocol::Delta);
    other.change(&fixture, "cds", "*");
    assert_eq!(other.acked(&fixture), ["cds a:1@5000"]);
    for _ in 0..10 {
        fixture.roll_out(3 * SECOND);
        fixture.origin("cds a:2@5000");
        canary.acked(&fixture);
        assert_eq!(other.acked(&fixture), ["cds a:~1@5000"]);
    }
    // Sent again for the last time at 30 s, tried until 61 s; kept from when it was last heard of.
    fixture.roll_out(TRIAL);
    assert_eq!(status(&fixture).phase, Phase::Idle);
    fixture.origin("cds a:2@5000");
    assert_eq!(other.acked(&fixture), ["cds a:2@5000"]);
}

/// A stream for each type: the client stands in as the canary on all of them.
#[test]
fn the_only_canary_is_one_on_all_of_its_streams() {
    let mut fixture = guarded(&["cds", "lds"]);
    begin(&mut fixture, "cds a:1");
    begin(&mut fixture, "lds l:1");
    let open = |fixture: &Fixture, id: &str, short: &str| {
        let mut client = fixture.client(Protocol::Delta, Some(short));
        client.node.as_mut().unwrap().id = id.to_owned();
        client.change(fixture, short, "*");
        client.acked(fixture);
        client
    };
    // A stream of a type that is not guarded decides nothing.
    let _secrets = open(&fixture, "other", "eds");
    let mut canary = ["cds", "lds"].map(|short| open(&fixture, "canary", short));
    let mut other = ["cds", "lds"].map(|short| open(&fixture, "other", short));
    fixture.origin("cds a:2");
    try_change(&mut fixture, "lds l:2");
    assert_eq!(canary.each_mut().map(|client| client.acked(&fixture)), [["cds a:2"], ["lds l:2"]]);
    assert_eq!(other.each_mut().map(|client| client.acked(&fixture)), [[""; 0], [""; 0]]);
    assert_eq!(status(&fixture).canaries, 2);
    drop(canary);
    assert_eq!(status(&fixture).canaries, 0);
    let _next = open(&fixture, "next", "cds");
    assert_eq!(status(&fixture).canaries, 1);
}

/// One client that comes again and again counts once; an answer in parts is accepted with its last part.
#[test]
fn a_client_is_counted_once() {
    let mut fixture = all_canaries();
    begin(&mut fixture, "cds a:1");
    let mut clients = fleet(&fixture, 10);
    try_change(&mut fixture, "cds a:2");
    clients.iter_mut().for_each(|client| drop(client.acked(&fixture)));
    for _ in 0..20 {
        let mut bad = fixture.client_named("bad", Protocol::Delta);
        bad.change(&fixture, "cds", "*");
        let told = bad.poll(&fixture).unwrap();
        bad.nack(&fixture, &told, &[]);
    }
    fixture.roll_out(TRIAL);
    assert_eq!(status(&fixture).phase, Phase::Idle);
}
