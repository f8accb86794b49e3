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

#[test]
fn requests_for_too_much() {
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack("subscriptions: 90,000 names", "max_names, max_request_bytes", |target| {
            over_grpc(target, async |channel| {
                let stream = open(&channel).await;
                let mut all = request(EDS);
                all.resource_names_subscribe = names(rand::random(), 90_000);
                says(&stream, all).await;
                std::future::pending::<()>().await;
            });
        })
        .by(1),
        attack("subscriptions: more names than are allowed", "max_names: RESOURCE_EXHAUSTED", |target| {
            over_grpc(target, async |channel| {
                loop {
                    let mut stream = open(&channel).await;
                    let mut all = request(EDS);
                    all.resource_names_subscribe = (0..120_000).map(|n| format!("n{n}")).collect();
                    says(&stream, all).await;
                    stream.end_of_any_kind().await;
                }
            });
        }),
        attack("subscriptions: one name of 3 MiB", "max_name_bytes: INVALID_ARGUMENT", |target| {
            over_grpc(target, async |channel| {
                loop {
                    let mut stream = open(&channel).await;
                    let mut all = request(EDS);
                    all.resource_names_subscribe = vec!["n".repeat(3 << 20)];
                    says(&stream, all).await;
                    stream.end_of_any_kind().await;
                }
            });
        }),
        attack("subscriptions: a set of parameters for each name", "cache.max_parameter_sets", |target| {
            over_grpc(target, async |channel| {
                let mut n = 0_u64;
                loop {
                    let mut stream = open(&channel).await;
                    let mut all = request(EDS);
                    let locator = |n: u64| ResourceLocator {
                        name: "x".to_owned(),
                        dynamic_parameters: [("k".to_owned(), n.to_string())].into(),
                    };
                    all.resource_locators_subscribe = (n..n + 500).map(locator).collect();
                    n += 500;
                    says(&stream, all).await;
                    stream.end_of_any_kind().await;
                }
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
                        let mut more = request(EDS);
                        more.resource_names_subscribe = some.to_vec();
                        says(&stream, more).await;
                    }
                    for n in 0_u64.. {
                        let mut one = request(EDS);
                        one.resource_names_subscribe = vec![format!("one-{n}")];
                        if !says(&stream, one).await {
                            break;
                        }
                    }
                });
            },
        )
        .by(1),
        attack("subscriptions: types that nobody knows", "types of the cache", |target| {
            over_grpc(target, async |channel| {
                let mut n = 0;
                loop {
                    let stream = open(&channel).await;
                    loop {
                        n += 1;
                        let mut one = request(&format!("type.googleapis.com/nobody.knows.T{n}"));
                        one.resource_names_subscribe = vec!["x".to_owned()];
                        if !says(&stream, one).await {
                            break;
                        }
                    }
                }
            });
        })
        .by(1),
        attack(
            "subscriptions: the wildcard on and off",
            "a message at a time; interest upstream lingers",
            |target| {
                over_grpc(target, async |channel| {
                    loop {
                        let stream = open(&channel).await;
                        loop {
                            let mut on = request(CDS);
                            on.resource_names_subscribe = vec!["*".to_owned(), "x".to_owned()];
                            let mut off = request(CDS);
                            off.resource_names_unsubscribe = vec!["*".to_owned(), "x".to_owned()];
                            if !says(&stream, on).await || !says(&stream, off).await {
                                break;
                            }
                        }
                    }
                });
            },
        ),
        attack(
            "subscriptions: 2,000 names again and again, no answer read",
            "owed names are a set, of 2 × max_names",
            |target| {
                over_grpc(target, async |channel| {
                    loop {
                        let stream = open(&channel).await;
                        let held = names(1, 2000);
                        loop {
                            let mut again = request(EDS);
                            again.resource_names_subscribe.clone_from(&held);
                            if !says(&stream, again).await {
                                break;
                            }
                        }
                    }
                });
            },
        ),
    ]);
}
