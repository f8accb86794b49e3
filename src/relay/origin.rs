//! Source of resources: a control plane, or a directory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config_settings;
use super::named_files::{tls_upstream, upstream_tls_key};
use crate::cache::Writer;
use crate::config::{self, Config, Source};
use crate::directory::Directory;
use crate::groups::{Events, seen, spawn_essential};
use crate::snapshot::Restore;
use crate::subscription::Upstream;
use crate::telemetry;
use crate::tls::reload::Reloader;
use crate::upstream::{
    Backoff, ChangeSink, Client, Counters, DirectorySource, DirectoryState, Mux, Options, Readiness, Servers,
    Settings, Transport, Tuner, UpstreamState, Verdict,
};

/// Source of resources, and its state.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Server { state: watch::Receiver<UpstreamState>, counters: Arc<Counters>, servers: Arc<Servers> },
    Directory { state: watch::Receiver<DirectoryState> },
}

/// Running source for the own group.
pub(super) struct Started {
    pub(super) origin: Origin,
    pub(super) tuner: Tuner,
    /// Connections and settings for other groups; `None` for a directory.
    pub(super) shared: Option<(Arc<Servers>, Settings)>,
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

impl Origin {
    pub(super) fn start(
        config: &Config,
        reloader: &Reloader,
        writer: Writer,
        saved: Option<Restore>,
        changes: Option<ChangeSink>,
        (stop, failed): (CancellationToken, CancellationToken),
    ) -> anyhow::Result<Started> {
        match &config.upstream.source {
            Source::Servers(servers) => {
                Self::start_client(config, servers, reloader, (writer, saved), changes, (stop, failed))
            }
            Source::Directory(path) => {
                let directory = Directory::open(path)
                    .with_context(|| format!("cannot watch {} (upstream.directory)", path.display()))?;
                let source = DirectorySource::new(writer);
                let (state, tuner) = (source.state(), source.tuner());
                spawn_essential(source.run(directory, stop.clone()), stop, failed);
                Ok(Started { origin: Self::Directory { state }, tuner, shared: None })
            }
        }
    }

    fn start_client(
        config: &Config,
        servers: &[config::Server],
        reloader: &Reloader,
        (writer, saved): (Writer, Option<Restore>),
        changes: Option<ChangeSink>,
        (stop, failed): (CancellationToken, CancellationToken),
    ) -> anyhow::Result<Started> {
        let from = &config.upstream;
        let transport = config_settings::transport(from);
        let is_choice = servers.len() > 1;
        let mut options = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            let key = upstream_tls_key(at, is_choice);
            options.push(options_of(server, config, &transport, reloader, &key)?);
        }
        let first = options.remove(0);
        let servers = Arc::new(Servers::new(first, options, config_settings::failover(&from.failover)));
        let settings = Settings { first_server: servers.first(), ..config_settings::upstream(config) };
        let mut client =
            Client::on(Mux::new(writer, settings.clone()), Arc::clone(&servers)).handing_changes_to(changes);
        if let Some(restore) = saved {
            restore(&mut client);
        }
        let origin = Self::Server {
            state: client.state(),
            counters: Arc::clone(client.counters()),
            servers: Arc::clone(&servers),
        };
        let tuner = client.tuner();
        let stopped = stop.clone();
        spawn_essential(async move { client.run(stopped).await }, stop, failed);
        Ok(Started { origin, tuner, shared: Some((servers, settings)) })
    }

    /// State of the control plane; `None` for a directory.
    pub(super) fn state(&self) -> Option<UpstreamState> {
        match self {
            Self::Server { state, .. } => Some(state.borrow().clone()),
            Self::Directory { .. } => None,
        }
    }

    /// State of the source, as sessions see it.
    pub(super) fn upstream(&self) -> Upstream {
        match self {
            Self::Server { state, .. } => seen(&state.borrow()),
            Self::Directory { state } => {
                let state = state.borrow();
                match (state.read, state.failures.is_empty()) {
                    (true, _) => Upstream::Answering,
                    (false, false) => Upstream::Unread,
                    (false, true) => Upstream::Away,
                }
            }
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

    /// Reports the source, including the events of other groups.
    pub(super) fn report(&self, others: &Events) {
        let now = Instant::now();
        match self {
            Self::Server { state, counters, .. } => {
                let mut events = counters.all();
                events.iter_mut().zip(others).for_each(|((_, own), (_, others))| *own += others);
                let state = state.borrow().clone();
                telemetry::report_upstream(state.connected, Some(&state), &events, now);
            }
            Self::Directory { state } => {
                let (is_read, failing) = (state.borrow().read, state.borrow().failures.len());
                telemetry::report_upstream(is_read, None, &[], now);
                telemetry::set(telemetry::DIRECTORY_FAILURES, failing as f64);
            }
        }
    }
}
