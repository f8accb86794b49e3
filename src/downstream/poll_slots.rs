//! Number of polls that each address holds open.

use std::sync::Arc;

use foldhash::HashMap;
use parking_lot::Mutex;

use crate::identity::Source;

/// Slots in use, by peer. A peer without any costs nothing.
#[derive(Debug, Default)]
pub(super) struct PollSlots {
    counts: Mutex<HashMap<Source, usize>>,
}

impl PollSlots {
    /// Takes a slot until it is dropped; `None` if the peer has `limit` already.
    pub(super) fn acquire(self: &Arc<Self>, peer: Source, limit: usize) -> Option<PollSlot> {
        let mut counts = self.counts.lock();
        let count = counts.entry(peer).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(PollSlot { of: Arc::clone(self), peer })
    }
}

/// Slot of a peer; given back on drop.
#[derive(Debug)]
pub(super) struct PollSlot {
    of: Arc<PollSlots>,
    peer: Source,
}

impl Drop for PollSlot {
    fn drop(&mut self) {
        let mut counts = self.of.counts.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_peer_has_a_limit_of_slots_and_leaves_nothing_behind() {
        let slots = Arc::<PollSlots>::default();
        let [a, b] = [1, 2].map(|last| Source::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))));
        let slot = [slots.acquire(a, 2), slots.acquire(a, 2)];
        assert!(slot.iter().all(Option::is_some));
        assert!(slots.acquire(a, 2).is_none());
        assert!(slots.acquire(a, 1).is_none(), "a limit that was lowered takes no slot away");
        let other = slots.acquire(b, 2);
        assert!(other.is_some(), "one peer's polls are not another's");
        drop(slot);
        assert!(slots.acquire(a, 2).is_some());
        drop(other);
        assert!(slots.counts.lock().is_empty());
    }
}
