//! Reload of the configuration file.
//!
//! Owns when it is read again (on SIGHUP, or when its content changes), and the log of it. An unusable file
//! changes nothing. Changes without restart go to [`Relay::apply`]; others are logged, and wait for the next
//! start. Knows no key: [`config::diff`] does.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tokio::sync::Notify;

use crate::config::{self, Changes, Config, ConfigError, UnknownKeys};
use crate::file_watch::{FileFollower, fingerprint_at};
use crate::relay::{self, Relay};
use crate::telemetry::{self, ReloadResult};

/// Reads a configuration, and checks all that can be checked before a start: also the files that it names, or
/// without `reads_files` the configuration alone.
///
/// # Errors
///
/// [`ConfigError`] with every problem of the configuration, or the first file of it that cannot be used.
pub fn load(
    path: &Path,
    unknown_keys: UnknownKeys,
    reads_files: bool,
) -> Result<(Config, Vec<String>), ConfigError> {
    let text = Config::read(path)?;
    if reads_files { parse(&text, path, unknown_keys) } else { Config::parse_file(&text, path, unknown_keys) }
}

fn parse(text: &str, path: &Path, unknown_keys: UnknownKeys) -> Result<(Config, Vec<String>), ConfigError> {
    let (config, ignored) = Config::parse_file(text, path, unknown_keys)?;
    let check = || {
        relay::load_descriptors(&config.rest)?;
        relay::check_tls(&config)?;
        relay::rollout_settings(&config)
    };
    check().map_err(|error| ConfigError(format!("{}: {error:#}", path.display())))?;
    Ok((config, ignored))
}

#[derive(Debug)]
pub struct WatchedConfig {
    path: PathBuf,
    unknown_keys: UnknownKeys,
    /// Lines about keys of the content at the start.
    ignored: Vec<String>,
    /// Content of the last read, or its error.
    seen: Result<String, ConfigError>,
    /// Why that content was unusable. The files that it names may be fixed while it stays the same.
    refused: Option<ConfigError>,
    /// A difference from this may need a restart.
    started: Config,
    current: Config,
}

#[derive(Debug)]
enum Outcome {
    Refused(ConfigError),
    Good {
        config: Box<Config>,
        ignored: Vec<String>,
        /// Since the last accepted configuration.
        changes: Changes,
        pending: Vec<String>,
    },
}

impl WatchedConfig {
    /// Reads the file for the first time.
    ///
    /// # Errors
    ///
    /// As of [`load`].
    pub fn open(path: &Path, unknown_keys: UnknownKeys) -> Result<(Self, Config), ConfigError> {
        let text = Config::read(path)?;
        let (config, ignored) = parse(&text, path, unknown_keys)?;
        let (started, current) = (config.clone(), config.clone());
        let (path, seen, refused) = (path.to_owned(), Ok(text), None);
        Ok((Self { path, unknown_keys, ignored, seen, refused, started, current }, config))
    }

    /// Reads on each SIGHUP and whenever the content changes; never returns.
    pub async fn follow(self, relay: &Relay, hangups: &mut Signal) -> Infallible {
        telemetry::config_loaded(false);
        warn_of(&self.ignored);
        if let Ok(text) = &self.seen {
            relay.note_config(&self.path, text);
        }
        let events = Arc::new(Notify::new());
        let (wake, path) = (Arc::clone(&events), self.path.clone());
        let follower =
            FileFollower::start("configuration", move || fingerprint_at(&path), move |_| wake.notify_one());
        let _follower = follower
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot watch the configuration file; it is read again on SIGHUP only");
            })
            .ok();
        let mut watched = self;
        loop {
            let asked = tokio::select! {
                Some(()) = hangups.recv() => true,
                () = events.notified() => false,
            };
            // On a blocking thread: a disk may be slow, and signals must not wait for it.
            let certificates = relay.reloader.clone();
            let looked = tokio::task::spawn_blocking(move || {
                if asked {
                    // Each set logs its own result.
                    certificates.reload_now();
                }
                let outcome = watched.look(asked);
                (watched, outcome)
            });
            let outcome;
            (watched, outcome) = match looked.await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::error!(%error, "the configuration file is not watched any more; this is a bug in deltafan");
                    return std::future::pending().await;
                }
            };
            if let Some(outcome) = outcome {
                match (&outcome, &watched.seen) {
                    (Outcome::Good { .. }, Ok(text)) => relay.note_config(&watched.path, text),
                    _ => relay.note_refused_config(),
                }
                take(outcome, relay);
            }
        }
    }

    /// Reads the file, and the files that it names if those were at fault. `None` without news and without
    /// SIGHUP.
    fn look(&mut self, asked: bool) -> Option<Outcome> {
        let read = Config::read(&self.path);
        let is_new = read != self.seen || asked;
        if !is_new && self.refused.is_none() {
            return None;
        }
        self.seen = read;
        let parsed = self.seen.clone().and_then(|text| parse(&text, &self.path, self.unknown_keys));
        let before = std::mem::replace(&mut self.refused, parsed.as_ref().err().cloned());
        Some(match parsed {
            // Logged already.
            Err(error) if !is_new && before.as_ref() == Some(&error) => return None,
            Err(error) => Outcome::Refused(error),
            Ok((config, ignored)) => {
                let changes = config::diff(&self.current, &config);
                let pending = config::diff(&self.started, &config).restart;
                self.current = config.clone();
                Outcome::Good { config: Box::new(config), ignored, changes, pending }
            }
        })
    }
}

fn warn_of(ignored: &[String]) {
    for line in ignored {
        tracing::warn!("ignored (--allow-unknown-keys): {line}");
    }
}

fn take(outcome: Outcome, relay: &Relay) {
    match outcome {
        Outcome::Refused(ConfigError(text)) => {
            telemetry::config_reloaded(ReloadResult::Refused, false);
            for line in text.lines() {
                tracing::warn!("{line}");
            }
            tracing::warn!("new configuration rejected; keeping the running one");
        }
        Outcome::Good { config, ignored, changes, pending } => {
            warn_of(&ignored);
            let result = match changes.is_nothing() {
                true => ReloadResult::Unchanged,
                false => ReloadResult::Applied,
            };
            if !changes.live.is_empty() {
                relay.apply(&config, &changes);
            }
            telemetry::config_reloaded(result, !pending.is_empty());
            tracing::info!(changed = changes.live.join(", "), "configuration reloaded");
            for key in pending {
                tracing::warn!(key, "this change of the configuration needs a restart");
            }
        }
    }
}
