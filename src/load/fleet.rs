//! One client of a load. It connects again when its stream ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::measures::{Key, Measures, NameKey};
use super::settings::Load;
use crate::cache::Protocol;
use crate::client::{AdsStream, Asker, Ended, Found, Update};
use crate::resource::TypeUrl;
use crate::upstream::Backoff;

/// Waits between two connections are up to the first at first, and up to the second at last.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

#[derive(Clone, Copy)]
struct HeldVersion {
    key: Key,
    /// Number of the change that brought it.
    change: u64,
}

/// A client.
pub(super) struct Member {
    of: Arc<Load>,
    asker: Asker,
    measures: Arc<Mutex<Measures>>,
    /// Time of the first response on the stream that is open.
    answered: Option<Instant>,
    /// Whether there was a response on any stream.
    was_answered: bool,
    /// Version that the client has on this stream of each name; of each type, in state of the world.
    held: HashMap<NameKey, HeldVersion, foldhash::fast::RandomState>,
}

impl Member {
    pub(super) fn new(of: &Arc<Load>, number: usize, measures: Arc<Mutex<Measures>>) -> Self {
        let asker = of.asker.numbered(number);
        let held = HashMap::default();
        Self { of: Arc::clone(of), asker, measures, answered: None, was_answered: false, held }
    }

    /// Lives until it is dropped.
    pub(super) async fn live(mut self) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let ended = match self.connect().await {
                Err(ended) => ended,
                Ok(never) => match never {},
            };
            let had_response = self.answered.take().is_some();
            if had_response {
                backoff.reset();
            }
            let cause = ended.to_string();
            let explained = ended.explain(self.of.transport()).to_string();
            self.measures.lock().ended(had_response, cause, explained);
            let wait = backoff.next(&mut rand::rng());
            tokio::time::sleep(wait).await;
        }
    }

    async fn connect(&mut self) -> Result<std::convert::Infallible, Ended> {
        let begun = Instant::now();
        self.held.clear();
        let channel = self.of.server.connect().await?;
        self.measures.lock().connected(begun.elapsed());
        let subscriptions = self.of.asked.clone();
        let mut stream =
            AdsStream::open(channel, self.of.protocol, &self.asker, subscriptions, &HashMap::new());
        loop {
            let message = stream.message().await?;
            // Before anything is made of it: that takes time of this process.
            let now = Instant::now();
            let bytes = message.len();
            let update = stream.take(message)?;
            let versions = self.versions(&update);
            let mut measures = self.measures.lock();
            let since = *self.answered.get_or_insert_with(|| {
                let is_first = !std::mem::replace(&mut self.was_answered, true);
                measures.answered_after(now.saturating_duration_since(begun), is_first);
                now
            });
            measures.response(bytes, now);
            for (name, key) in versions {
                let held = self.held.get(&name).copied();
                if held.is_none_or(|held| held.key != key) {
                    let change = measures.version(name, key, held.map(|held| held.change), since, now);
                    self.held.insert(name, HeldVersion { key, change });
                }
            }
        }
    }

    /// Versions in a response, each with what it is the version of.
    fn versions(&self, update: &Update) -> Vec<(NameKey, Key)> {
        let hash = |name: &str, version: &str, body: &[u8]| {
            (key(&update.type_url, name, "", &[]), key(&update.type_url, name, version, body))
        };
        match self.of.protocol {
            Protocol::Delta => {
                let of = |(name, Found { version, body, .. }): &(String, Found)| {
                    // Without a version the content is one.
                    hash(name, version, if version.is_empty() { body } else { &[] })
                };
                update.found.iter().map(of).collect()
            }
            Protocol::Sotw => vec![hash("", &update.version, &[])],
        }
    }
}

fn key(type_url: &TypeUrl, name: &str, version: &str, body: &[u8]) -> Key {
    let mut hasher = Xxh3::new();
    for part in [type_url.as_str().as_bytes(), name.as_bytes(), version.as_bytes(), body] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.digest()
}
