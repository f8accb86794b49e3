//! Times that clients are told: R-TTL.

use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{Lease, Limits, Op, Protocol, Resend, View};
use deltafan::proto;
use deltafan::subscription::{NextStep, Upstream};

use crate::support::{Bed, Client, strings, url};

const TTL: &str = "xds.config.supports-resource-ttl";
const WRAPS: &str = "xds.config.resource-in-sotw";
const NOTHING: [&str; 0] = [];

fn delta(bed: &Bed) -> Client {
    bed.client_with(&[TTL], Protocol::Delta)
}

fn sotw(bed: &Bed) -> Client {
    bed.client_with(&[TTL, WRAPS], Protocol::Sotw)
}

fn after(bed: &mut Bed, millis: u64) {
    bed.after(Duration::from_millis(millis));
}

#[test]
fn r_ttl_07_times_are_told_to_who_says_it_understands_them() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1");
    for (features, delta, sotw) in [
        (&[][..], false, false),
        (&["other", TTL], true, false),
        (&["envoy.config.supports-resource-ttl"], true, false),
        (&[WRAPS], false, false),
        (&[TTL, WRAPS], true, true),
        (&[TTL, "xds.config.supports-resource-in-sotw"], true, true),
        (&[TTL, "envoy.config.resource-in-sotw"], true, true),
        (&["xds.config.supports-resource-ttl2", "xds.config"], false, false),
    ] {
        for (protocol, is_told) in [(Protocol::Delta, delta), (Protocol::Sotw, sotw)] {
            let mut client = bed.client_with(features, protocol);
            match protocol {
                Protocol::Delta => client.change(&bed, "cds", "*"),
                Protocol::Sotw => client.ask(&bed, "cds", &["*"]),
            };
            let expected = if is_told { "cds a:1@10000 b:1" } else { "cds a:1 b:1" };
            assert_eq!(client.told(&bed), [expected], "{features:?} {protocol:?}");
        }
    }
}

#[test]
fn r_ttl_07_features_beyond_a_bound_are_not_looked_at() {
    let mut bed = Bed::new();
    bed.named("eds a:1@10000");
    for (before, expected) in [(1023, "eds a:1@10000"), (1024, "eds a:1")] {
        let features: Vec<&str> = std::iter::repeat_n("x", before).chain([TTL]).collect();
        let mut client = bed.client_with(&features, Protocol::Delta);
        client.change(&bed, "eds", "a");
        assert_eq!(client.told(&bed), [expected]);
    }
}

#[test]
fn r_ttl_02_a_heartbeat_is_passed_on_with_the_original_time() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1");
    bed.named("eds e:1@10000");
    let mut client = delta(&bed);
    client.change(&bed, "cds", "*");
    client.change(&bed, "eds", "e");
    assert_eq!(client.acked(&bed), ["cds a:1@10000 b:1", "eds e:1@10000"]);
    for _ in 0..10 {
        after(&mut bed, 5_000);
        bed.origin("cds ~a@10000");
        bed.named("eds ~e@10000");
        assert_eq!(client.acked(&bed), ["cds a:~1@10000", "eds e:~1@10000"]);
    }
    bed.named("eds ~e");
    assert_eq!(client.acked(&bed), ["eds e:~1"], "the time is taken away");
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:~1@10000"], "and given again");
    bed.named("eds e:2");
    assert_eq!(client.acked(&bed), ["eds e:2"]);
    bed.named("eds ~e");
    assert_eq!(client.acked(&bed), NOTHING, "there is no time to take away");
    bed.named("eds ~nobody@10000");
    assert_eq!(client.acked(&bed), NOTHING, "what is not held cannot be renewed");
}

#[test]
fn r_ttl_09_a_late_joiner_is_told_what_is_left() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1");
    for (passed, left) in [(100, 10_000), (1, 9_899), (4_899, 5_000), (4_999, 1), (1, 1)] {
        after(&mut bed, passed);
        let mut client = delta(&bed);
        client.change(&bed, "cds", "*");
        assert_eq!(client.acked(&bed), [format!("cds a:1@{left} b:1")]);
        let mut client = sotw(&bed);
        client.ask(&bed, "cds", &["*"]);
        assert_eq!(client.told(&bed), [format!("cds a:1@{left} b:1")]);
    }
}

#[test]
fn r_ttl_09_what_is_asked_for_again_is_told_with_what_is_left() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "e");
    assert_eq!(client.acked(&bed), ["eds e:1@10000"]);
    after(&mut bed, 4_000);
    client.change(&bed, "eds", "e");
    assert_eq!(client.acked(&bed), ["eds e:1@6000"], "R-Delta-04");
    client.change(&bed, "eds", "e");
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:1@10000"], "what was asked for is the body");
}

#[test]
fn r_ttl_09_nothing_is_renewed_while_the_origin_is_silent() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000");
    let (mut delta, mut sotw) = (delta(&bed), sotw(&bed));
    delta.change(&bed, "cds", "*");
    sotw.ask(&bed, "cds", &["*"]);
    assert_eq!((delta.acked(&bed).len(), sotw.acked_with(&bed, &[("cds", &["*"])]).len()), (1, 1));
    for _ in 0..100 {
        after(&mut bed, 100);
        // Whatever wakes them.
        assert_eq!(delta.acked(&bed), NOTHING);
        assert_eq!(sotw.told(&bed), NOTHING);
    }
    bed.origin("cds -a");
    assert_eq!(delta.acked(&bed), ["cds -a"]);
    assert_eq!(sotw.told(&bed), ["cds"]);
}

#[test]
fn r_ttl_09_a_body_begins_anew_and_what_expired_does_so_too() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "e");
    client.acked(&bed);
    after(&mut bed, 5_000);
    bed.named("eds e:2@10000");
    assert_eq!(client.acked(&bed), ["eds e:2@10000"]);
    after(&mut bed, 10_000);
    bed.named("eds -e");
    assert_eq!(client.acked(&bed), ["eds -e"]);
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), NOTHING);
    bed.named("eds e:2@10000");
    assert_eq!(client.acked(&bed), ["eds e:2@10000"], "R-TTL-03: the body, though it is the version it had");
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:~2@10000"]);
}

#[test]
fn r_ttl_03_what_may_have_expired_at_the_client_is_sent_in_full() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000 short:1@400");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "e short");
    client.acked(&bed);
    after(&mut bed, 299);
    bed.named("eds ~short@400");
    assert_eq!(client.acked(&bed), ["eds short:~1@400"], "more than a quarter is left");
    after(&mut bed, 300);
    bed.named("eds ~short@400");
    assert_eq!(client.acked(&bed), ["eds short:1@400"], "a quarter is the margin");

    after(&mut bed, 8_400);
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:~1@10000"], "a second and a millisecond is left");
    after(&mut bed, 9_000);
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:1@10000"], "a second is the margin");
    after(&mut bed, 1_000);
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:~1@10000"]);
}

#[test]
fn r_ttl_09_who_missed_a_renewal_is_sent_the_body() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "e");
    let first = client.poll(&bed).unwrap();
    // It does not answer, and is told nothing: of the two renewals it hears of the second only.
    after(&mut bed, 2_000);
    bed.named("eds ~e@10000");
    assert_eq!(client.told(&bed), NOTHING);
    after(&mut bed, 2_000);
    bed.named("eds ~e@10000");
    client.ack(&bed, &first, &[]);
    assert_eq!(client.acked(&bed), ["eds e:1@10000"]);
    after(&mut bed, 2_000);
    bed.named("eds ~e@10000");
    assert_eq!(client.acked(&bed), ["eds e:~1@10000"]);
}

#[test]
fn r_ttl_09_a_renewal_that_waited_is_told_with_what_is_left() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "e");
    let first = client.poll(&bed).unwrap();
    bed.named("eds ~e@20000");
    after(&mut bed, 3_000);
    client.ack(&bed, &first, &[]);
    assert_eq!(client.acked(&bed), ["eds e:~1@17000"]);
}

/// R-TTL-03, V6: a heartbeat of what the client does not hold would be refused, and all else in the response with it.
#[test]
fn r_ttl_03_who_refused_something_is_sent_the_body_once_more() {
    let mut bed = Bed::new();
    bed.named("eds a:1@10000 b:1@10000");
    let mut other = delta(&bed);
    let mut client = delta(&bed);
    other.change(&bed, "eds", "a b");
    client.change(&bed, "eds", "a b");
    assert_eq!(other.acked(&bed), ["eds a:1@10000 b:1@10000"]);
    assert_eq!(client.acked(&bed), ["eds a:1@10000 b:1@10000"]);
    bed.named("eds b:2@10000");
    let told = client.poll(&bed).unwrap();
    client.nack(&bed, &told, &[]);
    assert_eq!(client.acked(&bed), NOTHING, "R-Delta-16: it is not repeated");
    assert_eq!(other.acked(&bed), ["eds b:2@10000"]);
    bed.named("eds ~a@10000 ~b@10000");
    assert_eq!(client.acked(&bed), ["eds a:1@10000 b:2@10000"]);
    assert_eq!(other.acked(&bed), ["eds a:~1@10000 b:~2@10000"], "nobody else is concerned");
    bed.named("eds ~a@10000 ~b@10000");
    assert_eq!(client.acked(&bed), ["eds a:~1@10000 b:~2@10000"], "it took the bodies");
}

/// The gate had opened before the answer came, which is then that to an older response.
#[test]
fn r_ttl_03_a_late_refusal_counts_too() {
    let mut bed = Bed::new();
    bed.named("eds a:1@60000 b:1@60000");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "a b");
    let first = client.poll(&bed).unwrap();
    after(&mut bed, 6_000);
    bed.named("eds b:2");
    assert_eq!(client.told(&bed), ["eds b:2"]);
    client.nack(&bed, &first, &[]);
    after(&mut bed, 6_000);
    bed.named("eds ~a@60000");
    assert_eq!(client.told(&bed), ["eds a:1@60000"]);
}

#[test]
fn r_ttl_03_what_was_brought_from_an_earlier_stream_is_sent_in_full() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1");
    after(&mut bed, 4_000);
    let mut client = delta(&bed);
    client.resume(&bed, "cds", &["*"], &[("a", "1"), ("b", "1")]);
    assert_eq!(client.acked(&bed), ["cds a:1@6000"], "when it was told of a, nobody knows");
    let mut other = bed.delta();
    other.resume(&bed, "cds", &["*"], &[("a", "1"), ("b", "1")]);
    assert_eq!(other.acked(&bed), ["cds"], "who is told no times holds both");
    bed.origin("cds ~a@10000");
    assert_eq!(client.acked(&bed), ["cds a:~1@10000"]);
    assert_eq!(other.acked(&bed), NOTHING);

    let mut same = sotw(&bed);
    same.ask(&bed, "cds", &["*"]);
    let version = same.poll(&bed).unwrap().version;
    let mut returned = sotw(&bed);
    let request = proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        resource_names: strings(&["*"]),
        version_info: version,
        ..proto::DiscoveryRequest::default()
    };
    returned.on_sotw_request(&bed, request).unwrap();
    assert_eq!(returned.told(&bed), ["cds a:1@10000 b:1"], "the digest says nothing of times");
}

/// V5: Envoy drops every cluster for a heartbeat over state of the world, so that a renewal is the whole set.
#[test]
fn r_ttl_05_over_state_of_the_world_a_renewal_is_the_whole_set() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds a:1@10000 b:1");
    bed.origin("lds l:1@10000");
    bed.named("eds e:1@10000 f:1@10000");
    let mut client = sotw(&bed);
    client.ask(&bed, "cds", &["*"]);
    client.ask(&bed, "eds", &["e", "f"]);
    client.ask(&bed, "lds", &["*"]);
    let names: [(&str, &[&str]); 3] = [("cds", &["*"]), ("eds", &["e", "f"]), ("lds", &["*"])];
    assert_eq!(
        client.acked_with(&bed, &names),
        ["cds a:1@10000 b:1", "eds e:1@10000 f:1@10000", "lds l:1@10000"]
    );
    let before = client.newest("cds").clone();
    let endpoints = client.newest("eds").version.clone();
    for _ in 0..3 {
        after(&mut bed, 5_000);
        bed.origin("cds ~a@10000");
        bed.named("eds ~e@10000");
        assert_eq!(client.acked_with(&bed, &names), ["cds a:1@10000 b:1", "eds e:1@10000"]);
        assert_eq!(client.newest("cds").version, before.version);
        assert_eq!(client.newest("eds").version, endpoints);
        assert_ne!(client.newest("cds").nonce, before.nonce);
    }
    // A change in between is one of version too.
    bed.origin("cds b:2");
    after(&mut bed, 5_000);
    assert_eq!(client.acked_with(&bed, &names), ["cds a:1@5000 b:2"]);
    assert_ne!(client.newest("cds").version, before.version);
}

/// R-SotW-24: what Envoy takes for the version is that of the response.
#[test]
fn r_sotw_23_only_what_has_a_time_is_wrapped_and_only_for_who_unwraps() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1 c:1");
    let (mut wraps, mut plain) = (sotw(&bed), bed.sotw());
    wraps.ask(&bed, "cds", &[]);
    plain.ask(&bed, "cds", &[]);
    let read = |client: &mut Client| {
        let NextStep::Say(outgoing) = client.next(&bed) else { panic!("the clusters") };
        prost::Message::decode(outgoing.frame.message()).unwrap()
    };
    let (wrapped, unwrapped): (proto::DiscoveryResponse, proto::DiscoveryResponse) =
        (read(&mut wraps), read(&mut plain));
    assert_eq!(wrapped.version_info, unwrapped.version_info, "a time is no change");
    let shared = wrapped.resources.iter().filter(|any| unwrapped.resources.contains(any)).count();
    assert_eq!((wrapped.resources.len(), unwrapped.resources.len(), shared), (3, 3, 2));
}

#[test]
fn r_ttl_06_grpc_is_never_sent_a_heartbeat() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000");
    let mut told = bed.client_as("gRPC C-core", Protocol::Delta, None);
    told.node.as_mut().unwrap().client_features = strings(&[TTL]);
    let mut untold = bed.client_as("gRPC C-core", Protocol::Delta, None);
    untold.node.as_mut().unwrap().client_features = strings(&[WRAPS]);
    let mut over_sotw = bed.client_as("gRPC C-core", Protocol::Sotw, None);
    over_sotw.node.as_mut().unwrap().client_features = strings(&[WRAPS]);
    told.change(&bed, "eds", "e");
    untold.change(&bed, "eds", "e");
    over_sotw.ask(&bed, "eds", &["e"]);
    assert_eq!(told.acked(&bed), ["eds e:1@10000"]);
    assert_eq!(untold.acked(&bed), ["eds e:1"]);
    assert_eq!(over_sotw.acked_with(&bed, &[("eds", &["e"])]), ["eds e:1"]);
    bed.named("eds ~e@10000");
    assert_eq!(told.acked(&bed), ["eds e:1@10000"]);
    assert_eq!(untold.acked(&bed), NOTHING);
    assert_eq!(over_sotw.told(&bed), NOTHING);
}

#[test]
fn r_ttl_07_a_renewal_is_nothing_to_who_is_told_no_times() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000");
    let mut timed = delta(&bed);
    let (mut delta, mut sotw) = (bed.delta(), bed.sotw());
    timed.change(&bed, "cds", "*");
    delta.change(&bed, "cds", "* a");
    sotw.ask(&bed, "cds", &["*", "a"]);
    assert_eq!(timed.acked(&bed), ["cds a:1@10000"]);
    assert_eq!(delta.acked(&bed), ["cds a:1"]);
    let told = sotw.poll(&bed).unwrap();
    sotw.ack(&bed, &told, &["*", "a"]);

    let woken = Arc::new(Count::default());
    for client in [&timed, &delta, &sotw] {
        client.session.wake_handle().register(&Arc::clone(&woken).into());
    }
    bed.origin("cds ~a@10000");
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), 1, "the one that is told");
    assert_eq!((delta.acked(&bed), sotw.told(&bed)), (vec![], vec![]));
    assert_eq!(timed.acked(&bed), ["cds a:~1@10000"]);
    let mut fresh = bed.sotw();
    fresh.ask(&bed, "cds", &["*", "a"]);
    assert_eq!(fresh.poll(&bed).unwrap().version, told.version, "the digest is that of the bodies");
}

#[derive(Debug, Default)]
struct Count(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn r_ttl_09_a_copy_that_answers_the_relay_is_a_renewal() {
    let mut bed = Bed::new();
    bed.named("eds e:1@10000");
    let mut client = delta(&bed);
    let mut untold = bed.delta();
    client.change(&bed, "eds", "e");
    untold.change(&bed, "eds", "e");
    assert_eq!((client.acked(&bed).len(), untold.acked(&bed).len()), (1, 1));
    after(&mut bed, 5_000);
    bed.named("eds e:1@10000");
    assert_eq!(client.acked(&bed), ["eds e:~1@10000"]);
    assert_eq!(untold.acked(&bed), NOTHING);
    bed.resend(View::Named, "eds e:1@20000");
    assert_eq!(client.acked(&bed), ["eds e:1@20000"], "R-Relay-21");
    assert_eq!(untold.acked(&bed), ["eds e:1"]);
}

#[test]
fn r_ttl_09_who_asks_by_name_is_told_the_time_of_the_copy_it_sees() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.named("cds a:1@20000");
    let mut client = delta(&bed);
    client.change(&bed, "cds", "a");
    assert_eq!(client.acked(&bed), ["cds a:1@20000"]);
    bed.origin("cds a:1@10000");
    assert_eq!(client.acked(&bed), ["cds a:1@10000"], "a member is what is seen");
    bed.named("cds ~a@20000");
    assert_eq!(client.acked(&bed), NOTHING, "behind the member");
    bed.origin("cds ~a@10000");
    assert_eq!(client.acked(&bed), ["cds a:~1@10000"]);
    after(&mut bed, 5_000);
    bed.origin("cds -a");
    assert_eq!(client.acked(&bed), ["cds a:1@15000"], "the other copy, of which it was not told");
}

#[test]
fn r_ttl_09_members_of_a_glob_and_other_spellings_are_told_their_times() {
    let mut bed = Bed::new();
    let (member, glob) = ("xdstp://auth/t/dir/a?x=1&y=2", "xdstp://auth/t/dir/*?x=1&y=2");
    bed.named(&format!("eds {member}:1@10000"));
    bed.apply(
        "eds",
        deltafan::cache::Change { ops: vec![Op::Complete { name: glob.into() }], ..Default::default() },
    );
    let mut collects = delta(&bed);
    collects.change(&bed, "eds", glob);
    let other = "xdstp://auth/t/dir/a?y=2&x=1";
    let mut spells = delta(&bed);
    spells.change(&bed, "eds", other);
    assert_eq!(collects.acked(&bed), [format!("eds {member}:1@10000")]);
    assert_eq!(spells.acked(&bed), [format!("eds {other}:1@10000")]);
    bed.named(&format!("eds ~{member}@10000"));
    assert_eq!(collects.acked(&bed), [format!("eds {member}:~1@10000")]);
    assert_eq!(spells.acked(&bed), [format!("eds {other}:~1@10000")]);
    bed.named("eds plain:1");
    spells.change(&bed, "eds", "plain");
    bed.named(&format!("eds ~{member}@10000"));
    assert_eq!(spells.acked(&bed), [format!("eds plain:1 {other}:~1@10000")]);
}

#[test]
fn r_ttl_09_a_frame_with_times_is_shared_for_a_moment_only() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000");
    bed.named("eds e:1");
    let mut clients: Vec<Client> = (0..6).map(|_| delta(&bed)).collect();
    for client in &mut clients {
        client.change(&bed, "cds", "*");
        client.change(&bed, "eds", "e");
    }
    after(&mut bed, 1_000);
    let mut counts = Vec::new();
    for (client, passed) in clients.iter_mut().zip([0, 50, 50, 1, 99, 60_000]) {
        after(&mut bed, passed);
        let told = client.acked(&bed);
        counts.push((told[0].clone(), told[1].clone(), bed.cache.encoder().encodes()));
    }
    let first = counts[0].2;
    let said = |left: u64, more: u64| (format!("cds a:1@{left}"), "eds e:1".to_owned(), first + more);
    assert_eq!(
        counts,
        [said(9_000, 0), said(9_000, 0), said(9_000, 0), said(8_899, 1), said(8_899, 1), said(1, 2)],
        "what has no time is encoded once"
    );
}

#[test]
fn r_ttl_09_large_sets_share_what_has_no_time() {
    let mut bed = Bed::with_limits(Limits { response_bytes: 64 << 10, ..Limits::default() });
    bed.known("cds");
    let all: Vec<String> = (0..600).map(|at| format!("c{at:03}:1")).collect();
    bed.bulky(&format!("cds {}", all.join(" ")));
    bed.bulky("cds c300:1@10000");
    let (mut delta, mut sotw) = (delta(&bed), sotw(&bed));
    delta.change(&bed, "cds", "*");
    sotw.ask(&bed, "cds", &["*"]);
    after(&mut bed, 4_000);
    let words = |told: Vec<String>| -> Vec<String> {
        let words = told.iter().flat_map(|told| told.split(' ').skip(1)).map(str::to_owned);
        let mut words: Vec<_> = words.collect();
        words.sort_unstable();
        words
    };
    let mut expected = all;
    expected[300] = "c300:1@6000".to_owned();
    assert_eq!(words(delta.acked(&bed)), expected);
    assert_eq!(words(sotw.told(&bed)), expected);
}

#[test]
fn r_ttl_03_what_is_asked_for_while_an_answer_is_cut_is_sent_in_full() {
    let mut bed = Bed::with_limits(Limits { response_bytes: 300, ..Limits::default() });
    bed.named("eds a:1 b:1 c:1 d:1 e:1 f:1 z:1@60000");
    let mut client = delta(&bed);
    client.change(&bed, "eds", "a b c d e f");
    assert!(client.acked(&bed).len() > 1);
    bed.named("eds a:2 b:2 c:2 d:2 e:2 f:2 ~z@60000");
    client.change(&bed, "eds", "z");
    let told = client.acked(&bed);
    assert!(told.len() > 1 && told.last().unwrap().contains("z:1@60000"), "{told:?}");

    // The same where what was asked for fills a response of its own.
    bed.named("eds x:1@60000 y:1");
    bed.named("eds a:3 b:3 c:3");
    assert!(!client.acked(&bed).is_empty());
    bed.named("eds a:4 b:4 c:4 ~x@60000");
    client.change(&bed, "eds", "x y");
    let told = client.acked(&bed);
    assert_eq!(told[0], "eds y:1");
    assert!(told.len() > 1 && told.iter().any(|told| told.contains("x:1@60000")), "{told:?}");
}

#[test]
fn r_ttl_03_what_was_told_of_a_member_is_not_sure_of_the_copy_in_a_glob() {
    let mut bed = Bed::knowing(&["cds"]);
    let (member, glob) = ("xdstp://auth/t/dir/a", "xdstp://auth/t/dir/*");
    bed.named(&format!("cds {member}:1@20000"));
    let complete = vec![Op::Complete { name: glob.into() }];
    bed.apply("cds", deltafan::cache::Change { ops: complete, ..Default::default() });
    bed.origin(&format!("cds {member}:1@5000"));
    let mut client = delta(&bed);
    client.change(&bed, "cds", &format!("{glob} {member}"));
    assert_eq!(client.acked(&bed), [format!("cds {member}:1@5000")], "by its name it is the member");
    client.change(&bed, "cds", &format!("-{member}"));
    assert_eq!(client.acked(&bed), NOTHING);
    after(&mut bed, 5_000);
    bed.named(&format!("cds ~{member}@20000"));
    assert_eq!(client.acked(&bed), [format!("cds {member}:1@20000")], "it may have ended at the client");
}

/// Many renewals are small: they fit in one response, where the bodies would not.
#[test]
fn r_ttl_02_heartbeats_of_many_are_one_response() {
    let mut bed = Bed::with_limits(Limits { response_bytes: 64 << 10, ..Limits::default() });
    bed.known("cds");
    let all = |form: &dyn Fn(usize) -> String| {
        let all: Vec<String> = (0..500).map(form).collect();
        format!("cds {}", all.join(" "))
    };
    bed.bulky(&all(&|at| format!("c{at:03}:1@10000")));
    let mut client = delta(&bed);
    client.change(&bed, "cds", "*");
    assert!(client.acked(&bed).len() > 5);
    bed.origin(&all(&|at| format!("~c{at:03}@10000")));
    assert_eq!(client.acked(&bed), [all(&|at| format!("c{at:03}:~1@10000"))]);
}

#[test]
fn r_ttl_02_a_renewal_is_no_change_of_which_the_age_is_measured() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1");
    let (mut delta, mut sotw) = (delta(&bed), sotw(&bed));
    delta.change(&bed, "cds", "*");
    sotw.ask(&bed, "cds", &["*"]);
    delta.acked(&bed);
    sotw.acked_with(&bed, &[("cds", &["*"])]);
    let mut changed_at = |bed: &Bed| {
        [&mut delta, &mut sotw].map(|client| {
            let NextStep::Say(outgoing) = client.next(bed) else { panic!("something is to be said") };
            client.session.taken(bed.now);
            outgoing.changed_at
        })
    };
    bed.origin("cds ~a@10000");
    assert_eq!(changed_at(&bed), [None, None]);
    after(&mut bed, 6_000);
    bed.origin("cds b:2");
    let change = Some(bed.now);
    after(&mut bed, 6_000);
    bed.origin("cds ~a@10000");
    assert_eq!(changed_at(&bed), [change, change], "that of the change, not of the renewal after it");
}

/// Endpoints follow a cluster that changed (R-ADS-05), not one whose time was renewed.
#[test]
fn r_ttl_02_a_heartbeat_of_a_cluster_repeats_no_endpoints() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds eds-a:1@10000");
    bed.named("eds eds-a:1");
    let mut delta = delta(&bed);
    let mut sotw = sotw(&bed);
    delta.change(&bed, "cds", "*");
    delta.change(&bed, "eds", "eds-a");
    sotw.ask(&bed, "cds", &["*"]);
    sotw.ask(&bed, "eds", &["eds-a"]);
    let names: [(&str, &[&str]); 2] = [("cds", &["*"]), ("eds", &["eds-a"])];
    delta.acked(&bed);
    sotw.acked_with(&bed, &names);
    after(&mut bed, 5_000);
    bed.origin("cds ~eds-a@10000");
    assert_eq!(delta.acked(&bed), ["cds eds-a:~1@10000"]);
    assert_eq!(sotw.acked_with(&bed, &names), ["cds eds-a:1@10000"]);
    after(&mut bed, 9_500);
    bed.origin("cds ~eds-a@10000");
    assert_eq!(delta.acked(&bed), ["cds eds-a:1@10000", "eds eds-a:1"], "it may have lost the cluster");
    assert_eq!(sotw.acked_with(&bed, &names), ["cds eds-a:1@10000", "eds eds-a:1"]);
}

/// An answer that stands alone is never renewed, so that it tells no time.
#[test]
fn r_ttl_07_a_fetch_is_told_no_times() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000");
    let mut client = sotw(&bed);
    client.session = client.session.one_shot();
    client.ask(&bed, "cds", &["*"]);
    assert_eq!(client.told(&bed), ["cds a:1"]);
}

#[test]
fn r_rest_15_what_ended_is_another_version_without_it() {
    use deltafan::resource::Kind;
    use deltafan::subscription::{Poll, PollHistory, PollPeer, PollVerdict, Upstream};
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1@10000 b:1");
    let poll = |bed: &Bed| {
        let rules = Arc::new(bed.rules.clone());
        let (memory, request, hold) =
            (PollHistory::default(), proto::DiscoveryRequest::default(), Duration::from_secs(10));
        let poll = Poll::new(
            &bed.cache,
            &rules,
            &memory,
            Kind::Cluster,
            request,
            PollPeer::default(),
            hold,
            bed.now,
        )
        .unwrap();
        let found =
            poll.found().resources.iter().map(|resource| resource.name().to_string()).collect::<Vec<_>>();
        (poll.next(bed.now, Upstream::Answering), found)
    };
    let (first, found) = poll(&bed);
    assert_eq!(found, ["a", "b"]);
    bed.origin("cds ~a@10000");
    assert_eq!(poll(&bed).0, first, "a renewal is no change");
    bed.origin("cds -a");
    let (last, found) = poll(&bed);
    assert_eq!(found, ["b"]);
    assert!(matches!(last, PollVerdict::Answer(_)) && last != first);
}

#[test]
fn r_ttl_01_a_time_beyond_all_clocks_is_no_limit_to_clients() {
    let mut bed = Bed::new();
    bed.now += Duration::from_secs(1);
    assert_eq!(Lease::new(Duration::from_secs(1 << 40), bed.now), None);
    let resource = crate::wire::resource(&url("eds"), "e", "1", 0);
    let lease = Lease::new(Duration::from_secs(9_000_000_000), bed.now);
    let set = Op::Set { view: View::Named, resource, resend: Resend::Answer, lease };
    bed.apply("eds", deltafan::cache::Change { ops: vec![set], ..Default::default() });
    let mut client = delta(&bed);
    client.change(&bed, "eds", "e");
    assert_eq!(client.acked(&bed), ["eds e:1@9000000000000"]);
}

/// The names that the origin leaves unanswered were never held.
#[test]
fn r_ttl_09_what_ended_goes_from_a_full_state_though_other_names_are_not_known() {
    let mut bed = Bed::new();
    let mut client = bed.sotw();
    client.ask(&bed, "lds", &["a", "none"]);
    bed.named("lds a:1@5000");
    bed.after(Duration::from_secs(1));
    assert_eq!(client.acked_with(&bed, &[("lds", &["a", "none"])]), ["lds a:1"]);
    let asked = bed.now;
    after(&mut bed, 5_000);
    bed.named("lds -a");
    bed.upstream = Upstream::Away;
    bed.writer.unheard();
    while client.told(&bed).is_empty() {
        let NextStep::Wait(Some(until)) = client.next(&bed) else { panic!("it has to look again") };
        bed.now = until;
        assert!(
            bed.now <= asked + bed.rules.longest_silence() + bed.rules.cold_deadline,
            "it goes whoever is away"
        );
    }
}
