//! Tasks beside the listeners and the source.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::{Ready, RelayStatus};
use crate::config::Config;
use crate::downstream::{Connections, ServerState};
use crate::groups::Groups;
use crate::grpc::UPSTREAM_SERVICE;
use crate::telemetry;
use crate::upstream::Readiness;

/// Time between two looks at the source and at other groups.
const LOOK: Duration = Duration::from_secs(1);

/// Publishes from now on whether clients should come here.
pub(super) fn spawn_health(
    config: &Config,
    groups: &Arc<Groups>,
    health: HealthReporter,
    draining: &CancellationToken,
) -> watch::Receiver<Ready> {
    let readiness = Readiness::new(config.upstream.ready_wait, config.node.id.clone())
        .with_restored(config.snapshot.ready);
    let (ready, is_ready) = watch::channel(Err("starting".to_owned()));
    let (groups, draining) = (Arc::clone(groups), draining.clone());
    tokio::spawn(publish_health(groups, readiness, ready, health, draining));
    is_ready
}

/// Publishes readiness, and for relays downstream whether the source answers. A drain ends with NOT_SERVING.
async fn publish_health(
    groups: Arc<Groups>,
    mut readiness: Readiness,
    ready: watch::Sender<Ready>,
    health: HealthReporter,
    draining: CancellationToken,
) {
    let (mut origin, mut answered, mut served) = (groups.origin().clone(), false, false);
    loop {
        let now = Instant::now();
        let mut answers = origin.vouches(now);
        // With `groups.default: refuse` the relay's own node asks for nothing.
        if !groups.is_trivial() && origin.is_idle() {
            answers |= groups.all().iter().any(|group| group.origin().vouches(now));
        }
        let is_ready = origin.readiness(&mut readiness);
        let is_draining = draining.is_cancelled();
        let serves = is_ready.is_ok() && !is_draining;
        drop(ready.send_replace(is_ready));
        for (service, before, now) in [(UPSTREAM_SERVICE, &mut answered, answers), ("", &mut served, serves)]
        {
            if std::mem::replace(before, now) != now {
                let status = if now { ServingStatus::Serving } else { ServingStatus::NotServing };
                health.set_service_status(service, status).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = draining.cancelled(), if !is_draining => {}
            changed = origin.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

async fn housekeeping(connections: Arc<Connections>, server: Arc<ServerState>, status: Arc<RelayStatus>) {
    let upkeep = async {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            status.metrics.run_upkeep();
            telemetry::report_lost_lines();
            status.responses.tidy().await;
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
