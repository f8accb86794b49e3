//! Kinds of control planes as they were found to be, and how each answers a request.
//!
//! Owns the state that a control plane keeps of one type on one stream, and the rules by which it answers; those of
//! go-control-plane follow its sources, those of the others what they were seen to do. Knows no streams and no time.

use std::collections::{BTreeMap, BTreeSet};

use deltafan::cache::Protocol;
use deltafan::proto::DeltaDiscoveryRequest;
use rand::Rng;
use rand::rngs::StdRng;

use super::sotw::SotwHabits;
use super::truth::{Truth, is_full_state};
use crate::common::subscribe;

/// Kind of control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// 0.14: a legacy wildcard cannot be left, and what it returned stays returned.
    Go14 { linear: bool },
    /// 0.13 and 0.12: versions are kept whatever is let go.
    Go13,
    /// java-control-plane: it reads no versions, and is silent wherever it believes that nothing changed.
    Java,
    /// istiod: no versions, all clusters and listeners whatever is asked for, no name is absent.
    Istiod,
    /// State of the world.
    Sotw(SotwHabits),
    /// The protocol as it is written, in parts of so many resources that wait for the ACK of the last.
    Plain { parts: usize, tells_absent: bool },
}

impl Flavor {
    pub(crate) fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..10) {
            0..2 => Self::Go14 { linear: rng.random_bool(0.5) },
            2..4 => Self::Go13,
            4 => Self::Java,
            5 => Self::Istiod,
            _ => {
                let parts = [2, 3, 8, 1000, 1000][rng.random_range(0..5)];
                Self::Plain { parts, tells_absent: rng.random_bool(0.6) }
            }
        }
    }

    /// Protocol in which it has to be asked.
    pub(crate) const fn protocol(self) -> Protocol {
        if matches!(self, Self::Sotw(_)) { Protocol::Sotw } else { Protocol::Delta }
    }

    pub(crate) const fn has_versions(self) -> bool {
        !matches!(self, Self::Istiod)
    }

    /// Whether it speaks state of the world beside delta. Of one that does not, and sends its answers in parts, nobody could tell a part
    /// from the whole.
    pub(crate) const fn answers_census(self) -> bool {
        !matches!(self, Self::Plain { parts: 1000, .. })
    }

    /// Whether it answers for a name that does not exist.
    pub(crate) const fn tells_absent(self) -> bool {
        matches!(self, Self::Plain { tells_absent: true, .. })
    }

    /// Whether each name of a type that is asked for exists.
    pub(crate) const fn knows_all(self, at: usize) -> bool {
        matches!(self, Self::Istiod) && !is_full_state(at)
    }

    /// Whether it says what of the named versions is gone.
    pub(crate) const fn reports_deleted_names(self) -> bool {
        !matches!(self, Self::Java | Self::Istiod)
    }
}

/// Content of a response, by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) resources: Vec<String>,
    pub(crate) removed: Vec<String>,
}

/// One type on one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscription {
    pub(crate) wildcard: bool,
    legacy: bool,
    pub(crate) names: BTreeSet<String>,
    /// Versions that it believes the other end to hold; texts where it has no versions.
    pub(crate) returned: BTreeMap<String, String>,
    /// Names to be answered whatever is believed.
    owed: BTreeSet<String>,
    /// It has sent something that was not answered with a request.
    waits: bool,
    nonce: String,
    answered: bool,
    must_answer: bool,
    /// Its first request was looked at.
    met: bool,
}

impl Subscription {
    /// Takes in a request; whether it is time to answer.
    pub(crate) fn hear(
        &mut self,
        flavor: Flavor,
        at: usize,
        first: bool,
        request: &DeltaDiscoveryRequest,
    ) -> bool {
        let (add, end) = (&request.resource_names_subscribe, &request.resource_names_unsubscribe);
        let star = add.iter().any(|name| name == "*");
        if first {
            let versions = request.initial_resource_versions.iter().filter(|_| flavor != Flavor::Java);
            self.returned = versions.map(|(name, version)| (name.clone(), version.clone())).collect();
            self.wildcard = add.is_empty() || (flavor == Flavor::Istiod && is_full_state(at));
            self.legacy = add.is_empty();
            self.must_answer = self.wildcard || star;
        }
        let spontaneous = request.response_nonce.is_empty();
        match flavor {
            Flavor::Go14 { .. } => self.hear_go14(add, end, spontaneous),
            Flavor::Go13 => self.hear_go13(add, end),
            Flavor::Java => self.hear_java(add, end),
            Flavor::Istiod => self.hear_istiod(at, first, add, end),
            Flavor::Plain { .. } => self.hear_plain(first, add, end),
            Flavor::Sotw(_) => unreachable!("a delta request to an origin without delta"),
        }
        // go-control-plane makes a new watch of each request; the others wait for the ACK of the last response.
        if matches!(flavor, Flavor::Plain { .. } | Flavor::Java) {
            self.waits &= request.response_nonce != self.nonce;
        } else {
            self.waits = false;
        }
        !self.waits
    }

    fn hear_go14(&mut self, add: &[String], end: &[String], spontaneous: bool) {
        let stays_legacy = self.legacy && add.is_empty();
        if !stays_legacy {
            self.legacy = false;
            subscribe(&mut self.wildcard, &mut self.names, add);
            self.unsubscribe_go(end, true);
        }
        self.must_answer = self.wildcard && spontaneous;
    }

    fn hear_go13(&mut self, add: &[String], end: &[String]) {
        subscribe(&mut self.wildcard, &mut self.names, add);
        self.unsubscribe_go(end, false);
        self.must_answer = self.wildcard && !self.answered;
    }

    /// Lets names go as go-control-plane does: a member of a wildcard is sent once more. Whether the versions of other names are
    /// forgotten depends on its release.
    fn unsubscribe_go(&mut self, end: &[String], forgets: bool) {
        for name in end {
            if name == "*" {
                self.wildcard = false;
            } else if self.names.remove(name) && self.wildcard {
                self.returned.insert(name.clone(), String::new());
            } else if forgets {
                self.returned.remove(name);
            }
        }
    }

    fn hear_java(&mut self, add: &[String], end: &[String]) {
        for name in end.iter().filter(|name| *name != "*") {
            self.names.remove(name);
            self.owed.remove(name);
        }
        self.wildcard |= add.iter().any(|name| name == "*");
        for name in add.iter().filter(|name| *name != "*") {
            self.names.insert(name.clone());
        }
        self.must_answer = false;
    }

    fn hear_istiod(&mut self, at: usize, first: bool, add: &[String], end: &[String]) {
        if is_full_state(at) {
            if !first && add.iter().any(|name| name == "*") {
                self.returned.clear();
                self.must_answer = true;
            }
            // A name that was never asked for on a stream of names brings everything.
            if !first && !self.legacy && add.iter().any(|name| name != "*" && !self.names.contains(name)) {
                self.returned.clear();
            }
            self.names.extend(add.iter().filter(|name| *name != "*").cloned());
            return;
        }
        for name in add {
            self.names.insert(name.clone());
            self.returned.remove(name);
        }
        for name in end {
            self.names.remove(name);
            self.returned.remove(name);
        }
    }

    fn hear_plain(&mut self, first: bool, add: &[String], end: &[String]) {
        for name in add {
            if name == "*" {
                if !first {
                    self.returned.clear();
                }
                self.wildcard = true;
                self.must_answer = true;
            } else {
                self.names.insert(name.clone());
                if !(first && self.returned.contains_key(name)) {
                    self.owed.insert(name.clone());
                }
            }
        }
        for name in end {
            if name == "*" {
                self.wildcard = false;
                self.must_answer = false;
            } else {
                self.names.remove(name);
                self.owed.remove(name);
                if self.wildcard {
                    self.owed.insert(name.clone());
                }
            }
        }
        let (wildcard, names) = (self.wildcard, &self.names);
        self.returned.retain(|name, _| wildcard || names.contains(name));
    }

    fn sees(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Whether it may say something.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.waits
    }

    /// Next response, if one is due. It counts as sent.
    pub(crate) fn answer(&mut self, flavor: Flavor, at: usize, truth: &Truth, nonce: &str) -> Option<Answer> {
        let version = |text: &str, version: &str| {
            if flavor.has_versions() { version.to_owned() } else { text.to_owned() }
        };
        if !std::mem::replace(&mut self.met, true) && !flavor.reports_deleted_names() && !self.wildcard {
            self.returned.retain(|name, _| truth.get(at, name).is_some());
        }
        let mut answer = Answer::default();
        for (name, body) in truth.present(at).filter(|(name, _)| self.sees(name)) {
            let now = version(&body.text, &body.version);
            if self.owed.contains(name) || self.returned.get(name) != Some(&now) {
                answer.resources.push(name.clone());
            }
        }
        let is_gone = |name: &&String| truth.get(at, name).is_none();
        let held = self.returned.keys().filter(is_gone);
        // Linear says of what is let go that it is removed.
        let linear = flavor == Flavor::Go14 { linear: true } && !self.wildcard;
        answer.removed.extend(held.filter(|name| self.sees(name)).cloned());
        if linear {
            let left = self.returned.keys().filter(|name| !self.names.contains(*name));
            answer.removed.extend(left.cloned());
        }
        let owed = self.owed.iter().filter(is_gone).filter(|name| !self.returned.contains_key(*name));
        if flavor.tells_absent() {
            answer.removed.extend(owed.cloned());
        }
        if let Flavor::Plain { parts, .. } = flavor
            && answer.resources.len() > parts
        {
            answer.resources.truncate(parts);
            answer.removed.clear();
        }
        let is_empty = answer.resources.is_empty() && answer.removed.is_empty();
        if is_empty && !self.must_answer {
            if !flavor.tells_absent() {
                self.owed.retain(|name| truth.get(at, name).is_some());
            }
            return None;
        }
        for name in &answer.resources {
            if let Some(body) = truth.get(at, name) {
                self.returned.insert(name.clone(), version(&body.text, &body.version));
            }
            self.owed.remove(name);
        }
        for name in &answer.removed {
            self.returned.remove(name);
            self.owed.remove(name);
        }
        // Each response forgets names that are not subscribed to.
        let (wildcard, names) = (self.wildcard, &self.names);
        self.returned.retain(|name, _| wildcard || names.contains(name));
        self.must_answer = false;
        self.answered = true;
        self.waits = flavor != Flavor::Istiod;
        nonce.clone_into(&mut self.nonce);
        Some(answer)
    }
}
