//! Subscriptions that ask for too much, or for the same again and again.

use deltafan::proto::{DeltaDiscoveryRequest, ResourceLocator};
use deltafan_test_support::client::{CDS, DELTA_ADS, Delta, EDS, connect, node};

use super::fixture::{Fixture, attack};
use super::peer::Target;

/// Runs an attack by gRPC to its end; what it holds goes then.
fn over_grpc<F: Future<Output = ()>>(target: &Target, attack: impl FnOnce(tonic::transport::Channel) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = connect(&format!("http://{}", target.address)).await;
        // Not before the end: what was said is not heard yet. Not after it either, however the relay holds back.
        _ = tokio::time::timeout_at(target.until.into(), attack(channel)).await;
        tokio::time::sleep_until(target.until.into()).await;
    });
}

fn request(type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Some(node("greedy")),
        type_url: type_url.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn names(of: u64, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("bomb-{of:08x}-{n:08x}")).collect()
}

/// A stream, as soon as the relay takes one.
async fn open(channel: &tonic::transport::Channel) -> Delta {
    loop {
        if let Some(stream) = Delta::try_open(channel, DELTA_ADS).await {
            return stream;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Whether the stream takes one more request.
async fn says(stream: &Delta, request: DeltaDiscoveryRequest) -> bool {
    tokio::task::yield_now().await;
    stream.try_send(request).await
}

/// On stream after stream one request, whose answer or end is awaited.
fn one_by_one(target: &Target, mut next: impl FnMut(u64) -> DeltaDiscoveryRequest) {
    over_grpc(target, async |channel| {
        for n in 0.. {
            let mut stream = open(&channel).await;
            says(&stream, next(n)).await;
            stream.end_of_any_kind().await;
        }
    });
}

/// On stream after stream as many requests as it takes.
fn on_and_on(target: &Target, mut next: impl FnMut(u64) -> DeltaDiscoveryRequest) {
    over_grpc(target, async |channel| {
        let mut n = 0;
        loop {
            let stream = open(&channel).await;
            while says(&stream, next(n)).await {
                n += 1;
            }
        }
    });
}

fn for_names(type_url: &str, resource_names_subscribe: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { resource_names_subscribe, ..request(type_url) }
}

#[test]
fn requests_for_too_much() {
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("subscriptions: 90,000 names", "max_names, max_request_bytes", |target| {
            over_grpc(target, async |channel| {
                let stream = open(&channel).await;
                says(&stream, for_names(EDS, names(rand::random(), 90_000))).await;
                std::future::pending::<()>().await;
            });
        })
        .by(1),
        attack("subscriptions: more names than are allowed", "max_names: RESOURCE_EXHAUSTED", |target| {
            one_by_one(target, |_| for_names(EDS, (0..120_000).map(|n| format!("n{n}")).collect()));
        }),
        attack("subscriptions: one name of 3 MiB", "max_name_bytes: INVALID_ARGUMENT", |target| {
            one_by_one(target, |_| for_names(EDS, vec!["n".repeat(3 << 20)]));
        }),
        attack("subscriptions: a set of parameters for each name", "cache.max_parameter_sets", |target| {
            let locator = |n: u64| ResourceLocator {
                name: "x".to_owned(),
                dynamic_parameters: [("k".to_owned(), n.to_string())].into(),
            };
            one_by_one(target, |n| DeltaDiscoveryRequest {
                resource_locators_subscribe: (n * 500..(n + 1) * 500).map(locator).collect(),
                ..request(EDS)
            });
        })
        .by(1),
        attack(
            "subscriptions: one name more, at 90,000, again and again",
            "what differs; a millisecond, then others have their turn",
            |target| {
                over_grpc(target, async |channel| {
                    let stream = open(&channel).await;
                    // A thousand at a time: what one request with all of them costs is the attack before.
                    for some in names(rand::random(), 90_000).chunks(1_000) {
                        says(&stream, for_names(EDS, some.to_vec())).await;
                    }
                    let mut n = 0_u64;
                    while says(&stream, for_names(EDS, vec![format!("one-{n}")])).await {
                        n += 1;
                    }
                });
            },
        )
        .by(1),
        attack("subscriptions: types that nobody knows", "types of the cache", |target| {
            on_and_on(target, |n| {
                for_names(&format!("type.googleapis.com/nobody.knows.T{n}"), vec!["x".to_owned()])
            });
        })
        .by(1),
        attack(
            "subscriptions: the wildcard on and off",
            "a message at a time; interest upstream lingers",
            |target| {
                on_and_on(target, |n| {
                    let names = vec!["*".to_owned(), "x".to_owned()];
                    if n % 2 == 0 {
                        return for_names(CDS, names);
                    }
                    DeltaDiscoveryRequest { resource_names_unsubscribe: names, ..request(CDS) }
                });
            },
        ),
        attack(
            "subscriptions: 2,000 names again and again, no answer read",
            "owed names are a set, of 2 × max_names",
            |target| {
                let held = names(1, 2000);
                on_and_on(target, |_| for_names(EDS, held.clone()));
            },
        ),
    ]);
}
