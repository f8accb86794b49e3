//! One type with one set of parameters: what is wanted of it, and what a response changes of it.
//!
//! Knows nothing of other types, nor of who else wants the same type with other parameters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::{HashMap, HashSet};

use super::expiry::Expiry;
use super::response::{Reading, Removed};
use super::sending::{Link, Target};
use super::variants::Candidates;
use super::{Counters, Settings, StreamId};
use crate::cache::{Change, Op, Resend, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Collection, Name, Parameters, Resource, TypeUrl};

const VIEWS: [View; 2] = [View::Wildcard, View::Named];

/// Whether anybody wants something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Want {
    /// Nobody, and it is not subscribed to.
    #[default]
    No,
    /// Somebody does.
    Yes,
    /// Nobody; it is let go at this time.
    Until(Instant),
}

/// What a stream carries of the type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) stream: StreamId,
    pub(super) view: Option<View>,
    /// Whether the other stream carries it too, and stays the authority on what is gone.
    pub(super) copy: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Topic {
    parameters: Parameters,
    pub(super) wildcard: Want,
    pub(super) names: HashMap<Name, Want>,
    /// Of these, which are not asked for here: another topic's subscription brings them too (R-DP-16).
    borrowed: HashSet<Name>,
    /// What is held from a lender or from an earlier stream and may be gone: kept until the answer to what is asked in its
    /// place, which takes its place whatever its constraints (R-DP-14, R-DP-16).
    orphans: HashSet<(View, Name)>,
    /// Where more than one variant of a name is for these parameters (R-DP-04), all that are held.
    rivals: BTreeMap<(View, Name), Candidates>,
    expiry: Expiry,
    /// `None` where the stream is not open.
    links: [Option<Link>; 2],
}

impl Topic {
    /// Parameters with which nothing is wanted yet, and which of the streams are open.
    pub(super) fn new(parameters: Parameters, open: [bool; 2]) -> Self {
        let (wildcard, names, borrowed, orphans, rivals, expiry) = Default::default();
        let links = open.map(|open| open.then(Link::default));
        Self { parameters, wildcard, names, borrowed, orphans, rivals, expiry, links }
    }

    pub(super) const fn link(&self, stream: StreamId) -> Option<&Link> {
        self.links[stream as usize].as_ref()
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_idle(&self) -> bool {
        VIEWS.iter().all(|view| !self.wants(*view)) && !self.links.iter().flatten().any(Link::is_started)
    }

    pub(super) fn wants(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard != Want::No,
            View::Named => !self.names.is_empty(),
        }
    }

    /// Whether anything is asked for in a view that is not borrowed.
    pub(super) fn asks_in(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard != Want::No,
            View::Named => self.names.len() > self.borrowed.len(),
        }
    }

    /// Whether the origin is asked for this name here.
    pub(super) fn asks_for(&self, name: &Name) -> bool {
        self.names.contains_key(name) && !self.borrowed.contains(name)
    }

    pub(super) fn has_loans(&self) -> bool {
        !self.borrowed.is_empty()
    }

    pub(super) fn has_borrowed(&self, name: &Name) -> bool {
        self.borrowed.contains(name)
    }

    pub(super) fn opened(&mut self, stream: StreamId) {
        self.links[stream as usize] = Some(Link::default());
    }

    pub(super) fn closed(&mut self, stream: StreamId) {
        self.links[stream as usize] = None;
    }

    /// A name is wanted that was not, and what is held by another topic serves.
    pub(super) fn borrow(&mut self, name: &Name) {
        self.names.insert(name.clone(), Want::Yes);
        self.borrowed.insert(name.clone());
    }

    /// What was borrowed is to be asked for.
    pub(super) fn end_loan(&mut self, name: &Name, is_on: impl Fn(StreamId) -> bool) {
        self.orphans.extend(self.borrowed.take(name).map(|name| (View::Named, name)));
        self.touch_on(is_on, Some(name));
    }

    /// A name is wanted that was not.
    pub(super) fn add_name(&mut self, name: &Name, is_on: impl Fn(StreamId) -> bool) {
        self.names.insert(name.clone(), Want::Yes);
        self.touch_on(is_on, Some(name));
    }

    /// The wildcard is wanted that was not.
    pub(super) fn add_wildcard(&mut self, is_on: impl Fn(StreamId) -> bool) {
        self.wildcard = Want::Yes;
        self.touch_on(is_on, None);
    }

    fn touch_on(&mut self, is_on: impl Fn(StreamId) -> bool, name: Option<&Name>) {
        for stream in StreamId::ALL.into_iter().filter(|stream| is_on(*stream)) {
            if let Some(link) = &mut self.links[stream as usize] {
                link.touch(name.cloned());
            }
        }
    }

    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        self.links.iter().flatten().filter_map(Link::unanswered_since).min()
    }

    pub(super) fn ask_anew(&mut self) {
        self.links.iter_mut().flatten().for_each(Link::ask_anew);
    }

    /// Something that others did may let it say what it could not.
    pub(super) fn touch(&mut self) {
        self.links.iter_mut().flatten().for_each(|link| link.touch([]));
    }

    /// A name is let go.
    pub(super) fn remove_name(&mut self, name: &Name) {
        self.names.remove(name);
        self.borrowed.remove(name);
        self.orphans.remove(&(View::Named, name.clone()));
        self.links.iter_mut().flatten().for_each(|link| link.drop_name(name));
    }

    /// What is no longer known when a name was let go.
    pub(super) fn forget(&mut self, name: Name, snapshot: &Snapshot) -> Vec<Op> {
        let view = View::Named;
        let is_listed = |name: &Name| {
            let covering = Collection::covering(name.as_str());
            covering.is_some_and(|covering| self.names.contains_key(covering.as_str()))
        };
        if is_listed(&name) && snapshot.held(view, name.as_str()).is_some() {
            // It is held as a member of a collection too.
            return Vec::new();
        }
        let members = snapshot.members_of(&name).map(|member| member.name().clone());
        let mut ops: Vec<Op> = members
            .filter(|member| !self.names.contains_key(member))
            .map(|name| Op::Forget { view, name })
            .collect();
        ops.push(Op::Forget { view, name });
        self.note(&ops);
        ops
    }

    /// The wildcard is let go.
    pub(super) fn remove_wildcard(&mut self) {
        self.wildcard = Want::No;
        self.expiry.drop_wildcard();
        self.rivals.retain(|(view, _), _| *view != View::Wildcard);
        self.orphans.retain(|(view, _)| *view != View::Wildcard);
        self.links.iter_mut().flatten().for_each(Link::drop_wildcard);
    }

    /// Takes notice of what is no longer held.
    fn note(&mut self, ops: &[Op]) {
        self.expiry.note(ops);
        if !self.rivals.is_empty() {
            for op in ops.iter().filter(|op| !matches!(op, Op::Set { .. })) {
                self.rivals.remove(&(op.view(), op.name().clone()));
            }
        }
    }

    pub(super) fn enter(&mut self, view: View, stream: StreamId) {
        let Some(link) = &mut self.links[stream as usize] else { return };
        match view {
            View::Wildcard => link.touch([]),
            View::Named => {
                let borrowed = &self.borrowed;
                link.touch(self.names.keys().filter(|name| !borrowed.contains(*name)).cloned());
            }
        }
    }

    pub(super) fn leave(&mut self, view: View, stream: StreamId) {
        let Some(link) = &mut self.links[stream as usize] else { return };
        match view {
            View::Wildcard => link.touch([]),
            View::Named => link.touch_sent(),
        }
    }

    /// Lets other views in where the last one was left long enough ago; returns whether that is so anywhere.
    pub(super) fn end_turns(&mut self, now: Instant) -> bool {
        self.links.iter_mut().flatten().fold(false, |any, link| link.end_turn(now) || any)
    }

    /// What has become due on the streams.
    pub(super) fn advance(
        &mut self,
        placed: [Placed; 2],
        settings: &Settings,
        now: Instant,
        snapshot: &Snapshot,
        counters: &Counters,
    ) -> Change {
        let mut change = Change::default();
        for (view, name) in self.expiry.take_due(now) {
            // The origin may hold it still: who asks by name asks again (R-TTL-09).
            if view == View::Named {
                self.links.iter_mut().flatten().for_each(|link| link.ask_again(&name));
            }
            counters.expired.add(1);
            change.ops.push(gone(&self.names, view, name));
        }
        for Placed { stream, view, .. } in placed {
            let Some(link) = &mut self.links[stream as usize] else { continue };
            if view == Some(View::Named) {
                for (name, unseen) in link.complete(settings, now) {
                    change.ops.extend(unseen.into_iter().map(|name| gone(&self.names, View::Named, name)));
                    change.ops.push(Op::Complete { name });
                }
            }
            let Some(unseen) = link.settle(settings, now) else { continue };
            let Some(view) = view else { continue };
            change.ops.extend(unseen.into_iter().map(|name| Op::Remove { view, name }));
            if view == View::Wildcard && !snapshot.wildcard_known() {
                change.wildcard_known = Some(true);
            }
        }
        self.note(&change.ops);
        change
    }

    /// When to look again though nothing happened. A view that is moving to the primary waits for what it is asked
    /// there.
    pub(super) fn deadline(&self, moving: Option<View>, settings: &Settings) -> Option<Instant> {
        let of = |stream: StreamId| {
            self.link(stream)?.deadline(moving.filter(|_| stream == StreamId::Primary), settings)
        };
        StreamId::ALL.into_iter().filter_map(of).chain(self.expiry.next()).min()
    }

    /// The next request for this type on a stream, and whether another has to follow.
    pub(super) fn changes(
        &mut self,
        stream: StreamId,
        target: &Target<'_>,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        let wanted = |name: &Name| self.names.contains_key(name) && !self.borrowed.contains(name);
        let Some(link) = &mut self.links[stream as usize] else { return (None, false) };
        let (request, more) = link.changes(target, &wanted);
        if let Some(request) = request.as_ref().filter(|_| !target.copy) {
            self.doubt(request, target);
        }
        (request, more)
    }

    /// What is held of what is asked for now may have become another variant meanwhile, but for what is claimed.
    fn doubt(&mut self, request: &DeltaDiscoveryRequest, target: &Target<'_>) {
        let Some(view) = target.view else { return };
        let located = request.resource_locators_subscribe.iter().map(|locator| &locator.name);
        let asked = || request.resource_names_subscribe.iter().chain(located.clone());
        let is_claimed =
            |held: &Arc<Resource>| request.initial_resource_versions.contains_key(held.name().as_str());
        let doubted = |held: &Arc<Resource>| (!is_claimed(held)).then(|| (view, held.name().clone()));
        // Those that are not seen are not claimed either.
        if view == View::Named {
            let held = asked().filter_map(|name| target.snapshot.held(view, name));
            self.orphans.extend(held.filter_map(doubted));
            if !self.rivals.is_empty() {
                asked().for_each(|name| drop(self.rivals.remove(&(view, name.as_str().into()))));
            }
        } else if asked().next().is_some() || request.resource_names_unsubscribe.is_empty() {
            self.orphans.extend(target.snapshot.members().filter_map(doubted));
            self.rivals.retain(|(other, _), _| *other != view);
        }
    }

    /// Notes which of its questions a response answers, and which parts of the response it covers.
    pub(super) fn hear(
        &mut self,
        placed: Placed,
        reading: &mut Reading<'_>,
        snapshot: &Snapshot,
        is_only: bool,
        now: Instant,
    ) {
        let Some(link) = &mut self.links[placed.stream as usize] else { return };
        let mut concerned = is_only || (reading.resources.is_empty() && reading.removed.is_empty());
        for heard in &mut reading.resources {
            let covered = covering(link, &self.borrowed, placed.view, snapshot, &heard.name);
            // A collection is no resource, whatever the origin calls its own.
            let is_resource = |view| view == View::Wildcard || Collection::named(&heard.name).is_none();
            if covered.is_some_and(|(view, _)| is_resource(view))
                && (heard.matches(&self.parameters) || !heard.is_understood())
            {
                concerned = true;
                heard.covered = true;
                heard.answers |= link.heard(&heard.name, now);
            }
        }
        for removed in &mut reading.removed {
            let covered = covering(link, &self.borrowed, placed.view, snapshot, &removed.name);
            if covered.is_some_and(|(view, _)| concerns(removed, view, snapshot, &self.parameters)) {
                concerned = true;
                removed.covered = true;
                link.heard(&removed.name, now);
            }
        }
        // What came for others says nothing of how far the answer to this one has come.
        if concerned {
            link.arrived(now);
        }
    }

    /// Works out what an accepted response changes, of which [`hear`](Self::hear) took notice.
    pub(super) fn learn(
        &mut self,
        placed: Placed,
        type_url: &TypeUrl,
        reading: &mut Reading<'_>,
        snapshot: &Snapshot,
        counters: &Counters,
        now: Instant,
    ) -> Change {
        let Some(link) = &mut self.links[placed.stream as usize] else { return Change::default() };
        let mut ops = Vec::with_capacity(reading.resources.len() + reading.removed.len());
        let mut variants: BTreeMap<(View, Name), Candidates> = BTreeMap::new();
        let many = reading.has_variants() || !self.rivals.is_empty();
        for heard in reading.resources.iter_mut().filter(|heard| heard.covered) {
            if !heard.matches(&self.parameters) {
                continue;
            }
            let covered = covering(link, &self.borrowed, placed.view, snapshot, &heard.name);
            let Some((view, name)) = covered else { continue };
            let held = snapshot.held(view, &heard.name);
            let same = held.is_some_and(|held| {
                held.origin_version() == Some(heard.envelope.version) && heard.is_variant_of(held)
            });
            let deadline = heard.envelope.ttl.and_then(|ttl| now.checked_add(ttl));
            let resend = if heard.answers || placed.copy { Resend::Answer } else { Resend::Unsolicited };
            let resource = heard.encode(type_url, &name);
            if resource.is_some() {
                counters.unsolicited.add(u64::from(same && resend == Resend::Unsolicited));
            } else if same && !heard.envelope.has_aliases {
                // A heartbeat (R-TTL-02).
                self.expiry.set(view, &name, deadline);
                continue;
            } else if heard.envelope.has_aliases {
                continue;
            }
            let is_orphan = !self.orphans.is_empty() && self.orphans.remove(&(view, name.clone()));
            if is_orphan {
                self.rivals.remove(&(view, name.clone()));
            }
            let held = held.filter(|_| !is_orphan);
            if many || held.is_some_and(|held| held.constraints().is_some()) {
                let rivals = self.rivals.get(&(view, name.clone()));
                let candidates =
                    variants.entry((view, name)).or_insert_with(|| Candidates::new(held, rivals));
                match resource {
                    Some(resource) => candidates.set(resource, resend, deadline),
                    None => candidates.remove(heard.constraints()),
                }
                continue;
            }
            match resource {
                Some(resource) => {
                    self.expiry.set(view, &name, deadline);
                    ops.push(Op::Set { view, resource, resend });
                }
                // Neither a heartbeat nor an unresolved alias: the old form of "does not exist" (R-Up-16).
                None if self.borrowed.contains(&name) => {}
                None => ops.push(gone(&self.names, view, name)),
            }
        }
        let mut empty = Vec::new();
        for removed in reading.removed.iter().filter(|removed| removed.covered) {
            let covered = covering(link, &self.borrowed, placed.view, snapshot, &removed.name);
            let Some((view, name)) = covered else { continue };
            if !concerns(removed, view, snapshot, &self.parameters) {
                continue;
            }
            if view == View::Named && Collection::named(&removed.name).is_some() {
                empty.push(name);
                continue;
            }
            let held = snapshot.held(view, &removed.name);
            let key = (view, name);
            let is_orphan = removed.constraints.is_none() && self.orphans.remove(&key);
            if is_orphan {
                self.rivals.remove(&key);
            }
            let held = held.filter(|_| !is_orphan);
            if variants.contains_key(&key) || self.rivals.contains_key(&key) {
                let rivals = self.rivals.get(&key);
                let candidates = variants.entry(key).or_insert_with(|| Candidates::new(held, rivals));
                candidates.remove(removed.constraints.as_ref());
            } else if held.is_none_or(|held| held.constraints() == removed.constraints.as_ref())
                && !(view == View::Named && self.borrowed.contains(&key.1))
            {
                ops.push(gone(&self.names, view, key.1));
            }
        }
        for ((view, name), candidates) in variants {
            match candidates.choose() {
                Some(chosen) => {
                    if let Some((resend, deadline)) = chosen.news {
                        self.expiry.set(view, &name, deadline);
                        ops.push(Op::Set { view, resource: Arc::clone(chosen.resource), resend });
                    } else if !candidates.is_held(chosen.resource) {
                        self.expiry.set(view, &name, None);
                        ops.push(Op::held(view, Arc::clone(chosen.resource)));
                    }
                }
                // What was borrowed is kept until it was asked for and answered (R-DP-16).
                None if view == View::Named && self.borrowed.contains(&name) => {}
                None => ops.push(gone(&self.names, view, name.clone())),
            }
            if candidates.are_ambiguous() {
                counters.ambiguous.add(1);
                self.rivals.insert((view, name), candidates.settled());
            } else {
                self.rivals.remove(&(view, name));
            }
        }
        // A collection without members (R-XT-04): what is held of it is gone, but for what came beside this.
        let came: HashSet<Name> =
            empty.first().map(|_| ops.iter().map(Op::name).cloned().collect()).unwrap_or_default();
        for collection in empty {
            let members = snapshot.members_of(&collection).map(|member| member.name().clone());
            ops.extend(
                members.filter(|name| !came.contains(name)).map(|name| gone(&self.names, View::Named, name)),
            );
            link.heard_empty(&collection);
            ops.push(Op::Complete { name: collection });
        }
        // What is not a member cannot stop being one; a list of such names is not worth a change.
        ops.retain(|op| match op {
            Op::Remove { view: View::Wildcard, name } => {
                snapshot.held(View::Wildcard, name.as_str()).is_some()
            }
            _ => true,
        });
        self.expiry.note(&ops);
        counters.operations.add(ops.len() as u64);
        let version = reading.system_version;
        Change { ops, wildcard_known: None, system_version: (!version.is_empty()).then(|| version.into()) }
    }
}

/// Whether it answers clients with these parameters that an identity does not exist (any more): they may see it, or, with
/// no constraints named, it is said that there is nothing for them (R-DP-05).
fn concerns(removed: &Removed<'_>, view: View, snapshot: &Snapshot, parameters: &Parameters) -> bool {
    let constraints = removed.constraints.as_ref();
    let is_held = |held: &Resource| held.constraints() == constraints;
    constraints.is_none_or(|constraints| constraints.matches(parameters))
        || snapshot.held(view, &removed.name).is_some_and(|held| is_held(held))
}

/// What it means that a name does not exist (any more): who asks for it by name is told so for as long as it is asked
/// for, who asks for a collection only that it left.
fn gone(names: &HashMap<Name, Want>, view: View, name: Name) -> Op {
    if view == View::Named && !names.contains_key(&name) {
        Op::Withdraw { name }
    } else {
        Op::Remove { view, name }
    }
}

/// The view through which a stream brings a name, if anything subscribed to there covers it (R-Up-15), and the name
/// in the allocation that is already held.
fn covering(
    link: &Link,
    borrowed: &HashSet<Name>,
    placed: Option<View>,
    snapshot: &Snapshot,
    name: &str,
) -> Option<(View, Name)> {
    match placed? {
        View::Wildcard if link.covers_wildcard() => {
            let held = snapshot.get(name).map(|entry| entry.name().clone());
            Some((View::Wildcard, held.unwrap_or_else(|| name.into())))
        }
        View::Wildcard => None,
        View::Named => {
            let listed = || {
                let held = snapshot.get(name).map(|entry| entry.name().clone());
                link.covers_member(name).then(|| held.unwrap_or_else(|| name.into()))
            };
            let lent = || borrowed.get(name).cloned();
            Some((View::Named, link.covered(name).cloned().or_else(lent).or_else(listed)?))
        }
    }
}
