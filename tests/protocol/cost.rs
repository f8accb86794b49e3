//! What others may cost: time that grows with what they send, and memory that does not grow without end.

use std::time::{Duration, Instant};

use deltafan::cache::{Change, Limits, Op, Protocol, View};
use deltafan::proto;
use deltafan::subscription::{Code, RequestKind};

use crate::support::{Bed, strings, url};

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("name-{number}")).collect()
}

/// Far more than it takes on a busy machine, far less than it takes when it grows with the square.
const LONG: Duration = Duration::from_secs(4);

#[test]
fn many_names_that_are_gone_are_told_in_linear_time() {
    let bed = Bed::knowing(&["thing"]);
    let names = names(100_000);
    let mut client = bed.delta();
    let held: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let start = Instant::now();
    client.resume(&bed, "thing", &["*"], &held);
    let mut told = 0;
    while let Some(part) = client.poll(&bed) {
        told += part.removed.len();
        client.ack(&bed, &part, &[]);
    }
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    assert_eq!(told, names.len());
}

#[test]
fn many_absent_names_are_answered_again_in_linear_time() {
    let mut bed = Bed::knowing(&["thing"]);
    let names = names(50_000);
    let gone = |name: &String| Op::Remove { view: View::Named, name: name.as_str().into() };
    bed.apply("thing", Change { ops: names.iter().map(gone).collect(), ..Change::default() });
    let mut client = bed.delta();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let start = Instant::now();
    for _ in 0..2 {
        let request = proto::DeltaDiscoveryRequest {
            type_url: url("thing").as_str().to_owned(),
            resource_names_subscribe: strings(&names),
            ..proto::DeltaDiscoveryRequest::default()
        };
        client.on_delta_request(&bed, request).unwrap();
        let told = client.poll(&bed).unwrap();
        assert_eq!(told.removed.len(), names.len());
        client.ack(&bed, &told, &[]);
    }
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn names_that_are_let_go_beside_a_wildcard_do_not_pile_up() {
    let mut bed = Bed::knowing(&["thing"]);
    bed.rules.max_names = 10;
    let mut client = bed.delta();
    client.change(&bed, "thing", "*");
    client.poll(&bed).unwrap();
    // The answer is not ACKed, so nothing can be told.
    let request = |add: Vec<String>, end: Vec<String>| proto::DeltaDiscoveryRequest {
        type_url: url("thing").as_str().to_owned(),
        resource_names_subscribe: add,
        resource_names_unsubscribe: end,
        ..proto::DeltaDiscoveryRequest::default()
    };
    let refused = (0..100).any(|round| {
        let names: Vec<String> = (0..5).map(|n| format!("{round}-{n}")).collect();
        client.on_delta_request(&bed, request(names.clone(), names)).is_err()
    });
    assert!(refused, "it owes answers for more names than a client may have");
}

#[test]
fn a_rejection_that_is_repeated_is_none_of_another_response() {
    let mut bed = Bed::knowing(&["cds"]);
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        bed.origin("cds a:1");
        let mut client = bed.client(protocol, None);
        match protocol {
            Protocol::Sotw => client.ask(&bed, "cds", &[]),
            Protocol::Delta => client.change(&bed, "cds", "*"),
        };
        for version in ["cds a:2", "cds a:3"] {
            let told = client.poll(&bed).unwrap();
            let is_nack = |heard| matches!(heard, RequestKind::Nack { .. });
            assert!(is_nack(client.nack(&bed, &told, &[])));
            assert!(!is_nack(client.nack(&bed, &told, &[])), "each one is logged");
            bed.origin(version);
        }
    }
}

#[test]
fn a_node_of_a_megabyte_is_refused() {
    let bed = Bed::knowing(&["cds"]);
    for field in 0..3 {
        let mut node = proto::Node::default();
        *[&mut node.id, &mut node.cluster, &mut node.user_agent_name][field] = "n".repeat(1 << 20);
        let mut client = bed.delta();
        client.node = Some(node);
        let request = proto::DeltaDiscoveryRequest {
            type_url: url("cds").as_str().to_owned(),
            ..proto::DeltaDiscoveryRequest::default()
        };
        let refusal = client.on_delta_request(&bed, request).unwrap_err();
        assert_eq!(refusal.code, Code::InvalidArgument);
        assert!(refusal.message.len() < 200);
    }
}

#[test]
fn a_large_removal_closes_nobody_who_is_up_to_date() {
    let mut bed = Bed::with_limits(Limits { tombstones: 4, ..Limits::default() });
    bed.known("thing");
    let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    let all = |text: &dyn Fn(&String) -> String| names.iter().map(text).collect::<Vec<_>>().join(" ");
    bed.origin(&format!("thing {}", all(&|name| format!("{name}:1"))));
    let mut client = bed.delta();
    client.change(&bed, "thing", "*");
    client.acked(&bed);
    bed.origin(&format!("thing {}", all(&|name| format!("-{name}"))));
    let told = client.poll(&bed).unwrap();
    assert_eq!(told.removed.len(), names.len());
    client.ack(&bed, &told, &[]);
    // The next change forgets them.
    bed.origin("thing a:1");
    assert_eq!(bed.cache.of(&url("thing")).unwrap().snapshot().entries().count(), 1 + 3);
    assert_eq!(client.acked(&bed), ["other a:1"]);
}
