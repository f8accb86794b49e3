//! Source of resources: a control plane, or a directory.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::files::{UPSTREAM_TLS, tls_upstream};
use super::settings;
use crate::cache::{Protocol, Writer};
use crate::config::{self, Config, Source};
use crate::directory::Directory;
use crate::subscription::Upstream;
use crate::telemetry::{self, UpstreamFigures};
use crate::tls::reload::Reloader;
use crate::upstream::{
    Backoff, Client, Counters, DirectorySource, DirectoryState, Mux, Options, Readiness, Tuner,
    UpstreamState, Verdict,
};

/// Source of resources, and its state.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Server { state: watch::Receiver<UpstreamState>, counters: Arc<Counters> },
    Directory { state: watch::Receiver<DirectoryState> },
}

impl Origin {
    pub(super) fn start(
        config: &Config,
        reloader: &Reloader,
        writer: Writer,
        stop: CancellationToken,
        failed: CancellationToken,
    ) -> anyhow::Result<(Self, Tuner)> {
        match &config.upstream.source {
            Source::Servers(servers) => {
                Self::start_client(config, servers.first(), reloader, writer, stop, failed)
            }
            Source::Directory(path) => {
                let directory = Directory::open(path)
                    .with_context(|| format!("cannot watch {} (upstream.directory)", path.display()))?;
                let source = DirectorySource::new(writer);
                let (state, tuner) = (source.state(), source.tuner());
                spawn_essential(source.run(directory, stop.clone()), stop, failed);
                Ok((Self::Directory { state }, tuner))
            }
        }
    }

    fn start_client(
        config: &Config,
        server: &config::Server,
        reloader: &Reloader,
        writer: Writer,
        stop: CancellationToken,
        failed: CancellationToken,
    ) -> anyhow::Result<(Self, Tuner)> {
        let from = &config.upstream;
        let transport = settings::transport(from);
        let options = Options {
            backoff: Backoff::new(from.backoff.initial, from.backoff.max),
            max_message: from.max_response_bytes,
            protocol: settings::protocol(server),
            tls: match tls_upstream(server)? {
                Some(files) => Some(files.watch(reloader, UPSTREAM_TLS)?),
                None => None,
            },
            ..Options::new(transport.endpoint(&server.uri.to_string())?)
        };
        let client = Client::new(Mux::new(writer, settings::upstream(config)), options);
        let origin = Self::Server { state: client.state(), counters: Arc::clone(client.counters()) };
        let tuner = client.tuner();
        spawn_essential(client.run(stop.clone()), stop, failed);
        Ok((origin, tuner))
    }

    /// State of the source, as sessions see it.
    pub(super) fn upstream(&self) -> Upstream {
        match self {
            Self::Server { state, .. } => {
                let state = state.borrow();
                match (state.connected, state.answered) {
                    (false, _) => Upstream::Away,
                    (true, _) if state.origin_is_cut_off => Upstream::Away,
                    (true, false) => Upstream::Silent,
                    (true, true) => Upstream::Answering,
                }
            }
            Self::Directory { state } => {
                if state.borrow().read {
                    Upstream::Answering
                } else {
                    Upstream::Away
                }
            }
        }
    }

    /// Whether relays behind this one may take what is left unanswered for an answer, and when to look again.
    pub(super) fn vouches(&self, now: Instant) -> (bool, Option<Instant>) {
        match self {
            Self::Server { state, .. } => state.borrow().vouches(now),
            Self::Directory { state } => (state.borrow().read, None),
        }
    }

    /// Whether clients should be sent to a relay of this source.
    pub(super) fn verdict(&self, readiness: &mut Readiness) -> Verdict {
        match self {
            Self::Server { state, .. } => readiness.look(&state.borrow(), Instant::now()),
            Self::Directory { state } => {
                let why = || "the directory has not been read yet".to_owned();
                Verdict { ready: state.borrow().read.then_some(()).ok_or_else(why), look_at: None }
            }
        }
    }

    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        match self {
            Self::Server { state, .. } => state.changed().await,
            Self::Directory { state } => state.changed().await,
        }
    }

    pub(super) fn report(&self) {
        match self {
            Self::Server { state, counters } => {
                let now = Instant::now();
                let figures = {
                    let state = state.borrow();
                    UpstreamFigures {
                        connected: state.connected,
                        protocol: state.protocol.map(Protocol::label),
                        stale: state.stale_for(now),
                        last_answer: state.silent_for(now),
                        unanswered: state.unanswered.count,
                    }
                };
                telemetry::report_upstream(figures, &counters.all());
            }
            Self::Directory { state } => {
                let (read, failing) = {
                    let state = state.borrow();
                    (state.read, state.failures.len())
                };
                telemetry::report_upstream(UpstreamFigures { connected: read, ..Default::default() }, &[]);
                telemetry::report_directory(failing);
            }
        }
    }
}

/// Runs a task that must not end before `stop`; cancels `failed` if it does.
fn spawn_essential(
    task: impl Future<Output = ()> + Send + 'static,
    stop: CancellationToken,
    failed: CancellationToken,
) {
    tokio::spawn(async move {
        let ended = tokio::spawn(task).await;
        if !stop.is_cancelled() {
            tracing::error!(?ended, "the upstream task exited unexpectedly");
            failed.cancel();
        }
    });
}
