//! State-of-the-world streams: R-SotW.

use std::time::Duration;

use deltafan::cache::{Protocol, View};
use deltafan::proto;
use deltafan::subscription::{NextStep, RequestKind};

use crate::support::{Bed, is_acked, show, strings, url};

#[test]
fn r_sotw_10_the_digest_of_what_is_current_covers_bodies() {
    let start = |text: &str| {
        let mut bed = Bed::knowing(&["cds"]);
        bed.origin(&format!("cds a:1{text}"));
        bed
    };
    let resumes = |bed: &Bed, version_info: &str| {
        let mut client = bed.sotw();
        let request = proto::DiscoveryRequest {
            version_info: version_info.to_owned(),
            type_url: url("cds").as_str().to_owned(),
            ..proto::DiscoveryRequest::default()
        };
        client.on_sotw_request(bed, request).unwrap();
        client.told(bed)
    };
    let bed = start("");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let version = client.poll(&bed).unwrap().version;
    // The relay starts anew, and with it the origin, which counts its versions.
    assert!(resumes(&start(""), &version).is_empty());
    assert_eq!(resumes(&start("/other"), &version), ["cds a:1/other"]);
}

#[test]
fn r_sotw_11_a_state_that_is_empty_is_told_once_though_nothing_was_ever_heard() {
    for acks in [true, false] {
        let mut bed = Bed::new();
        let mut client = bed.client_as("gRPC C-core", Protocol::Sotw, None);
        client.ask(&bed, "lds", &["nowhere"]);
        // The origin answers for listeners, and has nothing to say of this one.
        bed.cache.of(&url("lds")).unwrap();
        bed.writer.heard(&url("lds"), bed.now);
        assert!(client.told(&bed).is_empty());
        bed.after(bed.rules.longest_silence());
        let told = client.poll(&bed).unwrap();
        assert!(told.resources.is_empty());
        if acks {
            client.ack(&bed, &told, &["nowhere"]);
        }
        for _ in 0..10 {
            bed.after(bed.rules.ack_timeout);
            assert!(client.poll(&bed).is_none(), "nothing happened");
        }
        bed.named("lds nowhere:1");
        assert_eq!(client.told(&bed), ["lds nowhere:1"]);
    }
}

#[test]
fn r_sotw_01_a_nack_is_told_by_error_detail_alone() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let told = client.poll(&bed).unwrap();
    // An old version with the newest nonce is an ACK.
    let request = proto::DiscoveryRequest {
        type_url: told.type_url.as_str().to_owned(),
        response_nonce: told.nonce,
        version_info: "of long ago".to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    assert!(is_acked(&client.on_sotw_request(&bed, request).unwrap()));
}

#[test]
fn r_sotw_02_a_nack_with_the_new_version_is_a_nack() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let told = client.poll(&bed).unwrap();
    assert!(matches!(client.nack(&bed, &told, &[]), RequestKind::Nack { error, .. } if error.code == 13));
}

#[test]
fn r_sotw_03_nonces_are_unique_in_a_stream_across_types() {
    let mut bed = Bed::knowing(&["cds", "lds", "eds"]);
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    client.ask(&bed, "lds", &[]);
    client.ask(&bed, "eds", &["a"]);
    let mut nonces = Vec::new();
    for version in 1..20 {
        bed.origin(&format!("cds a:{version} b{version}:1"));
        bed.origin(&format!("lds a:{version}"));
        bed.named(&format!("eds a:{version}"));
        while let Some(told) = client.poll(&bed) {
            let names: &[&str] = if told.type_url == url("eds") { &["a"] } else { &[] };
            client.ack(&bed, &told, names);
            nonces.push(told.nonce);
        }
        client.ask(&bed, "eds", &[]);
        client.ask(&bed, "eds", &["a"]);
    }
    let sent = nonces.len();
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), sent);
}

#[test]
fn r_sotw_04_a_stale_nonce_is_no_answer() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let first = client.poll(&bed).unwrap();
    client.ack(&bed, &first, &[]);
    bed.origin("cds a:2");
    let second = client.poll(&bed).unwrap();
    assert!(matches!(client.ack(&bed, &first, &[]), RequestKind::Stale { .. }));
    bed.origin("cds a:3");
    assert!(client.told(&bed).is_empty(), "the second response is still not answered");
    assert!(is_acked(&client.ack(&bed, &second, &[])));
    assert_eq!(client.told(&bed), ["cds a:3"]);
}

#[test]
fn r_sotw_05_a_name_added_with_the_last_good_nonce_is_served() {
    let mut bed = Bed::knowing(&["eds"]);
    bed.named("eds a:1 b:1");
    let mut client = bed.sotw();
    client.ask(&bed, "eds", &["a"]);
    let good = client.poll(&bed).unwrap();
    client.ack(&bed, &good, &["a"]);
    bed.named("eds a:2");
    let bad = client.poll(&bed).unwrap();
    client.nack(&bed, &bad, &["a"]);
    assert!(matches!(client.ack(&bed, &good, &["a", "b"]), RequestKind::Stale { .. }));
    assert_eq!(client.told(&bed), ["eds b:1"]);
}

#[test]
fn r_sotw_06_changes_coalesce_behind_one_unacked_response() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let first = client.poll(&bed).unwrap();
    bed.origin("cds a:2");
    bed.origin("cds a:3 b:1");
    assert!(client.told(&bed).is_empty());
    client.ack(&bed, &first, &[]);
    assert_eq!(client.told(&bed), ["cds a:3 b:1"]);
}

#[test]
fn r_sotw_06_the_gate_opens_after_a_time_that_starts_when_the_response_was_taken() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let NextStep::Say(_) = client.next(&bed) else { panic!("it has something to say") };
    bed.origin("cds a:2");
    bed.after(Duration::from_secs(60));
    let NextStep::Wait(None) = client.next(&bed) else { panic!("the transport has taken nothing") };
    client.session.taken(bed.now);
    let NextStep::Wait(Some(opens)) = client.next(&bed) else { panic!("the ACK is awaited") };
    assert_eq!(opens, bed.now + bed.rules.ack_timeout);
    bed.now = opens;
    assert_eq!(client.told(&bed), ["cds a:2"]);
}

#[test]
fn r_sotw_07_an_unwanted_answer_is_not_sent_again() {
    let mut bed = Bed::knowing(&["eds"]);
    bed.named("eds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "eds", &["a"]);
    let told = client.poll(&bed).unwrap();
    client.ack(&bed, &told, &[]);
    bed.named("eds a:2");
    assert!(client.told(&bed).is_empty());
}

#[test]
fn r_sotw_08_a_client_that_nacks_for_ever_gets_each_version_once() {
    let mut bed = Bed::knowing(&["cds", "eds"]);
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    client.ask(&bed, "eds", &["a"]);
    for version in 1..5 {
        bed.origin(&format!("cds a:{version}"));
        bed.named(&format!("eds a:{version}"));
        for short in ["cds", "eds"] {
            let told = client.poll(&bed).unwrap();
            assert_eq!((told.type_url.clone(), told.resources.len()), (url(short), 1));
            client.nack(&bed, &told, if short == "eds" { &["a"] } else { &[] });
        }
        bed.after(Duration::from_secs(60));
        assert!(client.told(&bed).is_empty());
    }
}

#[test]
fn r_sotw_09_version_and_nonce_of_an_earlier_stream_do_no_harm() {
    let mut bed = Bed::knowing(&["eds"]);
    bed.named("eds a:1");
    let mut client = bed.sotw();
    let request = proto::DiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        version_info: "7".to_owned(),
        response_nonce: "of another stream".to_owned(),
        resource_names: strings(&["a"]),
        ..proto::DiscoveryRequest::default()
    };
    assert!(matches!(client.on_sotw_request(&bed, request).unwrap(), RequestKind::Subscribed { .. }));
    assert_eq!(client.told(&bed), ["eds a:1"]);
}

fn resume(bed: &Bed, short: &str, names: &[&str], version: &str) -> Vec<String> {
    let mut client = bed.sotw();
    let request = proto::DiscoveryRequest {
        type_url: url(short).as_str().to_owned(),
        version_info: version.to_owned(),
        resource_names: strings(names),
        ..proto::DiscoveryRequest::default()
    };
    client.on_sotw_request(bed, request).unwrap();
    client.told(bed)
}

#[test]
fn r_sotw_10_a_reconnect_with_the_digest_of_what_is_current_is_told_nothing() {
    let mut bed = Bed::knowing(&["cds", "eds"]);
    bed.origin("cds a:1 b:1");
    bed.named("eds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    client.ask(&bed, "eds", &["a"]);
    assert_eq!(client.told(&bed), ["cds a:1 b:1", "eds a:1"]);
    let clusters = client.newest("cds").version.clone();
    let endpoints = client.newest("eds").version.clone();

    assert!(resume(&bed, "cds", &[], &clusters).is_empty());
    assert_eq!(resume(&bed, "cds", &["a"], &clusters), ["cds a:1"], "names might be new to the client");
    assert_eq!(resume(&bed, "eds", &["a"], &endpoints), ["eds a:1"], "not a full-state type");
    bed.origin("cds -b");
    assert_eq!(resume(&bed, "cds", &[], &clusters), ["cds a:1"]);
}

#[test]
fn r_sotw_10_a_client_that_resumed_is_told_of_the_next_change() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1 b:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let version = client.poll(&bed).unwrap().version;

    let mut again = bed.sotw();
    let request = proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        version_info: version,
        ..proto::DiscoveryRequest::default()
    };
    again.on_sotw_request(&bed, request).unwrap();
    assert!(again.told(&bed).is_empty());
    bed.origin("cds -a");
    assert_eq!(again.told(&bed), ["cds b:1"]);
}

#[test]
fn r_sotw_11_a_set_that_is_known_to_be_empty_is_an_answer() {
    let bed = Bed::knowing(&["cds"]);
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    assert_eq!(client.told(&bed), ["cds"]);
}

#[test]
fn r_sotw_12_what_is_no_longer_listed_is_no_longer_sent() {
    let mut bed = Bed::knowing(&["eds"]);
    bed.named("eds a:1 b:1");
    let mut client = bed.sotw();
    client.ask(&bed, "eds", &["a", "b"]);
    assert_eq!(client.acked_with(&bed, &[("eds", &["a", "b"])]), ["eds a:1 b:1"]);
    client.ask(&bed, "eds", &["b"]);
    bed.named("eds a:2 b:2");
    assert_eq!(client.told(&bed), ["eds b:2"]);
}

#[test]
fn r_sotw_13_the_vector_of_the_protocol() {
    let mut bed = Bed::knowing(&["lds"]);
    bed.origin("lds a:1 b:1");
    bed.named("lds A:1");
    let mut client = bed.sotw();
    client.ask(&bed, "lds", &[]);
    assert_eq!(client.acked(&bed), ["lds a:1 b:1"]);
    client.ask(&bed, "lds", &["*", "A"]);
    assert_eq!(client.acked_with(&bed, &[("lds", &["*", "A"])]), ["lds A:1 a:1 b:1"]);
    client.ask(&bed, "lds", &["A"]);
    bed.named("lds A:2");
    assert_eq!(client.acked_with(&bed, &[("lds", &["A"])]), ["lds A:2"]);
    client.ask(&bed, "lds", &[]);
    bed.named("lds A:3");
    bed.origin("lds a:2");
    assert!(client.acked(&bed).is_empty(), "an empty list after names is no wildcard");
}

#[test]
fn r_sotw_14_an_empty_first_list_is_no_wildcard_for_types_asked_by_name() {
    for short in ["eds", "rds", "sds", "ecds", "rtds", "leds"] {
        let mut bed = Bed::knowing(&[short]);
        bed.origin(&format!("{short} a:1"));
        let mut client = bed.sotw();
        client.ask(&bed, short, &[]);
        assert!(client.told(&bed).is_empty(), "{short}");
        client.ask(&bed, short, &["*"]);
        assert_eq!(client.told(&bed), [format!("{short} a:1")]);
    }
    for short in ["cds", "lds", "srds", "thing"] {
        let mut bed = Bed::knowing(&[short]);
        bed.origin(&format!("{short} a:1"));
        let mut client = bed.sotw();
        client.ask(&bed, short, &[]);
        assert_eq!(client.told(&bed).len(), 1, "{short}");
        let mut grpc = bed.client_as("gRPC Go", Protocol::Sotw, None);
        grpc.ask(&bed, short, &[]);
        assert!(grpc.told(&bed).is_empty(), "gRPC and {short}");
    }
}

#[test]
fn r_sotw_15_a_newly_listed_name_is_sent_though_others_were_current() {
    let mut bed = Bed::knowing(&["eds", "lds"]);
    bed.named("eds a:1 b:1");
    bed.named("lds a:1 b:1");
    let mut client = bed.sotw();
    client.ask(&bed, "eds", &["a"]);
    client.ask(&bed, "lds", &["a"]);
    let names: &[(&str, &[&str])] = &[("eds", &["a", "b"]), ("lds", &["a", "b"])];
    assert_eq!(client.acked_with(&bed, &[("eds", &["a"]), ("lds", &["a"])]), ["eds a:1", "lds a:1"]);
    client.ask(&bed, "eds", &["a", "b"]);
    assert_eq!(client.acked_with(&bed, names), ["eds b:1"]);
    client.ask(&bed, "lds", &["a", "b"]);
    assert_eq!(client.acked_with(&bed, names), ["lds a:1 b:1"], "once, and all of a full-state type");
}

#[test]
fn r_sotw_16_a_name_that_does_not_exist_is_sent_when_it_appears() {
    let mut bed = Bed::knowing(&["eds"]);
    bed.named("eds -a");
    let mut client = bed.sotw();
    client.ask(&bed, "eds", &["a"]);
    assert!(client.told(&bed).is_empty(), "there is no way to say it (R-SotW-19)");
    bed.named("eds a:1");
    assert_eq!(client.told(&bed), ["eds a:1"]);
}

#[test]
fn r_sotw_17_a_name_that_is_listed_again_is_sent_again() {
    let mut bed = Bed::knowing(&["eds"]);
    bed.named("eds a:1 b:1");
    let mut client = bed.sotw();
    client.ask(&bed, "eds", &["a", "b"]);
    assert_eq!(client.acked_with(&bed, &[("eds", &["a", "b"])]), ["eds a:1 b:1"]);
    client.ask(&bed, "eds", &["b"]);
    client.ask(&bed, "eds", &["a", "b"]);
    assert_eq!(client.acked_with(&bed, &[("eds", &["a", "b"])]), ["eds a:1"]);
}

#[test]
fn r_sotw_18_and_20_full_state_types_say_removals_by_omission() {
    for short in ["cds", "lds", "srds"] {
        let mut bed = Bed::knowing(&[short]);
        bed.origin(&format!("{short} a:1 b:1"));
        let mut client = bed.sotw();
        client.ask(&bed, short, &[]);
        assert_eq!(client.acked(&bed), [format!("{short} a:1 b:1")]);
        bed.origin(&format!("{short} -a"));
        assert_eq!(client.acked(&bed), [format!("{short} b:1")]);
        bed.origin(&format!("{short} -b"));
        assert_eq!(client.acked(&bed), [short], "an empty answer deletes all");
    }
}

#[test]
fn r_sotw_18_the_answer_is_the_wildcard_and_the_explicit_names() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1 b:1");
    bed.named("cds b:1 x:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &["*", "b", "x"]);
    assert_eq!(client.acked_with(&bed, &[("cds", &["*", "b", "x"])]), ["cds a:1 b:1 x:1"]);
}

/// The client cannot tell whether what it let go of is a member: it holds it until a full state lacks it.
#[test]
fn r_sotw_18_what_is_let_go_beside_a_wildcard_and_is_no_member_is_answered() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1 b:1");
    bed.named("cds b:1 x:1 y:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &["*", "b", "x", "y"]);
    assert_eq!(client.acked_with(&bed, &[("cds", &["*", "b", "x", "y"])]), ["cds a:1 b:1 x:1 y:1"]);
    client.ask(&bed, "cds", &["*", "x", "y"]);
    assert!(client.acked_with(&bed, &[("cds", &["*", "x", "y"])]).is_empty(), "b is a member");
    client.ask(&bed, "cds", &["*", "x"]);
    assert_eq!(client.told(&bed), ["cds a:1 b:1 x:1"]);
    bed.named("cds -x");
    client.ask(&bed, "cds", &["*"]);
    assert_eq!(client.acked_with(&bed, &[("cds", &["*"])]), ["cds a:1 b:1"], "gone before it was let go");
}

#[test]
fn r_sotw_19_other_types_say_nothing_of_removals() {
    let mut bed = Bed::knowing(&["rds", "thing"]);
    bed.named("rds a:1 b:1");
    bed.origin("thing a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "rds", &["a", "b"]);
    client.ask(&bed, "thing", &[]);
    assert_eq!(client.told(&bed).len(), 2);
    bed.after(Duration::from_secs(60));
    bed.named("rds -a");
    bed.origin("thing -a");
    assert!(client.told(&bed).is_empty());
    bed.named("rds b:2");
    assert_eq!(client.told(&bed), ["rds b:2"]);
}

#[test]
fn r_sotw_21_and_22_a_union_holds_no_name_twice() {
    // The harness checks names and inner types of every frame; this is the frame most at risk.
    let mut bed = Bed::knowing(&["cds", "rds"]);
    bed.origin("cds a:1 b:1");
    bed.named("cds b:1");
    bed.named("rds r:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &["*", "b"]);
    client.ask(&bed, "rds", &["r"]);
    client.acked_with(&bed, &[("cds", &["*", "b"]), ("rds", &["r"])]);
    bed.origin("cds -a -b c:1");
    bed.named("cds -b");
    bed.named("rds r:2");
    bed.origin("cds a:2");
    let told = client.acked_with(&bed, &[("cds", &["*", "b"]), ("rds", &["r"])]);
    assert_eq!(told, ["cds a:2 b:1 c:1", "rds r:2", "cds a:2 c:1"]);
}

#[test]
fn r_sotw_25_a_request_is_not_answered_when_nothing_changed() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    let told = client.poll(&bed).unwrap();
    for _ in 0..3 {
        client.ack(&bed, &told, &[]);
        assert!(client.told(&bed).is_empty());
    }
}

/// An origin that never says that a name does not exist, and a client that asks for one more every five seconds.
#[test]
fn r_sotw_18_a_list_that_grows_holds_back_what_is_known_for_a_bounded_time() {
    for wildcard in [false, true] {
        let mut bed = Bed::knowing(&["cds"]);
        bed.answer(if wildcard { View::Wildcard } else { View::Named }, "cds a:0");
        let mut client = bed.sotw();
        let mut names = vec![if wildcard { "*".to_owned() } else { "a".to_owned() }, "none".to_owned()];
        let request = proto::DiscoveryRequest {
            type_url: url("cds").as_str().to_owned(),
            resource_names: names.clone(),
            version_info: "1".to_owned(),
            ..Default::default()
        };
        client.on_sotw_request(&bed, request).unwrap();
        let mut told = Vec::new();
        for step in 1..=30 {
            bed.after(Duration::from_secs(5));
            names.push(format!("none-{step}"));
            let list: Vec<&str> = names.iter().map(String::as_str).collect();
            client.ask(&bed, "cds", &list);
            bed.answer(if wildcard { View::Wildcard } else { View::Named }, &format!("cds a:{step}"));
            while let Some(response) = client.poll(&bed) {
                assert_eq!(show(&response), format!("cds a:{step}"));
                told.push(step);
                client.ack(&bed, &response, &list);
            }
            // Nor does an origin that answers for nothing but what is there wake it later than it has to look again.
            assert!(matches!(client.next(&bed), NextStep::Wait(Some(at)) if at > bed.now));
        }
        let longest =
            told.iter().chain(&[31]).scan(0, |last, step| Some(step - std::mem::replace(last, *step))).max();
        let bound = bed.rules.longest_silence().as_secs() / 5 + 1;
        assert!(
            longest.is_some_and(|steps| steps <= bound),
            "wildcard {wildcard}: told at {told:?}, 5 s apart"
        );
    }
}
