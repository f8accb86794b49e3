//! Tasks beside the listeners and the source.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::{Ready, RelayStatus};
use crate::downstream::{Connections, ServerState};
use crate::groups::{Groups, Origin};
use crate::grpc::UPSTREAM_SERVICE;
use crate::telemetry;
use crate::upstream::{Readiness, Verdict, sleep_until};

/// Publishes the source's state to relays downstream.
///
/// If the relay's own node asks for nothing, any other group may vouch: with `groups.default: refuse` only
/// these exist.
pub(super) async fn publish_upstream(mut origin: Origin, groups: Arc<Groups>, health: HealthReporter) {
    let mut answers = false;
    loop {
        let now = Instant::now();
        let (mut is_answered, mut look_at) = origin.vouches(now);
        if !groups.is_trivial() && origin.is_idle() {
            is_answered |= groups.all().iter().any(|group| group.vouches(now));
            look_at = Some(now + GROUPS_LOOK);
        }
        if std::mem::replace(&mut answers, is_answered) != answers {
            health.set_service_status(UPSTREAM_SERVICE, serving_status(answers)).await;
        }
        tokio::select! {
            () = sleep_until(look_at) => {}
            changed = origin.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Time between two looks at other groups.
const GROUPS_LOOK: Duration = Duration::from_secs(1);

const fn serving_status(serves: bool) -> ServingStatus {
    if serves { ServingStatus::Serving } else { ServingStatus::NotServing }
}

/// Publishes whether clients should come here. A drain ends with NOT_SERVING.
pub(super) async fn publish_readiness(
    mut origin: Origin,
    mut readiness: Readiness,
    ready: watch::Sender<Ready>,
    health: HealthReporter,
    draining: CancellationToken,
) {
    let publish_readiness = async {
        let mut serving = false;
        loop {
            let Verdict { ready: verdict, look_at } = origin.verdict(&mut readiness);
            if std::mem::replace(&mut serving, verdict.is_ok()) != serving {
                health.set_service_status("", serving_status(serving)).await;
            }
            drop(ready.send_replace(verdict));
            tokio::select! {
                () = sleep_until(look_at) => {}
                changed = origin.changed() => if changed.is_err() {
                    return std::future::pending::<()>().await;
                },
            }
        }
    };
    draining.run_until_cancelled(publish_readiness).await;
    health.set_service_status("", ServingStatus::NotServing).await;
}

async fn housekeeping(connections: Arc<Connections>, server: Arc<ServerState>, status: Arc<RelayStatus>) {
    let upkeep = async {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            status.metrics.run_upkeep();
            telemetry::report_lost_lines();
            server.polls.tidy().await;
        }
    };
    let rejections = async {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tick.tick().await;
            server.fleet.log_rejections(Instant::now());
        }
    };
    let timeouts = connections.enforce_timeouts(|| server.policy.load_full());
    let memory = status.overload.watch(&connections, &server.unsent);
    // One task, whose ticks coincide: an idle relay wakes seldom.
    tokio::join!(timeouts, memory, upkeep, rejections);
}

/// Starts the tasks that watch connections and memory until `stop`.
pub(super) fn spawn_upkeep(
    stop: &CancellationToken,
    connections: &Arc<Connections>,
    server: &Arc<ServerState>,
    status: &Arc<RelayStatus>,
) {
    let housekeeping = housekeeping(Arc::clone(connections), Arc::clone(server), Arc::clone(status));
    tokio::spawn(stop.clone().run_until_cancelled_owned(housekeeping));
}
