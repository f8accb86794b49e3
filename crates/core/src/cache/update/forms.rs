//! Parts of an update that are written in another form than for everybody: for clients that are told TTLs (R-TTL-07), that
//! asked by locators (R-DP-09), or that spell their names in a way of their own.
//!
//! Owns what stands in it for the shared encodings of resources, and for how long it may be shared. Bodies are shared all
//! the same. An update in which no time is told is shared without end.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foldhash::{HashMap, HashSet};

use super::super::frame::{self, Fields, Frame, Piece};
use super::super::lease::MOMENT;
use super::super::nonce::Nonce;
use super::super::profile::Protocol;
use super::super::subscription::Subscription;
use super::Update;
use crate::resource::{Constraints, Name, Resource, resource_name};
/// Replacements for the shared encodings of resources, by name.
#[derive(Debug, Default)]
pub(in crate::cache) struct Forms {
    /// When the times in it were told, if there are any.
    pub(in crate::cache) told: Option<Instant>,
    pub(in crate::cache) elements: HashMap<Name, Element>,
}

#[derive(Debug)]
pub(in crate::cache) struct Element {
    pub(in crate::cache) head: Bytes,
    /// Whether the tail of the shared encoding follows.
    pub(in crate::cache) with_body: bool,
}

impl Update {
    /// Whether the TTLs in it are still true.
    pub(in crate::cache) fn is_true(&self, now: Instant) -> bool {
        let told = self.forms.as_ref().and_then(|forms| forms.told);
        told.is_none_or(|told| now.saturating_duration_since(told) <= MOMENT)
    }

    /// Whether it says any.
    pub fn tells_times(&self) -> bool {
        self.forms.as_ref().is_some_and(|forms| forms.told.is_some())
    }

    /// Whether anything in it is in another form than for everybody.
    pub(in crate::cache) const fn has_forms(&self) -> bool {
        self.forms.is_some() || self.form.is_some()
    }

    pub(in crate::cache) fn element(&self, name: &Name) -> Option<&Element> {
        self.forms.as_ref()?.elements.get(name)
    }

    /// Whether it has no more of a resource than a heartbeat.
    pub(in crate::cache) fn is_heartbeat(&self, resource: &Resource) -> bool {
        self.element(resource.name()).is_some_and(|element| !element.with_body)
    }

    /// Bytes that it takes beside the shared encodings.
    pub(in crate::cache) fn own_bytes(&self) -> usize {
        let elements = self.forms.iter().flat_map(|forms| forms.elements.values());
        elements.map(|element| element.head.len() + size_of::<(Name, Element)>()).sum()
    }

    /// The frame of an update of which something is in another form; its removals are to be `removed`. `ghosts` are what
    /// is gone and still said.
    pub(in crate::cache) fn splice_forms(
        &self,
        nonce: Nonce,
        version: &str,
        removed: [&[Name]; 2],
        errors: &[u8],
        ghosts: &[Arc<Resource>],
    ) -> Frame {
        let is_delta = self.profile.protocol == Protocol::Delta;
        let mut pieces = Vec::with_capacity(self.segments.len() + 2 * self.resources.len());
        for segment in &self.segments {
            pieces.push(Piece::Shared(if is_delta { segment.delta() } else { segment.sotw() }));
        }
        for resource in self.resources.iter().chain(ghosts) {
            let (entry, tail) = resource.sotw_tail();
            match self.element(resource.name()) {
                Some(element) => {
                    pieces.push(Piece::Shared(&element.head));
                    pieces.extend(element.with_body.then_some(Piece::Tail(entry, tail)));
                }
                None => pieces.push(Piece::Tail(entry, if is_delta { 0 } else { tail })),
            }
        }
        let mut variants = Vec::new();
        let names = match &self.form {
            Some(form) => self.plainly_removed(form, removed, &mut variants),
            None => removed.map(<[Name]>::to_vec),
        };
        let fields = Fields {
            version,
            type_url: self.type_url.as_str(),
            control_plane: self.control_plane(),
            removed: [&names[0], &names[1]],
            removed_variants: &variants,
            errors,
        };
        frame::splice(fields, nonce, pieces.iter().copied())
    }

    /// Names that are gone, and those that are absent, as the client spells them. What it asked for by locator is told by
    /// its identity, and so is what was replaced by another variant (R-DP-08, R-DP-13).
    fn plainly_removed(
        &self,
        form: &Subscription,
        [removed, absent]: [&[Name]; 2],
        variants: &mut Vec<Bytes>,
    ) -> [Vec<Name>; 2] {
        let past = |name: &Name| self.past.get(name).into_iter().flatten().map(Option::as_ref);
        // Names are as many as a request has: each variant is looked up, not searched for.
        let mut told: HashSet<Bytes> = HashSet::default();
        let mut variant = |name: &Name, constraints: Option<&Constraints>| {
            let variant = resource_name(form.spelling(name), constraints);
            if told.insert(variant.clone()) {
                variants.push(variant);
            }
        };
        let locates = |name: &&Name| form.locates(name.as_str());
        for name in self.resources.iter().map(|resource| resource.name()).filter(locates) {
            past(name).for_each(|constraints| variant(name, constraints));
        }
        for name in removed.iter().filter(locates) {
            // A name that never was there is said to be gone by its name alone.
            let never = past(name).next().is_none().then_some(None);
            past(name).chain(never).for_each(|constraints| variant(name, constraints));
        }
        for name in absent.iter().filter(locates) {
            // A client that asks for a name that does not exist is told so without constraints too, whichever variants were
            // there before.
            past(name).chain([None]).for_each(|constraints| variant(name, constraints));
        }
        let plain = |names: &[Name]| {
            let plain = names.iter().filter(|name| !locates(name));
            plain.map(|name| form.spelling(name).clone()).collect()
        };
        [plain(removed), plain(absent)]
    }
}
