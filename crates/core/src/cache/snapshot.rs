//! One immutable state of one type, and how the next one is made from it.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashSet;
use imbl::{OrdMap, OrdSet};

use super::cohort::{Dialect, Ttl};
use super::entry::{Entry, Named, Seen};
use super::failure::Failure;
use super::lease::Renewed;
use super::registry::Subscription;
use super::segments::Segments;
use super::span::Span;
use super::{Change, Generation, Lease, Op, Resend, View};
use crate::resource::{Collection, Constraints, Form, Name, Resource, TypeUrl};

/// How much of the origin's wildcard set is known to have come (R-Relay-05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Completeness {
    /// It may lack anything.
    #[default]
    Unknown,
    /// The origin paused after its first parts. An incremental client that holds nothing needs no more: the rest follows.
    Settled,
    /// Nothing can be proven, nothing was in time, or the origin was silent for long while nobody waited for proof. A
    /// state-of-the-world client that holds nothing is shown the set: it cannot lose what has not come yet.
    Presumed,
    /// There is evidence that nothing more comes. A client that may hold a member is told a full state, and of removals,
    /// from here on only.
    Complete,
}

/// Everything that the cache knows of one type at one moment. Readers hold one for as long as they like; the
/// writer publishes a new one with a pointer swap.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) generation: Generation,
    /// When that generation was made; the clock is the caller's.
    pub(super) at: Option<Instant>,
    pub(super) table: Segments,
    /// Every entry once, at the place where it last changed for anybody. "What has changed since" is a range.
    pub(super) log: OrdMap<Generation, Arc<Entry>>,
    /// Entries of which the latest to be told is that their time was renewed, at the place of that.
    pub(super) renewals: OrdMap<Generation, Arc<Entry>>,
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
    /// Names whose bodies are kept from newcomers.
    pub(super) denials: usize,
    pub(super) system_version: Arc<str>,
    tombstones: usize,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            generation: Generation::ZERO,
            at: None,
            table: Segments::default(),
            log: OrdMap::new(),
            renewals: OrdMap::new(),
            leased: 0,
            horizon: Generation::ZERO,
            aliases: OrdSet::new(),
            aliases_buried: Generation::ZERO,
            completeness: Completeness::Unknown,
            wildcard_digest: 0,
            members: 0,
            denials: 0,
            system_version: Arc::from(""),
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

    /// What is known of a name; `None` is the same as unknown and not a member.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.table.get(name).map(|entry| &**entry)
    }

    /// What a client that asks by this name sees.
    pub fn by_name(&self, name: &str) -> Seen<'_> {
        self.get(name).map_or(Seen::Unknown, Entry::by_name)
    }

    /// Whether a client that stands here has been told of the resource that it sees by this name.
    pub fn has_told(&self, name: &str, subscription: &Subscription, dialect: Dialect, span: &Span) -> bool {
        let look = |entry| Some((entry, subscription.look(entry, dialect.aggregated)?));
        let Some((entry, look)) = self.get(name).and_then(look) else { return false };
        let is_timed = dialect.ttl != Ttl::Untold && self.leased > 0;
        let place = if is_timed { entry.place() } else { entry.position() };
        look.seen.present().is_some()
            && (look.changed <= span.floor() || span.has_told(name, look.changed, place))
    }

    /// Names that aggregated clients are to be sent again since then (R-ADS-05).
    pub fn repushed_after(&self, since: Generation) -> impl Iterator<Item = &Name> {
        let later = self.log.range((Bound::Excluded(since), Bound::Unbounded)).map(|(_, entry)| entry);
        later.filter(move |entry| entry.repushed > since).map(|entry| entry.name())
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

    /// What is seen through the collections of a subscription and was not asked for by name.
    pub(super) fn listed<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = &'s Arc<Entry>> {
        let entries = subscription.collections().flat_map(|(_, collection)| self.table.covered(collection));
        entries.filter(|entry| !subscription.contains(entry.name().as_str()))
    }

    /// What a subscription sees beside the members of the wildcard set, if it subscribes to that: each name that was
    /// asked for, and each member of a collection that was.
    pub(super) fn beside_wildcard<'s>(
        &'s self,
        subscription: &'s Subscription,
    ) -> impl Iterator<Item = Seen<'s>> {
        let through_wildcard = |entry: &Entry| subscription.wildcard && entry.as_member().present().is_some();
        // What has several names is seen once.
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
        self.log.values().rev().take(LOOKED_AT).any(is_resource)
    }

    /// Whether anything is held that somebody asked for, or may be.
    pub(crate) fn holds_anything(&self) -> bool {
        self.tombstones < self.log.len() || self.wildcard_known()
    }

    /// Whether anything of the wildcard set is held.
    pub(super) fn holds_wildcard(&self) -> bool {
        self.members > 0 || self.wildcard_known()
    }

    /// What is held here, for who has not heard of it.
    pub(crate) fn op_for(&self, view: View, resource: &Arc<Resource>) -> Op {
        Op::held(view, Arc::clone(resource), self.lease(view, resource.name().as_str()))
    }

    /// For how long what is held of a name is to be kept.
    pub(crate) fn lease(&self, view: View, name: &str) -> Option<Lease> {
        if self.leased == 0 { None } else { self.get(name)?.lease(view) }
    }

    /// What those see who asked for this name, be it that it is a member of the wildcard set, for a store of theirs that has
    /// heard nothing of it.
    pub(super) fn told_by_name(&self, name: &Name) -> Vec<Op> {
        match self.member(name) {
            Some(member) => vec![self.op_as_named(member)],
            None => self.said_of(name),
        }
    }

    /// What an operation that has led to this means for those who asked for its name.
    pub(super) fn said_by_name(&self, op: &Op) -> Vec<Op> {
        let member = self.member(op.name());
        match (op, member) {
            (Op::Set { resource, resend, lease, .. }, _)
                if member.is_none_or(|held| held.version() == resource.version()) =>
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

    /// A member, for those who asked for its name.
    pub(crate) fn op_as_named(&self, member: &Arc<Resource>) -> Op {
        Op::held(View::Named, Arc::clone(member), self.lease(View::Wildcard, member.name().as_str()))
    }

    /// What was said of a name that was asked for by name, for a store that has not heard it.
    fn said_of(&self, name: &Name) -> Vec<Op> {
        let Some(entry) = self.get(name.as_str()) else { return Vec::new() };
        let mut ops = match entry.named() {
            Named::Unknown | Named::Gone => Vec::new(),
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
        ops.extend(entry.failed.as_ref().map(|failed| Op::Fail {
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
}

/// Who has something to learn of a changed name.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) name: Name,
    pub(super) members: bool,
    pub(super) named: bool,
    /// The same of those who are told TTLs.
    pub(super) renewed: Renewed,
    /// Its entry before and after, as far as there is one.
    pub(super) was: Option<Arc<Entry>>,
    pub(super) is: Option<Arc<Entry>>,
}

/// The next snapshot in the making. Nobody sees it before it is published.
pub(super) struct Draft<'a> {
    snapshot: Snapshot,
    from: Generation,
    type_url: &'a TypeUrl,
    clock: &'a mut Generation,
    pub(super) touched: Vec<Touch>,
    /// Whether more of the wildcard set is known to have come, or less again.
    pub(super) wildcard_turned: bool,
    /// Endpoints of EDS clusters that changed (R-ADS-05).
    pub(super) endpoints: Vec<Name>,
    /// Whether it is more than a renewal of times.
    has_news: bool,
}

impl<'a> Draft<'a> {
    pub(super) fn new(from: &Snapshot, type_url: &'a TypeUrl, clock: &'a mut Generation) -> Self {
        Self {
            snapshot: from.clone(),
            from: from.generation,
            type_url,
            clock,
            touched: Vec::new(),
            wildcard_turned: false,
            endpoints: Vec::new(),
            has_news: false,
        }
    }

    pub(super) fn apply(&mut self, change: Change) {
        for op in change.ops {
            self.step(op);
        }
        if let Some(version) = change.system_version {
            self.snapshot.system_version = version;
        }
        if let Some(known) = change.wildcard_known {
            self.wildcard_turned = known != self.snapshot.completeness;
            self.snapshot.completeness = known;
            if self.wildcard_turned {
                self.has_news = true;
                self.tick();
            }
        }
    }

    /// The finished snapshot.
    pub(super) fn finish(mut self, tombstones: usize, at: Instant) -> Snapshot {
        if self.snapshot.tombstones > tombstones {
            self.bury(tombstones / 4 * 3);
        }
        if self.has_news {
            self.snapshot.at = Some(at);
        }
        self.snapshot
    }

    fn tick(&mut self) -> Generation {
        *self.clock = self.clock.next();
        self.snapshot.generation = *self.clock;
        self.snapshot.generation
    }

    fn step(&mut self, op: Op) {
        let name = op.name().clone();
        let old = self.snapshot.table.get(name.as_str()).cloned();
        let mut new = old.as_deref().cloned().unwrap_or_else(|| Entry::new(name.clone()));
        let mut resent = false;
        let mut repush = false;
        let ended = match &op {
            Op::Remove { view, .. } | Op::Forget { view, .. } => Some(*view),
            Op::Withdraw { .. } => Some(View::Named),
            Op::Fail { failure, .. } if failure.is_not_found() => Some(View::Named),
            // What is held under an alias is told without its time.
            Op::Alias { .. } => Some(View::Named),
            Op::Set { .. }
            | Op::Renew { .. }
            | Op::Drop { .. }
            | Op::Complete { .. }
            | Op::Fail { .. }
            | Op::Repush { .. } => None,
        };
        match op {
            Op::Set { view, resource, resend, lease } => {
                let is_held = held_in(&new, view).is_some_and(|held| held.same_content(&resource));
                let (resource, is_resent) = self.incoming(&new, view, resource, resend);
                resent = is_resent;
                new.failed = None;
                match view {
                    View::Wildcard => new.wild = Some(resource),
                    View::Named => new.set_named(Some(resource)),
                }
                new.lend(view, lease, !is_held, resent);
            }
            Op::Alias { resource, resend, .. } => {
                let (resource, is_resent) = self.incoming(&new, View::Named, resource, resend);
                resent = is_resent;
                new.failed = None;
                new.set_named(Some(resource));
            }
            Op::Drop { .. } => {
                let held = new.named_resource().filter(|held| held.form() == Form::Whole);
                if let Some(dropped) = held.map(|held| Arc::new(held.dropped())) {
                    new.set_named(Some(dropped));
                }
            }
            Op::Renew { view, lease, .. } => {
                if self.snapshot.held(view, name.as_str()).is_some() {
                    new.lend(view, lease, false, false);
                }
            }
            Op::Remove { view: View::Named, .. } => {
                new.recover();
                new.set_named(None);
            }
            Op::Forget { view: View::Named, .. } => {
                new.failed = None;
                new.named = Named::Unknown;
            }
            Op::Remove { view: View::Wildcard, .. } | Op::Forget { view: View::Wildcard, .. } => {
                new.wild = None
            }
            Op::Withdraw { .. } => {
                new.recover();
                if matches!(new.named, Named::Present(_)) {
                    new.named = Named::Gone;
                }
            }
            Op::Complete { .. } if matches!(new.named, Named::Collection { .. }) => {}
            Op::Complete { .. } => {
                let members = self.snapshot.members_of(&name).count();
                let members = u32::try_from(members).unwrap_or(u32::MAX);
                new.failed = None;
                new.named = Named::Collection { members, buried: Generation::ZERO };
            }
            Op::Fail { failure, listed, .. } => new.fail(failure, listed),
            Op::Repush { .. } => repush = new.by_name().present().is_some(),
        }
        if let Some(view) = ended {
            new.end_lease(view);
        }
        let is_listed = |entry: &Entry| entry.as_listed().existing().is_some();
        let (was_listed, is_listed) = (old.as_deref().is_some_and(is_listed), is_listed(&new));
        self.replace(old, new, resent, repush);
        if was_listed != is_listed {
            self.recount(&name, is_listed);
        }
    }

    /// What is to be kept of a resource that came, and whether the clients are to be sent it again.
    fn incoming(
        &self,
        entry: &Entry,
        view: View,
        resource: Arc<Resource>,
        resend: Resend,
    ) -> (Arc<Resource>, bool) {
        match held_in(entry, view) {
            Some(held) if held.same_content(&resource) => {
                // A resend that answers no question of ours is meant for the clients (R-Relay-21). What a member's own
                // name brings is the second copy and no resend.
                let resent =
                    resend == Resend::Unsolicited && (view == View::Wildcard || entry.wild.is_none());
                (if held.form() == Form::Dropped { resource } else { Arc::clone(held) }, resent)
            }
            _ => (self.other_copy(entry, view, resource), false),
        }
    }

    /// A name came into the collection that covers it, or left it.
    fn recount(&mut self, name: &Name, came: bool) {
        let covering = Collection::covering(name.as_str());
        let Some(old) = covering.and_then(|covering| self.snapshot.table.get(&covering)).cloned() else {
            return;
        };
        let mut new = Entry::clone(&old);
        if let Named::Collection { members, .. } = &mut new.named {
            *members = if came { members.saturating_add(1) } else { members.saturating_sub(1) };
            if came {
                new.failed = None;
            }
            self.replace(Some(old), new, false, false);
        }
    }

    /// The same version seen through the other view keeps the same allocation.
    fn other_copy(&self, entry: &Entry, view: View, resource: Arc<Resource>) -> Arc<Resource> {
        let other = match (view, &entry.named) {
            (View::Wildcard, Named::Present(other)) => Some(other),
            (View::Wildcard, _) => None,
            (View::Named, _) => entry.wild.as_ref(),
        };
        match other {
            Some(other) if other.same_content(&resource) => Arc::clone(other),
            _ => resource,
        }
    }

    fn replace(&mut self, old: Option<Arc<Entry>>, mut new: Entry, resent: bool, repush: bool) {
        let mut failed = new.failed.as_ref().is_some_and(|failed| failed.at == Generation::ZERO);
        let (members, named, body, quiet, renewed) = {
            let blank = Entry::new(new.name().clone());
            let old = old.as_deref().unwrap_or(&blank);
            let members = resent && new.wild.is_some() || differ(old.as_member(), new.as_member());
            // Behind a member of the wildcard set a collection may have its own.
            let listed = || new.name().is_xdstp() && differ(old.as_listed(), new.as_listed());
            // The resource ends an error, be it unchanged (R-Err-01). That it does not exist is said as a removal too.
            let recovered = old.failed.is_some() && new.failed.is_none();
            let body = differ(old.by_name(), new.by_name());
            let is_missing =
                matches!(new.by_name(), Seen::Absent) && new.failure().is_some_and(Failure::is_not_found);
            // A member of the wildcard set may have stood before it.
            failed |= body && is_missing;
            let named = resent || recovered || body || (failed && is_missing) || listed();
            new.turn_from(old);
            // Its body went, or came back for those who asked for it meanwhile: no news to the others (R-XT-09).
            let is_dropped = |entry: &Entry| matches!(entry.by_name(), Seen::Dropped(_));
            let quiet = !named && is_dropped(old) != is_dropped(&new);
            if !self.type_url.kind().full_state() || new.wild.is_some() {
                new.ghost = None;
            } else if let Some(gone) = &old.wild {
                new.ghost = Some(Arc::clone(gone));
            } else if let (Seen::Present(gone), Seen::Absent) = (old.by_name(), new.by_name()) {
                new.ghost = Some(Arc::clone(gone));
            } else if let (Seen::Present(gone), Named::Gone) = (old.by_name(), &new.named) {
                new.ghost = Some(Arc::clone(gone));
            }
            if let Some(resource) = &old.wild {
                self.snapshot.members -= 1;
                self.snapshot.wildcard_digest = self.snapshot.wildcard_digest.wrapping_sub(resource.digest());
            }
            self.snapshot.denials -= usize::from(matches!(old.by_name(), Seen::Denied(_)));
            (members, named, body, quiet, new.renewed_since(old))
        };
        self.snapshot.denials += usize::from(matches!(new.by_name(), Seen::Denied(_)));
        if quiet {
            self.tick();
        }
        if let Some(resource) = &new.wild {
            self.snapshot.members += 1;
            self.snapshot.wildcard_digest = self.snapshot.wildcard_digest.wrapping_add(resource.digest());
        }
        let is_told = members || named || repush || failed || renewed.any;
        if is_told {
            let stamp = self.tick();
            self.has_news |= members || named || repush || failed;
            new.stamp_leases(stamp);
            if members {
                new.wild_changed = stamp;
                if new.wild_since == Generation::ZERO {
                    new.wild_since = stamp;
                }
            }
            if named {
                new.named_changed = stamp;
                let buried = new.remember(old.as_deref(), stamp);
                self.snapshot.aliases_buried = self.snapshot.aliases_buried.max(buried);
            }
            if repush {
                new.repushed = stamp;
            }
            if failed && let Some(failed) = &mut new.failed {
                failed.stamp(stamp);
            }
            // Of a cluster that is no member each session knows whether its client was sent it.
            if body && members {
                let member = new.as_member().present();
                self.endpoints.extend(member.and_then(|resource| resource.eds_service()).cloned());
            }
        }
        let (name, is_member) = (new.name().clone(), new.wild.is_some());
        let is = self.store(old.clone(), new);
        if is_told || quiet {
            let (members, named) = (members || (repush && is_member), named || repush || failed || quiet);
            self.touched.push(Touch { name, members, named, renewed, was: old, is });
        }
    }

    /// Puts an entry in the place of another. Returns it, if there is anything to keep of it.
    fn store(&mut self, old: Option<Arc<Entry>>, new: Entry) -> Option<Arc<Entry>> {
        let (was, is) = (old.as_deref().and_then(Entry::listing), new.listing());
        if was != is {
            was.into_iter().for_each(|was| drop(self.snapshot.aliases.remove(&was)));
            self.snapshot.aliases.extend(is);
        }
        if let Some(old) = old {
            self.snapshot.log.remove(&old.position());
            self.snapshot.tombstones -= usize::from(old.is_tombstone());
            self.snapshot.leased -= usize::from(old.is_leased());
            old.renewal().inspect(|place| _ = self.snapshot.renewals.remove(place));
        }
        // A store that is filled from others forgets what its clients still ask for and may hold (R-DP-13).
        let untold =
            matches!(new.named, Named::Unknown) && new.wild_changed == Generation::ZERO && new.past.is_none();
        if new.position() == Generation::ZERO || (new.is_tombstone() && untold) {
            // Nobody was ever told of it, or nobody who could still ask about it was.
            self.snapshot.table.remove(new.name().as_str());
            return None;
        }
        self.snapshot.tombstones += usize::from(new.is_tombstone());
        let new = Arc::new(new);
        self.snapshot.log.insert(new.position(), Arc::clone(&new));
        self.snapshot.leased += usize::from(new.is_leased());
        if let Some(place) = new.renewal() {
            self.snapshot.renewals.insert(place, Arc::clone(&new));
        }
        self.snapshot.table.insert(Arc::clone(&new));
        Some(new)
    }

    /// Drops the oldest tombstones until `keep` are left, but none that this change made: who was told all before it can
    /// be told of it, however large it is.
    fn bury(&mut self, keep: usize) {
        let surplus = self.snapshot.tombstones - keep;
        let before = self.snapshot.log.range(..=self.from).map(|(_, entry)| entry);
        let oldest: Vec<_> = before.filter(|entry| entry.is_tombstone()).take(surplus).cloned().collect();
        for entry in oldest {
            // Forgetting a name moves its place, but is nothing that the wildcard's clients had to be told.
            self.snapshot.horizon = self.snapshot.horizon.max(entry.wild_changed);
            if matches!(entry.named, Named::Gone) {
                self.bury_member(&entry);
            }
            self.snapshot.log.remove(&entry.position());
            self.snapshot.table.remove(entry.name().as_str());
            self.snapshot.tombstones -= 1;
        }
    }

    /// The collection of a name that is gone no longer remembers it.
    fn bury_member(&mut self, gone: &Entry) {
        let covering = Collection::covering(gone.name().as_str());
        let Some(old) = covering.and_then(|covering| self.snapshot.table.get(&covering)).cloned() else {
            return;
        };
        let mut new = Entry::clone(&old);
        if let Named::Collection { buried, .. } = &mut new.named {
            *buried = gone.named_changed.max(*buried);
            self.store(Some(old), new);
        }
    }
}

fn differ(old: Seen<'_>, new: Seen<'_>) -> bool {
    if let (Seen::Unresolved(old), Seen::Unresolved(new)) = (old, new) {
        return !Arc::ptr_eq(old, new) && !old.same_content(new);
    }
    if let (Some(old), Some(new)) = (old.existing(), new.existing()) {
        return !Arc::ptr_eq(old, new) && !old.same_content(new);
    }
    std::mem::discriminant(&old) != std::mem::discriminant(&new)
}

/// What is held of a name in one view, in whatever form.
const fn held_in(entry: &Entry, view: View) -> Option<&Arc<Resource>> {
    match view {
        View::Wildcard => entry.wild.as_ref(),
        View::Named => entry.named_resource(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::super::cohort::Protocol;
    use super::super::span::Part;
    use super::super::{Cache, Limits};
    use super::*;
    use crate::resource::{Envelope, Kind, wire};

    fn resource(type_url: &TypeUrl, name: &str) -> Arc<Resource> {
        let (mut any, mut sent) = (BytesMut::new(), BytesMut::new());
        wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
        wire::put_field(&mut sent, 1, b"1");
        wire::put_field(&mut sent, 2, &any);
        wire::put_field(&mut sent, 3, name.as_bytes());
        let envelope = Envelope::parse(&sent, type_url).expect("a good envelope");
        Arc::new(envelope.encode(type_url, name.into()).expect("it has a body"))
    }

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
        apply(Op::held(View::Wildcard, resource(&type_url, "a"), None));
        apply(Op::held(View::Named, resource(&type_url, "a"), None));
        let told = apply(Op::held(View::Named, resource(&type_url, "b"), None)).generation();
        // A client that asks by name sees what it saw before, but the name stands behind `b` now.
        let snapshot = apply(Op::Forget { view: View::Wildcard, name: "a".into() });
        let subscription = Subscription::new(false, ["a", "b"].map(Name::from));
        let dialect = Dialect { protocol: Protocol::Delta, aggregated: false, ttl: Ttl::Untold };
        let has_told =
            |span: &Span| ["a", "b"].map(|name| snapshot.has_told(name, &subscription, dialect, span));
        let part = Part::Changes { floor: Generation::ZERO };
        assert_eq!(has_told(&Span { part, ..Span::up_to(told) }), [false, true]);
        assert_eq!(has_told(&Span::up_to(told)), [true, true]);
        assert_eq!(has_told(&Span::default()), [false, false]);
    }
}
