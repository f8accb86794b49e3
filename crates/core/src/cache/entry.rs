//! State of one name in the cache, aliases included (R-Relay-20).
//!
//! Owns the origin's answers for the name, and what each audience sees of it. Clients are sent the target of an alias under its
//! own name, so earlier targets are recorded to be removed. Only requested aliases have an entry, whatever the origin lists.
//!
//! Invariants: a name has one body. An alias is listed under its current target only, and its record of the past is bounded.

use std::sync::Arc;

use smallvec::SmallVec;

mod leases;

use super::Generation;
use super::origin_error::{ErrorRecord, OriginError};
use super::view_leases::Leases;
use crate::resource::{Constraints, Form, Name, Resource};

/// The origin's answer for a name that was asked for by name (R-Relay-04).
#[derive(Clone, Debug, Default)]
pub enum Named {
    /// No answer yet, or nobody asks. Never shown to a client as missing.
    #[default]
    Unknown,
    Absent,
    /// It exists. For a member this is the member's body: a name has one.
    Present(Arc<Resource>),
    /// A member, with other content by name, of which this is the digest. After the membership its content is
    /// unknown.
    Superseded(u64),
    /// It left its collection, and nobody asks for it by name.
    Gone,
    /// A collection of which all members have come (R-XT-03).
    Collection {
        /// Small: there is an entry for each requested name.
        members: u32,
        /// Members that were [`Gone`](Self::Gone) up to here are forgotten.
        horizon: Generation,
    },
    /// It is, or was, an alias of a resource (R-Relay-20).
    Alias(Box<Alias>),
}

impl Named {
    /// Answer for the name of a member, by the digest of the content that came by name.
    fn of_member(by_name: u64, member: &Arc<Resource>) -> Self {
        if by_name == content_digest(member) {
            Self::Present(Arc::clone(member))
        } else {
            Self::Superseded(by_name)
        }
    }
}

/// State of a name as one subscriber sees it.
#[derive(Clone, Copy, Debug)]
pub enum VisibleState<'a> {
    Unknown,
    /// It does not exist, or is no member of the wildcard set.
    Absent,
    Present(&'a Arc<Resource>),
    /// It exists, but its body must not be kept (R-XT-09).
    Dropped(&'a Arc<Resource>),
    /// The origin cannot resolve the alias, and answers with this (R-Delta-22).
    Unresolved(&'a Arc<Resource>),
    Collection,
    /// It exists, but new clients may not have it: the relay was denied it (R-Err-06).
    Denied(&'a Arc<Resource>),
    /// The origin answered only with an error.
    Failed,
}

impl<'a> VisibleState<'a> {
    pub(super) fn of(resource: &'a Arc<Resource>) -> Self {
        match resource.form() {
            Form::Whole => Self::Present(resource),
            Form::Unresolved => Self::Unresolved(resource),
            Form::Dropped => Self::Dropped(resource),
        }
    }

    /// The resource as a client that holds it sees it, if any.
    pub const fn present(self) -> Option<&'a Arc<Resource>> {
        match self {
            Self::Present(resource) | Self::Denied(resource) => Some(resource),
            _ => None,
        }
    }

    /// Like [`present`](Self::present), including resources without a body.
    pub const fn existing(self) -> Option<&'a Arc<Resource>> {
        match self {
            Self::Present(resource) | Self::Denied(resource) | Self::Dropped(resource) => Some(resource),
            _ => None,
        }
    }
}

/// One name and its one body. Membership in the wildcard set and the origin's answer for the name are facts
/// about it (R-Relay-03). The wildcard's stream decides the content of members, the stream of names all other
/// content: clients see contents in one order.
///
/// Small, as each node group has its own entries.
#[derive(Clone, Debug)]
pub struct Entry {
    name: Name,
    /// The body, while it is a member.
    pub(super) wild: Option<Arc<Resource>>,
    pub(super) named: Named,
    /// When the wildcard's subscribers last had news of it.
    pub(super) wild_changed: Generation,
    /// First known membership: clients with an older position cannot hold it. Gaps are ignored, as a client may
    /// have missed both changes.
    pub(super) wild_since: Generation,
    /// When clients that asked by name last had news of it.
    pub(super) named_changed: Generation,
    rare: Option<Box<Rare>>,
}

impl Entry {
    pub(super) fn new(name: Name) -> Self {
        Self {
            name,
            wild: None,
            named: Named::Unknown,
            wild_changed: Generation::ZERO,
            wild_since: Generation::ZERO,
            named_changed: Generation::ZERO,
            rare: None,
        }
    }

    pub const fn name(&self) -> &Name {
        &self.name
    }

    pub const fn is_member(&self) -> bool {
        self.wild.is_some()
    }

    /// Resource held under its own name, as a member or by name.
    pub(super) const fn held(&self) -> Option<&Arc<Resource>> {
        match (&self.wild, &self.named) {
            (Some(resource), _) | (None, Named::Present(resource)) => Some(resource),
            (None, _) => None,
        }
    }

    /// State for the wildcard's subscribers.
    pub fn as_member(&self) -> VisibleState<'_> {
        self.wild.as_ref().map_or(VisibleState::Absent, VisibleState::Present)
    }

    /// The origin's answer for the name itself, member or not.
    pub const fn named(&self) -> &Named {
        &self.named
    }

    /// State for clients that asked by name.
    pub fn by_name(&self) -> VisibleState<'_> {
        match (&self.wild, &self.named) {
            (Some(resource), _) => VisibleState::Present(resource),
            (None, Named::Present(resource)) => self.unless_denied(resource),
            (None, Named::Alias(alias)) => {
                alias.now().map_or(VisibleState::Absent, |alias| self.unless_denied(alias))
            }
            (None, Named::Absent | Named::Collection { members: 0, .. }) => VisibleState::Absent,
            (None, Named::Unknown) if self.failed().is_some() => VisibleState::Failed,
            (None, Named::Unknown | Named::Superseded(_) | Named::Gone) => VisibleState::Unknown,
            (None, Named::Collection { .. }) => VisibleState::Collection,
        }
    }

    /// Sets the body from the wildcard's stream, whatever came by name.
    pub(super) fn set_member(&mut self, body: Arc<Resource>) {
        match &self.named {
            Named::Present(by_name) => self.named = Named::of_member(content_digest(by_name), &body),
            Named::Superseded(by_name) => self.named = Named::of_member(*by_name, &body),
            _ => {}
        }
        self.wild = Some(body);
    }

    /// Ends the membership. The body stays only if it also came by name.
    pub(super) fn end_membership(&mut self) {
        self.wild = None;
        if matches!(self.named, Named::Superseded(_)) {
            self.named = Named::Unknown;
        }
    }

    /// Takes a resource of its own name that came by name; for a member it confirms existence only. Returns
    /// whether it is a member.
    pub(super) fn confirm_member(&mut self, resource: &Resource) -> bool {
        if let Some(member) = self.wild.as_ref().filter(|_| resource.name() == &self.name) {
            self.named = Named::of_member(content_digest(resource), member);
            return true;
        }
        false
    }

    fn unless_denied<'a>(&self, resource: &'a Arc<Resource>) -> VisibleState<'a> {
        match (VisibleState::of(resource), self.failed()) {
            (VisibleState::Present(resource), Some(failed)) if failed.denied.is_some() => {
                VisibleState::Denied(resource)
            }
            (seen, _) => seen,
        }
    }

    /// Error for clients that asked by name or through its collection. "Does not exist" is withheld while they
    /// see the resource, even through the wildcard. Unknown names have no error.
    pub(super) fn failed_as(&self, seen: VisibleState<'_>) -> Option<&ErrorRecord> {
        let failed = self.failed()?;
        let is_hidden = failed.failure.is_not_found() && seen.present().is_some();
        (!is_hidden && !matches!(seen, VisibleState::Unknown)).then_some(failed)
    }

    pub fn failure(&self) -> Option<&OriginError> {
        self.failed().map(|failed| &*failed.failure)
    }

    /// Records an error (R-Err-02). An equal one is no news.
    pub(super) fn fail(&mut self, failure: Arc<OriginError>, listed: bool) {
        if failure.is_not_found() {
            match &self.named {
                Named::Collection { .. } | Named::Gone => {}
                Named::Present(_) | Named::Superseded(_) if listed => self.named = Named::Gone,
                // It was no member either.
                _ if listed => return,
                _ => self.set_named(None),
            }
        }
        if self.failure() != Some(&failure) {
            self.set_failed(Some(ErrorRecord::new(failure, self.failed())));
        }
    }

    /// Clears the error when the name is removed or leaves its collection. "Does not exist" stays if the name
    /// is gone.
    pub(super) fn recover(&mut self) {
        let is_gone = match &self.named {
            Named::Absent | Named::Gone => true,
            Named::Alias(alias) => alias.now().is_none(),
            _ => false,
        };
        if !(is_gone && self.failure().is_some_and(OriginError::is_not_found)) {
            self.set_failed(None);
        }
    }

    /// State for clients that asked for its collection.
    pub(super) fn as_listed(&self) -> VisibleState<'_> {
        match &self.named {
            Named::Present(resource) => self.unless_denied(resource),
            Named::Alias(alias) => match alias.now() {
                Some(resource) if *resource.name() == self.name => VisibleState::of(resource),
                _ => VisibleState::Absent,
            },
            Named::Absent | Named::Gone => VisibleState::Absent,
            Named::Superseded(_) => self.wild.as_ref().map_or(VisibleState::Unknown, VisibleState::Present),
            Named::Unknown if self.failed().is_some() => VisibleState::Failed,
            Named::Unknown | Named::Collection { .. } => VisibleState::Unknown,
        }
    }

    /// All variants that subscribers may hold, and some that they may not.
    pub(super) fn variants(&self) -> impl Iterator<Item = Option<Constraints>> {
        let held = [self.as_member().present(), self.as_listed().present()].into_iter().flatten();
        let past = self.past().into_iter().flat_map(|past| past.iter()).cloned();
        past.chain(held.map(|resource| resource.constraints().cloned()))
    }

    /// Records the variant that subscribers saw before (R-DP-13).
    pub(super) fn record_past_variants(&mut self, old: &Self) {
        /// A client that missed more changes of variant may keep one that is gone.
        const REMEMBERED: usize = 8;
        let identity =
            |entry: &Self| entry.by_name().present().map(|resource| resource.constraints().cloned());
        let (was, is) = (identity(old), identity(self));
        let constrained = |identity: &Option<Option<Constraints>>| matches!(identity, Some(Some(_)));
        if was == is || (!self.has_past() && !constrained(&was) && !constrained(&is)) {
            return;
        }
        let mut past: Vec<Option<Constraints>> =
            self.past().into_iter().flat_map(|past| past.iter()).cloned().collect();
        past.retain(|other| Some(other) != was.as_ref() && Some(other) != is.as_ref());
        if was.is_none() && !self.has_past() && old.position() != Generation::ZERO {
            // The earlier resource had no constraints, or they would be recorded.
            past.push(None);
        }
        past.extend(was);
        let surplus = past.len().saturating_sub(REMEMBERED);
        self.edit_rare(|rare| rare.past = Some(Arc::new(past.split_off(surplus))));
    }

    /// Place in the order of changes: its latest change for any client.
    pub fn position(&self) -> Generation {
        let failed = self.failed().map_or(Generation::ZERO, |failed| failed.at);
        self.wild_changed.max(self.named_changed).max(self.resent_at()).max(failed)
    }

    /// Whether only the memory of its removal is left.
    pub(super) fn is_tombstone(&self) -> bool {
        let is_unknown = matches!(self.named, Named::Unknown) && self.failed().is_none();
        self.wild.is_none() && (is_unknown || matches!(self.named, Named::Gone))
    }

    fn edit_rare(&mut self, edit: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        edit(&mut rare);
        self.rare = (!rare.is_nothing()).then(|| Box::new(rare));
    }

    pub(super) fn ghost(&self) -> Option<&Ghost> {
        self.rare.as_ref()?.ghost.as_ref()
    }

    pub(super) fn set_ghost(&mut self, ghost: Option<Ghost>) {
        self.edit_rare(|rare| rare.ghost = ghost);
    }

    fn past(&self) -> Option<&Arc<Vec<Option<Constraints>>>> {
        self.rare.as_ref()?.past.as_ref()
    }

    /// Whether subscribers may hold variants other than the visible one.
    pub(super) fn has_past(&self) -> bool {
        self.past().is_some()
    }

    pub(super) fn resent_at(&self) -> Generation {
        self.rare.as_ref().map_or(Generation::ZERO, |rare| rare.resent_at)
    }

    pub(super) fn set_resent(&mut self, at: Generation) {
        self.edit_rare(|rare| rare.resent_at = at);
    }

    pub(super) fn leases(&self) -> Option<&Leases> {
        self.rare.as_ref()?.leases.as_deref()
    }

    pub(super) fn failed(&self) -> Option<&ErrorRecord> {
        self.rare.as_ref()?.failed.as_deref()
    }

    pub(super) fn set_failed(&mut self, failed: Option<ErrorRecord>) {
        self.edit_rare(|rare| rare.failed = failed.map(Box::new));
    }

    pub(super) fn stamp_failed(&mut self, at: Generation) {
        self.edit_rare(|rare| {
            if let Some(failed) = &mut rare.failed {
                failed.stamp(at);
            }
        });
    }
}

/// Last body of a removed resource.
#[derive(Clone, Debug)]
pub(super) struct Ghost {
    pub(super) resource: Arc<Resource>,
    /// When subscribers last had news of it before it went.
    pub(super) changed: Generation,
}

/// State that few names have. An entry without any allocates none.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// For the union of old and new that make-before-break sends (R-ADS-03).
    ghost: Option<Ghost>,
    /// Constraints of variants that subscribers may hold besides the visible one (R-DP-06), oldest first. Empty
    /// if all had no constraints.
    past: Option<Arc<Vec<Option<Constraints>>>>,
    /// When aggregated subscribers were last to be sent it again, unchanged (R-ADS-05).
    resent_at: Generation,
    /// Its TTLs, if the origin gave any (R-TTL-01).
    leases: Option<Box<Leases>>,
    /// Last error, since which the resource has not come (R-Err-01).
    failed: Option<Box<ErrorRecord>>,
}

impl Rare {
    fn is_nothing(&self) -> bool {
        self.ghost.is_none()
            && self.past.is_none()
            && self.resent_at == Generation::ZERO
            && self.leases.is_none()
            && self.failed.is_none()
    }
}

/// Distinguishes contents of one name: 64 bits of the [digest](Resource::digest).
const fn content_digest(resource: &Resource) -> u64 {
    resource.digest() as u64
}

/// Most earlier targets that are remembered.
const REMEMBERED: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct Alias {
    /// `None` if it does not exist. May be a resource of this very name.
    pub(super) now: Option<Arc<Resource>>,
    /// When clients began to see the current target.
    pub(super) since: Generation,
    pub(super) past: SmallVec<[PastTarget; 1]>,
    /// Targets up to here are forgotten.
    pub(super) horizon: Generation,
}

#[derive(Clone, Debug)]
pub(super) struct PastTarget {
    pub(super) name: Name,
    /// A client without an update since then cannot hold it through this alias.
    pub(super) since: Generation,
    pub(super) until: Generation,
}

impl Alias {
    pub const fn now(&self) -> Option<&Arc<Resource>> {
        self.now.as_ref()
    }

    fn record_past(&mut self, name: Name, until: Generation) {
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
    pub(super) const fn named_resource(&self) -> Option<&Arc<Resource>> {
        match &self.named {
            Named::Present(resource) => Some(resource),
            Named::Alias(alias) => alias.now(),
            _ => None,
        }
    }

    /// Records the origin's answer for the name: a resource, or none.
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

    /// If it is an alias by the origin's answer: the target's own name, and the alias.
    pub(super) fn listing(&self) -> Option<(Name, Name)> {
        let Named::Alias(alias) = &self.named else { return None };
        let resource = alias.now().filter(|resource| resource.form() != Form::Unresolved)?;
        (resource.name() != self.name()).then(|| (resource.name().clone(), self.name().clone()))
    }

    /// If it is an alias: the resource of another name that its clients see.
    pub(super) fn stands_for(&self) -> Option<&Arc<Resource>> {
        let Named::Alias(_) = &self.named else { return None };
        self.by_name().existing().filter(|resource| resource.name() != self.name())
    }

    /// Records the target that clients no longer see through it, as of this generation. Returns the horizon.
    pub(super) fn remember(&mut self, old: Option<&Self>, stamp: Generation) -> Generation {
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
