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

mod learn;
mod loans;
mod request;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use foldhash::HashSet;

use super::arrival::Evidence;
use super::linger::Want;
use super::members::Members;
use super::quiet_clock::{QuietClock, QuietInstant};
use super::refusal::{Refusal, Refused};
use super::response::ResponseError;
use super::topic::{OriginHabits, Topic};
use super::{Counters, ServerId, Settings, StreamId};
use crate::RelayIdentity;
use crate::cache::{Cache, Change, Op, ParameterView, Snapshot, View};
use crate::resource::{Kind, Name, Parameters, TypeUrl};

/// A wildcard that nobody wants any more costs the origin what it sends of it. After so many linger times the stream is opened
/// anew without it.
pub(super) const SHED_LINGERS: u32 = 10;

/// Changes by one event, by the parameters of the clients that see them.
pub(super) type Changes = Vec<(Parameters, Change)>;

/// Subscriptions to one type, and their layout over the two streams.
#[derive(Debug)]
pub(super) struct TopicSet {
    type_url: TypeUrl,
    /// On which stream each view lives.
    pub(super) homes: [Option<StreamId>; 2],
    /// Which streams are open.
    open: [bool; 2],
    /// Whether a request for each view was sent on its stream: responses for the type are ACKed there from then on (R-Up-11).
    started: [bool; 2],
    /// Whether the origin was asked for the plain wildcard, be it for clients that are gone.
    has_wildcard: bool,
    /// Boxed: most types have one, and a map has room for eleven.
    pub(super) topics: BTreeMap<Parameters, Box<Topic>>,
    /// Whether the origin is asked for plain names whatever the parameters: it does not read locators (R-Up-18).
    plain: bool,
    /// As far as is known.
    pub(super) habits: OriginHabits,
    /// Name and fault of a resource that the origin sent last, until it is complained of.
    complaint: Option<(Name, &'static str)>,
    /// Response that was refused, until something usable comes in its place.
    refused: Option<Refused>,
    /// `control_plane.identifier` of the newest response, and that of responses with its content for clients.
    came_through: Option<(String, Arc<str>)>,
}

impl TopicSet {
    /// A type of which nothing is wanted yet, and which of the streams are open.
    pub(super) fn new(type_url: TypeUrl, open: [bool; 2], plain: bool, habits: OriginHabits) -> Self {
        let (homes, started, has_wildcard, topics, complaint) = Default::default();
        Self {
            type_url,
            homes,
            open,
            started,
            has_wildcard,
            topics,
            plain,
            habits,
            complaint,
            refused: None,
            came_through: None,
        }
    }

    /// Notes the servers through which a response came.
    pub(super) fn came_through(&mut self, identifier: &str, identity: &RelayIdentity) {
        if self.came_through.as_ref().is_none_or(|(known, _)| known != identifier) {
            self.came_through = Some((identifier.to_owned(), identity.via(identifier)));
        }
    }

    /// `control_plane.identifier` for clients, once the origin has answered.
    pub(super) fn control_plane(&self) -> Option<&Arc<str>> {
        self.came_through.as_ref().map(|(_, control_plane)| control_plane)
    }

    /// A response was refused that has these names.
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

    /// A response was refused. If it was the first of a stream, the origin may take what it claimed for answered: the next stream claims
    /// nothing.
    pub(super) fn claim_nothing_next(&mut self, stream: StreamId, cache: &Cache) {
        let Some(view) = self.placed(stream) else { return };
        for (parameters, topic) in &mut self.topics {
            if !topic.silence(view).answered {
                topic.refresh_all(view, &snapshot(cache, &self.type_url, parameters));
            }
        }
    }

    /// A response may lack resources that exist: the first response of the next stream tells.
    pub(super) fn doubt(&mut self, stream: StreamId) {
        let Some(view) = self.placed(stream) else { return };
        self.topics.values_mut().for_each(|topic| topic.renews[view as usize] = true);
    }

    /// Refused response, if nothing usable came in its place.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refused.as_ref().map(|refused| refused.of(&self.type_url))
    }

    /// Ends a refusal that is of no consequence any more, as nobody wants what it is about.
    pub(super) fn forget_refused(&mut self) {
        if let Some(mut refused) = self.refused.take() {
            let is_over = self.wants_nothing() || refused.is_unwanted(|name| self.is_wanted(name));
            self.refused = Some(refused).filter(|_| !is_over);
        }
    }

    /// Whether anybody wants a resource of this name, or did lately.
    fn is_wanted(&self, name: &str) -> bool {
        self.topics.values().any(|topic| topic.is_wanted(name))
    }

    /// Topic for these parameters; a new one if there is none.
    pub(super) fn topic(&mut self, parameters: &Parameters) -> &mut Topic {
        let open = self.open_views();
        let new = || Box::new(Topic::new(parameters.clone(), open));
        self.topics.entry(parameters.clone()).or_insert_with(new)
    }

    /// Since when the origin has left something unanswered that it was asked for by locators.
    pub(super) fn unanswered_since(&self) -> Option<QuietInstant> {
        let located = self.topics.iter().filter(|(parameters, _)| !self.plain && !parameters.is_empty());
        let since = |topic: &Topic| View::ALL.into_iter().filter_map(|view| topic.silence(view).since).min();
        located.filter_map(|(_, topic)| since(topic)).min()
    }

    /// Whether everything came from the present server.
    pub(super) fn has_one_server(&self) -> bool {
        self.topics.values().all(|topic| topic.has_one_server())
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_idle(&self) -> bool {
        self.started == [false; 2] && self.topics.values().all(|topic| topic.is_idle())
    }

    /// Whether nobody wants anything of the type, or did lately.
    pub(super) fn wants_nothing(&self) -> bool {
        self.topics.values().all(|topic| topic.wants_nothing())
    }

    /// Drops topics of parameters that nobody has any more; returns whether there were any.
    pub(super) fn drop_idle(&mut self) -> bool {
        let before = self.topics.len();
        self.topics.retain(|_, topic| !topic.is_idle());
        before != self.topics.len()
    }

    /// Whether a request for the type was sent on a stream.
    pub(super) fn is_started(&self, stream: StreamId) -> bool {
        self.placed(stream).is_some_and(|view| self.started[view as usize])
    }

    pub(super) fn is_dirty(&self, stream: StreamId) -> bool {
        self.on(stream).any(|(topic, view)| topic.is_dirty(view))
    }

    /// Topics for which the origin is asked without parameters.
    fn plain_topics(&self) -> impl Iterator<Item = &Topic> {
        let plain = self.topics.iter().filter(|(parameters, _)| self.plain || parameters.is_empty());
        plain.map(|(_, topic)| &**topic)
    }

    /// Topics, with the view of them that a stream carries.
    fn on(&self, stream: StreamId) -> impl Iterator<Item = (&Topic, View)> {
        let view = self.placed(stream).into_iter();
        view.flat_map(|view| self.topics.values().map(move |topic| (&**topic, view)))
    }

    /// Of which views the streams are open.
    fn open_views(&self) -> [bool; 2] {
        self.homes.map(|home| home.is_some_and(|home| self.open[home as usize]))
    }

    /// View that a stream is to carry. The layout never puts both views on one.
    pub(super) fn placed(&self, stream: StreamId) -> Option<View> {
        View::ALL.into_iter().find(|view| self.homes[*view as usize] == Some(stream))
    }

    /// Whether anybody wants what lives on a stream, or did lately.
    pub(super) fn is_live_on(&self, stream: StreamId) -> bool {
        self.placed(stream).is_some_and(|view| self.topics.values().any(|topic| topic.is_live(view)))
    }

    /// Whether the origin can be asked for a census of the set.
    const fn can_count(&self) -> bool {
        let is_whole = matches!(self.type_url.kind(), Kind::Cluster | Kind::Listener | Kind::ScopedRoute);
        is_whole && !(self.habits.refuses_census || self.habits.speaks_sotw)
    }

    /// Since when a census of the set is due.
    pub(super) fn census_since(&self, settings: &Settings) -> Option<QuietInstant> {
        let due = |topic: &Topic| {
            let is_awaited = topic.needs_proof[View::Wildcard as usize];
            topic.members.as_ref()?.census_since(is_awaited, settings)
        };
        self.plain_topics().filter(|_| self.can_count()).filter_map(due).min()
    }

    /// Takes in a census of the set: it counts what those see who ask without parameters.
    pub(super) fn learn_census(&mut self, names: &HashSet<String>, cache: &Cache) -> Changes {
        let is_plain = self.plain;
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
            let change = topic.learn_census(names, is_all_held, &snapshot);
            (topic.parameters.clone(), change)
        };
        counted.into_iter().map(learn).collect()
    }

    /// When a name was asked for without parameters of which nothing has been said since.
    pub(super) fn awaits_plainly(&self, name: &str) -> Option<QuietInstant> {
        self.plain_topics().filter_map(|topic| topic.names.awaits_since(name)).min()
    }

    /// No earlier than since when names are to be asked for on a stream of their own.
    pub(super) fn names_overdue(&self, settings: &Settings) -> Option<QuietInstant> {
        self.topics.values().filter_map(|topic| topic.names_overdue(settings)).min()
    }

    /// Looks whether there are such names now.
    pub(super) fn look_for_overdue(&mut self, settings: &Settings, now: QuietInstant) {
        self.take_overdue(settings, 0, now);
    }

    /// Takes such names, as many as fit into one request.
    pub(super) fn take_overdue(
        &mut self,
        settings: &Settings,
        mut room: usize,
        now: QuietInstant,
    ) -> BTreeSet<Name> {
        let topics = self.topics.values_mut();
        topics.flat_map(|topic| topic.take_overdue(settings, &mut room, now)).collect()
    }

    /// Whether parts of an answer come on a stream, or on one that ends with it.
    pub(super) fn is_receiving(&self, stream: StreamId) -> bool {
        let home = self.homes[View::Wildcard as usize];
        let ends = stream == StreamId::Primary || home == Some(stream);
        ends && self.topics.values().any(|topic| topic.members.as_ref().is_some_and(Members::is_receiving))
    }

    /// Which of the streams are to be opened anew.
    pub(super) fn take_renewals(&mut self) -> [bool; 2] {
        let mut renews = [false; 2];
        for topic in self.topics.values_mut() {
            let of_views = std::mem::take(&mut topic.renews);
            let renewed = self.homes.iter().zip(of_views).filter(|(_, renews)| *renews);
            renewed.filter_map(|(home, _)| *home).for_each(|home| renews[home as usize] = true);
        }
        renews
    }

    /// Since when something has been unanswered on a stream.
    pub(super) fn unanswered_on(&self, stream: StreamId) -> Option<QuietInstant> {
        self.on(stream).filter_map(|(topic, view)| topic.silence(view).since).min()
    }

    /// Whether a client wants anything of the type, and not only did lately.
    pub(super) fn is_wanted_now(&self) -> bool {
        let wants = |topic: &Topic| {
            topic.wildcard == Want::Yes || topic.names.wanted().any(|(_, want)| want == Want::Yes)
        };
        self.topics.values().any(|topic| wants(topic))
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
        let since =
            self.topics.values().filter(|_| is_here && !is_shared).filter_map(|topic| since(topic)).min();
        since.map(|since| since + SHED_LINGERS * settings.linger)
    }

    /// Lets go of wildcards that nobody wants where no stream carries them, or will; returns what is no longer known.
    pub(super) fn drop_kept(&mut self, cache: &Cache) -> Changes {
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
                changes.push((parameters.clone(), topic.forget_wildcard(false, &snapshot)));
            }
        }
        changes
    }

    /// Whether wildcards that nobody wants are left over from a secondary that was closed: opened anew it would carry them.
    pub(super) fn has_stray(&self) -> bool {
        self.homes[View::Wildcard as usize] != Some(StreamId::Primary)
            && self.topics.values().any(|topic| matches!(topic.wildcard, Want::Kept(_)))
    }

    /// Another server takes the place of the last one, and is offered its versions if it `offers` them.
    pub(super) fn switched(&mut self, from: &ServerId, to: &ServerId, offers: bool, cache: &Cache) {
        for (parameters, topic) in &mut self.topics {
            let snapshot = snapshot(cache, &self.type_url, parameters);
            topic.switched((!offers).then_some((from, to)), &snapshot);
        }
    }

    /// A stream was opened, on which nothing is asked for yet; on the primary the layout starts anew.
    pub(super) fn opened(&mut self, stream: StreamId, plain: bool) {
        self.open[stream as usize] = true;
        if stream == StreamId::Primary || self.placed(stream).is_some() {
            self.refused = None;
        }
        if stream == StreamId::Primary {
            self.plain = plain;
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

    /// A name is wanted that was not. It is asked for, unless what is held already is for these clients too.
    pub(super) fn add_name(&mut self, parameters: &Parameters, name: &Name, cache: &Cache) -> Option<Op> {
        if let Some(loan) = self.lender(parameters, name, cache) {
            self.topic(parameters).borrow(name, loan.lease, loan.server);
            return Some(Op::held(View::Named, loan.resource, loan.lease));
        }
        self.topic(parameters).names.add(name);
        None
    }

    /// Has a name asked for anew. All who ask for it are concerned: what is held of it for one may be lent to another.
    pub(super) fn refresh(&mut self, name: &Name, cache: &Cache) {
        for (parameters, topic) in &mut self.topics {
            topic.refresh(name, &snapshot(cache, &self.type_url, parameters));
        }
    }

    /// A name is no longer asked for plainly. The answer there may be all that the origin said to topics that ask for it by
    /// locator: their question is asked once more, to see whether it reads it (R-Up-18).
    pub(super) fn ask_again_by_locator(&mut self, name: &Name) {
        let located = self.topics.iter_mut().filter(|(parameters, _)| !self.plain && !parameters.is_empty());
        located.for_each(|(_, topic)| topic.names.ask_again(name));
    }

    /// The wildcard is wanted that was not. With `is_silent` the origin has not shown that it reads locators: its answer to a
    /// plain question may be all that it says.
    pub(super) fn add_wildcard(&mut self, parameters: &Parameters, is_silent: bool, cache: &Cache) -> Change {
        let open = self.open_views();
        let removed = self.topics.remove(parameters);
        let mut topic = removed.unwrap_or_else(|| Box::new(Topic::new(parameters.clone(), open)));
        let mut change = Change::default();
        let plainly = self.topics.get(&Parameters::NONE).filter(|_| is_silent);
        if self.plain {
            change = self.share_wildcard(&mut topic, cache);
        } else if plainly.is_some_and(|topic| topic.wants(View::Wildcard)) {
            let known = self.snapshot(cache, &Parameters::NONE);
            let members = known.members().filter(|member| member.constraints().is_none());
            change.ops.extend(members.map(|member| known.op_for(View::Wildcard, member)));
            plainly.into_iter().for_each(|of| topic.share_provenance(of, &change.ops));
        }
        topic.add_wildcard();
        self.topics.insert(parameters.clone(), topic);
        change
    }

    /// There is one plain wildcard for all. What it brought others is seen at once and kept up to date with theirs, and the
    /// rest when it comes once more.
    fn share_wildcard(&self, topic: &mut Topic, cache: &Cache) -> Change {
        let mut change = Change::default();
        let others = self.topics.iter().filter(|(_, of)| of.wants(View::Wildcard));
        let known = others
            .map(|(other, of)| (of, self.snapshot(cache, other)))
            .filter(|(_, known)| known.wildcard_known());
        if let Some((of, known)) = known.max_by_key(|(of, _)| of.covers_wildcard()) {
            let members = known.members().filter(|member| member.matches(&topic.parameters));
            change.ops.extend(members.map(|member| known.op_for(View::Wildcard, member)));
            change.wildcard_known = Some(known.completeness());
            topic.share_wildcard(of, self.has_wildcard, &change.ops);
        }
        // The origin was asked for it on that stream, and need not answer a second time.
        topic.renews[View::Wildcard as usize] |= self.has_wildcard;
        change
    }

    /// Takes the name and fault of a resource of the last response.
    pub(super) const fn take_complaint(&mut self) -> Option<(Name, &'static str)> {
        self.complaint.take()
    }

    fn snapshot(&self, cache: &Cache, parameters: &Parameters) -> Arc<Snapshot> {
        snapshot(cache, &self.type_url, parameters)
    }

    /// Gives a home to a view that is wanted and has none.
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

    /// Does what has become due on the streams.
    pub(super) fn advance(
        &mut self,
        settings: &Settings,
        clock: &QuietClock,
        now: Instant,
        cache: &Cache,
        counters: &Counters,
    ) -> Changes {
        let moment = clock.moment(now);
        let (plain, can_count) = (self.plain, self.can_count());
        let mut changes = Vec::new();
        for (parameters, topic) in &mut self.topics {
            let evidence = Evidence::of(plain || parameters.is_empty(), can_count);
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
        let evidence = |topic: &Topic| Evidence::of(self.plain || topic.parameters.is_empty(), can_count);
        self.topics.values().filter_map(|topic| topic.deadline(settings, evidence(topic), clock)).min()
    }
}

/// Snapshot of a type for clients with these parameters; empty if there is none.
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
