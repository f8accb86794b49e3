//! Newest rejections, by client and type.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;

use crate::identity::Peer;
use crate::resource::{Name, TypeUrl};
use crate::subscription::{Client, Delivery};

/// Clients and types whose newest rejection is kept.
const KEPT: usize = 10_000;
/// Bytes of all that is kept.
const BYTES: usize = 4 << 20;
/// Bytes that one takes beside its texts.
const OWN_BYTES: usize = 256;

/// Rejection of an update by a client.
#[derive(Debug)]
pub(super) struct Nack {
    /// Record of its stream.
    pub(super) id: u64,
    pub(super) client: Arc<Client>,
    pub(super) peer: Arc<Peer>,
    pub(super) type_url: TypeUrl,
    /// Response, with the time of the rejection.
    pub(super) delivery: Delivery,
    pub(super) code: i32,
    pub(super) text: Arc<str>,
    /// Names that changed since the last ACK, some of many; `None` if everything was new.
    pub(super) changed: Option<Vec<Name>>,
}

impl Nack {
    fn bytes(&self) -> usize {
        let client = &*self.client;
        let names = self.changed.iter().flatten().map(|name| name.as_str().len()).sum::<usize>();
        let texts = [&client.node_id, &client.cluster, &client.user_agent].map(String::len);
        OWN_BYTES + names + texts.iter().sum::<usize>() + self.text.len() + self.delivery.version.len()
    }

    fn key(&self) -> Key {
        // Clients without a name cannot be told from one another.
        let node_id = self.client.node_id.as_str();
        let who = if node_id.is_empty() { self.peer.to_string() } else { node_id.to_owned() };
        Key { who, type_url: self.type_url.as_str().into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    who: String,
    type_url: Box<str>,
}

/// One client and type.
#[derive(Clone, Debug)]
pub(super) struct NackEntry {
    pub(super) newest: Arc<Nack>,
    /// Rejections of this client and type since the first that is remembered.
    pub(super) count: u64,
}

/// Newest rejection of each client and type, up to [`KEPT`] and [`BYTES`]: the oldest are forgotten.
#[derive(Debug, Default)]
pub(super) struct Nacks {
    /// By number, the oldest first.
    entries: BTreeMap<u64, NackEntry>,
    numbers: HashMap<Key, u64>,
    newest: u64,
    bytes: usize,
}

impl Nacks {
    pub(super) fn insert(&mut self, nack: Arc<Nack>) {
        let key = nack.key();
        let before = self.numbers.get(&key).and_then(|number| self.entries.remove(number));
        self.bytes -= before.as_ref().map_or(0, |before| before.newest.bytes());
        self.bytes += nack.bytes();
        self.newest += 1;
        self.numbers.insert(key, self.newest);
        let count = before.map_or(0, |before| before.count) + 1;
        self.entries.insert(self.newest, NackEntry { newest: nack, count });
        while self.entries.len() > KEPT || self.bytes > BYTES {
            let Some((_, oldest)) = self.entries.pop_first() else { break };
            self.bytes -= oldest.newest.bytes();
            self.numbers.remove(&oldest.newest.key());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All with their numbers, those numbered below `before` only, the newest first.
    pub(super) fn before(&self, before: u64) -> impl Iterator<Item = (u64, &NackEntry)> {
        self.entries.range(..before).rev().map(|(number, entry)| (*number, entry))
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
        let client = Client { node_id: node_id.to_owned(), ..Client::default() };
        let delivery = Delivery { version: "7".into(), generation: Generation::from(7), at: Instant::now() };
        Arc::new(Nack {
            id: 1,
            client: Arc::new(client),
            peer: Arc::new(Peer::unproven(Source::Unix)),
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
    fn they_are_bounded_in_number_and_bytes() {
        let mut nacks = Nacks::default();
        (0..2 * KEPT).for_each(|number| nacks.insert(nack(&number.to_string(), "")));
        assert_eq!((nacks.len(), nacks.numbers.len()), (KEPT, KEPT));
        (0..2 * KEPT).for_each(|number| nacks.insert(nack(&number.to_string(), &"x".repeat(500))));
        assert!(nacks.bytes <= BYTES && nacks.len() > 4_000, "{} in {} bytes", nacks.len(), nacks.bytes);
        assert_eq!(nacks.numbers.len(), nacks.len());
    }
}
