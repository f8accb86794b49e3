//! Requests that are allowed, and answered, without end.

use std::time::Duration;

use deltafan_test_support::client::{CDS, DELTA_ADS, Delta, connect, subscription};
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

/// Opens a stream for a name, and leaves it after the first response or a while.
async fn ask_once(channel: Channel, name: &str, patience: Duration) {
    let Some(mut stream) = Delta::try_open(&channel, DELTA_ADS).await else {
        return tokio::time::sleep(Duration::from_millis(5)).await;
    };
    if stream.try_send(subscription("busy", CDS, &[name])).await {
        _ = tokio::time::timeout(patience, stream.next_message()).await;
    }
}

#[test]
fn cheap_requests_without_end() {
    let fixture = Fixture::start("");
    fixture.suffer(&[
        attack(
            "streams that end with their first answer, on 20 connections",
            "turns: a 128th of a thread for each connection",
            |target| again_and_again(target, |channel| ask_once(channel, "*", Duration::from_secs(1))),
        ),
        attack(
            "streams for ever new names, on 20 connections",
            "turns: a 128th of a thread for each connection",
            |target| {
                again_and_again(target, |channel| async {
                    let name = format!("new-{}", rand::random::<u64>());
                    ask_once(channel, &name, Duration::from_millis(20)).await;
                });
            },
        ),
    ]);
}
