//! Aliases: further names of the origin for a resource (R-Relay-20).
//!
//! Owns current and earlier targets of an alias, and the way back from a resource. Clients are sent the target
//! under its own name, so earlier targets are recorded to be removed. Only requested aliases have an entry,
//! whatever the origin lists.
//!
//! Invariants: an alias is listed under its current target only. Its record of the past is bounded.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::Generation;
use super::{Entry, Named};
use crate::resource::{Form, Name, Resource};

/// Most earlier targets that are remembered.
const REMEMBERED: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct Alias {
    /// `None` if it does not exist. May be a resource of this very name.
    pub(in crate::cache) now: Option<Arc<Resource>>,
    /// When clients began to see the current target.
    pub(in crate::cache) since: Generation,
    pub(in crate::cache) past: SmallVec<[PastTarget; 1]>,
    /// Targets up to here are forgotten.
    pub(in crate::cache) horizon: Generation,
}

#[derive(Clone, Debug)]
pub(in crate::cache) struct PastTarget {
    pub(in crate::cache) name: Name,
    /// A client without an update since then cannot hold it through this alias.
    pub(in crate::cache) since: Generation,
    pub(in crate::cache) until: Generation,
}

impl Alias {
    pub const fn now(&self) -> Option<&Arc<Resource>> {
        self.now.as_ref()
    }

    pub(in crate::cache) fn record_past(&mut self, name: Name, until: Generation) {
        let mut since = self.since;
        if let Some(at) = self.past.iter().position(|past| past.name == name) {
            since = since.min(self.past.remove(at).since);
        } else if self.past.len() == REMEMBERED {
            self.horizon = self.past.remove(0).until;
        }
        self.past.push(PastTarget { name, since, until });
    }
}

impl Entry {
    /// The origin's resource for the name itself, in whatever form.
    pub(in crate::cache) const fn named_resource(&self) -> Option<&Arc<Resource>> {
        match &self.named {
            Named::Present(resource) => Some(resource),
            Named::Alias(alias) => alias.now(),
            Named::Unknown
            | Named::Superseded(_)
            | Named::Absent
            | Named::Gone
            | Named::Collection { .. } => None,
        }
    }

    /// Records the origin's answer for the name: a resource, or none.
    pub(in crate::cache) fn set_named(&mut self, resource: Option<Arc<Resource>>) {
        self.named = match (std::mem::take(&mut self.named), resource) {
            (Named::Alias(mut alias), now) => {
                alias.now = now;
                Named::Alias(alias)
            }
            (_, Some(resource)) if *resource.name() == *self.name() => Named::Present(resource),
            (_, Some(resource)) => Named::Alias(Box::new(Alias { now: Some(resource), ..Alias::default() })),
            (_, None) => Named::Absent,
        };
    }

    /// If it is an alias by the origin's answer: the target's own name, and the alias.
    pub(in crate::cache) fn listing(&self) -> Option<(Name, Name)> {
        let Named::Alias(alias) = &self.named else { return None };
        let resource = alias.now().filter(|resource| resource.form() != Form::Unresolved)?;
        (resource.name() != self.name()).then(|| (resource.name().clone(), self.name().clone()))
    }

    /// If it is an alias: the resource of another name that its clients see.
    pub(in crate::cache) fn stands_for(&self) -> Option<&Arc<Resource>> {
        let Named::Alias(_) = &self.named else { return None };
        self.by_name().existing().filter(|resource| resource.name() != self.name())
    }

    /// Records the target that clients no longer see through it, as of this generation. Returns the horizon.
    pub(in crate::cache) fn remember(&mut self, old: Option<&Self>, stamp: Generation) -> Generation {
        let was = old.and_then(|old| old.by_name().existing()).map(|resource| resource.name().clone());
        let is = self.by_name().existing().map(|resource| resource.name().clone());
        let Named::Alias(alias) = &mut self.named else { return Generation::ZERO };
        if was != is {
            was.into_iter().for_each(|was| alias.record_past(was, stamp));
            alias.since = stamp;
        }
        alias.horizon
    }
}
