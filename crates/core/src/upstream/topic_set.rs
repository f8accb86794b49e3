//! One type: its topics, one for each set of parameters, and their layout over the streams.
//!
//! Owns the layout (R-Relay-03), the moves between streams, and copies between topics (R-DP-16).
//! Knows nothing of other types.
//!
//! Layout: the first wanted view of a type lives on the primary, the second on the secondary. On
//! one stream a type is requested by name or as wildcard, never first one and then the other:
//! control planes differ in handling a wildcard that is let go (O1). Each primary starts a new
//! layout.
//!
//! Copy: a new name is shown with the variant of another topic that is for its clients too, until
//! the answer to its own request.

mod request;
mod response_changes;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashSet;

use super::answer::Evidence;
use super::linger::Want;
use super::quiet_clock::{QuietClock, QuietInstant};
use super::refusal::{Refusal, Refused};
use super::response::ResponseError;
use super::topic::{OriginTraits, Topic};
use super::{Counters, Settings, StreamId};
use crate::RelayIdentity;
use crate::cache::{Cache, Change, Completeness, Op, ParameterView, Snapshot, View};
use crate::resource::{Name, Parameters, TypeUrl};

/// Linger times after which a stream is opened anew without an unwanted wildcard, as the control
/// plane still sends its changes.
pub(super) const SHED_LINGERS: u32 = 10;

/// Changes by one event, by the parameters of their clients.
pub(super) type Changes = Vec<(Parameters, Change)>;

/// Name and fault of the last unusable resource of a response.
pub(super) type Unusable = Option<(Name, &'static str)>;

#[derive(Debug)]
pub(super) struct TopicSet {
    type_url: TypeUrl,
    /// Stream of each view.
    pub(super) homes: [Option<StreamId>; 2],
    open: [bool; 2],
    /// Whether a request for each view was sent on its stream: its responses are ACKed from then on
    /// (R-Up-11).
    started: [bool; 2],
    /// Whether the plain wildcard was requested, even for clients that are gone.
    has_wildcard: bool,
    /// Boxed: most types have one topic, and a map has room for eleven.
    pub(super) topics: BTreeMap<Parameters, Box<Topic>>,
    pub(super) traits: OriginTraits,
    /// Rejected response, until it is replaced.
    refused: Option<Refused>,
    /// `control_plane.identifier` of the newest response, and the one for clients.
    came_through: Option<(String, Arc<str>)>,
}

impl TopicSet {
    /// Creates it without subscriptions. `open`: the open streams.
    pub(super) fn new(type_url: TypeUrl, open: [bool; 2], traits: OriginTraits) -> Self {
        let (homes, started, has_wildcard, topics) = Default::default();
        let (refused, came_through) = (None, None);
        Self { type_url, homes, open, started, has_wildcard, topics, traits, refused, came_through }
    }

    /// Notes the servers through which a response came.
    pub(super) fn came_through(&mut self, identifier: &str, identity: &RelayIdentity) {
        if self.came_through.as_ref().is_none_or(|(known, _)| known != identifier) {
            self.came_through = Some((identifier.to_owned(), identity.via(identifier)));
        }
    }

    /// `control_plane.identifier` for clients, after the first response.
    pub(super) fn control_plane(&self) -> Option<&Arc<str>> {
        self.came_through.as_ref().map(|(_, control_plane)| control_plane)
    }

    /// Notes a rejected response with these names.
    pub(super) fn refuse<'a>(
        &mut self,
        fault: &ResponseError,
        names: impl Iterator<Item = Cow<'a, str>>,
        now: Instant,
    ) {
        let (wanted, unwanted): (Vec<_>, Vec<_>) = names.partition(|name| self.is_wanted(name));
        // Nobody misses anything.
        if wanted.is_empty() && !unwanted.is_empty() {
            return;
        }
        self.refused.get_or_insert_with(|| Refused::new(now)).add(fault, wanted.into_iter());
    }

    /// Has the stream opened anew, as a response may lack existing resources. The next first
    /// response tells.
    pub(super) fn doubt(&mut self, stream: StreamId) {
        let Some(view) = self.placed(stream) else { return };
        self.topics.values_mut().for_each(|topic| topic.renews[view as usize] = true);
    }

    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refused.as_ref().map(|refused| refused.of(&self.type_url))
    }

    /// Ends a refusal if nobody wants its names any more.
    pub(super) fn forget_refused(&mut self) {
        if let Some(mut refused) = self.refused.take() {
            let is_over = self.wants_nothing() || refused.is_unwanted(|name| self.is_wanted(name));
            self.refused = Some(refused).filter(|_| !is_over);
        }
    }

    /// Whether a resource of this name is wanted, or was until recently.
    fn is_wanted(&self, name: &str) -> bool {
        self.topics.values().any(|topic| topic.is_wanted(name))
    }

    /// Returns the topic of these parameters, new if there is none.
    pub(super) fn topic(&mut self, parameters: &Parameters) -> &mut Topic {
        let open = self.open_views();
        let new = || Box::new(Topic::new(parameters.clone(), open));
        self.topics.entry(parameters.clone()).or_insert_with(new)
    }

    /// Time of the oldest unanswered request by locator.
    pub(super) fn unanswered_since(&self) -> Option<QuietInstant> {
        let located =
            self.topics.iter().filter(|(parameters, _)| !self.traits.is_plain && !parameters.is_empty());
        let since = |topic: &Topic| View::ALL.into_iter().filter_map(|view| topic.silence(view).since).min();
        located.filter_map(|(_, topic)| since(topic)).min()
    }

    pub(super) fn has_one_server(&self) -> bool {
        self.topics.values().all(|topic| topic.has_one_server())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.started == [false; 2] && self.topics.values().all(|topic| topic.is_idle())
    }

    pub(super) fn wants_nothing(&self) -> bool {
        self.topics.values().all(|topic| topic.wants_nothing())
    }

    /// Drops idle topics. Returns whether there were any.
    pub(super) fn drop_idle(&mut self) -> bool {
        let before = self.topics.len();
        self.topics.retain(|_, topic| !topic.is_idle());
        before != self.topics.len()
    }

    pub(super) fn is_started(&self, stream: StreamId) -> bool {
        self.placed(stream).is_some_and(|view| self.started[view as usize])
    }

    pub(super) fn is_dirty(&self, stream: StreamId) -> bool {
        self.on(stream).any(|(topic, view)| topic.is_dirty(view))
    }

    /// Topics that are requested without parameters.
    fn plain_topics(&self) -> impl Iterator<Item = &Topic> {
        let plain =
            self.topics.iter().filter(|(parameters, _)| self.traits.is_plain || parameters.is_empty());
        plain.map(|(_, topic)| &**topic)
    }

    /// Topics, with the view that a stream carries.
    fn on(&self, stream: StreamId) -> impl Iterator<Item = (&Topic, View)> {
        let view = self.placed(stream).into_iter();
        view.flat_map(|view| self.topics.values().map(move |topic| (&**topic, view)))
    }

    /// Whether the stream of each view is open.
    fn open_views(&self) -> [bool; 2] {
        self.homes.map(|home| home.is_some_and(|home| self.open[home as usize]))
    }

    /// View that a stream carries; the layout never puts both on one.
    pub(super) fn placed(&self, stream: StreamId) -> Option<View> {
        View::ALL.into_iter().find(|view| self.homes[*view as usize] == Some(stream))
    }

    /// Whether anything on a stream is wanted, or was until recently.
    pub(super) fn is_live_on(&self, stream: StreamId) -> bool {
        self.placed(stream).is_some_and(|view| self.topics.values().any(|topic| topic.is_live(view)))
    }

    /// Whether a census of the set is possible.
    const fn can_count(&self) -> bool {
        self.type_url.kind().full_state() && !(self.traits.refuses_census || self.traits.speaks_sotw)
    }

    /// Time since when a census of the set is due.
    pub(super) fn census_since(&self, settings: &Settings) -> Option<QuietInstant> {
        let due = |topic: &Topic| {
            let is_awaited = topic.needs_proof[View::Wildcard as usize];
            topic.members.census_since(is_awaited, settings)
        };
        self.plain_topics().filter(|_| self.can_count()).filter_map(due).min()
    }

    /// Applies a census, which counts the set without parameters.
    pub(super) fn apply_census(&mut self, names: &HashSet<String>, cache: &Cache) -> Changes {
        let is_plain = self.traits.is_plain;
        let counted: Vec<_> = self
            .topics
            .iter_mut()
            .filter(|(parameters, _)| is_plain || parameters.is_empty())
            .map(|(parameters, topic)| (topic, snapshot(cache, &self.type_url, parameters)))
            .collect();
        let members = counted.iter().flat_map(|(_, snapshot)| snapshot.members());
        let held: HashSet<&str> = members.map(|member| member.name().as_str()).collect();
        let is_all_held = names.iter().all(|name| held.contains(name.as_str()));
        let learn = |(topic, snapshot): (&mut Box<Topic>, Arc<Snapshot>)| {
            let change = topic.apply_census(names, is_all_held, &snapshot);
            (topic.parameters.clone(), change)
        };
        counted.into_iter().map(learn).collect()
    }

    /// Time of the oldest unanswered request for a name without parameters.
    pub(super) fn awaits_plainly(&self, name: &str) -> Option<QuietInstant> {
        self.plain_topics().filter_map(|topic| topic.names.awaits_since(name)).min()
    }

    /// Lower bound of the time since when names are due for an inquiry.
    pub(super) fn names_overdue(&self, settings: &Settings) -> Option<QuietInstant> {
        self.topics.values().filter_map(|topic| topic.names_overdue(settings)).min()
    }

    /// Takes names for an inquiry, as many as fit into one request.
    pub(super) fn take_overdue(
        &mut self,
        settings: &Settings,
        mut room: usize,
        now: QuietInstant,
    ) -> BTreeSet<Name> {
        let topics = self.topics.values_mut();
        topics.flat_map(|topic| topic.take_overdue(settings, &mut room, now)).collect()
    }

    /// Whether an answer in parts is under way on a stream, or on one that ends with it.
    pub(super) fn is_receiving(&self, stream: StreamId) -> bool {
        let home = self.homes[View::Wildcard as usize];
        let ends = stream == StreamId::Primary || home == Some(stream);
        ends && self.topics.values().any(|topic| topic.members.is_receiving())
    }

    /// Takes the streams to be opened anew.
    pub(super) fn take_renewals(&mut self) -> [bool; 2] {
        let mut renews = [false; 2];
        for topic in self.topics.values_mut() {
            let of_views = std::mem::take(&mut topic.renews);
            let renewed = self.homes.iter().zip(of_views).filter(|(_, renews)| *renews);
            renewed.filter_map(|(home, _)| *home).for_each(|home| renews[home as usize] = true);
        }
        renews
    }

    /// Time of the oldest unanswered request on a stream.
    pub(super) fn unanswered_on(&self, stream: StreamId) -> Option<QuietInstant> {
        self.on(stream).filter_map(|(topic, view)| topic.silence(view).since).min()
    }

    /// Whether a client wants anything of the type now.
    pub(super) fn is_wanted_now(&self) -> bool {
        let wants = |topic: &Topic| {
            topic.wildcard == Want::Yes || topic.names.wanted().any(|(_, want)| want == Want::Yes)
        };
        self.topics.values().any(|topic| wants(topic))
    }

    /// Whether no other topic has requested the plain wildcard.
    pub(super) fn is_last_of_wildcard(&self, parameters: &Parameters) -> bool {
        let others = || self.topics.iter().filter(|(other, _)| *other != parameters);
        parameters.is_empty()
            || (self.traits.is_plain && others().all(|(_, topic)| topic.wildcard == Want::No))
    }

    /// Time at which a stream is opened anew to shed an unwanted wildcard.
    pub(super) fn sheds_at(&self, stream: StreamId, settings: &Settings) -> Option<Instant> {
        let since = |topic: &Topic| match topic.wildcard {
            Want::Kept(since) => Some(since),
            Want::No | Want::Yes | Want::Until(_) => None,
        };
        let is_here = self.homes[View::Wildcard as usize] == Some(stream) && self.open[stream as usize];
        // Without locators all topics share one wildcard.
        let is_shared = self.traits.is_plain && self.topics.values().any(|topic| topic.wildcard.is_live());
        let since =
            self.topics.values().filter(|_| is_here && !is_shared).filter_map(|topic| since(topic)).min();
        since.map(|since| since + SHED_LINGERS * settings.linger)
    }

    /// Lets go of unwanted wildcards without a stream. Returns the changes.
    pub(super) fn drop_kept(&mut self, cache: &Cache) -> Changes {
        let mut changes = Changes::new();
        for (parameters, topic) in &mut self.topics {
            if !matches!(topic.wildcard, Want::Kept(_)) {
                continue;
            }
            if cache.wants_wildcard(&self.type_url, parameters) {
                topic.wildcard = Want::Yes;
            } else {
                let snapshot = snapshot(cache, &self.type_url, parameters);
                changes.push((parameters.clone(), topic.forget_wildcard(false, &snapshot)));
            }
        }
        changes
    }

    /// Whether unwanted wildcards of a closed secondary are left, which it would carry again.
    pub(super) fn has_stray(&self) -> bool {
        self.homes[View::Wildcard as usize] != Some(StreamId::Primary)
            && self.topics.values().any(|topic| matches!(topic.wildcard, Want::Kept(_)))
    }

    /// Notes a change of the server. `offers`: versions are offered across servers.
    pub(super) fn switched(&mut self, offers: bool, cache: &Cache) {
        for (parameters, topic) in &mut self.topics {
            topic.rivals.clear();
            if !offers {
                topic.switched(&snapshot(cache, &self.type_url, parameters));
            }
        }
    }

    /// Notes an opened stream, without requests yet. A primary starts a new layout.
    pub(super) fn opened(&mut self, stream: StreamId) {
        self.open[stream as usize] = true;
        if stream == StreamId::Primary || self.placed(stream).is_some() {
            self.refused = None;
        }
        if stream == StreamId::Primary {
            self.homes = [None, None];
            self.arrange();
        } else if let Some(view) = self.placed(stream) {
            self.topics.values_mut().for_each(|topic| topic.opened(view));
        }
    }

    pub(super) fn closed(&mut self, stream: StreamId) {
        self.open[stream as usize] = false;
        let Some(view) = self.placed(stream) else { return };
        self.started[view as usize] = false;
        self.has_wildcard &= view != View::Wildcard;
        self.topics.values_mut().for_each(|topic| topic.closed(view));
        if stream == StreamId::Secondary && !self.is_live_on(stream) {
            self.homes[view as usize] = None;
        }
    }

    /// Adds a new name, and a copy of a held resource that is for these clients too. It is
    /// requested, unless the other topic has the answer to the same request.
    pub(super) fn add_name(&mut self, parameters: &Parameters, name: &Name, cache: &Cache) -> Option<Op> {
        // Answered topics go first.
        let copied = self.copies(parameters, name, cache).min_by_key(|copied| copied.answered.is_none());
        let is_plain = self.traits.is_plain;
        let topic = self.topic(parameters);
        match copied.as_ref().and_then(|copied| copied.answered).filter(|_| is_plain) {
            Some(asked) => topic.names.share(name, asked),
            None => topic.names.add(name),
        }
        let copied = copied?;
        topic.note_copy(name, copied.lease, copied.is_foreign);
        Some(Op::held(View::Named, copied.resource, copied.lease))
    }

    /// Has a name fetched anew by all topics.
    pub(super) fn refresh(&mut self, name: &Name, cache: &Cache) {
        for (parameters, topic) in &mut self.topics {
            topic.refresh(name, &snapshot(cache, &self.type_url, parameters));
        }
    }

    /// Asks again by locator for a name that is no longer requested plainly. The plain answer may
    /// have been the only one, so this shows whether locators are read (R-Up-18).
    pub(super) fn ask_again_by_locator(&mut self, name: &Name) {
        let located =
            self.topics.iter_mut().filter(|(parameters, _)| !self.traits.is_plain && !parameters.is_empty());
        located.for_each(|(_, topic)| topic.names.ask_again(name));
    }

    /// Adds the wildcard. If the control plane has not shown that it reads locators, the plain
    /// answer may be its only one.
    pub(super) fn add_wildcard(&mut self, parameters: &Parameters, cache: &Cache) -> Change {
        let open = self.open_views();
        let removed = self.topics.remove(parameters);
        let mut topic = removed.unwrap_or_else(|| Box::new(Topic::new(parameters.clone(), open)));
        let mut change = Change::default();
        let plainly = self.topics.get(&Parameters::NONE).filter(|_| !self.traits.knows_locators);
        if self.traits.is_plain {
            change = self.share_wildcard(&mut topic, cache);
        } else if plainly.is_some_and(|topic| topic.wants(View::Wildcard)) {
            let known = self.snapshot(cache, &Parameters::NONE);
            let members = known.members().filter(|member| member.constraints().is_none());
            change.ops.extend(members.map(|member| known.op_for(View::Wildcard, member)));
            plainly.into_iter().for_each(|of| topic.share_foreign(of, &change.ops));
        }
        topic.add_wildcard();
        self.topics.insert(parameters.clone(), topic);
        change
    }

    /// Shares the one plain wildcard: what it brought other topics is shown at once, and the rest
    /// comes with the next stream.
    fn share_wildcard(&self, topic: &mut Topic, cache: &Cache) -> Change {
        let mut change = Change::default();
        let others = self.topics.iter().filter(|(_, of)| of.wants(View::Wildcard));
        let known = others
            .map(|(other, of)| (of, self.snapshot(cache, other)))
            .filter(|(_, known)| known.wildcard_known());
        if let Some((of, known)) = known.max_by_key(|(of, _)| of.covers_wildcard()) {
            let members = known.members().filter(|member| member.matches(&topic.parameters));
            change.ops.extend(members.map(|member| known.op_for(View::Wildcard, member)));
            // Variants that are for these clients alone are held nowhere.
            change.wildcard_known = Some(known.completeness().min(Completeness::Presumed));
            topic.share_wildcard(of, self.has_wildcard, &change.ops);
        }
        // It was requested on that stream, and need not be answered a second time.
        topic.renews[View::Wildcard as usize] |= self.has_wildcard;
        change
    }

    fn snapshot(&self, cache: &Cache, parameters: &Parameters) -> Arc<Snapshot> {
        snapshot(cache, &self.type_url, parameters)
    }

    /// Places views that are wanted and have no stream.
    pub(super) fn arrange(&mut self) {
        for view in View::ALL {
            let is_live = self.topics.values().any(|topic| topic.is_live(view));
            if is_live && self.homes[view as usize].is_none() {
                let home = match self.homes[opposite(view) as usize] {
                    Some(StreamId::Primary) => StreamId::Secondary,
                    Some(StreamId::Secondary) | None => StreamId::Primary,
                };
                self.homes[view as usize] = Some(home);
                if self.open[home as usize] {
                    self.topics.values_mut().for_each(|topic| topic.opened(view));
                }
            }
        }
    }

    /// Runs everything that is due.
    pub(super) fn advance(
        &mut self,
        settings: &Settings,
        clock: &QuietClock,
        now: Instant,
        cache: &Cache,
        counters: &Counters,
    ) -> Changes {
        let moment = clock.moment(now);
        let (is_plain, can_count) = (self.traits.is_plain, self.can_count());
        let mut changes = Vec::new();
        for (parameters, topic) in &mut self.topics {
            let evidence = Evidence::of(is_plain || parameters.is_empty(), can_count);
            if topic.deadline(settings, evidence, clock).is_none_or(|at| at > now) {
                continue;
            }
            let snapshot = snapshot(cache, &self.type_url, parameters);
            let change = topic.advance(settings, evidence, moment, &snapshot, counters);
            changes.push((parameters.clone(), change));
        }
        changes
    }

    pub(super) fn deadline(&self, settings: &Settings, clock: &QuietClock) -> Option<Instant> {
        let can_count = self.can_count();
        let evidence =
            |topic: &Topic| Evidence::of(self.traits.is_plain || topic.parameters.is_empty(), can_count);
        self.topics.values().filter_map(|topic| topic.deadline(settings, evidence(topic), clock)).min()
    }
}

/// Snapshot of a type for clients with these parameters; may be empty.
pub(super) fn snapshot(cache: &Cache, type_url: &TypeUrl, parameters: &Parameters) -> Arc<Snapshot> {
    let of = cache.find(type_url, &ParameterView::uniform(parameters.clone()));
    of.map(|of| of.snapshot()).unwrap_or_default()
}

const fn opposite(view: View) -> View {
    match view {
        View::Wildcard => View::Named,
        View::Named => View::Wildcard,
    }
}
