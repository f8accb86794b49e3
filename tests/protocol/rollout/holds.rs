//! Holds and the search for bad changes: what canaries have meanwhile, and who is blamed.

use deltafan::cache::Limits;
use deltafan_test_support::fixture::show;

use super::*;

/// A state-of-the-world client cannot be told that a route is gone, so no canary can accept that.
#[test]
fn a_removed_route_of_sotw_canaries_blocks_nothing() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds", "rds"]);
        begin(&mut fixture, "cds a:1");
        fixture.named("rds r:1 s:1");
        let mut clients = canary_and_other(&fixture, protocol);
        let names: &[(&str, &[&str])] = &[("rds", &["r", "s"])];
        for client in &mut clients {
            match protocol {
                Protocol::Delta => client.change(&fixture, "rds", "r s"),
                Protocol::Sotw => client.ask(&fixture, "rds", &["r", "s"]),
            };
            client.ask_or_change(&fixture, "cds", "*");
            client.acked_with(&fixture, names);
        }
        fixture.named("rds -r");
        fixture.origin("cds a:2");
        for _ in 0..5 {
            fixture.roll_out(SECOND);
            clients[0].acked_with(&fixture, names);
            fixture.roll_out(TRIAL);
        }
        let told = clients[1].acked_with(&fixture, names).concat();
        assert!(told.contains("a:2"), "{protocol:?} {told} {:?}", status(&fixture));
    }
}

/// The last member goes, and the canary reconnects before it answers.
#[test]
fn a_canary_that_comes_to_an_empty_set_accepts_the_last_removal() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds", "lds"]);
        begin(&mut fixture, "cds a:1");
        begin(&mut fixture, "lds l:1");
        let [canary, mut other] = canary_and_other(&fixture, protocol).map(|mut client| {
            client.ask_or_change(&fixture, "cds", "*");
            client.ask_or_change(&fixture, "lds", "*");
            client.acked(&fixture);
            client
        });
        fixture.origin("lds -l");
        fixture.origin("cds a:2");
        fixture.roll_out(SECOND);
        drop(canary);
        let mut canary = fixture.client_named("canary", protocol);
        canary.ask_or_change(&fixture, "cds", "*");
        canary.ask_or_change(&fixture, "lds", "*");
        for _ in 0..5 {
            canary.acked(&fixture);
            fixture.roll_out(TRIAL);
        }
        let told = other.acked(&fixture).concat();
        assert!(told.contains("a:2"), "{protocol:?} {told} {:?}", status(&fixture));
    }
}

/// A swap whose route canaries reject: they get the old route back, and need its cluster.
#[test]
fn canaries_get_the_cluster_of_a_route_back_that_they_get_back() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds", "rds"]);
        begin(&mut fixture, "cds old:1");
        fixture.named("rds r:1");
        let names: &[(&str, &[&str])] = &[("rds", &["r"])];
        let [mut canary, _other] = canary_and_other(&fixture, protocol).map(|mut client| {
            client.ask_or_change(&fixture, "cds", "*");
            client.ask_or_change(&fixture, "rds", "r");
            client.acked_with(&fixture, names);
            client
        });
        fixture.origin("cds new:1");
        fixture.named("rds r:2");
        fixture.origin("cds -old");
        let mut all = Vec::new();
        for _ in 0..3 * TRIAL.as_secs() {
            fixture.roll_out(SECOND);
            while let Some(told) = canary.poll(&fixture) {
                all.push(show(&told));
                if show(&told).contains("r:2") {
                    canary.nack_saying(&fixture, &told, &["r"], "r is bad");
                } else {
                    let names: &[&str] = if show(&told).starts_with("rds") { &["r"] } else { &[] };
                    canary.ack(&fixture, &told, names);
                }
            }
        }
        assert_eq!(held_changes(&fixture), ["r:2"], "{all:?}");
        let last = all.iter().rev().find(|told| told.starts_with("cds")).unwrap();
        assert!(last.contains("old:1"), "{protocol:?}: it has r:1 without its cluster: {all:?}");
    }
}

/// A canary that takes longer than the window for each answer.
#[test]
fn a_slow_canary_finds_the_good_change() {
    for (slow, bad) in [(31, "a:2"), (45, "a:2"), (45, "b:2"), (61, "a:2"), (61, "b:2"), (75, "a:2")] {
        slow_canary(slow, bad);
    }
}

fn slow_canary(slow: u64, bad: &str) {
    let mut fixture = guarded(&["cds"]);
    fixture.rules.unacked_timeout = 1000 * SECOND;
    begin(&mut fixture, "cds a:1 b:1");
    let mut clients = with_all_clusters(&fixture, Protocol::Delta);
    let [canary, _other] = &mut clients;
    fixture.origin("cds a:2 b:2");
    let mut pending = std::collections::VecDeque::new();
    let mut all = Vec::new();
    for second in 0..40 * slow {
        fixture.roll_out(SECOND);
        if let Some(told) = canary.poll(&fixture) {
            all.push((second, show(&told)));
            pending.push_back((second + slow, told));
        }
        while let Some((_, told)) = pending.front().cloned().filter(|(at, _)| *at <= second) {
            pending.pop_front();
            if show(&told).contains(bad) {
                canary.nack_saying(&fixture, &told, &[], "no");
            } else {
                canary.ack(&fixture, &told, &[]);
            }
        }
    }
    assert_eq!(
        held_changes(&fixture),
        [bad],
        "{slow} {} responses: {:?}",
        all.len(),
        &all[..12.min(all.len())]
    );
}

/// The additions fill the response, so that the removal comes in the next one. The canary dies of that.
#[test]
fn an_ack_of_additions_that_fill_a_response_accepts_no_removal() {
    let limits = Limits { response_bytes: 1_000, ..Limits::default() };
    let mut fixture = Fixture::guarded_within(limits, settings(&["cds"]));
    fixture.bulky("cds a:1");
    fixture.origin("cds c:1");
    fixture.known("cds");
    let [mut canary, mut other] = with_all_clusters(&fixture, Protocol::Delta);
    fixture.bulky("cds a:2");
    fixture.origin("cds -c");
    fixture.roll_out(SECOND);
    let told = canary.poll(&fixture).unwrap();
    assert_eq!(show(&told).matches('-').count(), 0, "{}", show(&told));
    canary.ack(&fixture, &told, &[]);
    // It is sent the removal, and rejects it.
    let told = canary.poll(&fixture).unwrap();
    assert_eq!(show(&told), "cds -c");
    canary.nack_saying(&fixture, &told, &[], "c is needed");
    fixture.roll_out(3 * TRIAL);
    let told = other.acked(&fixture).concat();
    assert!(!told.contains("-c"), "the only canary rejected it: {told}");
}

/// State of the world: the canary rejects whatever lacks `c`. The control plane brings `c` back, and `a:2` is good.
#[test]
fn a_good_change_beside_a_bad_removal_spreads_once_that_is_undone() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds"]);
        begin(&mut fixture, "cds a:1 c:1");
        let [mut canary, mut other] = with_all_clusters(&fixture, protocol);
        fixture.origin("cds a:2 -c");
        let mut all = Vec::new();
        for second in 0..10 * TRIAL.as_secs() {
            fixture.roll_out(SECOND);
            if second == 3 * TRIAL.as_secs() {
                all.push(format!("held: {:?}", held_changes(&fixture)));
                fixture.origin("cds c:1");
            }
            while let Some(told) = canary.poll(&fixture) {
                all.push(show(&told));
                let lacks = match protocol {
                    Protocol::Delta => !told.removed.is_empty(),
                    Protocol::Sotw => !show(&told).contains("c:1"),
                };
                if lacks {
                    canary.nack_saying(&fixture, &told, &[], "c is needed");
                } else {
                    canary.ack(&fixture, &told, &[]);
                }
            }
        }
        let told = other.acked(&fixture).concat();
        assert!(told.contains("a:2"), "{protocol:?} {told} {:?} {all:?}", held_changes(&fixture));
    }
}

/// One type is rejected in time, the other after the hold began.
#[test]
fn a_rejection_that_comes_after_the_hold_takes_its_change_back_too() {
    for protocol in BOTH {
        let mut fixture = guarded(&["cds", "rds"]);
        fixture.rules.warm_wait = Duration::ZERO;
        begin(&mut fixture, "cds a:1");
        fixture.named("rds r:1");
        let [mut canary, _other] = canary_and_other(&fixture, protocol).map(|mut client| {
            client.ask_or_change(&fixture, "cds", "*");
            client.ask_or_change(&fixture, "rds", "r");
            client.acked_with(&fixture, &[("rds", &["r"])]);
            client
        });
        fixture.origin("cds a:2");
        fixture.named("rds r:2");
        fixture.roll_out(SECOND);
        let mut late = None;
        while let Some(told) = canary.poll(&fixture) {
            if show(&told).starts_with("cds") {
                canary.nack_saying(&fixture, &told, &[], "a is bad");
            } else {
                late = Some(told);
            }
        }
        fixture.roll_out(TRIAL);
        assert_eq!(held_changes(&fixture), ["a:2"]);
        canary.nack_saying(&fixture, &late.unwrap(), &["r"], "r is bad");
        for _ in 0..10 {
            fixture.roll_out(TRIAL);
            while let Some(told) = canary.poll(&fixture) {
                let names: &[&str] = if show(&told).starts_with("rds") { &["r"] } else { &[] };
                if show(&told).contains(":2") {
                    canary.nack_saying(&fixture, &told, names, "bad");
                } else {
                    canary.ack(&fixture, &told, names);
                }
            }
        }
        // It restarts, and has nothing better.
        drop(canary);
        let mut canary = fixture.client_named("canary", protocol);
        canary.ask_or_change(&fixture, "cds", "*");
        canary.ask_or_change(&fixture, "rds", "r");
        let told = canary.acked_with(&fixture, &[("rds", &["r"])]).concat();
        assert!(told.contains("r:1"), "{protocol:?} {told} {:?}", held_changes(&fixture));
    }
}

/// A canary connects during a trial and rejects its first response because of what is no change.
#[test]
fn a_change_beside_old_content_that_is_rejected_is_tried_by_itself() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1 z:1");
    let [canary, mut other] = with_all_clusters(&fixture, Protocol::Delta);
    fixture.origin("cds a:2");
    drop(canary);
    fixture.roll_out(SECOND);
    // It does not know what z:1 needs.
    let mut canary = fixture.client_named("older", Protocol::Delta);
    canary.change(&fixture, "cds", "*");
    let mut all = Vec::new();
    for _ in 0..5 * TRIAL.as_secs() {
        while let Some(told) = canary.poll(&fixture) {
            all.push(show(&told));
            if show(&told).contains("z:1") {
                canary.nack_saying(&fixture, &told, &[], "z: unknown filter");
            } else {
                canary.ack(&fixture, &told, &[]);
            }
        }
        fixture.roll_out(SECOND);
    }
    let told = other.acked(&fixture).concat();
    assert!(told.contains("a:2"), "{told} {:?} {all:?}", held_changes(&fixture));
}

/// Canaries rejected a new member; a client asks for it by name, and is answered, as it has nothing better.
#[test]
fn an_answer_by_name_ends_no_hold() {
    let mut fixture = guarded(&["cds"]);
    begin(&mut fixture, "cds a:1");
    let [mut canary, mut other] = with_all_clusters(&fixture, Protocol::Delta);
    fixture.origin("cds c:3");
    fixture.roll_out(SECOND);
    let told = canary.poll(&fixture).unwrap();
    canary.nack_saying(&fixture, &told, &[], "c is bad");
    fixture.roll_out(TRIAL);
    canary.acked(&fixture);
    assert_eq!(held_changes(&fixture), ["c:3"]);
    let mut named = fixture.client_named("named", Protocol::Delta);
    named.change(&fixture, "cds", "c");
    fixture.named("cds c:3");
    let told = named.acked(&fixture).concat();
    fixture.roll_out(3 * SECOND);
    let again = canary.acked(&fixture);
    assert_eq!(
        held_changes(&fixture),
        ["c:3"],
        "{told}; canaries are sent {again:?}; {:?}",
        other.told(&fixture)
    );
}
