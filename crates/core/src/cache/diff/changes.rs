//! Changes since a position, and owed items; also of resources that clients see through aliases (R-Relay-20).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::super::Generation;
use super::super::entry::{Entry, Named, VisibleState};
use super::super::position::Part;
use super::super::subscription::VisibleEntry;
use super::super::update::Update;
use super::{Diff, ErrorEntries, ErrorTiming, News, Order};
use crate::resource::{Form, Name};

type Added<'s> = SmallVec<[News<'s>; 4]>;

#[derive(Default)]
struct Collected<'s> {
    added: Added<'s>,
    bytes: usize,
    failing: ErrorEntries<'s>,
    /// Names that went, each with its generation.
    removed: Vec<(Generation, Name)>,
    /// First-time names that do not exist.
    absent: Vec<Name>,
}

impl Diff<'_> {
    /// Adds the changes since the position, and owed items.
    pub(super) fn changes(&self, update: &mut Update) {
        let order = self.order();
        let Collected { added, bytes, mut failing, mut removed, absent } = self.collect(update, order);
        let mut sent: HashSet<Name> = removed.iter().map(|(_, name)| name).chain(&absent).cloned().collect();
        let (own, is_cut) = self.add_owed(update, &mut failing, &mut sent);
        if is_cut || (own > 0 && bytes > 0 && own + bytes > self.limit) {
            // Too much for one response: send owed items first, nothing else.
            update.next = None;
            update.to = self.position.added;
            if self.snapshot.has_aliases() {
                keep_newest_copy(update, &mut removed);
            }
            self.keep_owed(update, |_| true);
            self.add_errors(update, failing);
            return;
        }

        let bytes = own + self.add_absent(update, absent, own);
        let bytes = bytes + self.add_resources(update, added, order, bytes);
        // Changes during a run through names are sent again after it.
        update.to = self.position.reach().unwrap_or(update.to);
        if self.snapshot.has_aliases() {
            keep_newest_copy(update, &mut removed);
        }
        // Removals come with or after the last part.
        if !update.is_partial() {
            let bytes = bytes + self.add_removals(update, removed, bytes);
            self.add_owed_removals(update, &mut sent, bytes);
        }
        self.add_errors(update, failing);
    }

    /// Collects changed entries until there is more than fits.
    fn collect(&self, update: &mut Update, order: Order) -> Collected<'_> {
        let floor = self.position.floor();
        let (mut all, mut lost) = (Collected::default(), BTreeMap::new());
        let (mut has_news, mut is_full) = (false, false);
        let Collected { added, bytes, failing, removed, absent } = &mut all;
        self.for_each_candidate(order, |entry, visible| {
            let is_passed = self.position.has_passed(entry.name().as_str());
            let news = self.news(entry, &visible).filter(|_| !is_passed);
            if news.is_some() {
                if is_full {
                    // A new client gets nonexistent names with the first part.
                    return if self.position.is_start() {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    };
                }
                // One more shows that more follows; it begins the next part, so entries are visited twice at
                // most. Without an order, all are needed to find the first.
                is_full = order != Order::None && *bytes >= self.limit;
            }
            if visible.failed.is_some() {
                let body = visible.changed > floor
                    && matches!((visible.state, news), (VisibleState::Present(_), Some(_)));
                failing.extend(self.error_timing(entry, &visible, body).map(|timing| (entry, timing, false)));
            }
            let stood_for = self.lost_through(entry, &visible, &mut lost);
            if let Some(news) = news {
                if let VisibleState::Present(_) = visible.state {
                    has_news |= visible.changed > floor;
                    self.add_heartbeat(update, entry, &visible);
                } else {
                    has_news = true;
                }
                *bytes += self.bytes_of(update, news.resource);
                added.push(news);
                update.to = update.to.max(news.changed);
            }
            match visible.state {
                // The body came when it could not be sent, and was not kept: ask for it again.
                VisibleState::Dropped(_) if !is_passed && self.is_news(entry, &visible) => {
                    update.missed.push(entry.name().clone())
                }
                // The resource behind the alias is removed instead.
                VisibleState::Absent if stood_for => {
                    update.to = update.to.max(visible.changed);
                    has_news = true;
                }
                VisibleState::Absent if self.is_removal(&visible) => {
                    update.to = update.to.max(visible.changed);
                    has_news = true;
                    if self.is_seen_by_alias(entry.name()) {
                        // Still visible under another name.
                    } else if self.position.is_start() && !self.owed.gone.contains(entry.name()) {
                        absent.push(entry.name().clone());
                    } else {
                        removed.push((visible.changed, entry.name().clone()));
                    }
                }
                // A denied resource stays with its holders and is sent to nobody else (R-Err-06).
                _ => {}
            }
            ControlFlow::Continue(())
        });
        add_once(removed, lost);
        if self.is_timed && !has_news {
            // Renewed TTLs are no change.
            update.changed_at = None;
        }
        if order == Order::None {
            added.sort_unstable_by_key(|news| news.place);
        }
        all
    }

    /// Whether a client at this position may hold what is absent now.
    fn is_removal(&self, visible: &VisibleEntry<'_>) -> bool {
        visible.changed > self.position.removed
            && visible.since <= self.position.newest_state
            && self.position.reach().is_none_or(|reach| visible.changed <= reach)
    }

    /// Adds as much news as fits after `before` bytes, at least one; returns the bytes added. The rest is the
    /// next part.
    fn add_resources(&self, update: &mut Update, mut added: Added<'_>, order: Order, before: usize) -> usize {
        let (mut bytes, mut count) = (before, 0);
        for News { resource, .. } in &added {
            // Each part makes progress.
            if count > 0 && bytes >= self.limit {
                break;
            }
            bytes += self.bytes_of(update, resource);
            count += 1;
        }
        let is_cut = count < added.len();
        added.truncate(count);
        let last = added.last().map(|news| (news.name.clone(), news.place));
        if order == Order::Name {
            // A resource with several names is sent once (R-Delta-14).
            added.sort_unstable_by_key(|news| news.place);
        }
        for News { resource, .. } in added {
            let is_changed = !self.position.is_start() && !update.is_heartbeat(resource);
            update.endpoints.extend(resource.eds_service().filter(|_| is_changed).cloned());
            update.resources.push(Arc::clone(resource));
        }
        if let Some((name, place)) = last.filter(|_| is_cut) {
            if order == Order::Name {
                let at = self.position.reach().unwrap_or(self.snapshot.generation);
                self.keep_owed(update, |news| news.name > &name || news.changed > at);
                (update.to, update.next) = (at, Some(Part::Names { at, after: name }));
            } else {
                self.keep_owed(update, |news| news.place > place);
                (update.to, update.next) = (place, Some(Part::Changes { floor: self.position.floor() }));
            }
        }
        bytes - before
    }

    fn is_news(&self, entry: &Entry, visible: &VisibleEntry<'_>) -> bool {
        let (changed, place) = self.stamps(entry, visible);
        changed > self.position.floor() && !self.position.was_sent(entry.name().as_str(), changed, place)
    }

    /// News of an entry, apart from removals and errors.
    pub(in crate::cache) fn news<'s>(
        &self,
        entry: &'s Entry,
        visible: &VisibleEntry<'s>,
    ) -> Option<News<'s>> {
        let resource = match visible.state {
            VisibleState::Present(resource) => resource,
            VisibleState::Unresolved(resource) if self.is_delta() => resource,
            _ => return None,
        };
        let (changed, place) = self.stamps(entry, visible);
        self.is_news(entry, visible).then_some(News { name: entry.name(), changed, place, resource })
    }

    /// Adds first-time names that do not exist. Those that do not fit are owed.
    fn add_absent(&self, update: &mut Update, mut absent: Vec<Name>, mut bytes: usize) -> usize {
        let before = bytes;
        let fit = absent.iter().take_while(|name| {
            let fits = bytes < self.limit || !self.is_delta();
            bytes += if fits { self.gone_bytes(name) } else { 0 };
            fits
        });
        update.absent_later = absent.split_off(fit.count());
        update.absent.append(&mut absent);
        bytes - before
    }

    /// Adds removals up to the limit, oldest first, so that the position covers them.
    fn add_removals(&self, update: &mut Update, mut removed: Vec<(Generation, Name)>, bytes: usize) -> usize {
        let all: usize = removed.iter().map(|(_, name)| self.gone_bytes(name)).sum();
        let mut sent = all;
        if all > 0 && bytes + all > self.limit {
            removed.sort_unstable();
            sent = 0;
            let mut last = None;
            let fit = removed.iter().take_while(|(at, name)| {
                // Removals of one generation go together.
                let fits = bytes + sent < self.limit || last == Some(*at);
                if fits {
                    (sent, last) = (sent + self.gone_bytes(name), Some(*at));
                }
                fits
            });
            let fit = fit.count();
            if fit < removed.len() {
                removed.truncate(fit);
                update.removed_to = Some(last.unwrap_or(self.position.removed));
            }
        }
        update.removed.extend(removed.into_iter().map(|(_, name)| name));
        sent
    }

    fn add_owed_removals(&self, update: &mut Update, sent: &mut HashSet<Name>, mut bytes: usize) {
        for name in &self.owed.gone {
            if bytes >= self.limit {
                return;
            }
            if self.may_exist(name) {
                continue;
            }
            let held = self
                .snapshot
                .get(name.as_str())
                .and_then(|entry| self.subscription.visible_entry(entry, false));
            if held.is_none_or(|visible| visible.state.existing().is_none())
                && !self.is_seen_by_alias(name)
                && sent.insert(name.clone())
            {
                bytes += self.gone_bytes(name);
                update.removed.push(name.clone());
            }
            update.owed.gone.insert(name.clone());
        }
    }

    /// Adds owed items that are no news. Returns their bytes, and whether some are left. `sent`: names removed
    /// so far, a set because requests have many names.
    fn add_owed<'s>(
        &'s self,
        update: &mut Update,
        failing: &mut ErrorEntries<'s>,
        sent: &mut HashSet<Name>,
    ) -> (usize, bool) {
        if self.owed.is_empty() {
            return (0, false);
        }
        let is_added = |entry: &Entry| {
            self.visible_entry(entry).is_some_and(|visible| self.news(entry, &visible).is_some())
        };
        let mut bytes = 0;
        for name in &self.owed.names {
            if bytes >= self.limit {
                return (bytes, true);
            }
            let entry = self.snapshot.table.get(name.as_str());
            let seen =
                match entry.and_then(|entry| Some((entry, self.subscription.visible_entry(entry, false)?))) {
                    Some((entry, _)) if is_added(entry) => VisibleState::Unknown,
                    Some((entry, visible)) => {
                        if visible.failed.is_some() {
                            let body = matches!(visible.state, VisibleState::Present(_));
                            let timing = if body { ErrorTiming::Later } else { ErrorTiming::Now };
                            failing.push((entry, timing, true));
                        }
                        visible.state
                    }
                    // No longer asked for by name: the wildcard's membership is the answer (R-Delta-09), if
                    // known.
                    None if self.subscription.contains(name.as_str()) => VisibleState::Unknown,
                    None if self.subscription.wildcard => VisibleState::Absent,
                    None => VisibleState::Unknown,
                };
            match seen {
                VisibleState::Present(resource) => {
                    bytes += self.bytes_of(update, resource);
                    update.endpoints.extend(resource.eds_service().cloned());
                    update.resources.push(Arc::clone(resource));
                }
                VisibleState::Absent if self.may_exist(name) => continue,
                VisibleState::Absent if !self.subscription.contains(name.as_str()) => {
                    bytes += self.answer_dropped_name(update, name, entry, sent);
                }
                VisibleState::Absent if sent.insert(name.clone()) => {
                    bytes += self.gone_bytes(name);
                    update.absent.push(name.clone());
                }
                VisibleState::Unresolved(resource) if self.is_delta() => {
                    bytes += self.bytes_of(update, resource);
                    update.resources.push(Arc::clone(resource));
                }
                VisibleState::Dropped(_) => {
                    // Owed until it has come again.
                    update.missed.push(name.clone());
                    continue;
                }
                // An unknown name is sent as a change once known. Members of a collection are owed by
                // themselves.
                _ => {}
            }
            update.owed.names.insert(name.clone());
        }
        (bytes, false)
    }
}

/// Merges names into a list that has each once; the later generation wins.
fn add_once(list: &mut Vec<(Generation, Name)>, mut names: BTreeMap<Name, Generation>) {
    if !names.is_empty() {
        for (at, name) in &mut *list {
            *at = names.remove(name).unwrap_or_default().max(*at);
        }
        list.extend(names.into_iter().map(|(name, at)| (at, name)));
    }
}

/// Keeps the newest copy of a resource with several names (R-Delta-14). `removed` belongs to the same update.
fn keep_newest_copy(update: &mut Update, removed: &mut Vec<(Generation, Name)>) {
    let mut sent: HashSet<Name> = HashSet::default();
    update.resources.reverse();
    update.resources.retain(|resource| sent.insert(resource.name().clone()));
    update.resources.reverse();
    let answers = update.resources.iter().any(|resource| resource.form() == Form::Unresolved);
    if answers {
        removed.retain(|(_, name)| !sent.contains(name));
        update.absent.retain(|name| !sent.contains(name));
    }
}

impl Diff<'_> {
    fn is_seen_by_alias(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_alias(self.subscription, own.as_str())
    }

    /// Whether the client sees it under any name.
    pub(super) fn is_seen(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_itself(self.subscription, own.as_str()) || self.is_seen_by_alias(own)
    }

    /// Adds resources that the client held through this alias and sees no longer. Returns whether there were
    /// any.
    fn lost_through(
        &self,
        entry: &Entry,
        visible: &VisibleEntry<'_>,
        lost: &mut BTreeMap<Name, Generation>,
    ) -> bool {
        let Named::Alias(alias) = entry.named() else { return false };
        if self.position.is_start() || !self.subscription.contains(entry.name().as_str()) {
            return false;
        }
        // An alias of nothing is never sent as a removal (R-Delta-22).
        let is_answer =
            |name: &Name| matches!(visible.state, VisibleState::Unresolved(answer) if answer.name() == name);
        let mut stood_for = false;
        let reach = self.position.reach();
        for past in alias.past.iter().filter(|past| reach.is_none_or(|reach| past.until <= reach)) {
            if past.until > self.position.removed
                && past.since <= self.position.newest_state
                && !is_answer(&past.name)
            {
                stood_for = true;
                if !self.is_seen(&past.name) {
                    let until = lost.entry(past.name.clone()).or_default();
                    *until = past.until.max(*until);
                }
            }
        }
        stood_for
    }

    /// Answers for a name unsubscribed beside a wildcard (R-Delta-09): the alias's resource may be a member.
    /// Returns the bytes.
    fn answer_dropped_name(
        &self,
        update: &mut Update,
        name: &Name,
        entry: Option<&Arc<Entry>>,
        sent: &mut HashSet<Name>,
    ) -> usize {
        let mut bytes = 0;
        if let Some(resource) = entry.and_then(|entry| entry.stands_for()) {
            let own = resource.name();
            let member = self.snapshot.get(own.as_str()).and_then(|entry| entry.as_member().present());
            if let Some(member) = member {
                update.resources.push(Arc::clone(member));
                return self.bytes_of(update, member);
            }
            if !self.is_seen(own) && sent.insert(own.clone()) {
                update.absent.push(own.clone());
                bytes += self.gone_bytes(own);
            }
        }
        if !self.is_seen_by_alias(name) && sent.insert(name.clone()) {
            update.absent.push(name.clone());
            bytes += self.gone_bytes(name);
        }
        bytes
    }
}
