//! Newest rejections, by client and type, and log lines about them.
//!
//! Owns which are remembered: a pool bounds them, and a peer at its share evicts its own. Owns also which log lines
//! are due: one for all clients that reject a version. Time is an argument.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::identity::Peer;
use crate::pool::{Pool, Share, Tenant};
use crate::resource::{Name, TypeUrl};
use crate::subscription::{Client, Delivery};
use crate::telemetry::LogThrottle;

/// Bytes of all.
const BYTES: usize = 8 << 20;
/// Bytes of one beside its texts.
const OWN_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Nack {
    /// Record of its stream.
    pub(super) id: u64,
    pub(super) client: Arc<Client>,
    pub(super) peer: Arc<Peer>,
    pub(super) type_url: TypeUrl,
    /// With the time of the rejection.
    pub(super) delivery: Delivery,
    pub(super) code: i32,
    pub(super) text: Arc<str>,
    /// Names changed since the last ACK, some of many; `None` if everything was new.
    pub(super) changed: Option<Vec<Name>>,
}

impl Nack {
    fn bytes(&self) -> usize {
        let client = &*self.client;
        let names = self.changed.iter().flatten().map(|name| name.as_str().len()).sum::<usize>();
        let texts = [&client.node_id, &client.cluster, &client.user_agent].map(String::len);
        let own = self.type_url.as_str().len() + self.text.len() + self.delivery.version.len();
        OWN_BYTES + names + texts.iter().sum::<usize>() + own + self.peer.certificate_bytes()
    }

    /// Version that is rejected; its text, if the control plane gives no versions.
    fn version(&self) -> (&TypeUrl, &str, &str) {
        let version = &*self.delivery.version;
        (&self.type_url, version, if version.is_empty() { &self.text } else { "" })
    }
}

#[derive(Debug)]
pub(super) struct NackEntry {
    pub(super) newest: Arc<Nack>,
    /// Since the first that is remembered.
    pub(super) count: u64,
    key: u64,
    tenant: Tenant,
    _share: Share,
}

/// Time in which the rejections of a version come together for its line.
const GATHER: Duration = Duration::from_secs(1);
/// Versions that are logged at once.
const LOGGED: usize = 50;

/// Remembered rejections of one version, or of one text if the control plane gives no versions.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) first: Arc<Nack>,
    pub(super) clients: u64,
    /// More than clients if some asked again.
    pub(super) nacks: u64,
    is_news: bool,
}

/// Newest rejection of each client and type, up to [`BYTES`].
#[derive(Debug, Default)]
pub(super) struct Nacks {
    /// By number, the oldest first.
    entries: BTreeMap<u64, NackEntry>,
    /// By the hash of client and type.
    numbers: HashMap<u64, u64>,
    newest: u64,
    pool: Arc<Pool>,
    /// Number of the last entry that the log knows.
    logged: u64,
    /// Time of the first rejection since.
    unlogged_since: Option<Instant>,
    throttle: LogThrottle,
}

impl Nacks {
    pub(super) fn insert(&mut self, nack: Arc<Nack>) {
        self.unlogged_since.get_or_insert(nack.delivery.at);
        // A fleet may share a node ID or an address, but seldom both.
        let client = (&nack.client.node_id, nack.peer.source, nack.type_url.as_str());
        let key = self.numbers.hasher().hash_one(client);
        let before = self.numbers.get(&key).copied().and_then(|number| self.remove(number));
        let count = before.map_or(0, |before| before.count) + 1;
        let (tenant, bytes) = (Tenant::new(&nack.peer, nack.id), nack.bytes());
        let share = loop {
            if let Some(share) = self.pool.take(Some(&tenant), bytes, BYTES) {
                break share;
            }
            let is_own = |(_, entry): &(&u64, &NackEntry)| entry.tenant.account() == tenant.account();
            let oldest = self.entries.iter().find(is_own).or_else(|| self.entries.first_key_value());
            let Some(oldest) = oldest.map(|(number, _)| *number) else { return };
            self.remove(oldest);
        };
        self.newest += 1;
        self.numbers.insert(key, self.newest);
        self.entries.insert(self.newest, NackEntry { newest: nack, count, key, tenant, _share: share });
    }

    fn remove(&mut self, number: u64) -> Option<NackEntry> {
        let entry = self.entries.remove(&number)?;
        self.numbers.remove(&entry.key);
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries numbered below `before`, newest first.
    pub(super) fn before(&self, before: u64) -> impl Iterator<Item = (u64, &NackEntry)> {
        self.entries.range(..before).rev().map(|(number, entry)| (*number, entry))
    }

    /// Versions that were rejected since the last lines, at most every 30 s. Those of many clients come first.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Rejected> {
        let is_due = self.unlogged_since.is_some_and(|since| now >= since + GATHER);
        if !is_due || self.throttle.allow((), now).is_none() {
            return Vec::new();
        }
        self.unlogged_since = None;
        let logged = std::mem::replace(&mut self.logged, self.newest);
        let mut versions = BTreeMap::new();
        for (number, NackEntry { newest, count, .. }) in &self.entries {
            let first = || Rejected { first: Arc::clone(newest), clients: 0, nacks: 0, is_news: false };
            let of = versions.entry(newest.version()).or_insert_with(first);
            of.clients += 1;
            of.nacks += count;
            of.is_news |= *number > logged;
        }
        let mut due: Vec<_> = versions.into_values().filter(|of| of.is_news).collect();
        due.sort_by_key(|of| Reverse(of.clients));
        due.truncate(LOGGED);
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cache::Generation;
    use crate::identity::Source;
    use crate::resource::Kind;

    fn nack(node_id: &str, text: &str) -> Arc<Nack> {
        nack_from(Source::Unix, node_id, text)
    }

    fn nack_from(source: Source, node_id: &str, text: &str) -> Arc<Nack> {
        let client = Client { node_id: node_id.to_owned(), ..Client::default() };
        let delivery = Delivery { version: "7".into(), generation: Generation::from(7), at: Instant::now() };
        Arc::new(Nack {
            // Of a stream of its own.
            id: node_id.parse().unwrap_or(1),
            client: Arc::new(client),
            peer: Arc::new(Peer::unproven(source)),
            type_url: TypeUrl::from(Kind::Cluster),
            delivery,
            code: 13,
            text: text.into(),
            changed: None,
        })
    }

    fn texts(nacks: &Nacks) -> Vec<&str> {
        nacks.before(u64::MAX).map(|(_, entry)| &*entry.newest.text).collect()
    }

    #[test]
    fn the_newest_of_a_client_and_type_is_kept() {
        let mut nacks = Nacks::default();
        for (node_id, text) in [("a", "1"), ("b", "2"), ("a", "3"), ("", "4"), ("", "5")] {
            nacks.insert(nack(node_id, text));
        }
        assert_eq!(texts(&nacks), ["5", "3", "2"]);
        assert_eq!(nacks.before(u64::MAX).map(|(_, entry)| entry.count).collect::<Vec<_>>(), [2, 2, 1]);
        let (number, _) = nacks.before(u64::MAX).nth(1).unwrap();
        assert_eq!(nacks.before(number).count(), 1, "the page after it");
    }

    #[test]
    fn they_are_bounded_in_bytes() {
        let mut nacks = Nacks::default();
        for text in ["", &"x".repeat(500)] {
            (0..20_000).for_each(|number| {
                nacks.insert(nack(&number.to_string(), text));
            });
            assert!(
                nacks.pool.taken() <= BYTES && nacks.len() > 3_000,
                "{} {}",
                nacks.pool.taken(),
                nacks.len()
            );
            assert_eq!(nacks.numbers.len(), nacks.len());
        }
    }

    fn address(last: u8) -> Source {
        Source::Ip([192, 0, 2, last].into())
    }

    #[test]
    fn clients_with_one_node_id_are_told_apart_by_their_addresses() {
        let mut nacks = Nacks::default();
        [1, 2, 1].into_iter().for_each(|last| {
            nacks.insert(nack_from(address(last), "a", ""));
        });
        assert_eq!(nacks.before(u64::MAX).map(|(_, entry)| entry.count).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_peer_that_makes_up_names_pushes_out_its_own() {
        let mut nacks = Nacks::default();
        nacks.insert(nack_from(address(1), "honest", ""));
        let flood = |nacks: &mut Nacks| {
            (0..30_000).for_each(|number: usize| {
                nacks.insert(nack_from(address(2), &number.to_string(), ""));
            });
        };
        flood(&mut nacks);
        (3..100).for_each(|last| {
            nacks.insert(nack_from(address(last), "honest", ""));
        });
        flood(&mut nacks);
        let honest = nacks.before(u64::MAX).filter(|(_, entry)| entry.newest.client.node_id == "honest");
        assert_eq!(honest.count(), 98);
    }

    /// A rejection by this client, `seconds` after the start.
    fn rejection(client: usize, version: &str, text: &str, at: Instant) -> Arc<Nack> {
        let mut nack = Arc::into_inner(nack(&client.to_string(), text)).unwrap();
        nack.delivery = Delivery { version: version.into(), at, ..nack.delivery };
        Arc::new(nack)
    }

    #[test]
    fn a_fleet_that_rejects_a_version_has_one_line() {
        let (mut nacks, start) = (Nacks::default(), Instant::now());
        (0..2_000).for_each(|at| nacks.insert(rejection(at % 1_988, "17", "no", start)));
        assert_eq!(nacks.due(start).len(), 0, "it is given a moment to come together");
        let lines = nacks.due(start + GATHER);
        assert_eq!(lines.iter().map(|line| (line.clients, line.nacks)).collect::<Vec<_>>(), [(1_988, 2_000)]);
        // Stragglers are counted in the next line, which is not due at once.
        let late = start + Duration::from_secs(5);
        nacks.insert(rejection(1_988, "17", "no", late));
        assert!(nacks.due(late + GATHER).is_empty());
        let lines = nacks.due(late + LogThrottle::INTERVAL);
        assert_eq!(lines.iter().map(|line| line.clients).collect::<Vec<_>>(), [1_989]);
        assert!(nacks.due(late + 10 * LogThrottle::INTERVAL).is_empty(), "nothing new");
        nacks.insert(rejection(0, "18", "no", late));
        let lines = nacks.due(late + 10 * LogThrottle::INTERVAL);
        assert_eq!(lines.iter().map(|line| line.clients).collect::<Vec<_>>(), [1], "of the new version only");
    }

    #[test]
    fn versions_and_texts_are_told_apart() {
        let (mut nacks, start) = (Nacks::default(), Instant::now());
        // With a version, that says what was rejected.
        let rejected =
            [("17", "no"), ("17", "neither"), ("18", "no"), ("", "no"), ("", "neither"), ("", "no")];
        for (client, (version, text)) in rejected.into_iter().enumerate() {
            nacks.insert(rejection(client, version, text, start));
        }
        let clients: Vec<u64> = nacks.due(start + GATHER).iter().map(|line| line.clients).collect();
        assert_eq!(clients, [2, 2, 1, 1]);
    }

    #[test]
    fn clients_that_make_up_texts_spend_a_budget() {
        let (mut nacks, start) = (Nacks::default(), Instant::now());
        (0..10_000).for_each(|client| nacks.insert(rejection(client, "", &client.to_string(), start)));
        let due = |nacks: &mut Nacks, seconds| nacks.due(start + Duration::from_secs(seconds)).len();
        assert_eq!([1, 2, 40].map(|seconds| due(&mut nacks, seconds)), [LOGGED, 0, 0]);
    }
}
