//! An update for clients that are told TTLs (R-TTL-07).
//!
//! Owns what stands in it for the shared encodings of resources with a lease, and for how long it may be shared. A
//! resource without one goes as it goes to everybody, and an update without any is shared without end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::HashMap;

use super::cohort::{Dialect, Protocol, Ttl};
use super::entry::Entry;
use super::frame::{self, Fields, Frame, Piece};
use super::lease::MOMENT;
use super::nonce::Nonce;
use super::registry::Look;
use super::scan::Scan;
use super::update::{Owed, Update};
use super::{Generation, Seen};
use crate::resource::{Name, Resource};

/// What stands for the shared encodings of resources, by name.
#[derive(Debug)]
pub(super) struct Timed {
    made: Instant,
    elements: HashMap<Name, Element>,
}

#[derive(Debug)]
struct Element {
    head: Bytes,
    /// Whether the tail of the shared encoding follows.
    with_body: bool,
}

impl Timed {
    fn new(made: Instant) -> Box<Self> {
        Box::new(Self { made, elements: HashMap::default() })
    }
}

impl Update {
    /// Whether what it says of times is still true.
    pub(super) fn is_true(&self, now: Instant) -> bool {
        self.timed.as_ref().is_none_or(|timed| now.saturating_duration_since(timed.made) <= MOMENT)
    }

    /// Whether it says any.
    pub const fn tells_times(&self) -> bool {
        self.timed.is_some()
    }

    fn element(&self, name: &Name) -> Option<&Element> {
        self.timed.as_ref()?.elements.get(name)
    }

    /// Whether it has no more of a resource than a heartbeat.
    pub(super) fn is_heartbeat(&self, resource: &Resource) -> bool {
        self.element(resource.name()).is_some_and(|element| !element.with_body)
    }

    /// About what a resource takes in it.
    pub(super) fn size_of(&self, resource: &Resource) -> usize {
        match self.element(resource.name()) {
            Some(element) if !element.with_body => element.head.len(),
            _ => resource.delta_entry().len(),
        }
    }

    /// What it takes beside the shared encodings.
    pub(super) fn own_bytes(&self) -> usize {
        let elements = self.timed.iter().flat_map(|timed| timed.elements.values());
        elements.map(|element| element.head.len() + size_of::<(Name, Element)>()).sum()
    }

    /// The frame of an update in which times are told, whose removals are to be `removed`.
    /// `ghosts` are what is gone and still said.
    pub(super) fn splice_timed(
        &self,
        timed: &Timed,
        nonce: Nonce,
        version: &str,
        removed: [&[Name]; 2],
        ghosts: &[Arc<Resource>],
    ) -> Frame {
        let is_delta = self.dialect.protocol == Protocol::Delta;
        let mut pieces = Vec::with_capacity(self.segments.len() + 2 * self.resources.len());
        for segment in &self.segments {
            pieces.push(Piece::Shared(if is_delta { segment.delta() } else { segment.sotw() }));
        }
        for resource in self.resources.iter().chain(ghosts) {
            let (entry, tail) = resource.sotw_tail();
            match timed.elements.get(resource.name()) {
                Some(element) => {
                    pieces.push(Piece::Shared(&element.head));
                    pieces.extend(element.with_body.then_some(Piece::Tail(entry, tail)));
                }
                None => pieces.push(Piece::Tail(entry, if is_delta { 0 } else { tail })),
            }
        }
        let [removed, absent] = removed.map(|names| {
            let spelled = |name| self.spelled.as_deref()?.get(name);
            names.iter().map(|name| spelled(name).unwrap_or(name).clone()).collect::<Vec<_>>()
        });
        let fields = Fields { version, type_url: self.type_url.as_str(), removed: [&removed, &absent] };
        frame::splice(fields, nonce, pieces.iter().copied())
    }
}

impl Dialect {
    fn head(self, resource: &Resource, name: &Name, ttl: Duration) -> Bytes {
        match self.protocol {
            Protocol::Delta => resource.delta_head(name, ttl),
            Protocol::Sotw => resource.wrapped_head(ttl),
        }
    }
}

impl Scan<'_> {
    /// When a client last had something to learn of an entry, and the entry's place in the order of that.
    pub(super) fn stamps(&self, entry: &Entry, look: &Look<'_>) -> (Generation, Generation) {
        if !self.is_timed {
            return (look.changed, entry.position());
        }
        let renewed = self.subscription.tenure(entry).map_or(Generation::ZERO, |tenure| tenure.at());
        (look.changed.max(renewed), entry.place())
    }

    /// An entry's place in the order of what clients of this dialect have to learn.
    pub(super) fn place(&self, entry: &Entry) -> Generation {
        if self.is_timed { entry.place() } else { entry.position() }
    }

    /// Whether there is nothing to learn of an entry but that its time was renewed, of which the client surely holds the
    /// body (R-TTL-03).
    pub(super) fn is_only_renewed(&self, entry: &Entry, look: &Look<'_>, owed: &Owed) -> bool {
        // Within a run through the changes, only what was told before it is sure.
        let told = self.span.floor();
        if !self.is_timed || look.changed > told || owed.names.contains(entry.name()) {
            return false;
        }
        let tenure = self.subscription.tenure(entry);
        tenure.is_some_and(|tenure| tenure.is_held(told, owed.doubt, self.now))
    }

    /// Makes a resource's part of an update a heartbeat, where that is all the client needs and it understands it: over
    /// state of the world nobody does (R-TTL-05, R-TTL-06).
    pub(super) fn beat(&self, update: &mut Update, entry: &Entry, look: &Look<'_>, owed: &Owed) {
        let is_understood = self.dialect.protocol == Protocol::Delta && self.dialect.ttl == Ttl::Heartbeats;
        if let Seen::Present(resource) = look.seen
            && is_understood
            && self.is_only_renewed(entry, look, owed)
        {
            let lease = self.subscription.tenure(entry).and_then(|tenure| tenure.lease());
            let ttl = lease.map(|lease| lease.told(self.now));
            let head = resource.heartbeat(self.spelling(entry.name()), ttl);
            let timed = update.timed.get_or_insert_with(|| Timed::new(self.now));
            timed.elements.insert(entry.name().clone(), Element { head, with_body: false });
        }
    }

    /// Tells the times of what is in an update.
    pub(super) fn tell_times(&self, update: &mut Update) {
        if !self.is_timed {
            return;
        }
        for resource in &update.resources {
            let name = resource.name();
            if update.timed.as_ref().is_some_and(|timed| timed.elements.contains_key(name)) {
                continue;
            }
            let tenure = self.snapshot.get(name.as_str()).and_then(|entry| self.subscription.tenure(entry));
            let Some(lease) = tenure.and_then(|tenure| tenure.lease()) else { continue };
            let head = self.dialect.head(resource, self.spelling(name), lease.told(self.now));
            let timed = update.timed.get_or_insert_with(|| Timed::new(self.now));
            timed.elements.insert(name.clone(), Element { head, with_body: true });
        }
        let (Some(timed), Some(spelled)) = (&mut update.timed, update.spelled.as_deref()) else { return };
        for resource in &update.resources {
            if let Some(name) = spelled.get(resource.name()) {
                let whole = || Element { head: resource.delta_entry_as(name), with_body: false };
                timed.elements.entry(resource.name().clone()).or_insert_with(whole);
            }
        }
    }

    fn spelling<'n>(&'n self, name: &'n Name) -> &'n Name {
        self.subscription.spellings().and_then(|spelled| spelled.get(name)).unwrap_or(name)
    }
}
