//! Changes that a response makes to one type with one set of parameters.
//!
//! Knows nothing of requests. All topics of a type first [match](Topic::match_response) a response, to find which
//! parts are answers. Then each [applies](Topic::apply_response) it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::{HashMap, HashSet};

use super::super::Counters;
use super::super::aliases;
use super::super::answer::Whole;
use super::super::quiet_clock::Moment;
use super::super::response::{DecodedResponse, ErrorReport, ReceivedResource, Removed};
use super::super::variants::{Candidates, Receipt};
use super::match_response::{aliases_of, concerns, is_of_another, is_resource};
use super::{Asking, Topic, gone};
use crate::cache::{Change, Completeness, Lease, Named, Op, Resend, Snapshot, View};
use crate::resource::{Collection, Name, Resource, TypeUrl};

/// Effects of a response so far.
#[derive(Debug, Default)]
struct Effects {
    ops: Vec<Op>,
    /// Names with more than one variant to choose from.
    variants: BTreeMap<(View, Name), Candidates>,
    /// Names that are gone, unless they came in another way.
    removed: Vec<(View, Name)>,
    /// Former aliases.
    lost: aliases::Asked,
    /// Collections without members.
    empty: Vec<Name>,
    failed: Vec<Op>,
    /// A heartbeat came for a member that is not held.
    lacks_member: bool,
}

/// Content of a response beside its errors, indexed, as both may be large.
struct ErrorContext<'a> {
    removed: HashSet<&'a str>,
    came: HashMap<(View, Name), Arc<Resource>>,
    tells_errors: bool,
}

impl<'a> ErrorContext<'a> {
    fn new(reading: &'a DecodedResponse<'_>, ops: &[Op]) -> Self {
        let mut came = HashMap::default();
        for op in ops {
            if let Op::Set { view, resource, .. } = op {
                came.entry((*view, resource.name().clone())).or_insert_with(|| Arc::clone(resource));
            }
        }
        let removed = reading.removed.iter().map(|removed| &*removed.name).collect();
        Self { removed, came, tells_errors: reading.tells_errors }
    }
}

#[derive(Clone, Copy)]
struct ResponseContext<'a> {
    asking: Asking,
    type_url: &'a TypeUrl,
    snapshot: &'a Snapshot,
    counters: &'a Counters,
    moment: Moment,
    /// Whether variants may come that are not held.
    many: bool,
}

impl ResponseContext<'_> {
    /// Whether a name may have more than one variant.
    fn weighs(&self, held: Option<&Arc<Resource>>) -> bool {
        self.many || held.is_some_and(|held| held.constraints().is_some())
    }
}

impl Topic {
    /// Returns the changes of an accepted response that was [received](Self::match_response).
    pub(in crate::upstream) fn apply_response(
        &mut self,
        asking: Asking,
        type_url: &TypeUrl,
        reading: &mut DecodedResponse<'_>,
        snapshot: &Snapshot,
        counters: &Counters,
        moment: Moment,
    ) -> Change {
        let many = reading.has_variants() || !self.rivals.is_empty();
        let context = ResponseContext { asking, type_url, snapshot, counters, moment, many };
        let size = reading.resources.len() + reading.removed.len();
        let mut effects = Effects { ops: Vec::with_capacity(size), ..Effects::default() };
        for received in reading.resources.iter_mut().filter(|received| received.covered) {
            if received.matches(&self.parameters) {
                self.apply_resource(&mut effects, context, received);
            }
        }
        for removed in reading.removed.iter().filter(|removed| removed.covered) {
            self.apply_removal(&mut effects, context, removed);
        }
        self.weigh_variants(&mut effects, context);
        if !reading.reports.is_empty() {
            let beside = ErrorContext::new(reading, &effects.ops);
            for report in reading.reports.iter().filter(|report| report.covered) {
                self.apply_error(&mut effects, context, report, &beside);
            }
        }
        let lacks_member = effects.lacks_member;
        let mut ops = self.conclude(effects, context);
        let wildcard_known = if lacks_member {
            self.lapse(snapshot.member_count(), snapshot)
        } else {
            self.apply_end(&mut ops, context)
        };
        counters.operations.add(ops.len() as u64);
        let version = reading.system_version;
        let system_version = (!version.is_empty()).then(|| version.into());
        Change { ops, wildcard_known, system_version, control_plane: None }
    }

    /// Applies the conclusions from a response that ends the first answer.
    fn apply_end(&mut self, ops: &mut Vec<Op>, context: ResponseContext<'_>) -> Option<Completeness> {
        let ResponseContext { asking, snapshot, .. } = context;
        let whole = match asking.view {
            View::Wildcard => self.members.take_whole(),
            View::Named => self.names.take_whole(),
        };
        let Whole { absent, collections } = whole?;
        let view = asking.view;
        let is_concerned = |name: &Name| view == View::Named || snapshot.held(view, name.as_str()).is_some();
        let absent = absent.into_iter().filter(is_concerned);
        let mut gone: Vec<Op> = absent.map(|name| gone(&self.names, view, name)).collect();
        self.answer_by_name(&mut gone, snapshot);
        self.note(&gone);
        ops.append(&mut gone);
        ops.extend(collections.into_iter().map(|name| Op::Complete { name }));
        (view == View::Wildcard && snapshot.completeness() < Completeness::Complete)
            .then_some(Completeness::Complete)
    }

    fn apply_resource(
        &mut self,
        effects: &mut Effects,
        context: ResponseContext<'_>,
        received: &mut ReceivedResource<'_>,
    ) {
        let ResponseContext { asking, type_url, snapshot, counters, moment: Moment { now, .. }, .. } =
            context;
        let view = asking.view;
        let own = self.covering(view, snapshot, &received.name);
        let own = own.filter(|name| is_resource(view, name.as_str()));
        let others = aliases_of(&self.names, asking, snapshot, received);
        let is_named = view == View::Named;
        let Some(first) = own.as_ref().or_else(|| others.first()) else { return };
        let held = snapshot.held(view, first.as_str()).filter(|held| *held.name().as_str() == *received.name);
        let name = own.as_ref().or_else(|| held.map(|held| held.name()));
        let name = name.cloned().unwrap_or_else(|| Name::from(&*received.name));
        // Versions of another server do not count.
        let own_held = held.filter(|held| !self.is_foreign(view, held.name()));
        let same = own_held.is_some_and(|held| {
            held.origin_version() == Some(received.envelope.version) && received.is_variant_of(held)
        });
        let ttl = received.envelope.ttl;
        // Resources without a version have heartbeats without one. Absent resources have no TTL
        // (R-TTL-08).
        let unversioned = || own_held.is_some_and(|held| held.origin_version().is_none());
        // A member has its content from the wildcard stream; by name only its existence is known.
        let is_member = || {
            let entry = snapshot.get(&received.name).filter(|_| is_named && ttl.is_some());
            entry.is_some_and(|entry| matches!(entry.named(), Named::Superseded(_)))
        };
        let renews =
            same || (received.envelope.version.is_empty() && ttl.is_some() && unversioned()) || is_member();
        let lease = ttl.and_then(|ttl| Lease::new(ttl, now));
        let resend = received.resend();
        let asked = || own.iter().chain(&others);
        if let Some(resource) = received.encode(type_url, &name) {
            if same && resend == Resend::Unsolicited && asking.traits.speaks_sotw {
                // SotW repeats everything: only a TTL is renewed or ended.
                asked().for_each(|name| self.expiry.set(view, name, lease.map(|lease| lease.until())));
                if let Some(name) = own.filter(|_| lease.is_some() || snapshot.is_leased(&received.name)) {
                    effects.ops.push(Op::Renew { view, name, lease });
                }
                return;
            }
            counters.unsolicited.add(u64::from(same && resend == Resend::Unsolicited));
            if is_named {
                effects.lost.extend(aliases::lost_by(
                    &self.names,
                    snapshot,
                    &received.envelope,
                    &received.name,
                ));
            }
            // Full-state types are kept, as a full state has everything that its client requested.
            let drops = received.envelope.do_not_cache && is_named && !type_url.kind().full_state();
            for name in &others {
                self.set_lifetime(view, name, lease, drops.then_some(now));
            }
            let alias = |name| Op::Alias { name, resource: Arc::clone(&resource), resend };
            effects.ops.extend(others.into_iter().map(alias));
            let Some(own) = own else { return };
            let doubted = self.doubted(view, &own);
            let held = held.filter(|_| !doubted);
            if context.weighs(held) {
                let news = Receipt { resend, lease, drop_from: drops.then_some(now) };
                self.candidates(effects, (view, own), held).set(resource, news);
            } else {
                self.set_lifetime(view, &own, lease, drops.then_some(now));
                effects.ops.push(Op::Set { view, resource, resend, lease });
            }
        } else if renews && !received.envelope.has_aliases {
            asked().for_each(|name| self.expiry.set(view, name, lease.map(|lease| lease.until())));
            let is_told = held.is_some() && (lease.is_some() || snapshot.is_leased(&received.name));
            if let Some(name) = own.filter(|_| is_told) {
                effects.ops.push(Op::Renew { view, name, lease });
            }
        } else {
            self.apply_bodiless(effects, context, received, (name, own, others, held));
        }
    }

    /// Notes how long a resource may be held, and since when, if it may not be cached (R-XT-09).
    fn set_lifetime(&mut self, view: View, name: &Name, lease: Option<Lease>, drop_from: Option<Instant>) {
        self.expiry.set(view, name, lease.map(|lease| lease.until()));
        self.uncacheable.set(view, name, drop_from);
    }

    /// Applies a resource without a body that renews nothing.
    fn apply_bodiless(
        &mut self,
        effects: &mut Effects,
        context: ResponseContext<'_>,
        received: &ReceivedResource<'_>,
        (name, own, others, held): (Name, Option<Name>, aliases::Asked, Option<&Arc<Resource>>),
    ) {
        let ResponseContext { asking, type_url, .. } = context;
        let (view, envelope) = (asking.view, &received.envelope);
        let is_named = view == View::Named;
        if envelope.has_aliases {
            if !is_named {
                return;
            }
            let own = own.filter(|_| aliases::is_unresolved(envelope, &received.name));
            let resource = Arc::new(envelope.encode_unresolved(type_url, name));
            let resend = received.resend();
            for name in own.into_iter().chain(others) {
                self.set_lifetime(view, &name, None, None);
                effects.ops.push(Op::Alias { name, resource: Arc::clone(&resource), resend });
            }
        } else if envelope.ttl.is_some() {
            // Heartbeat for a version that is not held, for example after its TTL ended. The
            // control plane believes it delivered, so a new stream is needed, unless a later
            // request by name is still open.
            if !own.is_some_and(|name| is_named && self.names.awaits_since(name.as_str()).is_some()) {
                self.renews[view as usize] = true;
            }
            effects.lacks_member |= !is_named && held.is_none();
        } else {
            // Old form of "does not exist" (R-Up-16).
            effects.lost.extend(others);
            let Some(own) = own else { return };
            let doubted = self.doubted(view, &own);
            let held = held.filter(|_| !doubted);
            if context.weighs(held) {
                self.candidates(effects, (view, own), held).remove(received.constraints());
            } else {
                effects.removed.push((view, own));
            }
        }
    }

    fn apply_removal(&mut self, effects: &mut Effects, context: ResponseContext<'_>, removed: &Removed<'_>) {
        let ResponseContext { asking, snapshot, .. } = context;
        if asking.view == View::Named && is_of_another(&self.names, removed) {
            return;
        }
        if asking.view == View::Named {
            let is_gone = |alias: &Name| {
                let held = snapshot.held(View::Named, alias.as_str());
                held.is_none_or(|held| held.constraints() == removed.constraints.as_ref())
            };
            let aliases = aliases::held_by(&self.names, snapshot, &removed.name);
            effects.lost.extend(aliases.into_iter().filter(is_gone));
        }
        let own = self.covering(asking.view, snapshot, &removed.name);
        let (view, Some(name)) = (asking.view, own) else { return };
        if !concerns(removed, view, snapshot, &self.parameters) {
            return;
        }
        if view == View::Named && Collection::named(&removed.name).is_some() {
            effects.empty.push(name);
            return;
        }
        let held = snapshot.held(view, &removed.name);
        let key = (view, name);
        let answers = removed.asked.is_none_or(|asked| self.names.asked_at(&key.1) == Some(asked));
        if (removed.constraints.is_some() || !answers) && self.is_unconfirmed(view, &key.1) {
            // It is kept until its own question is answered, which this does not.
            return;
        }
        let doubted = self.doubted(view, &key.1);
        let held = held.filter(|_| !doubted);
        if effects.variants.contains_key(&key) || self.rivals.contains_key(&key) {
            self.candidates(effects, key, held).remove(removed.constraints.as_ref());
        } else if held.is_none_or(|held| held.constraints() == removed.constraints.as_ref()) {
            effects.removed.push(key);
        }
    }

    /// Whether the held resource was kept until this answer, whatever its constraints.
    fn doubted(&mut self, view: View, name: &Name) -> bool {
        let doubted = match view {
            View::Wildcard => self.unconfirmed.remove(name),
            View::Named => self.names.take_unconfirmed(name),
        };
        if doubted {
            self.rivals.remove(&(view, name.clone()));
        }
        doubted
    }

    fn candidates<'l>(
        &self,
        effects: &'l mut Effects,
        key: (View, Name),
        held: Option<&Arc<Resource>>,
    ) -> &'l mut Candidates {
        let rivals = self.rivals.get(&key);
        effects.variants.entry(key).or_insert_with(|| Candidates::new(held, rivals))
    }

    /// Chooses the variant to show, for each name with more than one (R-DP-04).
    fn weigh_variants(&mut self, effects: &mut Effects, context: ResponseContext<'_>) {
        for ((view, name), candidates) in std::mem::take(&mut effects.variants) {
            match candidates.choose() {
                Some(chosen) => {
                    let Receipt { resend, lease, drop_from } = chosen.news;
                    if chosen.is_new || !candidates.is_held(chosen.resource) {
                        self.set_lifetime(view, &name, lease, drop_from);
                        let resource = Arc::clone(chosen.resource);
                        let resend = if chosen.is_new { resend } else { Resend::Answer };
                        effects.ops.push(Op::Set { view, resource, resend, lease });
                    }
                }
                None => effects.removed.push((view, name.clone())),
            }
            if candidates.are_ambiguous() {
                context.counters.ambiguous.add(1);
                self.ambiguous = Some(name.clone());
                self.rivals.insert((view, name), candidates.settled());
            } else {
                self.rivals.remove(&(view, name));
            }
        }
    }

    fn apply_error(
        &mut self,
        effects: &mut Effects,
        context: ResponseContext<'_>,
        report: &ErrorReport<'_>,
        beside: &ErrorContext<'_>,
    ) {
        let ResponseContext { asking, snapshot, .. } = context;
        let view = asking.view;
        let own = self.covering(view, snapshot, &report.name);
        let Some(name) = own.filter(|_| report.matches(&self.parameters)) else { return };
        let is_gone = report.failure.is_not_found();
        let is_told = beside.tells_errors;
        let came = beside.came.get(&(view, name.clone()));
        let doubted = is_gone && came.is_none() && report.constraints.is_none() && self.doubted(view, &name);
        let held = came.or_else(|| snapshot.held(view, &report.name).filter(|_| !doubted));
        let is_of_another = held.is_some_and(|held| held.constraints() != report.constraints.as_ref());
        if is_of_another && (is_gone || report.constraints.is_some()) {
            // It is about another identity or other clients.
            return;
        }
        if view == View::Named && is_told {
            let listed = !self.names.is_wanted(name.as_str());
            let failure = Arc::clone(&report.failure);
            effects.failed.push(Op::Fail { name: name.clone(), failure, listed });
        }
        if is_gone && !beside.removed.contains(&*report.name) {
            match Collection::named(&report.name) {
                Some(_) if view == View::Named => effects.empty.push(name),
                _ if view == View::Named && is_told => {}
                _ => effects.removed.push((view, name)),
            }
        }
    }

    /// Combines everything, in the order in which it takes effect.
    fn conclude(&mut self, effects: Effects, context: ResponseContext<'_>) -> Vec<Op> {
        let Effects { mut ops, removed, lost, empty, mut failed, .. } = effects;
        let snapshot = context.snapshot;
        let is_alias = |op: &Op| matches!(op, Op::Alias { .. });
        let came: HashSet<Name> = if empty.is_empty() && lost.is_empty() && !ops.iter().any(is_alias) {
            HashSet::default()
        } else {
            ops.iter().map(Op::name).cloned().collect()
        };
        // A resource that is gone by its own name may be there as an alias, and the other way
        // round.
        let lost = lost.into_iter().map(|alias| (View::Named, alias));
        let removed = removed.into_iter().chain(lost).filter(|(_, name)| !came.contains(name));
        ops.extend(removed.map(|(view, name)| gone(&self.names, view, name)));
        // An empty collection (R-XT-04) removes its members, except those in this response.
        for collection in empty {
            let members = snapshot.members_of(&collection).map(|member| member.name().clone());
            ops.extend(
                members.filter(|name| !came.contains(name)).map(|name| gone(&self.names, View::Named, name)),
            );
            self.names.receive_empty(&collection);
            ops.push(Op::Complete { name: collection });
        }
        ops.append(&mut failed);
        // Only members can be removed. A list of other names is not worth a change.
        ops.retain(|op| match op {
            Op::Remove { view: View::Wildcard, name } => {
                snapshot.held(View::Wildcard, name.as_str()).is_some()
            }
            _ => true,
        });
        for op in &ops {
            if let Op::Remove { view: View::Named, name } = op
                && snapshot.held(View::Named, name.as_str()).is_some_and(|held| held.name() == name)
            {
                self.names.repeat(name);
            }
        }
        self.answer_by_name(&mut ops, snapshot);
        self.note(&ops);
        ops
    }

    /// Answers open requests by name for members that ended: many control planes send no other
    /// answer (O2), and clients were shown the member. If other content came by name, it is
    /// requested anew.
    pub(super) fn answer_by_name(&mut self, ops: &mut Vec<Op>, snapshot: &Snapshot) {
        if self.names.is_empty() {
            return;
        }
        let mut answered = Vec::new();
        for op in &*ops {
            let Op::Remove { view: View::Wildcard, name } = op else { continue };
            match snapshot
                .get(name.as_str())
                .map(|entry| entry.named())
                .filter(|_| self.names.is_wanted(name.as_str()))
            {
                Some(Named::Unknown) => answered.push(Op::Remove { view: View::Named, name: name.clone() }),
                Some(Named::Superseded(_)) => self.names.ask_again(name),
                _ => {}
            }
        }
        ops.append(&mut answered);
    }
}
