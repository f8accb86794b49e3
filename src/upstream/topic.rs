//! One type: what is wanted of it, which stream carries what, and what a response changes.
//!
//! Owns the layout over the two streams (R-Relay-03) and the moves between them. Knows nothing of other types.
//!
//! The layout: what is wanted first lives on the primary; once both views are wanted, the second one lives on the
//! secondary. When only that one is left, it is subscribed to on the primary as well, and leaves the secondary when
//! the primary can stand alone for it. Nothing is removed or asked for less in between, so there is no gap.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use foldhash::{HashMap, HashSet};

use super::aliases;
use super::expiry::Expiry;
use super::sending::{Link, Target};
use super::{Counters, Settings, StreamId};
use crate::cache::{Change, Op, Resend, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Collection, Envelope, Form, Name, Resource, TypeUrl, normal_form};

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

/// Where a view is subscribed to.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    home: Option<StreamId>,
    /// It lives on the secondary and is on its way to the primary, subscribed to on both.
    moving: bool,
}

impl Place {
    fn is_on(self, stream: StreamId) -> bool {
        self.home == Some(stream) || (self.moving && stream == StreamId::Primary)
    }
}

/// What a response says, taken apart.
pub(super) struct Reading<'a> {
    pub(super) envelopes: Vec<Envelope<'a>>,
    pub(super) removed: Vec<Cow<'a, str>>,
    pub(super) system_version: &'a str,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) wildcard: Want,
    pub(super) names: HashMap<Name, Want>,
    places: [Place; 2],
    expiry: Expiry,
    /// When what may not be kept came (R-XT-09).
    uncacheable: Expiry,
    /// `None` where the stream is not open.
    links: [Option<Link>; 2],
}

impl Topic {
    /// A type of which nothing is wanted yet, and which of the streams are open.
    pub(super) fn new(open: [bool; 2]) -> Self {
        let (wildcard, names, places, expiry, uncacheable) = Default::default();
        Self {
            wildcard,
            names,
            places,
            expiry,
            uncacheable,
            links: open.map(|open| open.then(Link::default)),
        }
    }

    pub(super) const fn link(&self, stream: StreamId) -> Option<&Link> {
        self.links[stream as usize].as_ref()
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_idle(&self) -> bool {
        VIEWS.iter().all(|view| !self.wants(*view)) && !self.links.iter().flatten().any(Link::is_started)
    }

    /// What a stream is to carry. The layout never puts both views on one.
    pub(super) fn placed(&self, stream: StreamId) -> Option<View> {
        VIEWS.into_iter().find(|view| self.places[*view as usize].is_on(stream))
    }

    fn wants(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard != Want::No,
            View::Named => !self.names.is_empty(),
        }
    }

    /// A stream was opened; on the primary the layout starts anew.
    pub(super) fn opened(&mut self, stream: StreamId) {
        self.links[stream as usize] = Some(Link::default());
        if stream == StreamId::Primary {
            self.places = Default::default();
            self.arrange();
        } else if let Some(view) = self.placed(stream) {
            self.enter(view, stream);
        }
    }

    pub(super) fn closed(&mut self, stream: StreamId) {
        self.links[stream as usize] = None;
    }

    /// A name is wanted that was not.
    pub(super) fn add_name(&mut self, name: &Name) {
        self.names.insert(name.clone(), Want::Yes);
        let place = self.places[View::Named as usize];
        for stream in StreamId::ALL.into_iter().filter(|stream| place.is_on(*stream)) {
            if let Some(link) = &mut self.links[stream as usize] {
                link.touch([name.clone()]);
            }
        }
    }

    /// A name is let go.
    pub(super) fn remove_name(&mut self, name: &Name) {
        self.names.remove(name);
        self.links.iter_mut().flatten().for_each(|link| link.drop_name(name));
    }

    /// A client asks for a name that is asked for already: what was not kept has to come once more (R-XT-09).
    pub(super) fn want_again(&mut self, name: &Name, snapshot: &Snapshot) {
        if snapshot.held(View::Named, name.as_str()).is_some_and(|held| held.form() == Form::Dropped) {
            self.links.iter_mut().flatten().for_each(|link| link.ask_once_more(name));
        }
    }

    /// Whether a collection was asked for that has this member.
    fn is_listed(&self, name: &Name) -> bool {
        let covering = Collection::covering(name.as_str());
        covering.is_some_and(|covering| self.names.contains_key(covering.as_str()))
    }

    /// Whatever is gone does not end once more.
    fn note(&mut self, ops: &[Op]) {
        self.expiry.note(ops);
        self.uncacheable.note(ops);
    }

    /// What is no longer known when a name was let go.
    pub(super) fn forget(&mut self, name: Name, snapshot: &Snapshot) -> Vec<Op> {
        let view = View::Named;
        let is_own = |held: &Arc<Resource>| *held.name() == name;
        if self.is_listed(&name) && snapshot.held(view, name.as_str()).is_some_and(is_own) {
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
        self.links.iter_mut().flatten().for_each(Link::drop_wildcard);
    }

    /// Brings the layout in line with what is wanted.
    pub(super) fn arrange(&mut self) {
        for view in VIEWS {
            if !self.wants(view) {
                let place = std::mem::take(&mut self.places[view as usize]);
                StreamId::ALL.into_iter().filter(|on| place.is_on(*on)).for_each(|on| self.leave(view, on));
            }
        }
        for view in VIEWS {
            if self.wants(view) && self.places[view as usize].home.is_none() {
                let other = &mut self.places[opposite(view) as usize];
                let home = match other.home {
                    Some(StreamId::Primary) => StreamId::Secondary,
                    Some(StreamId::Secondary) | None => StreamId::Primary,
                };
                // The other was about to come here: it stays where it is.
                if std::mem::take(&mut other.moving) {
                    self.leave(opposite(view), StreamId::Primary);
                }
                self.places[view as usize].home = Some(home);
                self.enter(view, home);
            }
        }
        for view in VIEWS {
            let place = &mut self.places[view as usize];
            if place.home == Some(StreamId::Secondary) && !place.moving {
                let alone = !self.wants(opposite(view));
                if alone {
                    self.places[view as usize].moving = true;
                    self.enter(view, StreamId::Primary);
                }
            }
        }
    }

    fn enter(&mut self, view: View, stream: StreamId) {
        let Some(link) = &mut self.links[stream as usize] else { return };
        match view {
            View::Wildcard => link.touch([]),
            View::Named => link.touch(self.names.keys().cloned()),
        }
    }

    fn leave(&mut self, view: View, stream: StreamId) {
        let Some(link) = &mut self.links[stream as usize] else { return };
        match view {
            View::Wildcard => link.touch([]),
            View::Named => link.touch_sent(),
        }
    }

    fn moving(&self) -> Option<View> {
        VIEWS.into_iter().find(|view| self.places[*view as usize].moving)
    }

    /// What has become due on the streams.
    pub(super) fn advance(
        &mut self,
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
        let past = now.checked_sub(settings.settle_max).map(|before| self.uncacheable.take_due(before));
        for (_, name) in past.into_iter().flatten() {
            // Who asks for a collection is served from memory, as who asks for the wildcard.
            if !self.is_listed(&name) {
                change.ops.push(Op::Drop { name });
            }
        }
        for stream in StreamId::ALL {
            let view = self.placed(stream);
            let Some(link) = &mut self.links[stream as usize] else { continue };
            link.end_turn(now);
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

    /// Ends a move once the primary can stand alone. A full set says nothing of what is gone, so a wildcard does not
    /// leave the secondary before that one has caught up, had it been lost on the way.
    pub(super) fn finish_move(&mut self, now: Instant) {
        let Some(view) = self.moving() else { return };
        let is_complete = |on| self.link(on).is_some_and(|link| link.is_complete(view, now));
        if is_complete(StreamId::Primary) && (view == View::Named || is_complete(StreamId::Secondary)) {
            self.places[view as usize] = Place { home: Some(StreamId::Primary), moving: false };
            self.leave(view, StreamId::Secondary);
        }
    }

    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let moving = self.moving();
        let of = |stream: StreamId| {
            self.link(stream)?.deadline(moving.filter(|_| stream == StreamId::Primary), settings)
        };
        let uncacheable = self.uncacheable.next().map(|came| came + settings.settle_max);
        StreamId::ALL.into_iter().filter_map(of).chain(self.expiry.next()).chain(uncacheable).min()
    }

    /// The next request for this type on a stream, and whether another has to follow.
    pub(super) fn changes(
        &mut self,
        stream: StreamId,
        snapshot: &Snapshot,
        settings: &Settings,
        now: Instant,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        let view = self.placed(stream);
        let copy = view.is_some_and(|view| self.places[view as usize].home != Some(stream));
        let target = Target { view, names: &self.names, copy, snapshot, settings, now };
        self.links[stream as usize].as_mut().map_or((None, false), |link| link.changes(&target))
    }

    /// Works out what an accepted response changes.
    pub(super) fn learn(
        &mut self,
        stream: StreamId,
        type_url: &TypeUrl,
        reading: &Reading<'_>,
        snapshot: &Snapshot,
        counters: &Counters,
        now: Instant,
    ) -> Change {
        let view = self.placed(stream);
        let copy = view.is_some_and(|view| self.places[view as usize].home != Some(stream));
        let Some(link) = &mut self.links[stream as usize] else { return Change::default() };
        let mut ops = Vec::with_capacity(reading.envelopes.len() + reading.removed.len());
        let is_named = view == Some(View::Named);
        // Names that were aliases of what is gone, or has other aliases now.
        let mut lost = aliases::Asked::new();
        for envelope in &reading.envelopes {
            let text = normal_form(envelope.name);
            let own = covering(link, view, snapshot, &text);
            // A collection is no resource, whatever the origin calls its own.
            let own = own.filter(|(view, _)| *view == View::Wildcard || Collection::named(&text).is_none());
            let others = if is_named {
                aliases::asked_by(link, snapshot, envelope, &text)
            } else {
                aliases::Asked::new()
            };
            let view = if is_named { View::Named } else { View::Wildcard };
            let Some(first) = own.as_ref().map(|(_, name)| name).or_else(|| others.first()) else {
                counters.unrequested_resources.add(1);
                continue;
            };
            let held = snapshot.held(view, first.as_str()).filter(|held| *held.name().as_str() == *text);
            let name = own.as_ref().map(|(_, name)| name).or_else(|| held.map(|held| held.name()));
            let name = name.cloned().unwrap_or_else(|| Name::from(&*text));
            let asked = || own.iter().map(|(_, name)| name).chain(&others);
            let mut answers = false;
            asked().for_each(|name| answers |= link.heard(name.as_str(), now));
            if envelope.constrained {
                counters.refused_resources.add(1);
                continue;
            }
            let same = held.is_some_and(|held| held.origin_version() == Some(envelope.version));
            let deadline = envelope.ttl.and_then(|ttl| now.checked_add(ttl));
            let resend = if answers || copy { Resend::Answer } else { Resend::Unsolicited };
            if let Some(resource) = envelope.encode(type_url, name.clone()) {
                counters.unsolicited.add(u64::from(same && resend == Resend::Unsolicited));
                if is_named {
                    lost.extend(aliases::lost_by(link, snapshot, envelope, &text));
                }
                // A full state is made of everything that its client asked for: of such types it is kept.
                let drops = envelope.do_not_cache && is_named && !type_url.kind().full_state();
                let resource = Arc::new(resource);
                for name in asked() {
                    self.expiry.set(view, name, deadline);
                    self.uncacheable.set(view, name, drops.then_some(now));
                }
                let alias = |name| Op::Alias { name, resource: Arc::clone(&resource), resend };
                ops.extend(others.into_iter().map(alias));
                ops.extend(own.map(|_| Op::Set { view, resource, resend }));
            } else if same && !envelope.has_aliases {
                // A heartbeat (R-TTL-02).
                asked().for_each(|name| self.expiry.set(view, name, deadline));
            } else if !envelope.has_aliases {
                // Neither a heartbeat nor an unresolved alias: the old form of "does not exist" (R-Up-16).
                lost.extend(others);
                ops.extend(own.map(|(view, name)| gone(&self.names, view, name)));
            } else if is_named {
                let own = own.map(|(_, name)| name).filter(|_| aliases::is_unresolved(envelope, &text));
                let resource = Arc::new(envelope.encode_unresolved(type_url, name));
                for name in own.into_iter().chain(others) {
                    self.expiry.set(view, &name, None);
                    self.uncacheable.set(view, &name, None);
                    ops.push(Op::Alias { name, resource: Arc::clone(&resource), resend });
                }
            }
        }
        let mut empty = Vec::new();
        let mut removed_names = Vec::new();
        for removed in &reading.removed {
            let aliases =
                if is_named { aliases::held_by(link, snapshot, removed) } else { aliases::Asked::new() };
            match covering(link, view, snapshot, removed) {
                Some((view, name)) => {
                    link.heard(removed, now);
                    if view == View::Named && Collection::named(removed).is_some() {
                        empty.push(name);
                    } else {
                        removed_names.push((view, name));
                    }
                }
                None if aliases.is_empty() => counters.unrequested_resources.add(1),
                None => {}
            }
            lost.extend(aliases);
        }
        let is_op_alias = |op: &Op| matches!(op, Op::Alias { .. });
        let came: HashSet<Name> = if empty.is_empty() && lost.is_empty() && !ops.iter().any(is_op_alias) {
            HashSet::default()
        } else {
            ops.iter().map(Op::name).cloned().collect()
        };
        // What is gone by its own name may be there as an alias, and what is no alias any more by its own name.
        let lost = lost.into_iter().map(|alias| (View::Named, alias));
        let removed = removed_names.into_iter().chain(lost).filter(|(_, name)| !came.contains(name));
        ops.extend(removed.map(|(view, name)| gone(&self.names, view, name)));
        // A collection without members (R-XT-04): what is held of it is gone, but for what came beside this.
        for collection in empty {
            let members = snapshot.members_of(&collection).map(|member| member.name().clone());
            ops.extend(
                members.filter(|name| !came.contains(name)).map(|name| gone(&self.names, View::Named, name)),
            );
            link.heard_empty(&collection);
            ops.push(Op::Complete { name: collection });
        }
        link.arrived(now);
        // What is not a member cannot stop being one; a list of such names is not worth a change.
        ops.retain(|op| match op {
            Op::Remove { view: View::Wildcard, name } => {
                snapshot.held(View::Wildcard, name.as_str()).is_some()
            }
            _ => true,
        });
        self.note(&ops);
        counters.operations.add(ops.len() as u64);
        let version = reading.system_version;
        Change { ops, wildcard_known: None, system_version: (!version.is_empty()).then(|| version.into()) }
    }
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

const fn opposite(view: View) -> View {
    match view {
        View::Wildcard => View::Named,
        View::Named => View::Wildcard,
    }
}

/// The view through which a stream brings a name, if anything subscribed to there covers it (R-Up-15), and the name
/// in the allocation that is already held.
fn covering(link: &Link, placed: Option<View>, snapshot: &Snapshot, name: &str) -> Option<(View, Name)> {
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
            Some((View::Named, link.covered(name).cloned().or_else(listed)?))
        }
    }
}
