//! Checks of each response, and of each client once everything is said.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use deltafan::cache::Protocol;

use super::client::Client;
use super::origin::{CDS, EDS, NAMES, Origin, RDS, ROUTE, Said, Seen, TYPES};
use deltafan_test_support::wire::{Told, type_url};

impl Client {
    /// Checks a response against the origin of this moment, and takes it in.
    pub(crate) fn hear(&mut self, told: Told, origin: &Origin, now: Instant, ack_timeout: Duration) {
        let at =
            TYPES.iter().position(|short| type_url(short) == told.type_url).expect("a type it asked for");
        assert!(self.only.is_none_or(|only| only == at));
        assert!(self.types[at].requested, "it did not ask for {}", TYPES[at]);
        assert!(self.all_nonces.insert(told.nonce.clone()), "the nonce {} twice", told.nonce);
        if let Some(before) = &self.types[at].in_flight {
            let taken = before.taken.expect("nothing follows what was not taken");
            // Clusters that are gone are taken back before they are accepted (R-ADS-03); also one that came and went unsaid, and did so again.
            let subscribed = &self.types[at].subscribed;
            let is_in_order = self.only.is_none() && subscribed.wildcard && subscribed.names.is_empty();
            // A part takes nothing back. Where the limit is small, neither may one that removals do not fit into.
            let has_removals = self.protocol == Protocol::Sotw || !told.removed.is_empty();
            let takes_back = !told.nonce.ends_with('>') && (has_removals || !self.in_one_piece);
            let may_take_back = at == CDS && is_in_order && takes_back;
            let wait = if may_take_back { Duration::from_millis(200).min(ack_timeout) } else { ack_timeout };
            assert!(
                now >= taken + wait,
                "{} follows {}, which is not answered",
                told.nonce,
                before.told.nonce
            );
        }
        self.check_cause(at, origin);
        let said = &origin.said[at];
        match self.protocol {
            Protocol::Sotw if self.is_full_state(at) => self.check_full_state(at, &told, said),
            Protocol::Sotw => assert!(!told.resources.is_empty(), "an answer that says nothing"),
            Protocol::Delta => self.check_removals(at, &told, said),
        }
        if !self.is_full_state(at) {
            for (name, text) in &told.resources {
                let seen = said.seen(&self.types[at].subscribed, name);
                assert_eq!(seen, Some(Seen::Present(text)), "{name} of {}", TYPES[at]);
            }
        }
        if self.in_one_piece {
            self.check_news(at, &told, origin);
        }
        self.note_warming(at, &told, said);
        self.hold(at, &told);
        self.remember(at, told);
        self.check_route();
    }

    /// A resource that it holds is not sent again for no reason (R-SotW-08, R-SotW-25, R-Delta-12). Whole states are,
    /// endpoints behind their clusters, and now and then what was told in an earlier part of a split answer.
    fn check_news(&mut self, at: usize, told: &Told, origin: &Origin) {
        let excused = self.is_full_state(at) || (at == EDS && self.only.is_none());
        let state = &mut self.types[at];
        // A name that was asked for may be told with the whole set, and once more for itself.
        let first = std::mem::replace(&mut state.heard_at, origin.clock) <= state.asked_at;
        if excused || first {
            return state.told_at.clear();
        }
        for (name, text) in &told.resources {
            let told_at = state.told_at.insert(name.clone(), origin.clock);
            let mentioned = origin.said[at].mentioned.get(name).copied().unwrap_or_default();
            if let Some(told_at) = told_at.filter(|_| state.held.get(name) == Some(text)) {
                assert!(
                    mentioned > told_at,
                    "{name} of {} again, and nobody asked or spoke of it",
                    TYPES[at]
                );
            }
        }
    }

    /// No stream is told the same twice without cause: each thing that the origin said or that it asked for is answered
    /// by what there is to tell, in two phases or in parts, and then by nothing.
    fn check_cause(&mut self, at: usize, origin: &Origin) {
        // Endpoints follow their clusters, and with small limits each name is told by itself.
        let spoken = |at: usize| origin.said[at].spoken;
        let said = if at == EDS { spoken(EDS) + spoken(CDS) } else { spoken(at) };
        let bound = if self.in_one_piece { 4 } else { 4 + 3 * NAMES };
        let count = self.count(at, said);
        assert!(count <= bound, "{count} responses of {} though nothing happened", TYPES[at]);
    }

    /// All that is visible, and else only what it is about to lose.
    fn check_full_state(&self, at: usize, told: &Told, said: &Said) {
        let subscribed = &self.types[at].subscribed;
        let needed = self.needed(at);
        let is_unknown = said.is_unknown(subscribed, needed, self.timed);
        assert!(!is_unknown, "a full state though something is unknown");
        let listed: BTreeMap<&str, &str> =
            told.resources.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let visible = said.visible(subscribed);
        for (name, text) in &visible {
            assert_eq!(listed.get(name), Some(text), "{name} is missing or old");
        }
        for (name, text) in listed.iter().filter(|(name, _)| !visible.contains_key(*name)) {
            assert!(said.ever_said(name, text));
            let once = subscribed.wildcard && said.once_members.contains(*name);
            assert!(once || subscribed.names.contains(*name), "{name} was never its to see");
        }
    }

    fn check_removals(&self, at: usize, told: &Told, said: &Said) {
        let Some(state) = self.types.get(at) else { return };
        let subscribed = &state.subscribed;
        assert!(
            subscribed.wildcard || !told.resources.is_empty() || !told.removed.is_empty(),
            "an answer that says nothing"
        );
        for name in &told.removed {
            match said.seen(subscribed, name) {
                Some(Seen::Present(_)) => panic!("{name} exists"),
                Some(Seen::Unknown) => panic!("nothing is known of {name}"),
                Some(Seen::Absent) if said.once_members.contains(name) => {}
                Some(Seen::Absent) => assert!(state.familiar.contains(name) || state.brought.contains(name)),
                None => assert!(state.brought.contains(name), "{name} is not subscribed"),
            }
        }
    }

    /// A cluster that changes warms until its endpoints come, even if they are the same (V1).
    fn note_warming(&mut self, at: usize, told: &Told, said: &Said) {
        if self.only.is_some() {
            return;
        }
        let [clusters, endpoints, ..] = &mut self.types;
        if at == EDS {
            endpoints.warming.retain(|warming| told.resources.iter().all(|(name, _)| name != warming));
        }
        if at == CDS && !endpoints.subscribed.wildcard {
            for (name, text) in &told.resources {
                let changed = clusters.held.get(name).is_some_and(|held| held != text);
                let present = matches!(said.seen(&clusters.subscribed, name), Some(Seen::Present(_)));
                if changed && present && name.starts_with("eds") && endpoints.held.contains_key(name) {
                    endpoints.warming.insert(name.clone());
                }
            }
        }
    }

    fn hold(&mut self, at: usize, told: &Told) {
        let full_state = self.is_full_state(at);
        let state = &mut self.types[at];
        if full_state {
            state.held.clear();
            state.lingering.clear();
        }
        for (name, text) in &told.resources {
            state.held.insert(name.clone(), text.clone());
            state.resumed.remove(name);
        }
        told.removed.iter().for_each(|name| drop(state.held.remove(name)));
    }

    /// It never has a route to a cluster that it has not, or has no more (R-ADS-03).
    fn check_route(&self) {
        if !self.steady || !self.types[RDS].told {
            return;
        }
        if let Some(route) = self.types[RDS].held.get(ROUTE) {
            let cluster = route.split_once('/').unwrap().1;
            assert!(
                self.types[CDS].held.contains_key(cluster),
                "the route leads to {cluster}, which is not there"
            );
        }
    }

    /// Once everything was said and answered, it holds what its subscription shows.
    pub(crate) fn check_settled(&self, origin: &Origin) {
        for (at, state) in self.types.iter().enumerate().filter(|(_, state)| state.requested) {
            let short = TYPES[at];
            let visible = origin.said[at].visible(&state.subscribed);
            for (name, text) in &visible {
                let held = state.held.get(*name).unwrap_or_else(|| {
                    panic!("{name} of {short} never came to {:?} {:?}", self.protocol, state.subscribed)
                });
                let version = |text: &str| text.split('/').next().unwrap().to_owned();
                let same = held == text || (state.resumed.contains(*name) && version(held) == version(text));
                assert!(same, "{name} of {short} is {held} and should be {text}");
            }
            if self.protocol == Protocol::Delta || self.is_full_state(at) {
                for name in state.held.keys().filter(|name| !state.lingering.contains(*name)) {
                    assert!(visible.contains_key(name.as_str()), "{name} of {short} is gone, and still held");
                }
            }
            if at == EDS && self.types[CDS].requested && !state.subscribed.wildcard {
                for name in &state.warming {
                    let there =
                        visible.contains_key(name.as_str()) && self.types[CDS].held.contains_key(name);
                    assert!(
                        !there,
                        "{name} warms for want of endpoints: {:?} {:?}",
                        self.protocol, state.subscribed
                    );
                }
            }
        }
    }
}
