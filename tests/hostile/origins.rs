//! A control plane that is hostile. It is trusted with what clients are told, and with nothing else: it cannot end the
//! relay, nor have it forget what it held, and what it makes the relay keep is what it sends, once.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use deltafan::resource::{TypeUrl, wire};
use deltafan_test_support::client::{CDS, Delta, connect};
use deltafan_test_support::origin::{Origin, OriginStream, resource, response};
use deltafan_test_support::process::Process;
use prost::Message as _;

use super::fixture::{mib, resident};

/// Response that is said again and again, by the number of the turn.
type Says = fn(&TypeUrl, u64) -> Vec<Bytes>;

/// Beyond what is stored.
const MEMORY: u64 = 64 << 20;
/// Resources that are told at once, and what each may take that has a name of 20 bytes and next to no body.
const MANY: u64 = 100_000;
const EACH: u64 = 1 << 10;

struct Villain {
    name: &'static str,
    turns: u64,
    /// Memory that it may have stored.
    stores: u64,
    says: Says,
}

fn message(resources: Vec<Bytes>, removed: &[&str], cds: &TypeUrl, nonce: &str) -> Vec<Bytes> {
    let mut out = response(cds, nonce);
    out.resources = resources;
    out.removed_resources = removed.iter().map(|name| (*name).to_owned()).collect();
    vec![out.encode_to_vec().into()]
}

/// A resource under constraints that nest so deep: not not not … .
fn constrained(cds: &TypeUrl, name: &str, levels: usize) -> Bytes {
    let put = |number: u8, payload: &[u8]| {
        let mut out = BytesMut::new();
        wire::put_field(&mut out, number, payload);
        out
    };
    let mut constraints = BytesMut::new();
    for _ in 0..levels {
        constraints = put(4, &constraints);
    }
    let inner = [put(1, name.as_bytes()), put(2, &constraints)].concat();
    let mut out = BytesMut::from(&resource(cds, name, "1", b"")[..]);
    wire::put_field(&mut out, 8, &inner);
    out.freeze()
}

const fn villain(name: &'static str, turns: u64, stores: u64, says: Says) -> Villain {
    Villain { name, turns, stores, says }
}

const VILLAINS: [Villain; 10] = [
    villain("garbage", 20, 0, |_, n| vec![Bytes::from(vec![0xff - n as u8; 1000])]),
    villain("lengths beyond the end", 20, 0, |_, _| {
        vec![Bytes::from_static(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1])]
    }),
    villain("responses without end, and no ACK awaited", 1000, 64 << 10, |cds, n| {
        message(vec![resource(cds, "endless", &n.to_string(), &vec![0; 32 << 10])], &[], cds, "n")
    }),
    villain("names of 1 MiB", 20, 40 << 20, |cds, n| {
        message(vec![resource(cds, &format!("{n}{}", "n".repeat(1 << 20)), "1", b"")], &[], cds, "n")
    }),
    villain("versions and nonces of 1 MiB, new ones each time", 50, 4 << 20, |cds, n| {
        let long = format!("{n}{}", "v".repeat(1 << 20));
        message(vec![resource(cds, "versioned", &long, b"")], &[], cds, &long)
    }),
    villain("constraints that nest without end", 20, 0, |cds, n| {
        message(vec![constrained(cds, &format!("deep{n}"), 3000)], &[], cds, "n")
    }),
    villain("removed and told in one response", 300, 1 << 20, |cds, n| {
        message(vec![resource(cds, "flicker", &n.to_string(), b"")], &["flicker"], cds, "n")
    }),
    villain("removals of what never was", 300, 8 << 20, |cds, n| {
        let names: Vec<String> = (0..100).map(|at| format!("never-{n}-{at}")).collect();
        message(vec![], &names.iter().map(String::as_str).collect::<Vec<_>>(), cds, "n")
    }),
    // Its copy of the resource, the message that it came in, and what the decoder held while it came.
    villain("a response of 64 MiB", 1, 4 * (64 << 20), |cds, _| {
        message(vec![resource(cds, "large", "1", &vec![0; 64 << 20])], &[], cds, "n")
    }),
    villain("100,000 tiny resources in one response", 1, MANY * EACH, |cds, _| {
        let all = (0..MANY).map(|n| resource(cds, &format!("tiny-{n:015}"), "1", b"")).collect();
        message(all, &[], cds, "n")
    }),
];

/// Waits for the subscription to clusters, and answers it.
async fn welcome(origin: &mut Origin, cds: &TypeUrl, names: &[&str]) -> OriginStream {
    loop {
        let mut stream = origin.accept().await;
        // By its end an answer would say that all else is gone.
        stream.answers_no_end_mark();
        while let Some(request) = stream.next_request().await {
            if request.type_url == CDS && request.response_nonce.is_empty() {
                let mut answer = response(cds, "welcome");
                answer.resources = names.iter().map(|name| resource(cds, name, "1", b"body")).collect();
                stream.send(&answer);
                return stream;
            }
        }
    }
}

async fn until_told(client: &mut Delta, name: &str) {
    loop {
        let response = client.response().await;
        assert!(!response.removed_resources.iter().any(|name| name == "kept"), "it was never taken back");
        let told = deltafan_test_support::client::names(&response);
        client.ack(&response).await;
        if told.iter().any(|told| told == name) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_is_hostile() {
    let cds = TypeUrl::from(CDS);
    let mut origin = Origin::start().await;
    let relay = Process::behind(&origin.uri(), "");
    let mut client = Delta::asking(&connect(&relay.uri()).await, "honest", CDS, &["*"]).await;
    let mut stream = welcome(&mut origin, &cds, &["kept"]).await;
    until_told(&mut client, "kept").await;
    for (at, villain) in VILLAINS.into_iter().enumerate() {
        let rss = resident(&relay);
        let (mut most, start) = (rss, Instant::now());
        for turn in 0..villain.turns {
            for message in (villain.says)(&cds, turn) {
                if !stream.try_send_bytes(message) {
                    // The relay had enough of it, and comes again.
                    stream = welcome(&mut origin, &cds, &["kept"]).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            most = most.max(resident(&relay));
        }
        // The relay finds an honest one when it comes again; what the other had stored is another matter.
        drop(stream);
        let sign = format!("sign-{at}");
        stream = welcome(&mut origin, &cds, &["kept", &sign]).await;
        until_told(&mut client, &sign).await;
        most = most.max(resident(&relay));
        let grown = most.saturating_sub(rss);
        let (took, name) = (start.elapsed(), villain.name);
        println!("| origin: {name} | {:.1} MiB of {:.1} | {took:.1?} |", mib(grown), mib(villain.stores));
        assert!(grown <= MEMORY + villain.stores, "{name}: {:.1} MiB", mib(grown));
        assert!(!relay.has_written("panicked"), "{name}: a panic");
    }
}

/// Streams that end as soon as they begin, connections that close, for as long as the relay comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_hangs_up() {
    let cds = TypeUrl::from(CDS);
    let mut origin = Origin::start().await;
    let relay = Process::behind(&origin.uri(), "");
    let mut client = Delta::asking(&connect(&relay.uri()).await, "honest", CDS, &["*"]).await;
    drop(welcome(&mut origin, &cds, &["kept"]).await);
    until_told(&mut client, "kept").await;
    let (rss, cpu, start) = (resident(&relay), relay.cpu(), Instant::now());
    let mut came = 0;
    while start.elapsed() < Duration::from_secs(2) {
        let Ok(Some(stream)) = tokio::time::timeout(Duration::from_secs(1), origin.next_stream()).await
        else {
            continue;
        };
        came += 1;
        match came % 3 {
            0 => stream.close(),
            1 => stream.fail(tonic::Status::internal("no")),
            _ => {
                let address = origin.address();
                drop(stream);
                drop(origin);
                origin = Origin::listen_again(address).await;
            }
        }
    }
    // From 50 ms the waits grow to 500 ms.
    assert!((3..40).contains(&came), "it came {came} times");
    assert!(relay.cpu() - cpu < Duration::from_secs(1), "{:?}", relay.cpu() - cpu);
    assert!(resident(&relay).saturating_sub(rss) < 16 << 20);
    let _stream = welcome(&mut origin, &cds, &["kept", "sign"]).await;
    until_told(&mut client, "sign").await;
}
