//! The origin speaks while a stream works out what to say: what it says of one type must not be ahead of what it says
//! of another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Change, Completeness, Limits, Op, Protocol, Resend, View, Writer};
use deltafan::proto;
use deltafan::subscription::{NextStep, Session, SessionConfig, Upstream};
use deltafan_test_support::wire;

/// How often the route moves.
const MOVES: u32 = 20_000;

/// Names of which a look takes longer than it takes the origin to say something.
const MANY: usize = 20_000;

fn request(short: &str, names: Vec<String>, nonce: String) -> proto::DeltaDiscoveryRequest {
    proto::DeltaDiscoveryRequest {
        node: Some(proto::Node::default()),
        type_url: wire::type_url(short).as_str().to_owned(),
        resource_names_subscribe: names,
        response_nonce: nonce,
        ..proto::DeltaDiscoveryRequest::default()
    }
}

fn set(writer: &mut Writer, short: &str, view: View, name: &str, text: &str) {
    let type_url = wire::type_url(short);
    let resource = wire::resource(&type_url, name, text, 0);
    let ops = vec![Op::Set { view, resource, resend: Resend::Answer, lease: None }];
    writer
        .apply(
            &type_url,
            Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() },
            Instant::now(),
        )
        .unwrap();
}

/// Make-before-break, again and again: the new cluster, the route to it, the end of the old one.
fn move_about(writer: &mut Writer) {
    let cluster = |number: u32| format!("c{}", number % 3);
    for number in 1..MOVES {
        set(writer, "cds", View::Wildcard, &cluster(number), &format!("v{number}"));
        set(writer, "rds", View::Named, "route", &format!("v{number}/{}", cluster(number)));
        let ops = vec![Op::Remove { view: View::Wildcard, name: cluster(number - 1).into() }];
        writer.apply(&wire::type_url("cds"), Change { ops, ..Change::default() }, Instant::now()).unwrap();
    }
}

#[test]
fn r_ads_03_holds_while_the_origin_speaks() {
    let (cache, mut writer) = Cache::new(Limits::default());
    set(&mut writer, "cds", View::Wildcard, "c0", "v0");
    set(&mut writer, "rds", View::Named, "route", "v0/c0");
    let now = Instant::now();
    // The order of responses alone.
    let rules = SessionConfig { warm_wait: Duration::ZERO, ..SessionConfig::default() };
    let mut session = Session::new(cache, Arc::new(rules), Protocol::Delta, None, now);
    session.on_delta_request(request("cds", vec![], String::new()), Default::default(), now).unwrap();
    session
        .on_delta_request(request("rds", vec!["route".to_owned()], String::new()), Default::default(), now)
        .unwrap();

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            move_about(&mut writer);
            done.store(true, Ordering::Release);
        });
        let mut clusters = BTreeSet::new();
        let mut target = None;
        loop {
            let last = done.load(Ordering::Acquire);
            match session.next(Instant::now(), Upstream::Answering) {
                NextStep::Send(outgoing) => {
                    session.on_flushed(now);
                    let told = wire::read(Protocol::Delta, &outgoing.frame);
                    let short = if told.type_url == wire::type_url("cds") { "cds" } else { "rds" };
                    for (name, text) in told.resources {
                        match short {
                            "cds" => drop(clusters.insert(name)),
                            _ => target = text.split_once('/').map(|(_, cluster)| cluster.to_owned()),
                        }
                    }
                    clusters.retain(|cluster| !told.removed.contains(cluster));
                    if let Some(target) = &target {
                        assert!(clusters.contains(target), "the route leads to {target}, which is not there");
                    }
                    session
                        .on_delta_request(request(short, vec![], told.nonce), Default::default(), now)
                        .unwrap();
                }
                NextStep::Wait(_) if last => break,
                NextStep::Wait(_) => {}
                NextStep::Close(refusal) => panic!("{refusal}"),
            }
        }
        assert_eq!((clusters.len(), target), (1, clusters.first().cloned()));
    });
}

#[test]
fn a_client_of_many_names_is_told_of_them_while_the_origin_speaks() {
    let (cache, mut writer) = Cache::new(Limits::default());
    set(&mut writer, "cds", View::Wildcard, "c0", "v0");
    let now = Instant::now();
    let mut session = Session::new(cache, Arc::new(SessionConfig::default()), Protocol::Delta, None, now);
    session.on_delta_request(request("cds", vec![], String::new()), Default::default(), now).unwrap();
    let names = (0..MANY).map(|number| format!("e{number}")).collect();
    session.on_delta_request(request("eds", names, String::new()), Default::default(), now).unwrap();

    let (speaks, told) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                set(&mut writer, "eds", View::Named, "e1", &format!("v{number}"));
                speaks.store(true, Ordering::Release);
                if told.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        while !speaks.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let mut said = BTreeSet::new();
        for _ in 0..4 {
            if let NextStep::Send(outgoing) = session.next(Instant::now(), Upstream::Answering) {
                said.insert(outgoing.type_url.kind().short());
            }
        }
        told.store(true, Ordering::Release);
        assert_eq!(said.into_iter().collect::<Vec<_>>(), ["cds", "eds"]);
    });
}
