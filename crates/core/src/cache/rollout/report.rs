//! Changes that are held, in words for the control plane.
//!
//! Owns what is said, and its size: canaries choose the texts, and the control plane the names. Knows neither streams nor when it is
//! said.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::trial::{StoreKey, has};
use super::verdicts::{Evidence, Verdicts};
use super::{Rollout, State, version};
use crate::resource::{Name, TypeUrl};

/// Bytes of a report, and the part of it that names may take.
const REPORT_BYTES: usize = 4 << 10;
const NAMES_BYTES: usize = 2 << 10;
/// Texts of rejections.
const TEXTS: usize = 8;
/// Characters of a name, of a version and of a set of parameters.
const NAME_CHARS: usize = 200;

impl Rollout {
    /// Whether the control plane is told of changes of a type that are held.
    pub(crate) fn reports(&self, type_url: &TypeUrl) -> bool {
        self.settings.reports && self.guards(type_url)
    }

    /// Whether changes are held that the control plane is to be told of. Between two holds there is a decision after which none are.
    pub(crate) fn has_report(&self) -> bool {
        self.settings.reports && self.state.lock().trial.as_ref().is_some_and(|trial| !trial.held.is_empty())
    }

    /// Types of which changes are held.
    pub(crate) fn held_types(&self) -> BTreeSet<TypeUrl> {
        let state = self.state.lock();
        let held = state.trial.iter().flat_map(|trial| &trial.held);
        held.map(|((type_url, _), _)| type_url.clone()).collect()
    }

    /// Words for the changes of a type that are held; `None` if there are none, as an operator has decided on them, or the control
    /// plane has replaced them.
    ///
    /// Example: `held after canaries rejected it: a at version 2 (1 of 3 canaries): no such cluster`.
    pub(crate) fn report(&self, type_url: &TypeUrl) -> Option<String> {
        let state = self.state.lock();
        if state.order.is_some() {
            return None;
        }
        let mut words = Words::default();
        state.held_of(type_url).for_each(|(place, evidence)| words.add(&state, place, evidence));
        words.finish()
    }
}

impl State {
    /// Held changes of a type, but for those that changed since.
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

/// A report in the making.
#[derive(Default)]
struct Words<'a> {
    names: String,
    /// Changes in it, and those for which there was no room.
    named: usize,
    unnamed: usize,
    texts: Vec<&'a Arc<str>>,
    /// Verdicts of which the texts are taken: many changes share one.
    read: Option<&'a Arc<Verdicts>>,
}

impl<'a> Words<'a> {
    fn add(&mut self, state: &State, place: &(StoreKey, Name), evidence: &'a Evidence) {
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

    /// Adds the name of a change. Returns whether there was room.
    fn add_name(&mut self, state: &State, (key, name): &(StoreKey, Name), verdicts: &Verdicts) -> bool {
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
        // The first is never too long by itself.
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

/// A name in one line, and not longer than a report can bear.
fn plain(text: &str) -> String {
    text.chars().take(NAME_CHARS).map(visible).collect()
}

/// Shows a character that could break the line of a log as a space.
fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}
