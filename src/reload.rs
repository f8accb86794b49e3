//! The configuration file, followed while the relay runs.
//!
//! Owns when it is read again (SIGHUP, a change of what it holds) and what is said about it. A file that cannot be used
//! changes nothing. What may change while the relay runs is handed to [`Relay::apply`]; the rest is named, and takes
//! effect with the next start. Knows no key: [`config::diff`] does.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::config::{self, Changes, Config, ConfigError};
use crate::lookout::{Lookout, Places};
use crate::relay::{self, Relay};
use crate::telemetry::{self, ReloadResult};

/// It has been left alone for so long when the file is read.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// But it is not waited longer than this for it to become quiet.
const DEBOUNCE_MAX: Duration = Duration::from_secs(1);
/// The file is read this often without any event.
const POLL: Duration = Duration::from_secs(10);

/// Why a file cannot be used. Prints one `FILE:LINE: ...` per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(String);

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

impl From<ConfigError> for LoadError {
    fn from(errors: ConfigError) -> Self {
        Self(errors.to_string())
    }
}

impl LoadError {
    fn of(path: &Path, error: &anyhow::Error) -> Self {
        Self(format!("{}: {error:#}", path.display()))
    }
}

/// Reads a configuration, and what it points at, as far as that can be judged before anything runs.
pub fn load(path: &Path) -> Result<Config, LoadError> {
    parse(&Config::read(path)?, path)
}

fn parse(text: &str, path: &Path) -> Result<Config, LoadError> {
    let config = Config::parse_file(text, path)?;
    relay::load_descriptors(&config.rest).map_err(|error| LoadError::of(path, &error.into()))?;
    relay::check_tls(&config).map_err(|error| LoadError::of(path, &error))?;
    Ok(config)
}

/// The file of a relay that runs.
#[derive(Debug)]
pub struct Followed {
    path: PathBuf,
    /// What it held when it was last looked at, or why that could not be read.
    seen: Result<String, LoadError>,
    /// Why that could not be used. What it points at may be mended while the file stays as it is.
    refused: Option<LoadError>,
    /// What the relay was started with: what needs a restart differs from this.
    started: Config,
    /// What was last taken over.
    current: Config,
}

/// Outcome of a look.
#[derive(Debug)]
enum Outcome {
    Refused(LoadError),
    Good {
        config: Box<Config>,
        /// Since the last time.
        changes: Changes,
        /// What it holds, now or since an earlier time, that is not in force.
        pending: Vec<String>,
    },
}

impl Followed {
    /// Reads the file for the first time.
    pub fn open(path: &Path) -> Result<(Self, Config), LoadError> {
        let text = Config::read(path)?;
        let config = parse(&text, path)?;
        let (started, current) = (config.clone(), config.clone());
        Ok((Self { path: path.to_owned(), seen: Ok(text), refused: None, started, current }, config))
    }

    /// Reads it again with each hang-up, and whenever it holds something else, for as long as it is awaited.
    pub async fn follow(self, relay: &Relay, hangups: &mut Signal) -> Infallible {
        telemetry::config_loaded();
        let events = Arc::new(Notify::new());
        let wake = Arc::clone(&events);
        let mut lookout = Lookout::new("the configuration", move || wake.notify_one());
        let (mut followed, mut asked) = (self, false);
        loop {
            // On another thread: a file may be on a disk that takes its time, and signals may not wait for that.
            let certificates = relay.reloader().clone();
            let looked = tokio::task::spawn_blocking(move || {
                if asked {
                    // Each says itself what came of it.
                    certificates.reload_now();
                }
                lookout.renew(|| followed.places());
                let outcome = followed.look(asked);
                (lookout, followed, outcome)
            });
            let outcome;
            (lookout, followed, outcome) = match looked.await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::error!(%error, "the configuration is not followed any more, which is a fault of deltafan");
                    return std::future::pending().await;
                }
            };
            if let Some(outcome) = outcome {
                take(outcome, relay);
            }
            asked = tokio::select! {
                Some(()) = hangups.recv() => true,
                () = settled(&events) => false,
                () = sleep(POLL) => false,
            };
        }
    }

    fn places(&self) -> Places {
        let mut places = Places::default();
        places.add(&self.path);
        places
    }

    /// Reads the file, and what it points at where that was of no use. `None` where nothing is new and nobody asked.
    fn look(&mut self, asked: bool) -> Option<Outcome> {
        let read = Config::read(&self.path).map_err(LoadError::from);
        let is_new = read != self.seen || asked;
        if !is_new && self.refused.is_none() {
            return None;
        }
        self.seen = read;
        let parsed = self.seen.clone().and_then(|text| parse(&text, &self.path));
        let before = std::mem::replace(&mut self.refused, parsed.as_ref().err().cloned());
        Some(match parsed {
            // It was said already.
            Err(error) if !is_new && before.as_ref() == Some(&error) => return None,
            Err(error) => Outcome::Refused(error),
            Ok(config) => {
                let changes = config::diff(&self.current, &config);
                let pending = config::diff(&self.started, &config).restart;
                self.current = config.clone();
                Outcome::Good { config: Box::new(config), changes, pending }
            }
        })
    }
}

/// Waits for a burst of events to end.
async fn settled(events: &Notify) {
    events.notified().await;
    let deadline = Instant::now() + DEBOUNCE_MAX;
    while let Ok(Ok(())) = timeout_at(deadline, timeout(DEBOUNCE, events.notified())).await {}
}

/// Puts in force what can be, and says what came of it.
fn take(outcome: Outcome, relay: &Relay) {
    match outcome {
        Outcome::Refused(LoadError(text)) => {
            telemetry::config_reloaded(ReloadResult::Refused, false);
            for line in text.lines() {
                tracing::warn!("{line}");
            }
            tracing::warn!(
                "the changed configuration is wrong and changes nothing; what was in force stays in force"
            );
        }
        Outcome::Good { config, changes, pending } => {
            let result = match changes.is_nothing() {
                true => ReloadResult::Unchanged,
                false => ReloadResult::Applied,
            };
            if !changes.live.is_empty() {
                relay.apply(&config, &changes);
            }
            telemetry::config_reloaded(result, !pending.is_empty());
            tracing::info!(changed = changes.live.join(", "), "the configuration was read again");
            for key in pending {
                tracing::warn!(key, "this change of the configuration needs a restart");
            }
        }
    }
}
