//! Immutable state of one type, as readers see it and as other stores copy it.

use std::sync::Arc;
use std::time::Instant;

use foldhash::HashSet;
use imbl::{OrdMap, OrdSet};

mod changes_since;
mod draft;

use super::Generation;
use super::change::{Completeness, Op, Resend};
use super::chunks::Timeline;
use super::entry::{Entry, Named, VisibleState};
use super::position::Position;
use super::segments::Segments;
use super::subscription::{StreamProfile, Subscription};
use super::view_leases::View;
use super::view_leases::{Lease, LeaseRenewal};
use crate::resource::{Collection, Constraints, Form, Name, Resource, TypeUrl};

pub(super) use draft::Draft;

/// Everything that the cache knows of one type at one moment. Readers may hold it for any time; the writer
/// swaps a pointer to publish the next.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub(super) generation: Generation,
    /// When that generation was made, by the caller's clock.
    pub(super) at: Option<Instant>,
    pub(super) table: Segments,
    /// Each entry once, at the place of its last change: changes since a generation are a range.
    pub(super) log: Timeline,
    /// Entries whose latest news is a renewed TTL, at the place of the renewal.
    pub(super) renewals: OrdMap<Generation, Arc<Entry>>,
    /// Entries with a TTL.
    pub(super) leased: usize,
    /// Tombstones up to here are dropped: wildcard clients further behind cannot be sent removals. Requested
    /// names are kept.
    pub(super) horizon: Generation,
    /// Requested names that are aliases, each after its target's own name.
    pub(super) aliases: OrdSet<(Name, Name)>,
    /// Newest horizon of a collection or an alias.
    names_horizon: Generation,
    pub(super) completeness: Completeness,
    /// Sum of the digests of all members.
    pub(super) wildcard_digest: u128,
    pub(super) members: usize,
    held: HeldTotals,
    pub(super) system_version: Arc<str>,
    /// `control_plane.identifier` of responses; empty for none.
    pub(super) control_plane: Arc<str>,
    tombstones: usize,
}

impl Snapshot {
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    pub const fn changed_at(&self) -> Option<Instant> {
        self.at
    }

    /// Entry of a name; `None` means unknown and no member.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.table.get(name).map(|entry| &**entry)
    }

    pub fn by_name(&self, name: &str) -> VisibleState<'_> {
        self.get(name).map_or(VisibleState::Unknown, Entry::by_name)
    }

    /// Whether a client at this position was sent the resource that it sees by this name.
    pub fn was_sent(
        &self,
        name: &str,
        subscription: &Subscription,
        profile: StreamProfile,
        position: &Position,
    ) -> bool {
        let visible = |entry| Some((entry, subscription.visible_entry(entry, profile.aggregated)?));
        let Some((entry, visible)) = self.get(name).and_then(visible) else { return false };
        let is_timed = profile.receives_ttls() && self.leased > 0;
        let place = if is_timed { entry.place() } else { entry.position() };
        visible.state.present().is_some()
            && (visible.changed <= position.floor() || position.was_sent(name, visible.changed, place))
    }

    /// All variants that a client may hold after an answer by locator, and some that it may not.
    pub fn variants(&self, name: &str) -> impl Iterator<Item = Option<Constraints>> {
        self.get(name).into_iter().flat_map(Entry::variants)
    }

    /// Resource held of this name through one of the relay's subscriptions (R-Relay-03), with or without its
    /// body.
    pub fn held(&self, view: View, name: &str) -> Option<&Arc<Resource>> {
        let entry = self.get(name)?;
        match view {
            View::Wildcard => entry.as_member().present(),
            View::Named => entry.named_resource().filter(|held| held.form() != Form::Unresolved),
        }
    }

    /// Whether anything held by this name has a TTL.
    pub fn is_leased(&self, name: &str) -> bool {
        self.leased > 0 && self.get(name).is_some_and(Entry::is_leased)
    }

    /// Members of a collection, by name; none if the name is no collection.
    pub fn members_of<'s>(&'s self, name: &'s Name) -> impl Iterator<Item = &'s Arc<Resource>> {
        let collection = Collection::named(name.as_str());
        let entries = collection.into_iter().flat_map(|collection| self.table.covered(collection));
        entries.filter_map(|entry| entry.as_listed().present())
    }

    /// Entries seen only through the subscription's collections.
    pub(super) fn listed<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = &'s Arc<Entry>> {
        let entries = subscription.collections().flat_map(|(_, collection)| self.table.covered(collection));
        entries.filter(|entry| !subscription.contains(entry.name().as_str()))
    }

    /// States beside the wildcard's members: of requested names and collections.
    pub(super) fn beside_wildcard<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = VisibleState<'s>> {
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
            .map(|entry| entry.map_or(VisibleState::Unknown, |entry| entry.by_name()))
            .chain(listed.map(|entry| entry.as_listed()))
    }

    /// Whether removals after `since` are forgotten that clients of this subscription need.
    pub(super) fn has_forgotten(&self, subscription: &Subscription, since: Generation) -> bool {
        let horizon = |name: &Name| match self.get(name.as_str())?.named() {
            Named::Collection { horizon, .. } => Some(*horizon),
            Named::Alias(alias) => Some(alias.horizon),
            _ => None,
        };
        let names = || subscription.names().iter().filter_map(horizon);
        let is_behind = (subscription.wildcard && since < self.horizon)
            || (since < self.names_horizon && names().any(|horizon| since < horizon));
        since != Generation::ZERO && is_behind
    }

    pub fn members(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.table.iter().filter_map(|entry| entry.as_member().present())
    }

    pub const fn member_count(&self) -> usize {
        self.members
    }

    pub const fn held_in_all(&self) -> HeldTotals {
        self.held
    }

    pub const fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// Whether the set suffices for a client that holds nothing.
    pub fn wildcard_known(&self) -> bool {
        self.completeness >= Completeness::Settled
    }

    /// Whether anything is held that clients ask for, or may.
    pub fn holds_anything(&self) -> bool {
        self.entries().any(|entry| !entry.is_tombstone()) || self.wildcard_known()
    }

    pub(super) fn holds_wildcard(&self) -> bool {
        self.members > 0 || self.wildcard_known()
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.table.iter().map(|entry| &**entry)
    }

    /// Resources and names that a client at this position may hold: present ones, and removed ones not sent as
    /// such.
    pub fn held_by<'a>(
        &'a self,
        subscription: &'a Subscription,
        position: &'a Position,
    ) -> impl Iterator<Item = (&'a Name, Option<&'a Resource>)> {
        self.entries().filter_map(|entry| {
            let visible = subscription.visible_entry(entry, false)?;
            match visible.state.present() {
                Some(resource) => Some((resource.name(), Some(&**resource))),
                None if visible.changed > position.removed && visible.since <= position.newest_state => {
                    Some((entry.name(), None))
                }
                None => None,
            }
        })
    }

    /// Names that clients of this subscription see, with their state: requested names, and members of the
    /// wildcard and collections.
    pub fn seen_through<'a>(
        &'a self,
        subscription: &'a Subscription,
    ) -> impl Iterator<Item = (&'a Name, VisibleState<'a>)> {
        let named = subscription.names().iter().map(|name| (name, self.by_name(name.as_str())));
        let walks = subscription.wildcard || subscription.has_collections();
        let entries = walks.then(|| self.table.iter()).into_iter().flatten();
        let others = entries.filter(|entry| !subscription.contains(entry.name().as_str()));
        let others = others.filter_map(|entry| Some((entry.name(), subscription.visible_state(entry)?)));
        named.chain(others.filter(|(_, seen)| seen.existing().is_some()))
    }

    /// Version of the control plane; empty for none.
    pub const fn system_version(&self) -> &Arc<str> {
        &self.system_version
    }

    /// Resource that clients of this subscription see by this name.
    pub fn seen_by(&self, subscription: &Subscription, name: &str) -> Option<&Resource> {
        subscription.visible_entry(self.get(name)?, false)?.state.present().map(|resource| &**resource)
    }

    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// Requested aliases of this resource.
    pub fn aliases_of<'s>(&'s self, own: &'s str) -> impl Iterator<Item = &'s Name> {
        let from = self.has_aliases().then(|| (Name::from(own), Name::from("")));
        let listed = from.into_iter().flat_map(|from| self.aliases.range(from..));
        listed.take_while(move |(name, _)| name.as_str() == own).map(|(_, alias)| alias)
    }

    /// Whether the subscription sees this resource through an alias.
    pub fn is_seen_by_alias(&self, subscription: &Subscription, own: &str) -> bool {
        if !self.has_aliases() {
            return false;
        }
        let stands_for = |name: &Name| {
            let entry = self.get(name.as_str());
            entry.and_then(Entry::stands_for).is_some_and(|resource| resource.name().as_str() == own)
        };
        let (mut aliases, mut names) = (self.aliases_of(own), subscription.names().iter());
        // Either list can decide, so the shorter one ends the search.
        while let (Some(alias), Some(name)) = (aliases.next(), names.next()) {
            if stands_for(name) || (subscription.contains(alias.as_str()) && stands_for(alias)) {
                return true;
            }
        }
        false
    }

    /// Whether the subscription sees this resource by its own name or as a member.
    pub(super) fn is_seen_by_itself(&self, subscription: &Subscription, own: &str) -> bool {
        let visible =
            self.get(own).and_then(|entry| Some(subscription.visible_state(entry)?.existing()?.name()));
        visible.is_some_and(|name| name.as_str() == own)
    }

    /// Names to report to a subscriber of this collection: members, and names with an error.
    pub fn answers_of<'s>(&'s self, name: &'s Name) -> impl Iterator<Item = &'s Name> {
        let collection = Collection::named(name.as_str());
        let entries = collection.into_iter().flat_map(|collection| self.table.covered(collection));
        let is_reported = |entry: &&Arc<Entry>| {
            let seen = entry.as_listed();
            seen.present().is_some() || matches!(seen, VisibleState::Failed)
        };
        entries.filter(is_reported).map(|entry| entry.name())
    }

    /// Since when newcomers are denied the body of this name.
    pub fn denied(&self, name: &str) -> Option<Generation> {
        let entry = self.get(name)?;
        entry.failed()?.denied.filter(|_| matches!(entry.by_name(), VisibleState::Denied(_)))
    }

    /// Names of a subscription whose body newcomers are denied, and since when.
    pub fn denied_of<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = (&'s Name, Generation)> {
        let listed = self.listed(subscription).map(|entry| entry.name());
        subscription.names().iter().chain(listed).filter_map(|name| Some((name, self.denied(name.as_str())?)))
    }
}

/// Number and size of held resources, and a digest of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTotals {
    pub resources: usize,
    pub bytes: usize,
    /// Sum of their [digests](crate::resource::Resource::digest), in any order. For Secrets [without versions
    /// and bodies](crate::resource::Resource::identity_digest), because operators see it.
    pub digest: u128,
}

impl HeldTotals {
    /// Resource of one entry; one held in both views counts once.
    fn of(entry: &Entry, type_url: &TypeUrl) -> Self {
        entry.held().map_or_else(Self::default, |resource| Self {
            resources: 1,
            bytes: resource.delta_entry().len(),
            digest: if type_url.is_secret() { resource.identity_digest() } else { resource.digest() },
        })
    }

    fn subtract(&mut self, entry: &Entry, type_url: &TypeUrl) {
        let Self { resources, bytes, digest } = Self::of(entry, type_url);
        self.resources -= resources;
        self.bytes -= bytes;
        self.digest = self.digest.wrapping_sub(digest);
    }

    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            resources: self.resources + more.resources,
            bytes: self.bytes + more.bytes,
            digest: self.digest.wrapping_add(more.digest),
        }
    }
}

/// A changed name, and the clients that it concerns.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) name: Name,
    pub(super) members: bool,
    pub(super) named: bool,
    /// Audiences among clients that receive TTLs.
    pub(super) renewed: LeaseRenewal,
    /// Its entry before and after, if any.
    pub(super) was: Option<Arc<Entry>>,
    pub(super) is: Option<Arc<Entry>>,
}

impl Snapshot {
    pub(crate) fn op_for(&self, view: View, resource: &Arc<Resource>) -> Op {
        Op::held(view, Arc::clone(resource), self.lease(view, resource.name().as_str()))
    }

    pub(crate) fn lease(&self, view: View, name: &str) -> Option<Lease> {
        if self.leased == 0 { None } else { self.get(name)?.lease(view) }
    }

    /// Copies a name, member or not, for clients that newly asked for it.
    pub(super) fn ops_by_name(&self, name: &Name) -> Vec<Op> {
        match self.member(name) {
            Some(member) => vec![self.op_as_named(member)],
            None => self.ops_of(name),
        }
    }

    /// Translates an operation, already applied here, for clients that asked for its name.
    pub(super) fn op_by_name(&self, op: &Op) -> Vec<Op> {
        let member = self.member(op.name());
        match (op, member) {
            (Op::Set { resource, resend, lease, .. }, _)
                if member.is_none_or(|held| held.same_content(resource)) =>
            {
                let (resource, resend, lease) = (Arc::clone(resource), *resend, *lease);
                vec![Op::Set { view: View::Named, resource, resend, lease }]
            }
            // Whatever it says of the name or a former member, clients see the member.
            (Op::Set { .. } | Op::Remove { .. } | Op::Forget { .. } | Op::Alias { .. }, Some(member)) => {
                vec![self.op_as_named(member)]
            }
            (Op::Fail { .. } | Op::LeaveCollection { .. }, Some(member)) => {
                vec![op.clone(), self.op_as_named(member)]
            }
            (Op::Renew { name, lease, .. }, _) => {
                vec![Op::Renew { view: View::Named, name: name.clone(), lease: *lease }]
            }
            (Op::Remove { view: View::Wildcard, name } | Op::Forget { view: View::Wildcard, name }, None) => {
                let ops = self.ops_of(name);
                // Only the wildcard's answer is known now.
                let forget = || vec![Op::Forget { view: View::Named, name: name.clone() }];
                if ops.is_empty() { forget() } else { ops }
            }
            (op, _) => vec![op.clone()],
        }
    }

    fn member(&self, name: &Name) -> Option<&Arc<Resource>> {
        self.get(name.as_str())?.as_member().present()
    }

    /// Copies a member for clients that asked for its name.
    pub(crate) fn op_as_named(&self, member: &Arc<Resource>) -> Op {
        Op::held(View::Named, Arc::clone(member), self.lease(View::Wildcard, member.name().as_str()))
    }

    /// Copies the origin's answer for a name.
    pub(super) fn ops_of(&self, name: &Name) -> Vec<Op> {
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
}

#[cfg(test)]
mod tests {
    use super::super::change::{Change, Op};
    use super::super::fixture::resource;
    use super::super::position::Part;
    use super::super::subscription::{Protocol, TtlSupport};
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
        let sent = apply(Op::held(View::Named, resource(&type_url, "b", "1", b""), None)).generation();
        // A client that asks by name sees what it saw before, but the name stands behind `b` now.
        let snapshot = apply(Op::Forget { view: View::Wildcard, name: "a".into() });
        let subscription = Subscription::new(false, ["a", "b"].map(Name::from));
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: false, ttl: TtlSupport::Unsupported };
        let was_sent = |position: &Position| {
            ["a", "b"].map(|name| snapshot.was_sent(name, &subscription, profile, position))
        };
        let part = Part::Changes { floor: Generation::ZERO };
        assert_eq!(was_sent(&Position { part, ..Position::up_to(sent) }), [false, true]);
        assert_eq!(was_sent(&Position::up_to(sent)), [true, true]);
        assert_eq!(was_sent(&Position::default()), [false, false]);
    }
}
