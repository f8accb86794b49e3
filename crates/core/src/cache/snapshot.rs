//! One immutable state of one type, and how the next one is made from it.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashSet;
use imbl::{OrdMap, OrdSet};

mod aliases;
mod draft;
mod errors;
mod forgotten;
mod held;
mod since;
mod timeline;

use super::Generation;
use super::change::{Completeness, Op, Resend};
use super::entry::{Entry, Named, Seen};
use super::lease::{Lease, LeaseRenewal};
use super::position::Position;
use super::profile::{StreamProfile, TtlSupport};
use super::segments::Segments;
use super::subscription::Subscription;
use super::view::View;
use crate::resource::{Collection, Constraints, Form, Name, Resource};
pub(super) use draft::Draft;
use forgotten::Forgotten;
pub use held::Held;
use timeline::Timeline;

/// Everything that the cache knows of one type at one moment. Readers hold one for as long as they like; the
/// writer publishes a new one with a pointer swap.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) generation: Generation,
    /// When that generation was made; the clock is the caller's.
    pub(super) at: Option<Instant>,
    pub(super) table: Segments,
    /// Every entry once, at the place where it last changed for anybody. "What has changed since" is a range.
    pub(super) log: Timeline,
    /// Entries of which the latest to be told is that their time was renewed, at the place of that.
    pub(super) renewals: OrdMap<Generation, Arc<Entry>>,
    /// Names that have no entry any more, for readers of changes.
    forgotten: Forgotten,
    /// How many entries have a time.
    pub(super) leased: usize,
    /// Tombstones up to here have been dropped: a wildcard's client that stands before it cannot be told what was
    /// removed. Names that are asked for are remembered for as long as they are.
    pub(super) horizon: Generation,
    /// Names that were asked for and are aliases, each behind the own name of what it stands for.
    pub(super) aliases: OrdSet<(Name, Name)>,
    /// Up to here it is not remembered what some alias stood for.
    pub(super) aliases_buried: Generation,
    pub(super) completeness: Completeness,
    /// Sum of the digests of the wildcard's members.
    pub(super) wildcard_digest: u128,
    pub(super) members: usize,
    held: Held,
    /// Names whose bodies are kept from newcomers.
    pub(super) denials: usize,
    pub(super) system_version: Arc<str>,
    /// `control_plane.identifier` of responses; empty if they have none.
    pub(super) control_plane: Arc<str>,
    tombstones: usize,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            generation: Generation::ZERO,
            at: None,
            table: Segments::default(),
            log: Timeline::default(),
            renewals: OrdMap::new(),
            forgotten: Forgotten::default(),
            leased: 0,
            horizon: Generation::ZERO,
            aliases: OrdSet::new(),
            aliases_buried: Generation::ZERO,
            completeness: Completeness::Unknown,
            wildcard_digest: 0,
            members: 0,
            held: Held::default(),
            denials: 0,
            system_version: Arc::from(""),
            control_plane: Arc::from(""),
            tombstones: 0,
        }
    }
}

impl Snapshot {
    /// The newest change in it.
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// When its newest generation was made.
    pub const fn changed_at(&self) -> Option<Instant> {
        self.at
    }

    /// Entry of a name; `None` is the same as unknown and not a member.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.table.get(name).map(|entry| &**entry)
    }

    /// View of a client that asks by this name.
    pub fn by_name(&self, name: &str) -> Seen<'_> {
        self.get(name).map_or(Seen::Unknown, Entry::by_name)
    }

    /// Whether a client that stands here has been told of the resource that it sees by this name.
    pub fn has_told(
        &self,
        name: &str,
        subscription: &Subscription,
        profile: StreamProfile,
        position: &Position,
    ) -> bool {
        let look = |entry| Some((entry, subscription.look(entry, profile.aggregated)?));
        let Some((entry, look)) = self.get(name).and_then(look) else { return false };
        let is_timed = profile.ttl != TtlSupport::Untold && self.leased > 0;
        let place = if is_timed { entry.place() } else { entry.position() };
        look.seen.present().is_some()
            && (look.changed <= position.floor() || position.has_told(name, look.changed, place))
    }

    /// Members of the wildcard set that a client with this position may have been told of since it stood at `since`, and that went
    /// after it was.
    pub fn withdrawn(&self, since: Generation, position: &Position) -> impl Iterator<Item = &Name> {
        let later = self.log.range((Bound::Excluded(position.added), Bound::Unbounded));
        let came = move |entry: &&Arc<Entry>| {
            since < entry.wild_since
                && entry.wild_since <= position.seen
                && position.added < entry.wild_changed
        };
        later.filter(|entry| !entry.is_member()).filter(came).map(|entry| entry.name())
    }

    /// Names that came after a client with this subscription and position was last sent anything, and that went. A name that it asks for by
    /// name may have been told before it was a member of the wildcard set.
    pub fn came_and_went<'a>(
        &'a self,
        subscription: &'a Subscription,
        position: &'a Position,
    ) -> impl Iterator<Item = &'a Name> {
        let later = self.log.range((Bound::Excluded(position.removed), Bound::Unbounded));
        let is_new = |entry: &&Arc<Entry>| {
            let look = subscription.look(entry, false);
            look.is_some_and(|look| look.seen.existing().is_none() && position.seen < look.since)
        };
        later.filter(is_new).map(|entry| entry.name())
    }

    /// Whether a name was a member of the wildcard set, and has been none since this or before.
    pub fn lacks_member_since(&self, name: &str, since: Generation) -> bool {
        self.get(name).is_some_and(|entry| !entry.is_member() && entry.wild_changed <= since)
    }

    /// Names that aggregated clients are to be sent again since then (R-ADS-05).
    pub fn repushed_after(&self, since: Generation) -> impl Iterator<Item = &Name> {
        let later = self.log.range((Bound::Excluded(since), Bound::Unbounded));
        later.filter(move |entry| entry.repushed() > since).map(|entry| entry.name())
    }

    /// All variants of a name that a client may hold that was told of it by locator, and some that it may not.
    pub fn variants(&self, name: &str) -> impl Iterator<Item = Option<Constraints>> {
        self.get(name).into_iter().flat_map(Entry::variants)
    }

    /// The resource that is held of this name through one of the relay's two subscriptions (R-Relay-03), be it without its
    /// body.
    pub fn held(&self, view: View, name: &str) -> Option<&Arc<Resource>> {
        let entry = self.get(name)?;
        match view {
            View::Wildcard => entry.as_member().present(),
            View::Named => entry.named_resource().filter(|held| held.form() != Form::Unresolved),
        }
    }

    /// Whether anything that is held by this name is to be kept for a time only.
    pub fn is_leased(&self, name: &str) -> bool {
        self.leased > 0 && self.get(name).is_some_and(Entry::is_leased)
    }

    /// The members of a collection, by name; none where it is the name of something else.
    pub fn members_of<'s>(&'s self, name: &'s Name) -> impl Iterator<Item = &'s Arc<Resource>> {
        let collection = Collection::named(name.as_str());
        let entries = collection.into_iter().flat_map(|collection| self.table.covered(collection));
        entries.filter_map(|entry| entry.as_listed().present())
    }

    /// Entries that are seen through the collections of a subscription and were not asked for by name.
    pub(super) fn listed<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = &'s Arc<Entry>> {
        let entries = subscription.collections().flat_map(|(_, collection)| self.table.covered(collection));
        entries.filter(|entry| !subscription.contains(entry.name().as_str()))
    }

    /// Views that a subscription has beside the members of the wildcard set, if it subscribes to that: each name that was
    /// asked for, and each member of a collection that was.
    pub(super) fn beside_wildcard<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = Seen<'s>> {
        let through_wildcard = |entry: &Entry| subscription.wildcard && entry.as_member().present().is_some();
        // A resource with several names is seen once.
        let mut aliased: HashSet<&Name> = HashSet::default();
        let mut is_seen_already = move |entry: &'s Entry| {
            entry
                .stands_for()
                .map(|resource| resource.name())
                .is_some_and(|own| self.is_seen_by_itself(subscription, own.as_str()) || !aliased.insert(own))
        };
        let named = subscription.names().iter().map(|name| self.table.get(name.as_str()));
        let named = named.filter(move |entry| {
            !entry.is_some_and(|entry| through_wildcard(entry) || is_seen_already(entry))
        });
        let listed = self.listed(subscription).filter(move |entry| !through_wildcard(entry));
        named
            .map(|entry| entry.map_or(Seen::Unknown, |entry| entry.by_name()))
            .chain(listed.map(|entry| entry.as_listed()))
    }

    /// Up to where it is not remembered what went from the collections of a subscription.
    pub(super) fn buried(&self, subscription: &Subscription) -> Generation {
        let buried = |(name, _): (&Name, _)| match self.get(name.as_str())?.named() {
            Named::Collection { buried, .. } => Some(*buried),
            _ => None,
        };
        subscription.collections().filter_map(buried).max().unwrap_or_default()
    }

    /// The origin's wildcard set, by name.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.table.iter().filter_map(|entry| entry.as_member().present())
    }

    /// How many members the wildcard set has.
    pub const fn member_count(&self) -> usize {
        self.members
    }

    /// Everything that is held, members of the wildcard set or not.
    pub const fn held_in_all(&self) -> Held {
        self.held
    }

    /// How much of the wildcard set is known (R-Relay-05).
    pub const fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// Whether the wildcard set is known as far as a client that holds nothing needs it.
    pub fn wildcard_known(&self) -> bool {
        self.completeness >= Completeness::Settled
    }

    /// Whether it can be told which members went after this.
    pub fn remembers(&self, since: Generation) -> bool {
        since >= self.horizon
    }

    /// Whether any of the entries that changed last is a resource. A few are enough to tell a type that the origin has from
    /// one of which it only says that this or that does not exist.
    pub(super) fn has_resources(&self) -> bool {
        const LOOKED_AT: usize = 16;
        let is_resource = |entry: &Arc<Entry>| {
            [entry.as_member(), entry.as_listed()].iter().any(|seen| seen.present().is_some())
        };
        self.log.newest().take(LOOKED_AT).any(is_resource)
    }

    /// Whether anything is held that somebody asked for, or may be.
    pub fn holds_anything(&self) -> bool {
        self.tombstones < self.log.len() || self.wildcard_known()
    }

    /// Whether anything of the wildcard set is held.
    pub(super) fn holds_wildcard(&self) -> bool {
        self.members > 0 || self.wildcard_known()
    }

    /// Operation that brings a resource held here to a store that has not heard of it.
    pub(crate) fn op_for(&self, view: View, resource: &Arc<Resource>) -> Op {
        Op::held(view, Arc::clone(resource), self.lease(view, resource.name().as_str()))
    }

    /// For how long what is held of a name is to be kept.
    pub(crate) fn lease(&self, view: View, name: &str) -> Option<Lease> {
        if self.leased == 0 { None } else { self.get(name)?.lease(view) }
    }

    /// Operations that bring this name, be it a member of the wildcard set, to a store that has heard nothing of it and whose
    /// clients asked for it.
    pub(super) fn told_by_name(&self, name: &Name) -> Vec<Op> {
        match self.member(name) {
            Some(member) => vec![self.op_as_named(member)],
            None => self.said_of(name),
        }
    }

    /// Meaning of an operation, which has led to this, for clients that asked for its name.
    pub(super) fn said_by_name(&self, op: &Op) -> Vec<Op> {
        let member = self.member(op.name());
        match (op, member) {
            (Op::Set { resource, resend, lease, .. }, _)
                if member.is_none_or(|held| held.same_content(resource)) =>
            {
                let (resource, resend, lease) = (Arc::clone(resource), *resend, *lease);
                vec![Op::Set { view: View::Named, resource, resend, lease }]
            }
            // Said of the name, or of what was a member before: the member is what they see.
            (Op::Set { .. } | Op::Remove { .. } | Op::Forget { .. } | Op::Alias { .. }, Some(member)) => {
                vec![self.op_as_named(member)]
            }
            (Op::Fail { .. } | Op::Withdraw { .. }, Some(member)) => {
                vec![op.clone(), self.op_as_named(member)]
            }
            (Op::Renew { name, lease, .. }, _) => {
                vec![Op::Renew { view: View::Named, name: name.clone(), lease: *lease }]
            }
            (Op::Remove { view: View::Wildcard, name } | Op::Forget { view: View::Wildcard, name }, None) => {
                let said = self.said_of(name);
                // Nothing is known of it any more but what the wildcard said.
                let forget = || vec![Op::Forget { view: View::Named, name: name.clone() }];
                if said.is_empty() { forget() } else { said }
            }
            (op, _) => vec![op.clone()],
        }
    }

    fn member(&self, name: &Name) -> Option<&Arc<Resource>> {
        self.get(name.as_str())?.as_member().present()
    }

    /// A member, for clients that asked for its name.
    pub(crate) fn op_as_named(&self, member: &Arc<Resource>) -> Op {
        Op::held(View::Named, Arc::clone(member), self.lease(View::Wildcard, member.name().as_str()))
    }

    /// Operations that bring what was said of a name, asked for by name, to a store that has not heard it.
    pub(super) fn said_of(&self, name: &Name) -> Vec<Op> {
        let Some(entry) = self.get(name.as_str()) else { return Vec::new() };
        let mut ops = match entry.named() {
            Named::Unknown | Named::Gone => Vec::new(),
            Named::Superseded(_) => {
                self.member(name).map(|member| self.op_as_named(member)).into_iter().collect()
            }
            Named::Alias(alias) => vec![match alias.now() {
                Some(resource) => {
                    let (resource, resend) = (Arc::clone(resource), Resend::Answer);
                    Op::Alias { name: name.clone(), resource, resend }
                }
                None => Op::Remove { view: View::Named, name: name.clone() },
            }],
            Named::Absent => vec![Op::Remove { view: View::Named, name: name.clone() }],
            Named::Present(resource) => vec![self.op_for(View::Named, resource)],
            Named::Collection { .. } => {
                let members = self.members_of(name);
                let mut ops: Vec<Op> = members.map(|held| self.op_for(View::Named, held)).collect();
                ops.push(Op::Complete { name: name.clone() });
                ops
            }
        };
        ops.extend(entry.failed().map(|failed| Op::Fail {
            name: name.clone(),
            failure: Arc::clone(&failed.failure),
            listed: false,
        }));
        ops
    }

    /// Everything held, with both of its views.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.table.iter().map(|entry| &**entry)
    }

    /// Resources and names that a client with this subscription may hold which has been told so much: what is there, and what
    /// went and was not told.
    pub fn held_by<'a>(
        &'a self,
        subscription: &'a Subscription,
        position: &'a Position,
    ) -> impl Iterator<Item = (&'a Name, Option<&'a Resource>)> {
        self.entries().filter_map(|entry| {
            let look = subscription.look(entry, false)?;
            match look.seen.present() {
                Some(resource) => Some((resource.name(), Some(&**resource))),
                None if look.changed > position.removed && look.since <= position.seen => {
                    Some((entry.name(), None))
                }
                None => None,
            }
        })
    }

    /// Names that clients with this subscription see and that last changed after `from`, up to `to`. Of a wildcard's or a collection's
    /// changes only the first are looked at.
    pub fn changed_between<'a>(
        &'a self,
        subscription: &'a Subscription,
        from: Generation,
        to: Generation,
    ) -> impl Iterator<Item = &'a Name> {
        const LOOKED_AT: usize = 10_000;
        let range = (from < to).then_some((Bound::Excluded(from), Bound::Included(to)));
        let names = subscription.names();
        // Each change has a generation: the shorter way is taken.
        let is_named = !subscription.wildcard && !subscription.has_collections();
        let by_name = is_named && (names.len() as u64) < to.get().saturating_sub(from.get());
        let (named, range) = if by_name { (names, None) } else { (&[][..], range) };
        let named = named.iter().filter_map(move |name| {
            let position = self.get(name.as_str())?.position();
            (from < position && position <= to).then_some(name)
        });
        let entries = range.into_iter().flat_map(|range| self.log.range(range));
        let entries = entries.take(if is_named { usize::MAX } else { LOOKED_AT });
        named.chain(entries.filter(|entry| subscription.look_at(entry).is_some()).map(|entry| entry.name()))
    }

    /// Names that a client with this subscription sees, each with its view: all that it asked for, and the members of the
    /// wildcard and of collections if it asked for these.
    pub fn seen_through<'a>(
        &'a self,
        subscription: &'a Subscription,
    ) -> impl Iterator<Item = (&'a Name, Seen<'a>)> {
        let named = subscription.names().iter().map(|name| (name, self.by_name(name.as_str())));
        let walks = subscription.wildcard || subscription.has_collections();
        let entries = walks.then(|| self.table.iter()).into_iter().flatten();
        let others = entries.filter(|entry| !subscription.contains(entry.name().as_str()));
        let others = others.filter_map(|entry| Some((entry.name(), subscription.look_at(entry)?)));
        named.chain(others.filter(|(_, seen)| seen.existing().is_some()))
    }

    /// Version of the control plane; empty if it gives none.
    pub const fn system_version(&self) -> &Arc<str> {
        &self.system_version
    }

    /// The resource that a client with this subscription sees by this name, if there is one.
    pub fn seen_by(&self, subscription: &Subscription, name: &str) -> Option<&Resource> {
        subscription.look(self.get(name)?, false)?.seen.present().map(|resource| &**resource)
    }
}

/// A changed name, and which clients have something to learn of it.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) name: Name,
    pub(super) members: bool,
    pub(super) named: bool,
    /// Audiences among the clients that are told TTLs.
    pub(super) renewed: LeaseRenewal,
    /// Its entry before and after, as far as there is one.
    pub(super) was: Option<Arc<Entry>>,
    pub(super) is: Option<Arc<Entry>>,
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::fixture::resource;
    use super::super::position::Part;
    use super::super::profile::Protocol;
    use super::super::{Cache, Limits};
    use super::*;
    use crate::resource::{Kind, TypeUrl};

    #[test]
    fn a_name_that_was_moved_behind_the_part_that_was_told_is_not_told() {
        let (cache, mut writer) = Cache::new(Limits::default());
        let type_url = TypeUrl::from(Kind::Endpoint);
        let of = cache.of(&type_url).expect("a type of the protocol");
        let mut apply = |op| {
            let change = Change { ops: vec![op], ..Change::default() };
            writer.apply(&type_url, change, Instant::now()).expect("a type of the protocol");
            of.snapshot()
        };
        apply(Op::held(View::Wildcard, resource(&type_url, "a", "1", b""), None));
        apply(Op::held(View::Named, resource(&type_url, "a", "1", b""), None));
        let told = apply(Op::held(View::Named, resource(&type_url, "b", "1", b""), None)).generation();
        // A client that asks by name sees what it saw before, but the name stands behind `b` now.
        let snapshot = apply(Op::Forget { view: View::Wildcard, name: "a".into() });
        let subscription = Subscription::new(false, ["a", "b"].map(Name::from));
        let profile = StreamProfile { protocol: Protocol::Delta, aggregated: false, ttl: TtlSupport::Untold };
        let has_told = |position: &Position| {
            ["a", "b"].map(|name| snapshot.has_told(name, &subscription, profile, position))
        };
        let part = Part::Changes { floor: Generation::ZERO };
        assert_eq!(has_told(&Position { part, ..Position::up_to(told) }), [false, true]);
        assert_eq!(has_told(&Position::up_to(told)), [true, true]);
        assert_eq!(has_told(&Position::default()), [false, false]);
    }
}
