//! Time that the writer waits, and the cost of a change to a large subscription.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Change, Completeness, Limits, Op, Protocol, Resend, View};
use deltafan::proto;
use deltafan::resource::{Kind, TypeUrl};
use deltafan::subscription::{NextStep, Session, SessionConfig, Upstream};

use crate::fleet::{name, resource};

const RESOURCES: usize = 100_000;
const JOINS: usize = 1_000;
const EVERY: Duration = Duration::from_millis(1);

/// A thousand clients join the wildcard of a large type while it changes a thousand times a second.
pub(crate) fn joins() {
    let type_url = TypeUrl::from(Kind::Endpoint);
    let (cache, mut writer) = Cache::new(Limits::default());
    let set = |at: usize, version| Op::Set {
        view: View::Wildcard,
        resource: resource(&type_url, &name(at), version),
        resend: Resend::Answer,
        lease: None,
    };
    let ops = (0..RESOURCES).map(|at| set(at, 0)).collect();
    let all = Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() };
    writer.apply(&type_url, all, Instant::now()).expect("a type of the protocol");

    let done = AtomicBool::new(false);
    let (mut took, joined) = std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let mut took = Vec::new();
            let mut due = Instant::now();
            for number in 1.. {
                if done.load(Ordering::Acquire) {
                    break;
                }
                due += EVERY;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let change =
                    Change { ops: vec![set(number * 7919 % RESOURCES, number)], ..Change::default() };
                let begin = Instant::now();
                writer.apply(&type_url, change, begin).expect("a type of the protocol");
                took.push(begin.elapsed());
            }
            took
        });
        let begin = Instant::now();
        let sessions: Vec<Session> = (0..JOINS).map(|_| join(&cache, &type_url)).collect();
        let joined = begin.elapsed();
        done.store(true, Ordering::Release);
        drop(sessions);
        (changes.join().expect("no panic"), joined)
    });
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_micros();
    println!(
        "{JOINS} joins onto {RESOURCES} resources in {} ms; {} changes meanwhile: p50 {} us, p99 {} us, max {} us",
        joined.as_millis(),
        took.len(),
        at(50),
        at(99),
        at(100)
    );
}

/// A client that takes the whole set, part by part.
fn join(cache: &Arc<Cache>, type_url: &TypeUrl) -> Session {
    let now = Instant::now();
    let mut session = Session::new(Arc::clone(cache), Arc::default(), Protocol::Delta, None, now);
    let mut request = proto::DeltaDiscoveryRequest {
        node: Some(proto::Node::default()),
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: vec!["*".to_owned()],
        ..Default::default()
    };
    session.on_delta_request(request.clone(), now).expect("within the rules");
    request.resource_names_subscribe.clear();
    let mut bytes = 0;
    while bytes < RESOURCES * 200 {
        let NextStep::Send(outgoing) = session.next(now, Upstream::Answering) else { break };
        bytes += outgoing.frame.len();
        session.on_flushed(now);
        request.response_nonce = outgoing.frame.nonce.to_string();
        session.on_delta_request(request.clone(), now).expect("within the rules");
    }
    session
}

/// One name more, and one less, beside very many.
pub(crate) fn resubscribe() {
    let type_url = TypeUrl::from(Kind::Endpoint);
    let (cache, _writer) = Cache::new(Limits::default());
    let now = Instant::now();
    let rules = SessionConfig { max_names: 2 * RESOURCES, ..SessionConfig::default() };
    let mut session = Session::new(cache, Arc::new(rules), Protocol::Delta, None, now);
    let request = |subscribe: Vec<String>, unsubscribe: Vec<String>| proto::DeltaDiscoveryRequest {
        node: Some(proto::Node::default()),
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: subscribe,
        resource_names_unsubscribe: unsubscribe,
        ..Default::default()
    };
    let mut hear = |subscribe, unsubscribe| {
        let begin = Instant::now();
        session.on_delta_request(request(subscribe, unsubscribe), now).expect("within the rules");
        begin.elapsed()
    };
    let first = hear((0..RESOURCES).map(name).collect(), Vec::new());
    let mut took: Vec<Duration> = (0..20)
        .flat_map(|at| {
            let one = || vec![name(RESOURCES + at)];
            [hear(one(), Vec::new()), hear(Vec::new(), one())]
        })
        .collect();
    took.sort_unstable();
    println!(
        "resubscribe: {RESOURCES} names in {} ms, then one name more or less in {} us (median)",
        first.as_millis(),
        took[took.len() / 2].as_micros()
    );
}
