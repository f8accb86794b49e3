//! State of one name in the cache.

use std::sync::Arc;

mod alias;
mod leases;
mod rare;

use super::Generation;
use super::alias::Alias;
use super::lease::Leases;
use super::origin_error::{ErrorRecord, OriginError};
use crate::resource::{Constraints, Form, Name, Resource};
pub(super) use rare::Ghost;
use rare::Rare;

/// Answer of the origin for a name that was asked for by name (R-Relay-04).
#[derive(Clone, Debug, Default)]
pub enum Named {
    /// Nothing yet, or nobody asks. Never shown to a client as missing.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists. While it is a member of the wildcard set too, this is the member's body: a name has one.
    Present(Arc<Resource>),
    /// It exists and is a member, but the last content that came by name, which has this digest, is not the member's. Once it
    /// is no member any more, its content is unknown.
    Superseded(u64),
    /// It was a member of a collection and is none any more; nobody asks for it by name.
    Gone,
    /// It is a collection of which all members have been heard (R-XT-03).
    Collection {
        /// How many it has. There is one entry for each name that anybody asks for: they are kept small.
        members: u32,
        /// Up to here it is not remembered which were [`Gone`](Self::Gone).
        buried: Generation,
    },
    /// It is, or was, a name beside its own by which the origin knows a resource (R-Relay-20).
    Alias(Box<Alias>),
}

impl Named {
    /// Answer for the name of a member, by the digest of the last content that came by name.
    fn of_member(by_name: u64, member: &Arc<Resource>) -> Self {
        if by_name == content_digest(member) {
            Self::Present(Arc::clone(member))
        } else {
            Self::Superseded(by_name)
        }
    }
}

/// View that one subscriber has of a name.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// The origin has not said.
    Unknown,
    /// It does not exist, or is not a member of the wildcard set.
    Absent,
    /// It exists.
    Present(&'a Arc<Resource>),
    /// It exists, but its body was not to be kept (R-XT-09).
    Dropped(&'a Arc<Resource>),
    /// The origin cannot say what it stands for, and says it with this (R-Delta-22).
    Unresolved(&'a Arc<Resource>),
    /// It is a collection that has members.
    Collection,
    /// It exists, but not for a client that asks for it only now: the relay is not permitted to have it (R-Err-06).
    Denied(&'a Arc<Resource>),
    /// The origin has said nothing of it but an error.
    Failed,
}

impl<'a> Seen<'a> {
    /// View of a name to which the origin answered with this.
    pub(super) fn of(resource: &'a Arc<Resource>) -> Self {
        match resource.form() {
            Form::Whole => Self::Present(resource),
            Form::Unresolved => Self::Unresolved(resource),
            Form::Dropped => Self::Dropped(resource),
        }
    }

    /// The resource, where there is one, for a client that holds it.
    pub const fn present(self) -> Option<&'a Arc<Resource>> {
        match self {
            Self::Present(resource) | Self::Denied(resource) => Some(resource),
            Self::Absent
            | Self::Unknown
            | Self::Collection
            | Self::Failed
            | Self::Dropped(_)
            | Self::Unresolved(_) => None,
        }
    }

    /// Like [`present`](Self::present), and also a resource whose body was not kept.
    pub const fn existing(self) -> Option<&'a Arc<Resource>> {
        match self {
            Self::Present(resource) | Self::Denied(resource) | Self::Dropped(resource) => Some(resource),
            Self::Absent | Self::Unknown | Self::Collection | Self::Failed | Self::Unresolved(_) => None,
        }
    }
}

/// One name and its one body. Membership in the origin's wildcard set, and the origin's answer for the name itself, are facts
/// about it (R-Relay-03). The wildcard's stream decides the content of a member, the stream that asks by name that of all others:
/// so clients see the contents of a name in one order.
///
/// Each node group has one for each of its resources, be they the same as those of others: it is kept small.
#[derive(Clone, Debug)]
pub struct Entry {
    name: Name,
    /// The body, while it is a member.
    pub(super) wild: Option<Arc<Resource>>,
    pub(super) named: Named,
    /// When the wildcard's subscribers last had something to learn of it.
    pub(super) wild_changed: Generation,
    /// Generation of its first known membership. A client whose position is older cannot hold it. Gaps in membership are
    /// ignored: a client may have missed both the removal and the return.
    pub(super) wild_since: Generation,
    /// When clients that asked by name last had something to learn of it.
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

    /// Its name.
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Whether it is a member of the wildcard set.
    pub const fn is_member(&self) -> bool {
        self.wild.is_some()
    }

    /// Resource that is held under its own name, as a member of the wildcard set or by the name.
    pub(super) const fn held(&self) -> Option<&Arc<Resource>> {
        match (&self.wild, &self.named) {
            (Some(resource), _) | (None, Named::Present(resource)) => Some(resource),
            (None, _) => None,
        }
    }

    /// Generation of its last change for anybody.
    pub fn changed(&self) -> Generation {
        self.position()
    }

    /// View of the wildcard's subscribers.
    pub fn as_member(&self) -> Seen<'_> {
        self.wild.as_ref().map_or(Seen::Absent, Seen::Present)
    }

    /// Answer of the origin for the name itself, whether or not it is a member too.
    pub const fn named(&self) -> &Named {
        &self.named
    }

    /// View of clients that asked by name.
    pub fn by_name(&self) -> Seen<'_> {
        match (&self.wild, &self.named) {
            (Some(resource), _) => Seen::Present(resource),
            (None, Named::Present(resource)) => self.unless_denied(resource),
            (None, Named::Alias(alias)) => {
                alias.now().map_or(Seen::Absent, |alias| self.unless_denied(alias))
            }
            (None, Named::Absent | Named::Collection { members: 0, .. }) => Seen::Absent,
            (None, Named::Unknown) if self.failed().is_some() => Seen::Failed,
            (None, Named::Unknown | Named::Superseded(_) | Named::Gone) => Seen::Unknown,
            (None, Named::Collection { .. }) => Seen::Collection,
        }
    }

    /// The wildcard's stream brought this: the body, whatever came by name.
    pub(super) fn set_member(&mut self, body: Arc<Resource>) {
        match &self.named {
            Named::Present(by_name) => self.named = Named::of_member(content_digest(by_name), &body),
            Named::Superseded(by_name) => self.named = Named::of_member(*by_name, &body),
            Named::Unknown | Named::Absent | Named::Gone | Named::Collection { .. } | Named::Alias(_) => {}
        }
        self.wild = Some(body);
    }

    /// It is no member any more. The body stays only if it is also what came by name.
    pub(super) fn end_membership(&mut self) {
        self.wild = None;
        if matches!(self.named, Named::Superseded(_)) {
            self.named = Named::Unknown;
        }
    }

    /// The stream that asks by name brought this resource of its own name. Of a member that is a fact and no content. Returns
    /// whether it is a member.
    pub(super) fn confirm_member(&mut self, resource: &Resource) -> bool {
        if let Some(member) = self.wild.as_ref().filter(|_| resource.name() == &self.name) {
            self.named = Named::of_member(content_digest(resource), member);
            return true;
        }
        false
    }

    fn unless_denied<'a>(&self, resource: &'a Arc<Resource>) -> Seen<'a> {
        match (Seen::of(resource), self.failed()) {
            (Seen::Present(resource), Some(failed)) if failed.is_denial() => Seen::Denied(resource),
            (seen, _) => seen,
        }
    }

    /// The error for clients that asked by name, or for its collection. A "does not exist" is withheld where they see the
    /// resource, be it as a member of the wildcard set; of a name that is unknown to them no error is told.
    pub(super) fn failed_as(&self, seen: Seen<'_>) -> Option<&ErrorRecord> {
        let failed = self.failed()?;
        let is_hidden = failed.failure.is_not_found() && seen.present().is_some();
        (!is_hidden && !matches!(seen, Seen::Unknown)).then_some(failed)
    }

    /// The last error of the name.
    pub fn failure(&self) -> Option<&OriginError> {
        self.failed().map(|failed| &*failed.failure)
    }

    /// Takes in an error (R-Err-02). One that is equal to the last is no news.
    pub(super) fn fail(&mut self, failure: Arc<OriginError>, listed: bool) {
        if failure.is_not_found() {
            match &self.named {
                Named::Collection { .. } | Named::Gone => {}
                Named::Present(_) | Named::Superseded(_) if listed => self.named = Named::Gone,
                // It has not been a member either.
                _ if listed => return,
                _ => self.set_named(None),
            }
        }
        if self.failure() != Some(&failure) {
            self.set_failed(Some(ErrorRecord::new(failure, self.failed())));
        }
    }

    /// The origin says that it does not exist, or nothing is known any more. An error that says the same stays.
    pub(super) fn recover(&mut self) {
        let is_gone = match &self.named {
            Named::Absent | Named::Gone => true,
            Named::Alias(alias) => alias.now().is_none(),
            Named::Unknown | Named::Present(_) | Named::Superseded(_) | Named::Collection { .. } => false,
        };
        if !(is_gone && self.failure().is_some_and(OriginError::is_not_found)) {
            self.set_failed(None);
        }
    }

    /// View of clients that asked for the collection that it is a member of.
    pub(super) fn as_listed(&self) -> Seen<'_> {
        match &self.named {
            Named::Present(resource) => self.unless_denied(resource),
            Named::Alias(alias) => match alias.now() {
                Some(resource) if *resource.name() == self.name => Seen::of(resource),
                _ => Seen::Absent,
            },
            Named::Absent | Named::Gone => Seen::Absent,
            Named::Superseded(_) => self.wild.as_ref().map_or(Seen::Unknown, Seen::Present),
            Named::Unknown if self.failed().is_some() => Seen::Failed,
            Named::Unknown | Named::Collection { .. } => Seen::Unknown,
        }
    }

    /// All variants that its subscribers may hold, and some that they may not.
    pub(super) fn variants(&self) -> impl Iterator<Item = Option<Constraints>> {
        let held = [self.as_member().present(), self.as_listed().present()].into_iter().flatten();
        let past = self.past().into_iter().flat_map(|past| past.iter()).cloned();
        past.chain(held.map(|resource| resource.constraints().cloned()))
    }

    /// Notes that its subscribers no longer see what they saw (R-DP-13).
    pub(super) fn turn_from(&mut self, old: &Self) {
        /// A client that missed more changes than this of what a name means may keep a variant that is gone.
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
            // The resource that was there before it went had no constraints, or this would remember them.
            past.push(None);
        }
        past.extend(was);
        let surplus = past.len().saturating_sub(REMEMBERED);
        self.edit_rare(|rare| rare.past = Some(Arc::new(past.split_off(surplus))));
    }

    /// Its place in the order of changes: no audience's stamp is later.
    pub(super) fn position(&self) -> Generation {
        let failed = self.failed().map_or(Generation::ZERO, |failed| failed.at);
        self.wild_changed.max(self.named_changed).max(self.repushed()).max(failed)
    }

    /// Whether nothing is left of it but the memory that it went.
    pub(super) fn is_tombstone(&self) -> bool {
        let is_unknown = matches!(self.named, Named::Unknown) && self.failed().is_none();
        self.wild.is_none() && (is_unknown || matches!(self.named, Named::Gone))
    }

    /// Changes what few entries have.
    fn edit_rare(&mut self, edit: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().map_or_else(Rare::default, |rare| *rare);
        edit(&mut rare);
        self.rare = (!rare.is_nothing()).then(|| Box::new(rare));
    }

    /// The last body of what is gone.
    pub(super) fn ghost(&self) -> Option<&Ghost> {
        self.rare.as_ref()?.ghost.as_ref()
    }

    pub(super) fn set_ghost(&mut self, ghost: Option<Ghost>) {
        self.edit_rare(|rare| rare.ghost = ghost);
    }

    /// Which variants its subscribers may hold beside the one that they see, oldest first.
    fn past(&self) -> Option<&Arc<Vec<Option<Constraints>>>> {
        self.rare.as_ref()?.past.as_ref()
    }

    /// Whether its subscribers may hold other variants than the one that they see.
    pub(super) fn has_past(&self) -> bool {
        self.past().is_some()
    }

    /// When aggregated subscribers were last to be sent it again, unchanged.
    pub(super) fn repushed(&self) -> Generation {
        self.rare.as_ref().map_or(Generation::ZERO, |rare| rare.repushed)
    }

    pub(super) fn set_repushed(&mut self, at: Generation) {
        self.edit_rare(|rare| rare.repushed = at);
    }

    /// For how long it is to be kept, where the origin said so.
    pub(super) fn leases(&self) -> Option<&Leases> {
        self.rare.as_ref()?.leases.as_deref()
    }

    /// The last error of the name, since which the resource has not come.
    pub(super) fn failed(&self) -> Option<&ErrorRecord> {
        self.rare.as_ref()?.failed.as_deref()
    }

    pub(super) fn set_failed(&mut self, failed: Option<ErrorRecord>) {
        self.edit_rare(|rare| rare.failed = failed.map(Box::new));
    }

    /// Notes when clients that asked by name had to learn of the error.
    pub(super) fn stamp_failed(&mut self, at: Generation) {
        self.edit_rare(|rare| {
            if let Some(failed) = &mut rare.failed {
                failed.stamp(at);
            }
        });
    }
}

/// Tells contents of one name apart: 64 bits of the [digest](Resource::digest).
const fn content_digest(resource: &Resource) -> u64 {
    resource.digest() as u64
}
