//! One type: what is wanted of it with which parameters, and which stream carries what.
//!
//! Owns the layout over the two streams (R-Relay-03), the moves between them, and loans between topics (R-DP-16). Knows
//! nothing of other types.
//!
//! The layout: the view of a type that is wanted first lives on the primary, the second one on the secondary. On one stream
//! a type is asked for by name or as wildcard, whatever the parameters, and never first in the one way and then in the other:
//! origins differ in what they make of a wildcard that is let go (O1). The layout begins anew with each primary.
//!
//! A loan: a name that a topic wants and does not ask for, because what another topic asked for brings a variant that is
//! for its clients too. It is served from what is held without a word upstream, and ends when that is no longer so: then
//! the name is asked for, and what is held is kept until the answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::response::DecodedResponse;
use super::stream_subscription::{StreamSubscription, Target, room};
use super::topic::{OriginHabits, Placement, Renewal, SilentStreams, Topic, Want};
use super::{Counters, Settings, StreamId};
use crate::cache::{Cache, Change, Lease, Op, ParameterView, Snapshot, View};
use crate::proto::DeltaDiscoveryRequest;
use crate::resource::{Form, Name, Parameters, Resource, TypeUrl};

const NOT_UNDERSTOOD: &str = "its constraints cannot be read (R-DP-02): it is passed on to nobody";
const AMBIGUOUS: &str =
    "more than one variant of it is for the same parameters (R-DP-04): clients see one of them";

/// A wildcard that nobody wants any more costs the origin what it sends of it. After so many linger times the stream is opened
/// anew without it.
pub(super) const SHED_LINGERS: u32 = 10;

const VIEWS: [View; 2] = [View::Wildcard, View::Named];

/// Changes by one event, by the parameters of the clients that see them.
pub(super) type Changes = Vec<(Parameters, Change)>;

/// Subscriptions to one type, and their layout over the two streams.
#[derive(Debug)]
pub(super) struct Group {
    type_url: TypeUrl,
    /// On which stream each view lives.
    homes: [Option<StreamId>; 2],
    open: [bool; 2],
    /// Whether a request for the type was sent on a stream: its responses are ACKed from then on (R-Up-11).
    started: [bool; 2],
    /// Whether the origin was asked for the plain wildcard on a stream, be it for clients that are gone.
    has_wildcard: [bool; 2],
    pub(super) topics: BTreeMap<Parameters, Topic>,
    /// Whether the origin is asked for plain names whatever the parameters: it does not read locators (R-Up-18).
    plain: bool,
    /// As far as is known.
    habits: OriginHabits,
    /// Since when something may be borrowed from a topic that was asked for anew and not answered.
    loans_doubted: Option<Instant>,
    /// Names that may not be lent any more though nothing changed.
    disowned: BTreeSet<Name>,
    /// Name and fault of a resource that the origin sent last, until it is complained of.
    silence_log: Option<(Name, &'static str)>,
}

impl Group {
    /// A type of which nothing is wanted yet, and which of the streams are open.
    pub(super) fn new(type_url: TypeUrl, open: [bool; 2], plain: bool, habits: OriginHabits) -> Self {
        let (homes, started, has_wildcard, topics, disowned) = Default::default();
        let (silence_log, loans_doubted) = Default::default();
        Self {
            type_url,
            homes,
            open,
            started,
            has_wildcard,
            topics,
            plain,
            habits,
            loans_doubted,
            disowned,
            silence_log,
        }
    }

    /// Topic for these parameters; a new one if there is none.
    pub(super) fn topic(&mut self, parameters: &Parameters) -> &mut Topic {
        let (open, habits) = (self.open, self.habits);
        let new = || Topic { habits, ..Topic::new(parameters.clone(), open) };
        self.topics.entry(parameters.clone()).or_insert_with(new)
    }

    /// Takes over what is known of the origin.
    pub(super) fn set_habits(&mut self, habits: OriginHabits) {
        self.habits = habits;
        self.topics.values_mut().for_each(|topic| topic.habits = habits);
    }

    /// Habits of the origin as far as this type shows them.
    pub(super) fn habits(&self) -> OriginHabits {
        self.topics.values().fold(self.habits, |habits, topic| habits.and(topic.habits))
    }

    /// Since when the origin has left something unanswered that it was asked for by locators.
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        let located = self.topics.iter().filter(|(parameters, _)| !self.plain && !parameters.is_empty());
        located.filter_map(|(_, topic)| topic.unanswered_since()).min()
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_idle(&self) -> bool {
        self.started == [false; 2] && self.topics.values().all(Topic::is_idle)
    }

    /// Drops topics of parameters that nobody has any more; returns whether there were any.
    pub(super) fn drop_idle(&mut self) -> bool {
        let before = self.topics.len();
        self.topics.retain(|_, topic| !topic.is_idle());
        before != self.topics.len()
    }

    /// Whether a request for the type was sent on a stream.
    pub(super) const fn is_started(&self, stream: StreamId) -> bool {
        self.started[stream as usize]
    }

    pub(super) fn is_dirty(&self, stream: StreamId) -> bool {
        self.subscriptions(stream).any(StreamSubscription::is_dirty)
    }

    fn subscriptions(&self, stream: StreamId) -> impl Iterator<Item = &StreamSubscription> {
        self.topics.values().filter_map(move |topic| topic.subscription(stream))
    }

    /// View that a stream is to carry. The layout never puts both views on one.
    pub(super) fn placed(&self, stream: StreamId) -> Option<View> {
        VIEWS.into_iter().find(|view| self.homes[*view as usize] == Some(stream))
    }

    fn placement(&self, stream: StreamId) -> Placement {
        Placement { stream, view: self.placed(stream) }
    }

    /// Whether anybody wants what lives on a stream, or did lately.
    pub(super) fn is_live_on(&self, stream: StreamId) -> bool {
        self.placed(stream).is_some_and(|view| self.topics.values().any(|topic| topic.is_live(view)))
    }

    /// Whether parts of an answer come on a stream, or on one that ends with it.
    pub(super) fn is_receiving(&self, stream: StreamId) -> bool {
        let ends = |other: &StreamId| stream == StreamId::Primary || *other == stream;
        StreamId::ALL
            .into_iter()
            .filter(ends)
            .flat_map(|stream| self.subscriptions(stream))
            .any(StreamSubscription::is_receiving)
    }

    /// Reasons for which each stream is to be opened anew.
    pub(super) fn take_renewals(&mut self) -> [BTreeSet<Renewal>; 2] {
        let mut renewals = <[BTreeSet<Renewal>; 2]>::default();
        for topic in self.topics.values_mut() {
            renewals.iter_mut().zip(&mut topic.renewals).for_each(|(all, one)| all.append(one));
        }
        renewals
    }

    /// Whether these are the only parameters for which the origin was asked for the plain wildcard.
    pub(super) fn is_last_of_wildcard(&self, parameters: &Parameters) -> bool {
        let others = || self.topics.iter().filter(|(other, _)| *other != parameters);
        parameters.is_empty() || (self.plain && others().all(|(_, topic)| topic.wildcard == Want::No))
    }

    /// When a stream is to be opened anew to let go of a wildcard that nobody wants any more.
    pub(super) fn sheds_at(&self, stream: StreamId, settings: &Settings) -> Option<Instant> {
        let since = |topic: &Topic| match topic.wildcard {
            Want::Kept(since) => Some(since),
            Want::No | Want::Yes | Want::Until(_) => None,
        };
        let is_here = self.homes[View::Wildcard as usize] == Some(stream) && self.open[stream as usize];
        // By plain names all have the same wildcard.
        let is_shared = self.plain && self.topics.values().any(|topic| topic.wildcard.is_live());
        let since = self.topics.values().filter(|_| is_here && !is_shared).filter_map(since).min();
        since.map(|since| since + SHED_LINGERS * settings.linger)
    }

    /// Lets go of wildcards that nobody wants where no stream carries them, or will; returns what is no longer known.
    pub(super) fn drop_kept(&mut self, cache: &Cache, now: Instant) -> Changes {
        let mut changes = Changes::new();
        for (parameters, topic) in &mut self.topics {
            if !matches!(topic.wildcard, Want::Kept(_)) {
                continue;
            }
            if cache.wants_wildcard(&self.type_url, parameters) {
                // Somebody came a moment ago.
                topic.wildcard = Want::Yes;
            } else {
                let snapshot = snapshot(cache, &self.type_url, parameters);
                changes.push((parameters.clone(), topic.forget_wildcard(false, &snapshot, now)));
            }
        }
        changes
    }

    /// Whether wildcards that nobody wants are left over from a secondary that was closed: opened anew it would carry them.
    pub(super) fn has_stray(&self) -> bool {
        self.homes[View::Wildcard as usize] != Some(StreamId::Primary)
            && self.topics.values().any(|topic| matches!(topic.wildcard, Want::Kept(_)))
    }

    /// A connection stands: what was about to be proven on the last one begins anew.
    pub(super) fn connected(&mut self) {
        for topic in self.topics.values_mut() {
            topic.needs_proof[View::Wildcard as usize] |= topic.unproven.take().is_some();
            topic.ignores_versions = false;
            topic.silent_streams = SilentStreams::default();
            topic.doubts.connected();
        }
    }

    /// A stream was opened; on the primary the layout starts anew.
    pub(super) fn opened(&mut self, stream: StreamId, plain: bool) {
        self.open[stream as usize] = true;
        self.started[stream as usize] = false;
        self.has_wildcard[stream as usize] = false;
        self.topics.values_mut().for_each(|topic| topic.opened(stream));
        if stream == StreamId::Primary {
            self.plain = plain;
            self.homes = [None, None];
            self.arrange();
        } else if let Some(view) = self.placed(stream) {
            self.enter(view, stream);
        }
    }

    pub(super) fn closed(&mut self, stream: StreamId) {
        self.open[stream as usize] = false;
        self.started[stream as usize] = false;
        self.has_wildcard[stream as usize] = false;
        self.topics.values_mut().for_each(|topic| topic.closed(stream));
        if stream == StreamId::Secondary && !self.is_live_on(stream) {
            self.homes.iter_mut().filter(|home| **home == Some(stream)).for_each(|home| *home = None);
        }
    }

    /// A name is wanted that was not. It is asked for, unless what is held already is for these clients too.
    pub(super) fn add_name(
        &mut self,
        parameters: &Parameters,
        name: &Name,
        cache: &Cache,
        now: Instant,
    ) -> Option<Op> {
        if let Some((resource, lease)) = self.lender(parameters, name, cache) {
            if self.topics.values().any(|topic| topic.is_orphan(View::Named, name)) {
                self.loans_doubted.get_or_insert(now);
            }
            self.topic(parameters).borrow(name, lease);
            return Some(Op::held(View::Named, resource, lease));
        }
        let home = self.homes[View::Named as usize];
        self.topic(parameters).add_name(name, home);
        None
    }

    /// A name is no longer asked for plainly. The answer there may be all that the origin said to topics that ask for it by
    /// locator: their question is asked once more, to see whether it reads it (R-Up-18).
    pub(super) fn ask_again_by_locator(&mut self, name: &Name) {
        let located = self.topics.iter_mut().filter(|(parameters, _)| !self.plain && !parameters.is_empty());
        located.for_each(|(_, topic)| topic.ask_again(name));
    }

    /// The wildcard is wanted that was not. With `is_silent` the origin has not shown that it reads locators: its answer to a
    /// plain question may be all that it says.
    pub(super) fn add_wildcard(&mut self, parameters: &Parameters, is_silent: bool, cache: &Cache) -> Change {
        let (open, home) = (self.open, self.homes[View::Wildcard as usize]);
        let removed = self.topics.remove(parameters);
        let mut topic = removed.unwrap_or_else(|| Topic::new(parameters.clone(), open));
        let mut change = Change::default();
        let plainly = self.topics.get(&Parameters::NONE).filter(|_| is_silent);
        if self.plain {
            change = self.share_wildcard(&mut topic, cache);
        } else if plainly.is_some_and(|topic| topic.asks_in(View::Wildcard)) {
            let known = self.snapshot(cache, &Parameters::NONE);
            let members = known.members().filter(|member| member.constraints().is_none());
            change.ops.extend(members.map(|member| known.op_for(View::Wildcard, member)));
        }
        topic.add_wildcard(home);
        self.topics.insert(parameters.clone(), topic);
        change
    }

    /// There is one plain wildcard for all. What it brought others is seen at once and kept up to date with theirs, and the
    /// rest when it comes once more.
    fn share_wildcard(&self, topic: &mut Topic, cache: &Cache) -> Change {
        let mut change = Change::default();
        // There the origin was asked for it, and need not answer a second time.
        let stream = self.homes[View::Wildcard as usize].filter(|home| self.has_wildcard[*home as usize]);
        let covers = |of: &Topic| {
            stream.and_then(|stream| of.subscription(stream)).is_some_and(StreamSubscription::covers_wildcard)
        };
        let others = self.topics.iter().filter(|(_, of)| of.asks_in(View::Wildcard));
        let known = others
            .map(|(other, of)| (of, self.snapshot(cache, other)))
            .filter(|(_, known)| known.wildcard_known());
        if let Some((of, known)) = known.max_by_key(|(of, _)| covers(of)) {
            let members = known.members().filter(|member| member.matches(&topic.parameters));
            change.ops.extend(members.map(|member| known.op_for(View::Wildcard, member)));
            change.wildcard_known = Some(known.completeness());
            topic.share_wildcard(of, stream, &change.ops);
        }
        if let Some(stream) = stream {
            topic.renewals[stream as usize].insert(Renewal::Doubt);
        }
        change
    }

    /// A topic whose subscription keeps the resource up to date for these parameters too. Topics that the origin has answered
    /// go before those whose resources may be gone.
    fn lender(
        &self,
        parameters: &Parameters,
        name: &Name,
        cache: &Cache,
    ) -> Option<(Arc<Resource>, Option<Lease>)> {
        let answered = self.lenders(parameters, name, cache, |topic| is_answered(topic, name)).next();
        answered.or_else(|| self.lenders(parameters, name, cache, |_| true).next())
    }

    /// All such topics for which `is_one` holds.
    fn lenders(
        &self,
        parameters: &Parameters,
        name: &Name,
        cache: &Cache,
        is_one: impl Fn(&Topic) -> bool,
    ) -> impl Iterator<Item = (Arc<Resource>, Option<Lease>)> {
        let others = self
            .topics
            .iter()
            .filter(move |(other, topic)| *other != parameters && topic.may_lend(name) && is_one(topic));
        let held = move |other: &Parameters| {
            let snapshot = self.snapshot(cache, other);
            let (view, text) = (View::Named, name.as_str());
            // A denied resource is for no client that comes now (R-Err-06).
            let held = snapshot.held(view, text).filter(|_| snapshot.denied(text).is_none());
            // A resource that goes by another name, or is not kept, is asked for.
            let held = held.filter(|held| held.name() == name && held.form() == Form::Whole);
            held.map(|held| (Arc::clone(held), snapshot.lease(view, text)))
        };
        others.filter_map(move |(other, _)| held(other)).filter(|(resource, _)| resource.matches(parameters))
    }

    /// Which of these names, that are borrowed, no topic for which `is_one` holds has as they are seen.
    fn unlent<'n>(
        &self,
        parameters: &Parameters,
        names: impl Iterator<Item = &'n Name>,
        cache: &Cache,
        is_one: impl Fn(&Topic, &Name) -> bool,
    ) -> Vec<(Parameters, Name)> {
        let mine = self.snapshot(cache, parameters);
        let is_lent = |name: &Name| {
            let mut lenders = self.lenders(parameters, name, cache, |topic| is_one(topic, name));
            let mine = mine.held(View::Named, name.as_str());
            mine.is_some_and(|mine| lenders.any(|(theirs, _)| theirs.same_content(mine)))
        };
        names.filter(|name| !is_lent(name)).map(|name| (parameters.clone(), name.clone())).collect()
    }

    /// Takes the name and fault of a resource of the last response.
    pub(super) const fn take_complaint(&mut self) -> Option<(Name, &'static str)> {
        self.silence_log.take()
    }

    /// Whether anything is borrowed.
    pub(super) fn has_loans(&self) -> bool {
        self.topics.values().any(Topic::has_loans)
    }

    /// Asks for those of these names that were borrowed and are no longer there to be borrowed.
    pub(super) fn end_loans(&mut self, mut names: BTreeSet<Name>, cache: &Cache) {
        names.append(&mut self.disowned);
        let mut ended = Vec::new();
        for (parameters, topic) in self.topics.iter().filter(|(_, topic)| topic.has_loans()) {
            let names = names.iter().filter(|name| topic.has_borrowed(name));
            ended.extend(self.unlent(parameters, names, cache, |_, _| true));
        }
        let home = self.homes[View::Named as usize];
        for (parameters, name) in &ended {
            self.topic(parameters).end_loan(name, home);
        }
    }

    /// Asks for what is borrowed from topics that the origin has not answered on this stream: what they hold may be gone, and
    /// nobody else would find out (R-DP-16).
    fn end_doubtful_loans(&mut self, settings: &Settings, now: Instant, cache: &Cache) {
        if self.loans_doubted.is_none_or(|since| since + settings.answer_timeout > now) {
            return;
        }
        self.loans_doubted = None;
        let mut ended = Vec::new();
        for (parameters, topic) in &self.topics {
            ended.extend(self.unlent(parameters, topic.borrowed.iter(), cache, is_answered));
        }
        let home = self.homes[View::Named as usize];
        for (parameters, name) in &ended {
            self.topic(parameters).end_loan(name, home);
        }
    }

    fn snapshot(&self, cache: &Cache, parameters: &Parameters) -> Arc<Snapshot> {
        snapshot(cache, &self.type_url, parameters)
    }

    /// Gives a home to a view that is wanted and has none.
    pub(super) fn arrange(&mut self) {
        for view in VIEWS {
            let is_live = self.topics.values().any(|topic| topic.is_live(view));
            if is_live && self.homes[view as usize].is_none() {
                let home = match self.homes[opposite(view) as usize] {
                    Some(StreamId::Primary) => StreamId::Secondary,
                    Some(StreamId::Secondary) | None => StreamId::Primary,
                };
                self.homes[view as usize] = Some(home);
                self.enter(view, home);
            }
        }
    }

    fn enter(&mut self, view: View, stream: StreamId) {
        self.topics.values_mut().for_each(|topic| topic.enter(view, stream));
    }

    /// Time in which this process did not run is no silence of the origin.
    pub(super) fn shift(&mut self, pause: Duration, now: Instant) {
        self.loans_doubted = self.loans_doubted.map(|since| (since + pause).min(now));
        self.topics.values_mut().for_each(|topic| topic.shift(pause, now));
    }

    /// Does what has become due on the streams.
    pub(super) fn advance(
        &mut self,
        settings: &Settings,
        now: Instant,
        cache: &Cache,
        counters: &Counters,
    ) -> Changes {
        self.end_doubtful_loans(settings, now, cache);
        let placed = StreamId::ALL.map(|stream| self.placement(stream));
        let mut changes = Vec::new();
        for (parameters, topic) in &mut self.topics {
            let looks_again = std::mem::take(&mut topic.looks_again);
            if !looks_again && topic.deadline(settings).is_none_or(|at| at > now) {
                continue;
            }
            let snapshot = snapshot(cache, &self.type_url, parameters);
            let change = topic.advance(placed, settings, now, &snapshot, counters);
            changes.push((parameters.clone(), change));
        }
        changes
    }

    pub(super) fn deadline(&self, settings: &Settings) -> Option<Instant> {
        let loans = self.loans_doubted.map(|since| since + settings.answer_timeout);
        self.topics.values().filter_map(|topic| topic.deadline(settings)).chain(loans).min()
    }

    /// The next request for this type on a stream, and whether another has to follow.
    pub(super) fn changes(
        &mut self,
        stream: StreamId,
        cache: &Cache,
        settings: &Settings,
        now: Instant,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        let placed = self.placement(stream);
        let fresh = !self.is_started(stream);
        // Beside locators an empty list of names would not be the legacy wildcard.
        let alone = self.plain || self.topics.keys().all(Parameters::is_empty);
        let mut whole: Option<DeltaDiscoveryRequest> = None;
        let mut more = false;
        let mut bytes = 0;
        let unclaimed = HashMap::new();
        let snapshots: BTreeMap<Parameters, Arc<Snapshot>> = self
            .topics
            .keys()
            .map(|parameters| (parameters.clone(), self.snapshot(cache, parameters)))
            .collect();
        let room = room(fresh && snapshots.values().any(|snapshot| snapshot.holds_anything()));
        for (parameters, snapshot) in &snapshots {
            // A plain wildcard is asked for once a stream: by all topics that want it, in one request.
            if bytes >= room && placed.view != Some(View::Wildcard) {
                more = true;
                break;
            }
            let Some(mut topic) = self.topics.remove(parameters) else { continue };
            // A claim goes by a name alone: it has to be true for every topic that asks for it (R-DP-14).
            let is_shared = |view, held: &Resource| {
                let asks = |topic: &Topic| match view {
                    View::Wildcard => topic.asks_in(view),
                    View::Named => topic.asks_for(held.name()),
                };
                self.topics.iter().filter(|(_, topic)| asks(topic)).all(|(other, _)| {
                    let theirs =
                        snapshots.get(other).and_then(|other| other.held(view, held.name().as_str()));
                    theirs.is_some_and(|theirs| theirs.same_content(held))
                })
            };
            let nothing = Parameters::NONE;
            let plain = self.plain;
            let is_asked_for = |name: &str| {
                plain && self.subscriptions(stream).any(|subscription| subscription.asked_before(name, now))
            };
            let wildcard_waits = plain && !fresh && self.has_wildcard[stream as usize];
            let claimed = whole.as_ref().map_or(&unclaimed, |whole| &whole.initial_resource_versions);
            let target = Target {
                claimed,
                beside: !self.plain && snapshots.len() > 1,
                is_only: snapshots.len() == 1 && parameters.is_empty(),
                proves: placed.view == Some(View::Wildcard) && topic.unproven.is_some(),
                is_last: placed.view.is_some_and(|view| topic.silent_streams.are_over(view)),
                full_state: self.type_url.kind().full_state(),
                view: placed.view.filter(|view| topic.wants(*view)),
                parameters: if self.plain { &nothing } else { parameters },
                fresh: fresh && parameters.is_empty(),
                alone,
                wildcard_waits,
                is_shared: &is_shared,
                is_asked_for: &is_asked_for,
                snapshot,
                settings,
                now,
            };
            let (request, again) = topic.changes(stream, &target);
            more |= again;
            bytes += request.as_ref().map_or(0, DeltaDiscoveryRequest::encoded_len);
            match (&mut whole, request) {
                (Some(whole), Some(request)) => merge(whole, request),
                (None, request) => whole = request,
                (Some(_), None) => {}
            }
            self.topics.insert(parameters.clone(), topic);
        }
        if let Some(request) = whole.as_mut().filter(|_| self.plain && self.topics.len() > 1) {
            // Several topics ask by one plain name, and what one let go of another may hold.
            for names in [&mut request.resource_names_subscribe, &mut request.resource_names_unsubscribe] {
                names.sort_unstable();
                names.dedup();
            }
            request.resource_names_unsubscribe.retain(|name| {
                !self.subscriptions(stream).any(|subscription| match name.as_str() {
                    Name::WILDCARD => subscription.covers_wildcard(),
                    name => subscription.covered(name).is_some(),
                })
            });
        }
        let has_doubts = || self.topics.values().any(|topic| !topic.orphans.is_empty());
        if whole.is_some() && self.has_loans() && has_doubts() {
            self.loans_doubted.get_or_insert(now);
        }
        self.started[stream as usize] |= whole.is_some();
        let asks_plainly = |subscription: &StreamSubscription| subscription.covers_wildcard();
        let plain_topics = self.topics.iter().filter(|(parameters, _)| self.plain || parameters.is_empty());
        let mut plain_links = plain_topics.filter_map(|(_, topic)| topic.subscription(stream));
        self.has_wildcard[stream as usize] |= plain_links.any(asks_plainly);
        (whole, more)
    }

    /// Works out what an accepted response changes.
    pub(super) fn learn(
        &mut self,
        stream: StreamId,
        mut reading: DecodedResponse<'_>,
        cache: &Cache,
        counters: &Counters,
        now: Instant,
    ) -> Changes {
        let placed = self.placement(stream);
        let is_only = self.topics.len() == 1;
        if !self.plain && !is_only {
            // Questions are answered in the order in which they were asked.
            for removed in reading.removed.iter_mut().filter(|removed| removed.constraints.is_none()) {
                removed.asked = self
                    .subscriptions(stream)
                    .filter_map(|subscription| subscription.awaits_since(&removed.name))
                    .min();
            }
        }
        let mut answered = Vec::new();
        let mut snapshots = Vec::with_capacity(self.topics.len());
        for (parameters, topic) in &mut self.topics {
            let snapshot = snapshot(cache, &self.type_url, parameters);
            let asked = topic.subscription(stream).and_then(StreamSubscription::wildcard_asked);
            if topic.hear(placed, &mut reading, &snapshot, is_only, now) {
                answered.extend(asked);
            }
            snapshots.push(snapshot);
        }
        // One response may answer all wildcards that were asked for in one request, and hold nothing for some.
        self.topics.values_mut().for_each(|topic| topic.hear_of_others(stream, &answered, now));
        if self.subscriptions(stream).any(StreamSubscription::has_begun) {
            self.topics.values_mut().for_each(|topic| topic.others_answered(stream));
        }
        let covered = |covered: &bool| !*covered;
        let unrequested = reading.resources.iter().map(|heard| &heard.covered).filter(|c| covered(c)).count()
            + reading.removed.iter().map(|removed| &removed.covered).filter(|c| covered(c)).count()
            + reading.reports.iter().map(|report| &report.covered).filter(|c| covered(c)).count();
        counters.resource_errors.add(reading.reports.len() as u64);
        counters.unrequested_resources.add(unrequested as u64);
        let refused = || reading.resources.iter().filter(|heard| heard.covered && !heard.is_understood());
        counters.refused_resources.add(refused().count() as u64);
        self.silence_log = refused().next().map(|heard| (heard.name.as_ref().into(), NOT_UNDERSTOOD));
        let mut changes = Vec::with_capacity(self.topics.len());
        for ((parameters, topic), snapshot) in self.topics.iter_mut().zip(&snapshots) {
            let change = topic.learn(placed, &self.type_url, &mut reading, snapshot, counters, now);
            let ambiguous = topic.ambiguous.take().map(|name| (name, AMBIGUOUS));
            self.silence_log = self.silence_log.take().or(ambiguous);
            changes.push((parameters.clone(), change));
        }
        self.disprove(placed, &reading, &snapshots, now);
        changes
    }

    /// An identity that the origin says is gone to one is gone for all, and what it sends to one is not. Where it sends
    /// another variant, none is there beside it that is for the same parameters (R-DP-04).
    fn disprove(
        &mut self,
        placed: Placement,
        reading: &DecodedResponse<'_>,
        snapshots: &[Arc<Snapshot>],
        now: Instant,
    ) {
        let asks = |topic: &Topic, name: &str| {
            topic.subscription(placed.stream).is_some_and(|subscription| subscription.covers(name))
        };
        let mut disproved: Vec<(Parameters, View, Name)> = Vec::new();
        for ((parameters, topic), snapshot) in self.topics.iter().zip(snapshots) {
            if !topic.has_questions() {
                continue;
            }
            let removed = reading.removed.iter().filter(|removed| removed.covered);
            for (view, held) in removed.flat_map(|removed| {
                let is_it = |held: &Resource| held.constraints() == removed.constraints.as_ref();
                topic.questions(snapshot, &removed.name).filter(move |(_, held)| is_it(held))
            }) {
                disproved.push((parameters.clone(), view, held.name().clone()));
            }
            for heard in reading.resources.iter().filter(|heard| heard.covered && heard.is_understood()) {
                for (view, held) in topic.questions(snapshot, &heard.name) {
                    // Which it may have of a faulty origin all the same, and then sees one of both.
                    let is_replaced = |(other, topic): (&Parameters, &Topic)| {
                        heard.matches(other)
                            && held.matches(other)
                            && asks(topic, &heard.name)
                            && !placed.view.is_some_and(|view| topic.weighs(view, held))
                    };
                    if !heard.is_variant_of(held) && self.topics.iter().any(is_replaced) {
                        disproved.push((parameters.clone(), view, held.name().clone()));
                    }
                }
            }
        }
        for (parameters, view, name) in disproved {
            if let Some(topic) = self.topics.get_mut(&parameters) {
                topic.disproved.insert(view, name.clone(), now);
                self.disowned.insert(name);
            }
        }
        for (topic, snapshot) in self.topics.values_mut().zip(snapshots) {
            topic.confirm(reading, snapshot);
        }
    }
}

fn merge(whole: &mut DeltaDiscoveryRequest, part: DeltaDiscoveryRequest) {
    whole.resource_names_subscribe.extend(part.resource_names_subscribe);
    whole.resource_names_unsubscribe.extend(part.resource_names_unsubscribe);
    whole.resource_locators_subscribe.extend(part.resource_locators_subscribe);
    whole.resource_locators_unsubscribe.extend(part.resource_locators_unsubscribe);
    whole.initial_resource_versions.extend(part.initial_resource_versions);
}

/// Snapshot of a type for clients with these parameters; empty if there is none.
pub fn snapshot(cache: &Cache, type_url: &TypeUrl, parameters: &Parameters) -> Arc<Snapshot> {
    let of = cache.find(type_url, &ParameterView::uniform(parameters.clone()));
    of.map(|of| of.snapshot()).unwrap_or_default()
}

/// Whether what a topic has of a name is not from an earlier stream.
fn is_answered(topic: &Topic, name: &Name) -> bool {
    !topic.is_orphan(View::Named, name)
}

const fn opposite(view: View) -> View {
    match view {
        View::Wildcard => View::Named,
        View::Named => View::Wildcard,
    }
}
