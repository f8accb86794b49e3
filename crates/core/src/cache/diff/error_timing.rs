//! Errors of an update, and when each is sent.

use std::sync::Arc;

use foldhash::{HashSet, HashSetExt};

use super::super::Generation;
use super::super::entry::{Entry, VisibleState};
use super::super::origin_error::{UpdateErrors, error_size};
use super::super::position::Class;
use super::super::subscription::VisibleEntry;
use super::super::update::Update;
use super::{Diff, ErrorEntries, ErrorTiming};
use crate::resource::Name;

const MAX_ERRORS: usize = 1000;

impl Diff<'_> {
    /// When to send a candidate's error, if it is news; `body` if its body is sent now.
    pub(super) fn error_timing(
        &self,
        entry: &Entry,
        visible: &VisibleEntry<'_>,
        body: bool,
    ) -> Option<ErrorTiming> {
        let failed = visible.failed?;
        if body {
            // It is news again after the body, which makes the client forget it (R-Err-01).
            return Some(ErrorTiming::Later);
        }
        let is_absent = matches!(visible.state, VisibleState::Absent);
        if is_absent && visible.since > self.position.newest_state {
            return None;
        }
        if is_absent && failed.failure.is_not_found() {
            return match self.position.is_start() {
                true => Some(ErrorTiming::AtFirst),
                false => (failed.at > self.position.removed).then_some(ErrorTiming::WithRemoval),
            };
        }
        let is_news = failed.at > self.position.floor()
            && !self.position.was_sent(entry.name().as_str(), failed.at, entry.position());
        is_news.then_some(ErrorTiming::Now)
    }

    pub(super) fn visible_entry<'e>(&self, entry: &'e Entry) -> Option<VisibleEntry<'e>> {
        self.subscription.visible_entry(entry, self.profile.aggregated)
    }

    /// Adds errors to an update that is otherwise finished.
    pub(super) fn add_errors<'s>(&'s self, update: &mut Update, mut failing: ErrorEntries<'s>) {
        if failing.is_empty() && self.owed.errors.is_empty() {
            return;
        }
        let entries = self.owed.errors.iter().filter_map(|name| self.snapshot.table.get(name.as_str()));
        failing.extend(entries.map(|entry| (entry, ErrorTiming::Now, true)));
        // Errors of resources in a later part come with that part.
        let partial = update.is_partial();
        let is_cut = partial || self.position.reach().is_some();
        let mut left = self.position.clone();
        update.advance(&mut left, Class::Additions);
        // Whether a later part sends the error: as news, behind the body, or with its removal.
        let is_sent_later = |entry: &Entry, timing| {
            let Some(visible) = self.visible_entry(entry) else { return false };
            let is_news = |at: Generation| {
                at > left.floor() && !left.was_sent(entry.name().as_str(), at, entry.position())
            };
            let goes_along =
                matches!(visible.state, VisibleState::Present(_)) || timing == ErrorTiming::WithRemoval;
            let follows = goes_along && is_news(visible.changed);
            is_cut && (follows || visible.failed.is_some_and(|failed| is_news(failed.at)))
        };
        let removed_to = update.removed_to;
        // The first part has the nonexistent names, as far as they fit.
        let absent: Option<HashSet<Name>> = (update.next.is_none() || !update.absent_later.is_empty())
            .then(|| update.absent.iter().cloned().collect());
        let is_ahead = |entry: &Entry, timing| match timing {
            ErrorTiming::AtFirst => absent.as_ref().is_some_and(|absent| !absent.contains(entry.name())),
            ErrorTiming::WithRemoval => {
                let at = self.visible_entry(entry).and_then(|visible| visible.failed).map(|failed| failed.at);
                let goes_later = removed_to.is_some_and(|removed_to| at.is_some_and(|at| at > removed_to));
                partial || goes_later || is_sent_later(entry, timing)
            }
            ErrorTiming::Now | ErrorTiming::Later => is_sent_later(entry, timing),
        };
        let waits = |(entry, timing, is_owed): &(&Arc<Entry>, ErrorTiming, bool)| {
            let timing = if *is_owed {
                self.visible_entry(entry).and_then(|visible| self.error_timing(entry, &visible, false))
            } else {
                Some(*timing)
            };
            timing.is_some_and(|timing| is_ahead(entry, timing))
        };
        let mut errors = UpdateErrors::default();
        let mut done: HashSet<&Name> = HashSet::new();
        for item in failing.iter().filter(|(_, timing, _)| *timing == ErrorTiming::Later) {
            let ((entry, _, is_owed), waits) = (item, waits(item));
            if waits && !is_owed {
                continue;
            }
            // An owed name is in this part, whichever error comes with it.
            if done.insert(entry.name()) && !waits {
                errors.later.push(entry.name().clone());
            }
        }
        let mut bytes = 0;
        let news = failing.iter().filter(|item| item.1 != ErrorTiming::Later && !waits(item));
        let news = news.map(|(entry, timing, _)| (*entry, *timing));
        for (entry, timing) in news {
            let Some(failed) = self.visible_entry(entry).and_then(|visible| visible.failed) else { continue };
            if !done.insert(entry.name()) {
                continue;
            }
            if !partial {
                update.to = update.to.max(failed.at);
            }
            if bytes >= self.limit || errors.sent.len() + errors.lost.len() >= MAX_ERRORS {
                errors.later.push(entry.name().clone());
                continue;
            }
            bytes += error_size(entry.name(), &failed.failure);
            let list = if timing == ErrorTiming::WithRemoval { &mut errors.lost } else { &mut errors.sent };
            list.push((entry.name().clone(), Arc::clone(&failed.failure)));
        }
        update.additions |= !errors.sent.is_empty();
        update.removals |= !errors.lost.is_empty();
        update.owed.errors.clone_from(&self.owed.errors);
        update.errors = Some(Box::new(errors));
    }
}
