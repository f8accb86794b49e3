//! Newest rejections, by client and type, and log lines about them.
//!
//! Owns which are remembered: a pool bounds them, and a peer at its share evicts its own. Owns also which log line
//! is due: one for all clients that reject a version. Time is an argument.

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

    /// Whether both are of one version, or have one text if the control plane gives no versions.
    fn is_of_version_of(&self, other: &Self) -> bool {
        let (mine, its) = (&self.delivery.version, &other.delivery.version);
        self.type_url == other.type_url && mine == its && (!its.is_empty() || self.text == other.text)
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

/// Newest rejection of each client and type, up to [`BYTES`].
#[derive(Debug, Default)]
pub(super) struct Nacks {
    /// By number, the oldest first.
    entries: BTreeMap<u64, NackEntry>,
    /// By the hash of client and type.
    numbers: HashMap<u64, u64>,
    newest: u64,
    pool: Arc<Pool>,
}

impl Nacks {
    /// Adds a rejection. Returns whether its client, on any stream, had not rejected this version last.
    pub(super) fn insert(&mut self, nack: Arc<Nack>) -> bool {
        // A fleet may share a node ID or an address, but seldom both.
        let client = (&nack.client.node_id, nack.peer.source, nack.type_url.as_str());
        let key = self.numbers.hasher().hash_one(client);
        let before = self.numbers.get(&key).copied().and_then(|number| self.remove(number));
        let is_new = before.as_ref().is_none_or(|before| !before.newest.is_of_version_of(&nack));
        let count = before.map_or(0, |before| before.count) + 1;
        let (tenant, bytes) = (Tenant::new(&nack.peer, nack.id), nack.bytes());
        let share = loop {
            if let Some(share) = self.pool.take(Some(&tenant), bytes, BYTES) {
                break share;
            }
            let is_own = |(_, entry): &(&u64, &NackEntry)| entry.tenant.account() == tenant.account();
            let oldest = self.entries.iter().find(is_own).or_else(|| self.entries.first_key_value());
            let Some(oldest) = oldest.map(|(number, _)| *number) else { return is_new };
            self.remove(oldest);
        };
        self.newest += 1;
        self.numbers.insert(key, self.newest);
        self.entries.insert(self.newest, NackEntry { newest: nack, count, key, tenant, _share: share });
        is_new
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
}

const VERSIONS: usize = 64;
/// Time without rejections after which a version is dropped.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// From the first rejection of a version to its first line.
const FIRST_LINE: Duration = Duration::from_secs(1);

/// Rejections of one version, or of one text if the control plane gives no versions.
#[derive(Clone, Debug)]
pub(super) struct Rejected {
    pub(super) first: Arc<Nack>,
    pub(super) clients: u64,
    /// More than clients if some asked again.
    pub(super) nacks: u64,
    has_news: bool,
    newest: Instant,
    due: Instant,
}

#[derive(Debug)]
pub(super) struct RejectionLog {
    /// Few at any time: a scan costs less than a table.
    rejected: Vec<Rejected>,
    throttle: LogThrottle,
}

impl Default for RejectionLog {
    fn default() -> Self {
        Self { rejected: Vec::new(), throttle: LogThrottle::burst() }
    }
}

impl RejectionLog {
    /// Notes a rejection. `is_new`: its client had not rejected this version.
    pub(super) fn note(&mut self, nack: &Arc<Nack>, is_new: bool, now: Instant) {
        if let Some(known) = self.rejected.iter_mut().find(|rejected| rejected.first.is_of_version_of(nack)) {
            known.clients += u64::from(is_new);
            known.nacks += 1;
            known.has_news = true;
            known.newest = now;
            return;
        }
        if self.rejected.len() == VERSIONS {
            let oldest = (0..VERSIONS).min_by_key(|at| self.rejected[*at].newest);
            oldest.into_iter().for_each(|at| drop(self.rejected.swap_remove(at)));
        }
        let (first, due) = (Arc::clone(nack), now + FIRST_LINE);
        self.rejected.push(Rejected { first, clients: 1, nacks: 1, has_news: true, newest: now, due });
    }

    pub(super) fn due(&mut self, now: Instant) -> Vec<Rejected> {
        self.rejected.retain(|rejected| rejected.has_news || now < rejected.newest + FORGOTTEN);
        let is_due = |rejected: &&mut Rejected| rejected.has_news && now >= rejected.due;
        let due =
            self.rejected.iter_mut().filter(is_due).take_while(|_| self.throttle.say((), now).is_some());
        due.map(|rejected| {
            rejected.has_news = false;
            rejected.due = now + LogThrottle::INTERVAL;
            rejected.clone()
        })
        .collect()
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

    #[test]
    fn a_version_is_new_to_a_client_once() {
        let mut nacks = Nacks::default();
        let of = |version: &str, text: &str| {
            let mut one = Arc::into_inner(nack("a", text)).unwrap();
            one.delivery.version = version.into();
            Arc::new(one)
        };
        let added =
            [("7", "no"), ("7", "never"), ("8", "no"), ("7", "no"), ("", "no"), ("", "no"), ("", "x")];
        let new = added.map(|(version, text)| nacks.insert(of(version, text)));
        assert_eq!(new, [true, false, true, true, true, false, true]);
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
}

#[cfg(test)]
mod rejection_log_tests {
    use super::*;
    use crate::cache::Generation;
    use crate::identity::{Peer, Source};
    use crate::resource::{Kind, TypeUrl};
    use crate::subscription::{Client, Delivery};

    fn nack(version: &str, text: &str) -> Arc<Nack> {
        let delivery =
            Delivery { version: version.into(), generation: Generation::from(7), at: Instant::now() };
        Arc::new(Nack {
            id: 1,
            client: Arc::new(Client::default()),
            peer: Arc::new(Peer::unproven(Source::Unix)),
            type_url: TypeUrl::from(Kind::Cluster),
            delivery,
            code: 13,
            text: text.into(),
            changed: None,
        })
    }

    #[test]
    fn a_fleet_that_rejects_a_version_has_one_line() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        (0..2_000).for_each(|at| log.note(&nack("17", "no"), (1..1_988).contains(&at), start));
        assert_eq!(log.due(start).len(), 0, "it is given a moment to come together");
        let lines = log.due(start + FIRST_LINE);
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].clients, lines[0].nacks), (1_988, 2_000));
        // Stragglers are counted in the next line, which is not due at once.
        let late = start + Duration::from_secs(5);
        log.note(&nack("17", "no"), true, late);
        assert!(log.due(late).is_empty());
        let lines = log.due(late + LogThrottle::INTERVAL);
        assert_eq!(lines.iter().map(|line| line.clients).collect::<Vec<_>>(), [1_989]);
        assert!(log.due(late + 10 * LogThrottle::INTERVAL).is_empty(), "nothing new");
    }

    #[test]
    fn versions_and_texts_are_told_apart() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        // With a version, that says what was rejected.
        for (version, text) in
            [("17", "no"), ("17", "neither"), ("18", "no"), ("", "no"), ("", "neither"), ("", "no")]
        {
            log.note(&nack(version, text), true, start);
        }
        let nacks: Vec<u64> = log.due(start + FIRST_LINE).iter().map(|line| line.nacks).collect();
        assert_eq!(nacks, [2, 1, 2, 1]);
    }

    #[test]
    fn a_client_that_makes_up_texts_spends_a_budget_and_little_memory() {
        let (mut log, start) = (RejectionLog::default(), Instant::now());
        let at = |number| start + Duration::from_micros(number);
        (0..10_000).for_each(|n| log.note(&nack("", &n.to_string()), true, at(n)));
        assert_eq!(log.rejected.len(), VERSIONS);
        let due = |log: &mut RejectionLog, seconds| log.due(start + Duration::from_secs(seconds)).len();
        assert_eq!([2, 3, 40, 41].map(|seconds| due(&mut log, seconds)), [50, 0, 14, 0]);
        assert!(log.due(at(9_999) + FORGOTTEN).is_empty() && log.rejected.is_empty(), "they are forgotten");
    }
}
