//! Earlier states of a wildcard set, by their digests.
//!
//! Owns how many are remembered. A state-of-the-world client that comes back names the state that it accepted last by its digest
//! (`version_info`, R-Relay-11). Knowing when that was the state, the relay knows what the client holds, and what has gone since.
//!
//! Example: the set is `{a, b}` up to generation 4, and `{a, c}` up to 9. A client that brings the digest of the first stands at 4:
//! it is sent `a`, `c` and, until its routes have left it, `b`.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::Generation;

/// How many are remembered: of clusters that change each second, those of two minutes. At most 4 KiB for each store.
const REMEMBERED: usize = 128;

/// The newest states before the one in force.
#[derive(Debug, Default)]
pub(super) struct EarlierStates(Mutex<VecDeque<(u128, Generation)>>);

impl EarlierStates {
    /// The set with this digest was the state until this generation, the last of it.
    pub(super) fn note(&self, digest: u128, until: Generation) {
        let mut states = self.0.lock();
        if states.len() == REMEMBERED {
            states.pop_front();
        }
        states.push_back((digest, until));
    }

    /// The last generation at which the set had this digest before the one that it has.
    pub(super) fn find(&self, digest: u128) -> Option<Generation> {
        self.0.lock().iter().rev().find(|(earlier, _)| *earlier == digest).map(|(_, until)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_states_are_remembered_each_with_its_last_generation() {
        let (states, mut last) = (EarlierStates::default(), Generation::ZERO);
        let mut at = Vec::new();
        for number in 0..=REMEMBERED {
            last = last.next();
            at.push(last);
            states.note(number as u128, last);
        }
        assert_eq!(states.find(0), None);
        assert_eq!(states.find(1), Some(at[1]));
        last = last.next();
        states.note(7, last);
        assert_eq!(states.find(7), Some(last));
    }
}
