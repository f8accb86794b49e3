//! Running program, assembled from a configuration.
//!
//! Owns the tasks and the order of their end. Dropping a [`Relay`] stops all but open connections, which end
//! with a drain or the runtime.

mod background_tasks;
mod config_settings;
mod named_files;
mod origin;
mod relay_snapshot;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic_health::ServingStatus;

use self::background_tasks::{spawn_health, spawn_upkeep};
pub use self::config_settings::rollout_settings;
use self::config_settings::{cache_limits, policy, tuning};
pub use self::config_settings::{given, group_rules, own_node};
use self::named_files::tls_of;
pub use self::named_files::{check_tls, load_descriptors};
use crate::admin::{Admin, LoadedConfig, RelayStatus};
use crate::config::{Changes, Config, ListenAddress};
use crate::downstream::{
    Admission, Connections, Drain, FairScheduler, HealthService, Listener, OverloadManager, PollState,
    RequestMemory, ResponseCache, ServerState, Unsent,
};
use crate::groups::Groups;
use crate::grpc::UPSTREAM_SERVICE;
use crate::identity::Peer;
use crate::snapshot::WriterThread;
use crate::telemetry::{self, LogLevel, LogThrottle};
use crate::tls::reload::Reloader;

#[cfg(test)]
mod tests;

/// Running relay.
#[derive(Debug)]
pub struct Relay {
    /// For clients, with actual ports.
    pub addresses: Vec<ListenAddress>,
    pub admin_address: SocketAddr,
    /// Of certificates.
    pub reloader: Reloader,
    status: Arc<RelayStatus>,
    /// `None` without a snapshot.
    saving: Option<WriterThread>,
    listening: TaskTracker,
    failed: CancellationToken,
    _stop: DropGuard,
}

impl Relay {
    /// Binds all addresses, then starts. Operators can change `log_level`.
    ///
    /// # Errors
    ///
    /// Fault of the configuration or the machine: an unusable file, an address that cannot be bound.
    pub async fn start(
        config: &Config,
        metrics: PrometheusHandle,
        log_level: Option<LogLevel>,
    ) -> anyhow::Result<Self> {
        let descriptors = load_descriptors(&config.rest)?;
        let (budget, limit) = (config.rest.json_bytes, config.downstream.max_unsent_bytes);
        let responses = ResponseCache::new(descriptors.clone(), budget, limit);
        let reloader = Reloader::default();
        let everything = CancellationToken::new();
        let (draining, closed) = (everything.child_token(), everything.child_token());

        let disk = relay_snapshot::open(config).await;
        let saved = relay_snapshot::load(disk.as_ref(), config).await;
        let threads = tokio::runtime::Handle::current().metrics().num_workers();
        let scheduler = FairScheduler::new(threads);
        let (listeners, addresses) = bind(config, &reloader)?;
        let admin = bind_admin(config).await?;

        let failed = CancellationToken::new();
        let ends = (everything.clone(), failed.clone());
        let groups = origin::start(config, &reloader, (disk.as_ref(), saved), ends)?;

        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("", ServingStatus::NotServing).await;
        health.set_service_status(UPSTREAM_SERVICE, ServingStatus::NotServing).await;
        let is_ready = spawn_health(config, &groups, health, &draining);

        telemetry::set(telemetry::CONNECTION_LIMIT, &[], config.downstream.max_connections as f64);
        let overload =
            OverloadManager::new(config.downstream.memory.refuse_above, config.downstream.memory.close_above);
        let health = HealthService::new(health_service);
        let server =
            server_state(config, Arc::clone(&groups), Arc::clone(&responses), &overload, health, scheduler);
        let server = Arc::new(server);
        let connections: Arc<Connections> = Arc::default();
        let listening = TaskTracker::new();
        listening.close();
        for listener in listeners {
            let serving = listener.serve(Arc::clone(&server), Arc::clone(&connections), closed.clone());
            listening.spawn(serving);
        }

        let saving = relay_snapshot::keep(disk.as_ref(), &groups);
        let status = Arc::new(RelayStatus {
            fleet: Arc::clone(&server.fleet),
            disk,
            servers: config_settings::servers(config),
            groups,
            responses,
            descriptors,
            metrics,
            is_ready,
            drain: Arc::new(Drain {
                server: Arc::clone(&server),
                connections: Arc::clone(&connections),
                draining,
                closed,
            }),
            everything: everything.clone(),
            overload,
            started: Instant::now(),
            node: config_settings::shown_node(config),
            loaded: Mutex::default(),
            log_level,
            refreshes: LogThrottle::burst(),
        });
        let admin_address = admin.address;
        tokio::spawn(admin.serve(Arc::clone(&status), everything.clone()));
        spawn_upkeep(&everything, &connections, &server, &status);

        Ok(Self {
            addresses,
            admin_address,
            reloader,
            status,
            saving,
            listening,
            failed,
            _stop: everything.drop_guard(),
        })
    }

    pub fn drain_window(&self) -> Duration {
        self.status.drain.window()
    }

    /// Applies a changed configuration. Streams and connections go on, except where a peer's rights changed.
    /// Those connections are closed, paced, so that their clients reconnect.
    pub fn apply(&self, config: &Config, changes: &Changes) {
        let policy = Arc::new(policy(config));
        let Drain { server, connections, .. } = &*self.status.drain;
        let before = server.policy.swap(Arc::clone(&policy));
        server.groups.tune((tuning(config), cache_limits(config)));
        // A client's parameters follow from its node, which no connection knows.
        let for_all = changes.concerns("dynamic_parameters");
        let window = policy.drain();
        let has_other_rights = |peer: &Arc<Peer>| for_all || !before.gives_same_rights(&policy, peer);
        let (count, closing) =
            connections.close_where(&|one| one.peer().is_some_and(has_other_rights), window);
        if count > 0 {
            tracing::info!(
                connections = count,
                ?window,
                "closing connections whose clients have other rights or parameters now"
            );
            tokio::spawn(self.status.everything.clone().run_until_cancelled_owned(closing));
        }
    }

    /// Waits until an essential task has ended, which is a bug. A restart is better than half a relay.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Drains until the last client is gone or the window is over.
    pub async fn drain(&self) {
        self.status.drain.run().await;
    }

    /// Notes that this content of a configuration file is in force, for operators.
    pub fn note_config(&self, path: &Path, content: &str) {
        let digest = xxhash_rust::xxh3::xxh3_64(content.as_bytes());
        let loaded = LoadedConfig { path: path.to_owned(), digest, at: Instant::now(), is_refused: false };
        *self.status.loaded.lock() = Some(loaded);
    }

    pub fn note_refused_config(&self) {
        if let Some(loaded) = &mut *self.status.loaded.lock() {
            loaded.is_refused = true;
        }
    }

    /// Stops listening. Returns when no listener is left: only then are Unix sockets' files removed.
    pub async fn stop(self) {
        if let Some(saving) = self.saving {
            // The last changes are kept.
            drop(tokio::task::spawn_blocking(move || saving.finish()).await);
        }
        self.status.everything.cancel();
        self.listening.wait().await;
    }
}

/// Binds all listeners. Returns them with actual ports.
fn bind(config: &Config, reloader: &Reloader) -> anyhow::Result<(Vec<Listener>, Vec<ListenAddress>)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for (at, listener) in config.downstream.listeners.iter().enumerate() {
        let address = &listener.address;
        let bound = match address {
            ListenAddress::Tcp(address) => Listener::bind(*address),
            ListenAddress::Unix(path) => Listener::bind_unix(path),
        };
        let bound = bound.with_context(|| format!("cannot listen on {address} (downstream.listeners)"))?;
        addresses.push(bound.address().map_or_else(|| address.clone(), ListenAddress::Tcp));
        listeners.push(match tls_of(at, listener) {
            None => bound,
            Some((of, files)) => {
                let (paths, key) = (files.paths(), of.clone());
                let tls = reloader.add(&of, paths, move |read| files.load(read)).context(key)?;
                bound.with_tls(tls, config.downstream.handshake_timeout)
            }
        });
    }
    Ok((listeners, addresses))
}

/// Binds the admin address.
async fn bind_admin(config: &Config) -> anyhow::Result<Admin> {
    let admin = Admin::bind(config.admin.address, &config.admin.hosts)
        .await
        .with_context(|| format!("cannot listen on {} (admin.address)", config.admin.address))?;
    if !admin.address.ip().to_canonical().is_loopback() {
        tracing::warn!(
            address = %admin.address,
            "whoever reaches the admin address reads what clients are sent and may give orders: it has no authentication; keep it \
             off the open network, or set `admin.address` to a loopback address"
        );
    }
    Ok(admin)
}

fn server_state(
    config: &Config,
    groups: Arc<Groups>,
    responses: Arc<ResponseCache>,
    overload: &Arc<OverloadManager>,
    health: HealthService,
    scheduler: FairScheduler,
) -> ServerState {
    ServerState {
        identity: config_settings::identity(config),
        groups,
        policy: ArcSwap::from_pointee(policy(config)),
        refusals: LogThrottle::burst(),
        admission: Admission::new(config.downstream.clone(), Arc::clone(overload)),
        buffered: RequestMemory::new(
            config.downstream.max_buffered_request_bytes,
            config.downstream.max_buffered_request_bytes_per_connection,
        ),
        versions: RequestMemory::versions(
            config.downstream.max_initial_version_bytes,
            config.downstream.max_initial_version_bytes_per_connection,
        ),
        unsent: Unsent::new(config.downstream.max_unsent_bytes),
        fleet: Arc::default(),
        polls: PollState::new(responses),
        health,
        scheduler,
    }
}
