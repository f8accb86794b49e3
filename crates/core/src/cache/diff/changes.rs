//! Changes since a position, and what is owed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::super::Generation;
use super::super::entry::{Entry, Seen};
use super::super::position::NextPosition;
use super::super::subscription::Look;
use super::super::update::{OwedItems, Update};
use super::{Diff, ErrorEntries, ErrorTiming, News, Order};
use crate::resource::{Form, Name, Resource};

type Added<'s> = SmallVec<[News<'s>; 4]>;

/// Changes since a position, before it is known how many of them fit.
#[derive(Default)]
struct Collected<'s> {
    /// News in the order in which they are told.
    added: Added<'s>,
    /// Bytes of `added`.
    bytes: usize,
    failing: ErrorEntries<'s>,
    /// Names that went, each with when it did.
    removed: Vec<(Generation, Name)>,
    /// Names that were asked for at first and do not exist.
    absent: Vec<Name>,
}

impl Diff<'_> {
    /// Tells the changes since, and what is owed.
    pub(super) fn changes(&self, update: &mut Update, owed: &OwedItems) {
        let order = self.order();
        let Collected { added, bytes, mut failing, mut removed, absent } = self.collect(update, owed, order);
        let mut told: HashSet<Name> = removed.iter().map(|(_, name)| name).chain(&absent).cloned().collect();
        let (own, is_cut) = self.owed(update, owed, &mut failing, &mut told);
        if is_cut || (own > 0 && bytes > 0 && own + bytes > self.limit) {
            // Too much for one response: what is owed goes first, and nothing else yet.
            update.next = NextPosition::Stay;
            update.to = self.position.added;
            if self.snapshot.has_aliases() {
                tell_once(update, &mut removed);
            }
            self.keep_owed(update, |_| true);
            self.tell_errors(update, failing, owed);
            return;
        }

        let bytes = own + self.tell_absent(update, absent, own);
        let bytes = bytes + self.tell_added(update, added, order, bytes);
        // Changes since a run through names began are told again, where they were told at all.
        update.to = self.position.reach().unwrap_or(update.to);
        if self.snapshot.has_aliases() {
            tell_once(update, &mut removed);
        }
        // Removals come with the last part, and behind it.
        if !update.is_partial() {
            let bytes = bytes + self.tell_removed(update, removed, bytes);
            self.tell_gone(update, owed, &mut told, bytes);
        }
        self.let_go_of_held(update, owed);
        self.tell_errors(update, failing, owed);
    }

    /// Goes through the entries that may have changed, until it has more than fits. An entry whose name the client holds in
    /// this content is no news to it.
    fn collect(&self, update: &mut Update, owed: &OwedItems, order: Order) -> Collected<'_> {
        let floor = self.position.floor();
        let reach = self.position.reach();
        let (mut all, mut lost) = (Collected::default(), BTreeMap::new());
        let (mut has_news, mut is_full) = (false, false);
        let is_held = |entry: &Entry, resource: &Resource| {
            let held = owed.held.get(entry.name()).filter(|_| !owed.names.contains(entry.name()));
            held.is_some_and(|held| held.same_content(resource)) && !self.is_told_anyway(entry)
        };
        let Collected { added, bytes, failing, removed, absent } = &mut all;
        self.for_each_candidate(order, |entry, look| {
            let is_passed = self.position.has_passed(entry.name().as_str());
            let news = self.news(entry, &look).filter(|_| !is_passed);
            let (held, news) = news.map_or((None, None), |news| match look.seen {
                Seen::Present(resource) if is_held(entry, resource) => (Some(news), None),
                _ => (None, Some(news)),
            });
            if let Some(held) = held {
                update.to = update.to.max(held.changed);
            }
            if news.is_some() {
                if is_full {
                    // To a client that is new what does not exist is said with the first part.
                    return if self.position.is_start() {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    };
                }
                // One more shows that more follows. It begins the next part, so what lies before it is looked at twice at
                // most. Without an order all have to be known to tell which are first.
                is_full = order != Order::None && *bytes >= self.limit;
            }
            if look.failed.is_some() {
                let body = look.changed > floor && matches!((look.seen, news), (Seen::Present(_), Some(_)));
                failing.extend(self.telling(entry, &look, body).map(|telling| (entry, telling, false)));
            }
            let stood_for = self.lost_through(entry, &look, &mut lost);
            if let Some(news) = news {
                if let Seen::Present(_) = look.seen {
                    has_news |= look.changed > floor;
                    self.beat(update, entry, &look, owed);
                } else {
                    has_news = true;
                }
                *bytes += self.bytes_of(update, news.resource);
                added.push(news);
                update.to = update.to.max(news.changed);
            }
            match look.seen {
                // A body that came while it could not be told was not kept: it has to be asked for upstream.
                Seen::Dropped(_) if !is_passed && self.is_news(entry, &look) => {
                    update.missed.push(entry.name().clone())
                }
                // The resource that an alias stood for is told in its place.
                Seen::Absent if stood_for => {
                    update.to = update.to.max(look.changed);
                    has_news = true;
                }
                Seen::Absent
                    if look.changed > self.position.removed
                        && look.since <= self.position.seen
                        && reach.is_none_or(|reach| look.changed <= reach) =>
                {
                    update.to = update.to.max(look.changed);
                    has_news = true;
                    if self.is_seen_by_alias(entry.name()) {
                        // The client sees it by another name still.
                    } else if self.position.is_start() && !owed.gone.contains(entry.name()) {
                        absent.push(entry.name().clone());
                    } else {
                        removed.push((look.changed, entry.name().clone()));
                    }
                }
                // A denied resource stays with clients that already hold it and is sent to nobody else (R-Err-06).
                Seen::Present(_)
                | Seen::Denied(_)
                | Seen::Unresolved(_)
                | Seen::Dropped(_)
                | Seen::Absent
                | Seen::Unknown
                | Seen::Failed
                | Seen::Collection => {}
            }
            ControlFlow::Continue(())
        });
        add_once(removed, lost);
        if self.is_timed && !has_news {
            // That times were renewed is no change.
            update.at = None;
        }
        if order == Order::None {
            added.sort_unstable_by_key(|news| news.place);
        }
        all
    }

    /// Tells as many of these as fit behind so many bytes, but one in any case; returns the bytes that they take. What does
    /// not fit begins the next part.
    fn tell_added(&self, update: &mut Update, mut added: Added<'_>, order: Order, before: usize) -> usize {
        let (mut bytes, mut count) = (before, 0);
        for News { resource, .. } in &added {
            // Each part has something new.
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
            // A resource with several names is sent once, in its newest copy (R-Delta-14).
            added.sort_unstable_by_key(|news| news.place);
        }
        for News { resource, .. } in added {
            let is_changed = !self.position.is_start() && !update.is_heartbeat(resource);
            if let Some(service) = resource.eds_service().filter(|_| is_changed) {
                update.endpoints.push(service.clone());
            }
            update.resources.push(Arc::clone(resource));
        }
        if let Some((name, place)) = last.filter(|_| is_cut) {
            if order == Order::Name {
                let at = self.position.reach().unwrap_or(self.snapshot.generation);
                self.keep_owed(update, |news| news.name > &name || news.changed > at);
                (update.to, update.next) = (at, NextPosition::Names { at, after: name });
            } else {
                self.keep_owed(update, |news| news.place > place);
                (update.to, update.next) = (place, NextPosition::Changes { floor: self.position.floor() });
            }
        }
        bytes - before
    }

    fn is_news(&self, entry: &Entry, look: &Look<'_>) -> bool {
        let (changed, place) = self.stamps(entry, look);
        changed > self.position.floor() && !self.position.has_told(entry.name().as_str(), changed, place)
    }

    /// News to tell of an entry beside removals and errors, if any.
    pub(in crate::cache) fn news<'s>(&self, entry: &'s Entry, look: &Look<'s>) -> Option<News<'s>> {
        let resource = match look.seen {
            Seen::Present(resource) => resource,
            Seen::Unresolved(resource) if self.is_delta() => resource,
            _ => return None,
        };
        let (changed, place) = self.stamps(entry, look);
        self.is_news(entry, look).then_some(News { name: entry.name(), changed, place, resource })
    }

    /// Forgets variants that the client held with other parameters, where it is told their name now; once an answer is
    /// complete, all whose names are known. What changed behind a run through names comes once more.
    fn let_go_of_held(&self, update: &mut Update, owed: &OwedItems) {
        let is_over = |name: &Name| {
            let entry = self.snapshot.get(name.as_str());
            let changed = entry.and_then(|entry| self.look_at(entry)).map(|look| look.changed);
            !matches!(self.snapshot.by_name(name.as_str()), Seen::Unknown)
                && self.position.reach().is_none_or(|reach| changed.is_none_or(|changed| changed <= reach))
        };
        let told = update.resources.iter().filter_map(|resource| owed.held.get_key_value(resource.name()));
        let is_cut = update.is_partial() || update.removed_to.is_some();
        let known = owed.held.iter().filter(|(name, _)| !is_cut && is_over(name));
        let over: Vec<_> = told.chain(known).map(|(name, held)| (name.clone(), Arc::clone(held))).collect();
        update.owed.held.extend(over);
    }

    /// Whether an entry is told to a client that holds it: behind a cluster (R-ADS-05), or for its time (R-TTL-09).
    fn is_told_anyway(&self, entry: &Entry) -> bool {
        let lease = self.subscription.history(entry).and_then(|history| history.lease());
        (self.profile.aggregated && entry.repushed() != Generation::ZERO)
            || (self.is_timed && lease.is_some())
    }

    /// Tells which of the names that were asked for at first do not exist. Those that do not fit are owed.
    fn tell_absent(&self, update: &mut Update, mut absent: Vec<Name>, mut bytes: usize) -> usize {
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

    /// Tells what is gone, up to the limit. What does not fit is told next: the first to go goes first, so that the place
    /// of a client says what it was told.
    fn tell_removed(&self, update: &mut Update, mut removed: Vec<(Generation, Name)>, bytes: usize) -> usize {
        let all: usize = removed.iter().map(|(_, name)| self.gone_bytes(name)).sum();
        let mut told = all;
        if all > 0 && bytes + all > self.limit {
            removed.sort_unstable();
            told = 0;
            let mut last = None;
            let fit = removed.iter().take_while(|(at, name)| {
                // Removals of one generation are told together.
                let fits = bytes + told < self.limit || last == Some(*at);
                if fits {
                    (told, last) = (told + self.gone_bytes(name), Some(*at));
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
        told
    }

    /// Tells what the client is owed to be told is gone, up to the limit.
    fn tell_gone(&self, update: &mut Update, owed: &OwedItems, told: &mut HashSet<Name>, mut bytes: usize) {
        for name in &owed.gone {
            if bytes >= self.limit {
                return;
            }
            if self.may_exist(name) {
                continue;
            }
            let held =
                self.snapshot.get(name.as_str()).and_then(|entry| self.subscription.look(entry, false));
            if held.is_none_or(|look| look.seen.existing().is_none())
                && !self.is_seen_by_alias(name)
                && told.insert(name.clone())
            {
                bytes += self.gone_bytes(name);
                update.removed.push(name.clone());
            }
            update.owed.gone.insert(name.clone());
        }
    }

    /// Adds what the client is owed beside what is news, which it is told now or in a later part; returns how many bytes
    /// that is, and whether some of it is left. `told` are names that are told to be gone: they may be as many as a request has,
    /// and each is looked up, not searched for.
    fn owed<'s>(
        &'s self,
        update: &mut Update,
        owed: &OwedItems,
        failing: &mut ErrorEntries<'s>,
        told: &mut HashSet<Name>,
    ) -> (usize, bool) {
        if owed.is_empty() {
            return (0, false);
        }
        let is_added =
            |entry: &Entry| self.look_at(entry).is_some_and(|look| self.news(entry, &look).is_some());
        let mut bytes = 0;
        for name in &owed.names {
            if bytes >= self.limit {
                return (bytes, true);
            }
            let entry = self.snapshot.table.get(name.as_str());
            let seen = match entry.and_then(|entry| Some((entry, self.subscription.look(entry, false)?))) {
                Some((entry, _)) if is_added(entry) => Seen::Unknown,
                Some((entry, look)) => {
                    if look.failed.is_some() {
                        let body = matches!(look.seen, Seen::Present(_));
                        let telling = if body { ErrorTiming::Later } else { ErrorTiming::Now };
                        failing.push((entry, telling, true));
                    }
                    look.seen
                }
                // No longer asked for by name: whether the wildcard has it is the answer (R-Delta-09), if known.
                None if self.subscription.contains(name.as_str()) => Seen::Unknown,
                None if self.subscription.wildcard => Seen::Absent,
                None => Seen::Unknown,
            };
            match seen {
                Seen::Present(resource) => {
                    bytes += self.bytes_of(update, resource);
                    update.endpoints.extend(resource.eds_service().cloned());
                    update.resources.push(Arc::clone(resource));
                }
                Seen::Absent if self.may_exist(name) => continue,
                Seen::Absent if !self.subscription.contains(name.as_str()) => {
                    bytes += self.let_go(update, name, entry, told);
                }
                Seen::Absent if told.insert(name.clone()) => {
                    bytes += self.gone_bytes(name);
                    update.absent.push(name.clone());
                }
                Seen::Unresolved(resource) if self.is_delta() => {
                    bytes += self.bytes_of(update, resource);
                    update.resources.push(Arc::clone(resource));
                }
                Seen::Dropped(_) => {
                    // It stays owed until it has come again.
                    update.missed.push(name.clone());
                    continue;
                }
                // An unknown name is told when it is known, as a change like any other.
                // The members of a collection are owed beside it.
                Seen::Absent
                | Seen::Unknown
                | Seen::Collection
                | Seen::Failed
                | Seen::Denied(_)
                | Seen::Unresolved(_) => {}
            }
            update.owed.names.insert(name.clone());
        }
        (bytes, false)
    }
}

/// Adds names that went to a list that has each once; of a name that is in both, when it went last.
fn add_once(list: &mut Vec<(Generation, Name)>, mut names: BTreeMap<Name, Generation>) {
    if !names.is_empty() {
        for (at, name) in &mut *list {
            *at = names.remove(name).unwrap_or_default().max(*at);
        }
        list.extend(names.into_iter().map(|(name, at)| (at, name)));
    }
}

/// Keeps one copy, the newest, of a resource that is seen by several names (R-Delta-14). `removed` are to be told with it.
fn tell_once(update: &mut Update, removed: &mut Vec<(Generation, Name)>) {
    let mut told: HashSet<Name> = HashSet::default();
    update.resources.reverse();
    update.resources.retain(|resource| told.insert(resource.name().clone()));
    update.resources.reverse();
    let answers = update.resources.iter().any(|resource| resource.form() == Form::Unresolved);
    if answers {
        removed.retain(|(_, name)| !told.contains(name));
        update.absent.retain(|name| !told.contains(name));
    }
}
