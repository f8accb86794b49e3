//! Parts of an update in another form than the shared encoding: with TTLs (R-TTL-07), for locators (R-DP-09),
//! or in a client's spelling.
//!
//! Owns the replacements, and how long an update with TTLs may be shared; others have no limit. Bodies are
//! always shared.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foldhash::{HashMap, HashSet};

use super::super::grpc_frame::{self, Fields, Frame, Piece};
use super::super::lease::MOMENT;
use super::super::nonce::Nonce;
use super::super::stream_profile::Protocol;
use super::super::subscription::Subscription;
use super::Update;
use crate::resource::{Constraints, Name, Resource, resource_name};
/// Replacements of shared encodings, by name.
#[derive(Debug, Default)]
pub(in crate::cache) struct OwnEncodings {
    /// When the TTLs in it were computed, if there are any.
    pub(in crate::cache) ttls_at: Option<Instant>,
    pub(in crate::cache) elements: HashMap<Name, Element>,
}

#[derive(Debug)]
pub(in crate::cache) struct Element {
    pub(in crate::cache) head: Bytes,
    /// Whether the tail of the shared encoding follows.
    pub(in crate::cache) with_body: bool,
}

impl Update {
    pub(in crate::cache) fn has_current_ttls(&self, now: Instant) -> bool {
        let sent = self.own_encodings.as_ref().and_then(|own| own.ttls_at);
        sent.is_none_or(|sent| now.saturating_duration_since(sent) <= MOMENT)
    }

    pub fn has_ttls(&self) -> bool {
        self.own_encodings.as_ref().is_some_and(|own| own.ttls_at.is_some())
    }

    pub(in crate::cache) const fn has_own_form(&self) -> bool {
        self.own_encodings.is_some() || self.asked.is_some()
    }

    pub(in crate::cache) fn element(&self, name: &Name) -> Option<&Element> {
        self.own_encodings.as_ref()?.elements.get(name)
    }

    /// Whether it has only a heartbeat of a resource.
    pub(in crate::cache) fn is_heartbeat(&self, resource: &Resource) -> bool {
        self.element(resource.name()).is_some_and(|element| !element.with_body)
    }

    pub(in crate::cache) fn own_bytes(&self) -> usize {
        let elements = self.own_encodings.iter().flat_map(|own| own.elements.values());
        elements.map(|element| element.head.len() + size_of::<(Name, Element)>()).sum()
    }

    /// Frame of an update with forms of its own. `ghosts`: removed resources that are still sent.
    pub(in crate::cache) fn splice_own_encodings(
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
        let names = match &self.asked {
            Some(asked) => self.split_removed(asked, removed, &mut variants),
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
        grpc_frame::splice(fields, nonce, pieces.iter().copied())
    }

    /// Removed and absent names in the client's spelling. Names requested by locator, and replaced variants, go
    /// to `variants` by identity (R-DP-08, R-DP-13).
    fn split_removed(
        &self,
        asked: &Subscription,
        [removed, absent]: [&[Name]; 2],
        variants: &mut Vec<Bytes>,
    ) -> [Vec<Name>; 2] {
        let past = |name: &Name| self.past.get(name).into_iter().flatten().map(Option::as_ref);
        // A set, as requests have many names.
        let mut sent: HashSet<Bytes> = HashSet::default();
        let mut variant = |name: &Name, constraints: Option<&Constraints>| {
            let variant = resource_name(asked.spelling(name), constraints);
            if sent.insert(variant.clone()) {
                variants.push(variant);
            }
        };
        let locates = |name: &&Name| asked.locates(name.as_str());
        for name in self.resources.iter().map(|resource| resource.name()).filter(locates) {
            past(name).for_each(|constraints| variant(name, constraints));
        }
        for name in removed.iter().filter(locates) {
            // A name that never existed is removed by its bare name.
            let never = past(name).next().is_none().then_some(None);
            past(name).chain(never).for_each(|constraints| variant(name, constraints));
        }
        for name in absent.iter().filter(locates) {
            // The answer for an absent name has the bare name too, whichever variants existed.
            past(name).chain([None]).for_each(|constraints| variant(name, constraints));
        }
        let plain = |names: &[Name]| {
            let plain = names.iter().filter(|name| !locates(name));
            plain.map(|name| asked.spelling(name).clone()).collect()
        };
        [plain(removed), plain(absent)]
    }
}
