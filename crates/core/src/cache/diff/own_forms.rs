//! Parts of an update whose form differs from the shared encoding, for one cohort.

use bytes::Bytes;

use super::super::Generation;
use super::super::entry::{Entry, VisibleState};
use super::super::segments::Segment;
use super::super::subscription::{TtlSupport, VisibleEntry};
use super::super::update::{Element, Update};
use super::{Diff, News};
use crate::resource::{Constraints, Name, NameForm, Resource, resource_name, wire};

impl Diff<'_> {
    /// When an entry last changed for a client, and its place in that order.
    pub(super) fn stamps(&self, entry: &Entry, visible: &VisibleEntry<'_>) -> (Generation, Generation) {
        if !self.is_timed {
            return (visible.changed, entry.position());
        }
        let renewed = self.subscription.history(entry).map_or(Generation::ZERO, |history| history.current.at);
        (visible.changed.max(renewed), entry.place())
    }

    /// Place of an entry in the order of changes for this profile.
    pub(super) fn place(&self, entry: &Entry) -> Generation {
        if self.is_timed { entry.place() } else { entry.position() }
    }

    /// Whether only the TTL of an entry was renewed, and the client surely holds the body (R-TTL-03).
    pub(super) fn is_only_renewed(&self, entry: &Entry, visible: &VisibleEntry<'_>) -> bool {
        // Within a run through changes, only earlier ones are certainly held.
        let sent = self.position.floor();
        if !self.is_timed || visible.changed > sent || self.owed.names.contains(entry.name()) {
            return false;
        }
        let history = self.subscription.history(entry);
        history.is_some_and(|history| history.is_held(sent, self.owed.doubt, self.now))
    }

    /// Makes a resource a heartbeat if that suffices and the client understands it (R-TTL-05, R-TTL-06).
    pub(super) fn add_heartbeat(&self, update: &mut Update, entry: &Entry, visible: &VisibleEntry<'_>) {
        if let VisibleState::Present(resource) = visible.state
            && self.profile.ttl == TtlSupport::Heartbeats
            && self.is_only_renewed(entry, visible)
        {
            let lease = self.subscription.history(entry).and_then(|history| history.current.lease);
            let ttl = lease.map(|lease| lease.remaining_ttl(self.now));
            let head = resource.heartbeat(self.name_form(entry.name()), ttl);
            let own = update.own_encodings.get_or_insert_default();
            own.ttls_at = Some(self.now);
            own.elements.insert(entry.name().clone(), Element { head, with_body: false });
        }
    }

    /// Keeps names owed that come later as news: a heartbeat is no answer.
    pub(super) fn keep_owed(&self, update: &mut Update, is_later: impl Fn(News<'_>) -> bool) {
        if !self.is_timed {
            return;
        }
        update.owed.names.retain(|name| {
            let entry = self.snapshot.get(name.as_str());
            let news = entry.and_then(|entry| self.news(entry, &self.visible_entry(entry)?));
            !news.is_some_and(|news| news.resource.name() == name && is_later(news))
        });
    }

    /// Whether these clients cannot use the shared encoding of a segment.
    pub(super) fn has_own_form(&self, segment: &Segment) -> bool {
        self.subscription.locates(Name::WILDCARD) || (self.is_timed && segment.has_leases())
    }

    /// Encodes the resources that have their own form here.
    pub(super) fn write_own_encodings(&self, update: &mut Update) {
        if !self.is_timed && !self.subscription.has_own_form() {
            return;
        }
        for resource in update.resources.iter().chain(&update.ghosts) {
            let name = resource.name();
            if update.own_encodings.as_ref().is_some_and(|own| own.elements.contains_key(name)) {
                continue;
            }
            let Some((head, is_timed)) = self.head(resource) else { continue };
            let own = update.own_encodings.get_or_insert_default();
            own.ttls_at = own.ttls_at.or_else(|| is_timed.then_some(self.now));
            own.elements.insert(name.clone(), Element { head, with_body: true });
        }
    }

    /// Head of a resource with its own form, and whether it has a TTL.
    fn head(&self, resource: &Resource) -> Option<(Bytes, bool)> {
        let name = resource.name();
        let entry = if self.is_timed { self.snapshot.get(name.as_str()) } else { None };
        let lease = entry.and_then(|entry| self.subscription.history(entry)?.current.lease);
        let name_form = self.name_form(name);
        let is_plain = match name_form {
            NameForm::Plain(own) => !self.is_delta() || own == name,
            NameForm::Locator(_) => false,
        };
        let ttl = lease.map(|lease| lease.remaining_ttl(self.now));
        let head = if self.is_delta() { Resource::delta_head } else { Resource::wrapped_head };
        (!is_plain || ttl.is_some()).then(|| (head(resource, name_form, ttl), ttl.is_some()))
    }

    /// Bytes of a resource in an update, with removals of replaced variants.
    pub(super) fn bytes_of(&self, update: &Update, resource: &Resource) -> usize {
        let replaced = if self.removes_variants(resource.name()) {
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

    /// Bytes of a removal. State of the world has none.
    pub(super) fn gone_bytes(&self, name: &Name) -> usize {
        if !self.is_delta() {
            0
        } else if self.removes_variants(name) {
            // The bare name is added if there is no variant, or if the name was asked for.
            let past = self.past_variants(name, None);
            self.variants_len(name, past.iter().filter(|past| past.is_some()).chain([&None]))
        } else {
            wire::field_len(self.subscription.spelling(name).as_str().len())
        }
    }

    /// Whether removals of a name carry its constraints.
    fn removes_variants(&self, name: &Name) -> bool {
        self.is_delta() && self.subscription.locates(name.as_str())
    }

    /// Bytes of these variants of a name as removals.
    fn variants_len<'v>(
        &self,
        name: &Name,
        variants: impl Iterator<Item = &'v Option<Constraints>>,
    ) -> usize {
        let name = self.subscription.spelling(name);
        variants.map(|variant| wire::field_len(resource_name(name, variant.as_ref()).len())).sum()
    }

    /// Variants that a client may hold besides the one it `is` sent, each once.
    pub(super) fn past_variants(
        &self,
        name: &Name,
        is: Option<Option<&Constraints>>,
    ) -> Vec<Option<Constraints>> {
        let earlier = self.owed.past.get(name).into_iter().flatten().cloned();
        let mut past: Vec<_> = self.snapshot.variants(name.as_str()).chain(earlier).collect();
        past.sort_unstable();
        past.dedup();
        past.retain(|other| is != Some(other.as_ref()));
        past
    }

    fn name_form<'n>(&'n self, name: &'n Name) -> NameForm<'n> {
        let own = self.subscription.spelling(name);
        if self.subscription.locates(name.as_str()) { NameForm::Locator(own) } else { NameForm::Plain(own) }
    }
}
