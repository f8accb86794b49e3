//! Which errors an update tells, and when.

use std::sync::Arc;

use foldhash::{HashSet, HashSetExt};

use super::super::Generation;
use super::super::entry::{Entry, Seen};
use super::super::position::NextPosition;
use super::super::subscription::Look;
use super::super::update::{Errors, OwedItems, Update, size};
use super::{Diff, ErrorEntries, ErrorTiming};
use crate::resource::Name;
/// No response tells more errors than this.
const TOLD: usize = 1000;

impl Diff<'_> {
    /// When the error of a candidate is told, if it is news; `body` is whether its body is told now.
    pub(super) fn telling(&self, entry: &Entry, look: &Look<'_>, body: bool) -> Option<ErrorTiming> {
        let failed = look.failed?;
        if body {
            // It is news again after the body: that makes the client forget it (R-Err-01).
            return Some(ErrorTiming::Later);
        }
        let is_absent = matches!(look.seen, Seen::Absent);
        if is_absent && look.since > self.position.seen {
            return None;
        }
        if is_absent && failed.failure.is_not_found() {
            return match self.position.is_start() {
                true => Some(ErrorTiming::AtFirst),
                false => (failed.at > self.position.removed).then_some(ErrorTiming::WithRemoval),
            };
        }
        let is_news = failed.at > self.position.floor()
            && !self.position.has_told(entry.name().as_str(), failed.at, entry.position());
        is_news.then_some(ErrorTiming::Now)
    }

    pub(super) fn look_at<'e>(&self, entry: &'e Entry) -> Option<Look<'e>> {
        self.subscription.look(entry, self.profile.aggregated)
    }

    /// Puts errors into an update of which all else is settled.
    pub(super) fn tell_errors<'s>(
        &'s self,
        update: &mut Update,
        mut failing: ErrorEntries<'s>,
        owed: &OwedItems,
    ) {
        if failing.is_empty() && owed.errors.is_empty() {
            return;
        }
        let entries = owed.errors.iter().filter_map(|name| self.snapshot.table.get(name.as_str()));
        failing.extend(entries.map(|entry| (entry, ErrorTiming::Now, true)));
        // Errors of resources that a later part of the answer brings are told with that part.
        let partial = update.is_partial();
        let is_cut = partial || self.position.reach().is_some();
        let left = self.position.after(&update.next, update.to);
        let floor = if let NextPosition::Changes { floor } = update.next { floor } else { left.floor() };
        // Whether a later part tells the error, as news, behind the body, or with the removal that it stands for. That the name
        // has changed otherwise is no reason.
        let is_told_later = |entry: &Entry, telling| {
            let Some(look) = self.look_at(entry) else { return false };
            let is_news =
                |at: Generation| at > floor && !left.has_told(entry.name().as_str(), at, entry.position());
            let goes_along = matches!(look.seen, Seen::Present(_)) || telling == ErrorTiming::WithRemoval;
            let follows = goes_along && is_news(look.changed);
            is_cut && (follows || look.failed.is_some_and(|failed| is_news(failed.at)))
        };
        let removed_to = update.removed_to;
        // The first part says what does not exist, as far as that fits.
        let absent: Option<HashSet<Name>> = (update.next == NextPosition::Stay
            || !update.absent_later.is_empty())
        .then(|| update.absent.iter().cloned().collect());
        let is_ahead = |entry: &Entry, telling| match telling {
            ErrorTiming::AtFirst => absent.as_ref().is_some_and(|absent| !absent.contains(entry.name())),
            ErrorTiming::WithRemoval => {
                let at = self.look_at(entry).and_then(|look| look.failed).map(|failed| failed.at);
                let goes_later = removed_to.is_some_and(|removed_to| at.is_some_and(|at| at > removed_to));
                partial || goes_later || is_told_later(entry, telling)
            }
            ErrorTiming::Now | ErrorTiming::Later => is_told_later(entry, telling),
        };
        let waits = |(entry, telling, is_owed): &(&Arc<Entry>, ErrorTiming, bool)| {
            let telling = if *is_owed {
                self.look_at(entry).and_then(|look| self.telling(entry, &look, false))
            } else {
                Some(*telling)
            };
            telling.is_some_and(|telling| is_ahead(entry, telling))
        };
        let mut errors = Errors::default();
        let mut seen: HashSet<&Name> = HashSet::new();
        for item in failing.iter().filter(|(_, telling, _)| *telling == ErrorTiming::Later) {
            let ((entry, _, is_owed), waits) = (item, waits(item));
            if waits && !is_owed {
                continue;
            }
            // An owed name is in this part, be its error told with another.
            if seen.insert(entry.name()) && !waits {
                errors.later.push(entry.name().clone());
            }
        }
        let mut bytes = 0;
        let news = failing.iter().filter(|item| item.1 != ErrorTiming::Later && !waits(item));
        let news = news.map(|(entry, telling, _)| (*entry, *telling));
        for (entry, telling) in news {
            let Some(failed) = self.look_at(entry).and_then(|look| look.failed) else { continue };
            if !seen.insert(entry.name()) {
                continue;
            }
            if !partial {
                update.to = update.to.max(failed.at);
            }
            if bytes >= self.limit || errors.told.len() + errors.lost.len() >= TOLD {
                errors.later.push(entry.name().clone());
                continue;
            }
            bytes += size(entry.name(), &failed.failure);
            let list = if telling == ErrorTiming::WithRemoval { &mut errors.lost } else { &mut errors.told };
            list.push((entry.name().clone(), Arc::clone(&failed.failure)));
        }
        update.additions |= !errors.told.is_empty();
        update.removals |= !errors.lost.is_empty();
        update.owed.errors.clone_from(&owed.errors);
        update.errors = Some(Box::new(errors));
    }
}
