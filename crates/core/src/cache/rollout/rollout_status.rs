//! State of rollouts for operators, and the report of held changes for the control plane.
//!
//! Owns a report's text and size: canaries choose texts, the control plane names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::snapshot::Snapshot;
use super::trial::{StoreKey, Waiting, has};
use super::verdicts::{Evidence, Verdicts};
use super::{Rollout, RolloutState};
use crate::resource::{Name, Parameters, TypeUrl};

/// Most bytes of a report, and of the names in it.
const REPORT_BYTES: usize = 4 << 10;
const NAMES_BYTES: usize = 2 << 10;
/// Most rejection texts.
const TEXTS: usize = 8;
/// Most characters of a name, a version or a set of parameters.
const NAME_CHARS: usize = 200;

#[derive(Clone, Debug)]
pub struct RolloutStatus {
    pub phase: Phase,
    /// Streams of canaries.
    pub canaries: usize,
    /// Names in the trial.
    pub tried: usize,
    /// Names that changed since it began.
    pub waiting: usize,
    /// Trials in a row without an answer.
    pub unanswered: usize,
    /// Discarded changes that the origin has not replaced.
    pub discarded: Vec<(TypeUrl, Name)>,
    pub held: Vec<HeldChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All clients have the newest content, except discarded changes.
    Idle,
    /// Changes came, and the trial has not begun.
    Gathering,
    Trying {
        left: Duration,
    },
    /// Too many canaries rejected a change.
    Held,
}

#[derive(Clone, Debug)]
pub struct HeldChange {
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
            None if state.fresh.is_empty() => Phase::Idle,
            None => Phase::Gathering,
            Some(trial) if trial.held.is_empty() => {
                Phase::Trying { left: trial.ends.saturating_duration_since(now) }
            }
            Some(_) => Phase::Held,
        };
        let is_held =
            |place: &&(StoreKey, Name)| state.trial.as_ref().is_some_and(|trial| trial.held.contains(place));
        let discarded = state.withheld.keys().filter(|place| !is_held(place));
        let count = |waiting: &Waiting| waiting.values().map(BTreeMap::len).sum();
        let held = state.trial.iter().flat_map(|trial| {
            trial.held.iter().filter_map(|(key, name)| {
                let evidence = trial.names.get(key)?.get(name)?;
                let content = trial.content.get(key)?;
                Some(HeldChange {
                    type_url: key.0.clone(),
                    parameters: key.1.clone(),
                    name: name.clone(),
                    version: version(content, name),
                    accepted: evidence.verdicts.accepted(),
                    rejected: evidence.verdicts.rejected(),
                    texts: evidence.verdicts.texts().to_vec(),
                })
            })
        });
        RolloutStatus {
            phase,
            canaries: state.canaries,
            tried: state.trial.as_ref().map_or(0, |trial| count(&trial.names)),
            waiting: count(&state.fresh),
            unanswered: state.unanswered,
            discarded: discarded.map(|((of, _), name)| (of.clone(), name.clone())).collect(),
            held: held.collect(),
        }
    }

    /// Whether held changes of a type are reported to the control plane.
    pub(crate) fn reports(&self, type_url: &TypeUrl) -> bool {
        self.settings.reports && self.guards(type_url)
    }

    /// Whether there are held changes to report. Between two holds there is a decision, after which none are.
    pub(crate) fn has_report(&self) -> bool {
        self.settings.reports && self.state.lock().trial.as_ref().is_some_and(|trial| !trial.held.is_empty())
    }

    pub(crate) fn held_types(&self) -> BTreeSet<TypeUrl> {
        let state = self.state.lock();
        let held = state.trial.iter().flat_map(|trial| &trial.held);
        held.map(|((type_url, _), _)| type_url.clone()).collect()
    }

    /// Report of a type's held changes. `None` if there are none any more, or an operator decided.
    ///
    /// Example: `held after canaries rejected it: a at version 2 (1 of 3 canaries): no such cluster`.
    pub(crate) fn report(&self, type_url: &TypeUrl) -> Option<String> {
        let state = self.state.lock();
        if state.order.is_some() {
            return None;
        }
        let mut words = ReportText::default();
        state.held_of(type_url).for_each(|(place, evidence)| words.add(&state, place, evidence));
        words.finish()
    }
}

impl RolloutState {
    /// Held changes of a type that did not change again.
    fn held_of<'a>(
        &'a self,
        type_url: &'a TypeUrl,
    ) -> impl Iterator<Item = (&'a (StoreKey, Name), &'a Evidence)> {
        self.trial.iter().flat_map(move |trial| {
            let held = trial.held.iter().filter(move |((of, _), _)| of == type_url);
            let held = held.filter(|(key, name)| !has(&self.fresh, key, name));
            held.filter_map(|place| Some((place, trial.names.get(&place.0)?.get(&place.1)?)))
        })
    }
}

#[derive(Default)]
struct ReportText<'a> {
    names: String,
    /// Changes in it, and changes without room.
    named: usize,
    unnamed: usize,
    texts: Vec<&'a Arc<str>>,
    /// Last verdicts whose texts were taken: many changes share one record.
    read: Option<&'a Arc<Verdicts>>,
}

impl<'a> ReportText<'a> {
    fn add(&mut self, state: &RolloutState, place: &(StoreKey, Name), evidence: &'a Evidence) {
        let verdicts = &evidence.verdicts;
        if self.unnamed > 0 || !self.add_name(state, place, verdicts) {
            self.unnamed += 1;
        }
        if self.read.is_some_and(|read| Arc::ptr_eq(read, verdicts)) {
            return;
        }
        self.read = Some(verdicts);
        for text in verdicts.texts() {
            if self.texts.len() < TEXTS && !self.texts.contains(&text) {
                self.texts.push(text);
            }
        }
    }

    /// Adds a change by name. Returns whether there was room.
    fn add_name(
        &mut self,
        state: &RolloutState,
        (key, name): &(StoreKey, Name),
        verdicts: &Verdicts,
    ) -> bool {
        let content = state.trial.as_ref().and_then(|trial| trial.content.get(key));
        let is = match content.and_then(|content| version(content, name)) {
            Some(version) => format!("{} at version {}", plain(name.as_str()), plain(&version)),
            None => format!("removal of {}", plain(name.as_str())),
        };
        let parameters =
            if key.1.is_empty() { String::new() } else { format!(" for {}", plain(&key.1.to_string())) };
        let (rejected, answered) = (verdicts.rejected(), verdicts.rejected() + verdicts.accepted());
        let comma = if self.named == 0 { "" } else { ", " };
        let words = format!("{comma}{is}{parameters} ({rejected} of {answered} canaries)");
        // One name always fits.
        let has_room = self.names.len() + words.len() <= NAMES_BYTES || self.named == 0;
        if has_room {
            self.names.push_str(&words);
            self.named += 1;
        }
        has_room
    }

    fn finish(self) -> Option<String> {
        if self.named == 0 {
            return None;
        }
        let mut report = format!("held after canaries rejected it: {}", self.names);
        if self.unnamed > 0 {
            report.push_str(&format!(" and {} more", self.unnamed));
        }
        for (at, text) in self.texts.into_iter().enumerate() {
            report.push_str(if at == 0 { ": " } else { " | " });
            report.extend(text.chars().map(visible));
        }
        report.truncate(report.floor_char_boundary(REPORT_BYTES));
        Some(report)
    }
}

/// A name in one line, cut to the length for reports.
fn plain(text: &str) -> String {
    text.chars().take(NAME_CHARS).map(visible).collect()
}

/// Replaces control characters, which could break a log line, by spaces.
fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

fn version(content: &Snapshot, name: &Name) -> Option<Box<str>> {
    content.get(name.as_str())?.by_name().present().map(|resource| resource.version().into())
}
