//! States that clients name and may hold more than, by their digests.
//!
//! Owns how many are remembered. An Envoy that rejects a response applies what is good in it, and names the state that it accepted before
//! as its version. When it comes back on another stream, that version does not say what it holds.
//!
//! Example: an Envoy accepted `{a: 1}` and rejected `{a: 2, b}`, of which it runs `a: 2`. The control plane goes back to `{a: 1}` while
//! the Envoy is away. It comes back with the digest of `{a: 1}`, and has to be sent that nevertheless.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// How many are remembered, the newest. At most 1 KiB for each store.
const REMEMBERED: usize = 64;

/// States that were the last accepted ones of clients which rejected another.
#[derive(Debug, Default)]
pub(super) struct DoubtedStates(Mutex<VecDeque<u128>>);

impl DoubtedStates {
    pub(super) fn note(&self, digest: u128) {
        let mut states = self.0.lock();
        // A fleet rejects as one: most have been noted just now.
        if states.back() == Some(&digest) {
            return;
        }
        states.retain(|other| *other != digest);
        if states.len() == REMEMBERED {
            states.pop_front();
        }
        states.push_back(digest);
    }

    pub(super) fn has(&self, digest: u128) -> bool {
        self.0.lock().contains(&digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_states_are_remembered() {
        let states = DoubtedStates::default();
        (0..=REMEMBERED as u128).for_each(|digest| states.note(digest));
        assert!(!states.has(0) && states.has(1));
        states.note(1);
        states.note(0);
        assert!(states.has(0) && states.has(1) && !states.has(2));
    }
}
