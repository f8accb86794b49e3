//! An entry as an alias: what it stands for, and what it stood for.

use std::sync::Arc;

use super::super::Generation;
use super::super::alias::Alias;
use super::{Entry, Named};
use crate::resource::{Form, Name, Resource};

impl Entry {
    /// Resource that the origin gave for the name itself, in whatever form it is there.
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

    /// The origin answered for the name: with a resource, or that there is none.
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

    /// Own name of the resource that it is an alias of, as far as the origin's answer for the name goes; with the alias.
    pub(in crate::cache) fn listing(&self) -> Option<(Name, Name)> {
        let Named::Alias(alias) = &self.named else { return None };
        let resource = alias.now().filter(|resource| resource.form() != Form::Unresolved)?;
        (resource.name() != self.name()).then(|| (resource.name().clone(), self.name().clone()))
    }

    /// If this name is an alias: the resource of another name that a client which asks by it sees.
    pub(in crate::cache) fn stands_for(&self) -> Option<&Arc<Resource>> {
        let Named::Alias(_) = &self.named else { return None };
        self.by_name().existing().filter(|resource| resource.name() != self.name())
    }

    /// Remembers what its clients no longer see through it, as of this generation.
    pub(in crate::cache) fn remember(&mut self, old: Option<&Self>, stamp: Generation) -> Generation {
        let was = old.and_then(|old| old.by_name().existing()).map(|resource| resource.name().clone());
        let is = self.by_name().existing().map(|resource| resource.name().clone());
        let Named::Alias(alias) = &mut self.named else { return Generation::ZERO };
        if was != is {
            was.into_iter().for_each(|was| alias.lose(was, stamp));
            alias.since = stamp;
        }
        alias.buried
    }
}
