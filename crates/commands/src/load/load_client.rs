//! One client of a load. Reconnects when its stream ends.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash};
use std::sync::Arc;
use std::time::Instant;

use deltafan_transport::transfer::Transfers;
use foldhash::quality::FixedState;
use parking_lot::Mutex;

use super::Load;
use super::load_measures::{Key, Measures, NameKey};
use crate::client::{AdsStream, Asker, Ended, Update, backoff};

pub(super) struct Member {
    of: Arc<Load>,
    asker: Asker,
    measures: Arc<Mutex<Measures>>,
    /// First response on the open stream.
    answered: Option<Instant>,
    /// Whether any stream had a response.
    was_answered: bool,
    /// Version on this stream, with the number of its change.
    held: HashMap<NameKey, (Key, usize), foldhash::fast::RandomState>,
}

impl Member {
    pub(super) fn new(of: &Arc<Load>, number: usize, measures: Arc<Mutex<Measures>>) -> Self {
        let asker = of.asker.numbered(number);
        let held = HashMap::default();
        Self { of: Arc::clone(of), asker, measures, answered: None, was_answered: false, held }
    }

    /// Runs until dropped.
    pub(super) async fn live(mut self) {
        let mut backoff = backoff();
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
        let (protocol, asked) = (self.of.protocol, self.of.asked.clone());
        let (none, transfers) = (HashMap::new(), Transfers::default());
        let mut stream = AdsStream::open(channel, protocol, &self.asker, asked, none, &transfers);
        loop {
            let (update, arrived) = stream.next().await?;
            self.note(&update, begun, arrived);
        }
    }

    /// `begun` is the start of the stream's attempt.
    fn note(&mut self, update: &Update, begun: Instant, now: Instant) {
        let mut measures = self.measures.lock();
        let since = *self.answered.get_or_insert_with(|| {
            let is_first = !std::mem::replace(&mut self.was_answered, true);
            measures.answered_after(now.saturating_duration_since(begun), is_first);
            now
        });
        measures.response(update.bytes, now);
        for (name, key) in versions(update) {
            let held = self.held.get(&name).copied();
            // Removing a resource that is not held changes nothing.
            if held.and_then(|(held, _)| held) == key {
                continue;
            }
            let change = measures.version(name, key, held.map(|(_, change)| change), since, now);
            self.held.insert(name, (key, change));
        }
    }
}

/// Versions by name; in state of the world, the version of the type.
fn versions(update: &Update) -> Vec<(NameKey, Key)> {
    let name_key = |name: &str| hash((update.type_url.as_str(), name));
    if !update.is_delta {
        return vec![(name_key(""), Some(hash(&update.version)))];
    }
    let found = update.found.iter().map(|(name, found)| {
        // Without a version the content stands for it.
        let version = if found.version.is_empty() { &found.body[..] } else { found.version.as_bytes() };
        (name_key(name), Some(hash(version)))
    });
    found.chain(update.removed.iter().map(|name| (name_key(name), None))).collect()
}

/// Equal at all clients.
fn hash(of: impl Hash) -> u64 {
    FixedState::default().hash_one(of)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use deltafan_core::cache::Protocol;
    use deltafan_core::resource::{Kind, Parameters};
    use deltafan_transport::tls::options::TlsOptions;

    use super::*;
    use crate::client::{Server, Subscription};

    /// Clients of a load over delta.
    fn fleet(clients: usize) -> (Arc<Mutex<Measures>>, Vec<Member>, Instant) {
        let subscription = Subscription::new(Kind::Cluster.into(), Vec::new(), Parameters::NONE);
        let second = Duration::from_secs(1);
        let of = Arc::new(Load {
            server: Server::new("http://127.0.0.1:1".to_owned(), TlsOptions::default(), second).unwrap(),
            protocol: Protocol::Delta,
            asker: Asker::new(None, "load", None, None),
            asked: vec![subscription],
            clients,
            rate: NonZeroU32::MIN,
            patience: second,
            duration: second,
        });
        let begun = Instant::now();
        let measures = Arc::new(Mutex::new(Measures::default()));
        let members = (0..clients).map(|number| Member::new(&of, number, Arc::clone(&measures)));
        (Arc::clone(&measures), members.collect(), begun)
    }

    #[test]
    fn a_removal_is_a_change_and_so_is_the_return_of_that_version() {
        let (measures, mut members, begun) = fleet(2);
        let at = |millis| begun + Duration::from_millis(millis);
        let mut receive = |found: &[(&str, &str, &str)], removed: &[&str], first: u64| {
            for (member, late) in members.iter_mut().zip([0, 5]) {
                let update = Update::of_test(Kind::Cluster, true, found, removed);
                member.note(&update, begun, at(first + late));
            }
            let measures = measures.lock();
            (measures.changes, measures.spread.count(), measures.whole().count())
        };
        assert_eq!(receive(&[("a", "1", "")], &["never"], 0), (0, 0, 0));
        measures.lock().begin(at(10));
        assert_eq!(receive(&[], &["a"], 100), (1, 1, 1));
        assert_eq!(receive(&[], &["a", "never"], 200), (1, 1, 1), "it is gone already");
        assert_eq!(receive(&[("a", "1", "")], &[], 300), (2, 2, 2));
        assert_eq!(receive(&[], &["a"], 400), (3, 3, 3));
        assert_eq!(receive(&[("a", "2", "")], &[], 500), (4, 4, 4));
        let slowest = measures.lock().spread.max();
        assert!(slowest < Duration::from_millis(6), "{slowest:?}");
    }
}
