//! The whole program, put together from a configuration.
//!
//! Owns which task runs what and in which order they end. What it starts stops when it is dropped, but for
//! connections that are open: they end with a drain, or with the runtime.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::{Admin, Report};
use crate::cache::{self, Cache, Writer};
use crate::config::{self, Config, ListenAddress, Source};
use crate::descriptors::{DescriptorSet, Descriptors, SetError};
use crate::directory::Directory;
use crate::downstream::{Connections, Context, Limits, Listener, Polls, UpstreamView};
use crate::proto;
use crate::rest::Book;
use crate::subscription::{self, Given, Rules};
use crate::telemetry::{self, TypeFigures};
use crate::upstream::{
    Backoff, Client, Counters, DirectorySource, DirectoryState, Locators, Mux, Options, Reconcile, Settings,
    Transport, UpstreamState,
};

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    addresses: Vec<SocketAddr>,
    admin_address: SocketAddr,
    drain_window: Duration,
    connections: Arc<Connections>,
    status: Arc<Status>,
    health: HealthReporter,
    accepting: CancellationToken,
    failed: CancellationToken,
    _everything: DropGuard,
}

impl Relay {
    /// Binds all addresses, then starts. What fails here is a fault of the configuration or of the machine.
    pub async fn start(config: Config, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        let descriptors = load_descriptors(&config.rest)?;
        let book = Book::new(descriptors, config.rest.json_bytes);
        let everything = CancellationToken::new();
        let accepting = everything.child_token();

        let mut listeners = Vec::new();
        for listener in config.downstream.listeners.iter() {
            let address = match &listener.address {
                ListenAddress::Tcp(address) => *address,
                // The configuration refuses it by name.
                ListenAddress::Unix(path) => {
                    bail!("cannot listen on {}: no Unix sockets yet", path.display())
                }
            };
            let bound = Listener::bind(address)
                .with_context(|| format!("cannot listen on {address} (downstream.listeners)"))?;
            listeners.push(bound);
        }
        let admin = Admin::bind(config.admin.address)
            .await
            .with_context(|| format!("cannot listen on {} (admin.address)", config.admin.address))?;

        let (cache, mut writer) = Cache::new(cache_limits(&config));
        writer.set_eds_repush(config.downstream.eds_repush_on_cds_change);
        let failed = CancellationToken::new();
        let origin = Origin::start(&config, writer, everything.clone(), failed.clone())?;

        let view = UpstreamView::default();
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("", ServingStatus::NotServing).await;
        // Ends when a drain begins: what says NOT_SERVING must not be overruled.
        tokio::spawn(follow(origin.clone(), view.clone(), health.clone(), accepting.clone()));

        let shared = Arc::new(Context {
            cache: Arc::clone(&cache),
            rules: rules(&config),
            limits: limits(&config.downstream),
            upstream: view,
            rejections: Mutex::default(),
            polls: Polls::new(
                config.rest.hold,
                config.rest.idle_timeout,
                config.rest.max_polls_per_peer,
                Arc::clone(&book),
            ),
        });
        let connections: Arc<Connections> = Arc::default();
        let addresses = listeners.iter().map(Listener::address).collect();
        for listener in listeners {
            let health = health_service.clone();
            tokio::spawn(listener.serve(
                Arc::clone(&shared),
                health,
                Arc::clone(&connections),
                accepting.clone(),
            ));
        }

        let status = Arc::new(Status { cache, book, origin, metrics, draining: AtomicBool::new(false) });
        let admin_address = admin.address();
        tokio::spawn(admin.serve(Arc::clone(&status), everything.clone()));
        let housekeeping =
            housekeeping(Arc::clone(&connections), config.downstream.stall_timeout, Arc::clone(&status));
        tokio::spawn(everything.clone().run_until_cancelled_owned(housekeeping));

        Ok(Self {
            addresses,
            admin_address,
            drain_window: config.downstream.drain,
            connections,
            status,
            health,
            accepting,
            failed,
            _everything: everything.drop_guard(),
        })
    }

    /// The addresses that clients connect to.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address for operators.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// How long a drain may take.
    pub const fn drain_window(&self) -> Duration {
        self.drain_window
    }

    /// Returns when a part that the relay cannot do without has ended. That is a fault of ours, and half a relay is
    /// worse than one that is started again.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Sends clients elsewhere and returns when the last is gone or the window is over.
    pub async fn drain(&self) {
        self.status.draining.store(true, Ordering::Release);
        self.accepting.cancel();
        self.health.set_service_status("", ServingStatus::NotServing).await;
        self.connections.drain(self.drain_window).await;
    }
}

/// The descriptors that REST-JSON knows: those of the relay, and those in the files of the configuration.
pub fn load_descriptors(config: &config::Rest) -> Result<Descriptors, DescriptorsError> {
    let read = |path: &PathBuf| {
        let origin = path.display().to_string();
        match std::fs::read(path) {
            Ok(bytes) => Ok(DescriptorSet { origin, bytes }),
            Err(error) => Err(DescriptorsError::Unreadable { origin, error }),
        }
    };
    let sets = config.descriptor_sets.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(Descriptors::with(&sets)?)
}

/// Why the files of `rest.descriptor_sets` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorsError {
    /// One cannot be read.
    #[error("rest.descriptor_sets: cannot read {origin}: {error}")]
    Unreadable {
        /// Its path.
        origin: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// One is no descriptor set, or does not go with the others.
    #[error("rest.descriptor_sets: {0}")]
    Refused(#[from] SetError),
}

/// Runs a task that must not end before `stop`; tells `failed` if it does.
fn spawn_essential(
    task: impl Future<Output = ()> + Send + 'static,
    stop: CancellationToken,
    failed: CancellationToken,
) {
    tokio::spawn(async move {
        let ended = tokio::spawn(task).await;
        if !stop.is_cancelled() {
            tracing::error!(?ended, "the way upstream has ended by itself");
            failed.cancel();
        }
    });
}

/// What the admin address reports.
#[derive(Debug)]
struct Status {
    cache: Arc<Cache>,
    book: Arc<Book>,
    origin: Origin,
    metrics: PrometheusHandle,
    draining: AtomicBool,
}

impl Report for Status {
    fn ready(&self) -> Result<(), &'static str> {
        if self.draining.load(Ordering::Acquire) {
            return Err("draining");
        }
        if self.origin.standing().ever { Ok(()) } else { Err(self.origin.waits_for()) }
    }

    fn metrics(&self) -> String {
        let mut kinds: BTreeMap<_, TypeFigures> = BTreeMap::new();
        for of in self.cache.types() {
            let snapshot = of.snapshot();
            // Types without rules of their own share a label.
            let figures = kinds.entry(of.type_url().kind()).or_default();
            figures.members += snapshot.member_count();
            figures.cohorts += of.cohorts();
            figures.generation = figures.generation.max(snapshot.generation().get());
        }
        kinds.into_iter().for_each(|(kind, figures)| telemetry::report_type(kind.short(), figures));
        telemetry::report_encodes(self.cache.encoder().encodes());
        telemetry::report_json(self.book.resources_written(), self.book.answers_written());
        self.origin.report();
        self.metrics.render()
    }
}

/// Passes on whether the origin can be asked.
async fn follow(mut origin: Origin, view: UpstreamView, health: HealthReporter, stop: CancellationToken) {
    let mut serving = false;
    loop {
        let standing = origin.standing();
        view.set(standing.connected);
        if standing.ever && !serving {
            serving = true;
            health.set_service_status("", ServingStatus::Serving).await;
        }
        let changed = stop.run_until_cancelled(origin.changed()).await;
        if !matches!(changed, Some(Ok(()))) {
            return;
        }
    }
}

async fn housekeeping(connections: Arc<Connections>, stall: Duration, status: Arc<Status>) {
    let upkeep = async {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            status.metrics.run_upkeep();
        }
    };
    tokio::join!(connections.keep_order(stall), upkeep);
}

fn cache_limits(config: &Config) -> cache::Limits {
    cache::Limits {
        encoded_bytes: config.cache.encoded_bytes,
        tombstones: config.cache.tombstones,
        parameter_sets: config.cache.max_parameter_sets,
        response_bytes: config.downstream.max_response_bytes,
        ..cache::Limits::default()
    }
}

fn rules(config: &Config) -> Rules {
    let downstream = &config.downstream;
    Rules {
        ack_timeout: downstream.ack_timeout,
        cold_deadline: downstream.cold_deadline,
        settle: downstream.settle,
        no_legacy_wildcard: downstream.no_legacy_wildcard.clone(),
        trust_initial_versions: downstream.trust_initial_versions_for_explicit,
        eds_repush: downstream.eds_repush_on_cds_change,
        serve_secrets: downstream.secrets_without_authentication,
        max_name_bytes: downstream.max_name_bytes,
        max_names: downstream.max_names,
        given: given(config),
        ..Rules::default()
    }
}

/// What clients are given that send no dynamic parameters. A value is bounded as a name is: longer ones count as not said.
pub fn given(config: &Config) -> Given {
    let rule = |rule: &config::DynamicParameter| subscription::Rule {
        key: rule.key.as_str().into(),
        from: match &rule.from {
            config::NodeField::Id => subscription::NodeField::Id,
            config::NodeField::Cluster => subscription::NodeField::Cluster,
            config::NodeField::Region => subscription::NodeField::Region,
            config::NodeField::Zone => subscription::NodeField::Zone,
            config::NodeField::SubZone => subscription::NodeField::SubZone,
            config::NodeField::UserAgentName => subscription::NodeField::UserAgentName,
            config::NodeField::Metadata(path) => subscription::NodeField::Metadata(path.clone()),
        },
        pattern: rule.pattern.as_ref().map(|pattern| pattern.whole().clone()),
        default: rule.default.as_deref().map(Into::into),
    };
    Given::new(config.dynamic_parameters.iter().map(rule).collect(), config.downstream.max_name_bytes)
}

fn limits(downstream: &config::Downstream) -> Limits {
    Limits {
        max_request_bytes: downstream.max_request_bytes,
        first_request_timeout: downstream.first_request_timeout,
        max_streams_per_connection: downstream.max_streams_per_connection,
        stall_timeout: downstream.stall_timeout,
        max_connection_age: downstream.max_connection_age,
        keepalive_interval: downstream.keepalive.interval,
        keepalive_timeout: downstream.keepalive.timeout,
    }
}

/// Where resources come from, and how that fares.
#[derive(Clone, Debug)]
enum Origin {
    Server { state: watch::Receiver<UpstreamState>, counters: Arc<Counters> },
    Directory { state: watch::Receiver<DirectoryState> },
}

/// Whether the origin can be asked, and whether it ever could.
struct Standing {
    connected: bool,
    ever: bool,
}

impl Origin {
    fn start(
        config: &Config,
        writer: Writer,
        stop: CancellationToken,
        failed: CancellationToken,
    ) -> anyhow::Result<Self> {
        match &config.upstream.source {
            Source::Servers(servers) => Self::start_client(config, servers.first(), writer, stop, failed),
            Source::Directory(path) => {
                let directory = Directory::open(path)
                    .with_context(|| format!("cannot watch {} (upstream.directory)", path.display()))?;
                let source = DirectorySource::new(writer);
                let state = source.state();
                spawn_essential(source.run(directory, stop.clone()), stop, failed);
                Ok(Self::Directory { state })
            }
        }
    }

    fn start_client(
        config: &Config,
        server: &config::Server,
        writer: Writer,
        stop: CancellationToken,
        failed: CancellationToken,
    ) -> anyhow::Result<Self> {
        let from = &config.upstream;
        let settings = Settings {
            node: node(&config.node),
            linger: from.unsubscribe_linger,
            max_lingering: from.max_lingering_names,
            settle: config.downstream.settle,
            settle_max: config.downstream.settle_max,
            request_interval: from.request_interval,
            resource_errors: config.downstream.resource_errors,
            reconcile: match from.reconcile {
                config::Reconcile::Trust => Reconcile::Trust,
                config::Reconcile::Sweep => Reconcile::Sweep,
            },
            locators: match from.locators {
                config::Locators::Native => Locators::Native,
                config::Locators::Plain => Locators::Plain,
            },
            ..Settings::default()
        };
        let transport = Transport {
            connect_timeout: from.connect_timeout,
            keepalive_interval: from.keepalive.interval,
            keepalive_timeout: from.keepalive.timeout,
        };
        let options = Options {
            backoff: Backoff::new(from.backoff.initial, from.backoff.max),
            max_message: from.max_response_bytes,
            ..Options::new(transport.endpoint(&server.uri.to_string())?)
        };
        let client = Client::new(Mux::new(writer, settings), options);
        let origin = Self::Server { state: client.state(), counters: Arc::clone(client.counters()) };
        spawn_essential(client.run(stop.clone()), stop, failed);
        Ok(origin)
    }

    fn standing(&self) -> Standing {
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow();
                Standing { connected: state.connected, ever: state.ever_connected }
            }
            Self::Directory { state } => {
                let read = state.borrow().read;
                Standing { connected: read, ever: read }
            }
        }
    }

    const fn waits_for(&self) -> &'static str {
        match self {
            Self::Server { .. } => "the control plane has not been reached yet",
            Self::Directory { .. } => "the directory has not been read yet",
        }
    }

    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        match self {
            Self::Server { state, .. } => state.changed().await,
            Self::Directory { state } => state.changed().await,
        }
    }

    fn report(&self) {
        match self {
            Self::Server { state, counters } => {
                let (connected, since) = {
                    let state = state.borrow();
                    (state.connected, state.since)
                };
                let away = if connected { Duration::ZERO } else { since.elapsed() };
                telemetry::report_upstream(connected, away, &counters.all());
            }
            Self::Directory { state } => {
                let (read, failing) = {
                    let state = state.borrow();
                    (state.read, state.failures.len())
                };
                telemetry::report_upstream(read, Duration::ZERO, &[]);
                telemetry::report_directory(failing);
            }
        }
    }
}

/// The relay's own node, with its metadata as protobuf has it.
fn node(config: &config::Node) -> proto::Node {
    let text = |text: &String| text.clone();
    proto::Node {
        id: config.id.clone(),
        cluster: config.cluster.clone(),
        metadata: Some(proto::structure(&config.metadata)),
        locality: Some(proto::Locality {
            region: text(&config.locality.region),
            zone: text(&config.locality.zone),
            sub_zone: text(&config.locality.sub_zone),
        }),
        user_agent_name: "deltafan".to_owned(),
        user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        // Without it a control plane that keeps to the protocol tells no TTLs (R-TTL-07).
        client_features: vec!["xds.config.supports-resource-ttl".to_owned()],
    }
}
