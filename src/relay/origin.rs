//! Start of the source of resources: a control plane, or a directory.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config_settings::{self, cache_limits, group_rules, rollout_settings, tuning};
use super::named_files::{tls_upstream, upstream_tls_key};
use crate::cache::{Budget, Cache};
use crate::config::Config;
use crate::directory::Directory;
use crate::groups::{Group, Groups, Starter, spawn_essential};
use crate::snapshot::{Disk, Restore};
use crate::tls::reload::Reloader;
use crate::upstream::{Backoff, DirectorySource, NodeBudget, Options, Servers, Settings};

/// Connections to the control planes.
fn connections(config: &Config, reloader: &Reloader) -> anyhow::Result<Servers> {
    let from = &config.upstream;
    let servers = &from.servers;
    let transport = config_settings::transport(from);
    let is_choice = servers.len() > 1;
    let mut options = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let key = upstream_tls_key(at, is_choice);
        options.push(Options {
            endpoint: transport.endpoint(&server.uri.to_string())?,
            backoff: Backoff::new(from.backoff.initial, from.backoff.max),
            max_message: from.max_response_bytes,
            protocol: server.protocol,
            identity: config_settings::identity(config),
            liveness: config_settings::liveness(&from.keepalive),
            tls: match tls_upstream(server)? {
                Some(files) => Some(reloader.add(&key, files.paths(), move |read| files.load(read))?),
                None => None,
            },
        });
    }
    let first = options.remove(0);
    Ok(Servers::new(first, options, config_settings::failover(&from.failover)))
}

/// Starts the source of the own group, and makes the node groups. A task that ends before `stop` cancels `failed`.
pub(super) fn start(
    config: &Config,
    reloader: &Reloader,
    (disk, saved): (Option<&Arc<Disk>>, Option<Restore>),
    (stop, failed): (CancellationToken, CancellationToken),
) -> anyhow::Result<Arc<Groups>> {
    let limits = cache_limits(config);
    let budget = Budget::new(limits.encoded_bytes).with_history(config.cache.history_bytes);
    let rollout = rollout_settings(config)?;
    let tuner = watch::Sender::new((tuning(config), limits));
    let (own, starter) = match &config.upstream.directory {
        None => {
            let servers = Arc::new(connections(config, reloader)?);
            let starter = Starter {
                settings: Settings { first_server: servers.first(), ..config_settings::upstream(config) },
                servers,
                budget,
                nodes: Arc::new(NodeBudget::new(config.groups.max)),
                tuned: tuner.subscribe(),
                disk: disk.cloned(),
                rollout,
                stop: stop.clone(),
                failed,
            };
            (starter.own(saved), Some(starter))
        }
        Some(path) => {
            let directory = Directory::open(path)
                .with_context(|| format!("cannot watch {} (upstream.directory)", path.display()))?;
            let (cache, mut writer) = Cache::guarded(limits, &budget, rollout);
            writer.set_eds_repush(config.downstream.eds_repush_on_cds_change);
            writer.set_identity(&config_settings::identity(config));
            let source = DirectorySource::new(writer, tuner.subscribe());
            let own = Group::of_directory(cache, &source);
            spawn_essential(source.run(directory, stop.clone()), stop.clone(), failed);
            (own, None)
        }
    };
    let (max, linger) = (config.groups.max, config.upstream.unsubscribe_linger);
    let groups = Groups::new(group_rules(config), own, starter, max, linger, tuner);
    let releases = Arc::clone(&groups);
    let release = async move { releases.release_unused().await };
    tokio::spawn(stop.run_until_cancelled_owned(release));
    Ok(groups)
}
