//! State of rollouts for operators: phase, held changes, and clients that were not sent a change yet.
//!
//! Owns the text and size of the report of held changes for the control plane: canaries choose texts, the control plane names.
//! Owns also the answer to "does this client have what the control plane sent?". It compares the names that the guard has open,
//! so it costs nothing without any.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashMap;
use serde::Serialize;

use super::super::Cache;
use super::super::cohort::Cohort;
use super::super::parameter_view::ParameterView;
use super::super::snapshot::Snapshot;
use super::super::subscription::Subscription;
use super::super::type_cache::TypeCache;
use super::trial::{Candidate, Place, has_some_of};
use super::{Reach, Rollout, RolloutState, StandingOrder, StoreKey};
use crate::resource::{Name, Parameters, TypeUrl};

/// Most bytes of a report, and of its part with names.
const REPORT_BYTES: usize = 4 << 10;
const NAMES_BYTES: usize = 2 << 10;
/// Most rejection texts.
const TEXTS: usize = 8;
/// Most characters of a name, a version or a set of parameters.
const NAME_CHARS: usize = 200;

/// As in `/rollout`.
#[derive(Clone, Debug, Serialize)]
pub struct RolloutStatus {
    #[serde(flatten)]
    pub phase: Phase,
    /// Streams of canaries.
    pub canaries: usize,
    /// Names in the trial.
    pub trying: usize,
    /// Names that changed since it began.
    pub waiting: usize,
    /// Names that changed since an operator put their type on hold.
    pub on_hold: usize,
    /// Names whose newest content an operator discarded, or replaced by an earlier one.
    pub kept_back: usize,
    /// Trials in a row without an answer.
    pub unanswered: usize,
    #[serde(skip)]
    pub orders: Vec<StandingOrder>,
    pub held: Vec<HeldChange>,
    /// Time since the trial failed.
    pub held_seconds: Option<f64>,
    pub reason: Option<HoldReason>,
    /// Canaries are sent parts of the held changes, to find the bad ones.
    pub searching: bool,
}

crate::labelled! {
    /// Why changes are held.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HoldReason {
        /// By canaries.
        Rejected = "rejected",
        /// More than `max_removed`.
        Removals = "removals",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Phase {
    /// All clients have the newest content, except what an operator discarded or replaced.
    Idle,
    /// Changes came, and the trial has not begun.
    Gathering,
    Trying {
        /// Until the step ends.
        seconds_left: f64,
        /// From 1.
        step: u8,
    },
    /// Too many canaries rejected a change, it removes too much, or an operator ordered it.
    Held,
}

#[derive(Clone, Debug, Serialize)]
pub struct HeldChange {
    #[serde(flatten)]
    pub type_url: TypeUrl,
    /// Parameters of the clients that it is for.
    pub parameters: Parameters,
    pub name: Name,
    /// Rejected version; `None` for a removal.
    pub version: Option<Box<str>>,
    pub accepted: usize,
    pub rejected: usize,
    pub texts: Vec<Arc<str>>,
}

impl Rollout {
    pub fn status(&self, now: Instant) -> RolloutStatus {
        let state = self.state.lock();
        let phase = match &state.trial {
            Some(trial) if trial.hold.is_some() => Phase::Held,
            _ if !state.standing.types.is_empty() => Phase::Held,
            None if state.waiting.is_empty() => Phase::Idle,
            None => Phase::Gathering,
            Some(trial) => {
                let left = trial.ends.saturating_duration_since(now);
                Phase::Trying { seconds_left: left.as_secs_f64(), step: trial.step + 1 }
            }
        };
        let hold = state.trial.as_ref().and_then(|trial| trial.hold.as_ref());
        let is_on_hold = |((type_url, _), _): &&Place| state.standing.holds(type_url);
        let on_hold = state.waiting.keys().filter(is_on_hold).count();
        RolloutStatus {
            phase,
            canaries: state.canaries.iter().sum(),
            trying: state.trial.as_ref().map_or(0, |trial| trial.names.len()),
            waiting: state.waiting.len() - on_hold,
            on_hold,
            kept_back: state.standing.contents.len(),
            unanswered: state.unanswered,
            orders: state.standing.all().cloned().collect(),
            held: state.held().map(|(place, candidate)| state.held_change(place, candidate)).collect(),
            held_seconds: hold.map(|hold| now.saturating_duration_since(hold.since).as_secs_f64()),
            reason: hold.map(|hold| if hold.is_braked { HoldReason::Removals } else { HoldReason::Rejected }),
            searching: hold.is_some_and(|hold| hold.is_searching()),
        }
    }

    /// Names of which a track may have another state than the origin: they wait, are on trial, held, discarded or restored.
    pub(in crate::cache) fn open_names(&self) -> BTreeMap<StoreKey, BTreeSet<Name>> {
        let state = self.state.lock();
        let tried = state.trial.iter().flat_map(|trial| trial.names.keys());
        let all = state.waiting.keys().chain(tried).chain(state.standing.contents.keys());
        let mut open: BTreeMap<StoreKey, BTreeSet<Name>> = BTreeMap::new();
        for (key, name) in all {
            open.entry(key.clone()).or_default().insert(name.clone());
        }
        open
    }

    /// Whether a store has [such names](Self::open_names).
    pub(in crate::cache) fn is_open(&self, key: &StoreKey) -> bool {
        let state = self.state.lock();
        has_some_of(&state.waiting, key)
            || state.trial.as_ref().is_some_and(|trial| has_some_of(&trial.names, key))
            || has_some_of(&state.standing.contents, key)
    }

    /// Whether there are held changes to report, and the bad ones among them are found. Between two holds there is a
    /// decision, after which none are.
    pub(crate) fn has_report(&self) -> bool {
        let state = self.state.lock();
        let hold = state.trial.as_ref().and_then(|trial| trial.hold.as_ref());
        self.settings.reports && hold.is_some_and(|hold| !hold.is_searching() && !hold.is_braked)
    }

    pub(crate) fn held_types(&self) -> BTreeSet<TypeUrl> {
        self.state.lock().held().map(|(((type_url, _), _), _)| type_url.clone()).collect()
    }

    /// Report of a type's held changes. `None` if there are none any more, or an operator decided.
    ///
    /// Example: `held after canaries rejected it: a at version 2 (1 of 3 canaries): no such cluster`.
    pub(crate) fn report(&self, type_url: &TypeUrl) -> Option<String> {
        let state = self.state.lock();
        if !state.orders.is_empty() {
            return None;
        }
        // Those that changed again are tried anew.
        let is_reported =
            |(place, of): &(&Place, &Candidate)| place.0.0 == *type_url && !state.has_changed(place, of);
        let held = state.held().filter(is_reported).map(|(place, of)| state.held_change(place, of));
        report_text(&held.collect::<Vec<_>>())
    }
}

impl RolloutState {
    fn held_change(&self, (key, name): &Place, candidate: &Candidate) -> HeldChange {
        let content = self.trial.as_ref().and_then(|trial| trial.content.get(key)?.get(name.as_str()));
        let resource = content.and_then(|entry| entry.by_name().present());
        HeldChange {
            type_url: key.0.clone(),
            parameters: key.1.clone(),
            name: name.clone(),
            version: resource.map(|resource| resource.version().into()),
            accepted: candidate.verdicts.accepted(),
            rejected: candidate.verdicts.rejected(),
            texts: candidate.verdicts.texts().to_vec(),
        }
    }
}

fn report_text(held: &[HeldChange]) -> Option<String> {
    const BEGIN: &str = "held after canaries rejected it: ";
    let mut report = BEGIN.to_owned();
    for (at, HeldChange { parameters, name, version, accepted, rejected, .. }) in held.iter().enumerate() {
        let name = plain(name.as_str());
        let is = version.as_ref().map_or_else(
            || format!("removal of {name}"),
            |version| format!("{name} at version {}", plain(version)),
        );
        let parameters = plain(&parameters.to_string());
        let (of, comma) = (if parameters.is_empty() { "" } else { " for " }, if at == 0 { "" } else { ", " });
        let words = format!("{comma}{is}{of}{parameters} ({rejected} of {} canaries)", accepted + rejected);
        // One name always fits.
        if at > 0 && report.len() + words.len() > BEGIN.len() + NAMES_BYTES {
            report += &format!(" and {} more", held.len() - at);
            break;
        }
        report += &words;
    }
    let mut texts: Vec<&Arc<str>> = Vec::new();
    for text in held.iter().flat_map(|change| &change.texts) {
        if texts.len() < TEXTS && !texts.contains(&text) {
            report += if texts.is_empty() { ": " } else { " | " };
            report.extend(text.chars().map(visible));
            texts.push(text);
        }
    }
    report.truncate(report.floor_char_boundary(REPORT_BYTES));
    (!held.is_empty()).then_some(report)
}

/// A name in one line, cut to the length for reports.
fn plain(text: &str) -> String {
    text.chars().take(NAME_CHARS).map(visible).collect()
}

/// Replaces control characters, which could break a log line, by spaces.
fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[derive(Debug, Default)]
pub struct Withheld {
    stores: Vec<OpenStore>,
    /// Whether a cohort is held back, by cache, store and cohort.
    cohorts: RefCell<HashMap<(u64, u32, u64), bool>>,
}

/// Store of the origin with changes that a track may not have.
#[derive(Debug)]
struct OpenStore {
    cache: u64,
    key: StoreKey,
    names: BTreeSet<Name>,
    origin: Arc<Snapshot>,
}

impl Withheld {
    /// Changes that are open in these caches.
    pub fn of<'c>(caches: impl IntoIterator<Item = &'c Cache>) -> Self {
        let mut stores = Vec::new();
        for cache in caches {
            for (key, names) in cache.rollout().into_iter().flat_map(|rollout| rollout.open_names()) {
                let origin = cache.find(&key.0, &ParameterView::uniform(key.1.clone()));
                let Some(origin) = origin.map(|of| of.snapshot()) else { continue };
                stores.push(OpenStore { cache: cache.number(), key, names, origin });
            }
        }
        Self { stores, cohorts: RefCell::default() }
    }

    /// Whether the clients of a cohort are kept on an earlier state of something that they ask for.
    pub fn holds_back(&self, of: &TypeCache, cohort: &Cohort) -> bool {
        if self.stores.is_empty() {
            return false;
        }
        let look = || {
            let (snapshot, subscription) = (of.snapshot(), cohort.subscription());
            self.of_store(of).any(|store| {
                store.asked(subscription).any(|name| store.is_ahead(of, &snapshot, subscription, name))
            })
        };
        let key = (of.cache(), of.index(), cohort.id());
        *self.cohorts.borrow_mut().entry(key).or_insert_with(look)
    }

    /// Whether clients with this subscription see an earlier state of a name in this `snapshot` of their store.
    pub fn holds(
        &self,
        of: &TypeCache,
        snapshot: &Snapshot,
        subscription: &Subscription,
        name: &Name,
    ) -> bool {
        let mut stores = self.of_store(of).filter(|store| store.names.contains(name));
        stores.any(|store| store.is_ahead(of, snapshot, subscription, name))
    }

    /// Names whose state in this store may not be the newest, each with the origin's snapshot.
    pub fn newest<'s>(&'s self, of: &TypeCache) -> impl Iterator<Item = (&'s Name, &'s Snapshot)> {
        let names = |store: &'s OpenStore| store.names.iter().map(move |name| (store, name));
        let seen = self.of_store(of).flat_map(names).filter(|(store, name)| store.is_seen(of, name));
        seen.map(|(store, name)| (name, &*store.origin))
    }

    fn of_store<'s>(&'s self, of: &TypeCache) -> impl Iterator<Item = &'s OpenStore> {
        self.stores.iter().filter(|store| store.cache == of.cache() && store.key.0 == *of.type_url())
    }
}

impl OpenStore {
    /// Open names that a subscription may ask for.
    fn asked<'s>(&'s self, subscription: &'s Subscription) -> impl Iterator<Item = &'s Name> {
        let is_wide = subscription.wildcard || subscription.has_collections();
        let all = is_wide.then_some(&self.names).into_iter().flatten();
        let few = (!is_wide).then(|| subscription.names()).into_iter().flatten();
        all.chain(few.filter(|name| self.names.contains(*name)))
    }

    /// Whether a store shows names of these parameters, and this one.
    fn is_seen(&self, of: &TypeCache, name: &Name) -> bool {
        let view = of.parameter_view();
        *view.of(name.as_str()) == self.key.1 && view.scope().allows(name.as_str())
    }

    /// Whether clients with this subscription see another state of a name in this `snapshot` of their store.
    fn is_ahead(
        &self,
        of: &TypeCache,
        snapshot: &Snapshot,
        subscription: &Subscription,
        name: &Name,
    ) -> bool {
        if !self.is_seen(of, name) {
            return false;
        }
        let (view, text) = (of.parameter_view(), name.as_str());
        let reach = Reach::of(name, snapshot, &self.origin);
        let by_name = subscription.contains(text) || subscription.covers(text);
        let as_member = subscription.wildcard && !view.is_beside_wildcard(text);
        (reach.by_name && by_name) || (reach.as_member && as_member)
    }
}
