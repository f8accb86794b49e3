//! Control planes that speak state of the world, and how each answers a request.
//!
//! Owns the state that such a control plane keeps of one type on one stream. Knows no streams and no time.

use std::collections::{BTreeMap, BTreeSet};

use deltafan::proto::DiscoveryRequest;
use rand::Rng;
use rand::rngs::StdRng;

use super::truth::{Truth, is_full_state};

/// Habits in which such control planes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SotwHabits {
    /// A request with an old nonce is dropped with the names in it, as go-control-plane does.
    ignores_stale: bool,
    /// Each response of a type without full states holds everything that is asked for.
    repeats_all: bool,
    /// A first request is answered though nothing of it exists.
    answers_empty: bool,
    /// Of a full state it sends only what changed, but for the first response of a stream, as LinearCache does.
    sends_changes: bool,
}

impl SotwHabits {
    pub(crate) fn random(rng: &mut StdRng) -> Self {
        let [ignores_stale, repeats_all, answers_empty] = std::array::from_fn(|_| rng.random_bool(0.5));
        Self { ignores_stale, repeats_all, answers_empty, sends_changes: false }
    }

    /// These habits, but for full states of which only the changes are sent.
    #[must_use]
    pub(crate) const fn sending_changes(self) -> Self {
        Self { sends_changes: true, ..self }
    }

    pub(crate) const fn answers_empty(self) -> bool {
        self.answers_empty
    }
}

/// One type on one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct SotwSubscription {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Whether any name was ever listed.
    has_listed: bool,
    /// Texts of what it believes the other end to hold.
    pub(crate) sent: BTreeMap<String, String>,
    /// Names that were listed anew.
    owed: BTreeSet<String>,
    /// Of the newest response.
    pub(crate) nonce: String,
    /// `version_info` of the last state.
    pub(crate) version: String,
    waits: bool,
    /// A heartbeat was sent that is not acknowledged yet.
    has_beaten: bool,
    must_answer: bool,
    met: bool,
}

impl SotwSubscription {
    /// Takes in a request; whether it is time to answer.
    pub(crate) fn hear(&mut self, habits: SotwHabits, request: &DiscoveryRequest) -> bool {
        let is_stale = !self.nonce.is_empty() && request.response_nonce != self.nonce;
        if is_stale && habits.ignores_stale {
            return false;
        }
        self.waits &= is_stale;
        self.has_beaten &= is_stale;
        let star = request.resource_names.iter().any(|name| name == "*");
        let names = request.resource_names.iter().filter(|name| *name != "*").cloned();
        let names: BTreeSet<String> = names.collect();
        self.has_listed |= !request.resource_names.is_empty();
        self.wildcard = star || !self.has_listed;
        self.owed.extend(names.difference(&self.names).cloned());
        self.owed.retain(|name| names.contains(name));
        let wildcard = self.wildcard;
        self.sent.retain(|name, _| wildcard || names.contains(name));
        self.names = names;
        let is_first = !std::mem::replace(&mut self.met, true);
        self.must_answer |= is_first && (self.wildcard || habits.answers_empty);
        !self.waits
    }

    /// Names that are asked for.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.iter()
    }

    /// Whether a heartbeat may be sent: with one for each moment of a round trip every ACK would be stale when it comes.
    pub(crate) const fn may_beat(&self) -> bool {
        !self.waits && !self.has_beaten
    }

    /// Notes a heartbeat.
    pub(crate) fn beat(&mut self, nonce: String) {
        self.nonce = nonce;
        self.has_beaten = true;
    }

    /// Whether it may say nothing before an ACK.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.waits
    }

    /// Names of the next state, if one is due. It counts as sent.
    pub(crate) fn answer(
        &mut self,
        habits: SotwHabits,
        at: usize,
        truth: &Truth,
        nonce: &str,
    ) -> Option<Vec<String>> {
        let visible = truth.present(at).filter(|(name, _)| self.wildcard || self.names.contains(*name));
        let visible: BTreeMap<String, String> =
            visible.map(|(name, body)| (name.clone(), body.text.clone())).collect();
        let is_news = |(name, text): &(&String, &String)| {
            self.owed.contains(*name) || self.sent.get(*name) != Some(*text)
        };
        let news: Vec<String> = visible.iter().filter(is_news).map(|(name, _)| name.clone()).collect();
        let lacks = is_full_state(at) && self.sent.keys().any(|name| !visible.contains_key(name));
        let is_due = !news.is_empty() || lacks || self.must_answer;
        let is_whole = self.version.is_empty() || !habits.sends_changes;
        let names = match if is_full_state(at) { is_whole } else { habits.repeats_all } {
            true => visible.keys().cloned().collect(),
            false => news,
        };
        self.sent = visible;
        if !is_due {
            return None;
        }
        self.owed.clear();
        self.must_answer = false;
        self.waits = true;
        (self.nonce, self.version) = (nonce.to_owned(), format!("v{nonce}"));
        Some(names)
    }
}
