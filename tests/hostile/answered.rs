//! Requests that are allowed, and answered, without end.

use std::time::Duration;

use deltafan::proto::DiscoveryRequest;
use deltafan_test_support::client::{
    CDS, DELTA_ADS, Delta, FETCH_CLUSTERS, connect, node, subscription, try_unary,
};
use futures_util::future::join_all;
use tonic::transport::Channel;

use super::fixture::{Fixture, attack};
use super::peer::Target;

/// Connections of an attacker, and requests at a time on each.
const CONNECTIONS: usize = 10;
const AT_A_TIME: usize = 20;

/// Does the same again and again, on so many connections and so often at a time, to the end.
fn again_and_again<F: Future<Output = ()>>(target: &Target, attack: impl Fn(Channel) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let uri = format!("http://{}", target.address);
        let channels = join_all((0..CONNECTIONS).map(|_| connect(&uri))).await;
        let each = channels.iter().flat_map(|channel| std::iter::repeat_n(channel, AT_A_TIME));
        let loops = each.map(|channel| async {
            loop {
                attack(channel.clone()).await;
            }
        });
        let all = async { drop(join_all(loops).await) };
        _ = tokio::time::timeout_at(target.until.into(), all).await;
    });
}

async fn fetch(channel: Channel, names: &[&str]) {
    let request = DiscoveryRequest {
        node: Some(node("busy")),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DiscoveryRequest::default()
    };
    if try_unary(&channel, FETCH_CLUSTERS, request).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn cheap_requests_without_end() {
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack(
            "unary Fetch of all clusters, on 20 connections",
            "turns: a 128th of a thread for each connection",
            |target| again_and_again(target, |channel| fetch(channel, &[])),
        ),
        attack(
            "unary Fetch of ever new names, on 20 connections",
            "turns: a 128th of a thread for each connection",
            |target| {
                again_and_again(target, |channel| async {
                    let name = format!("new-{}", rand::random::<u64>());
                    _ = tokio::time::timeout(Duration::from_millis(20), fetch(channel, &[&name])).await;
                });
            },
        ),
        attack(
            "streams that end with their first answer, on 20 connections",
            "turns: a 128th of a thread for each connection",
            |target| {
                again_and_again(target, |channel| async move {
                    let Some(mut stream) = Delta::try_open(&channel, DELTA_ADS).await else {
                        return tokio::time::sleep(Duration::from_millis(5)).await;
                    };
                    let all = subscription("busy", CDS, &["*"]);
                    if stream.try_send(all).await {
                        _ = tokio::time::timeout(Duration::from_secs(1), stream.next_message()).await;
                    }
                });
            },
        ),
    ]);
}
