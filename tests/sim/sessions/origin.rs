//! The origin: its responses, and what follows from them for a subscription.

use std::collections::{BTreeMap, BTreeSet};

use deltafan::cache::{Change, Completeness, Op, Resend, View};
use rand::Rng;
use rand::rngs::StdRng;

use super::subscription::Subscribed;
use deltafan_test_support::wire::{resource, type_url};

pub(crate) const TYPES: [&str; 6] = ["cds", "eds", "lds", "rds", "sds", "thing"];
pub(crate) const CDS: usize = 0;
pub(crate) const EDS: usize = 1;
pub(crate) const LDS: usize = 2;
pub(crate) const RDS: usize = 3;
pub(crate) const NAMES: usize = 10;
/// The route and the clusters of which the origin never breaks what it has not replaced before (R-ADS-03).
pub(crate) const ROUTE: &str = "moving";

/// The names of clusters that ask for endpoints are those of endpoints.
pub(crate) fn name_of(at: usize, number: usize) -> String {
    let prefix = if at <= EDS && number < NAMES / 2 { "eds" } else { "n" };
    format!("{prefix}{number}")
}

/// State of a name for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    Unknown,
    Absent,
    Present(&'a str),
}

/// Everything that the origin has said of one type.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) members: BTreeMap<String, String>,
    named: BTreeMap<String, Option<String>>,
    pub(crate) known: Completeness,
    /// The last text of each name that was ever a member.
    pub(crate) once_members: BTreeSet<String>,
    /// When anything was last said of a name, even if it was nothing new.
    pub(crate) mentioned: BTreeMap<String, u64>,
    /// How often anything was said.
    pub(crate) spoken: u64,
    /// Every text there ever was, by name.
    texts: BTreeSet<(String, String)>,
}

impl Said {
    fn by_name(&self, name: &str) -> Seen<'_> {
        match (self.members.get(name), self.named.get(name)) {
            (Some(text), _) | (None, Some(Some(text))) => Seen::Present(text),
            (None, Some(None)) => Seen::Absent,
            (None, None) => Seen::Unknown,
        }
    }

    pub(crate) fn seen(&self, subscribed: &Subscribed, name: &str) -> Option<Seen<'_>> {
        if subscribed.names.contains(name) {
            Some(self.by_name(name))
        } else {
            let member = self.members.get(name).map_or(Seen::Absent, |text| Seen::Present(text));
            subscribed.wildcard.then_some(member)
        }
    }

    /// Everything that a subscriber is to hold.
    pub(crate) fn visible<'a>(&'a self, subscribed: &'a Subscribed) -> BTreeMap<&'a str, &'a str> {
        let members = self.members.keys().filter(|_| subscribed.wildcard);
        let names = members.chain(&subscribed.names);
        let present = |name: &String| match self.by_name(name) {
            Seen::Present(text) => Some(text),
            Seen::Absent | Seen::Unknown => None,
        };
        names.filter_map(|name| Some((name.as_str(), present(name)?))).collect()
    }

    /// Whether a client that needs to know so much of the wildcard set has to wait; for names it does not where time
    /// passes.
    pub(crate) fn is_unknown(&self, subscribed: &Subscribed, needed: Completeness, timed: bool) -> bool {
        (subscribed.wildcard && self.known < needed)
            || (!timed && subscribed.names.iter().any(|name| self.by_name(name) == Seen::Unknown))
    }

    /// A name is no member any more. Another content that came by name is of no use: nothing is known of the name.
    fn end_membership(&mut self, name: &str) {
        let member = self.members.remove(name);
        if member.is_some() && self.named.get(name).is_some_and(|named| named.is_some() && *named != member) {
            self.named.remove(name);
        }
    }

    pub(crate) fn ever_said(&self, name: &str, text: &str) -> bool {
        self.texts.contains(&(name.to_owned(), text.to_owned()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub(crate) said: [Said; TYPES.len()],
    /// Counts what was said.
    pub(crate) clock: u64,
    versions: u64,
    /// Where the route of [`ROUTE`] is on its way from one cluster to the next.
    stage: u32,
    target: u32,
}

impl Origin {
    fn set(&mut self, at: usize, view: View, name: &str, text: String, resend: Resend, ops: &mut Vec<Op>) {
        // Bodies are of two sizes, so that small limits cut answers in many ways.
        let padding = if name.ends_with('3') { 900 } else { 0 };
        let body = resource(&type_url(TYPES[at]), name, &text, padding);
        ops.push(Op::Set { view, resource: body, resend, lease: None });
        let said = &mut self.said[at];
        said.texts.insert((name.to_owned(), text.clone()));
        match view {
            View::Wildcard => {
                said.once_members.insert(name.to_owned());
                said.members.insert(name.to_owned(), text);
            }
            View::Named => {
                said.named.insert(name.to_owned(), Some(text));
            }
        }
    }

    fn new_version(&mut self) -> String {
        self.versions += 1;
        format!("v{}", self.versions)
    }

    fn step(&mut self, rng: &mut StdRng, at: usize, ops: &mut Vec<Op>) {
        let name = name_of(at, rng.random_range(0..NAMES));
        let view = if rng.random_bool(0.5) { View::Wildcard } else { View::Named };
        let said = &mut self.said[at];
        let (here, there) = match view {
            View::Wildcard => (said.members.get(&name), said.named.get(&name).and_then(Option::as_ref)),
            View::Named => (said.named.get(&name).and_then(Option::as_ref), said.members.get(&name)),
        };
        let resend = if rng.random_bool(0.5) { Resend::Answer } else { Resend::Unsolicited };
        let (here, there) = (here.cloned(), there.cloned());
        match (rng.random_range(0..10), here) {
            (0..4, _) | (4..6, None) => {
                let text = there.filter(|_| rng.random_bool(0.5)).unwrap_or_else(|| self.new_version());
                self.set(at, view, &name, text, resend, ops);
            }
            (4, Some(text)) => self.set(at, view, &name, text, resend, ops),
            (5, Some(text)) => {
                self.versions += 1;
                let version = text.split('/').next().unwrap();
                let text = format!("{version}/b{}", self.versions);
                self.set(at, view, &name, text, resend, ops);
            }
            (6..9, _) => {
                ops.push(Op::Remove { view, name: name.as_str().into() });
                match view {
                    View::Wildcard => said.end_membership(&name),
                    View::Named => drop(said.named.insert(name, None)),
                }
            }
            _ => {
                ops.push(Op::Forget { view, name: name.as_str().into() });
                match view {
                    View::Wildcard => said.end_membership(&name),
                    View::Named => drop(said.named.remove(&name)),
                }
            }
        }
    }

    /// A response of the origin of one type.
    pub(crate) fn speak(&mut self, rng: &mut StdRng, at: usize) -> Change {
        let mut ops = Vec::new();
        for _ in 0..rng.random_range(1..5) {
            self.step(rng, at, &mut ops);
        }
        // A set that is unknown again holds routes back for a time only: clusters stay known, as they do while anybody
        // subscribes to them.
        let known = rng.random_bool(0.3).then(|| match rng.random_range(0..10) {
            0..2 if at != CDS => Completeness::Unknown,
            0..5 => Completeness::Presumed,
            _ => Completeness::Complete,
        });
        if let Some(known) = known {
            self.said[at].known = known;
        }
        Change { ops, wildcard_known: known, ..Change::default() }
    }

    /// The set of a type is complete, and every one of these names is answered.
    pub(crate) fn settle(&mut self, rng: &mut StdRng, at: usize, wanted: &BTreeSet<String>) -> Change {
        let mut ops = Vec::new();
        for name in wanted {
            if self.said[at].named.contains_key(name) {
                continue;
            }
            if rng.random_bool(0.5) {
                let version = self.new_version();
                self.set(at, View::Named, name, version, Resend::Answer, &mut ops);
            } else {
                ops.push(Op::Remove { view: View::Named, name: name.as_str().into() });
                self.said[at].named.insert(name.clone(), None);
            }
        }
        self.said[at].known = Completeness::Complete;
        Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() }
    }

    /// The next step of moving the route to another cluster: the new cluster, the route, the end of the old one.
    pub(crate) fn move_route(&mut self) -> (usize, Change) {
        let cluster = |number: u32| format!("eds-m{}", number % 3);
        let mut ops = Vec::new();
        let at = match self.stage % 3 {
            0 => {
                self.target += 1;
                let version = self.new_version();
                self.set(CDS, View::Wildcard, &cluster(self.target), version, Resend::Unsolicited, &mut ops);
                CDS
            }
            1 => {
                let text = format!("{}/{}", self.new_version(), cluster(self.target));
                self.set(RDS, View::Named, ROUTE, text, Resend::Unsolicited, &mut ops);
                RDS
            }
            _ => {
                let old = cluster(self.target + 2);
                self.said[CDS].end_membership(&old);
                ops.push(Op::Remove { view: View::Wildcard, name: old.into() });
                CDS
            }
        };
        self.stage += 1;
        (at, Change { ops, ..Change::default() })
    }
}
