//! Parts of an update that are told in another form than to everybody, for one cohort.

use bytes::Bytes;

use super::super::Generation;
use super::super::entry::{Entry, Seen};
use super::super::profile::{Protocol, TtlSupport};
use super::super::segments::Segment;
use super::super::subscription::Look;
use super::super::update::{Element, OwedItems, Update};
use super::{Diff, News};
use crate::resource::{Constraints, Name, NameForm, Resource, resource_name, wire};
impl Diff<'_> {
    /// When a client last had something to learn of an entry, and the entry's place in the order of that.
    pub(super) fn stamps(&self, entry: &Entry, look: &Look<'_>) -> (Generation, Generation) {
        if !self.is_timed {
            return (look.changed, entry.position());
        }
        let renewed = self.subscription.history(entry).map_or(Generation::ZERO, |history| history.at());
        (look.changed.max(renewed), entry.place())
    }

    /// An entry's place in the order of what clients of this profile have to learn.
    pub(super) fn place(&self, entry: &Entry) -> Generation {
        if self.is_timed { entry.place() } else { entry.position() }
    }

    /// Whether there is nothing to learn of an entry but that its time was renewed, of which the client surely holds the
    /// body (R-TTL-03).
    pub(super) fn is_only_renewed(&self, entry: &Entry, look: &Look<'_>, owed: &OwedItems) -> bool {
        // Within a run through the changes, only what was told before it is sure.
        let told = self.position.floor();
        if !self.is_timed || look.changed > told || owed.names.contains(entry.name()) {
            return false;
        }
        let history = self.subscription.history(entry);
        history.is_some_and(|history| history.is_held(told, owed.doubt, self.now))
    }

    /// Makes a resource's part of an update a heartbeat, where that is all the client needs and it understands it: over
    /// state of the world nobody does (R-TTL-05, R-TTL-06).
    pub(super) fn beat(&self, update: &mut Update, entry: &Entry, look: &Look<'_>, owed: &OwedItems) {
        let is_understood =
            self.profile.protocol == Protocol::Delta && self.profile.ttl == TtlSupport::Heartbeats;
        if let Seen::Present(resource) = look.seen
            && is_understood
            && self.is_only_renewed(entry, look, owed)
        {
            let lease = self.subscription.history(entry).and_then(|history| history.lease());
            let ttl = lease.map(|lease| lease.told(self.now));
            let head = resource.heartbeat(self.called(entry.name()), ttl);
            let forms = update.forms.get_or_insert_default();
            forms.told = Some(self.now);
            forms.elements.insert(entry.name().clone(), Element { head, with_body: false });
        }
    }

    /// Keeps owed the names that were asked for and come later, because they are news too: a heartbeat would be no answer.
    pub(super) fn keep_owed(&self, update: &mut Update, is_later: impl Fn(News<'_>) -> bool) {
        if !self.is_timed {
            return;
        }
        update.owed.names.retain(|name| {
            let entry = self.snapshot.get(name.as_str());
            let news = entry.and_then(|entry| self.news(entry, &self.look_at(entry)?));
            !news.is_some_and(|news| news.resource.name() == name && is_later(news))
        });
    }

    /// Whether the shared encoding of a segment is not the form for these clients.
    pub(super) fn has_own_form(&self, segment: &Segment) -> bool {
        self.subscription.locates(Name::WILDCARD) || (self.is_timed && segment.has_leases())
    }

    /// Writes what is in an update and goes to these clients in another form than to everybody.
    pub(super) fn write_forms(&self, update: &mut Update) {
        if !self.is_timed && !self.subscription.has_own_form() {
            return;
        }
        for resource in update.resources.iter().chain(&update.ghosts) {
            let name = resource.name();
            if update.forms.as_ref().is_some_and(|forms| forms.elements.contains_key(name)) {
                continue;
            }
            let Some((head, is_timed)) = self.head(resource) else { continue };
            let forms = update.forms.get_or_insert_default();
            forms.told = forms.told.or_else(|| is_timed.then_some(self.now));
            forms.elements.insert(name.clone(), Element { head, with_body: true });
        }
    }

    /// Head of a resource that goes to these clients in another form than to everybody, and whether it tells a time.
    fn head(&self, resource: &Resource) -> Option<(Bytes, bool)> {
        let name = resource.name();
        let entry = if self.is_timed { self.snapshot.get(name.as_str()) } else { None };
        let lease = entry.and_then(|entry| self.subscription.history(entry)?.lease());
        let called = self.called(name);
        let is_plain = match called {
            NameForm::Plain(own) => !self.is_delta() || own == name,
            NameForm::Locator(_) => false,
        };
        let ttl = lease.map(|lease| lease.told(self.now));
        (!is_plain || ttl.is_some()).then(|| (self.profile.head(resource, called, ttl), ttl.is_some()))
    }

    /// Bytes that a resource takes in an update, with the removals of variants that it takes the place of.
    pub(super) fn bytes_of(&self, update: &Update, resource: &Resource) -> usize {
        let replaced = if self.tells_variants(resource.name()) {
            let past = self.past_variants(resource.name(), Some(resource.constraints()));
            self.variants_len(resource.name(), past.iter())
        } else {
            0
        };
        let shared = resource.delta_entry().len();
        let has_own_form = self.is_timed || self.subscription.has_own_form();
        replaced
            + match update.element(resource.name()) {
                Some(element) if !element.with_body => element.head.len(),
                _ if !has_own_form => shared,
                _ => self.head(resource).map_or(shared, |(head, _)| head.len() + resource.sotw_entry().len()),
            }
    }

    /// Bytes that it takes to tell that a name is gone, or does not exist. State of the world has no words for it.
    pub(super) fn gone_bytes(&self, name: &Name) -> usize {
        if !self.is_delta() {
            0
        } else if self.tells_variants(name) {
            // Its name alone is told too where nothing else is, or where it was asked for.
            let past = self.past_variants(name, None);
            self.variants_len(name, past.iter().filter(|past| past.is_some()).chain([&None]))
        } else {
            wire::field_len(self.subscription.spelling(name).as_str().len())
        }
    }

    /// Whether clients are told by constraints which variants of a name are gone.
    fn tells_variants(&self, name: &Name) -> bool {
        self.is_delta() && self.subscription.locates(name.as_str())
    }

    /// Bytes that these variants of a name take as removals.
    fn variants_len<'v>(
        &self,
        name: &Name,
        variants: impl Iterator<Item = &'v Option<Constraints>>,
    ) -> usize {
        let name = self.subscription.spelling(name);
        variants.map(|variant| wire::field_len(resource_name(name, variant.as_ref()).len())).sum()
    }

    /// Variants of a name that a client may hold beside the one that it `is` told, each once.
    pub(super) fn past_variants(
        &self,
        name: &Name,
        is: Option<Option<&Constraints>>,
    ) -> Vec<Option<Constraints>> {
        let earlier = self.past.and_then(|past| past.get(name)).into_iter().flatten().cloned();
        let mut past: Vec<_> = self.snapshot.variants(name.as_str()).chain(earlier).collect();
        past.sort_unstable();
        past.dedup();
        past.retain(|other| is != Some(other.as_ref()));
        past
    }

    fn called<'n>(&'n self, name: &'n Name) -> NameForm<'n> {
        let own = self.subscription.spelling(name);
        if self.subscription.locates(name.as_str()) { NameForm::Locator(own) } else { NameForm::Plain(own) }
    }
}
