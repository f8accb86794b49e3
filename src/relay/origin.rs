//! Source of resources: a control plane, or a directory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config_settings::{self, cache_limits, group_rules, rollout_settings, tuning};
use super::named_files::{tls_upstream, upstream_tls_key};
use crate::cache::{Budget, Cache};
use crate::config::{self, Config, Source};
use crate::directory::Directory;
use crate::groups::{Events, Group, Groups, Starter, spawn_essential};
use crate::snapshot::{Disk, Restore};
use crate::telemetry;
use crate::tls::reload::Reloader;
use crate::upstream::{
    Backoff, ChangeSink, DirectorySource, DirectoryState, NodeBudget, Options, Readiness, Servers, Settings,
    Transport, UpstreamState, Verdict,
};

/// Source of resources, and its state.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Server { state: watch::Receiver<UpstreamState>, servers: Arc<Servers> },
    Directory { state: watch::Receiver<DirectoryState> },
}

/// Settings of the connections to a server. `key` names its `tls` section.
fn options_of(
    server: &config::Server,
    config: &Config,
    transport: &Transport,
    reloader: &Reloader,
    key: &str,
) -> anyhow::Result<Options> {
    let from = &config.upstream;
    Ok(Options {
        backoff: Backoff::new(from.backoff.initial, from.backoff.max),
        max_message: from.max_response_bytes,
        protocol: server.protocol,
        identity: config_settings::identity(config),
        liveness: config_settings::liveness(&from.keepalive),
        tls: match tls_upstream(server)? {
            Some(files) => Some(reloader.add(key, files.paths(), move |read| files.load(read))?),
            None => None,
        },
        ..Options::new(transport.endpoint(&server.uri.to_string())?)
    })
}

/// Connections to the control planes.
fn connections(config: &Config, servers: &[config::Server], reloader: &Reloader) -> anyhow::Result<Servers> {
    let from = &config.upstream;
    let transport = config_settings::transport(from);
    let is_choice = servers.len() > 1;
    let mut options = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let key = upstream_tls_key(at, is_choice);
        options.push(options_of(server, config, &transport, reloader, &key)?);
    }
    let first = options.remove(0);
    Ok(Servers::new(first, options, config_settings::failover(&from.failover)))
}

/// Starts the source of the own group, and makes the node groups. A task that ends before `stop` cancels `failed`.
pub(super) fn start(
    config: &Config,
    reloader: &Reloader,
    (disk, saved): (Option<&Arc<Disk>>, Option<Restore>),
    changes: Option<ChangeSink>,
    (stop, failed): (CancellationToken, CancellationToken),
) -> anyhow::Result<(Origin, Arc<Groups>)> {
    let limits = cache_limits(config);
    let budget = Budget::new(limits.encoded_bytes).with_history(config.cache.history_bytes);
    let rollout = rollout_settings(config)?;
    let (own, origin, starter) = match &config.upstream.source {
        Source::Servers(servers) => {
            let servers = Arc::new(connections(config, servers, reloader)?);
            let starter = Starter {
                settings: Settings { first_server: servers.first(), ..config_settings::upstream(config) },
                servers: Arc::clone(&servers),
                budget,
                nodes: Arc::new(NodeBudget::new(config.groups.max)),
                tuned: Mutex::new((tuning(config), limits)),
                disk: disk.cloned(),
                rollout,
                changes,
                stop: stop.clone(),
                failed,
            };
            let (own, state) = starter.own(saved);
            (own, Origin::Server { state, servers }, Some(starter))
        }
        Source::Directory(path) => {
            let directory = Directory::open(path)
                .with_context(|| format!("cannot watch {} (upstream.directory)", path.display()))?;
            let (cache, mut writer) = Cache::guarded(limits, &budget, rollout);
            writer.set_eds_repush(config.downstream.eds_repush_on_cds_change);
            writer.set_identity(&config_settings::identity(config));
            let source = DirectorySource::new(writer);
            let state = source.state();
            let own = Group::of_directory(cache, &source, stop.clone());
            spawn_essential(source.run(directory, stop.clone()), stop.clone(), failed);
            (own, Origin::Directory { state }, None)
        }
    };
    let (max, linger) = (config.groups.max, config.upstream.unsubscribe_linger);
    let groups = Groups::new(group_rules(config), own, starter, max, linger);
    let releases = Arc::clone(&groups);
    let release = async move { releases.release_unused().await };
    tokio::spawn(stop.run_until_cancelled_owned(release));
    Ok((origin, groups))
}

impl Origin {
    /// State of the control plane; `None` for a directory.
    pub(super) fn state(&self) -> Option<UpstreamState> {
        match self {
            Self::Server { state, .. } => Some(state.borrow().clone()),
            Self::Directory { .. } => None,
        }
    }

    /// Whether relays downstream may trust missing answers, and when to look again.
    pub(super) fn vouches(&self, now: Instant) -> (bool, Option<Instant>) {
        match self {
            Self::Server { state, .. } => state.borrow().vouches(now),
            Self::Directory { state } => (state.borrow().read, None),
        }
    }

    /// Whether clients should come to a relay with this source.
    pub(super) fn verdict(&self, readiness: &mut Readiness) -> Verdict {
        match self {
            Self::Server { state, servers, .. } => {
                if servers.have_answered() {
                    readiness.note_others_answered();
                }
                readiness.look(&state.borrow(), Instant::now())
            }
            Self::Directory { state } => {
                let state = state.borrow();
                let why = || match state.failures.first() {
                    Some(failure) => {
                        format!(
                            "a file of the directory cannot be read: {}: {}",
                            failure.file, failure.message
                        )
                    }
                    None => "the directory has not been read yet".to_owned(),
                };
                Verdict { ready: state.read.then_some(()).ok_or_else(why), look_at: None }
            }
        }
    }

    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        match self {
            Self::Server { state, .. } => state.changed().await,
            Self::Directory { state } => state.changed().await,
        }
    }

    /// Whether nothing was requested on its connection.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow();
                state.connected && !state.answered && state.unanswered.count == 0
            }
            Self::Directory { .. } => false,
        }
    }

    /// Reports the source, with the events of all groups.
    pub(super) fn report(&self, events: &Events) {
        let now = Instant::now();
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow().clone();
                telemetry::report_upstream(state.connected, Some(&state), events, now);
            }
            Self::Directory { state } => {
                let (is_read, failing) = (state.borrow().read, state.borrow().failures.len());
                telemetry::report_upstream(is_read, None, &[], now);
                telemetry::set(telemetry::DIRECTORY_FAILURES, failing as f64);
            }
        }
    }
}
