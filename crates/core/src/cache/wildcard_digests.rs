//! Digests of wildcard sets that state-of-the-world clients name when they return.
//!
//! Owns how many are remembered per store. A client names its last accepted state by digest (`version_info`,
//! R-Relay-11). [`EarlierStates`] says when the set had it, so what went since. [`DoubtedStates`] has digests
//! whose clients may hold something else.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::Generation;

/// Remembered states, at most 4 KiB per store: two minutes of clusters that change each second.
const EARLIER_STATES: usize = 128;

/// The newest states before the current one.
///
/// Example: the set is `{a, b}` up to generation 4, and `{a, c}` up to 9. A client with the digest of the first
/// is at 4: it is sent `a`, `c` and, until its routes have left it, `b`.
#[derive(Debug, Default)]
pub(super) struct EarlierStates(Mutex<VecDeque<(u128, Generation)>>);

impl EarlierStates {
    /// Records that the set had this digest up to `until`.
    pub(super) fn record(&self, digest: u128, until: Generation) {
        let mut states = self.0.lock();
        if states.len() == EARLIER_STATES {
            states.pop_front();
        }
        states.push_back((digest, until));
    }

    /// Last generation at which an earlier set had this digest.
    pub(super) fn find(&self, digest: u128) -> Option<Generation> {
        self.0.lock().iter().rev().find(|(earlier, _)| *earlier == digest).map(|(_, until)| *until)
    }
}

/// Remembered states, at most 1 KiB per store.
const DOUBTED_STATES: usize = 64;

/// States of clients that rejected a later one. An Envoy applies the good part of a rejected response, but
/// names the state before it.
///
/// Example: an Envoy accepted `{a: 1}` and rejected `{a: 2, b}`, of which it runs `a: 2`. The control plane
/// goes back to `{a: 1}` while it is away. It returns with the digest of `{a: 1}`, and must be sent that
/// nevertheless.
#[derive(Debug, Default)]
pub(super) struct DoubtedStates(Mutex<VecDeque<u128>>);

impl DoubtedStates {
    pub(super) fn record(&self, digest: u128) {
        let mut states = self.0.lock();
        // A fleet rejects together: most were recorded just now.
        if states.back() == Some(&digest) {
            return;
        }
        states.retain(|other| *other != digest);
        if states.len() == DOUBTED_STATES {
            states.pop_front();
        }
        states.push_back(digest);
    }

    pub(super) fn contains(&self, digest: u128) -> bool {
        self.0.lock().contains(&digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_earlier_states_are_remembered_each_with_its_last_generation() {
        let (states, mut last) = (EarlierStates::default(), Generation::ZERO);
        let mut at = Vec::new();
        for number in 0..=EARLIER_STATES {
            last = last.next();
            at.push(last);
            states.record(number as u128, last);
        }
        assert_eq!(states.find(0), None);
        assert_eq!(states.find(1), Some(at[1]));
        last = last.next();
        states.record(7, last);
        assert_eq!(states.find(7), Some(last));
    }

    #[test]
    fn the_newest_doubted_states_are_remembered() {
        let states = DoubtedStates::default();
        (0..=DOUBTED_STATES as u128).for_each(|digest| states.record(digest));
        assert!(!states.contains(0) && states.contains(1));
        states.record(1);
        states.record(0);
        assert!(states.contains(0) && states.contains(1) && !states.contains(2));
    }
}
