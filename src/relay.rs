//! The whole program, put together from a configuration.
//!
//! Owns which task runs what and in which order they end. What it starts stops when it is dropped, but for
//! connections that are open: they end with a drain, or with the runtime.

mod origin;
mod settings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admin::{Admin, Report};
use crate::cache::Cache;
use crate::config::{self, Changes, Config, ListenAddress, Source};
use crate::descriptors::{DescriptorSet, Descriptors, SetError};
use crate::downstream::{
    Admission, Buffered, Connections, Context, Handshakes, Listener, Memory, Polls, Turns, Unsent,
    UpstreamView,
};
use crate::identity::Peer;
use crate::rest::Book;
use crate::telemetry::{self, TypeFigures};
use crate::tls::client::{ClientFiles, NoName};
use crate::tls::files::Files;
use crate::tls::reload::{LoadError, Reloader};
use crate::tls::server::ServerFiles;
use crate::upstream::{Readiness, Tuner, Verdict};

use origin::Origin;
pub use settings::given;

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    addresses: Vec<ListenAddress>,
    admin_address: SocketAddr,
    reloader: Reloader,
    shared: Arc<Context>,
    tuner: Tuner,
    connections: Arc<Connections>,
    status: Arc<Status>,
    /// A drain has begun.
    draining: CancellationToken,
    /// The listeners are to stop.
    closed: CancellationToken,
    listening: TaskTracker,
    failed: CancellationToken,
    everything: CancellationToken,
    _stop: DropGuard,
}

impl Relay {
    /// Binds all addresses, then starts. What fails here is a fault of the configuration or of the machine.
    pub async fn start(config: &Config, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        let descriptors = load_descriptors(&config.rest)?;
        let book = Book::new(descriptors, config.rest.json_bytes);
        let reloader = Reloader::default();
        let everything = CancellationToken::new();
        let (draining, closed) = (everything.child_token(), everything.child_token());

        let threads = tokio::runtime::Handle::current().metrics().num_workers();
        let turns = Turns::new(threads);
        let handshakes = Handshakes::new(turns.clone(), config.downstream.handshake_timeout);
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (at, listener) in config.downstream.listeners.iter().enumerate() {
            let address = &listener.address;
            let bound = match address {
                ListenAddress::Tcp(address) => Listener::bind(*address),
                ListenAddress::Unix(path) => Listener::bind_unix(path),
            };
            let bound =
                bound.with_context(|| format!("cannot listen on {address} (downstream.listeners)"))?;
            addresses.push(bound.address().map_or_else(|| address.clone(), ListenAddress::Tcp));
            listeners.push(match tls_of(at, listener) {
                None => bound,
                Some((of, files)) => {
                    let (paths, key) = (files.paths(), of.clone());
                    let config = reloader.add(&of, paths, move |read| files.load(read)).context(key)?;
                    bound.with_tls(config, handshakes.clone())
                }
            });
        }
        let admin = Admin::bind(config.admin.address)
            .await
            .with_context(|| format!("cannot listen on {} (admin.address)", config.admin.address))?;

        let (cache, mut writer) = Cache::new(settings::cache_limits(config));
        writer.set_eds_repush(config.downstream.eds_repush_on_cds_change);
        let failed = CancellationToken::new();
        let (origin, tuner) = Origin::start(config, &reloader, writer, everything.clone(), failed.clone())?;

        let view = UpstreamView::default();
        tokio::spawn(everything.clone().run_until_cancelled_owned(follow(origin.clone(), view.clone())));
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("", ServingStatus::NotServing).await;
        let readiness = Readiness::new(config.upstream.ready_wait, config.node.id.clone());
        let (ready, is_ready) = watch::channel(Err("starting".to_owned()));
        tokio::spawn(attend(origin.clone(), readiness, ready, health, draining.clone()));

        let memory = Memory::new(config.downstream.memory.refuse_above, config.downstream.memory.close_above);
        let shared = Arc::new(Context {
            cache: Arc::clone(&cache),
            policy: ArcSwap::from_pointee(settings::policy(config)),
            denials: Mutex::default(),
            admission: Admission::new(config.downstream.limits, Arc::clone(&memory)),
            buffered: Buffered::new(
                config.downstream.max_buffered_request_bytes,
                config.downstream.max_buffered_request_bytes_per_connection,
            ),
            versions: Buffered::versions(
                config.downstream.max_initial_version_bytes,
                config.downstream.max_initial_version_bytes_per_connection,
            ),
            unsent: Unsent::new(config.downstream.max_unsent_bytes),
            upstream: view,
            rejections: Mutex::default(),
            polls: Polls::new(Arc::clone(&book)),
            turns,
        });
        let connections: Arc<Connections> = Arc::default();
        let listening = TaskTracker::new();
        listening.close();
        for listener in listeners {
            let health = health_service.clone();
            listening.spawn(listener.serve(
                Arc::clone(&shared),
                health,
                Arc::clone(&connections),
                closed.clone(),
            ));
        }

        let draining_now = AtomicBool::new(false);
        let status = Arc::new(Status {
            cache,
            book,
            origin,
            metrics,
            is_ready,
            draining: draining_now,
            memory: Arc::clone(&memory),
        });
        let admin_address = admin.address();
        tokio::spawn(admin.serve(Arc::clone(&status), everything.clone()));
        let watch = {
            let (connections, unsent) = (Arc::clone(&connections), Arc::clone(&shared.unsent));
            async move { memory.watch(connections, unsent).await }
        };
        tokio::spawn(everything.clone().run_until_cancelled_owned(watch));
        let housekeeping = housekeeping(Arc::clone(&connections), Arc::clone(&shared), Arc::clone(&status));
        tokio::spawn(everything.clone().run_until_cancelled_owned(housekeeping));

        Ok(Self {
            addresses,
            admin_address,
            reloader,
            shared,
            tuner,
            connections,
            status,
            draining,
            closed,
            listening,
            failed,
            _stop: everything.clone().drop_guard(),
            everything,
        })
    }

    /// The addresses that clients connect to, with the ports that were chosen.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// The address for operators.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Keeps certificates and what belongs to them up to date with their files.
    pub const fn reloader(&self) -> &Reloader {
        &self.reloader
    }

    /// How long a drain may take.
    pub fn drain_window(&self) -> Duration {
        self.shared.policy.load().drain()
    }

    /// Takes over what may change while the relay runs. Streams live on as they began, and connections too, unless what
    /// their peers may do has changed: those are closed, paced, so that their clients come again.
    pub fn apply(&self, config: &Config, changes: &Changes) {
        let policy = Arc::new(settings::policy(config));
        let before = self.shared.policy.swap(Arc::clone(&policy));
        self.shared.cache.set_limits(&settings::cache_limits(config));
        self.tuner.send_replace(Some(settings::tuning(config)));
        // Which parameters a client is given follows from its node, which no connection knows.
        let for_all = changes.concerns("dynamic_parameters");
        let window = policy.drain();
        let concerned = |peer: &Peer| for_all || !before.gives_same_rights(&policy, peer);
        let (count, closing) = self.connections.close_where(concerned, window);
        if count > 0 {
            tracing::info!(
                connections = count,
                ?window,
                "closing the connections whose clients may do or are given something else now"
            );
            tokio::spawn(self.everything.clone().run_until_cancelled_owned(closing));
        }
    }

    /// Returns when a part that the relay cannot do without has ended. That is a fault of ours, and half a relay is
    /// worse than one that is started again.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Sends clients elsewhere and returns when the last is gone or the window is over.
    ///
    /// Whoever balances load takes a moment to see that this relay is no longer ready, and sends it clients until then. They
    /// are served, and nobody is closed yet who could come back; then the listeners stop and all are closed.
    pub async fn drain(&self) {
        let window = self.drain_window();
        let moment = (window / 10).min(LONGEST_MOMENT);
        self.status.draining.store(true, Ordering::Release);
        self.draining.cancel();
        self.connections.emptied_within(moment).await;
        self.closed.cancel();
        self.connections.drain(window - moment).await;
    }

    /// Stops listening and returns when nobody listens: only then the files of Unix sockets are gone, for which a process
    /// that ends would not wait.
    pub async fn stop(self) {
        self.everything.cancel();
        self.listening.wait().await;
    }
}

/// New clients are served this long at most when a drain has begun: until whoever sends them has noticed.
const LONGEST_MOMENT: Duration = Duration::from_secs(5);

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

/// The key that names the files of the way upstream, in messages and metrics.
const UPSTREAM_TLS: &str = "upstream.servers[].tls";

/// Reads the files of all `tls` sections as a start would, and says what is wrong with the first that cannot be used.
pub fn check_tls(config: &Config) -> anyhow::Result<()> {
    if let Source::Servers(servers) = &config.upstream.source {
        for server in servers.iter() {
            if let Some(files) = tls_upstream(server)? {
                files.read().context(UPSTREAM_TLS)?;
            }
        }
    }
    for (at, listener) in config.downstream.listeners.iter().enumerate() {
        let Some((of, files)) = tls_of(at, listener) else { continue };
        let loaded = Files::read(&files.paths()).map_err(LoadError::from).and_then(|read| files.load(&read));
        loaded.context(of)?;
    }
    Ok(())
}

/// The files of TLS to a server.
fn tls_upstream(server: &config::Server) -> Result<Option<ClientFiles>, NoName> {
    let files = || ClientFiles::new(server.tls.clone().unwrap_or_default(), server.uri.as_uri());
    server.uri.is_tls().then(files).transpose()
}

/// The files of a listener's TLS, and the key that names them.
fn tls_of(at: usize, listener: &config::Listener) -> Option<(String, ServerFiles)> {
    let tls = listener.tls.as_ref()?;
    let clients = tls.clients.as_ref();
    let files = ServerFiles {
        certificate: tls.cert_file.clone(),
        key: tls.key_file.clone(),
        client_authorities: clients.map(|clients| clients.ca_file.clone()),
        revoked: clients.and_then(|clients| clients.crl_file.clone()),
    };
    Some((format!("downstream.listeners[{at}].tls"), files))
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

/// What the admin address reports.
#[derive(Debug)]
struct Status {
    cache: Arc<Cache>,
    book: Arc<Book>,
    origin: Origin,
    metrics: PrometheusHandle,
    is_ready: watch::Receiver<Ready>,
    draining: AtomicBool,
    memory: Arc<Memory>,
}

impl Report for Status {
    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Acquire) {
            return Err("draining".to_owned());
        }
        if self.memory.refuses() {
            return Err("memory is short: newcomers are refused (downstream.memory.refuse_above)".to_owned());
        }
        self.is_ready.borrow().clone()
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

/// Ready, or why not.
type Ready = Result<(), String>;

/// Passes on whether the origin can be asked.
async fn follow(mut origin: Origin, view: UpstreamView) {
    loop {
        view.set(origin.upstream());
        if origin.changed().await.is_err() {
            return;
        }
    }
}

/// Passes on whether clients should be sent here. When a drain begins, its last word is NOT_SERVING.
async fn attend(
    mut origin: Origin,
    mut readiness: Readiness,
    ready: watch::Sender<Ready>,
    health: HealthReporter,
    draining: CancellationToken,
) {
    let attend = async {
        let mut serving = false;
        loop {
            let Verdict { ready: verdict, look_at } = origin.verdict(&mut readiness);
            if std::mem::replace(&mut serving, verdict.is_ok()) != serving {
                let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
                health.set_service_status("", status).await;
            }
            drop(ready.send_replace(verdict));
            let until = async {
                match look_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = until => {}
                changed = origin.changed() => if changed.is_err() {
                    return std::future::pending::<()>().await;
                },
            }
        }
    };
    draining.run_until_cancelled(attend).await;
    health.set_service_status("", ServingStatus::NotServing).await;
}

async fn housekeeping(connections: Arc<Connections>, shared: Arc<Context>, status: Arc<Status>) {
    let times = || shared.policy.load().times();
    let retirement = || shared.policy.load().retirement();
    let upkeep = async {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        loop {
            tick.tick().await;
            status.metrics.run_upkeep();
            shared.polls.tidy().await;
        }
    };
    tokio::join!(connections.keep_order(times), connections.retire(retirement), upkeep);
}
