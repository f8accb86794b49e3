//! One client of a load. Reconnects when its stream ends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use deltafan_core::cache::Protocol;
use deltafan_transport::transfer::Transfers;
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::Load;
use super::load_measures::{Key, Measures, NameKey};
use crate::client::{AdsStream, Asker, Ended, Update, backoff};

/// Resource at a client; in state of the world, a type.
#[derive(Clone, Copy)]
struct HeldVersion {
    key: Key,
    /// Number of the change that brought it.
    change: u64,
}

struct Received {
    name: NameKey,
    key: Key,
    is_removal: bool,
}

pub(super) struct Member {
    of: Arc<Load>,
    asker: Asker,
    measures: Arc<Mutex<Measures>>,
    /// First response on the open stream.
    answered: Option<Instant>,
    /// Whether any stream had a response.
    was_answered: bool,
    /// By name on this stream; by type in state of the world.
    held: HashMap<NameKey, HeldVersion, foldhash::fast::RandomState>,
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
        let (asked, none) = (self.of.asked.clone(), HashMap::new());
        let transfers = Transfers::default();
        let mut stream = AdsStream::open(channel, self.of.protocol, &self.asker, asked, &none, &transfers);
        loop {
            let (update, arrived) = stream.next().await?;
            self.note(&update, begun, arrived);
        }
    }

    /// `begun` is the start of the stream's attempt.
    fn note(&mut self, update: &Update, begun: Instant, now: Instant) {
        let received = received(self.of.protocol, update);
        let mut measures = self.measures.lock();
        let since = *self.answered.get_or_insert_with(|| {
            let is_first = !std::mem::replace(&mut self.was_answered, true);
            measures.answered_after(now.saturating_duration_since(begun), is_first);
            now
        });
        measures.response(update.bytes, now);
        for Received { name, key, is_removal } in received {
            let held = self.held.get(&name).copied();
            // Removing a resource that is not held changes nothing.
            if held.map_or(is_removal, |held| held.key == key) {
                continue;
            }
            let change = measures.version(name, key, held.map(|held| held.change), since, now);
            self.held.insert(name, HeldVersion { key, change });
        }
    }
}

fn received(protocol: Protocol, update: &Update) -> Vec<Received> {
    let type_url = update.type_url.as_str().as_bytes();
    let name_of = |name: &str| key(&[type_url, name.as_bytes()]);
    if protocol == Protocol::Sotw {
        let key = key(&[type_url, update.version.as_bytes()]);
        return vec![Received { name: name_of(""), key, is_removal: false }];
    }
    let found = update.found.iter().map(|(name, found)| {
        // Without a version the content stands for it.
        let body: &[u8] = if found.version.is_empty() { &found.body } else { &[] };
        let key = key(&[type_url, name.as_bytes(), found.version.as_bytes(), body]);
        Received { name: name_of(name), key, is_removal: false }
    });
    // Another variant may have replaced it.
    let names: HashSet<&str> = update.found.iter().map(|(name, _)| name.as_str()).collect();
    let removed = update.removed.iter().filter(|gone| !names.contains(gone.name.as_str())).map(|gone| {
        let key = key(&[type_url, gone.name.as_bytes(), b"removed"]);
        Received { name: name_of(&gone.name), key, is_removal: true }
    });
    found.chain(removed).collect()
}

fn key(parts: &[&[u8]]) -> Key {
    let mut hasher = Xxh3::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use deltafan_transport::tls::options::TlsOptions;

    use super::*;
    use crate::client::{Server, Subscription};
    use deltafan_core::resource::{Constraints, Kind, Parameters};

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

    #[test]
    fn a_variant_that_is_replaced_is_one_change() {
        let (measures, mut members, begun) = fleet(1);
        let variant = |value: u8| {
            let single = [&[10, 1, b'k', 18, 1], &[value][..]].concat();
            Constraints::parse(&[&[10, 6], &single[..]].concat()).unwrap()
        };
        measures.lock().begin(begun);
        for (value, removed) in [(b'x', None), (b'y', Some(b'x'))] {
            let mut update = Update::of_test(Kind::Cluster, true, &[("a", "1", "")], &["a"]);
            update.found[0].1.constraints = variant(value);
            update.found[0].1.version = char::from(value).to_string();
            update.removed[0].constraints = removed.and_then(variant);
            members[0].note(&update, begun, begun);
        }
        assert_eq!(measures.lock().changes, 2);
    }
}
