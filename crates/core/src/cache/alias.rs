//! Names by which the origin knows a resource beside its own (R-Relay-20).
//!
//! Owns what such a name stands for and has stood for, and the ways from a resource's own name back to it. A client that
//! asked by an alias is sent the resource under its own name and holds it under that: so what an alias stood for before is
//! remembered, to be told as removed. Only names that were asked for have an entry, whatever aliases the origin lists.
//!
//! Invariants: an alias is listed under the own name of what it stands for, and under no other; what is remembered of an
//! alias is bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;
use smallvec::SmallVec;

use super::Generation;
use super::entry::{Entry, Named, Seen};
use super::registry::{Look, Subscription};
use super::scan::Scan;
use super::snapshot::Snapshot;
use super::update::Update;
use crate::resource::{Form, Name, Resource};

/// More names that an alias stood for are not remembered.
const REMEMBERED: usize = 8;

/// What an alias stands for, and has stood for.
#[derive(Clone, Debug, Default)]
pub struct Alias {
    /// `None` where that does not exist. It may be a resource of this very name.
    now: Option<Arc<Resource>>,
    /// Since when its clients see the name that they see now.
    since: Generation,
    past: SmallVec<[Past; 1]>,
    /// Up to here it is not remembered what it stood for.
    buried: Generation,
}

/// A resource by its own name.
#[derive(Clone, Debug)]
struct Past {
    name: Name,
    /// Who was told nothing since cannot hold it through this alias.
    since: Generation,
    /// When it went.
    until: Generation,
}

impl Alias {
    /// What it stands for, in whatever form that is there.
    pub const fn now(&self) -> Option<&Arc<Resource>> {
        self.now.as_ref()
    }

    fn lose(&mut self, name: Name, until: Generation) {
        let mut since = self.since;
        if let Some(at) = self.past.iter().position(|past| past.name == name) {
            since = since.min(self.past.remove(at).since);
        } else if self.past.len() == REMEMBERED {
            self.buried = self.past.remove(0).until;
        }
        self.past.push(Past { name, since, until });
    }
}

impl Entry {
    /// What was said of the name itself, in whatever form it is there.
    pub(super) const fn named_resource(&self) -> Option<&Arc<Resource>> {
        match &self.named {
            Named::Present(resource) => Some(resource),
            Named::Alias(alias) => alias.now(),
            Named::Unknown | Named::Absent | Named::Gone | Named::Collection { .. } => None,
        }
    }

    /// The origin answered for the name: with a resource, or that there is none.
    pub(super) fn set_named(&mut self, resource: Option<Arc<Resource>>) {
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

    /// What it is an alias of, as far as the origin's answer for the name goes; with the alias.
    pub(super) fn listing(&self) -> Option<(Name, Name)> {
        let Named::Alias(alias) = &self.named else { return None };
        let resource = alias.now().filter(|resource| resource.form() != Form::Unresolved)?;
        (resource.name() != self.name()).then(|| (resource.name().clone(), self.name().clone()))
    }

    /// The resource of another name that who asks by this name sees.
    pub(super) fn stands_for(&self) -> Option<&Arc<Resource>> {
        let Named::Alias(_) = &self.named else { return None };
        self.by_name().existing().filter(|resource| resource.name() != self.name())
    }

    /// Remembers what its clients no longer see through it, as of this generation.
    pub(super) fn remember(&mut self, old: Option<&Self>, stamp: Generation) -> Generation {
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

impl Snapshot {
    /// Whether any name that was asked for is an alias.
    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// The names that were asked for and are aliases of this resource.
    pub fn aliases_of<'s>(&'s self, own: &'s str) -> impl Iterator<Item = &'s Name> {
        let from = self.has_aliases().then(|| (Name::from(own), Name::from("")));
        let listed = from.into_iter().flat_map(|from| self.aliases.range(from..));
        listed.take_while(move |(name, _)| name.as_str() == own).map(|(_, alias)| alias)
    }

    /// Whether a client with this subscription sees the resource of this name through an alias.
    pub fn is_seen_by_alias(&self, subscription: &Subscription, own: &str) -> bool {
        if !self.has_aliases() {
            return false;
        }
        let stands_for = |name: &Name| {
            let entry = self.get(name.as_str());
            entry.and_then(Entry::stands_for).is_some_and(|resource| resource.name().as_str() == own)
        };
        let (mut aliases, mut names) = (self.aliases_of(own), subscription.names().iter());
        // Each list alone can tell: the shorter one ends the search.
        while let (Some(alias), Some(name)) = (aliases.next(), names.next()) {
            if stands_for(name) || (subscription.contains(alias.as_str()) && stands_for(alias)) {
                return true;
            }
        }
        false
    }

    /// Whether a client with this subscription sees the resource of this name by that name, or as a member.
    pub(super) fn is_seen_by_itself(&self, subscription: &Subscription, own: &str) -> bool {
        let look = self.get(own).and_then(|entry| Some(subscription.look_at(entry)?.existing()?.name()));
        look.is_some_and(|name| name.as_str() == own)
    }

    /// Up to where it is not remembered what the aliases of a subscription stood for.
    pub(super) fn aliases_buried_for(&self, subscription: &Subscription) -> Generation {
        let buried = |name: &Name| match self.get(name.as_str())?.named() {
            Named::Alias(alias) => Some(alias.buried),
            _ => None,
        };
        subscription.names().iter().filter_map(buried).max().unwrap_or_default()
    }
}

impl Scan<'_> {
    /// Whether the client sees the resource of this name through an alias.
    pub(super) fn is_seen_by_alias(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_alias(self.subscription, own.as_str())
    }

    /// Whether it sees it in any way.
    pub(super) fn is_seen(&self, own: &Name) -> bool {
        self.snapshot.is_seen_by_itself(self.subscription, own.as_str()) || self.is_seen_by_alias(own)
    }

    /// Adds what the client holds and sees through this alias no longer, unless it sees it in another way, and when that
    /// went. Returns whether there was anything that it holds through it.
    pub(super) fn lost_through(
        &self,
        entry: &Entry,
        look: &Look<'_>,
        lost: &mut BTreeMap<Name, Generation>,
    ) -> bool {
        let Named::Alias(alias) = entry.named() else { return false };
        if self.span.is_start() || !self.subscription.contains(entry.name().as_str()) {
            return false;
        }
        // That a name is an alias of nothing is never told as a removal (R-Delta-22).
        let is_answer = |name: &Name| matches!(look.seen, Seen::Unresolved(answer) if answer.name() == name);
        let mut stood_for = false;
        let reach = self.span.reach();
        for past in alias.past.iter().filter(|past| reach.is_none_or(|reach| past.until <= reach)) {
            if past.until > self.span.removed && past.since <= self.span.seen && !is_answer(&past.name) {
                stood_for = true;
                if !self.is_seen(&past.name) {
                    let until = lost.entry(past.name.clone()).or_default();
                    *until = past.until.max(*until);
                }
            }
        }
        stood_for
    }

    /// Answers for a name that the client let go beside a wildcard (R-Delta-09): what it is an alias of may be a member.
    /// Returns how many bytes that takes.
    pub(super) fn let_go(
        &self,
        update: &mut Update,
        name: &Name,
        entry: Option<&Arc<Entry>>,
        told: &mut HashSet<Name>,
    ) -> usize {
        let mut bytes = 0;
        if let Some(resource) = entry.and_then(|entry| entry.stands_for()) {
            let own = resource.name();
            let member = self.snapshot.get(own.as_str()).and_then(|entry| entry.as_member().present());
            if let Some(member) = member {
                update.resources.push(Arc::clone(member));
                return self.bytes_of(update, member);
            }
            if !self.is_seen(own) && told.insert(own.clone()) {
                update.absent.push(own.clone());
                bytes += self.gone_bytes(own);
            }
        }
        if !self.is_seen_by_alias(name) && told.insert(name.clone()) {
            update.absent.push(name.clone());
            bytes += self.gone_bytes(name);
        }
        bytes
    }
}

/// Adds names that went to a list that has each once; of a name that is in both, when it went last.
pub(super) fn add_once(list: &mut Vec<(Generation, Name)>, mut names: BTreeMap<Name, Generation>) {
    if !names.is_empty() {
        for (at, name) in &mut *list {
            *at = names.remove(name).unwrap_or_default().max(*at);
        }
        list.extend(names.into_iter().map(|(name, at)| (at, name)));
    }
}

/// Of a resource that is seen by several names the newest copy is told, once (R-Delta-14). `removed` are to be told with it.
pub(super) fn tell_once(update: &mut Update, removed: &mut Vec<(Generation, Name)>) {
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
