//! What one stream carries of one type: what the origin was asked for there, and what is to be asked next.
//!
//! Owns the difference between what was sent and what is wanted, and how far the origin's answer has come. Knows
//! neither why something is wanted nor what the other stream carries.

mod silence;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

use foldhash::HashSet;

pub(super) use silence::Silence;

use super::{Reconcile, Settings};
use crate::cache::{Snapshot, View};
use crate::proto::{DeltaDiscoveryRequest, ResourceLocator};
use crate::resource::{Collection, Form, Name, NameMap, Parameters, Resource};

/// A request is cut when its names reach this many bytes: servers that kept gRPC's default take 4 MiB.
const REQUEST_BYTES: usize = 1 << 20;

/// All others at so many: what is answered all at once holds up everything else that the origin says. With
/// [`Settings::request_interval`] it is the pace at which new names are asked for, some fifty thousand in a second.
const NAMES_BYTES: usize = 16 << 10;

/// How many bytes of names go into a request, which may be the first one for a type of which something is held: that one
/// says the versions, and what is behind it is not said with versions any more (R-Delta-05).
pub(super) const fn room(is_first_of_held: bool) -> usize {
    if is_first_of_held { REQUEST_BYTES } else { NAMES_BYTES }
}

/// The versions of a wildcard's members cannot be cut. Where they would take more than this they are not sent, and
/// what is gone is found by sweeping.
const VERSIONS_BYTES: usize = 3 << 20;

/// Whether what the origin sends unchanged is an answer to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    /// Since [`Asked::at`].
    Answer,
    /// Until [`Asked::at`]: we said which version we hold, so that the origin need not answer, and after a while it will
    /// not (R-Up-02).
    Until,
}

/// A name that the origin was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    awaited: Awaited,
    /// Let go since, without the origin having been told. It is forgotten, so that wanting it again takes a new
    /// subscribe (R-Up-19).
    dropped: bool,
}

/// How far the answer to the first request for a type has come.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// Asked for. Where versions were sent, silence is an answer too, at `quiet_at`.
    Asked {
        since: Instant,
        quiet_at: Option<Instant>,
    },
    Arriving {
        first: Instant,
        last: Instant,
    },
    Settled,
}

impl Phase {
    const fn arrived(self, now: Instant) -> Self {
        match self {
            Self::Asked { .. } => Self::Arriving { first: now, last: now },
            Self::Arriving { first, .. } => Self::Arriving { first, last: now },
            Self::Idle => Self::Idle,
            Self::Settled => Self::Settled,
        }
    }

    /// When the answer counts as complete, if nothing more comes.
    fn complete_at(self, settings: &Settings) -> Option<Instant> {
        match self {
            Self::Asked { quiet_at, .. } => quiet_at,
            Self::Arriving { first, last } => Some((last + settings.settle).min(first + settings.settle_max)),
            Self::Idle | Self::Settled => None,
        }
    }

    /// The same of a wildcard beside which others are asked for with other parameters: what comes may be for those. It is
    /// given more time, and what the origin says nothing of in the end has nothing.
    fn complete_beside_at(self, settings: &Settings) -> Option<Instant> {
        match self {
            Self::Asked { since, quiet_at } => Some(quiet_at.unwrap_or(since + settings.locator_timeout)),
            Self::Arriving { first, .. } => Some(first + settings.settle_max),
            Self::Idle | Self::Settled => None,
        }
    }
}

/// A collection whose members have not all been heard yet.
#[derive(Debug)]
struct Incomplete {
    phase: Phase,
    /// Members that are held and have not been sent again.
    unseen: HashSet<Name>,
}

/// What a stream is to carry of a type.
pub(super) struct Target<'a> {
    pub(super) view: Option<View>,
    /// The parameters that it is asked for with.
    pub(super) parameters: &'a Parameters,
    /// Whether nothing of the type was asked for on this stream, so that versions can be told (R-Delta-05).
    pub(super) fresh: bool,
    /// Whether a request without names has no locators either.
    pub(super) alone: bool,
    /// The views that have to wait, because responses to another one may be on their way to somebody else.
    pub(super) turning: [bool; 2],
    /// Whether others ask for the type with other parameters.
    pub(super) beside: bool,
    /// The versions that others have claimed in the same request, and that hold for everybody.
    pub(super) claimed: &'a std::collections::HashMap<String, String>,
    /// Whether all who ask for a name hold this of it: else its version would say nothing (R-DP-14).
    pub(super) is_shared: &'a dyn Fn(View, &Resource) -> bool,
    /// Whether the other stream carries it too, and stays the authority on what is gone.
    pub(super) copy: bool,
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a Settings,
    pub(super) now: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Whether a request for the type was sent on this stream.
    started: bool,
    /// Whether the wildcard was asked for, and if so whether it was let go since as in [`Asked::dropped`].
    wildcard: Option<bool>,
    names: NameMap<Asked>,
    /// Names of which what was sent may differ from what is wanted.
    pending: BTreeSet<Name>,
    /// The last of these that was in a request which was cut.
    cut_at: Option<Name>,
    dirty: bool,
    phase: Phase,
    /// Whether the wildcard was asked for beside others.
    beside: bool,
    /// What is held and has not been sent again on this stream, where it is to be swept (R-Up-21).
    unseen: HashSet<Name>,
    /// When the last of these came. A sweep waits for those that are still coming, however many there are.
    last_seen: Option<Instant>,
    /// Collections that were asked for, until they are complete.
    incomplete: BTreeMap<Name, Incomplete>,
    awaiting: usize,
    answer_by: Option<Instant>,
    /// The origin may have taken a first request without names for the legacy wildcard (R-Up-18).
    misread: bool,
    /// The view that was left last, and until when responses to it may still be on their way. The other view is
    /// not subscribed to before: what comes for the one must not be taken for the other.
    turn: Option<(View, Instant)>,
}

impl Link {
    /// Whether nothing was asked for on it that was not let go, and nobody waits for the last of it.
    pub(super) fn is_idle(&self) -> bool {
        self.wildcard.is_none() && self.names.is_empty() && self.pending.is_empty() && self.turn.is_none()
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(super) fn touch(&mut self, names: impl IntoIterator<Item = Name>) {
        self.pending.extend(names);
        self.dirty = true;
    }

    pub(super) fn touch_sent(&mut self) {
        self.pending.extend(self.names.keys().cloned());
        self.dirty = true;
    }

    pub(super) fn drop_name(&mut self, name: &Name) {
        if self.wildcard.is_none() {
            self.unseen.remove(name);
        }
        self.incomplete.remove(name);
        if let Some(asked) = self.names.get_mut(name) {
            asked.dropped = true;
            self.touch([name.clone()]);
        } else {
            self.pending.remove(name);
        }
    }

    /// A name is to be subscribed to once more, so that the origin sends it in full (R-Delta-04).
    pub(super) fn ask_again(&mut self, name: &Name) {
        if let Some(asked) = self.names.get_mut(name) {
            asked.dropped = true;
            self.touch([name.clone()]);
        }
    }

    /// When the wildcard was asked for, while nothing came of it.
    pub(super) fn wildcard_asked(&self) -> Option<Instant> {
        match self.phase {
            Phase::Asked { since, .. } => self.wildcard.map(|_| since),
            Phase::Idle | Phase::Arriving { .. } | Phase::Settled => None,
        }
    }

    /// Since when the origin has left something unanswered, of which it said nothing else either.
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        let names =
            self.names.values().filter(|asked| asked.awaited == Awaited::Answer).map(|asked| asked.at);
        names.chain(self.wildcard_asked()).min()
    }

    /// Everything is to be asked for in another form: the origin did not understand (R-Up-18).
    pub(super) fn ask_anew(&mut self) {
        self.misread = self.started && self.wildcard.is_none();
        self.wildcard = None;
        self.phase = Phase::Idle;
        self.names.values_mut().for_each(|asked| asked.dropped = true);
        self.touch_sent();
    }

    /// The same, unless the origin is about to answer for it anyway.
    pub(super) fn ask_once_more(&mut self, name: &Name) {
        if self.names.get(name).is_some_and(|asked| asked.awaited == Awaited::No) {
            self.ask_again(name);
        }
    }

    pub(super) fn drop_wildcard(&mut self) {
        self.unseen.clear();
        self.dirty = true;
        if let Some(dropped) = &mut self.wildcard {
            *dropped = true;
        }
    }

    pub(super) fn covers_wildcard(&self) -> bool {
        self.wildcard == Some(false)
    }

    /// A name that was asked for and not let go.
    pub(super) fn covered(&self, name: &str) -> Option<&Name> {
        self.names.get_key_value(name).filter(|(_, asked)| !asked.dropped).map(|(name, _)| name)
    }

    /// Whether a collection was asked for that has this member.
    pub(super) fn covers_member(&self, name: &str) -> bool {
        Collection::covering(name).is_some_and(|covering| self.covered(&covering).is_some())
    }

    /// The origin said something of a name. Returns whether it answers us.
    pub(super) fn heard(&mut self, name: &str, now: Instant) -> bool {
        if self.unseen.remove(name) {
            self.last_seen = Some(now);
        }
        if self.wildcard.is_some() {
            return matches!(self.phase, Phase::Asked { .. } | Phase::Arriving { .. });
        }
        let of_collection = self.heard_member(name, now);
        of_collection | self.answered(name, now)
    }

    /// The same of a member of a collection: until that is complete, it is an answer.
    fn heard_member(&mut self, name: &str, now: Instant) -> bool {
        if self.incomplete.is_empty() {
            return false;
        }
        let Some(covering) = Collection::covering(name) else { return false };
        let Some(incomplete) = self.incomplete.get_mut(covering.as_str()) else { return false };
        incomplete.unseen.remove(name);
        incomplete.phase = incomplete.phase.arrived(now);
        self.answered(&covering, now);
        true
    }

    fn answered(&mut self, name: &str, now: Instant) -> bool {
        let Some(asked) = self.names.get_mut(name) else { return false };
        let awaited = std::mem::replace(&mut asked.awaited, Awaited::No);
        self.awaiting -= usize::from(awaited != Awaited::No);
        match awaited {
            Awaited::No => false,
            Awaited::Answer => true,
            Awaited::Until => now < asked.at,
        }
    }

    /// The origin said that a collection is empty: nothing more is to come.
    pub(super) fn heard_empty(&mut self, collection: &Name) {
        self.incomplete.remove(collection);
    }

    /// Collections of which all members have been heard by now, with those that were held and not sent again.
    pub(super) fn complete(&mut self, settings: &Settings, now: Instant) -> Vec<(Name, HashSet<Name>)> {
        let is_complete =
            |incomplete: &Incomplete| incomplete.phase.complete_at(settings).is_some_and(|at| at <= now);
        let complete: Vec<Name> = self
            .incomplete
            .iter()
            .filter(|(_, incomplete)| is_complete(incomplete))
            .map(|(name, _)| name.clone())
            .collect();
        let take = |name: Name| self.incomplete.remove(&name).map(|incomplete| (name, incomplete.unseen));
        complete.into_iter().filter_map(take).collect()
    }

    /// A response for the type was accepted.
    pub(super) const fn arrived(&mut self, now: Instant) {
        self.phase = self.phase.arrived(now);
    }

    fn settles_at(&self, settings: &Settings) -> Option<Instant> {
        let beside = self.beside && self.wildcard.is_some();
        let complete =
            if beside { self.phase.complete_beside_at(settings) } else { self.phase.complete_at(settings) }?;
        let sweep = self
            .last_seen
            .filter(|_| matches!(self.phase, Phase::Arriving { .. }) && !self.unseen.is_empty());
        Some(sweep.map_or(complete, |last| complete.max(last + settings.settle)))
    }

    /// Where the answer is complete now: what was held and not sent again.
    pub(super) fn settle(&mut self, settings: &Settings, now: Instant) -> Option<HashSet<Name>> {
        if self.settles_at(settings).is_none_or(|at| at > now) {
            return None;
        }
        self.phase = Phase::Settled;
        Some(std::mem::take(&mut self.unseen))
    }

    /// Lets the other view in once nothing of the last one can be on its way. Returns whether that is now.
    pub(super) fn end_turn(&mut self, now: Instant) -> bool {
        let ends = self.turn.is_some_and(|(_, end)| end <= now);
        if ends {
            self.turn = None;
            self.dirty = true;
        }
        ends
    }

    /// Whether this stream can stand alone for a view: the wildcard has settled, or every name was answered or had
    /// [`Settings::settle_max`] for it. A name without an answer is subscribed to all the same; a wildcard without
    /// one may not have been understood.
    pub(super) fn is_complete(&self, view: View, now: Instant) -> bool {
        match view {
            View::Wildcard => self.covers_wildcard() && matches!(self.phase, Phase::Settled),
            View::Named => {
                let answered = self.awaiting == 0 || self.answer_by.is_some_and(|end| end <= now);
                !self.names.is_empty() && self.pending.is_empty() && answered
            }
        }
    }

    /// When to look again though nothing happened.
    pub(super) fn deadline(&self, moving: Option<View>, settings: &Settings) -> Option<Instant> {
        let turn = self.turn.map(|(_, end)| end);
        let waits = moving == Some(View::Named) && self.awaiting > 0 && self.pending.is_empty();
        let answer = self.answer_by.filter(|_| waits);
        let collections = self.incomplete.values();
        let collections = collections.filter_map(|incomplete| incomplete.phase.complete_at(settings)).min();
        [turn, answer, self.settles_at(settings), collections].into_iter().flatten().min()
    }

    /// The next request that brings the origin closer to the target, and whether another has to follow.
    pub(super) fn changes(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
    ) -> (Option<DeltaDiscoveryRequest>, bool) {
        self.dirty = false;
        let mut request = DeltaDiscoveryRequest::default();
        let left_wildcard = self.leave_wildcard(target, &mut request);
        if std::mem::take(&mut self.misread) {
            request.resource_names_unsubscribe.push(Name::WILDCARD.to_owned());
        }
        let cut = self.exchange_names(target, wanted, &mut request);
        let is_new = target.view == Some(View::Wildcard) && self.wildcard.is_none();
        let join = is_new
            && !left_wildcard
            && self.names.is_empty()
            && !self.is_turning(View::Wildcard)
            && !target.turning[View::Wildcard as usize];
        if join {
            self.join_wildcard(target, &mut request);
        }
        let empty = !join
            && request.resource_names_subscribe.is_empty()
            && request.resource_names_unsubscribe.is_empty()
            && request.resource_locators_subscribe.is_empty()
            && request.resource_locators_unsubscribe.is_empty();
        ((!empty).then_some(request), cut || (left_wildcard && is_new))
    }

    /// Whether a view has to wait, because responses to another one may be on their way.
    pub(super) fn is_turning(&self, view: View) -> bool {
        self.turn.is_some_and(|(left, _)| left != view)
    }

    /// Whether anything of a view was asked for and not left yet.
    pub(super) fn carries(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard.is_some(),
            View::Named => !self.names.is_empty(),
        }
    }

    /// Whether the wildcard was let go, and the origin is still to be told.
    pub(super) fn leaves_wildcard(&self) -> bool {
        self.wildcard == Some(true)
    }

    fn leave_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) -> bool {
        let leave = self.wildcard.is_some_and(|dropped| dropped || target.view != Some(View::Wildcard));
        if leave {
            // A wildcard that was forgotten is left and joined again in requests of their own: what a server makes
            // of a second subscribe to it is not written anywhere.
            target.unsubscribe(Name::WILDCARD, request);
            self.wildcard = None;
            self.phase = Phase::Idle;
            self.unseen.clear();
            self.turn = Some((View::Wildcard, target.now + target.settings.settle));
        }
        leave
    }

    fn join_wildcard(&mut self, target: &Target<'_>, request: &mut DeltaDiscoveryRequest) {
        self.wildcard = Some(false);
        self.beside = target.beside;
        let members = || target.snapshot.members();
        let versions =
            || members().filter_map(|held| Some((held.name().as_str(), target.claim(View::Wildcard, held)?)));
        let bytes = || versions().map(|(name, version)| name.len() + version.len() + 10).sum::<usize>();
        let mut quiet_at = None;
        if self.started || !target.fresh || !target.alone {
            target.subscribe(Name::WILDCARD, request);
        }
        if self.started {
            // It was left before: nothing of it is held.
        } else if target.fresh
            && target.settings.reconcile == Reconcile::Trust
            && target.snapshot.wildcard_known()
            && bytes() <= VERSIONS_BYTES
        {
            request.initial_resource_versions =
                versions().map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
            quiet_at = Some(target.now + target.settings.settle_max);
            // What cannot be claimed comes again if it is still there.
            let unclaimed = members().filter(|held| target.claim(View::Wildcard, held).is_none());
            self.unseen = unclaimed.map(|held| held.name().clone()).collect();
        } else if !target.copy {
            // A set that never was complete is asked for anew: to an origin that had already sent everything
            // there would be nothing to answer, and it would never become known.
            let unclaimed = members().filter(|held| !target.is_claimed(held));
            self.unseen = unclaimed.map(|held| held.name().clone()).collect();
            let silent = target.snapshot.wildcard_known() && !target.claimed.is_empty();
            quiet_at = silent.then(|| target.now + target.settings.settle_max);
        }
        // Otherwise the request stays empty: the form that every server understands (R-Up-05).
        self.started = true;
        self.phase = Phase::Asked { since: target.now, quiet_at };
    }

    /// Puts names to leave and to join into the request; returns whether some did not fit.
    fn exchange_names(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> bool {
        let named = target.view == Some(View::Named);
        let may_join = named && !self.is_turning(View::Named) && !target.turning[View::Named as usize];
        let mut joined = false;
        let had_names = !self.names.is_empty();
        let first = !self.started;
        let mut room = room(first && target.fresh && target.snapshot.holds_anything());
        let mut kept = Vec::new();
        let mut last = self.cut_at.take();
        while room > 0
            && let Some(name) = self.next_pending(last.as_ref())
        {
            last = Some(name.clone());
            let asked = self.names.get(&name);
            if !(named && wanted(&name)) {
                self.incomplete.remove(&name);
                if let Some(asked) = self.names.swap_remove(&name) {
                    self.awaiting -= usize::from(asked.awaited != Awaited::No);
                    room = room.saturating_sub(target.unsubscribe(name.as_str(), request));
                }
            } else if asked.is_none_or(|asked| asked.dropped) {
                if !may_join {
                    kept.push(name);
                    continue;
                }
                joined = true;
                room = room.saturating_sub(target.subscribe(name.as_str(), request));
                room = room.saturating_sub(self.join_name(target, wanted, name, first, request));
            }
        }
        let cut = !self.pending.is_empty();
        self.cut_at = last.filter(|_| cut);
        self.pending.extend(kept);
        if joined {
            self.started = true;
            self.answer_by = Some(target.now + target.settings.settle_max);
            if first {
                self.start_names(target, wanted);
            }
        }
        if had_names && self.names.is_empty() {
            self.turn = Some((View::Named, target.now + target.settings.settle));
            self.phase = Phase::Idle;
            self.unseen.clear();
        }
        cut
    }

    /// Takes the pending name that comes after this one: names have their turn, whoever goes on asking for earlier ones.
    fn next_pending(&mut self, last: Option<&Name>) -> Option<Name> {
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.pending.range::<Name, _>((after, Bound::Unbounded)).next();
        let next = next.or_else(|| self.pending.first())?.clone();
        self.pending.take(&next)
    }

    /// Notes a name as asked for; returns the bytes that its version took.
    fn join_name(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: Name,
        first: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        let trusts = first && target.fresh && target.settings.reconcile == Reconcile::Trust;
        let bytes = if Collection::named(name.as_str()).is_some() {
            self.join_collection(target, wanted, &name, trusts, request)
        } else {
            let held = trusts.then(|| target.version_held(name.as_str())).flatten();
            held.map_or(0, |(own, version)| {
                let bytes = own.len() + version.len() + 8;
                request.initial_resource_versions.insert(own, version);
                bytes
            })
        };
        let (awaited, at) = match bytes {
            0 if !target.claimed.contains_key(name.as_str()) => (Awaited::Answer, target.now),
            _ => (Awaited::Until, target.now + target.settings.settle_max),
        };
        let before = self.names.insert(name, Asked { at, awaited, dropped: false });
        self.awaiting += usize::from(before.is_none_or(|asked| asked.awaited == Awaited::No));
        bytes
    }

    /// Notes a collection as not complete yet; returns the bytes that the versions of its members took.
    fn join_collection(
        &mut self,
        target: &Target<'_>,
        wanted: &dyn Fn(&Name) -> bool,
        name: &Name,
        trusts: bool,
        request: &mut DeltaDiscoveryRequest,
    ) -> usize {
        // What is asked for by its own name too is claimed and swept by that.
        let members = || target.snapshot.members_of(name).filter(|member| !wanted(member.name()));
        let versions =
            || members().filter_map(|held| Some((held.name().as_str(), target.claim(View::Named, held)?)));
        let all: usize = versions().map(|(name, version)| name.len() + version.len() + 8).sum();
        let (mut bytes, mut quiet_at, mut unseen) = (0, None, HashSet::default());
        if trusts && (1..=VERSIONS_BYTES).contains(&all) {
            let versions = versions().map(|(name, version)| (name.to_owned(), version.to_owned()));
            request.initial_resource_versions.extend(versions);
            quiet_at = Some(target.now + target.settings.settle_max);
            bytes = all;
        } else if !target.copy {
            unseen =
                members().filter(|held| !target.is_claimed(held)).map(|held| held.name().clone()).collect();
        }
        self.incomplete
            .insert(name.clone(), Incomplete { phase: Phase::Asked { since: target.now, quiet_at }, unseen });
        bytes
    }

    fn start_names(&mut self, target: &Target<'_>, wanted: &dyn Fn(&Name) -> bool) {
        self.phase = Phase::Settled;
        if target.settings.reconcile == Reconcile::Sweep && !target.copy {
            self.phase = Phase::Asked { since: target.now, quiet_at: None };
            let is_held = |name: &&Name| target.snapshot.held(View::Named, name.as_str()).is_some();
            let all = self.names.keys().chain(&self.pending);
            self.unseen = all.filter(|name| wanted(name)).filter(is_held).cloned().collect();
        }
    }
}

impl Target<'_> {
    /// Puts a name into a request; returns the bytes that it takes.
    fn subscribe(&self, name: &str, request: &mut DeltaDiscoveryRequest) -> usize {
        let lists = (&mut request.resource_names_subscribe, &mut request.resource_locators_subscribe);
        self.put(name, lists)
    }

    fn unsubscribe(&self, name: &str, request: &mut DeltaDiscoveryRequest) -> usize {
        let lists = (&mut request.resource_names_unsubscribe, &mut request.resource_locators_unsubscribe);
        self.put(name, lists)
    }

    fn put(&self, name: &str, (names, locators): (&mut Vec<String>, &mut Vec<ResourceLocator>)) -> usize {
        if self.parameters.is_empty() {
            names.push(name.to_owned());
            return name.len() + 4;
        }
        let pairs = || self.parameters.iter();
        let dynamic_parameters = pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        locators.push(ResourceLocator { name: name.to_owned(), dynamic_parameters });
        name.len() + 8 + pairs().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>()
    }

    /// The version of what is held that can be told to the origin: versions go by names alone (R-DP-14).
    fn claim<'r>(&self, view: View, held: &'r Resource) -> Option<&'r str> {
        held.origin_version().filter(|_| held.constraints().is_none() && (self.is_shared)(view, held))
    }

    /// Whether others have claimed it, so that it need not come again.
    pub(super) fn is_claimed(&self, held: &Resource) -> bool {
        self.claimed.contains_key(held.name().as_str())
    }

    /// The version under which the origin knows what it sent by this name, with the name under which it knows it: an
    /// alias has no version. What was not kept is not held (R-Up-03).
    fn version_held(&self, name: &str) -> Option<(String, String)> {
        let held = self.snapshot.held(View::Named, name).filter(|held| held.form() == Form::Whole)?;
        Some((held.name().to_string(), self.claim(View::Named, held)?.to_owned()))
    }
}
