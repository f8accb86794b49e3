//! Rules that the stores of a relay keep at any moment, be it that no client is told of it.
//!
//! Owns what has to hold of a store after each turn of its relay. Judges by what arrived there and by the time line of the
//! origin.

use deltafan::cache::{Snapshot, VisibleState};
use deltafan::resource::Kind;

use super::truth::{TYPES, at_of};
use super::world::World;
use crate::common::check_totals;
use deltafan_test_support::wire::{body, type_url};

impl World {
    /// Looks at each store of a relay that has changed since the last look.
    pub(crate) fn check_stores(&mut self, relay: usize) {
        if self.relays[relay].paused.is_some() {
            return;
        }
        let types = self.relays[relay].cache.types();
        for of in types.into_iter().filter(|of| of.type_url().kind() != Kind::Other) {
            let (at, snapshot) = (at_of(of.type_url().as_str()), of.snapshot());
            if self.looked.insert((relay, at), snapshot.generation()) != Some(snapshot.generation()) {
                check_totals(&snapshot);
                self.check_members(relay, at, &snapshot);
                self.check_gone(relay, at, &snapshot, |name| of.wants(name));
            }
        }
    }

    /// A member came with the wildcard: what came only because it was asked for by name is none.
    fn check_members(&self, relay: usize, at: usize, snapshot: &Snapshot) {
        for member in snapshot.members() {
            let name = member.name().as_str();
            let (_, text) = body(member.body(), &type_url(TYPES[at]));
            let came = self.seen[relay].came_by_wildcard(at, name, &text);
            assert!(came, "LEAK: relay {relay} shows {name} of {} as a member: {text}", TYPES[at]);
        }
    }

    /// A name of which the relay heard that it is there is not shown as gone while it is there. Of a relay behind another the
    /// origin is that one; and resources with a time to live may end meanwhile.
    fn check_gone(&self, relay: usize, at: usize, snapshot: &Snapshot, is_wanted: impl Fn(&str) -> bool) {
        if (relay > 0 && self.plan.chain) || self.plan.ttl.is_some() {
            return;
        }
        let truth = self.truth(relay);
        for entry in snapshot.entries().filter(|entry| matches!(entry.by_name(), VisibleState::Absent)) {
            let name = entry.name().as_str();
            let since = truth.present_since(at, name).filter(|_| is_wanted(name));
            let knew = since.is_some_and(|since| self.seen[relay].knows_of(truth, at, name, since, self.now));
            assert!(!knew, "GONE: relay {relay} shows no {name} of {}, which the origin has", TYPES[at]);
        }
    }
}
