//! How an update is worked out from a snapshot.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashSet;
use smallvec::SmallVec;

mod aliases;
mod errors;
mod forms;

use super::Generation;
use super::change::Completeness;
use super::change_log::Changed;
use super::cohort::Cohort;
use super::entry::{Entry, Seen};
use super::position::{FellBehindError, NextPosition, Part, Position};
use super::profile::{Protocol, StreamProfile, TtlSupport};
use super::snapshot::Snapshot;
use super::subscription::{Look, Subscription};
use super::tally::Tally;
use super::update::{OwedItems, Update};
use crate::resource::{Constraints, Form, Name, Resource, TypeUrl};

/// State that an update is worked out from.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub(super) type_url: &'a TypeUrl,
    /// Number of the store, for nonces.
    pub(super) index: u32,
    pub(super) snapshot: Arc<Snapshot>,
}

/// One computation of an update.
pub(super) struct Diff<'a> {
    pub(super) snapshot: Arc<Snapshot>,
    type_url: &'a TypeUrl,
    index: u32,
    cohort: &'a Cohort,
    pub(super) subscription: &'a Subscription,
    pub(super) profile: StreamProfile,
    pub(super) position: &'a Position,
    pub(super) now: Instant,
    /// Whether there is any time to tell.
    pub(super) is_timed: bool,
    touched: Generation,
    pub(super) limit: usize,
    /// See [`OwedItems::refused`].
    refused: Option<&'a BTreeMap<Name, Generation>>,
    /// See [`OwedItems::past`].
    pub(super) past: Option<&'a BTreeMap<Name, Vec<Option<Constraints>>>>,
    /// All names that may have changed since, where the cohort remembers.
    changed: Option<Changed>,
}

/// News of an entry for a client: when it last had something to learn, the entry's place in the order of that, and
/// what it is to be told.
#[derive(Clone, Copy)]
pub(super) struct News<'s> {
    pub(super) name: &'s Name,
    changed: Generation,
    pub(super) place: Generation,
    pub(super) resource: &'s Arc<Resource>,
}

type Added<'s> = SmallVec<[News<'s>; 4]>;

/// In which order candidates come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By their places in the order of changes.
    Place,
    Name,
    None,
}

/// When an error is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorTiming {
    Now,
    /// With the first part of the first answer, which says what does not exist.
    AtFirst,
    /// With the removal that it stands for.
    WithRemoval,
    /// In a later response than the body of the same name.
    Later,
}

/// Entries of which an update has an error to tell, and whether the client is owed it.
type ErrorEntries<'s> = Vec<(&'s Arc<Entry>, ErrorTiming, bool)>;

impl<'a> Diff<'a> {
    pub(super) fn new(
        source: Source<'a>,
        cohort: &'a Cohort,
        position: &'a Position,
        touched: Generation,
        limit: usize,
        now: Instant,
    ) -> Result<Self, FellBehindError> {
        let Source { type_url, index, snapshot } = source;
        let (subscription, profile) = (&cohort.subscription, cohort.profile);
        if subscription.wildcard
            && position.removed != Generation::ZERO
            && position.removed < snapshot.horizon
        {
            return Err(FellBehindError);
        }
        if subscription.has_collections()
            && position.removed != Generation::ZERO
            && position.removed < snapshot.buried(subscription)
        {
            return Err(FellBehindError);
        }
        if position.removed != Generation::ZERO
            && position.removed < snapshot.aliases_buried
            && position.removed < snapshot.aliases_buried_for(subscription)
        {
            return Err(FellBehindError);
        }
        // Within an answer in parts the place of an entry counts, which moves by changes that are no news to the cohort.
        let from = position.added.min(position.removed);
        let whole = !position.is_start() && !position.is_in_parts();
        let changed = if whole { cohort.changed_after(from) } else { None };
        let is_timed = profile.ttl != TtlSupport::Untold && snapshot.leased > 0;
        let (refused, past) = (None, None);
        Ok(Self {
            snapshot,
            type_url,
            index,
            cohort,
            subscription,
            profile,
            position,
            now,
            is_timed,
            touched,
            limit,
            refused,
            past,
            changed,
        })
    }

    pub(super) fn run(mut self, owed: &'a OwedItems) -> Update {
        self.refused = Some(&owed.refused).filter(|refused| !refused.is_empty());
        self.past = Some(&owed.past).filter(|past| !past.is_empty());
        let update = self.look(owed);
        // The change log may lag behind the snapshot: a partial update would take the client past changes that it never got.
        let is_listed = update.to <= self.touched;
        if self.changed.is_none() || (is_listed && (update.additions || update.removals)) {
            return update;
        }
        // That there is nothing up to the newest state, marked or not, is for the snapshot alone to say.
        self.changed = None;
        self.look(owed)
    }

    fn look(&self, owed: &OwedItems) -> Update {
        let mut update = self.blank();
        let full_state = self.profile.is_full_state(self.type_url.kind());
        if full_state {
            self.full_state(&mut update, owed);
        } else if self.is_whole_set()
            && (self.position.is_start() || matches!(self.position.part, Part::Members { .. }))
        {
            self.members(&mut update);
        } else {
            self.changes(&mut update, owed);
        }
        if self.profile.protocol == Protocol::Sotw && !full_state {
            // Beside the full-state types there is no way to say that something is gone (R-SotW-19).
            update.absent.clear();
            update.removed.clear();
            update.digest = self.effective_digest();
        }
        // A missed name is as good as unknown to a client that has to be told of it.
        update.unknown_name |= !update.missed.is_empty();
        if !full_state {
            // A full state lists what is not new too.
            update.additions |= !update.resources.is_empty() || !update.absent.is_empty();
            update.removals |= !update.removed.is_empty();
        }
        if self.subscription.locators().is_some() && self.profile.protocol == Protocol::Delta {
            self.remember_variants(&mut update, owed);
        }
        self.write_forms(&mut update);
        update
    }

    /// Which variants a client may hold of what it is told of, so that it can be told that they are gone.
    fn remember_variants(&self, update: &mut Update, owed: &OwedItems) {
        let told = update.resources.iter().map(|resource| (resource.name(), Some(resource.constraints())));
        let gone = update.absent.iter().chain(&update.removed).map(|name| (name, None));
        let mut all = BTreeMap::new();
        for (name, is) in told.chain(gone).filter(|(name, _)| self.subscription.locates(name.as_str())) {
            let past = self.past_variants(name, is);
            if !past.is_empty() {
                all.insert(name.clone(), past);
            }
            if owed.past.contains_key(name) {
                update.owed.past.insert(name.clone(), Vec::new());
            }
        }
        update.past = all;
    }

    fn blank(&self) -> Update {
        let (unknown_name, known_name) = self.names_known();
        Update {
            to: self.touched,
            seen: self.snapshot.generation,
            next: NextPosition::Done,
            at: self.snapshot.at,
            profile: self.profile,
            form: self.subscription.has_own_form().then(|| self.subscription.clone()),
            past: BTreeMap::new(),
            type_url: self.type_url.clone(),
            type_index: self.index,
            version: Arc::clone(&self.snapshot.system_version),
            resources: Vec::new(),
            segments: Vec::new(),
            ghosts: Vec::new(),
            absent: Vec::new(),
            missed: Vec::new(),
            removed: Vec::new(),
            removed_to: None,
            absent_later: Vec::new(),
            errors: None,
            additions: false,
            removals: false,
            unknown_name,
            known_name,
            wildcard: self.wildcard_completeness(),
            from_start: self.position.is_start() || matches!(self.position.part, Part::Members { .. }),
            endpoints: Vec::new(),
            owed: OwedItems::default(),
            digest: 0,
            forms: None,
            frames: Default::default(),
        }
    }

    /// A wildcard that is not subscribed to has no more members to come.
    fn wildcard_completeness(&self) -> Completeness {
        if self.subscription.wildcard { self.snapshot.completeness } else { Completeness::Complete }
    }

    /// Whether a name that is no member may be one that has not come yet.
    fn may_be_member(&self, name: &Name) -> bool {
        !self.subscription.contains(name.as_str()) && self.wildcard_completeness() < Completeness::Complete
    }

    pub(super) fn is_delta(&self) -> bool {
        self.profile.protocol == Protocol::Delta
    }

    fn is_whole_set(&self) -> bool {
        self.subscription.wildcard && self.subscription.names().is_empty()
    }

    /// Whether any name in the subscription is unknown, and whether any is known.
    fn names_known(&self) -> (bool, bool) {
        let names = self.subscription.names();
        if names.is_empty() {
            return (false, false);
        }
        let unknown = self.cohort.tally(&self.snapshot).unknown;
        (unknown > 0, unknown < names.len())
    }

    /// The whole wildcard set to a client that has nothing: segment by segment, and member by member where the whole
    /// segment would be too much (R-Up-23).
    fn members(&self, update: &mut Update) {
        let (at, after) = match &self.position.part {
            Part::Members { at, after } => (*at, Some(after.as_str())),
            Part::Start | Part::Whole | Part::Changes { .. } | Part::Names { .. } => (self.touched, None),
        };
        update.to = at;
        let mut bytes = 0;
        let mut last: Option<&str> = None;
        'segments: for segment in self.snapshot.table.after(after) {
            // The last part ended within it, or segments were split or joined since.
            let is_begun =
                after.is_some_and(|after| segment.first_name().is_some_and(|first| first <= after));
            if !is_begun && !self.has_own_form(segment) && bytes + segment.delta_len() <= self.limit {
                bytes += segment.delta_len();
                last = segment.last_name();
                update.segments.push(Arc::clone(segment));
                continue;
            }
            let is_next = |member: &&Arc<Resource>| after.is_none_or(|after| member.name().as_str() > after);
            for member in segment.members().filter(is_next) {
                let size = self.bytes_of(update, member);
                if let Some(after) = last.filter(|_| bytes > 0 && bytes + size > self.limit) {
                    update.next = NextPosition::Members { at, after: after.into() };
                    break 'segments;
                }
                bytes += size;
                last = Some(member.name().as_str());
                update.resources.push(Arc::clone(member));
            }
        }
        update.additions = bytes > 0;
    }

    /// Tells the changes since, and what is owed.
    fn changes(&self, update: &mut Update, owed: &OwedItems) {
        let floor = self.position.floor();
        let reach = self.position.reach();
        let order = self.order();
        let mut added = Added::new();
        let (mut bytes, mut has_news, mut is_full) = (0, false, false);
        let mut failing = ErrorEntries::new();
        let is_held = |entry: &Entry, resource: &Resource| {
            let held = owed.held.get(entry.name()).filter(|_| !owed.names.contains(entry.name()));
            held.is_some_and(|held| held.same_content(resource)) && !self.is_told_anyway(entry)
        };
        // Names that went, and those that were asked for and do not exist.
        let (mut lost, mut removed, mut absent) = (BTreeMap::new(), Vec::new(), Vec::new());
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
                is_full = order != Order::None && bytes >= self.limit;
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
                bytes += self.bytes_of(update, news.resource);
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
                    } else if self.position.is_start() {
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
        add_once(&mut removed, lost);
        if self.is_timed && !has_news {
            // That times were renewed is no change.
            update.at = None;
        }
        if order == Order::None {
            added.sort_unstable_by_key(|news| news.place);
        }
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

        let mut bytes = own + self.tell_absent(update, absent, own);
        let mut count = 0;
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
            // Of a resource that has several names the newest copy is told (R-Delta-14).
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
                let at = reach.unwrap_or(self.snapshot.generation);
                self.keep_owed(update, |news| news.name > &name || news.changed > at);
                (update.to, update.next) = (at, NextPosition::Names { at, after: name });
            } else {
                self.keep_owed(update, |news| news.place > place);
                (update.to, update.next) = (place, NextPosition::Changes { floor });
            }
        }
        // Changes since a run through names began are told again, where they were told at all.
        update.to = reach.unwrap_or(update.to);
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

    fn is_news(&self, entry: &Entry, look: &Look<'_>) -> bool {
        let (changed, place) = self.stamps(entry, look);
        changed > self.position.floor() && !self.position.has_told(entry.name().as_str(), changed, place)
    }

    /// News to tell of an entry beside removals and errors, if any.
    pub(super) fn news<'s>(&self, entry: &'s Entry, look: &Look<'s>) -> Option<News<'s>> {
        let resource = match look.seen {
            Seen::Present(resource) => resource,
            Seen::Unresolved(resource) if self.is_delta() => resource,
            _ => return None,
        };
        let (changed, place) = self.stamps(entry, look);
        self.is_news(entry, look).then_some(News { name: entry.name(), changed, place, resource })
    }

    /// Of what the client held with other parameters, what needs not be remembered: what it is told now, and once an answer
    /// is complete all that is known. What changed behind a run through names comes once more.
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
        (self.profile.aggregated && entry.repushed != Generation::ZERO) || (self.is_timed && lease.is_some())
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
            if self.may_be_member(name) {
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
                Seen::Absent if self.may_be_member(name) => continue,
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

    /// Everything that the client may see, and whether any of it is news.
    fn full_state(&self, update: &mut Update, owed: &OwedItems) {
        let mut has_news = false;
        let mut failing = ErrorEntries::new();
        self.for_each_candidate(self.order(), |entry, look| {
            let (changed, _) = self.stamps(entry, &look);
            let is_news = changed > self.position.added;
            if look.failed.is_some() {
                let body = look.changed > self.position.added && self.given(look.seen).is_some();
                failing.extend(self.telling(entry, &look, body).map(|telling| (entry, telling, false)));
            }
            match look.seen {
                Seen::Present(resource) | Seen::Denied(resource)
                    if is_news && self.given(look.seen).is_some() =>
                {
                    update.additions = true;
                    has_news |= look.changed > self.position.added;
                    let is_changed = !self.position.is_start() && !self.is_only_renewed(entry, &look, owed);
                    if let Some(service) = resource.eds_service().filter(|_| is_changed) {
                        update.endpoints.push(service.clone());
                    }
                }
                Seen::Absent if look.changed > self.position.removed && look.since <= self.position.seen => {
                    update.removals = true;
                    has_news = true;
                    let is_seen = |name| self.snapshot.has_aliases() && self.is_seen(name);
                    update.ghosts.extend(entry.ghost().filter(|ghost| !is_seen(ghost.name())).cloned());
                }
                Seen::Present(_)
                | Seen::Denied(_)
                | Seen::Absent
                | Seen::Unknown
                | Seen::Failed
                | Seen::Dropped(_)
                | Seen::Unresolved(_)
                | Seen::Collection => return ControlFlow::Continue(()),
            }
            update.to = update.to.max(changed);
            ControlFlow::Continue(())
        });
        if self.is_timed && !has_news {
            // That times were renewed is no change.
            update.at = None;
        }
        if self.position.is_start() {
            update.ghosts.clear();
            update.removals = false;
            // A client that asks for nothing is told nothing, not even that nothing is there.
            update.additions = !self.subscription.is_empty();
        }
        if self.is_whole_set() {
            let segments = self.snapshot.table.after(None);
            if self.is_timed || self.subscription.locates(Name::WILDCARD) {
                let (own, shared): (Vec<_>, Vec<_>) =
                    segments.iter().partition(|segment| self.has_own_form(segment));
                update.segments = shared.into_iter().cloned().collect();
                update.resources.extend(own.into_iter().flat_map(|segment| segment.members()).cloned());
            } else {
                update.segments = segments.to_vec();
            }
        } else {
            if self.subscription.wildcard {
                update.resources.extend(self.snapshot.members().cloned());
            }
            update.resources.extend(self.explicit().cloned());
        }
        update.digest = self.effective_digest();
        self.tell_errors(update, failing, owed);
    }

    /// Resource that a full state includes for what is seen. A denied one is included only for clients that already had it.
    fn given<'s>(&self, seen: Seen<'s>) -> Option<&'s Arc<Resource>> {
        let is_refused = |resource: &Name| self.refused.is_some_and(|refused| refused.contains_key(resource));
        match seen {
            Seen::Denied(resource) if is_refused(resource.name()) => None,
            _ => seen.present(),
        }
    }

    /// Resources that were asked for by name or through a collection, exist, and are not seen through the wildcard anyway.
    fn explicit(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.snapshot.beside_wildcard(self.subscription).filter_map(|seen| self.given(seen))
    }

    fn effective_digest(&self) -> u128 {
        // A resource with several names counts once, and one that is kept from this client does not.
        let is_kept = Tally::has_digest(self.subscription, self.profile);
        if is_kept && !self.snapshot.has_aliases() && self.refused.is_none() {
            return self.cohort.tally(&self.snapshot).digest;
        }
        let members = if self.subscription.wildcard { self.snapshot.wildcard_digest } else { 0 };
        self.explicit().fold(members, |sum, resource| sum.wrapping_add(resource.digest()))
    }

    /// In which order [`for_each_candidate`](Self::for_each_candidate) has them: from the order of changes, or by name where
    /// that is less. An answer in parts goes on as it began.
    fn order(&self) -> Order {
        if self.changed.is_some() {
            return Order::None;
        }
        match self.position.part {
            Part::Names { .. } => return Order::Name,
            Part::Changes { .. } => return Order::Place,
            Part::Start | Part::Whole | Part::Members { .. } => {}
        }
        let names = self.subscription.names().len();
        let from = (Bound::Excluded(self.position.added.min(self.position.removed)), Bound::Unbounded);
        // How many names a collection stands for is not known before they are looked at.
        let has_collections = self.subscription.has_collections();
        let is_shorter = || {
            !self.position.is_start()
                && (has_collections || self.snapshot.log.range(from).nth(names).is_none())
        };
        let few_renewed =
            || !self.is_timed || has_collections || self.snapshot.renewals.range(from).nth(names).is_none();
        match () {
            () if self.subscription.wildcard || (is_shorter() && few_renewed()) => Order::Place,
            () if has_collections => Order::None,
            () => Order::Name,
        }
    }

    /// Entries that may have changed since, each once, with what the client sees of them, until it has enough: those that
    /// may be news in their order, then those of which a removal may be left to tell.
    fn for_each_candidate<'s>(
        &'s self,
        order: Order,
        mut with: impl FnMut(&'s Arc<Entry>, Look<'s>) -> ControlFlow<()>,
    ) {
        let names = self.subscription.names();
        let entry = |name: &'s Name| self.snapshot.table.get(name.as_str());
        let done = match order {
            Order::Place => {
                let mut look = |entry: &'s Arc<Entry>| match self.look_at(entry) {
                    Some(look) => with(entry, look),
                    None => ControlFlow::Continue(()),
                };
                let told = self.snapshot.log.range((
                    Bound::Excluded(self.position.removed),
                    Bound::Included(self.position.added.max(self.position.removed)),
                ));
                let told =
                    told.map(|(_, entry)| entry).filter(|entry| self.place(entry) <= self.position.added);
                self.news_by_place().chain(told).try_for_each(&mut look)
            }
            Order::Name => {
                let passed = names.partition_point(|name| self.position.has_passed(name.as_str()));
                let in_order = names[passed..].iter().chain(&names[..passed]);
                in_order.filter_map(entry).try_for_each(|entry| self.with_named(entry, &mut with))
            }
            Order::None => {
                let names = self.changed.as_deref().unwrap_or(names);
                let listed = self.snapshot.listed(self.subscription).filter(|_| self.changed.is_none());
                // The change log is this computation's own.
                let entries =
                    names.iter().filter_map(|name| self.snapshot.table.get(name.as_str())).chain(listed);
                entries.into_iter().try_for_each(|entry| self.with_named(entry, &mut with))
            }
        };
        // Whether all were looked at is for `with` to know.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = done;
    }

    fn with_named<'s>(
        &'s self,
        entry: &'s Arc<Entry>,
        with: &mut impl FnMut(&'s Arc<Entry>, Look<'s>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let look = if self.subscription.has_collections() {
            self.look_at(entry)
        } else {
            Some(Look::by_name(entry, self.profile.aggregated))
        };
        look.map_or(ControlFlow::Continue(()), |look| with(entry, look))
    }

    /// Entries whose places are after what was added, in that order.
    fn news_by_place(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let since = || (Bound::Excluded(self.position.added), Bound::Unbounded);
        let mut changes = self.snapshot.log.range(since()).peekable();
        let renewals = self.is_timed.then(|| self.snapshot.renewals.range(since()));
        let mut renewals = renewals.into_iter().flatten().peekable();
        let both = std::iter::from_fn(move || match (changes.peek(), renewals.peek()) {
            (Some((change, _)), Some((renewal, _))) if renewal < change => renewals.next(),
            (Some(_), _) => changes.next(),
            (None, _) => renewals.next(),
        });
        // An entry that was renewed since it changed is in both.
        both.filter(|(at, entry)| **at == self.place(entry)).map(|(_, entry)| entry)
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

/// Of a resource that is seen by several names the newest copy is told, once (R-Delta-14). `removed` are to be told with it.
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
