//! Rules that each store keeps at any moment, be it that no client is told of it.
//!
//! Owns what the stores showed last. Judges by what the origin has, and knows nothing of requests.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Generation, Snapshot, TypeCache, View, VisibleState};
use deltafan::resource::{Name, Parameters};

use super::origin::{NAMES, Origin, TYPES, at_of, is_member};
use super::rule::ClientParameters;
use crate::common::check_totals;
use deltafan_test_support::wire::body;

/// Longest time for which a word of the origin may be true no more.
const STALE: Duration = Duration::from_millis(100);

/// State that a store shows of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Unknown,
    Gone,
    Present,
}

/// Store as it was at the last look.
#[derive(Clone, Copy, Debug)]
struct Look {
    generation: Generation,
    /// By view and name.
    shown: [[Shown; NAMES.len()]; View::ALL.len()],
}

/// Stores as they were at the last look, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    looks: HashMap<u32, Look>,
}

fn parameters(of: &Parameters) -> ClientParameters {
    ClientParameters::read(&of.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

fn shown(snapshot: &Snapshot, view: View, name: &str) -> Shown {
    let seen = match view {
        View::Wildcard => snapshot.get(name).map_or(VisibleState::Absent, |entry| entry.as_member()),
        View::Named => snapshot.by_name(name),
    };
    match seen {
        VisibleState::Absent => Shown::Gone,
        seen if seen.existing().is_some() => Shown::Present,
        _ => Shown::Unknown,
    }
}

impl Stores {
    /// Looks at each store; to be called whenever the upstream side may have changed one.
    pub(crate) fn look(&mut self, cache: &Cache, origin: &Origin, now: Instant) {
        let mut before = std::mem::take(&mut self.looks);
        for of in cache.types() {
            let snapshot = of.snapshot();
            let (generation, last) = (snapshot.generation(), before.remove(&of.index()));
            if let Some(last) = last.filter(|last| last.generation == generation) {
                self.looks.insert(of.index(), last);
                continue;
            }
            check_totals(&snapshot);
            check_members(&of, &snapshot);
            let shown = View::ALL.map(|view| NAMES.map(|name| shown(&snapshot, view, name)));
            for (view, name) in
                (0..View::ALL.len()).flat_map(|view| (0..NAMES.len()).map(move |name| (view, name)))
            {
                let was = last.map_or(Shown::Unknown, |last| last.shown[view][name]);
                if shown[view][name] == Shown::Gone && was != Shown::Gone {
                    check_gone(&of, View::ALL[view], NAMES[name], was, origin, now);
                }
            }
            self.looks.insert(of.index(), Look { generation, shown });
        }
    }
}

/// A member is one of the wildcard set, in a variant for the parameters of the store. A name that exists only for clients that
/// ask for it is none, whatever came of it.
fn check_members(of: &TypeCache, snapshot: &Snapshot) {
    let params = parameters(of.parameter_view().wildcard());
    for member in snapshot.members() {
        let (name, text) = body(member.body(), of.type_url());
        let (_, rule) = text.split_once('/').expect("a text of these tests");
        let (type_url, view) = (of.type_url(), of.parameter_view());
        assert!(is_member(&name), "{name} of {type_url} is shown as a member for {view:?}");
        assert!(params.fits(rule), "{name} {text} of {type_url} is a member for {view:?}");
    }
}

/// A name that was there, or of which nothing was known, is shown as gone only where the origin has none for these parameters,
/// or had none a moment ago, or does not know yet that it is asked for with them: a variant that others were sent ends with
/// the word to them, and the next one may be the answer to a question that is on its way.
fn check_gone(of: &TypeCache, view: View, name: &'static str, was: Shown, origin: &Origin, now: Instant) {
    let (at, seen_as) = (at_of(of.type_url().as_str()), of.parameter_view());
    // A store that is filled from others begins with what these know, which may be old while the origin is away.
    let is_filled = seen_as.as_uniform().is_none();
    let (params, asked, is_wanted) = match view {
        // A name is no member also where nothing is known of the set.
        View::Wildcard => (seen_as.wildcard(), Name::WILDCARD, was == Shown::Present && of.wants_wildcard()),
        View::Named => (seen_as.of(name), name, of.wants(name) && (was == Shown::Present || !is_filled)),
    };
    let params = parameters(params);
    let is_old = |since: Option<Instant>| since.is_some_and(|since| since + STALE <= now);
    let is_asked = is_old(origin.asked_since(at, &(asked.to_owned(), params)));
    let is_there = is_old(origin.there_since(at, name, params));
    assert!(
        !(is_wanted && is_asked && is_there),
        "{name} of {} is shown as gone for {params:?} by {view:?}, was {was:?}",
        TYPES[at]
    );
}
